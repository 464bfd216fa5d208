//! A host of a run with a manager: its driver, its machine of addresses, its communicators.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use fabricast::proto::group::Host as Machine;
use fabricast::proto::{AddressId, GroupId, OpId};

use crate::object::Progress;
use crate::transport::{HostDriver, SimTransport};

/// A host's part in a communicator.
#[derive(Debug, Default)]
pub(crate) struct Part {
    /// Whether the call that creates the communicator has returned.
    pub(crate) ready: bool,
    /// Broadcasts begun, and ended, at this host.
    pub(crate) begun: usize,
    pub(crate) over: usize,
    /// When the host begins its first broadcast.
    pub(crate) not_before: u64,
    /// The last barrier, once the host has entered it.
    pub(crate) barrier: Option<OpId>,
}

/// A broadcast under way at a host.
#[derive(Debug)]
pub(crate) struct Op {
    pub(crate) group: GroupId,
    pub(crate) number: usize,
    pub(crate) copied: bool,
    /// What has arrived; `None` at the root.
    pub(crate) progress: Option<Rc<Progress>>,
}

/// A host.
pub(crate) struct Host {
    pub(crate) driver: HostDriver,
    pub(crate) machine: Machine,
    pub(crate) parts: BTreeMap<GroupId, Part>,
    pub(crate) ops: BTreeMap<OpId, Op>,
    /// Operations that have ended but whose objects the driver still has.
    pub(crate) returning: Vec<OpId>,
    /// Addresses that the host's interface accepts.
    pub(crate) attached: BTreeSet<AddressId>,
    /// Hosts that this host knows to be gone.
    pub(crate) parted: BTreeSet<u32>,
    pub(crate) bell: Rc<Cell<u64>>,
    pub(crate) dead: bool,
    /// Until when the host's process is stopped.
    pub(crate) stopped: u64,
    pub(crate) cpu_free: u64,
    /// When the driver wants to step next, and when the host's latest alarm rings.
    pub(crate) wake: u64,
    pub(crate) alarm: u64,
    /// When the machine of addresses wants to be called next.
    pub(crate) due: u64,
}

impl Host {
    pub(crate) fn new(driver: HostDriver, machine: Machine) -> Host {
        Host {
            driver,
            machine,
            parts: BTreeMap::new(),
            ops: BTreeMap::new(),
            returning: Vec::new(),
            attached: BTreeSet::new(),
            parted: BTreeSet::new(),
            bell: Rc::new(Cell::new(u64::MAX)),
            dead: false,
            stopped: 0,
            cpu_free: 0,
            wake: u64::MAX,
            alarm: u64::MAX,
            due: u64::MAX,
        }
    }

    /// The host's end of the network.
    pub(crate) fn net(&mut self) -> &mut SimTransport {
        self.driver.inner_mut()
    }

    /// Asks the driver for the objects of operations that have ended.
    pub(crate) fn take_back(&mut self) {
        let driver = &mut self.driver;
        self.returning.retain(|&op| driver.take(op).is_none());
    }
}
