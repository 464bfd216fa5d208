//! What proves a file to a receiver, and that a receiver has it to the sender.
//!
//! A file is hashed in *sections*, so that a receiver to which somebody has forged a few bytes
//! finds them, and gets one section again instead of the file.

use std::ops::Deref;

use fabricast_proto::NodeId;

use crate::object::{BLOCK, HASH};

/// Most sections of a file: their hashes fit in one bulk frame.
const SECTIONS_MAX: u64 = (BLOCK / HASH) as u64;

/// The BLAKE3 hash of the hashes of a file's sections. Sender and receiver each compute it from the
/// bytes; neither sends it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fingerprint(blake3::Hash);

impl Fingerprint {
    /// The fingerprint of a file with these bytes.
    pub fn of(bytes: &[u8]) -> Fingerprint {
        let mut sections = Sections::new(bytes.len() as u64);
        sections.update(bytes);
        sections.finish().0
    }

    /// What the sender tells a receiver, which compares it with its own: the hash of the hash.
    pub fn digest(&self) -> blake3::Hash {
        blake3::hash(self.0.as_bytes())
    }

    /// What a receiver tells the sender: the hash of its node number, keyed with the hash of the
    /// file. So no receiver can repeat what another has told.
    pub fn proof(&self, node: NodeId) -> blake3::Hash {
        blake3::keyed_hash(self.0.as_bytes(), &node.0.to_be_bytes())
    }

    /// Whether `hex` is this hash in hexadecimal.
    pub fn is(hash: &blake3::Hash, hex: &str) -> bool {
        blake3::Hash::from_hex(hex).is_ok_and(|read| read == *hash)
    }
}

impl Deref for Fingerprint {
    type Target = blake3::Hash;
    fn deref(&self) -> &blake3::Hash {
        &self.0
    }
}

/// Length of each section of a file of `len` bytes but the last, in bytes: the least multiple of
/// [`BLOCK`] by a power of two with which the file has no more than [`SECTIONS_MAX`] sections.
pub fn section_len(len: u64) -> u64 {
    let blocks = len.div_ceil(SECTIONS_MAX).div_ceil(BLOCK as u64);
    blocks.next_power_of_two() * BLOCK as u64
}

/// Hashes a file section by section, as its bytes come in their order.
pub struct Sections {
    /// Length of a section in bytes.
    len: u64,
    /// Bytes that the present section still takes.
    rest: u64,
    hasher: blake3::Hasher,
    done: Vec<blake3::Hash>,
}

impl Sections {
    /// The sections of a file of `len` bytes.
    pub fn new(len: u64) -> Sections {
        let section = section_len(len);
        Sections {
            len: section,
            rest: section,
            hasher: blake3::Hasher::new(),
            done: Vec::new(),
        }
    }

    /// Takes the next bytes.
    pub fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let count = self.rest.min(bytes.len() as u64) as usize;
            let (here, after) = bytes.split_at(count);
            self.hasher.update(here);
            self.rest -= count as u64;
            bytes = after;
            if self.rest == 0 {
                self.end_section();
            }
        }
    }

    fn end_section(&mut self) {
        self.done.push(self.hasher.finalize());
        self.hasher.reset();
        self.rest = self.len;
    }

    /// The fingerprint of the file, and the hash of each section.
    pub fn finish(mut self) -> (Fingerprint, Vec<blake3::Hash>) {
        if self.rest < self.len {
            self.end_section();
        }
        let mut hasher = blake3::Hasher::new();
        for section in &self.done {
            hasher.update(section.as_bytes());
        }
        (Fingerprint(hasher.finalize()), self.done)
    }
}

/// What the sender tells of sections: the hash of each one's hash, one behind the other. So nobody
/// can claim the file who has only been told of it.
pub fn told(sections: &[blake3::Hash]) -> Vec<u8> {
    let told = sections
        .iter()
        .flat_map(|section| *blake3::hash(section.as_bytes()).as_bytes());
    told.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_proves_a_file_and_lets_nobody_claim_it() {
        let file = Fingerprint::of(b"file");
        let other = Fingerprint::of(b"other");
        assert!(Fingerprint::is(&file.digest(), &file.digest().to_hex()));
        assert!(!Fingerprint::is(&file.digest(), &other.digest().to_hex()));
        assert!(!Fingerprint::is(&file.digest(), "x"));
        // What the sender tells is not enough for a proof, and a proof is its node's alone.
        let told = Fingerprint(file.digest());
        assert_ne!(told.proof(NodeId(1)), file.proof(NodeId(1)));
        assert_ne!(file.proof(NodeId(1)), file.proof(NodeId(2)));
    }

    #[test]
    fn sections_do_not_depend_on_how_the_bytes_come() {
        let bytes: Vec<u8> = (0..3 * BLOCK + 5).map(|n| (n % 251) as u8).collect();
        for step in [1 << 10, BLOCK, BLOCK + 1, bytes.len()] {
            let mut sections = Sections::new(bytes.len() as u64);
            bytes.chunks(step).for_each(|part| sections.update(part));
            let (fingerprint, hashes) = sections.finish();
            assert_eq!(fingerprint, Fingerprint::of(&bytes));
            let expected: Vec<_> = bytes.chunks(BLOCK).map(blake3::hash).collect();
            assert_eq!(hashes, expected);
            // What is told of them is not what the fingerprint is made of.
            assert_ne!(blake3::hash(&told(&hashes)), *fingerprint);
        }
    }

    #[test]
    fn no_file_has_too_many_sections() {
        let block = BLOCK as u64;
        for (len, section) in [
            (0, 1),
            (1, 1),
            (32 << 30, 1),
            ((32 << 30) + 1, 2),
            (64 << 30, 2),
        ] {
            assert_eq!(section_len(len), section * block, "{len}");
        }
        for len in [1 << 40, 1 << 50, i64::MAX as u64] {
            assert!(len.div_ceil(section_len(len)) <= SECTIONS_MAX, "{len}");
        }
    }
}
