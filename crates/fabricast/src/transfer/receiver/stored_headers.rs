//! The headers of the packs that a receiver has stored, in memory, for those that get the packs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::object::HASH;
use crate::object::pack::Header;

/// The header of a pack that is stored.
pub struct Stored {
    hash: [u8; HASH],
    pub header: Header,
}

/// The headers of all packs that are stored, by the numbers of the packs.
#[derive(Default)]
pub struct StoredHeaders(Mutex<BTreeMap<u32, Arc<Stored>>>);

impl StoredHeaders {
    /// Notes that the pack with this header is stored.
    pub fn add(&self, number: u32, header: Header) {
        let hash = blake3::hash(&header.encode()).into();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(number, Arc::new(Stored { hash, header }));
    }

    /// The stored pack of this number, if its header has this hash, in hexadecimal.
    pub fn named(&self, number: u32, hash: &str) -> Option<Arc<Stored>> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let stored = all.get(&number)?;
        (*blake3::Hash::from(stored.hash).to_hex() == *hash).then(|| stored.clone())
    }
}
