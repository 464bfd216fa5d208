//! Proof that a receiver has the file: a keyed hash over samples of it, read back from its disk.
//!
//! The key comes with the hash of the list, when every block has been read, and chooses the
//! samples. Until then no node can know which bytes the sender will ask for. The amount of hashed
//! data is bounded: the proof costs a receiver about a millisecond, and the sender as much for all
//! receivers together.

use std::collections::BTreeSet;
use std::ops::Range;

use super::{BLOCK, blocks};

/// Number of blocks that samples are taken from; all blocks if there are fewer.
const BLOCKS: u64 = 64;
/// Length of all samples together in bytes, at most. A file of two blocks is hashed as a whole.
const BYTES: u64 = 2 << 20;

const PLACES: &str = "fabricast 2026-11 possession, places";
const SAMPLES: &str = "fabricast 2026-11 possession, pieces";

/// The samples of a file that a receiver must hash, and the key of that hash.
#[derive(Clone)]
pub struct Challenge {
    key: [u8; 32],
    /// Offset and length, in the order of the offsets; one for each chosen block.
    samples: Vec<(u64, usize)>,
}

impl Challenge {
    /// The challenge with this key for a file of `len` bytes.
    pub fn new(key: [u8; 32], len: u64) -> Challenge {
        let mut stream = blake3::Hasher::new_derive_key(PLACES)
            .update(&key)
            .finalize_xof();
        let mut draw = |below: u64| {
            let mut bytes = [0; 8];
            stream.fill(&mut bytes);
            u64::from_le_bytes(bytes) % below
        };
        let count = blocks(len);
        let mut chosen: BTreeSet<u64> = BTreeSet::new();
        match count <= BLOCKS {
            true => chosen.extend(0..count),
            false => {
                while (chosen.len() as u64) < BLOCKS {
                    chosen.insert(draw(count));
                }
            }
        }
        let share = BYTES / count.clamp(1, BLOCKS);
        let sample = |block: u64| {
            let start = block * BLOCK as u64;
            let whole = (len - start).min(BLOCK as u64);
            let sample = whole.min(share);
            (start + draw(whole - sample + 1), sample as usize)
        };
        let samples = chosen.into_iter().map(sample).collect();
        Challenge { key, samples }
    }

    /// The key in hexadecimal, as the sender tells it.
    pub fn key(&self) -> String {
        blake3::Hash::from_bytes(self.key).to_hex().to_string()
    }

    /// The samples: offset and length in bytes.
    pub fn samples(&self) -> &[(u64, usize)] {
        &self.samples
    }

    /// Calls `f` for each overlap of the samples with `len` bytes from `start` on: with its range
    /// in all samples together, and with its offset from `start`.
    pub fn each_overlap(&self, start: u64, len: u64, mut f: impl FnMut(Range<usize>, u64)) {
        let end = start + len;
        let first = self
            .samples
            .partition_point(|&(at, n)| at + n as u64 <= start);
        let mut filled: usize = self.samples[..first].iter().map(|&(_, n)| n).sum();
        for &(at, n) in &self.samples[first..] {
            if at >= end {
                return;
            }
            let (from, to) = (at.max(start), (at + n as u64).min(end));
            let place = filled + (from - at) as usize;
            f(place..place + (to - from) as usize, from - start);
            filled += n;
        }
    }

    /// Length of all samples together in bytes.
    pub fn bytes(&self) -> usize {
        self.samples.iter().map(|(_, len)| len).sum()
    }

    /// The secret that only a node with the file can compute. `samples`: the bytes of all samples,
    /// one after the other.
    pub fn secret(&self, samples: &[u8]) -> Secret {
        let key = blake3::derive_key(SAMPLES, &self.key);
        Secret(*blake3::keyed_hash(&key, samples).as_bytes())
    }
}

/// What only a node with the file knows. It is never sent, so that no receiver can repeat another's
/// proof.
pub struct Secret([u8; 32]);

impl Secret {
    /// The proof that receiver `node` must send.
    pub fn proof(&self, node: u32) -> blake3::Hash {
        blake3::keyed_hash(&self.0, &node.to_be_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_lie_in_many_blocks_and_are_bounded() {
        const B: u64 = BLOCK as u64;
        for len in [
            0,
            1,
            B - 1,
            B,
            B + 1,
            2 * B,
            5 * B + 7,
            64 * B,
            1000 * B + 3,
        ] {
            let challenge = Challenge::new([7; 32], len);
            let samples = challenge.samples();
            assert_eq!(samples.len() as u64, blocks(len).min(64), "{len}");
            assert!(challenge.bytes() as u64 <= BYTES);
            let block = |p: &(u64, usize)| p.0 / B;
            assert!(samples.is_sorted_by(|a, b| block(a) < block(b)));
            for &(offset, sample) in samples {
                let end = offset + sample as u64;
                assert!(sample > 0 && end <= len && (end - 1) / B == offset / B);
            }
            if len <= BYTES {
                assert_eq!(challenge.bytes() as u64, len);
            }
        }
    }

    #[test]
    fn a_proof_is_for_one_key_one_receiver_and_these_bytes() {
        let proof = |key, bytes: &[u8], node| {
            let challenge = Challenge::new([key; 32], 1 << 30);
            challenge.secret(bytes).proof(node)
        };
        let one = proof(1, b"bytes", 1);
        assert_eq!(one, proof(1, b"bytes", 1));
        for other in [
            proof(2, b"bytes", 1),
            proof(1, b"other", 1),
            proof(1, b"bytes", 2),
        ] {
            assert_ne!(one, other);
        }
        let [a, b] = [1, 2].map(|key| Challenge::new([key; 32], 1 << 40));
        assert_ne!(a.samples(), b.samples());
        assert_eq!(a.key(), "01".repeat(32));
    }
}
