//! Contradictions of this stream's posted operations: the receiver asks the sender before it tells
//! its caller (spec 2.13).

use core::time::Duration;
use std::collections::VecDeque;

use super::Receiver;
use crate::border::{Event, Output};
use crate::challenge::Challenge;
use crate::id::OpId;
use crate::nonce::Nonces;
use crate::time::Time;
use crate::wire::{Query, Reply};

/// Pause after a reply that the sender does not know the operation: no challenge begins in this
/// time. So forged packets can cause only one question in this time.
const CALM: Duration = Duration::from_millis(100);

impl Receiver {
    /// Begins a challenge, because a packet that bears the sender's name contradicts operation
    /// `id`, or because its last packet could only be computed from others. An operation that has a
    /// verdict or has failed is not challenged.
    pub(super) fn challenge(&mut self, now: Time, id: OpId) {
        let op = self.posted.queue.iter().find(|op| op.id == id);
        if op.is_some_and(|op| !op.mismatch && !op.vouched && !op.failed) {
            self.challenges.arise(now, id);
        }
    }

    /// When [`Receiver::query`] has something to do; [`Time::ZERO`]: at once, because the operation
    /// has ended in spite of the challenge.
    pub(super) fn query_due(&self) -> Option<Time> {
        let (id, challenge) = self.challenges.op.as_ref()?;
        let mut posted = self.posted.queue.iter();
        let is_posted = posted.any(|op| op.id == *id && !op.failed);
        Some(if is_posted {
            challenge.wake()
        } else {
            Time::ZERO
        })
    }

    /// The query that is due to the sender, if any: the packet that it asks about, and its nonce.
    pub fn query(&mut self, now: Time, nonces: &mut Nonces) -> Option<Query> {
        let (id, challenge) = self.challenges.op.as_mut()?;
        let op = self
            .posted
            .queue
            .iter()
            .find(|op| op.id == *id && !op.failed);
        let Some(op) = op.filter(|_| !challenge.is_over(now)) else {
            // The operation has ended in spite of the challenge, or the sender does not answer.
            self.challenges.clear();
            return None;
        };
        Some(Query {
            group: self.group,
            seq: op.base,
            nonce: challenge.poll(now, nonces)?,
        })
    }

    /// Takes the sender's reply, which says what it sends. Says whether this node had asked for it.
    pub fn reply(&mut self, now: Time, reply: &Reply, out: &mut VecDeque<Output>) -> bool {
        let asked = |d: &mut (OpId, Challenge)| d.1.is_answered(reply.nonce);
        let Some((id, _)) = self.challenges.op.take_if(asked) else {
            return false;
        };
        let Some(op) = self
            .posted
            .queue
            .iter_mut()
            .find(|op| op.id == id && !op.failed)
        else {
            return true;
        };
        match reply.op {
            None => self.challenges.calm = now + CALM,
            Some(meant) if meant == (op.base, op.len) => op.vouched = true,
            Some(_) => {
                op.mismatch = true;
                out.push_back(Output::Event(Event::Mismatch(id)));
            }
        }
        true
    }
}
