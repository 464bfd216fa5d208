//! The packs that receivers keep from an earlier run, as the sender knows them before the start
//! (spec 5.11).

use fabricast_proto::OpId;

use crate::bootstrap::message::ToSender;
use crate::object::{HASH, Kept};

/// Packs of which a receiver tells the sender, at most: 64 GiB of long files.
const TOLD_MAX: usize = 16_384;

/// Packs in a row that are announced and not broadcast, at most.
const UNBROADCAST_MAX: u32 = 63;

/// Packs that are not broadcast, since members keep them. Nothing else would hold the sender there,
/// and a receiver that is stopped would be told more than its connection takes. So one of many is
/// broadcast all the same: the members that keep it decline it, and the sender waits for that.
#[derive(Default)]
pub struct Unbroadcast {
    in_a_row: u32,
    /// Whether there was any, or one that was broadcast when nobody was in the group.
    pub any: bool,
    /// The last one that was broadcast all the same.
    pub declined: Option<OpId>,
}

impl Unbroadcast {
    /// Whether the next pack is not broadcast, if members keep it or not.
    pub fn takes(&mut self, is_kept: bool) -> bool {
        let takes = is_kept && self.in_a_row < UNBROADCAST_MAX;
        self.in_a_row = if takes { self.in_a_row + 1 } else { 0 };
        self.any |= takes;
        takes
    }
}

/// What a pack with this hash is called in a transfer. Nobody knows that before the session, so
/// nobody can make packs that are called the same.
pub fn called(session: u64, hash: &[u8; HASH]) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&session.to_be_bytes()).update(hash);
    let hash = hasher.finalize();
    let first = hash.as_bytes().first_chunk();
    first.map_or(0, |first| u64::from_be_bytes(*first))
}

/// What a receiver says of the packs that it keeps. Those of which it does not tell it declines one
/// by one.
pub fn told(session: u64, kept: &Kept) -> Vec<ToSender> {
    let packs = kept.packs.iter().take(TOLD_MAX);
    let packs: Vec<u64> = packs.map(|hash| called(session, hash)).collect();
    let messages = packs.chunks(ToSender::KEEPS_MAX);
    let keeps = |packs: &[u64]| ToSender::Keeps {
        packs: packs.to_vec(),
    };
    messages.map(keeps).collect()
}

/// The packs that a receiver has said it keeps.
#[derive(Clone, Debug, Default)]
pub struct ToldPacks {
    /// What they are called; in ascending order once it has said all.
    packs: Vec<u64>,
}

impl ToldPacks {
    /// Adds what a receiver has said. False if it may not say that.
    pub fn add(&mut self, packs: &[u64]) -> bool {
        let is_sound = (1..=ToSender::KEEPS_MAX).contains(&packs.len())
            && self.packs.len() + packs.len() <= TOLD_MAX;
        if is_sound {
            self.packs.extend(packs);
        }
        is_sound
    }

    /// Takes note that the receiver has said all.
    pub fn said_all(&mut self) {
        self.packs.sort_unstable();
    }

    /// Whether the receiver keeps the pack that is [`called`] so.
    pub fn has(&self, pack: u64) -> bool {
        self.packs.binary_search(&pack).is_ok()
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
            let mut known = ToldPacks::default();
            for message in told(7, &kept) {
                let ToSender::Keeps { packs } = message else {
                    panic!("{message:?}");
                };
                assert!(known.add(&packs), "{count} packs");
            }
            known.said_all();
            let has = |session| {
                let packs = kept.packs.iter();
                packs
                    .filter(|hash| known.has(called(session, hash)))
                    .count()
            };
            assert_eq!(has(7), count.min(TOLD_MAX));
            assert_eq!(has(8), 0, "they are called otherwise in another session");
            assert!(!known.has(called(7, &hash(count))));
        }
        let mut known = ToldPacks::default();
        let most = [u64::MAX; ToSender::KEEPS_MAX];
        assert!(!known.add(&[]) && !known.add(&[1; ToSender::KEEPS_MAX + 1]));
        let bearable = TOLD_MAX / most.len();
        assert!((0..bearable).all(|_| known.add(&most)) && !known.add(&most));
    }

    /// A receiver that does not listen is told of so many packs, and not of all.
    #[test]
    fn one_of_many_packs_is_broadcast_though_members_keep_it() {
        let mut unbroadcast = Unbroadcast::default();
        assert!(!unbroadcast.takes(false) && !unbroadcast.any);
        for _ in 0..3 {
            assert!((0..UNBROADCAST_MAX).all(|_| unbroadcast.takes(true)));
            assert!(!unbroadcast.takes(true) && unbroadcast.any);
        }
        assert!((0..10).all(|_| unbroadcast.takes(true)));
        assert!(!unbroadcast.takes(false));
        assert!((0..UNBROADCAST_MAX).all(|_| unbroadcast.takes(true)));
    }

    #[test]
    fn the_longest_message_is_no_longer_than_the_sender_takes() {
        let packs = vec![u64::MAX; ToSender::KEEPS_MAX];
        let mut out = Vec::new();
        put_message(&mut out, &ToSender::Keeps { packs });
        assert!(out.len() - HEAD <= TO_SENDER.message, "{} bytes", out.len());
    }
}
