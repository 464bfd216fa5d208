//! File systems in memory.

use std::path::PathBuf;
use std::process::Command;

/// A file system in memory, of a size as `mount` takes it, in a folder until dropped.
pub struct InMemory(PathBuf);

impl InMemory {
    pub fn at(path: PathBuf, size: &str) -> InMemory {
        let size = format!("size={size}");
        let mount = ["-t", "tmpfs", "-o", &size, "none"];
        let mounted = Command::new("mount").args(mount).arg(&path).status();
        assert!(mounted.unwrap().success());
        InMemory(path)
    }
}

impl Drop for InMemory {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}
