//! Proof that a receiver has the file: a keyed hash over samples of it, read back from its disk.
//!
//! The key comes with the hash of the list, when every block has been read, and chooses the
//! samples. Until then no node can know which bytes the sender will ask for. The amount of hashed
//! data is bounded: the proof costs a receiver about a millisecond, and the sender as much for all
//! receivers together. The length of a stream is not known when its samples are taken, so their
//! places do not depend on it, and become rarer towards its end.

use std::collections::BTreeSet;
use std::iter::Peekable;
use std::ops::Range;

use super::{BLOCK, blocks};

/// Number of blocks that samples are taken from; all blocks if there are fewer.
const BLOCKS: u64 = 64;
/// Length of all samples together in bytes, at most. A file of two blocks is hashed as a whole.
const BYTES: u64 = 2 << 20;

/// Samples of a stream, in each part of it that is twice as long as all before.
const STREAM_SAMPLES: u64 = 32;
/// Length of a sample of a stream in bytes, after the first one, which is a block.
const STREAM_SAMPLE: usize = 16 << 10;

const PLACES: &str = "fabricast 2026-11 possession, places";
const STREAM_PLACES: &str = "fabricast 2026-11 possession, places of a stream";
const SAMPLES: &str = "fabricast 2026-11 possession, pieces";

/// The next number below `below` of a stream of random numbers.
fn draw(stream: &mut blake3::OutputReader, below: u64) -> u64 {
    let mut bytes = [0; 8];
    stream.fill(&mut bytes);
    u64::from_le_bytes(bytes) % below
}

/// The places of samples of a stream, without end: offset and length in bytes, in the order of the
/// offsets. The first block is a sample as a whole, and each of the next 63 blocks has one. Each
/// further part, from block 64·2^i to block 128·2^i, is cut into 32 stretches with one sample each.
#[derive(Clone)]
struct StreamPlaces {
    stream: blake3::OutputReader,
    /// Number of the next sample.
    next: u64,
}

impl Iterator for StreamPlaces {
    type Item = (u64, usize);

    fn next(&mut self) -> Option<(u64, usize)> {
        let number = self.next;
        self.next += 1;
        let (first, blocks) = match number.checked_sub(BLOCKS) {
            None => (number, 1),
            Some(later) => {
                let part = BLOCKS << (later / STREAM_SAMPLES);
                let blocks = part / STREAM_SAMPLES;
                (part + later % STREAM_SAMPLES * blocks, blocks)
            }
        };
        let block = first + draw(&mut self.stream, blocks);
        let within = draw(&mut self.stream, (BLOCK - STREAM_SAMPLE + 1) as u64);
        Some(match number {
            0 => (0, BLOCK),
            _ => (block * BLOCK as u64 + within, STREAM_SAMPLE),
        })
    }
}

/// The samples of a file that a receiver must hash, and the key of that hash.
#[derive(Clone)]
pub struct Challenge {
    key: [u8; 32],
    /// Offset and length, in the order of the offsets; one for each chosen block.
    samples: Vec<(u64, usize)>,
    /// The places of further samples, for a stream.
    places: Option<Peekable<StreamPlaces>>,
}

impl Challenge {
    /// The challenge with this key for a stream of which nothing is known yet.
    pub fn of_stream(key: [u8; 32]) -> Challenge {
        let stream = blake3::Hasher::new_derive_key(STREAM_PLACES)
            .update(&key)
            .finalize_xof();
        let places = StreamPlaces { stream, next: 0 };
        Challenge {
            key,
            samples: Vec::new(),
            places: Some(places.peekable()),
        }
    }

    /// Adds the samples of a stream that begin before `len`, since it is so long at least.
    pub fn reach(&mut self, len: u64) {
        while let Some(places) = &mut self.places
            && let Some(place) = places.next_if(|(offset, _)| *offset < len)
        {
            self.samples.push(place);
        }
    }

    /// Cuts off what lies behind the end of a stream that has `len` bytes.
    pub fn end(&mut self, len: u64) {
        self.reach(len);
        self.places = None;
        if let Some((offset, sample)) = self.samples.last_mut() {
            *sample = (*sample as u64).min(len - *offset) as usize;
        }
    }

    /// The challenge with this key for a file of `len` bytes.
    pub fn new(key: [u8; 32], len: u64) -> Challenge {
        let mut stream = blake3::Hasher::new_derive_key(PLACES)
            .update(&key)
            .finalize_xof();
        let mut draw = |below| draw(&mut stream, below);
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
        Challenge {
            key,
            samples,
            places: None,
        }
    }

    /// The key.
    pub fn key(&self) -> [u8; 32] {
        self.key
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

    /// The sender takes samples while it reads; a receiver does when it knows the length.
    #[test]
    fn samples_of_a_stream_do_not_depend_on_how_it_came() {
        const B: u64 = BLOCK as u64;
        let whole = |len| {
            let mut challenge = Challenge::of_stream([7; 32]);
            challenge.end(len);
            challenge
        };
        for len in [0, 1, B, B + 1, 64 * B, 5000 * B + 77] {
            let all = whole(len);
            let mut grown = Challenge::of_stream([7; 32]);
            (0..len).step_by(700_001).for_each(|at| grown.reach(at));
            grown.end(len);
            assert_eq!(all.samples(), grown.samples());
            let mut before = 0;
            for &(offset, sample) in all.samples() {
                assert!(offset >= before && offset < len && sample > 0, "{len}");
                before = offset + sample as u64;
            }
            assert!(before <= len);
            assert_eq!(all.bytes() as u64 > 0, len > 0);
        }
        // The sender's memory is bounded, however long the stream is.
        assert!(whole(1 << 45).bytes() < 16 << 20);
        assert_ne!(
            whole(B * 100).samples(),
            {
                let mut other = Challenge::of_stream([8; 32]);
                other.end(B * 100);
                other
            }
            .samples()
        );
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
        assert_eq!(a.key(), [1; 32]);
    }
}
