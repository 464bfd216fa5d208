//! Where targets write files.

use std::fs;
use std::path::{Path, PathBuf};

use fabricast::object::{Destination, Tree};

/// A directory that holds a destination, and one beside it that nothing may come to. Both are empty
/// at the beginning.
pub struct Place(PathBuf);

impl Place {
    /// Makes the directories, in memory if possible. Places that exist at the same time have
    /// different names.
    pub fn new(name: &str) -> Place {
        let memory = Path::new("/dev/shm");
        let dir = match memory.is_dir() {
            true => memory.to_owned(),
            false => std::env::temp_dir(),
        };
        let place = Place(dir.join(format!("fabricast-fuzz-{}-{name}", std::process::id())));
        let _ = fs::remove_dir_all(&place.0);
        fs::create_dir_all(place.to()).expect("a directory");
        fs::create_dir(place.outside()).expect("a directory");
        place
    }

    /// The destination.
    pub fn to(&self) -> PathBuf {
        self.0.join("to")
    }

    /// A set that comes to the destination, where it may replace what is there.
    pub fn tree(&self) -> Tree {
        Tree::new(Destination {
            overwrite: true,
            ..Destination::new(self.to())
        })
        .expect("the destination is there")
    }

    fn outside(&self) -> PathBuf {
        self.0.join("outside")
    }

    /// Checks that nothing was written beside the destination.
    pub fn check(&self) {
        assert_eq!(
            fs::read_dir(self.outside()).expect("a directory").count(),
            0
        );
        assert_eq!(fs::read_dir(&self.0).expect("a directory").count(), 2);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
