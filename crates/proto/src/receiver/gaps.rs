//! The packets of one stream that a receiver has, as two bitmaps over a ring (P1.8).
//!
//! ```text
//!     placed   | cum        filled       high |        cum + window
//!              |  seen, partly placed  · gaps |  nothing yet
//! ```
//! *Seen* says that a packet need not be sent again; *placed* says that its bytes are where they
//! belong. Only placed packets move `cum`, and the sender forgets only packets before `cum`.

use std::collections::VecDeque;

use crate::limits;
use crate::mutant::{self, Mutant};
use crate::seq::Seq;

/// What an arriving packet is to a receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    /// The packet was missing.
    New,
    /// The packet was here already.
    Repeat,
    /// The packet lies beyond the window.
    Beyond,
}

/// Two bitmaps and three numbers, where `cum <= filled <= high <= cum + window`.
#[derive(Clone, Debug)]
pub struct Gaps {
    seen: Bits,
    placed: Bits,
    cum: Seq,
    filled: Seq,
    high: Seq,
    /// Ranges of packets that are not wanted, as `from .. to` in rising order, all after `cum`.
    /// They count as placed.
    declined: VecDeque<(Seq, Seq)>,
}

impl Gaps {
    /// The state of a receiver that has seen nothing at or after `start`. Panics unless `window`,
    /// in packets, is a power of two and at most [`limits::WINDOW_MAX`].
    pub fn new(start: Seq, window: u32) -> Gaps {
        assert!(window.is_power_of_two() && window <= limits::WINDOW_MAX);
        Gaps {
            seen: Bits::new(window),
            placed: Bits::new(window),
            cum: start,
            filled: start,
            high: start,
            declined: VecDeque::new(),
        }
    }

    /// The number before which everything has been placed.
    pub fn cum(&self) -> Seq {
        self.cum
    }

    /// The number before which everything has been seen: the first gap, or `high`.
    pub fn filled(&self) -> Seq {
        self.filled
    }

    /// The number before which everything is known to have been sent.
    pub fn high(&self) -> Seq {
        self.high
    }

    /// Number of packets that the bitmaps cover.
    pub fn window(&self) -> u32 {
        self.seen.len()
    }

    /// Whether something before `high` has not been seen.
    pub fn is_open(&self) -> bool {
        self.filled != self.high
    }

    /// Whether packet `seq` has been seen.
    pub fn has(&self, seq: Seq) -> bool {
        seq.before(self.cum) || (seq.within(self.cum, self.window()) && self.seen.has(seq))
    }

    /// Notes that packet `seq` has arrived.
    pub fn see(&mut self, seq: Seq) -> Seen {
        if !seq.within(self.cum, self.window()) {
            return if seq.before(self.cum) {
                Seen::Repeat
            } else {
                Seen::Beyond
            };
        }
        if self.seen.has(seq) {
            if mutant::active(Mutant::RepeatIsNew) {
                return Seen::New;
            }
            return Seen::Repeat;
        }
        self.seen.set(seq);
        if mutant::active(Mutant::AckBeforePlaced) {
            self.high = self.high.max(seq + 1);
            self.place(seq);
        }
        self.high = self.high.max(seq + 1);
        if seq == self.filled || !self.declined.is_empty() {
            self.filled = self.seen.next(self.filled, self.high, false);
        }
        Seen::New
    }

    /// Notes that everything before `next` has been sent. `high` stays within the window.
    pub fn announce(&mut self, next: Seq) {
        if next.within(self.cum, self.window() + 1) {
            self.high = self.high.max(next);
        } else if self.cum.before(next) {
            self.high = self.cum + self.window();
        }
        if !self.declined.is_empty() {
            self.filled = self.seen.next(self.filled, self.high, false);
        }
    }

    /// Notes that the bytes of packet `seq` are where they belong. Says whether that is new.
    pub fn place(&mut self, seq: Seq) -> bool {
        if !seq.within(self.cum, self.window()) || !self.seen.has(seq) || self.placed.has(seq) {
            return false;
        }
        self.placed.set(seq);
        if seq == self.cum {
            let end = self.placed.next(seq, self.high, false);
            self.seen.clear(self.cum, end);
            self.placed.clear(self.cum, end);
            self.cum = end;
            self.skip_declined();
        }
        true
    }

    /// Notes that the packets `from .. to`, none of which has been seen, are not wanted. They lie
    /// after all that were declined before.
    pub fn decline(&mut self, from: Seq, to: Seq) {
        match self.declined.back_mut() {
            Some(last) if last.1 == from => last.1 = to,
            _ => self.declined.push_back((from, to)),
        }
        self.skip_declined();
    }

    /// Moves `cum` past declined packets, and marks those that the bitmaps cover as placed.
    fn skip_declined(&mut self) {
        while let Some(&(from, to)) = self.declined.front()
            && !self.cum.before(from)
        {
            self.declined.pop_front();
            if self.cum.before(to) {
                let covered = to.min(self.cum + self.window());
                self.seen.clear(self.cum, covered);
                self.placed.clear(self.cum, covered);
                (self.cum, self.high) = (to, self.high.max(to));
                self.filled = self.filled.max(to);
            }
            let end = self.placed.next(self.cum, self.high, false);
            self.seen.clear(self.cum, end);
            self.placed.clear(self.cum, end);
            self.cum = end;
        }
        let covered = self.cum + self.window();
        for &(from, to) in self.declined.iter().take_while(|d| d.0.before(covered)) {
            let mut at = from;
            while at.before(to.min(covered)) {
                self.seen.set(at);
                self.placed.set(at);
                at += 1;
            }
        }
        self.filled = self.seen.next(self.filled, self.high, false);
    }

    /// Takes packet `seq` for missing again: it was seen, but its bytes, not yet placed, were not
    /// right.
    pub fn reopen(&mut self, seq: Seq) {
        if seq.within(self.cum, self.window()) && self.seen.has(seq) && !self.placed.has(seq) {
            self.seen.clear(seq, seq + 1);
            self.filled = self.filled.min(seq);
        }
    }

    /// The missing ranges before `upto`, in rising order.
    pub fn missing(&self, upto: Seq) -> Missing<'_> {
        Missing {
            gaps: self,
            at: self.filled,
            end: upto.min(self.high),
        }
    }

    /// Panics if an invariant is broken; tests and soaks call it after every change.
    pub fn invariants(&self) {
        let w = self.window();
        assert!(self.filled.within(self.cum, w + 1));
        assert!(self.high.within(self.filled, w + 1));
        assert!(self.high.within(self.cum, w + 1));
        assert!(self.filled == self.high || !self.seen.has(self.filled));
        assert!(self.cum == self.filled || !self.placed.has(self.cum));
    }
}

/// Iterator over missing ranges: first number and length of each.
#[derive(Clone, Debug)]
pub struct Missing<'a> {
    gaps: &'a Gaps,
    at: Seq,
    end: Seq,
}

impl Iterator for Missing<'_> {
    type Item = (Seq, u32);

    fn next(&mut self) -> Option<(Seq, u32)> {
        if !self.at.before(self.end) {
            return None;
        }
        let first = self.gaps.seen.next(self.at, self.end, false);
        if first == self.end {
            self.at = self.end;
            return None;
        }
        let end = self.gaps.seen.next(first, self.end, true);
        self.at = end;
        Some((first, end.from(first) as u32))
    }
}

/// A bitmap over a ring of sequence numbers.
#[derive(Clone, Debug)]
struct Bits {
    words: Vec<u64>,
}

impl Bits {
    fn new(bits: u32) -> Bits {
        Bits {
            words: vec![0; (bits as usize).div_ceil(64)],
        }
    }

    fn len(&self) -> u32 {
        self.words.len() as u32 * 64
    }

    fn at(&self, seq: Seq) -> (usize, u32) {
        let bit = seq.0 & (self.len() - 1);
        ((bit / 64) as usize, bit % 64)
    }

    fn has(&self, seq: Seq) -> bool {
        let (word, bit) = self.at(seq);
        self.words[word] >> bit & 1 == 1
    }

    fn set(&mut self, seq: Seq) {
        let (word, bit) = self.at(seq);
        self.words[word] |= 1 << bit;
    }

    /// Clears `from .. to`, a word at a time.
    fn clear(&mut self, from: Seq, to: Seq) {
        let mut at = from;
        while at.before(to) {
            let (word, bit) = self.at(at);
            let n = (64 - bit).min(to.from(at) as u32);
            let mask = if n == 64 {
                u64::MAX
            } else {
                ((1 << n) - 1) << bit
            };
            self.words[word] &= !mask;
            at += n;
        }
    }

    /// The first number in `from .. to` whose bit is `value`, or `to`.
    fn next(&self, from: Seq, to: Seq, value: bool) -> Seq {
        let mut at = from;
        while at.before(to) {
            let (word, bit) = self.at(at);
            let w = if value {
                self.words[word]
            } else {
                !self.words[word]
            } >> bit;
            let n = w.trailing_zeros().min(64 - bit);
            if n < 64 - bit {
                return (at + n).min(to);
            }
            at += n;
        }
        to
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[derive(Clone, Debug)]
    enum Act {
        See(u32),
        Place(u32),
        Reopen(u32),
        Announce(u32),
        Decline(u32, u32),
    }

    fn acts() -> impl Strategy<Value = Vec<Act>> {
        let near = 0u32..200;
        proptest::collection::vec(
            prop_oneof![
                4 => near.clone().prop_map(Act::See),
                3 => near.clone().prop_map(Act::Place),
                1 => near.clone().prop_map(Act::Reopen),
                1 => near.prop_map(Act::Announce),
                1 => (0u32..60, 1u32..200).prop_map(|(skip, n)| Act::Decline(skip, n)),
            ],
            0..600,
        )
    }

    proptest! {
        /// Compares the bitmaps with two plain sets, across the wrap of the numbers.
        #[test]
        fn agrees_with_sets(
            start in prop_oneof![Just(0u32), Just(u32::MAX - 70), any::<u32>()],
            acts in acts(),
        ) {
            let window = 128u32;
            let mut gaps = Gaps::new(Seq(start), window);
            let (mut seen, mut placed, mut high) = (BTreeSet::new(), BTreeSet::new(), 0u32);
            let (mut cum, mut declined) = (0u32, 0u32);
            for act in acts {
                match act {
                    Act::See(n) => {
                        let want = if n >= cum + window { Seen::Beyond }
                            else if n < cum || seen.contains(&n) { Seen::Repeat }
                            else { Seen::New };
                        prop_assert_eq!(gaps.see(Seq(start) + n), want);
                        if want == Seen::New { seen.insert(n); high = high.max(n + 1); }
                    }
                    Act::Place(n) => {
                        let want = n >= cum && seen.contains(&n) && !placed.contains(&n);
                        prop_assert_eq!(gaps.place(Seq(start) + n), want);
                        if want { placed.insert(n); }
                        while placed.contains(&cum) { cum += 1; }
                        high = high.max(cum);
                    }
                    Act::Reopen(n) => {
                        gaps.reopen(Seq(start) + n);
                        if n >= cum && !placed.contains(&n) { seen.remove(&n); }
                    }
                    Act::Announce(n) => {
                        gaps.announce(Seq(start) + n);
                        high = high.max(n.min(cum + window));
                    }
                    Act::Decline(skip, n) => {
                        let from = declined.max(cum + skip);
                        declined = from + n;
                        gaps.decline(Seq(start) + from, Seq(start) + declined);
                        seen.extend(from..declined);
                        placed.extend(from..declined);
                        while placed.contains(&cum) { cum += 1; }
                        high = high.max(cum);
                    }
                }
                gaps.invariants();
                prop_assert_eq!(gaps.cum(), Seq(start) + cum);
                prop_assert_eq!(gaps.high(), Seq(start) + high);
                let want: Vec<u32> = (cum..high).filter(|n| !seen.contains(n)).collect();
                let got: Vec<u32> = gaps.missing(gaps.high())
                    .flat_map(|(s, n)| (0..n).map(move |i| (s + i).from(Seq(start)) as u32))
                    .collect();
                prop_assert_eq!(got, want);
            }
        }
    }
}
