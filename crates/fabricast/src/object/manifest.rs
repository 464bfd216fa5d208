//! The manifest of a set: what the sender offers, entry by entry, in binary pages (spec 5.4).
//!
//! An entry names its parent, an earlier directory, and itself within it. So no entry can lead out
//! of the destination, whatever bytes a page has. Decoding is total: any bytes are either entries
//! or [`Malformed`], and memory is bounded by the length of the pages.

mod alone;
mod attributes;

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

pub use self::alone::Alone;
pub use self::attributes::Attributes;
use super::LEN_MAX;
use crate::error::Error;

/// Most entries of a set.
pub const ENTRIES_MAX: u32 = 1 << 22;
/// Most bytes of all pages of a set. With [`ENTRIES_MAX`] it bounds a receiver's memory.
pub const MANIFEST_MAX: usize = 256 << 20;
/// Longest page in bytes.
pub const PAGE_MAX: usize = 1 << 20;
/// Longest name in bytes: what Linux allows.
const NAME_MAX: usize = 255;
/// Longest target of a symbolic link in bytes: what Linux allows.
const TARGET_MAX: usize = 4095;
/// Deepest nesting of directories.
const DEPTH_MAX: u16 = 1024;
/// Longest value of an extended attribute in bytes: what Linux allows.
const VALUE_MAX: usize = 1 << 16;
/// The parent of an entry at the top of the set.
pub const TOP: u32 = u32::MAX;
/// Permissions with set-user-ID, set-group-ID and sticky bit.
const MODE_MASK: u16 = 0o7777;

/// What an entry is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A regular file of this many bytes.
    File(u64),
    /// A directory.
    Directory,
    /// A symbolic link to this target.
    Symlink(Box<[u8]>),
    /// Another name of an earlier regular file.
    HardLink(u32),
    /// A regular file of its own with the bytes of an earlier one, which the receiver copies.
    Copy(u32),
    /// Something that is neither a file nor a directory nor a link.
    Special(Special),
    /// A regular file whose length is known when its last byte has come. It is alone in its set.
    Stream,
}

/// What has no bytes of its own. A device is named by its major and minor number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Special {
    /// A FIFO (named pipe).
    Fifo,
    /// A character device.
    Character(u32, u32),
    /// A block device.
    Block(u32, u32),
}

/// One entry of a set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Number of the directory that it lies in, or [`TOP`].
    pub parent: u32,
    /// Its name in that directory.
    pub name: Box<[u8]>,
    /// What it is.
    pub kind: Kind,
    /// Permissions: twelve bits.
    pub mode: u16,
    /// Time of the last modification, in seconds since 1970.
    pub mtime: i64,
    /// Nanoseconds of that time.
    pub mtime_ns: u32,
    /// Owner: user and group.
    pub owner: (u32, u32),
    /// Extended attributes.
    pub attributes: Attributes,
}

/// Bytes of an entry in memory, without what its name, target and attributes take. With
/// [`ENTRIES_MAX`] and [`MANIFEST_MAX`] it keeps what any sender can make a receiver take below
/// 1 GiB.
const _: () = assert!(size_of::<Entry>() <= 88);

/// Why bytes are no manifest.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the sender's manifest makes no sense: {0}")]
pub struct Malformed(pub &'static str);

impl From<Malformed> for Error {
    fn from(error: Malformed) -> Error {
        Error::Integrity(error.to_string())
    }
}

/// The entries of a set, in the order in which they were announced.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Manifest {
    entries: Vec<Entry>,
    /// Hashes of the names in use. Two names with the same hash of 64 bits count as one: then a set
    /// is refused that could have been received, which does not happen by chance.
    names: HashSet<u64>,
    /// The depth of each entry.
    depths: Vec<u16>,
    len: u64,
    /// Bytes of all copies together.
    copied: u64,
    tops: u32,
    files: usize,
    /// Bytes of the entries in pages.
    bytes: usize,
}

impl Manifest {
    /// The entries.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Bytes of all files together; 0 for a stream.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Bytes that the receiver copies from other files of the set.
    pub fn copied(&self) -> u64 {
        self.copied
    }

    /// Whether the set is a stream: one file whose length is not known.
    pub fn is_stream(&self) -> bool {
        self.entries.first().is_some_and(|e| e.kind == Kind::Stream)
    }

    /// Bytes of all files together; `None`: the set is a stream.
    pub fn known_len(&self) -> Option<u64> {
        (!self.is_stream()).then_some(self.len)
    }

    /// Whether the files have no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of entries at the top.
    pub fn tops(&self) -> u32 {
        self.tops
    }

    /// Number of regular files.
    pub fn files(&self) -> usize {
        self.files
    }

    /// The path of an entry, relative to the destination.
    pub fn path(&self, entry: u32) -> Vec<u8> {
        let mut names = Vec::new();
        let mut at = entry;
        while let Some(entry) = self.entries.get(at as usize) {
            names.push(&entry.name[..]);
            at = entry.parent;
        }
        names.reverse();
        names.join(&b'/')
    }

    /// Adds an entry if it makes sense: its parent is an earlier directory, its name is one and is
    /// not taken, its length keeps the set within [`LEN_MAX`].
    pub fn add(&mut self, entry: Entry) -> Result<(), Malformed> {
        let wrong = |why| Err(Malformed(why));
        if self.entries.len() >= ENTRIES_MAX as usize {
            return wrong("it has too many entries");
        }
        let is_stream = entry.kind == Kind::Stream;
        if self.is_stream() || is_stream && (!self.entries.is_empty() || entry.parent != TOP) {
            return wrong("a stream is not alone");
        }
        let depth = match entry.parent {
            TOP => 0,
            parent => match self.entries.get(parent as usize) {
                Some(e) if e.kind == Kind::Directory => self.depths[parent as usize] + 1,
                _ => return wrong("an entry does not lie in an earlier directory"),
            },
        };
        if depth > DEPTH_MAX {
            return wrong("its directories are nested too deeply");
        }
        if !is_name(&entry.name) {
            return wrong("a name is none");
        }
        if entry.mode & !MODE_MASK != 0 || entry.mtime_ns >= 1_000_000_000 {
            return wrong("a mode or a time is none");
        }
        let mut copied = 0;
        let len = match &entry.kind {
            Kind::File(len) => *len,
            Kind::Directory | Kind::Stream | Kind::Special(_) => 0,
            Kind::Symlink(target) => match target.len() {
                1..=TARGET_MAX if !target.contains(&0) => 0,
                _ => return wrong("a symbolic link's target is none"),
            },
            Kind::HardLink(to) => match self.entries.get(*to as usize).map(|e| &e.kind) {
                Some(Kind::File(_)) => 0,
                _ => return wrong("a hard link does not lead to an earlier file"),
            },
            Kind::Copy(of) => match self.entries.get(*of as usize).map(|e| &e.kind) {
                Some(Kind::File(len)) => {
                    copied = *len;
                    0
                }
                _ => return wrong("a copy is not one of an earlier file"),
            },
        };
        let is_sound = |name: &[u8], value: &[u8]| {
            let is_name = (1..=NAME_MAX).contains(&name.len()) && !name.contains(&0);
            is_name && value.len() <= VALUE_MAX
        };
        let are_sound = entry.attributes.iter().all(|(n, v)| is_sound(n, v));
        if !are_sound || encoded_len(&entry) > PAGE_MAX {
            return wrong("an extended attribute is none, or there are too many");
        }
        let (len, copied) = (self.len.checked_add(len), self.copied.checked_add(copied));
        let all = len
            .zip(copied)
            .and_then(|(len, copied)| len.checked_add(copied));
        let (Some(len), Some(copied), Some(..=LEN_MAX)) = (len, copied, all) else {
            return wrong("its files are too long");
        };
        let bytes = self.bytes + encoded_len(&entry);
        if bytes > MANIFEST_MAX {
            return wrong("it has too many long names");
        }
        if !self.names.insert(name_hash(&entry)) {
            return wrong("a name is taken twice");
        }
        (self.len, self.copied) = (len, copied);
        self.bytes = bytes;
        self.files += usize::from(is_stream || matches!(entry.kind, Kind::File(_)));
        self.tops += u32::from(entry.parent == TOP);
        self.depths.push(depth);
        self.entries.push(entry);
        Ok(())
    }

    /// Adds the entries of a page.
    pub fn add_page(&mut self, mut page: &[u8]) -> Result<(), Malformed> {
        if page.len() > PAGE_MAX {
            return Err(Malformed("a page is too long"));
        }
        while !page.is_empty() {
            let entry = decode(&mut page).ok_or(Malformed("an entry is cut off"))?;
            self.add(entry)?;
        }
        Ok(())
    }

    /// The BLAKE3 hash of all entries as pages carry them, one behind the other: what a set is told
    /// apart from others by.
    pub fn digest(&self) -> blake3::Hash {
        let (mut hasher, mut bytes) = (blake3::Hasher::new(), Vec::new());
        for entry in &self.entries {
            bytes.clear();
            encode(entry, &mut bytes);
            hasher.update(&bytes);
        }
        hasher.finalize()
    }

    /// Number of the pages that carry the entries.
    pub fn page_count(&self) -> u32 {
        let (mut count, mut next, mut page) = (0, 0, Vec::new());
        while (next as usize) < self.entries.len() {
            page.clear();
            next = self.put_page(next, &mut page);
            count += 1;
        }
        count
    }

    /// Appends entries to `page`, from number `from` on, as many as fit. Returns the number of the
    /// first one that does not.
    pub fn put_page(&self, from: u32, page: &mut Vec<u8>) -> u32 {
        let mut next = from;
        for entry in &self.entries[from as usize..] {
            let before = page.len();
            encode(entry, page);
            if page.len() > PAGE_MAX {
                page.truncate(before);
                break;
            }
            next += 1;
        }
        next
    }
}

/// Whether bytes are the name of an entry: not empty, not `.` or `..`, without slash and zero.
fn is_name(name: &[u8]) -> bool {
    (1..=NAME_MAX).contains(&name.len())
        && name != b"."
        && name != b".."
        && !name.iter().any(|b| matches!(b, 0 | b'/'))
}

fn name_hash(entry: &Entry) -> u64 {
    let mut hasher = DefaultHasher::new();
    (entry.parent, &entry.name).hash(&mut hasher);
    hasher.finish()
}

const FILE: u8 = 0;
const DIRECTORY: u8 = 1;
const SYMLINK: u8 = 2;
const HARD_LINK: u8 = 3;
const STREAM: u8 = 4;
const FIFO: u8 = 5;
const CHARACTER: u8 = 6;
const BLOCK: u8 = 7;
const COPY: u8 = 8;
/// Added to the kind of an entry that has extended attributes.
const ATTRIBUTES: u8 = 0x80;
/// Bytes of an entry without its name and what its kind adds.
const ENTRY_MIN: usize = 1 + 2 + 4 + 4 + 8 + 4 + 4 + 2;

fn encode(entry: &Entry, out: &mut Vec<u8>) {
    let has_attributes = !entry.attributes.is_empty();
    let flag = if has_attributes { ATTRIBUTES } else { 0 };
    out.push(
        flag + match entry.kind {
            Kind::File(_) => FILE,
            Kind::Directory => DIRECTORY,
            Kind::Symlink(_) => SYMLINK,
            Kind::HardLink(_) => HARD_LINK,
            Kind::Copy(_) => COPY,
            Kind::Stream => STREAM,
            Kind::Special(Special::Fifo) => FIFO,
            Kind::Special(Special::Character(..)) => CHARACTER,
            Kind::Special(Special::Block(..)) => BLOCK,
        },
    );
    out.extend(entry.mode.to_be_bytes());
    out.extend(entry.owner.0.to_be_bytes());
    out.extend(entry.owner.1.to_be_bytes());
    out.extend(entry.mtime.to_be_bytes());
    out.extend(entry.mtime_ns.to_be_bytes());
    out.extend(entry.parent.to_be_bytes());
    put_bytes(out, &entry.name);
    match &entry.kind {
        Kind::File(len) => out.extend(len.to_be_bytes()),
        Kind::Directory | Kind::Stream | Kind::Special(Special::Fifo) => {}
        Kind::Symlink(target) => put_bytes(out, target),
        Kind::HardLink(to) | Kind::Copy(to) => out.extend(to.to_be_bytes()),
        Kind::Special(Special::Character(major, minor) | Special::Block(major, minor)) => {
            out.extend(major.to_be_bytes());
            out.extend(minor.to_be_bytes());
        }
    }
    if has_attributes {
        out.extend((entry.attributes.iter().count() as u16).to_be_bytes());
        out.extend(entry.attributes.bytes());
    }
}

/// Bytes of an entry in a page.
fn encoded_len(entry: &Entry) -> usize {
    let rest = match &entry.kind {
        Kind::File(_) => 8,
        Kind::Directory | Kind::Stream | Kind::Special(Special::Fifo) => 0,
        Kind::Symlink(target) => 2 + target.len(),
        Kind::HardLink(_) | Kind::Copy(_) => 4,
        Kind::Special(_) => 8,
    };
    let count = if entry.attributes.is_empty() { 0 } else { 2 };
    ENTRY_MIN + entry.name.len() + rest + count + entry.attributes.bytes().len()
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u16).to_be_bytes());
    out.extend(bytes);
}

/// The next entry of a page; `None` if it is cut off or of no known kind.
fn decode(page: &mut &[u8]) -> Option<Entry> {
    let [flags] = take(page)?;
    let kind = flags & !ATTRIBUTES;
    let mode = u16::from_be_bytes(take(page)?);
    let owner = (
        u32::from_be_bytes(take(page)?),
        u32::from_be_bytes(take(page)?),
    );
    let mtime = i64::from_be_bytes(take(page)?);
    let mtime_ns = u32::from_be_bytes(take(page)?);
    let parent = u32::from_be_bytes(take(page)?);
    let name = take_bytes(page)?;
    let kind = match kind {
        FILE => Kind::File(u64::from_be_bytes(take(page)?)),
        DIRECTORY => Kind::Directory,
        SYMLINK => Kind::Symlink(take_bytes(page)?),
        HARD_LINK => Kind::HardLink(u32::from_be_bytes(take(page)?)),
        STREAM => Kind::Stream,
        FIFO => Kind::Special(Special::Fifo),
        CHARACTER => Kind::Special(Special::Character(number(page)?, number(page)?)),
        COPY => Kind::Copy(u32::from_be_bytes(take(page)?)),
        BLOCK => Kind::Special(Special::Block(number(page)?, number(page)?)),
        _ => return None,
    };
    let attributes = match flags & ATTRIBUTES {
        0 => Attributes::default(),
        _ => Attributes::decode(page)?,
    };
    Some(Entry {
        parent,
        name,
        kind,
        mode,
        mtime,
        mtime_ns,
        owner,
        attributes,
    })
}

/// Takes the next bytes of a slice.
pub(super) fn take<const N: usize>(from: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = from.split_first_chunk()?;
    *from = rest;
    Some(*first)
}

fn number(from: &mut &[u8]) -> Option<u32> {
    take(from).map(u32::from_be_bytes)
}

fn take_bytes(from: &mut &[u8]) -> Option<Box<[u8]>> {
    let len = u16::from_be_bytes(take(from)?);
    let (first, rest) = from.split_at_checked(len.into())?;
    *from = rest;
    Some(first.into())
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn entry(parent: u32, name: &[u8], kind: Kind) -> Entry {
        Entry {
            parent,
            name: name.into(),
            kind,
            mode: 0o755,
            mtime: -7,
            mtime_ns: 999_999_999,
            owner: (1, 2),
            attributes: Default::default(),
        }
    }

    /// Attributes with these names, and values of these lengths.
    fn attributes(all: &[(&[u8], usize)]) -> Attributes {
        let all = all.iter();
        all.map(|(name, len)| ((*name).into(), vec![7; *len].into()))
            .collect()
    }

    fn with_attribute(name: &[u8], len: usize) -> Entry {
        Entry {
            attributes: attributes(&[(name, len)]),
            ..entry(0, b"x", Kind::File(0))
        }
    }

    /// What an entry may have comes through a page as it was; names of attributes that are not in
    /// order, or come twice, do not.
    #[test]
    fn attributes_devices_and_streams_come_through_pages() {
        let mut m = Manifest::default();
        m.add(entry(TOP, b"d", Kind::Directory)).unwrap();
        let mut marked = with_attribute(b"user.a", VALUE_MAX);
        marked.attributes = attributes(&[(b"user.b", 0), (b"user.a", VALUE_MAX)]);
        m.add(marked.clone()).unwrap();
        for (name, what) in [
            (b"f", Special::Fifo),
            (b"c", Special::Character(1, 3)),
            (b"b", Special::Block(8, u32::MAX)),
        ] {
            m.add(entry(0, name, Kind::Special(what))).unwrap();
        }
        let mut page = Vec::new();
        assert_eq!(m.put_page(0, &mut page), 5);
        let mut again = Manifest::default();
        again.add_page(&page).unwrap();
        assert_eq!(again.entries(), m.entries());
        for swapped in [b"user.c", b"user.b"] {
            let mut page = page.clone();
            let at = page.windows(6).position(|w| w == b"user.a").unwrap();
            page[at..at + 6].copy_from_slice(swapped);
            assert!(Manifest::default().add_page(&page).is_err());
        }
        // As many as a page holds, and no more.
        let many = (0..17u8).map(|n| ([b'u', n + 1].into(), vec![7; VALUE_MAX].into()));
        marked.attributes = many.collect();
        marked.parent = TOP;
        assert!(Manifest::default().add(marked).is_err());
        let mut stream = Manifest::default();
        stream.add(entry(TOP, b"s", Kind::Stream)).unwrap();
        assert!(stream.add(entry(TOP, b"t", Kind::File(0))).is_err());
        assert!(stream.is_stream() && stream.known_len().is_none());
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let mut m = Manifest::default();
        m.add(entry(TOP, b"d", Kind::Directory)).unwrap();
        m.add(entry(0, b"f", Kind::File(7))).unwrap();
        m.add(entry(0, b"F", Kind::File(7))).unwrap(); // another name
        m.add(entry(0, b"l", Kind::HardLink(1))).unwrap();
        m.add(entry(0, b"\xff\n", Kind::Symlink((*b"/etc").into())))
            .unwrap();
        assert_eq!((m.tops(), m.len(), m.files()), (1, 14, 2));
        assert_eq!(m.path(4), b"d/\xff\n");
        let long = [b'x'; 256];
        let target = Kind::Symlink([b'x'; 4096].into());
        for (wrong, why) in [
            (entry(TOP, b"/etc", Kind::File(0)), "name is none"),
            (entry(0, b"..", Kind::File(0)), "name is none"),
            (entry(0, b".", Kind::Directory), "name is none"),
            (entry(0, b"", Kind::Directory), "name is none"),
            (entry(0, b"a\0", Kind::Directory), "name is none"),
            (entry(0, &long, Kind::Directory), "name is none"),
            (entry(1, b"x", Kind::File(0)), "earlier directory"),
            (entry(4, b"x", Kind::File(0)), "earlier directory"),
            (entry(5, b"x", Kind::Directory), "earlier directory"),
            (entry(0, b"f", Kind::Directory), "taken twice"),
            (entry(TOP, b"d", Kind::File(1)), "taken twice"),
            (entry(0, b"x", Kind::HardLink(0)), "earlier file"),
            (entry(0, b"x", Kind::HardLink(3)), "earlier file"),
            (entry(0, b"x", Kind::HardLink(9)), "earlier file"),
            (entry(0, b"x", Kind::Copy(3)), "earlier file"),
            (entry(0, b"x", Kind::Copy(9)), "earlier file"),
            (entry(0, b"x", Kind::File(u64::MAX)), "too long"),
            (entry(0, b"x", Kind::File(LEN_MAX)), "too long"),
            (entry(0, b"x", Kind::Symlink([].into())), "target"),
            (entry(0, b"x", target), "target"),
            (entry(0, b"x", Kind::Stream), "not alone"),
            (entry(TOP, b"x", Kind::Stream), "not alone"),
            (with_attribute(b"", 0), "attribute"),
            (with_attribute(b"user.\0", 0), "attribute"),
            (with_attribute(&long, 0), "attribute"),
            (with_attribute(b"user.x", VALUE_MAX + 1), "attribute"),
            (
                Entry {
                    mode: 0o10000,
                    ..entry(0, b"x", Kind::Directory)
                },
                "mode",
            ),
        ] {
            let error = m.clone().add(wrong.clone()).unwrap_err();
            assert!(error.to_string().contains(why), "{wrong:?}: {error}");
        }
        let mut deep = Manifest::default();
        let nested = (0..).find(|&i: &u32| {
            let parent = i.checked_sub(1).unwrap_or(TOP);
            deep.add(entry(parent, b"d", Kind::Directory)).is_err()
        });
        assert_eq!(nested, Some(u32::from(DEPTH_MAX) + 1));
    }

    #[test]
    fn copies_count_as_much_as_their_files_and_all_together_are_bounded() {
        let mut m = Manifest::default();
        m.add(entry(TOP, b"f", Kind::File(LEN_MAX / 4))).unwrap();
        for name in [b"g", b"h", b"i"] {
            m.add(entry(TOP, name, Kind::Copy(0))).unwrap();
        }
        assert_eq!((m.len(), m.copied()), (LEN_MAX / 4, LEN_MAX / 4 * 3));
        let error = m.add(entry(TOP, b"j", Kind::Copy(0))).unwrap_err();
        assert!(error.to_string().contains("too long"), "{error}");
        assert!(m.add(entry(TOP, b"k", Kind::File(1))).is_err());
    }

    #[test]
    fn names_and_targets_are_bounded_together() {
        let mut m = Manifest::default();
        m.add(entry(TOP, b"d", Kind::Directory)).unwrap();
        let target: Box<[u8]> = [b'x'; TARGET_MAX].into();
        let full = (0u32..).find(|i| {
            let name = i.to_string().into_bytes();
            m.add(entry(0, &name, Kind::Symlink(target.clone())))
                .is_err()
        });
        let most = (MANIFEST_MAX / TARGET_MAX) as u32;
        assert!(
            full.is_some_and(|n| (most * 98 / 100..most).contains(&n)),
            "{full:?}"
        );
        let error = m.add(entry(0, b"last", Kind::Symlink(target))).unwrap_err();
        assert!(error.to_string().contains("long names"), "{error}");
    }

    #[test]
    fn pages_carry_all_entries() {
        let mut m = Manifest::default();
        m.add(entry(TOP, b"d", Kind::Directory)).unwrap();
        for i in 0..10_000u32 {
            let name = [&[b'n'; 200][..], &i.to_be_bytes().map(|b| b | 128)].concat();
            let kind = match i % 3 {
                0 => Kind::File(i.into()),
                1 => Kind::Symlink(name.clone().into()),
                _ if i % 2 == 0 => Kind::Copy(1),
                _ => Kind::HardLink(1),
            };
            let name = [name, i.to_string().into_bytes()].concat();
            m.add(entry(0, &name, kind)).unwrap();
        }
        let (mut got, mut next, mut pages, mut bytes) = (Manifest::default(), 0, 0, 0);
        while next < m.entries().len() as u32 {
            let mut page = Vec::new();
            next = m.put_page(next, &mut page);
            assert!(page.len() <= PAGE_MAX);
            bytes += page.len();
            got.add_page(&page).unwrap();
            pages += 1;
        }
        assert!(pages > 2);
        assert_eq!(bytes, m.bytes);
        assert_eq!(got.entries(), m.entries());
        assert_eq!(got.len(), m.len());
        assert_eq!((got.bytes, got.files()), (m.bytes, m.files()));
    }

    proptest! {
        #[test]
        fn any_bytes_are_entries_or_malformed(page in vec(any::<u8>(), 0..500)) {
            let mut m = Manifest::default();
            if m.add_page(&page).is_ok() {
                let mut again = Vec::new();
                m.put_page(0, &mut again);
                prop_assert_eq!(again, page);
            }
        }

        #[test]
        fn a_bent_page_keeps_every_path_inside(
            bend in vec((0usize..200, any::<u8>()), 1..4)
        ) {
            let mut m = Manifest::default();
            m.add(entry(TOP, b"d", Kind::Directory)).unwrap();
            m.add(entry(0, b"f", Kind::File(7))).unwrap();
            m.add(entry(0, b"s", Kind::Symlink((*b"f").into()))).unwrap();
            m.add(entry(TOP, b"l", Kind::HardLink(1))).unwrap();
            let mut page = Vec::new();
            m.put_page(0, &mut page);
            for (at, byte) in bend {
                let at = at % page.len();
                page[at] = byte;
            }
            let mut got = Manifest::default();
            let _ = got.add_page(&page);
            for i in 0..got.entries().len() as u32 {
                let path = got.path(i);
                prop_assert!(path.split(|b| *b == b'/').all(is_name));
            }
        }
    }
}
