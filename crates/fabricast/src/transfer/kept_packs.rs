//! The packs that receivers keep from an earlier run, as the sender knows them before the start
//! (spec 5.11).

use crate::bootstrap::message::ToSender;
use crate::object::{HASH, Kept};

/// Packs of which a receiver tells the sender, at most: 64 GiB of long files.
const TOLD_MAX: usize = 16_384;

/// The beginning of a hash, by which the sender knows a pack.
fn short(hash: &[u8; HASH]) -> u64 {
    hash.first_chunk()
        .map_or(0, |first| u64::from_be_bytes(*first))
}

/// What a receiver says of the packs that it keeps. Those of which it does not tell it declines one
/// by one.
pub fn told(kept: &Kept) -> Vec<ToSender> {
    let packs: Vec<u64> = kept.packs.iter().take(TOLD_MAX).map(short).collect();
    let messages = packs.chunks(ToSender::KEEPS_MAX);
    let keeps = |packs: &[u64]| ToSender::Keeps {
        packs: packs.to_vec(),
    };
    messages.map(keeps).collect()
}

/// The packs that a receiver has said it keeps.
#[derive(Clone, Debug, Default)]
pub struct KeptPacks {
    /// The beginnings of the hashes of their headers, in ascending order.
    packs: Vec<u64>,
}

impl KeptPacks {
    /// Adds what a receiver has said. False if that is more than a receiver may say.
    pub fn add(&mut self, packs: &[u64]) -> bool {
        let is_bearable = self.packs.len() + packs.len() <= TOLD_MAX;
        if is_bearable {
            self.packs.extend(packs);
            self.packs.sort_unstable();
        }
        is_bearable
    }

    /// Whether the receiver keeps the pack with this hash.
    pub fn has(&self, hash: &[u8; HASH]) -> bool {
        self.packs.binary_search(&short(hash)).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::frame::{HEAD, TO_SENDER, put_message};

    /// The hash number `n` of some.
    fn hash(n: usize) -> [u8; HASH] {
        blake3::hash(&n.to_be_bytes()).into()
    }

    #[test]
    fn the_sender_knows_what_a_receiver_keeps_up_to_a_bound() {
        let packs = |count: usize| (0..count).map(hash).collect();
        for count in [0, 1, ToSender::KEEPS_MAX + 1, TOLD_MAX + 1] {
            let kept = Kept {
                packs: packs(count),
                bytes: 0,
            };
            let mut known = KeptPacks::default();
            for message in told(&kept) {
                let ToSender::Keeps { packs } = message else {
                    panic!("{message:?}");
                };
                assert!(known.add(&packs), "{count} packs");
            }
            let has = kept.packs.iter().filter(|hash| known.has(hash)).count();
            assert_eq!(has, count.min(TOLD_MAX));
            assert!(!known.has(&hash(count)));
        }
        let mut known = KeptPacks::default();
        let most = vec![u64::MAX; TOLD_MAX];
        assert!(known.add(&most) && !known.add(&[1]) && known.add(&[]));
    }

    #[test]
    fn the_longest_message_is_no_longer_than_the_sender_takes() {
        let packs = vec![u64::MAX; ToSender::KEEPS_MAX];
        let mut out = Vec::new();
        put_message(&mut out, &ToSender::Keeps { packs });
        assert!(out.len() - HEAD <= TO_SENDER.message, "{} bytes", out.len());
    }
}
