//! What a receiver has missed of the stream, as the sender knows it (spec 5.10).

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Instant;

use rangemap::RangeSet;

/// What a receiver lacks of the packs that were announced before it was admitted to the group, or
/// that were not broadcast.
#[derive(Clone, Debug)]
pub struct Missed {
    packs: RangeSet<u32>,
    /// Files that it cannot get any more: they had changed when packs were sent again for it.
    pub unavailable: BTreeSet<u32>,
    known: Known,
}

/// Whether the sender knows which packs a receiver lacks.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Known {
    /// All that it lacks is known.
    Yes,
    /// The receiver has still to say what it has.
    No {
        /// Since when the sender waits for that. It does not wait for a receiver that may get packs
        /// from others, which serve, for as long as the stream runs.
        since: Option<Instant>,
        /// Whether the receiver has said it before. Since then it was told of others that serve.
        again: bool,
    },
}

impl Missed {
    /// A receiver that is there from the start has missed nothing.
    pub fn nothing() -> Missed {
        Missed {
            packs: RangeSet::new(),
            unavailable: BTreeSet::new(),
            known: Known::Yes,
        }
    }

    /// A late receiver has not said yet what it has.
    pub fn unknown() -> Missed {
        Missed {
            known: Known::No {
                since: None,
                again: false,
            },
            ..Missed::nothing()
        }
    }

    /// Notes that the receiver is admitted after `packs` packs. It has to say which of these it
    /// has.
    pub fn admitted(&mut self, packs: u32, now: Instant) {
        self.packs = RangeSet::new();
        self.add(0..packs);
        self.known = Known::No {
            since: Some(now),
            again: false,
        };
    }

    /// Adds packs that the receiver lacks.
    pub fn add(&mut self, packs: Range<u32>) {
        if !packs.is_empty() {
            self.packs.insert(packs);
        }
    }

    /// Adds packs that the receiver lacks, unless it says that it has them.
    pub fn ask(&mut self, packs: Range<u32>) {
        self.add(packs);
        self.known = Known::No {
            since: None,
            again: false,
        };
    }

    /// Has the sender wait for the receiver from now on, if it has not said all yet.
    pub fn await_answer(&mut self, now: Instant) {
        if let Known::No { since, .. } = &mut self.known {
            since.get_or_insert(now);
        }
    }

    /// Has the receiver say what it has when it has got packs from others. `since`: since when the
    /// sender waits for that, if it does.
    pub fn ask_again(&mut self, since: Option<Instant>) {
        let again = match self.known {
            Known::Yes => true,
            Known::No { again, .. } => again,
        };
        self.known = Known::No { since, again };
    }

    /// Notes that the receiver has said all. Returns whether it had said that before.
    pub fn has_said(&mut self) -> bool {
        let before = std::mem::replace(&mut self.known, Known::Yes);
        matches!(before, Known::Yes | Known::No { again: true, .. })
    }

    /// Notes that the receiver has, or gets, these packs. False, and nothing changes, if it did not
    /// lack some of them.
    pub fn take(&mut self, packs: Range<u32>) -> bool {
        let run = self.packs.get(&packs.start);
        let all_lack = !packs.is_empty() && run.is_some_and(|run| run.end >= packs.end);
        if all_lack {
            self.packs.remove(packs);
        }
        all_lack
    }

    /// Whether all that the receiver lacks is known.
    pub fn is_known(&self) -> bool {
        self.known == Known::Yes
    }

    /// Whether it is known that the receiver lacks no pack.
    pub fn is_nothing(&self) -> bool {
        self.is_known() && self.packs.is_empty()
    }

    /// Since when the sender waits for the receiver to say what it has, if it does.
    pub fn awaited_since(&self) -> Option<Instant> {
        match self.known {
            Known::Yes => None,
            Known::No { since, .. } => since,
        }
    }

    /// The first pack that the receiver lacks.
    pub fn first(&self) -> Option<u32> {
        self.packs.first().map(|run| run.start)
    }

    /// Whether the receiver lacks this pack.
    pub fn contains(&self, pack: u32) -> bool {
        self.packs.contains(&pack)
    }

    /// The packs that the receiver lacks, as runs in rising order.
    pub fn runs(&self) -> impl Iterator<Item = Range<u32>> + '_ {
        self.packs.iter().cloned()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_pack_is_lacking_once() {
        let mut missed = Missed::unknown();
        missed.admitted(10, Instant::now());
        assert!(missed.take(2..4) && missed.take(9..10));
        for (start, end) in [(2, 3), (1, 3), (0, 10), (8, 11), (5, 5), (6, 5)] {
            assert!(!missed.take(start..end), "{start}");
        }
        assert_eq!(missed.runs().collect::<Vec<_>>(), [0..2, 4..9]);
        assert!(missed.contains(1) && !missed.contains(2) && !missed.contains(9));
        assert_eq!(missed.first(), Some(0));
        assert!(missed.take(0..2) && missed.take(4..9) && missed.first().is_none());
        assert!(!missed.is_nothing(), "it may not have said all");
        assert!(!missed.has_said() && missed.is_nothing());
        missed.add(7..9);
        missed.add(9..10);
        missed.add(9..10);
        missed.add(12..12);
        missed.add(12..14);
        assert_eq!(missed.runs().collect::<Vec<_>>(), [7..10, 12..14]);
    }

    /// The sender waits for what a receiver says only while nothing else keeps the receiver.
    #[test]
    fn a_receiver_says_what_it_has_when_it_was_asked() {
        let (now, later) = (Instant::now(), Instant::now() + Duration::from_secs(1));
        let mut missed = Missed::nothing();
        missed.await_answer(now);
        assert!(missed.is_nothing() && missed.awaited_since().is_none());
        missed.admitted(2, now);
        missed.await_answer(later);
        assert_eq!(missed.awaited_since(), Some(now));
        // It gets packs from others first.
        missed.ask_again(None);
        assert!(missed.awaited_since().is_none() && !missed.has_said());
        missed.ask_again(Some(later));
        assert_eq!(missed.awaited_since(), Some(later));
        assert!(missed.has_said() && missed.awaited_since().is_none());
    }
}
