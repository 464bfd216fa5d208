//! The two networks that datagrams take: the network between hosts, and the memory of this host.
//! Each has a node of its own, so that neither waits for what the other cannot take. Each node is
//! told how its network behaves.
//!
//! Owns both drivers. Imports nothing from the other rooms of the communicator.

pub(crate) mod buffer;
pub(crate) mod pieces;

use std::io;

use fabricast_proto::{AddressId, Barrier, Command, Event, GroupId, NodeId, OpId, Refused, Time};

use self::buffer::BufferView;
use crate::collective::{Channel, Drivers};
use crate::driver::{Driver, Join, Step};
use crate::net::{Net, SharedMemory};
use crate::object::Object;
use crate::transport::{GroupAddress, News, Ready, Sleeper, Transport, Watch};

/// One of the two networks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub(crate) enum Network {
    InterNode,
    IntraNode,
}

impl Network {
    pub const BOTH: [Network; 2] = [Network::IntraNode, Network::InterNode];
}

/// Both networks, as one process has them.
pub(crate) struct Networks<O: Object> {
    pub far: Driver<Net, BufferView<O>>,
    /// The driver of the shared memory; `None` if this process shares memory with no other.
    pub near: Option<Driver<SharedMemory, BufferView<O>>>,
}

/// Evaluates `$do` with the driver of `$network`. A process without local ranks never uses
/// `IntraNode`.
macro_rules! on {
    ($networks:expr, $network:expr, $driver:ident => $do:expr) => {
        match ($network, &mut $networks.near) {
            (Network::IntraNode, Some($driver)) => $do,
            (Network::IntraNode, None) => unreachable!("no memory is shared"),
            (Network::InterNode, _) => {
                let $driver = &mut $networks.far;
                $do
            }
        }
    };
}

type Sent<O> = Result<(OpId, Option<BufferView<O>>), (Refused, BufferView<O>)>;
type Lend<O> = Result<OpId, (Refused, BufferView<O>)>;

impl<O: Object> Networks<O> {
    pub fn command(
        &mut self,
        network: Network,
        now: Time,
        command: Command,
    ) -> Result<(), Refused> {
        on!(self, network, driver => driver.command(now, command))
    }

    /// Broadcasts a copy of `part`, which it returns unless its bytes are not available at once.
    pub fn copy(
        &mut self,
        network: Network,
        now: Time,
        group: GroupId,
        part: BufferView<O>,
    ) -> Sent<O> {
        on!(self, network, driver => driver.copy(now, group, part))
    }

    /// Broadcasts `part` from where it is. Unless it is a copy, a caller waits until all receivers
    /// have it.
    pub fn lend(
        &mut self,
        network: Network,
        now: Time,
        group: GroupId,
        part: BufferView<O>,
    ) -> Lend<O> {
        let awaited = !matches!(part, BufferView::Copy(..));
        on!(self, network, driver => driver.lend(now, group, part, awaited))
    }

    pub fn post(
        &mut self,
        (network, root): (Network, NodeId),
        now: Time,
        group: GroupId,
        part: BufferView<O>,
    ) -> Lend<O> {
        on!(self, network, driver => driver.post(now, group, root, part))
    }

    /// Enters the next barrier of a group. `awaited`: whether a caller waits for its end.
    pub fn barrier(
        &mut self,
        network: Network,
        now: Time,
        group: GroupId,
        by: Barrier,
        awaited: bool,
    ) -> Result<OpId, Refused> {
        on!(self, network, driver => match awaited {
            true => driver.barrier(now, group, by),
            false => driver.barrier_unawaited(now, group, by),
        })
    }

    /// The part of an operation that is over, once the driver no longer reads it.
    pub fn take(&mut self, (network, op): (Network, OpId)) -> Option<BufferView<O>> {
        on!(self, network, driver => driver.take(op))
    }

    /// Whether the driver still holds the part of an operation.
    pub fn has(&mut self, (network, op): (Network, OpId)) -> bool {
        on!(self, network, driver => driver.object(op).is_some())
    }

    pub fn event(&mut self) -> Option<(Network, Event)> {
        let near = self.near.as_mut().and_then(Driver::event);
        let near = near.map(|event| (Network::IntraNode, event));
        near.or_else(|| self.far.event().map(|event| (Network::InterNode, event)))
    }

    pub fn is_quiet(&mut self, network: Network, now: Time, group: GroupId) -> bool {
        on!(self, network, driver => driver.node().is_quiet(now, group))
    }

    /// Begins to send to a multicast address, and to receive what is sent there.
    pub fn join(
        &mut self,
        network: Network,
        id: AddressId,
        address: &GroupAddress,
    ) -> io::Result<Join> {
        on!(self, network, driver => driver.join(id, address, true))
    }

    /// Neither sends to a multicast address any more nor receives what is sent there.
    pub fn leave(&mut self, network: Network, id: AddressId) {
        on!(self, network, driver => driver.transport().leave(id));
    }

    /// What the networks have told, beside datagrams.
    pub fn news(&mut self) -> Option<News> {
        let near = self.near.as_mut().and_then(Driver::news);
        near.or_else(|| self.far.news())
    }

    /// Gives up all datagrams. From now on nobody reads the objects.
    pub fn cancel(&mut self, now: Time) {
        self.far.cancel(now);
        if let Some(near) = &mut self.near {
            near.cancel(now);
        }
    }

    /// From now on, arrivals over both networks end the sleep of this thread.
    pub fn attach(&mut self, sleeper: &Sleeper) -> io::Result<Vec<Box<dyn Watch>>> {
        let near = self
            .near
            .as_mut()
            .map(|near| near.transport().attach(sleeper));
        let far = self.far.transport().attach(sleeper);
        near.into_iter().chain([far]).collect()
    }

    /// Takes note of what a sleep has seen: the next step reads only what is ready.
    pub fn woken(&mut self, ready: &Ready) {
        self.far.transport().woken(ready);
        if let Some(near) = &mut self.near {
            near.transport().woken(ready);
        }
    }

    /// Whether the network between hosts takes no more datagrams now.
    pub fn is_full(&self) -> bool {
        self.far.net().is_full()
    }

    /// Receives and sends on both networks.
    pub fn step(&mut self, now: Time) -> io::Result<Step> {
        let near = self.near.as_mut().map(|driver| driver.step(now));
        self.soonest(near, |far| far.step(now))
    }

    /// Whether nothing waits to be received, as far as the transports know.
    pub fn is_drained(&self) -> bool {
        let near = self.near.as_ref().is_none_or(|d| d.net().is_drained());
        near && self.far.net().is_drained()
    }

    /// Sends on both networks, without receiving.
    pub fn advance(&mut self, now: Time) -> io::Result<Step> {
        let near = self.near.as_mut().map(|driver| driver.advance(now, false));
        self.soonest(near, |far| far.advance(now, false))
    }

    fn soonest(
        &mut self,
        near: Option<io::Result<Step>>,
        far: impl FnOnce(&mut Driver<Net, BufferView<O>>) -> io::Result<Step>,
    ) -> io::Result<Step> {
        let near = near.transpose()?.and_then(|step| step.wake);
        let far = far(&mut self.far)?.wake;
        let wake = near.into_iter().chain(far).min();
        Ok(Step { wake })
    }
}

impl<O: Object> Drivers for Networks<O> {
    type Network = Network;
    type Object = BufferView<O>;

    fn send(&mut self, now: Time, channel: &Channel<Network>, part: BufferView<O>) -> Sent<O> {
        self.lend(channel.network, now, channel.group, part)
            .map(|op| (op, None))
    }

    fn post(&mut self, now: Time, channel: &Channel<Network>, part: BufferView<O>) -> Lend<O> {
        Networks::post(
            self,
            (channel.network, channel.node),
            now,
            channel.group,
            part,
        )
    }

    fn barrier(
        &mut self,
        now: Time,
        channel: &Channel<Network>,
        by: Barrier,
        held: bool,
    ) -> Result<OpId, Refused> {
        on!(self, channel.network, driver => match held {
            true => driver.hold(now, channel.group, by),
            false => driver.barrier(now, channel.group, by),
        })
    }

    fn release(&mut self, now: Time, channel: &Channel<Network>) -> Result<(), Refused> {
        self.command(channel.network, now, Command::Release(channel.group))
    }

    fn take(&mut self, network: Network, op: OpId) -> Option<BufferView<O>> {
        Networks::take(self, (network, op))
    }
}
