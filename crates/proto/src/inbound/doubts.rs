//! What contradicts this stream's operations as they were posted: the root is asked before the
//! caller is told (spec 2.13).

use super::*;
use crate::doubt::Doubt;
use crate::nonce::Nonces;
use crate::wire::{Query, Reply};

/// After the root has not known of an operation, no doubt arises for this time: one question in it
/// is all that forged packets can cause.
const CALM: Duration = Duration::from_millis(100);

/// The operation that a packet has contradicted, and when new doubts may arise.
#[derive(Clone, Debug, Default)]
pub(super) struct Doubts {
    op: Option<(OpId, Doubt)>,
    calm: Time,
}

impl Doubts {
    /// When [`Inbound::query`] has something to do.
    pub(super) fn wake(&self) -> Option<Time> {
        self.op.as_ref().map(|(_, doubt)| doubt.wake())
    }

    /// Nothing is doubted any more.
    pub(super) fn clear(&mut self) {
        self.op = None;
    }

    /// A packet contradicts operation `op`.
    fn arise(&mut self, now: Time, op: OpId) {
        if self.op.is_none() && now >= self.calm {
            self.op = Some((op, Doubt::new(now)));
        }
    }
}

impl Inbound {
    /// A packet that bears the root's name contradicts the operation `id`.
    pub(super) fn doubt(&mut self, now: Time, id: OpId) {
        let op = self.ops.iter().find(|op| op.id == id);
        if op.is_some_and(|op| !op.mismatch && !op.vouched && !op.failed) {
            self.doubts.arise(now, id);
        }
    }

    /// A question to the root that is due: about which packet, and its nonce.
    pub fn query(&mut self, now: Time, nonces: &mut Nonces) -> Option<Query> {
        let (id, doubt) = self.doubts.op.as_mut()?;
        let op = self.ops.iter().find(|op| op.id == *id && !op.failed);
        let Some(op) = op.filter(|_| !doubt.is_over(now)) else {
            // It has come to its end in spite of the doubt, or the root does not answer.
            self.doubts.clear();
            return None;
        };
        Some(Query {
            group: self.group,
            seq: op.base,
            nonce: doubt.poll(now, nonces)?,
        })
    }

    /// The root says what it sends. Says whether it was asked.
    pub fn reply(&mut self, now: Time, reply: &Reply, out: &mut VecDeque<Output>) -> bool {
        let asked = |d: &mut (OpId, Doubt)| d.1.is_answered(reply.nonce);
        let Some((id, _)) = self.doubts.op.take_if(asked) else {
            return false;
        };
        let Some(op) = self.ops.iter_mut().find(|op| op.id == id && !op.failed) else {
            return true;
        };
        match reply.op {
            None => self.doubts.calm = now + CALM,
            Some(meant) if meant == (op.base, op.len) => op.vouched = true,
            Some(_) => {
                op.mismatch = true;
                out.push_back(Output::Event(Event::Mismatch(id)));
            }
        }
        true
    }
}
