//! What proves a file to a receiver, and that a receiver has it to the sender.

use std::ops::Deref;

use fabricast_proto::NodeId;

/// The BLAKE3 hash of a file. Sender and receiver each compute it from the bytes; neither sends it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fingerprint(pub blake3::Hash);

impl Fingerprint {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_proves_a_file_and_lets_nobody_claim_it() {
        let file = Fingerprint(blake3::hash(b"file"));
        let other = Fingerprint(blake3::hash(b"other"));
        assert!(Fingerprint::is(&file.digest(), &file.digest().to_hex()));
        assert!(!Fingerprint::is(&file.digest(), &other.digest().to_hex()));
        assert!(!Fingerprint::is(&file.digest(), "x"));
        // What the sender tells is not enough for a proof, and a proof is its node's alone.
        let told = Fingerprint(file.digest());
        assert_ne!(told.proof(NodeId(1)), file.proof(NodeId(1)));
        assert_ne!(file.proof(NodeId(1)), file.proof(NodeId(2)));
    }
}
