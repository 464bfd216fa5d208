//! Tests that run the bodies of the fuzz targets on a stable compiler. Their inputs are the vectors
//! of the specification, and some thousand inputs made from them. A failed test prints its seed;
//! `FUZZ_SEED=N` runs only that seed.

use std::path::Path;

use fabricast_proto::XorSources;
use fabricast_proto::rng::Rng;

use super::*;

/// Number of inputs of each test.
const ROUNDS: u64 = 4000;

/// The vectors of the specification, and similar datagrams that members of [`busy`]'s group send.
fn seeds() -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../spec/vectors");
    let mut paths: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file())
        .collect();
    paths.sort();
    let vectors: Vec<_> = paths
        .iter()
        .map(|path| unhex(&std::fs::read_to_string(path).unwrap()))
        .collect();
    assert!(vectors.len() >= 5, "{paths:?}");
    let (group, session) = (GroupId(7), Session(0x1122_3344_5566_7788));
    let mut all = vectors;
    for source in [NodeId(0), NodeId(3)] {
        let header = wire::Header {
            burst: 5,
            source,
            session,
        };
        let mut put = |frame: &dyn Fn(&mut Writer<'_>)| {
            all.push(wire::head(|out| {
                wire::put_header(out, &header);
                frame(out);
            }));
        };
        for n in 0..4 {
            put(&|out| {
                let origin = wire::Origin::Source(Seq(START));
                wire::put_data(out, group, origin, Seq(START + n), 0, 64);
                out.put(&[n as u8; 64]);
            });
        }
        put(&|out| {
            let mut sources = XorSources::new(Seq(START + 1));
            assert!(sources.push(Seq(START + 3)));
            wire::put_xor(out, group, &sources, 0, 64);
            out.put(&[2; 64]);
        });
        put(&|out| {
            // The object's 79 packets are one block.
            wire::put_parity(out, group, (Seq(START), 79, 3, (LEN % 64) as u16), 1, 64);
            out.put(&[7; 64]);
        });
        // The sender believes no ACK of packets that it has not sent. So the first feedback opens
        // the window, and the second can be true only after it.
        for cum in [START, START + 2] {
            put(&|out| {
                let feedback = wire::Feedback {
                    group,
                    sender: NodeId(1),
                    cum: Seq(cum),
                    cum_subtree: Seq(cum),
                    limit: Seq(START + 70),
                    high: Seq(START + 9),
                    received: 3,
                    arrived_us: 1000,
                    held_us: 10,
                    burst: 1,
                    flags: wire::flag::BURST,
                    slot: None,
                    declined: wire::Declined::NONE,
                    missing: wire::Ranges::NONE,
                };
                let missing = [(Seq(START + 4), 2), (Seq(START + 7), 1)];
                wire::put_feedback(out, &feedback, missing.into_iter());
            });
        }
        put(&|out| {
            let next = Seq(START + 20);
            let root = source;
            wire::put_sync(
                out,
                &wire::Sync {
                    group,
                    sender: root,
                    next,
                },
            );
        });
        for (count, round, flags) in [(1, 0, 0), (1, 1, 1), (1, 2, 0), (2, 1, 1)] {
            let at = |count, round| fabricast_proto::Reached {
                count: Seq(START + count),
                round,
            };
            let word = wire::Word {
                group,
                at: at(count, round),
                heard: Some(at(1, 0)),
                barrier: Some(BARRIER),
                flags,
            };
            put(&|out| wire::put_word(out, &word));
        }
    }
    all
}

fn unhex(text: &str) -> Vec<u8> {
    let lines = text.lines().filter_map(|l| l.split('#').next());
    let digits: Vec<u32> = lines
        .flat_map(str::chars)
        .filter_map(|c| c.to_digit(16))
        .collect();
    let pairs = digits.chunks_exact(2);
    pairs.map(|d| (d[0] * 16 + d[1]) as u8).collect()
}

/// A randomly chosen seed, unchanged or damaged in up to five places.
pub fn spoilt(rng: &mut Rng, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = seeds[rng.below(seeds.len() as u64) as usize].clone();
    for _ in 0..[0, 0, 1, 1, 2, 5][rng.below(6) as usize] {
        let at = rng.below(bytes.len().max(1) as u64) as usize;
        match rng.below(8) {
            0 if at < bytes.len() => bytes[at] ^= 1 << rng.below(8),
            1 if at < bytes.len() => bytes[at] = rng.bits() as u8,
            2 if at < bytes.len() => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][rng.below(5) as usize],
            // A field slightly changed, or at an end of its range.
            3 | 4 if at + 4 <= bytes.len() => {
                let field = &mut bytes[at & !3..][..4];
                let old = u32::from_be_bytes([field[0], field[1], field[2], field[3]]);
                let by = rng.below(200) as u32;
                let new = [
                    old.wrapping_add(by),
                    old.wrapping_sub(by),
                    START.wrapping_add(by),
                    by << 15,
                    u32::MAX - by,
                ][rng.below(5) as usize];
                field.copy_from_slice(&new.to_be_bytes());
            }
            5 => bytes.truncate(at),
            6 => bytes.extend((0..rng.below(80)).map(|_| rng.bits() as u8)),
            // The start of this datagram with the end of another.
            _ => {
                let other = &seeds[rng.below(seeds.len() as u64) as usize];
                bytes.truncate(at);
                bytes.extend(other.iter().skip(at));
            }
        }
    }
    bytes
}

/// Prints the seed if its test panics.
pub struct Tried(pub u64);

impl Drop for Tried {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("FUZZ_SEED={} repeats it", self.0);
        }
    }
}

pub fn rounds() -> Vec<u64> {
    match std::env::var("FUZZ_SEED") {
        Ok(seed) => vec![seed.parse().expect("FUZZ_SEED is a number")],
        Err(_) => (0..ROUNDS).collect(),
    }
}

#[test]
fn hostile_datagrams_are_decoded_or_refused() {
    let seeds = seeds();
    seeds.iter().for_each(|bytes| decode(bytes));
    for seed in rounds() {
        let _tried = Tried(seed);
        decode(&spoilt(&mut Rng::new(seed), &seeds));
    }
}

#[test]
fn a_node_stands_hostile_datagrams() {
    let seeds = seeds();
    let (mut got_through, mut sums) = (Counters::default(), 0);
    for seed in rounds() {
        let _tried = Tried(seed);
        let mut rng = Rng::new(seed);
        let mut input = Vec::new();
        for _ in 0..rng.below(40) {
            let bytes = spoilt(&mut rng, &seeds);
            let word = bytes.len() as u16 | (rng.below(8) as u16) << 13;
            input.extend(word.to_be_bytes());
            input.extend(bytes);
        }
        let (counters, solved) = node(&input);
        sums += solved;
        got_through.received += counters.received;
        got_through.feedback_received += counters.feedback_received;
        got_through.data += counters.data;
        got_through.words += counters.words;
        got_through.words_answered += counters.words_answered;
        got_through.repairs_multicast += counters.repairs_multicast;
    }
    // If the decoder refused every datagram, the test would have tried nothing.
    if std::env::var("FUZZ_SEED").is_err() {
        let Counters {
            received,
            feedback_received,
            data,
            repairs_multicast,
            words,
            words_answered,
            ..
        } = got_through;
        let least = received
            .min(feedback_received)
            .min(data)
            .min(words_answered);
        assert!(
            least > ROUNDS / 3 && repairs_multicast > 0 && sums > 100 && words > ROUNDS * 3 / 2,
            "{got_through:?}, {sums} sums"
        );
    }
}
