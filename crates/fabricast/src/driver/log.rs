//! What a driver reports to `tracing`: paths, members, and how much was retransmitted. Nothing is
//! reported per packet.

use std::time::Duration;

use fabricast_proto::{Command, Counters, Event, Node, PathState, Time};
use tracing::{Level, debug, info, warn};

/// Least time between two summaries of retransmissions.
const SUMMARY: Duration = Duration::from_secs(1);

/// What has been reported so far.
#[derive(Default)]
pub(super) struct Log {
    summarized: Counters,
    summarized_at: Time,
}

impl Log {
    /// Whether anybody listens to what is reported of commands.
    pub fn is_on() -> bool {
        tracing::enabled!(Level::INFO)
    }

    /// Reports a command that the node has taken, if it changes who is in a group.
    pub fn command(command: &Command) {
        match command {
            Command::GroupAdd { group, members, .. } => {
                debug!(group = group.0, members = members.len(), "group added");
            }
            Command::GroupRemove(group) => debug!(group = group.0, "group removed"),
            Command::MemberAdd { group, node } => {
                info!(group = group.0, node = node.0, "member admitted");
            }
            Command::MemberRemove { group, node } => {
                info!(group = group.0, node = node.0, "member removed");
            }
            Command::GroupJoin { group, sender, .. } => {
                debug!(group = group.0, sender = sender.0, "group joined");
            }
            Command::PeerRemove(node) => info!(node = node.0, "member removed"),
            Command::Unreached { group, members } => {
                let nodes: Vec<u32> = members.iter().map(|node| node.0).collect();
                info!(group = group.0, ?nodes, "unicast from the start");
            }
            _ => {}
        }
    }

    /// Reports an event of the node, but for operations that end well.
    pub fn event(event: &Event) {
        match *event {
            Event::Path {
                group,
                node,
                path_state,
            } => {
                let (group, node) = (group.0, node.0);
                match path_state {
                    PathState::Multicast => info!(group, node, "path: multicast"),
                    PathState::Unicast => {
                        info!(group, node, "path: unicast (fallback, or only receiver)")
                    }
                    PathState::Nothing => warn!(group, node, "path: no datagram arrives"),
                }
            }
            Event::Proven(group) => debug!(group = group.0, "multicast was probed"),
            Event::AddressSilent { address, node, .. } => {
                debug!(address = address.0, node = node.0, "address: no answer");
            }
            Event::AddressProven { address, .. } => debug!(address = address.0, "address: probed"),
            Event::Slow { group, node } => {
                info!(
                    group = group.0,
                    node = node.0,
                    "the receiver holds up the group"
                );
            }
            Event::Outpaced { group, node } => {
                info!(
                    group = group.0,
                    node = node.0,
                    "the others could go twice as fast"
                );
            }
            Event::Failed(op) => debug!(?op, "operation failed"),
            Event::Mismatch(op) => warn!(?op, "members mean different lengths"),
            Event::Complete(_) | Event::Arrived(_) => {}
        }
    }

    /// Reports what was retransmitted since the last summary, at most once in [`SUMMARY`].
    pub fn summary(&mut self, now: Time, node: &Node) {
        if now.since(self.summarized_at) >= SUMMARY {
            self.summarized_at = now;
            self.retransmissions(node);
        }
    }

    /// Reports what was retransmitted since the last summary, if anything was.
    pub fn retransmissions(&mut self, node: &Node) {
        if !tracing::enabled!(Level::DEBUG) {
            return;
        }
        let counters = node.counters();
        let last = std::mem::replace(&mut self.summarized, counters);
        let multicast = counters.repairs_multicast - last.repairs_multicast;
        let unicast = counters.repairs_unicast - last.repairs_unicast;
        if multicast + unicast > 0 {
            debug!(
                multicast,
                unicast,
                coded = counters.repairs_coded - last.repairs_coded,
                data = (counters.data + counters.data_unicast) - (last.data + last.data_unicast),
                "retransmissions"
            );
        }
    }
}
