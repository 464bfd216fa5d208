//! A file that is proven as a whole, when all its bytes are there (spec 7.8).

use std::collections::BTreeMap;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::slice;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::process::{getegid, geteuid};

use super::{Destination, Tree, WRITTEN, give_way};
use crate::error::Error;
use crate::object::manifest::{Entry, Kind, Manifest, TOP};
use crate::object::pack::Piece;

/// Permissions of a file about which nothing is known, as far as the umask allows.
const MODE: u16 = 0o666;

/// A file that is being received. It gets its name when it is proven; before that, it is removed
/// when this value is dropped.
pub struct UnprovenFile {
    tree: Tree,
    len: u64,
}

impl UnprovenFile {
    /// Makes a file of `len` bytes, which will be called `name` unless the destination has a name.
    ///
    /// # Errors
    /// The name cannot be used here, or is taken.
    pub fn new(destination: Destination, name: &[u8], len: u64) -> Result<UnprovenFile, Error> {
        let mut tree = Tree::new(destination)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.unwrap_or_default();
        let mut manifest = Manifest::default();
        let entry = Entry {
            parent: TOP,
            name: name.into(),
            kind: Kind::File(len),
            mode: MODE & !(tree.umask as u16),
            mtime: now.as_secs() as i64,
            mtime_ns: now.subsec_nanos(),
            owner: (geteuid().as_raw(), getegid().as_raw()),
            attributes: BTreeMap::new(),
        };
        let added = manifest.add(entry);
        added.map_err(|e| Error::Usage(format!("this file cannot be received: {e}")))?;
        let mut page = Vec::new();
        manifest.put_page(0, &mut page);
        tree.add_page(&page)?;
        let mut file = UnprovenFile { tree, len };
        if len == 0 {
            file.write(0, &[])?;
        }
        Ok(file)
    }

    /// Its path once it is proven.
    pub fn path(&self) -> PathBuf {
        self.tree.path(0)
    }

    /// Writes bytes, each once.
    pub fn write(&mut self, offset: u64, mut bytes: &[u8]) -> Result<(), Error> {
        let piece = Piece::Bytes {
            file: 0,
            offset,
            len: bytes.len() as u32,
            last: offset + bytes.len() as u64 == self.len,
        };
        self.tree
            .write_pieces(0, slice::from_ref(&piece), &mut bytes)
    }

    /// The BLAKE3 hash of the file as it can be read back, all of whose bytes must be there.
    pub fn hash(&self) -> Result<blake3::Hash, Error> {
        let mut hasher = blake3::Hasher::new();
        let Some(partial) = self.tree.batch.first() else {
            return Err(super::absurd("it ends a file before all of it is there"));
        };
        let fails = |e| self.tree.error(0, "reading back", e);
        rustix::fs::seek(partial.file.as_fd(), rustix::fs::SeekFrom::Start(0))
            .map_err(|e| self.tree.error(0, "reading back", e))?;
        let mut piece = vec![0; WRITTEN];
        loop {
            give_way();
            match (&partial.file).read(&mut piece).map_err(fails)? {
                0 => return Ok(hasher.finalize()),
                n => hasher.update(&piece[..n]),
            };
        }
    }

    /// Flushes the file and gives it its name. It is proven now.
    pub fn finish(mut self) -> Result<(), Error> {
        self.tree.name_batch()?;
        self.tree.finish()
    }
}
