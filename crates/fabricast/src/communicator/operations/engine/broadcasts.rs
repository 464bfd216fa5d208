//! Broadcasts: one operation of one network, or a collective of several.

use fabricast_proto::{GroupId, NodeId, Refused, Time};

use super::Engine;
use super::channels::Ways;
use crate::collective::{AHEAD, Action, Channel, Pace, Part, Peer, Step};
use crate::communicator::hierarchy::schedule;
use crate::communicator::hierarchy::topology::GroupTopology;
use crate::communicator::limits::COPIES_MAX;
use crate::communicator::networks::Network;
use crate::communicator::networks::buffer::BufferView;
use crate::communicator::networks::pieces::Pieces;
use crate::communicator::operations::operation::{Op, Operation, Stage, Started};
use crate::object::Divisible;

/// Largest number of collectives of a group that are not over when a caller that waits adds one.
const COLLECTIVES_WAITED_MAX: usize = 1024;
/// Largest number of collectives of a group that are not over, however they are started. It only
/// bounds the memory of a caller that never waits.
pub(super) const COLLECTIVES_MAX: usize = 1 << 20;

/// A broadcast that was not started, and its object. `None`: nothing refuses it, but it is a
/// collective of several steps, or must wait for its turn.
type Unstarted<O> = (Option<Refused>, O);

impl<O: Divisible> Engine<O> {
    /// Starts a broadcast. At the root a short object is copied, so that its caller need not wait.
    /// While the window has no slots for the copy, a caller that `waits` is refused
    /// ([`Refused::Busy`]), and the object of any other caller is read where it is.
    pub fn bcast(
        &mut self,
        now: Time,
        (group, root): (GroupId, NodeId),
        object: O,
        waits: bool,
    ) -> Result<Started<O>, (Refused, O)> {
        self.uses_address(now, group);
        let Some(state) = self.groups.get(&group) else {
            return Err((Refused::NoGroup, object));
        };
        let len = object.len();
        let sends = root == self.rank;
        let far = self.networks.far.node();
        let payload_size = self.payload_size[Network::InterNode as usize];
        let copied = far.scheme().copies(len, payload_size);
        let copy = sends && copied && self.copied + len <= COPIES_MAX;
        let messages = self.messages(state, root, len);
        let goes_far = state.topology.is_far() && messages.is_none();
        let has_slots = !goes_far || far.has_slots(group, len);
        let is_early = goes_far && sends && self.is_early(group);
        if waits && (is_early || copy && !has_slots) {
            return Err((Refused::Busy, object));
        }
        let copy = copy && has_slots;
        let (topology, by_messages) = (&state.topology, messages.is_some());
        let one = (!by_messages && !topology.mixed).then(|| whole(topology, (root, sends), len));
        let single = match &one {
            None => Err((None, object)),
            Some(step) => self.start_single(now, group, step, object, copy),
        };
        let (op, over) = match single {
            Ok(started) => started,
            Err((Some(refused), object)) if waits || refused != Refused::Busy => {
                return Err((refused, object));
            }
            Err((_, object)) => {
                let most = match waits {
                    true => COLLECTIVES_WAITED_MAX,
                    false => COLLECTIVES_MAX,
                };
                if self.executor.count(group) >= most {
                    return Err((Refused::Busy, object));
                }
                let Some(state) = self.groups.get(&group) else {
                    return Err((Refused::NoGroup, object));
                };
                let steps = match (messages, one) {
                    (Some(steps), _) => steps,
                    (None, Some(step)) => vec![step],
                    (None, None) => {
                        schedule::broadcast(&self.hosts, &state.topology, (root, self.rank), len)
                    }
                };
                let ways = self.ways(group).filter(|_| by_messages);
                if let Some(ways) = &ways
                    && let Err(refused) = self.open_channels(ways, &steps)
                {
                    return Err((refused, object));
                }
                self.start_collective(group, steps, object, (sends, copy), ways)
            }
        };
        if sends && goes_far {
            self.sends_to(group, len);
        }
        let s = &mut self.statistics;
        let (count, bytes) = match sends {
            true => (&mut s.sent, &mut s.sent_bytes),
            false => (&mut s.received, &mut s.received_bytes),
        };
        (*count, *bytes) = (*count + 1, *bytes + len);
        let call = self.counts(group, sends.then_some(len));
        let stage = match over {
            Some(_) => Stage::Copied { copied: len },
            None => Stage::UnderWay,
        };
        let operation = Operation {
            group,
            call,
            len: Some(len),
            stage,
        };
        self.begins(op, operation);
        match over {
            Some(object) => {
                self.stream.add(now, len);
                Ok(Started::Over(object))
            }
            None => {
                self.stream.broken();
                Ok(Started::UnderWay(op))
            }
        }
    }

    /// Starts a broadcast of one step, unless an earlier one waits for its turn. Returns the
    /// object, too, if it was copied.
    fn start_single(
        &mut self,
        now: Time,
        group: GroupId,
        step: &Step,
        object: O,
        copy: bool,
    ) -> Result<(Op, Option<O>), Unstarted<O>> {
        let Step { action, peer, .. } = *step;
        let channel = channel(group, peer);
        if !self.executor.is_clear(group, action, &channel) {
            return Err((None, object));
        }
        let (network, part) = (channel.network, BufferView::Own(object));
        let started = match action {
            Action::Send if copy => self.networks.copy(network, now, group, part),
            Action::Send => {
                let op = self.networks.lend(network, now, group, part);
                op.map(|op| (op, None))
            }
            _ => {
                let root = (network, channel.node);
                let op = self.networks.post(root, now, group, part);
                op.map(|op| (op, None))
            }
        };
        match started {
            Ok((op, back)) => Ok((Op::Single(network, op), back.and_then(BufferView::own))),
            Err((refused, BufferView::Own(object))) => Err((Some(refused), object)),
            Err(_) => unreachable!("it is what was given"),
        }
    }

    /// Gives a broadcast to the executor, which begins its steps in their turn.
    fn start_collective(
        &mut self,
        group: GroupId,
        steps: Vec<Step>,
        object: O,
        (sends, copy): (bool, bool),
        ways: Option<Ways>,
    ) -> (Op, Option<O>) {
        let (buffer, back) = match (sends, copy) {
            (true, true) => (Pieces::copy(&object), Some(object)),
            (true, false) => (Pieces::sent(object), None),
            (false, _) => (Pieces::received(object, &steps), None),
        };
        let id = match ways {
            None => {
                let channel = |peer| channel(group, peer);
                self.executor
                    .add(group, Pace::Channels, steps, buffer, channel)
            }
            Some(ways) => {
                let pace = Pace::Listed { ahead: AHEAD };
                let channel = |peer| ways.channel(peer);
                self.executor.add(group, pace, steps, buffer, channel)
            }
        };
        (Op::Collective(id), back)
    }
}

/// The only step of a broadcast to a group whose members use one network.
fn whole(topology: &GroupTopology, (root, sends): (NodeId, bool), len: u64) -> Step {
    let root = root.0 as usize;
    Step {
        action: if sends { Action::Send } else { Action::Receive },
        peer: match topology.is_near() {
            true => Peer::Local { root },
            false => Peer::Group { group: 0, root },
        },
        part: Part { offset: 0, len },
        after: None,
    }
}

/// Where a peer of a group's members is.
pub(super) fn channel(group: GroupId, peer: Peer) -> Channel<Network> {
    let (network, node) = match peer {
        Peer::Local { root } => (Network::IntraNode, root),
        Peer::Rank(root) | Peer::Group { root, .. } => (Network::InterNode, root),
    };
    Channel {
        network,
        group,
        node: NodeId(node as u32),
    }
}
