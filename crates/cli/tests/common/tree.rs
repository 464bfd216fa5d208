//! Sets of files and directories: senders and receivers on the loopback, and what a tree is.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{FABRICAST, Run, Scratch, set_mode};

/// A sender of these sources on the loopback, and its address.
pub fn send(sources: &[&Path], args: &[&str]) -> (Run, String) {
    send_by(Command::new(FABRICAST), sources, args)
}

/// Like [`send`], by a command to which the arguments are added.
pub fn send_by(mut command: Command, sources: &[&Path], args: &[&str]) -> (Run, String) {
    let sources = sources.iter().map(|s| s.to_str().unwrap());
    let fixed = ["--json", "--port", "0", "--interface", "127.0.0.1"];
    let quiet = ["--no-announce"];
    let all: Vec<&str> = ["send"]
        .into_iter()
        .chain(sources)
        .chain(fixed)
        .chain(quiet)
        .chain(args.iter().copied())
        .collect();
    command.args(all);
    let mut run = Run::spawn(command);
    let listening = run.until("listening", |_| true);
    let address = listening["address"].as_str().unwrap().to_owned();
    (run, address)
}

/// A receiver that makes the directory `dest` if need be.
pub fn recv(address: &str, name: &str, dest: &Path, args: &[&str]) -> Run {
    let dest = dest.to_str().unwrap();
    let fixed = [
        "recv", "--json", "--dir", dest, "--from", address, "--as", name,
    ];
    Run::start(fixed.iter().chain(args))
}

/// What a tree is: a line for each entry, with its path, type, mode, time, links and content.
pub fn described(root: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    let mut left = vec![root.to_owned()];
    while let Some(path) = left.pop() {
        let meta = path.symlink_metadata().unwrap();
        let what = match meta.file_type() {
            t if t.is_dir() => {
                left.extend(std::fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()));
                "directory".to_owned()
            }
            t if t.is_symlink() => format!("to {:?}", path.read_link().unwrap()),
            _ => {
                let content = blake3_of(&path);
                format!("{} bytes, {content}, {} names", meta.len(), meta.nlink())
            }
        };
        let below = path.strip_prefix(root).unwrap();
        let (mode, time) = (meta.mode(), (meta.mtime(), meta.mtime_nsec()));
        lines.push(format!("{below:?}: {what}, {mode:o}, {time:?}"));
    }
    lines.sort();
    lines
}

fn blake3_of(path: &Path) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    std::fs::read(path).unwrap().hash(&mut hasher);
    hasher.finish()
}

/// A tree with everything that a tree may have.
pub fn tree(dir: &Scratch) -> PathBuf {
    let top = dir.path("tree");
    std::fs::create_dir_all(top.join("deep/er")).unwrap();
    std::fs::create_dir(top.join("empty")).unwrap();
    std::fs::rename(dir.file("a", 3_000_000), top.join("a")).unwrap();
    std::fs::rename(dir.file("b", 100), top.join("deep/er/b")).unwrap();
    std::fs::write(top.join("nothing"), "").unwrap();
    std::fs::write(top.join("A"), "differs in case").unwrap();
    let odd = std::ffi::OsStr::from_bytes(b"-odd\n\xff\x1b[2J");
    std::fs::write(top.join("deep").join(odd), "odd").unwrap();
    std::fs::hard_link(top.join("a"), top.join("deep/hard")).unwrap();
    symlink("../a", top.join("deep/soft")).unwrap();
    symlink("/nowhere/at/all", top.join("dangling")).unwrap();
    let mode = |path: &str, mode| set_mode(&top.join(path), mode);
    mode("a", 0o640);
    mode("nothing", 0o444);
    mode("A", 0o666);
    let time = std::time::UNIX_EPOCH + std::time::Duration::new(978_310_923, 123_456_789);
    for path in ["a", "deep/er/b", "deep/er"] {
        let file = std::fs::File::open(top.join(path)).unwrap();
        file.set_modified(time).unwrap();
    }
    mode("deep/er", 0o555);
    top
}

/// Bytes of the long file of [`long_tree`]. What a killed receiver loses are some packs of 4 MiB,
/// whatever the set.
const LONG: usize = 180_000_000;

/// A tree with everything that a tree may have, and long files: 186 MB.
pub fn long_tree(dir: &Scratch) -> PathBuf {
    let top = tree(dir);
    std::fs::rename(dir.file("long", LONG), top.join("long")).unwrap();
    for i in 0..30 {
        let name = format!("small-{i}");
        std::fs::rename(dir.file(&name, 100_000 + i), top.join(name)).unwrap();
    }
    top
}

/// Checks that the tree is whole in this directory, and that nothing else is there.
#[track_caller]
pub fn check(top: &Path, dest: &Path) {
    assert_eq!(described(&dest.join("tree")), described(top));
    let names: Vec<_> = std::fs::read_dir(dest).unwrap().collect();
    assert_eq!(names.len(), 1, "{names:?}");
}
