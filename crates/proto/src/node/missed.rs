//! Members that the first multicasts of stream after stream do not reach.
//!
//! A stream that lives long finds out by itself whether multicast reaches a member. One of a single
//! broadcast is over before, and the next would wait as long for its retransmission.

use std::collections::BTreeMap;

use crate::id::NodeId;

/// Streams in a row that must have begun so before the node reports it. Losses that are independent
/// of each other seldom make as many.
const STREAMS: u32 = 3;

/// The members, and how many streams in a row have begun so.
#[derive(Default)]
pub struct Missed(BTreeMap<NodeId, u32>);

impl Missed {
    /// Takes note whether a multicast has reached a member before it had all of a stream. Returns
    /// whether to report the member.
    pub fn note(&mut self, node: NodeId, reached: bool) -> bool {
        if reached {
            self.0.remove(&node);
            return false;
        }
        let streams = self.0.entry(node).or_default();
        *streams += 1;
        *streams >= STREAMS && self.0.remove(&node).is_some()
    }

    /// Forgets a node that is gone.
    pub fn forget(&mut self, node: NodeId) {
        self.0.remove(&node);
    }
}
