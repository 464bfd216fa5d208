//! The networks on which an executor runs collectives: one driver, or several side by side.

use fabricast_proto::{Barrier, Command, GroupId, NodeId, OpId, Refused, Time};

use crate::driver::Driver;
use crate::object::Object;
use crate::transport::Transport;

/// Where a peer is: a group of two with a rank, or a group of several members.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Channel<N> {
    /// The network that has the group.
    pub network: N,
    /// The group's number, the same at all of its members.
    pub group: GroupId,
    /// The node at the other end. For a group it is the member that broadcasts.
    pub node: NodeId,
}

/// The drivers of one or more networks, as an executor uses them.
pub trait Drivers {
    /// The name of a network.
    type Network: Copy + Ord + std::fmt::Debug;
    /// The objects that the drivers move.
    type Object;

    /// Sends an object to all other members of the channel's group. Returns it at once if it was
    /// copied.
    #[allow(clippy::type_complexity)]
    fn send(
        &mut self,
        now: Time,
        channel: &Channel<Self::Network>,
        object: Self::Object,
    ) -> Result<(OpId, Option<Self::Object>), (Refused, Self::Object)>;

    /// Receives the next object of the channel's node.
    fn post(
        &mut self,
        now: Time,
        channel: &Channel<Self::Network>,
        object: Self::Object,
    ) -> Result<OpId, (Refused, Self::Object)>;

    /// Enters the next barrier of the channel's group. With `held` it stops before the last round.
    fn barrier(
        &mut self,
        now: Time,
        channel: &Channel<Self::Network>,
        by: Barrier,
        held: bool,
    ) -> Result<OpId, Refused>;

    /// Lets the barrier of the channel's group go on in which it was held.
    fn release(&mut self, now: Time, channel: &Channel<Self::Network>) -> Result<(), Refused>;

    /// The object of an operation that is over. `None`: the driver still uses it.
    fn take(&mut self, network: Self::Network, op: OpId) -> Option<Self::Object>;
}

/// A step that a driver has refused for good, so that its line stands still.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stuck {
    /// The group whose collective it is.
    pub group: GroupId,
    /// Why the driver refused it.
    pub refused: Refused,
}

impl std::fmt::Display for Stuck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a step in group {}: {}", self.group.0, self.refused)
    }
}

impl std::error::Error for Stuck {}

impl<T: Transport, O: Object> Drivers for Driver<T, O> {
    type Network = ();
    type Object = O;

    fn send(
        &mut self,
        now: Time,
        channel: &Channel<()>,
        object: O,
    ) -> Result<(OpId, Option<O>), (Refused, O)> {
        self.bcast(now, channel.group, object)
    }

    fn post(&mut self, now: Time, channel: &Channel<()>, object: O) -> Result<OpId, (Refused, O)> {
        Driver::post(self, now, channel.group, channel.node, object)
    }

    fn barrier(
        &mut self,
        now: Time,
        channel: &Channel<()>,
        by: Barrier,
        held: bool,
    ) -> Result<OpId, Refused> {
        match held {
            true => self.hold(now, channel.group, by),
            false => Driver::barrier(self, now, channel.group, by),
        }
    }

    fn release(&mut self, now: Time, channel: &Channel<()>) -> Result<(), Refused> {
        self.command(now, Command::Release(channel.group))
    }

    fn take(&mut self, (): (), op: OpId) -> Option<O> {
        Driver::take(self, op)
    }
}
