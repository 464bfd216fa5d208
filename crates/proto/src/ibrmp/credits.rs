//! The credits of a reliable channel, for one end of it (P3.4, spec 7.6).
//!
//! ```text
//!   add ─→ wait-list ─→ next (costs a credit) ─→ peer ─→ received, processed ─┐
//!                         ↑ acknowledged(n)  ←─ one accumulated ACK ←──────────┘
//! ```
//! A message costs its sender a credit, which the peer's ACK returns. At zero credits messages
//! stay in the wait-list, and leave it in their order when an ACK arrives. An ACK costs no credit.
//! One ACK acknowledges a batch of messages.

use std::collections::VecDeque;

use crate::mutant::{self, Mutant};

/// Most messages that one end may have under way, as both ends of a channel have agreed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Credits {
    /// Messages that an end sends before it needs an ACK, at least 1.
    pub messages: u32,
    /// Messages that one ACK acknowledges, 1 to `messages`.
    pub batch: u32,
}

impl Credits {
    /// What P3's experiments use: 32 messages under way. One ACK acknowledges half of them, so that
    /// it arrives before the credits run out.
    pub const PAPER: Credits = Credits {
        messages: 32,
        batch: 16,
    };
}

/// A peer that breaks the rules of the channel. The driver closes the channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChannelError {
    /// The peer has sent a message without a credit.
    NoCredit,
    /// The peer has acknowledged more messages than were sent to it.
    ExcessAck,
    /// The message is of a type that only the other side sends, or not by this way.
    Direction,
}

/// What the caller of [`Channel::next`] makes of the first entry of the wait-list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Cut<M> {
    /// The message, after which the entry is done.
    Last(M),
    /// A message. The entry stays first, for more messages.
    First(M),
    /// No message: the entry is needed no more.
    Nothing,
}

/// One end of a reliable channel. `T` is an entry of the wait-list.
#[derive(Clone, Debug)]
pub struct Channel<T> {
    limit: Credits,
    /// Messages that this end may send before the next ACK arrives.
    credits: u32,
    waiting: VecDeque<T>,
    /// Messages of the peer that this end has received and not acknowledged.
    received: u32,
    /// Those of `received` that this end has processed. The next ACK is for them.
    processed: u32,
}

impl<T> Channel<T> {
    /// A channel on which nothing has been sent. Panics unless `1 <= batch <= messages`.
    pub fn new(limit: Credits) -> Channel<T> {
        assert!(1 <= limit.batch && limit.batch <= limit.messages);
        Channel {
            limit,
            credits: limit.messages,
            waiting: VecDeque::new(),
            received: 0,
            processed: 0,
        }
    }

    /// Puts an entry at the end of the wait-list.
    pub fn add(&mut self, entry: T) {
        self.waiting.push_back(entry);
    }

    /// Entries of the wait-list, in their order.
    pub fn waiting(&self) -> impl ExactSizeIterator<Item = &T> {
        self.waiting.iter()
    }

    /// Removes the entries for which `keep` is false. Returns how many they were.
    pub fn retain(&mut self, keep: impl FnMut(&T) -> bool) -> usize {
        let before = self.waiting.len();
        self.waiting.retain(keep);
        before - self.waiting.len()
    }

    /// Whether this end can send: there are entries and credits.
    pub fn can_send(&self) -> bool {
        !self.waiting.is_empty() && (self.credits > 0 || mutant::active(Mutant::CreditsIgnored))
    }

    /// The next message, for one credit; `None` without a credit or an entry. `cut` makes the
    /// message from the first entry.
    pub fn next<M>(&mut self, mut cut: impl FnMut(&mut T) -> Cut<M>) -> Option<M> {
        while self.can_send() {
            let last_first = mutant::active(Mutant::WaitListReversed);
            let at = if last_first {
                self.waiting.len() - 1
            } else {
                0
            };
            let (message, is_done) = match cut(&mut self.waiting[at]) {
                Cut::Last(message) => (Some(message), true),
                Cut::First(message) => (Some(message), false),
                Cut::Nothing => (None, true),
            };
            if is_done {
                self.waiting.remove(at);
            }
            if message.is_some() {
                self.credits = self.credits.saturating_sub(1);
                return message;
            }
        }
        None
    }

    /// An ACK for this number of messages has arrived: as many credits are back.
    ///
    /// # Errors
    /// [`ChannelError::ExcessAck`].
    pub fn acknowledged(&mut self, messages: u32) -> Result<(), ChannelError> {
        let credits = self.credits.checked_add(messages);
        let credits = credits.filter(|&credits| credits <= self.limit.messages);
        self.credits = credits.ok_or(ChannelError::ExcessAck)?;
        Ok(())
    }

    /// A message of the peer has arrived. It is processed later ([`Channel::processed`]).
    ///
    /// # Errors
    /// [`ChannelError::NoCredit`].
    pub fn received(&mut self) -> Result<(), ChannelError> {
        if self.received == self.limit.messages {
            return Err(ChannelError::NoCredit);
        }
        self.received += 1;
        Ok(())
    }

    /// This end has processed so many received messages, which an ACK may now acknowledge.
    pub fn processed(&mut self, messages: u32) {
        self.processed += messages;
        debug_assert!(self.processed <= self.received);
    }

    /// Whether an accumulated ACK is to be sent: a batch is complete.
    pub fn is_ack_due(&self) -> bool {
        let batch = match mutant::active(Mutant::AckForEach) {
            true => 1,
            false => self.limit.batch,
        };
        self.processed >= batch
    }

    /// The accumulated ACK if it is due: the number of messages that it acknowledges.
    pub fn ack(&mut self) -> Option<u32> {
        if !self.is_ack_due() {
            return None;
        }
        self.received -= self.processed;
        Some(std::mem::take(&mut self.processed))
    }

    /// Panics if an invariant is broken; tests call it after every step.
    pub fn invariants(&self) {
        assert!(self.credits <= self.limit.messages);
        assert!(self.processed <= self.received && self.received <= self.limit.messages);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Credits = Credits {
        messages: 4,
        batch: 3,
    };

    fn next(channel: &mut Channel<u32>) -> Option<u32> {
        channel.next(|&mut entry| Cut::Last(entry))
    }

    #[test]
    fn at_zero_credits_messages_wait_and_resume_in_order() {
        let mut channel = Channel::new(LIMIT);
        (0..10).for_each(|entry| channel.add(entry));
        let sent = |channel: &mut Channel<u32>| -> Vec<u32> {
            std::iter::from_fn(|| next(channel)).collect()
        };
        assert_eq!(sent(&mut channel), [0, 1, 2, 3]);
        assert_eq!(sent(&mut channel), []);
        assert_eq!(channel.acknowledged(3), Ok(()));
        assert_eq!(sent(&mut channel), [4, 5, 6]);
        channel.add(10);
        assert_eq!(channel.acknowledged(4), Ok(()));
        assert_eq!(sent(&mut channel), [7, 8, 9, 10]);
        channel.invariants();
    }

    #[test]
    fn one_accumulated_ack_for_a_batch() {
        let mut channel = Channel::<u32>::new(LIMIT);
        for _ in 0..2 {
            channel.received().expect("a credit");
            channel.processed(1);
            assert_eq!(channel.ack(), None);
        }
        channel.received().expect("a credit");
        assert_eq!(channel.ack(), None, "it is not processed yet");
        channel.processed(1);
        assert_eq!(channel.ack(), Some(3));
        assert_eq!(channel.ack(), None);
    }

    #[test]
    fn an_ack_needs_no_credit() {
        let mut channel = Channel::new(LIMIT);
        (0..5).for_each(|entry| channel.add(entry));
        while next(&mut channel).is_some() {}
        for _ in 0..3 {
            channel.received().expect("a credit");
            channel.processed(1);
        }
        assert_eq!(channel.ack(), Some(3));
    }

    #[test]
    fn a_peer_without_credits_or_with_false_acks_is_refused() {
        let mut channel = Channel::<u32>::new(LIMIT);
        (0..4).for_each(|_| channel.received().expect("a credit"));
        assert_eq!(channel.received(), Err(ChannelError::NoCredit));
        assert_eq!(channel.acknowledged(1), Err(ChannelError::ExcessAck));
        channel.add(1);
        assert_eq!(next(&mut channel), Some(1));
        assert_eq!(channel.acknowledged(u32::MAX), Err(ChannelError::ExcessAck));
        assert_eq!(channel.acknowledged(1), Ok(()));
    }

    #[test]
    fn an_entry_is_cut_into_messages_or_dropped_without_a_credit() {
        let mut channel = Channel::new(LIMIT);
        [0, 3].into_iter().for_each(|entry| channel.add(entry));
        let mut cut = || {
            channel.next(|left| match *left {
                0 => Cut::Nothing,
                1 => Cut::Last(1),
                n => {
                    *left -= 1;
                    Cut::First(n)
                }
            })
        };
        assert_eq!(
            [cut(), cut(), cut(), cut()],
            [Some(3), Some(2), Some(1), None]
        );
        assert_eq!(channel.waiting().len(), 0);
        channel.add(9);
        assert_eq!(channel.retain(|&entry| entry != 9), 1);
    }

    #[test]
    fn two_ends_that_are_full_in_both_directions_go_on() {
        // Both ends have more to send than credits, and hear each other only when neither can send.
        let mut ends = [Channel::new(LIMIT), Channel::new(LIMIT)];
        for end in &mut ends {
            (0..100).for_each(|entry| end.add(entry));
        }
        let mut arrived = [0, 0];
        while arrived != [100, 100] {
            let before = arrived;
            for from in [0, 1] {
                while let Some(entry) = next(&mut ends[from]) {
                    assert_eq!(entry, arrived[1 - from]);
                    arrived[1 - from] += 1;
                    ends[1 - from].received().expect("a credit");
                    ends[1 - from].processed(1);
                }
            }
            for from in [0, 1] {
                if let Some(messages) = ends[from].ack() {
                    ends[1 - from].acknowledged(messages).expect("no excess");
                }
            }
            assert_ne!(arrived, before, "nothing moves");
        }
    }
}
