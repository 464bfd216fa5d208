//! A cluster whose hosts get multicast addresses from a subnet manager.
//!
//! Each host runs a [`fabricast::proto::group::Host`] beside its driver. Its joins and leaves go to
//! the manager, which writes the switches' tables after it has answered. Communicators of random
//! hosts are created, broadcast, and end with a barrier; a judge watches by which address hosts
//! send. `run` holds the phases of a run, `steps` what drivers do, `addresses` what the machines
//! of addresses want, `proofs` their probes, `work` the communicators, `shared` addresses without a
//! manager.

mod addresses;
pub mod curve;
mod host;
mod judge;
mod manager;
mod proofs;
mod run;
mod scenario;
mod shared;
mod steps;
mod work;

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use fabricast::driver::Driver;
use fabricast::proto::group::{self, Grant, HostId, HostSet, Message, Refusal};
use fabricast::proto::rng::Rng;
use fabricast::proto::{AddressId, Config, GroupId, Node, Scheme, Session, Time};
use fabricast::transport::delayed::Delayed;
use fabricast::transport::{Caps, GroupAddress};

use crate::fabric::Fabric;
use crate::object::World;
use crate::trace::Trace;
use crate::transport::{Numbering, SimTransport, delays};
use host::Host;
use judge::Judge;
use manager::{Answer, CONTEXT, Manager, Request};

pub use judge::Received;
pub use manager::Behaviour;
pub use scenario::{Fault, Plan, Scenario};

/// Kinds of alarms: the first word that [`Fabric::alarm`] gets.
mod alarm {
    /// A driver wants to step.
    pub(super) const HOST: u32 = 0;
    /// A machine of addresses has something to do.
    pub(super) const MACHINE: u32 = 1;
    /// An event is due.
    pub(super) const EVENT: u32 = 2;
    /// A phase of the run ends.
    pub(super) const NOTHING: u32 = 3;
    /// A host that was stopped goes on.
    pub(super) const RESUME: u32 = 4;
}

/// Something that happens beside datagrams.
#[derive(Debug)]
enum Event {
    /// A message of a machine arrives.
    Tell(u32, u32, Message),
    /// A request arrives at the manager.
    Request(Request),
    /// A step of the manager.
    Manager(u32, manager::Step),
    /// The manager's answer arrives.
    Answer(Request, Answer),
    /// A host learns that the network has forgotten a membership.
    Lost(u32, AddressId),
    /// The manager is back, and these memberships are lost.
    Back(BTreeMap<AddressId, HostSet>),
    /// The lowest host creates a communicator, and then each host does.
    Take(usize),
    Create(u32, usize, Option<Grant>),
    /// A communicator has ended at all hosts.
    Remove(GroupId),
    /// A fault, and the news of a crash at a host.
    Fault(Fault),
    Gone(u32, u32),
}

/// When a communicator did what.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Course {
    /// When its first host called the function that creates it.
    pub created: Option<Time>,
    /// When that call returned at the last host.
    pub ready: Option<Time>,
    /// When the last broadcast had ended at its last host.
    pub done: Option<Time>,
    /// Whether its lowest host had an address at hand.
    pub granted: bool,
    /// Whether the first broadcast left by an address of exactly its hosts.
    pub own_first: Option<bool>,
    /// Why it had no address of its own when it ended, if its lowest host was told.
    pub reason: Option<Refusal>,
}

/// The result of a run in which nothing was wrong.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    /// Hash over every transition; equal for equal seeds.
    pub hash: u64,
    /// Each communicator's course; empty for one that was not created.
    pub courses: Vec<Course>,
    /// Datagrams by multicast that hosts received.
    pub received: Received,
    /// Datagrams by multicast that hosts sent to communicators.
    pub sent: u64,
    /// Those that the tables did not lead to all hosts of their group.
    pub unreached: u64,
    /// Requests that the manager served.
    pub served: u64,
    /// SMPs that the manager sent.
    pub smps: u64,
    /// Longest time from the manager's last answer for an address until its tables had followed.
    pub lag: Duration,
    /// Most entries that the collections of one machine of addresses had.
    pub entries: u64,
}

/// A cluster with a manager under virtual time.
pub struct Subnet<'w> {
    scenario: Scenario,
    fabric: Fabric,
    hosts: Vec<Host>,
    manager: Manager,
    judge: Judge,
    world: Rc<World>,
    numbering: Numbering,
    rng: Rng,
    trace: Trace<'w>,
    events: Vec<Option<Event>>,
    free: Vec<u32>,
    /// When the last message of a connection arrives, and a host's last request.
    last: BTreeMap<(u32, u32), u64>,
    last_request: Vec<u64>,
    /// What each host proves: of which hosts, and those that have not answered.
    proofs: BTreeMap<(u32, AddressId), (HostSet, HostSet)>,
    courses: Vec<Course>,
    /// Communicators that have not ended.
    left: usize,
    /// When communicators ended lately, so that the coordinator may not know it.
    ended_at: VecDeque<u64>,
    /// When the tables of each address were last known to differ from the manager's database.
    unsettled: Vec<u64>,
    /// When the manager last changed the members of each address.
    answered: Vec<u64>,
    lag: u64,
    /// Joins, leaves and messages beside those of proofs.
    unrest: u64,
    closing: bool,
    /// Events of the whole run, and how often a machine of addresses had nothing more to do.
    happened: u64,
    drained: u64,
    entries: u64,
}

impl<'w> Subnet<'w> {
    /// The cluster of a scenario, at time zero.
    ///
    /// # Panics
    ///
    /// If the scenario has fewer than 3 hosts or more than 64.
    pub fn new(scenario: &Scenario, trace: Trace<'w>) -> Subnet<'w> {
        let scenario = scenario.clone();
        assert!((3..=64).contains(&scenario.hosts));
        let mut rng = Rng::new(scenario.seed);
        let numbering = Numbering {
            first: 100,
            stride: 3,
            hosts: scenario.hosts,
        };
        let session = Session(rng.bits());
        let overhead = 42;
        let count = scenario.hosts as usize;
        let mut fabric = Fabric::new(&scenario.topology, count, overhead, rng.bits());
        for _ in 0..=scenario.addresses {
            let group = fabric.group();
            fabric.manage(group);
        }
        let scheme = Scheme::auto();
        let datagram_max = scenario.payload_size as usize + scheme.data_overhead();
        let datagram_max = datagram_max.max(fabricast::proto::limits::HEAD_MAX);
        let (caps, receive_buffer) = (Caps::datagrams(datagram_max), 2 << 20);
        let hosts = (0..scenario.hosts).map(|h| {
            let config = Config {
                node: numbering.node(h),
                session,
                scheme: scheme.clone(),
                unexpected_max: 256,
                backlog: (receive_buffer / datagram_max) as u32,
                rate: scenario.rate,
                patience: Duration::from_secs(3600),
            };
            let node = Node::new(config, rng.bits());
            let transport = SimTransport::new(
                (caps, receive_buffer),
                overhead,
                (64, usize::MAX),
                true,
                (numbering, h),
                scenario.costs,
            );
            let config = group::Config {
                host: HostId(h),
                hosts: scenario.hosts,
                strategy: scenario.strategy,
                addresses: scenario.addresses,
                first: 1,
                context_address: scenario.context_address,
            };
            let machine = group::Host::new(Time::ZERO, &config);
            let delayed = Delayed::new(transport, delays(None, scenario.seed, h));
            Host::new(Driver::new(node, delayed), machine)
        });
        let hosts = hosts.collect();
        let world = Rc::<World>::default();
        let manager = Manager::new(scenario.manager.clone(), rng.bits());
        Subnet {
            fabric,
            hosts,
            manager,
            judge: Judge::new(Rc::clone(&world)),
            world,
            numbering,
            rng,
            trace,
            events: Vec::new(),
            free: Vec::new(),
            last: BTreeMap::new(),
            last_request: vec![0; count],
            proofs: BTreeMap::new(),
            courses: vec![Course::default(); scenario.plans.len()],
            left: scenario.plans.len(),
            ended_at: VecDeque::new(),
            unsettled: vec![0; scenario.addresses as usize + 1],
            answered: vec![0; scenario.addresses as usize + 1],
            lag: 0,
            unrest: 0,
            closing: false,
            happened: 0,
            drained: 0,
            entries: 0,
            scenario,
        }
    }

    /// The time.
    pub fn now(&self) -> u64 {
        self.fabric.now().0
    }

    /// Hash over every transition so far.
    pub fn hash(&self) -> u64 {
        self.trace.hash()
    }

    /// Events so far.
    pub fn events(&self) -> u64 {
        self.happened
    }

    fn complain(&self, what: impl FnOnce() -> String) {
        self.world.complain(what);
    }

    /// Has an event happen after some time.
    fn after(&mut self, wait: Duration, event: Event) {
        let at = self.now() + wait.as_nanos() as u64;
        self.at(at, event);
    }

    fn at(&mut self, at: u64, event: Event) {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.events.push(None);
                self.events.len() as u32 - 1
            }
        };
        self.events[slot as usize] = Some(event);
        self.fabric.alarm(Time(at), alarm::EVENT, slot);
    }

    fn within(&mut self, (from, to): (Duration, Duration)) -> Duration {
        let range = to.saturating_sub(from).as_nanos() as u64;
        from + Duration::from_nanos(self.rng.below(range + 1))
    }

    /// When the next message of a connection arrives, which keeps messages in their order.
    fn message_at(&mut self, from: u32, to: u32) -> u64 {
        let at = self.now() + self.within(self.scenario.message).as_nanos() as u64;
        let last = self.last.entry((from, to)).or_default();
        *last = at.max(*last + 1);
        *last
    }

    /// Sends a message by the connection between two hosts.
    fn tell(&mut self, from: u32, to: u32, event: Event) {
        let at = self.message_at(from, to);
        self.at(at, event);
    }

    /// All hosts have the context's address from the start.
    fn join_context(&mut self) {
        if !self.scenario.context_address {
            return;
        }
        let all = HostSet::first_hosts(self.scenario.hosts);
        self.manager.grant(&mut self.fabric, CONTEXT, &all);
        for host in all.iter() {
            self.attach(host.0, CONTEXT);
            self.judge.proved(CONTEXT, host);
        }
    }

    /// The host's interface accepts an address from now on.
    fn attach(&mut self, h: u32, address: AddressId) {
        let host = &mut self.hosts[h as usize];
        if host.attached.insert(address) {
            let number = GroupAddress::Number(address.0);
            if let Err(error) = host.driver.join(address, &number, true) {
                self.complain(|| format!("host {h}: {address:?}: {error}"));
            }
        }
    }
}
