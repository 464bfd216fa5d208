//! Parity packets: computed from an object's bytes, cached, and decoded into packets that are
//! missing.
//!
//! The code is the Reed-Solomon code of `reed-solomon-simd` (Leopard, 16-bit words, its high-rate
//! layout). It always has [`PARITIES_MAX`] recovery shards, however many of them are sent (spec
//! 1.9). The encoder computes all parity packets of a block at once, and those of the last blocks
//! are cached.

use std::collections::VecDeque;

use fabricast_proto::limits::PARITIES_MAX;
use fabricast_proto::wire::Writer;
use fabricast_proto::{CodeBlock, Extent, OpId, Packets, Parity, positions};
use reed_solomon_simd::engine::DefaultEngine;
use reed_solomon_simd::rate::{HighRateDecoder, HighRateEncoder, RateDecoder, RateEncoder};

use crate::object::{Fetch, Object};

/// Number of blocks whose parity packets the sender caches: those of one round of repairs, or some
/// of them.
const REMEMBERED: usize = 8;
/// Number of buffers for cached parity packets that are allocated at once.
const AT_ONCE: usize = 128;
/// Parity packets of a block.
const PARITIES: usize = PARITIES_MAX as usize;

type Encoder = HighRateEncoder<DefaultEngine>;
type Decoder = HighRateDecoder<DefaultEngine>;

struct Encoded {
    block: CodeBlock,
    /// The block's parity packets, one after the other.
    parities: Vec<u8>,
}

/// The encoder and decoder of a driver, with the parity packets that it caches.
#[derive(Default)]
pub(super) struct Code {
    encoder: Option<Encoder>,
    decoder: Option<Decoder>,
    /// Blocks whose parity packets are cached, the oldest first.
    encoded: VecDeque<Encoded>,
    kept: Vec<(Parity, Vec<u8>)>,
    /// Buffers to be used again.
    spare: Vec<Vec<u8>>,
    /// Buffer for one packet, followed by zeros.
    packet: Vec<u8>,
}

impl Code {
    /// Writes a parity packet, if the object has its block's bytes.
    pub fn encode<O: Object>(
        &mut self,
        object: &mut O,
        parity: &Parity,
        out: &mut Writer<'_>,
    ) -> Fetch {
        let block = parity.block;
        if !self.encoded.iter().any(|e| e.block == block) {
            match self.encode_block(object, &block) {
                Fetch::Ready => {}
                other => return other,
            }
        }
        let payload_size = block.payload_size as usize;
        let at = usize::from(parity.index) * payload_size;
        let encoded = self.encoded.iter().find(|e| e.block == block);
        if let Some(encoded) = encoded {
            out.put(&encoded.parities[at..at + payload_size]);
        }
        Fetch::Ready
    }

    fn encode_block<O: Object>(&mut self, object: &mut O, block: &CodeBlock) -> Fetch {
        let (packets, payload_size) = (block.packets() as usize, block.payload_size as usize);
        let encoder = match &mut self.encoder {
            Some(encoder) => encoder
                .reset(packets, PARITIES, payload_size)
                .map(|()| encoder)
                .ok(),
            none => Encoder::new(packets, PARITIES, payload_size, DefaultEngine::new(), None)
                .ok()
                .map(|e| none.insert(e)),
        };
        let Some(encoder) = encoder else {
            return Fetch::Failed;
        };
        let mut all = Fetch::Ready;
        for i in 0..block.packets() {
            let e = block.extent(i);
            match object.fetch(e.offset, e.len) {
                Fetch::Failed => return Fetch::Failed,
                Fetch::Later => all = Fetch::Later,
                // The object gets requests for everything else that must be read; a later call adds
                // all packets.
                Fetch::Ready if all == Fetch::Later => {}
                Fetch::Ready => {
                    let bytes = object.bytes(e.offset, e.len);
                    let added = match bytes.len() == payload_size {
                        true => encoder.add_original_shard(bytes),
                        false => {
                            self.packet.clear();
                            self.packet.extend_from_slice(bytes);
                            self.packet.resize(payload_size, 0);
                            encoder.add_original_shard(&self.packet)
                        }
                    };
                    if added.is_err() {
                        return Fetch::Failed;
                    }
                }
            }
        }
        if all == Fetch::Later {
            return all;
        }
        let Ok(result) = encoder.encode() else {
            return Fetch::Failed;
        };
        let mut oldest = match self.encoded.len() < REMEMBERED {
            true => None,
            false => self.encoded.pop_front(),
        };
        let mut parities = oldest.take().map_or_else(Vec::new, |e| e.parities);
        parities.clear();
        result
            .recovery_iter()
            .for_each(|p| parities.extend_from_slice(p));
        let block = *block;
        self.encoded.push_back(Encoded { block, parities });
        Fetch::Ready
    }

    /// Caches a parity packet until its block can be decoded.
    pub fn keep(&mut self, parity: &Parity, payload: &[u8]) {
        if self.spare.is_empty() {
            // Many at once, so that few are allocated later.
            let buffers = (0..AT_ONCE).map(|_| Vec::with_capacity(payload.len()));
            self.spare.extend(buffers);
            self.kept.reserve(AT_ONCE);
        }
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(payload);
        self.kept.push((*parity, bytes));
    }

    /// Decodes the packets that a block lacks and hands each to `write`. Returns false if the bytes
    /// and parity packets here are too few.
    pub fn rebuild<O: Object>(
        &mut self,
        object: &mut O,
        block: &CodeBlock,
        lacking: Packets,
        write: &mut dyn FnMut(&mut O, Extent, &[u8]),
    ) -> bool {
        let done = self.decode(object, block, lacking, write).is_some();
        self.forget(block);
        done
    }

    fn decode<O: Object>(
        &mut self,
        object: &mut O,
        block: &CodeBlock,
        lacking: Packets,
        write: &mut dyn FnMut(&mut O, Extent, &[u8]),
    ) -> Option<()> {
        let (packets, payload_size) = (block.packets() as usize, block.payload_size as usize);
        let decoder = match &mut self.decoder {
            Some(decoder) => {
                decoder.reset(packets, PARITIES, payload_size).ok()?;
                decoder
            }
            none => {
                let engine = DefaultEngine::new();
                none.insert(Decoder::new(packets, PARITIES, payload_size, engine, None).ok()?)
            }
        };
        for i in positions(!lacking).take_while(|&i| i < block.packets()) {
            let e = block.extent(i);
            self.packet.clear();
            self.packet.resize(payload_size, 0);
            if !object.add(e.offset, e.len, &mut self.packet) {
                return None;
            }
            decoder.add_original_shard(i as usize, &self.packet).ok()?;
        }
        for (parity, bytes) in self.kept.iter().filter(|k| k.0.block == *block) {
            decoder
                .add_recovery_shard(usize::from(parity.index), bytes)
                .ok()?;
        }
        let result = decoder.decode().ok()?;
        for i in positions(lacking) {
            let extent = block.extent(i);
            let bytes = result.restored_original(i as usize)?;
            write(object, extent, &bytes[..extent.len as usize]);
        }
        Some(())
    }

    /// Drops the cached parity packets of a block.
    pub fn forget(&mut self, block: &CodeBlock) {
        let gone = self.kept.extract_if(.., |k| k.0.block == *block);
        self.spare.extend(gone.map(|k| k.1));
    }

    /// Drops everything about an operation that is over.
    pub fn released(&mut self, op: OpId) {
        self.kept.retain(|k| k.0.block.op != op);
        self.encoded.retain(|e| e.block.op != op);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Memory;
    use crate::object::testing::pattern;
    use fabricast_proto::limits::BLOCK_PACKETS;
    use proptest::prelude::*;

    fn parity(block: CodeBlock, index: u8) -> Parity {
        Parity { block, index }
    }

    /// A parity packet of an object with these bytes.
    fn encoded(code: &mut Code, bytes: &[u8], parity: &Parity) -> Vec<u8> {
        let mut packet = vec![0; parity.block.payload_size as usize];
        let mut out = Writer::new(&mut packet);
        let fetch = code.encode(&mut Memory::new(bytes.to_vec()), parity, &mut out);
        let len = out.len();
        assert_eq!((fetch, len), (Fetch::Ready, packet.len()));
        packet
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Parity packets repair any losses, one for each lost packet, the short last packet
        /// included.
        #[test]
        fn any_losses_are_mended(
            payload_size in prop_oneof![Just(64u32), Just(100), Just(1440)],
            whole in 1u32..128,
            rest in 1u32..64,
            lost in proptest::collection::btree_set(0u32..128, 1..20),
            from in 0u8..40,
        ) {
            let bytes = pattern((whole * payload_size + rest) as usize);
            let block = CodeBlock::at(OpId(1), 0, bytes.len() as u64, payload_size);
            let lost: Vec<u32> = lost.into_iter().filter(|&i| i < block.packets()).collect();
            let lacking: Packets = lost.iter().map(|i| 1 << i).sum();
            let mut damaged = bytes.clone();
            for &i in &lost {
                let e = block.extent(i);
                damaged[e.offset as usize..][..e.len as usize].fill(0xee);
            }
            let mut sink = Memory::new(damaged);
            let (mut sends, mut receives) = (Code::default(), Code::default());
            for k in 0..lost.len() as u8 {
                let p = parity(block, from + k);
                receives.keep(&p, &encoded(&mut sends, &bytes, &p));
            }
            let mut write = |o: &mut Memory, e: Extent, bytes: &[u8]| _ = o.write(e.offset, bytes);
            let mut rebuild = || receives.rebuild(&mut sink, &block, lacking, &mut write);
            prop_assert!(lost.is_empty() || rebuild());
            prop_assert_eq!(sink.as_slice(), &bytes[..]);
        }
    }

    #[test]
    fn too_few_parity_packets_are_said_to_be() {
        let bytes = pattern(20 * 64);
        let block = CodeBlock::at(OpId(1), 0, bytes.len() as u64, 64);
        let mut code = Code::default();
        let packet = encoded(&mut code, &bytes, &parity(block, 3));
        code.keep(&parity(block, 3), &packet);
        let mut write = |_: &mut Memory, _, _: &[u8]| panic!("nothing can be computed");
        assert!(!code.rebuild(&mut Memory::new(bytes), &block, 0b11, &mut write));
        assert!(code.kept.is_empty());
    }

    /// The code is part of the protocol: both ends must compute the same (spec 1.9).
    #[test]
    fn the_code_is_as_the_specification_says() {
        let byte = |i: u32, j: u32| (i * 37 + j * 11 + i * j) as u8;
        let packet = |i| (0..64).map(move |j| byte(i, j));
        let bytes: Vec<u8> = (0..BLOCK_PACKETS).flat_map(packet).collect();
        let block = CodeBlock::at(OpId(1), 0, bytes.len() as u64, 64);
        let mut code = Code::default();
        let mut found = Vec::new();
        for index in [0, 1, 63] {
            let packet = encoded(&mut code, &bytes, &parity(block, index));
            found.push(format!("{:02x?}", &packet[..8]));
        }
        assert_eq!(
            found,
            [
                "[10, 57, 13, 66, 36, af, ea, 53]",
                "[6a, 6e, 58, 69, 01, 2b, 0d, c9]",
                "[6a, dd, 44, 80, 41, c9, bf, fd]"
            ]
        );
    }
}
