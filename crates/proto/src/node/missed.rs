//! Detects members that multicast does not reach, from streams too short to detect it themselves.

use std::collections::BTreeMap;

use crate::id::NodeId;

/// Streams in a row without a packet by multicast after which the node reports the member.
/// Independent losses seldom make as many.
const STREAMS: u32 = 3;

/// For each member, the number of latest streams in a row of which it has received no packet by
/// multicast.
#[derive(Default)]
pub struct Missed(BTreeMap<NodeId, u32>);

impl Missed {
    /// Records whether a stream's multicasts have reached a member. Returns true if the caller is
    /// to report the member; the count then begins anew.
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
