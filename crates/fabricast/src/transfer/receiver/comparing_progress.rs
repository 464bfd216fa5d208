//! How far a receiver is with comparing what it has (spec 5.16).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::object::Comparer;
use crate::object::pack::Header;
use crate::transfer::comparing::{AHEAD_MAX, COMPARING_MAX, LOOKING};

/// How far a receiver is with comparing what it has.
pub struct ReceiverComparing {
    /// How long a pack may be compared.
    pub(super) limit: Duration,
    /// Compares packs, once the receiver has looked.
    pub(super) comparer: Option<Comparer>,
    /// Number of the first pack that is compared, once there is one.
    pub(super) first: Option<u32>,
    /// Until when the others may look at what they have, or compare packs that this receiver has
    /// compared: nothing comes as long. `None` while this receiver looks.
    others_take: Option<Instant>,
    /// Number of packs that were announced and are not compared.
    pub(super) unanswered: usize,
    /// Bytes of files in the packs that were compared.
    pub(super) compared: u64,
    /// Number of the pack that is compared next. Headers arrive in any order.
    pub(super) next: u32,
    /// Headers that have arrived and wait for that of the next pack. `None`: what has arrived is
    /// not what was announced.
    pub(super) early: BTreeMap<u32, Option<Header>>,
}

impl ReceiverComparing {
    /// A receiver that compares each pack for so many milliseconds, as the sender says.
    pub fn new(limit_ms: u64) -> ReceiverComparing {
        ReceiverComparing {
            limit: Duration::from_millis(limit_ms).min(COMPARING_MAX),
            comparer: None,
            first: None,
            others_take: None,
            unanswered: 0,
            compared: 0,
            next: 0,
            early: BTreeMap::new(),
        }
    }

    /// Takes note that this receiver has looked: now the others may.
    pub fn looked(&mut self, now: Instant) {
        self.others_take = Some(now + LOOKING);
    }

    /// Takes note that a pack was announced that is sent as a whole. If all have looked, nobody
    /// waits for others until packs are compared.
    pub fn is_sent(&mut self, now: Instant) {
        if self.others_take.is_some() && self.first.is_none() {
            self.others_take = Some(now);
        }
    }

    /// Takes note that the pack of this number was announced, which all members compare. After the
    /// first such pack there are no others.
    pub fn is_compared(&mut self, number: u32, now: Instant) {
        let first = *self.first.get_or_insert(number);
        let packs = (number - first + 1).min(AHEAD_MAX as u32);
        self.others_take = Some(now + packs * self.limit);
    }

    /// Since when the transfer has been silent, if something came last at `last`: what others may
    /// take is no silence.
    pub fn silent_since(&self, last: Instant) -> Instant {
        match self.others_take {
            Some(until) => last.max(until),
            None => last + LOOKING,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    /// A receiver bears silence only while others may do something.
    #[test]
    fn what_others_may_take_is_no_silence() {
        let (mut receiver, now) = (ReceiverComparing::new(3000), Instant::now());
        assert_eq!(receiver.silent_since(now), now + LOOKING);
        receiver.is_sent(now); // a page
        assert_eq!(receiver.silent_since(now), now + LOOKING);
        receiver.looked(now + S);
        assert_eq!(receiver.silent_since(now), now + S + LOOKING);
        receiver.is_sent(now + 2 * S);
        assert_eq!(receiver.silent_since(now), now + 2 * S);
        assert_eq!(receiver.silent_since(now + 3 * S), now + 3 * S);
        for (number, packs) in (5..).zip([1, 2, 3, 4, 5, 6, 7, 8, 8, 8]) {
            receiver.is_compared(number, now + 4 * S);
            assert_eq!(receiver.silent_since(now), now + (4 + 3 * packs) * S);
        }
    }
}
