//! Records what a receiver does to the disk, and makes of it what a power cut may leave.
//!
//! The model knows no file system that is kinder than it must be. What was not flushed may be lost,
//! each piece by itself, and names may be on the disk before the bytes of their files. A flush of a
//! file saves its bytes, length, mode and time, a flush of a directory its names.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{File, Permissions};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use fabricast_proto::rng::Rng;
use rustix::fs::{self as sys, AtFlags, Mode, Timespec};

/// The number of an inode.
type Number = u64;

/// What was done to the disk.
#[derive(Clone, Debug)]
pub enum Op {
    Create(Number, u32),
    Write(Number, u64, Vec<u8>),
    SetLen(Number, u64),
    Punch(Number, u64, u64),
    Mode(Number, Mode),
    Time(Number, Timespec),
    Directory(Number, Number, PathBuf),
    Symlink(Number, PathBuf, PathBuf),
    Link(Number, Number, PathBuf),
    Rename(Number, PathBuf, PathBuf),
    Remove(Number, PathBuf),
    Flush(Number),
    FlushAll,
    /// A file was created with a name: both or none of it may be on the disk.
    Named(Number, u32, Number, PathBuf),
}

thread_local! {
    static OPS: RefCell<Option<Vec<Op>>> = const { RefCell::new(None) };
    /// Numbers of files and directories that were made while this thread recorded: the system uses
    /// the numbers of inodes that are gone again.
    static MADE: RefCell<BTreeMap<u64, Number>> = const { RefCell::new(BTreeMap::new()) };
}

fn known(inode: u64) -> Number {
    MADE.with_borrow(|made| made.get(&inode).copied().unwrap_or(inode))
}

/// A new number for an inode that was just made.
fn made(inode: u64) -> Number {
    static NEXT: AtomicU64 = AtomicU64::new(1 << 48);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    MADE.with_borrow_mut(|made| made.insert(inode, number));
    number
}

fn inode_at(directory: impl AsFd, name: &Path) -> u64 {
    let there = sys::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
    there.unwrap().st_ino
}

fn inode(file: impl AsFd) -> u64 {
    sys::fstat(file).unwrap().st_ino
}

pub fn number(file: impl AsFd) -> Number {
    known(inode(file))
}

impl Op {
    pub fn create(file: &File, name: Option<(impl AsFd, &Path)>) -> Op {
        let there = sys::fstat(file).unwrap();
        let (number_of, mode) = (made(there.st_ino), there.st_mode & 0o7777);
        match name {
            Some((directory, name)) => Op::Named(number_of, mode, number(directory), name.into()),
            None => Op::Create(number_of, mode),
        }
    }

    pub fn directory(directory: impl AsFd, name: &Path) -> Op {
        let number_of = made(inode_at(&directory, name));
        Op::Directory(number_of, number(directory), name.into())
    }

    pub fn link(directory: impl AsFd, name: &Path) -> Op {
        let linked = known(inode_at(&directory, name));
        Op::Link(linked, number(directory), name.into())
    }
}

/// Notes what was done, while this thread records.
pub fn note(op: impl FnOnce() -> Op) {
    OPS.with_borrow_mut(|ops| {
        if let Some(ops) = ops {
            ops.push(op());
        }
    });
}

/// What a thread did to the disk, and what was there before.
pub struct Recording {
    root: Number,
    before: Disk,
    pub ops: Vec<Op>,
}

impl Recording {
    /// Records what `act` does beneath `root`.
    pub fn of(root: &Path, act: impl FnOnce()) -> Recording {
        let (root, before) = (root.metadata().unwrap().ino(), Disk::read(root));
        MADE.take();
        OPS.set(Some(Vec::new()));
        act();
        let ops = OPS.take().unwrap();
        Recording { root, before, ops }
    }

    /// Makes in the empty directory `to` what a power cut after the first `count` operations
    /// leaves, if all was lost that `luck` does not save.
    pub fn cut(&self, count: usize, luck: &mut Luck, to: &Path) {
        let mut disk = self.before.clone();
        let mut pending = Vec::new();
        for op in &self.ops[..count] {
            disk.begin(op);
            match op {
                Op::FlushAll => pending.drain(..).for_each(|op| disk.apply(op)),
                Op::Flush(file) => {
                    // What is saved keeps its order; what is not waits.
                    let (saved, rest): (Vec<&Op>, Vec<&Op>) =
                        pending.drain(..).partition(|op| op.belongs_to() == *file);
                    saved.into_iter().for_each(|op| disk.apply(op));
                    pending = rest;
                }
                op => pending.push(op),
            }
        }
        for op in pending {
            if luck.saves(op) {
                disk.apply(op);
            }
        }
        disk.write(self.root, to);
    }
}

impl Op {
    /// The file whose flush saves this, or the directory.
    fn belongs_to(&self) -> Number {
        match self {
            Op::Create(number, _)
            | Op::Write(number, ..)
            | Op::SetLen(number, _)
            | Op::Punch(number, ..)
            | Op::Mode(number, _)
            | Op::Time(number, _)
            | Op::Flush(number) => *number,
            Op::Directory(_, directory, _)
            | Op::Symlink(directory, ..)
            | Op::Link(_, directory, _)
            | Op::Rename(directory, ..)
            | Op::Remove(directory, _)
            | Op::Named(_, _, directory, _) => *directory,
            Op::FlushAll => 0,
        }
    }

    fn is_name(&self) -> bool {
        matches!(
            self,
            Op::Directory(..)
                | Op::Symlink(..)
                | Op::Link(..)
                | Op::Rename(..)
                | Op::Remove(..)
                | Op::Named(..)
        )
    }
}

/// What a power cut saves of that which was not flushed.
pub enum Luck {
    /// Nothing.
    Nothing,
    /// All names, and nothing of what they name.
    Names,
    /// All bytes, and no names.
    Bytes,
    /// Names in their order up to some point, and of the rest each with this chance.
    Some(Box<Rng>, f64, bool),
}

impl Luck {
    pub fn some(seed: u64) -> Luck {
        let mut rng = Rng::new(seed);
        let chance = [0.1, 0.5, 0.9][rng.below(3) as usize];
        Luck::Some(Box::new(rng), chance, true)
    }

    fn saves(&mut self, op: &Op) -> bool {
        match self {
            Luck::Nothing => false,
            Luck::Names => op.is_name(),
            Luck::Bytes => !op.is_name(),
            Luck::Some(rng, _, goes_on) if op.is_name() => {
                *goes_on &= rng.chance(0.9);
                *goes_on
            }
            Luck::Some(rng, chance, _) => rng.chance(*chance),
        }
    }
}

#[derive(Clone)]
enum Node {
    File {
        bytes: Vec<u8>,
        mode: u32,
        time: (i64, i64),
    },
    Directory {
        names: BTreeMap<PathBuf, Number>,
        mode: u32,
        time: (i64, i64),
    },
    Symlink(PathBuf),
}

/// What is on a disk.
#[derive(Clone, Default)]
struct Disk {
    nodes: BTreeMap<Number, Node>,
    /// Numbers for symbolic links, which have none in the recording.
    links: Number,
}

impl Disk {
    fn read(path: &Path) -> Disk {
        let mut disk = Disk::default();
        disk.add(path);
        disk
    }

    fn add(&mut self, path: &Path) -> Number {
        let meta = path.symlink_metadata().unwrap();
        let (mode, time) = (meta.mode(), (meta.mtime(), meta.mtime_nsec()));
        let node = match meta.file_type() {
            t if t.is_symlink() => Node::Symlink(path.read_link().unwrap()),
            t if t.is_dir() => {
                let entries = std::fs::read_dir(path).unwrap().map(|e| e.unwrap());
                let names = entries.map(|e| (e.file_name().into(), self.add(&e.path())));
                let names = names.collect();
                Node::Directory { names, mode, time }
            }
            _ => {
                let bytes = std::fs::read(path).unwrap();
                Node::File { bytes, mode, time }
            }
        };
        self.nodes.insert(meta.ino(), node);
        meta.ino()
    }

    fn file(&mut self, number: Number) -> Option<&mut Vec<u8>> {
        match self.nodes.get_mut(&number) {
            Some(Node::File { bytes, .. }) => Some(bytes),
            _ => None,
        }
    }

    fn names(&mut self, directory: Number) -> Option<&mut BTreeMap<PathBuf, Number>> {
        match self.nodes.get_mut(&directory) {
            Some(Node::Directory { names, .. }) => Some(names),
            _ => None,
        }
    }

    /// Notes an inode that begins to be. Until its name is saved, nobody can find it.
    fn begin(&mut self, op: &Op) {
        let time = (0, 0);
        match op {
            Op::Create(number, mode) | Op::Named(number, mode, ..) => {
                let (bytes, mode) = (Vec::new(), *mode);
                self.nodes.insert(*number, Node::File { bytes, mode, time });
            }
            Op::Directory(number, ..) => {
                let (names, mode) = (BTreeMap::new(), 0o700);
                self.nodes
                    .insert(*number, Node::Directory { names, mode, time });
            }
            _ => {}
        }
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Write(number, at, bytes) => {
                if let Some(file) = self.file(*number) {
                    let end = *at as usize + bytes.len();
                    file.resize(file.len().max(end), 0);
                    file[*at as usize..end].copy_from_slice(bytes);
                }
            }
            Op::SetLen(number, len) => {
                if let Some(file) = self.file(*number) {
                    file.resize(*len as usize, 0);
                }
            }
            Op::Punch(number, at, len) => {
                if let Some(file) = self.file(*number) {
                    let end = file.len().min((at + len) as usize);
                    let start = end.min(*at as usize);
                    file[start..end].fill(0);
                }
            }
            Op::Mode(number, new) => {
                if let Some(Node::File { mode, .. } | Node::Directory { mode, .. }) =
                    self.nodes.get_mut(number)
                {
                    *mode = new.as_raw_mode();
                }
            }
            Op::Time(number, new) => {
                if let Some(Node::File { time, .. } | Node::Directory { time, .. }) =
                    self.nodes.get_mut(number)
                {
                    *time = (new.tv_sec, new.tv_nsec);
                }
            }
            Op::Symlink(directory, name, target) => {
                self.links += 1;
                let number = Number::MAX - self.links;
                self.nodes.insert(number, Node::Symlink(target.clone()));
                if let Some(names) = self.names(*directory) {
                    names.insert(name.clone(), number);
                }
            }
            Op::Named(number, _, directory, name)
            | Op::Directory(number, directory, name)
            | Op::Link(number, directory, name) => {
                if let Some(names) = self.names(*directory) {
                    names.insert(name.clone(), *number);
                }
            }
            Op::Rename(directory, from, to) => {
                if let Some(names) = self.names(*directory)
                    && let Some(number) = names.remove(from)
                {
                    names.insert(to.clone(), number);
                }
            }
            Op::Remove(directory, name) => {
                if let Some(names) = self.names(*directory) {
                    names.remove(name);
                }
            }
            Op::Create(..) | Op::Flush(_) | Op::FlushAll => {}
        }
    }

    /// Makes what is in a directory of this number in the directory `to`.
    fn write(&self, number: Number, to: &Path) {
        self.write_below(number, to, &mut BTreeMap::new());
    }

    fn write_below(&self, number: Number, to: &Path, made: &mut BTreeMap<Number, PathBuf>) {
        let Some(Node::Directory { names, .. }) = self.nodes.get(&number) else {
            return;
        };
        for (name, number) in names {
            let path = to.join(name);
            match self.nodes.get(number) {
                Some(Node::Symlink(target)) => symlink(target, path).unwrap(),
                Some(Node::Directory { mode, time, .. }) => {
                    std::fs::create_dir(&path).unwrap();
                    self.write_below(*number, &path, made);
                    set(&File::open(&path).unwrap(), *mode, *time);
                }
                Some(Node::File { bytes, mode, time }) => match made.get(number) {
                    Some(first) => std::fs::hard_link(first, path).unwrap(),
                    None => {
                        let file = File::create(&path).unwrap();
                        // Zeros at the end are a hole, which is read as zeros all the same.
                        let len = bytes.iter().rposition(|b| *b != 0).map_or(0, |at| at + 1);
                        file.write_all_at(&bytes[..len], 0).unwrap();
                        file.set_len(bytes.len() as u64).unwrap();
                        set(&file, *mode, *time);
                        made.insert(*number, path);
                    }
                },
                None => {}
            }
        }
    }
}

fn set(file: &File, mode: u32, (seconds, nanoseconds): (i64, i64)) {
    let time = UNIX_EPOCH + Duration::new(seconds as u64, nanoseconds as u32);
    file.set_modified(time).unwrap();
    file.set_permissions(Permissions::from_mode(mode & 0o7777))
        .unwrap();
}
