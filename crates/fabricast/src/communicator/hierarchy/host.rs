//! Which host a process is on.

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;

/// A number for this host: processes with equal ones may share memory. It is of the system's name
/// and of when it started, for names are not always different; and of the network namespace, which
/// wakers do not leave.
pub(crate) fn host(chosen: Option<&str>) -> u64 {
    let mut told = Vec::new();
    match chosen {
        Some(name) => told.extend_from_slice(name.as_bytes()),
        None => {
            told.extend_from_slice(rustix::system::uname().nodename().to_bytes());
            let boot = fs::File::open("/proc/sys/kernel/random/boot_id");
            let _ = boot.and_then(|mut f| f.read_to_end(&mut told));
            let space = fs::metadata("/proc/thread-self/ns/net").map_or(0, |m| m.ino());
            told.extend_from_slice(&space.to_be_bytes());
        }
    }
    number(&told)
}

/// A number for these bytes, which others hardly have.
pub(crate) fn number(bytes: &[u8]) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&blake3::hash(bytes).as_bytes()[..8]);
    u64::from_be_bytes(number)
}
