//! The file systems that a set lies on: one, unless something is mounted beneath the destination.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs as sys;
use rustix::io::Errno;

use super::disk;

/// The file systems, by device, each with an open directory.
#[derive(Default)]
pub struct FileSystems(BTreeMap<u64, Arc<OwnedFd>>);

impl FileSystems {
    /// Takes note of the file system that a directory lies on.
    pub fn add(&mut self, directory: &Arc<OwnedFd>) -> Result<(), Errno> {
        let device = sys::fstat(directory)?.st_dev;
        self.0.entry(device).or_insert_with(|| directory.clone());
        Ok(())
    }

    /// Waits until everything on them is on the disk.
    pub fn flush(&self) -> Result<(), Errno> {
        self.0
            .values()
            .try_for_each(|directory| disk::flush_all(directory))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::object::testing::scratch;
    use crate::object::tree::tests::recorder::{Op, Recording};

    #[test]
    fn each_file_system_is_flushed_once() {
        let dir = scratch();
        let recording = Recording::of(&dir, || {
            let mut all = FileSystems::default();
            for directory in [&*dir, "/proc".as_ref(), &*dir] {
                let opened = File::open(directory).unwrap();
                all.add(&Arc::new(opened.into())).unwrap();
            }
            all.flush().unwrap();
        });
        let flushes = recording.ops.iter();
        assert_eq!(flushes.filter(|op| matches!(op, Op::FlushAll)).count(), 2);
    }
}
