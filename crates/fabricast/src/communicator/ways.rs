//! The two ways that datagrams go: over the network, and through the memory of this host. Each has
//! a node of its own, so that neither waits for what the other cannot take, and each is told how
//! its way behaves.

use std::io;

use fabricast_proto::{Barrier, Command, Event, GroupId, NodeId, OpId, Refused, Time};

use super::part::Part;
use crate::driver::{Driver, Step};
use crate::net::Net;
use crate::object::Object;
use crate::transport::Transport;
use crate::transport::shm::Shm;

/// One of the two.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Way {
    Far,
    Near,
}

impl Way {
    pub const BOTH: [Way; 2] = [Way::Near, Way::Far];
}

/// Both, as one process has them.
pub(super) struct Ways<O: Object> {
    pub far: Driver<Net, Part<O>>,
    /// None: this process shares memory with no other.
    pub near: Option<Driver<Shm, Part<O>>>,
}

/// Does the same with whichever driver is meant. Nobody goes near who has no mates.
macro_rules! on {
    ($ways:expr, $way:expr, $driver:ident => $do:expr) => {
        match ($way, &mut $ways.near) {
            (Way::Near, Some($driver)) => $do,
            (Way::Near, None) => unreachable!("no memory is shared"),
            (Way::Far, _) => {
                let $driver = &mut $ways.far;
                $do
            }
        }
    };
}

type Lend<O> = Result<OpId, (Refused, Part<O>)>;

impl<O: Object> Ways<O> {
    pub fn command(&mut self, way: Way, now: Time, command: Command) -> Result<(), Refused> {
        on!(self, way, driver => driver.command(now, command))
    }

    /// Sends it, copied if it is short.
    pub fn bcast(&mut self, way: Way, now: Time, group: GroupId, part: Part<O>) -> Lend<O> {
        on!(self, way, driver => driver.bcast(now, group, part))
    }

    /// Sends it, from where it is; somebody waits until everybody has it, unless it is a copy.
    pub fn lend(&mut self, way: Way, now: Time, group: GroupId, part: Part<O>) -> Lend<O> {
        let awaited = !matches!(part, Part::Copy(..));
        on!(self, way, driver => driver.lend(now, group, part, awaited))
    }

    pub fn post(
        &mut self,
        (way, root): (Way, NodeId),
        now: Time,
        group: GroupId,
        part: Part<O>,
    ) -> Lend<O> {
        on!(self, way, driver => driver.post(now, group, root, part))
    }

    pub fn barrier(
        &mut self,
        way: Way,
        now: Time,
        group: GroupId,
        by: Barrier,
    ) -> Result<OpId, Refused> {
        on!(self, way, driver => driver.barrier(now, group, by))
    }

    /// The barrier of this host's processes, of which this one keeps the others in until it may
    /// proceed.
    pub fn hold(&mut self, now: Time, group: GroupId, by: Barrier) -> Result<OpId, Refused> {
        on!(self, Way::Near, driver => driver.hold(now, group, by))
    }

    /// The part of an operation that is over, once nobody reads it any more.
    pub fn take(&mut self, (way, op): (Way, OpId)) -> Option<Part<O>> {
        on!(self, way, driver => driver.take(op))
    }

    /// Whether the driver still has it.
    pub fn has(&mut self, (way, op): (Way, OpId)) -> bool {
        on!(self, way, driver => driver.object(op).is_some())
    }

    pub fn event(&mut self) -> Option<(Way, Event)> {
        let near = self.near.as_mut().and_then(Driver::event);
        let near = near.map(|event| (Way::Near, event));
        near.or_else(|| self.far.event().map(|event| (Way::Far, event)))
    }

    pub fn is_quiet(&mut self, way: Way, now: Time, group: GroupId) -> bool {
        on!(self, way, driver => driver.node().is_quiet(now, group))
    }

    /// Receives and sends.
    pub fn step(&mut self, now: Time) -> io::Result<Step> {
        let near = self.near.as_mut().map(|driver| driver.step(now));
        self.soonest(near, |far| far.step(now))
    }

    /// Whether nothing waits to be received, as far as is known.
    pub fn is_drained(&self) -> bool {
        let near = self.near.as_ref().is_none_or(|d| d.net().is_drained());
        near && self.far.net().is_drained()
    }

    /// Sends what is to be sent.
    pub fn advance(&mut self, now: Time) -> io::Result<Step> {
        let near = self.near.as_mut().map(|driver| driver.advance(now, false));
        self.soonest(near, |far| far.advance(now, false))
    }

    fn soonest(
        &mut self,
        near: Option<io::Result<Step>>,
        far: impl FnOnce(&mut Driver<Net, Part<O>>) -> io::Result<Step>,
    ) -> io::Result<Step> {
        let near = near.transpose()?.and_then(|step| step.wake);
        let far = far(&mut self.far)?.wake;
        let wake = near.into_iter().chain(far).min();
        Ok(Step { wake })
    }
}
