//! ACKs and NACKs on datagrams that go the same way anyhow (P1.6 "piggyback").

use super::Receiver;
use crate::path::Target;
use crate::scheme::Scheme;
use crate::sender::Sender;
use crate::time::Time;
use crate::wire::{self, Writer, flag};

/// A datagram that feedback frames may be piggybacked on.
pub struct Piggyback<'a> {
    /// Where it goes.
    pub to: Target,
    /// Bytes that the datagram has room for.
    pub room: usize,
    /// Place of the only stream whose feedback may go to this destination; `None`: any stream's
    /// may.
    pub only: Option<usize>,
    /// This node's own stream to the group, which knows the members that multicast reaches.
    pub sender: Option<&'a Sender>,
}

impl Piggyback<'_> {
    /// Whether this datagram reaches the node that a stream's feedback is for.
    pub(super) fn takes(&self, stream: &Receiver) -> bool {
        match self.to {
            Target::Node(node) => node == stream.collector,
            Target::All => self.sender.is_some_and(|r| r.hears(stream.collector)),
        }
    }
}

impl Receiver {
    /// Appends this stream's feedback to a datagram if it is due and fits. Returns its length in
    /// bytes.
    pub(super) fn piggyback(
        &mut self,
        now: Time,
        scheme: &Scheme,
        room: usize,
        head: &mut Writer<'_>,
    ) -> Option<usize> {
        // A node that waits for its children's answers has nothing to say yet.
        if self.feedback.due.is_none() || self.probed.is_some() || room < wire::FEEDBACK_LEN {
            return None;
        }
        let (start, reported) = (head.len(), self.reported_subtree);
        if !self.put_ack_and_nack(now, scheme, flag::PIGGYBACKED, (head, room)) {
            self.reported_subtree = reported;
            return None;
        }
        self.on_feedback_sent(now, scheme);
        Some(head.len() - start)
    }
}
