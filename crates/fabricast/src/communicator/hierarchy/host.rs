//! The identity of the host on which a process runs.

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;

/// A number for this host. Processes with equal numbers may share memory. By default it is a hash
/// of the system's node name, of its boot identifier, because node names are not always different,
/// and of the network namespace, because processes reach each other's channels only within one.
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

/// A hash of these bytes, which hardly any other bytes have.
pub(crate) fn number(bytes: &[u8]) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&blake3::hash(bytes).as_bytes()[..8]);
    u64::from_be_bytes(number)
}
