//! A host of a cluster: its driver, its application's parts in streams, its processor.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use fabricast::proto::rng::Rng;
use fabricast::proto::{Admission, OpId};

use crate::barrier::Entrant;
use crate::baseline::Relay;
use crate::transport::{HostDriver, SimTransport};

/// A host's part in a stream.
#[derive(Debug)]
pub(crate) struct Role {
    pub(crate) stream: usize,
    pub(crate) root: bool,
    /// Operations begun (root) or posted.
    pub(crate) begun: usize,
    /// Operations that have ended at this host.
    pub(crate) over: usize,
    /// Time before which the host begins no operation of this role.
    pub(crate) not_before: u64,
    /// Whether the group is proven; a root waits for that.
    pub(crate) proven: bool,
    /// The other side has been given up; nothing more is expected of it.
    pub(crate) ended: bool,
    /// The host has left the group: what ends now ended before.
    pub(crate) gone: bool,
}

/// An operation under way at a host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Op {
    pub(crate) role: usize,
    pub(crate) number: usize,
    /// The driver has copied the object and returned it.
    pub(crate) copied: bool,
}

/// A receiver that its root has admitted and that has not joined yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admitted {
    pub(crate) stream: usize,
    pub(crate) host: usize,
    pub(crate) admission: Admission,
    /// The first operation that the receiver gets.
    pub(crate) from: usize,
}

impl Role {
    pub(crate) fn new(stream: usize, root: bool, begins: Duration, proven: bool) -> Role {
        Role {
            stream,
            root,
            begun: 0,
            over: 0,
            not_before: ns(begins),
            proven,
            ended: false,
            gone: false,
        }
    }
}

/// A host: its driver, its application, its processor.
pub(crate) struct Host {
    pub(crate) driver: HostDriver,
    pub(crate) roles: Vec<Role>,
    /// Its parts in barriers.
    pub(crate) entrants: Vec<Entrant>,
    /// Its part in a baseline, which drives the roles.
    pub(crate) relay: Option<Box<Relay>>,
    pub(crate) ops: BTreeMap<OpId, Op>,
    /// Operations that have ended but whose objects the driver still has.
    pub(crate) returning: Vec<OpId>,
    /// Peers to remove as soon as the host runs.
    pub(crate) to_remove: Vec<u32>,
    /// Peers with which the host has parted.
    pub(crate) parted: Vec<u32>,
    pub(crate) bell: Rc<Cell<u64>>,
    pub(crate) rng: Rng,
    pub(crate) dead: bool,
    pub(crate) paused_until: u64,
    pub(crate) cpu_free: u64,
    /// When the processor is done with what the last step received.
    pub(crate) received_until: u64,
    /// When the host wants to step next.
    pub(crate) wake: u64,
    /// When the host's latest alarm rings.
    pub(crate) alarm: u64,
    pub(crate) round_at: u64,
    pub(crate) rounds: u32,
    pub(crate) sent: u64,
    pub(crate) overflowed: u64,
}

impl Host {
    pub(crate) fn new(driver: HostDriver, seed: u64) -> Host {
        Host {
            driver,
            roles: Vec::new(),
            entrants: Vec::new(),
            relay: None,
            ops: BTreeMap::new(),
            returning: Vec::new(),
            to_remove: Vec::new(),
            parted: Vec::new(),
            bell: Rc::new(Cell::new(u64::MAX)),
            rng: Rng::new(seed),
            dead: false,
            paused_until: 0,
            cpu_free: 0,
            received_until: 0,
            wake: u64::MAX,
            alarm: u64::MAX,
            round_at: u64::MAX,
            rounds: 0,
            sent: 0,
            overflowed: 0,
        }
    }

    /// The host's end of the network.
    pub(crate) fn net(&mut self) -> &mut SimTransport {
        self.driver.inner_mut()
    }

    /// When the processor is done with what the last step received.
    pub(crate) fn received_until(&self) -> u64 {
        self.received_until
    }

    /// Asks the driver for the objects of operations that have ended.
    pub(crate) fn take_back(&mut self) {
        let driver = &mut self.driver;
        self.returning.retain(|&op| {
            let object = driver.take(op);
            let waits = object.is_none();
            object.into_iter().for_each(|object| object.overwrite());
            waits
        });
    }
}

/// Draws how long a host thinks, at most `most`; in nanoseconds.
pub(crate) fn think(rng: &mut Rng, most: Duration) -> u64 {
    match ns(most) {
        0 => 0,
        most => rng.below(most),
    }
}

pub(crate) fn ns(d: Duration) -> u64 {
    d.as_nanos() as u64
}
