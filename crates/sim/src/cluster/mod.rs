//! Hosts with drivers on a fabric, and the loop that hands them what happens and has everything
//! judged. `steps` holds what a single host does; `barriers` and `relays` hold its parts in those.

mod addresses;
mod barriers;
mod hostility;
mod members;
mod relays;
mod shares;
mod steps;

use std::fmt;
use std::ops::AddAssign;
use std::rc::Rc;

use fabricast::driver::{Driver, Join};
use fabricast::proto::Counters;
use fabricast::proto::rng::Rng;
use fabricast::proto::{Command, Config, GroupId, Node, NodeId, Seq, Session, Time};
use fabricast::transport::delayed::Delayed;
use fabricast::transport::{Caps, GroupAddress};

use crate::barrier::{Crossing, FirstWords, Watchman};
use crate::check::{GROUP_FIRST, Judge};
use crate::fabric::{Fabric, Happening};
use crate::fault::{Blocked, LinkFaults};
use crate::host::{Admitted, Host, Role};
use crate::hostile::Hostile;
use crate::liar::Liar;
use crate::object::World;
use crate::scenario::Scenario;
use crate::shares::ShareJudge;
use crate::trace::Trace;
use crate::transport::{Numbering, SimTransport};

/// Kinds of alarms: the first word that [`Fabric::alarm`] gets.
pub(crate) mod alarm {
    pub(crate) const HOST: u32 = 0;
    pub(crate) const SCRIPT: u32 = 1;
    pub(crate) const HOSTILE: u32 = 2;
    pub(crate) const LIAR: u32 = 3;
}

/// A change that was planned before the run.
#[derive(Clone, Copy, Debug)]
enum Act {
    Begin,
    Heal,
    Pause(usize),
    Crash(usize),
    Readdress(usize),
    Change(usize),
    Notice(usize),
    Block(usize, bool),
    Rate(usize),
    FixedRate(usize),
}

/// How often receivers of a run have done what not every run tries.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Tried {
    /// Receivers that have joined a stream that was there before.
    pub joins: u64,
    /// Receivers that have left a stream before its end.
    pub leaves: u64,
    /// Operations that a receiver has declined.
    pub declines: u64,
    /// Files of which a receiver was told that they had expired.
    pub expired: u64,
}

impl AddAssign for Tried {
    fn add_assign(&mut self, more: Tried) {
        self.joins += more.joins;
        self.leaves += more.leaves;
        self.declines += more.declines;
        self.expired += more.expired;
    }
}

/// The result of a run in which nothing was wrong.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    /// Hash over every transition; equal for equal seeds.
    pub hash: u64,
    /// Packets, and wake-ups without packets, given to nodes.
    pub events: u64,
    /// When the last operation ended, in simulated time.
    pub done_at: Time,
    /// When each stream's root had its last completion.
    pub root_done_at: Vec<Time>,
    /// When each host's last operation ended (the start for hosts without operations).
    pub host_done_at: Vec<Time>,
    /// When each host had received the last of its data (the start if it receives none).
    pub received_at: Vec<Time>,
    /// The barriers of each plan, in order.
    pub crossings: Vec<Vec<Crossing>>,
    /// Datagrams that each host sent.
    pub sent: Vec<u64>,
    /// Bytes on the wire that each host sent.
    pub sent_bytes: Vec<u64>,
    /// Datagrams that found a host's receive queue full.
    pub not_ready: u64,
    /// Datagrams that nodes dropped because of their checksum.
    pub corrupt: u64,
    /// The nodes' own counters.
    pub counters: Vec<Counters>,
    /// What receivers have tried.
    pub tried: Tried,
}

/// Why a run failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// When the run failed, in simulated time.
    pub at: Time,
    /// What was wrong.
    pub what: String,
    /// The run only reached the scenario's bound on time or on events; nothing else was wrong.
    pub out_of_bounds: bool,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {:?}: {}", self.at, self.what)
    }
}

impl std::error::Error for Failure {}

/// A cluster under virtual time.
pub struct Cluster<'w> {
    pub(crate) scenario: Scenario,
    pub(crate) fabric: Fabric,
    pub(crate) hosts: Vec<Host>,
    pub(crate) world: Rc<World>,
    pub(crate) judge: Option<Judge>,
    share_judge: Option<ShareJudge>,
    pub(crate) watchman: Option<Watchman>,
    pub(crate) first_words: FirstWords,
    pub(crate) crossings: Vec<Vec<Crossing>>,
    pub(crate) numbering: Numbering,
    pub(crate) trace: Trace<'w>,
    pub(crate) hostile: Hostile,
    pub(crate) liar: Option<Liar>,
    /// Receivers that are admitted and have not joined.
    pub(crate) admitted: Vec<Admitted>,
    session: Session,
    script: Vec<Act>,
    /// Operations that have not ended, at hosts that are alive.
    pub(crate) left: usize,
    pub(crate) tried: Tried,
    pub(crate) events: u64,
    /// Steps that hosts have made.
    pub(crate) steps: u64,
    pub(crate) host_done_at: Vec<Time>,
    pub(crate) received_at: Vec<Time>,
    pub(crate) root_done_at: Vec<Time>,
    done_at: Option<u64>,
    watch: Option<Watch<'w>>,
    go_on: Option<&'w dyn Fn() -> bool>,
}

/// Called after every event; see [`Cluster::watch`].
type Watch<'w> = Box<dyn FnMut(&View<'_>) + 'w>;

/// The parts of a cluster that a watcher may see.
pub struct View<'a> {
    hosts: &'a [Host],
    fabric: &'a Fabric,
}

impl View<'_> {
    /// The simulated time.
    pub fn now(&self) -> Time {
        self.fabric.now()
    }

    /// The network.
    pub fn fabric(&self) -> &Fabric {
        self.fabric
    }

    /// A host's node.
    pub fn node(&self, host: usize) -> &Node {
        self.hosts[host].driver.node()
    }

    /// The rate at which a host sends to a group of the scenario.
    pub fn rate(&self, host: usize, group: usize) -> Option<u64> {
        self.node(host).rate(group_id(group))
    }
}

/// The id of a scenario's group.
pub fn group_id(group: usize) -> GroupId {
    GroupId((group + GROUP_FIRST) as u32)
}

impl<'w> Cluster<'w> {
    /// The cluster of a scenario, at time zero.
    pub fn new(scenario: &Scenario, trace: Trace<'w>) -> Cluster<'w> {
        let mut scenario = scenario.clone();
        let mut rng = Rng::new(scenario.seed);
        let numbering = Numbering {
            first: scenario.numbering.0,
            stride: scenario.numbering.1.max(1),
            hosts: scenario.hosts as u32,
        };
        let session = Session(rng.bits());
        // The queue must take at least a few datagrams: a queue that takes none would be no
        // network.
        let least = 2 * (scenario.datagram_max() as u64 + scenario.overhead);
        for link in [&mut scenario.topology.host, &mut scenario.topology.trunk] {
            link.queue = link.queue.max(least);
        }
        let mut fabric = Fabric::new(
            &scenario.topology,
            scenario.hosts,
            scenario.overhead,
            rng.bits(),
        );
        for _ in 0..scenario.groups.len() + scenario.shared_addresses {
            fabric.group();
        }
        let caps = Caps::datagrams(scenario.datagram_max());
        let receive_buffer = scenario.receive_buffer.max(2 * scenario.datagram_max());
        let hosts = (0..scenario.hosts as u32)
            .map(|h| {
                let config = Config {
                    node: numbering.node(h),
                    session,
                    scheme: scenario.scheme.clone(),
                    unexpected_max: scenario.unexpected_max,
                    backlog: (receive_buffer / caps.datagram_max) as u32,
                    rate: scenario.rate,
                    patience: scenario.patience,
                };
                let node = Node::new(config, rng.bits());
                let transport = SimTransport::new(
                    (caps, receive_buffer),
                    scenario.overhead,
                    (scenario.batch, scenario.sends_at_once),
                    scenario.back_pressure,
                    (numbering, h),
                    scenario.costs,
                );
                let transport = Delayed::new(transport, scenario.delays(h));
                Host::new(Driver::new(node, transport), rng.bits())
            })
            .collect();
        let world = Rc::<World>::default();
        let judge = scenario
            .judged
            .then(|| Judge::new(&scenario, numbering, session, Rc::clone(&world)));
        let shares = || ShareJudge::new(&scenario, group_id, Rc::clone(&world));
        let share_judge = scenario.judged.then(shares).flatten();
        let watchman = scenario
            .judged
            .then(|| Watchman::new(&scenario, Rc::clone(&world)));
        Cluster {
            fabric,
            hosts,
            world,
            judge,
            share_judge,
            watchman,
            first_words: FirstWords::default(),
            crossings: Vec::new(),
            numbering,
            trace,
            hostile: Hostile::new(session, rng.bits()),
            liar: None,
            admitted: Vec::new(),
            session,
            script: Vec::new(),
            left: 0,
            tried: Tried::default(),
            events: 0,
            steps: 0,
            host_done_at: vec![Time::ZERO; scenario.hosts],
            received_at: vec![Time::ZERO; scenario.hosts],
            root_done_at: vec![Time::ZERO; scenario.streams.len()],
            done_at: None,
            watch: None,
            go_on: None,
            scenario,
        }
    }

    /// Has `watch` called after every event.
    pub fn watch(&mut self, watch: impl FnMut(&View<'_>) + 'w) {
        self.watch = Some(Box::new(watch));
    }

    /// Ends the run, out of bounds, soon after `go_on` answers `false`.
    pub fn go_on_while(&mut self, go_on: &'w dyn Fn() -> bool) {
        self.go_on = Some(go_on);
    }

    fn is_stopped(&self) -> bool {
        // Calling `go_on` costs more than many an event does.
        const EVERY: u64 = 1024;
        self.events.is_multiple_of(EVERY) && self.go_on.is_some_and(|go_on| !go_on())
    }

    /// The hash over all transitions so far.
    pub fn hash(&self) -> u64 {
        self.trace.hash()
    }

    /// Packets, and wake-ups without packets, given to nodes so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    pub(crate) fn now(&self) -> u64 {
        self.fabric.now().0
    }

    /// Runs until everything is complete and silent, or something is wrong.
    pub fn run(&mut self) -> Result<Outcome, Failure> {
        self.plan_faults();
        self.start();
        self.begin_to_lie();
        let f = &self.scenario.faults;
        let healed = f.pauses.iter().map(|p| p.at + p.length);
        let healed = healed.max().unwrap_or_default().max(f.heal_at);
        let limit = (healed + self.scenario.complete_within).as_nanos() as u64;
        let silent_after = self.scenario.silent_after.as_nanos() as u64;
        let mut out_of_bounds = false;
        while !self.world.broken.get()
            && let Some(happening) = self.fabric.next_happening()
        {
            let now = self.now();
            self.world.now_ns.set(now);
            let stepped = self.happens(happening);
            if let Some(watch) = &mut self.watch {
                watch(&View {
                    hosts: &self.hosts,
                    fabric: &self.fabric,
                });
            }
            if self.left == 0 && self.done_at.is_none() {
                self.done_at = Some(now);
            }
            let bound = match self.done_at {
                None if now > limit => "not complete",
                Some(at) if stepped && now > at.saturating_add(silent_after) => {
                    self.fail("no silence after the end");
                    continue;
                }
                _ if self.events > self.scenario.events_max => "too many events",
                _ if self.is_stopped() => "interrupted",
                _ => continue,
            };
            out_of_bounds = !self.world.broken.get();
            self.fail(bound);
        }
        if self.left > 0 {
            self.fail("everybody waits for ever");
        }
        self.outpaced_are_found();
        self.objects_are_back();
        if let Some(what) = self.world.wrong.borrow().clone() {
            let at = self.fabric.now();
            return Err(Failure {
                at,
                what,
                out_of_bounds,
            });
        }
        let wire = |h: u32| self.fabric.stats(self.fabric.uplink(h)).bytes;
        Ok(Outcome {
            tried: self.tried,
            hash: self.trace.hash(),
            events: self.events,
            done_at: Time(self.done_at.unwrap_or(0)),
            root_done_at: self.root_done_at.clone(),
            host_done_at: self.host_done_at.clone(),
            received_at: self.received_at.clone(),
            crossings: self.crossings.clone(),
            sent: self.hosts.iter().map(|h| h.sent).collect(),
            sent_bytes: (0..self.hosts.len() as u32).map(wire).collect(),
            corrupt: self.hosts.iter().map(|h| h.driver.counters().corrupt).sum(),
            not_ready: self.hosts.iter().map(|h| h.overflowed).sum(),
            counters: self
                .hosts
                .iter()
                .map(|h| h.driver.node().counters())
                .collect(),
        })
    }

    fn fail(&self, what: &str) {
        self.world
            .complain(|| format!("{what}: {}", self.missing()));
    }

    /// Describes for people what has not ended.
    fn missing(&self) -> String {
        let mut out = Vec::new();
        for (h, host) in self.hosts.iter().enumerate().filter(|(_, h)| !h.dead) {
            for role in host.roles.iter().filter(|r| !r.ended) {
                let all = self.scenario.streams[role.stream].lens.len();
                if role.over < all {
                    let what = if role.root { "root" } else { "receiver" };
                    out.push(format!(
                        "host {h} as {what} of stream {}: {} of {all} over, {} begun",
                        role.stream, role.over, role.begun
                    ));
                }
            }
        }
        for (h, host) in self.hosts.iter().enumerate().filter(|(_, h)| !h.dead) {
            for entrant in &host.entrants {
                let rest = entrant.rest(&self.scenario.barriers);
                if rest > 0 {
                    out.push(format!("host {h}: {rest} barriers not left"));
                }
            }
        }
        let more = out.len().saturating_sub(6);
        out.truncate(6);
        if more > 0 {
            out.push(format!("and {more} more"));
        }
        if out.is_empty() {
            out.push("all is complete".into());
        }
        out.join("; ")
    }

    /// Checks that every object has been given back at the end: nothing reads or writes it any
    /// more.
    fn objects_are_back(&mut self) {
        for (h, host) in self.hosts.iter_mut().enumerate().filter(|(_, h)| !h.dead) {
            host.take_back();
            let rest = host.returning.len() + host.relay.as_ref().map_or(0, |r| r.rest());
            if rest > 0 {
                self.world
                    .complain(|| format!("host {h}: {rest} objects never released"));
            }
        }
    }

    fn start(&mut self) {
        let groups = std::mem::take(&mut self.scenario.groups);
        let adds = match &self.scenario.baseline {
            Some(b) => b.groups.len(), // the executors add the other groups
            None => groups.len(),
        };
        let changes = self.scenario.groups_that_change();
        let changes = |g: usize| changes.contains(&g);
        for (g, plan) in groups.iter().enumerate().take(adds) {
            let node = |m: &usize| self.numbering.node(*m as u32);
            let members: Vec<NodeId> = plan.members.iter().map(node).collect();
            for &m in &plan.members {
                let driver = &mut self.hosts[m].driver;
                let address = GroupAddress::Number(g as u32);
                let joined = match (plan.members.len(), changes(g)) {
                    (2, false) => Ok(Join::Done), // a group of two has no multicast address
                    _ => driver.join(Self::address(g), &address, true),
                };
                let command = Command::GroupAdd {
                    group: group_id(g),
                    address: Some(Self::address(g)),
                    members: members.clone(),
                    payload_size: plan.payload_size,
                    start: Seq(plan.start),
                };
                let added = driver.command(Time::ZERO, command);
                if joined.is_err() || added.is_err() {
                    self.world
                        .complain(|| format!("host {m}: group {g} refused: {added:?}"));
                }
            }
        }
        self.join_later();
        self.join_shared(groups.len());
        for (s, plan) in self.scenario.streams.iter().enumerate() {
            for &m in &groups[plan.group].members {
                let root = m == plan.root;
                let late = plan.posting.late.iter().find(|(h, _)| *h == m);
                let begins = match (root, late) {
                    (true, _) => plan.start,
                    (false, Some(&(_, at))) => at,
                    (false, None) => std::time::Duration::ZERO,
                };
                let last = !root && plan.posting.last.contains(&m);
                let proven = !root || self.scenario.prove.is_none();
                self.left += plan.lens.len();
                let mut role = Role::new(s, root, begins, proven);
                if last {
                    role.not_before = u64::MAX;
                }
                self.hosts[m].roles.push(role);
            }
            if let Some(patience) = self.scenario.prove {
                let group = group_id(plan.group);
                let (multicast, unicast) = (patience, patience);
                let prove = Command::Prove {
                    group,
                    multicast,
                    unicast,
                };
                if let Err(e) = self.hosts[plan.root].driver.command(Time::ZERO, prove) {
                    self.world
                        .complain(|| format!("host {}: prove refused: {e}", plan.root));
                }
            }
        }
        self.scenario.groups = groups;
        (0..self.scenario.streams.len()).for_each(|stream| self.may_outpace(stream));
        self.weigh_streams();
        self.start_baseline();
        self.start_barriers();
        for h in 0..self.hosts.len() {
            self.step_when_free(h);
        }
        for stream in 0..self.scenario.streams.len() {
            self.admit_last(stream);
        }
    }

    // ---- what happens -------------------------------------------------------------------------

    /// Handles what the fabric brings. Returns whether a host has stepped because of it.
    fn happens(&mut self, happening: Happening) -> bool {
        match happening {
            Happening::Arrive { host, packet } => self.arrive(host as usize, packet),
            Happening::Alarm { a: alarm::HOST, b } => self.rung(b as usize),
            Happening::Alarm {
                a: alarm::SCRIPT,
                b,
            } => {
                self.act(self.script[b as usize]);
                false
            }
            Happening::Alarm { a: alarm::LIAR, .. } => {
                self.lie();
                false
            }
            Happening::Alarm { .. } => {
                self.be_hostile();
                false
            }
        }
    }

    fn plan_faults(&mut self) {
        let f = self.scenario.faults.clone();
        let mut script = vec![(f.begin_at, Act::Begin), (f.heal_at, Act::Heal)];
        for (i, p) in f.pauses.iter().enumerate() {
            script.push((p.at, Act::Pause(i)));
        }
        for (i, c) in f.crashes.iter().enumerate() {
            script.push((c.at, Act::Crash(i)));
            script.push((c.at + c.noticed_after, Act::Notice(i)));
        }
        for (i, r) in self.scenario.readdressed.iter().enumerate() {
            script.push((r.at, Act::Readdress(i)));
        }
        for (i, c) in self.scenario.changes.iter().enumerate() {
            script.push((c.at, Act::Change(i)));
        }
        for (i, b) in f.blocks.iter().enumerate() {
            script.push((b.at, Act::Block(i, true)));
            if let Some(until) = b.until {
                script.push((until, Act::Block(i, false)));
            }
        }
        for (i, r) in f.rates.iter().enumerate() {
            script.push((r.at, Act::Rate(i)));
        }
        for (i, r) in self.scenario.rate_changes.iter().enumerate() {
            script.push((r.at, Act::FixedRate(i)));
        }
        for (at, act) in script {
            let at = Time(at.as_nanos() as u64);
            if at == Time::ZERO {
                self.act(act);
            } else {
                let n = self.script.len() as u32;
                self.script.push(act);
                self.fabric.alarm(at, alarm::SCRIPT, n);
            }
        }
        if let Some(mean) = f.hostile_every {
            let first = self.hostile.pause(mean.as_nanos() as u64);
            self.fabric.alarm(Time(first), alarm::HOSTILE, 0);
        }
    }

    fn act(&mut self, act: Act) {
        let now = self.now();
        self.trace.say(now, || format!("# {act:?}"));
        let f = &self.scenario.faults;
        match act {
            Act::Begin => {
                let (down, up, trunk) = (f.down, f.up, f.trunk);
                self.set_faults(down, up, trunk);
            }
            Act::Heal => {
                self.set_faults(LinkFaults::NONE, LinkFaults::NONE, LinkFaults::NONE);
            }
            Act::Pause(i) => {
                let p = f.pauses[i];
                let until = now + p.length.as_nanos() as u64;
                let host = &mut self.hosts[p.host];
                host.paused_until = host.paused_until.max(until);
            }
            Act::Crash(i) => {
                let host = &mut self.hosts[f.crashes[i].host];
                host.dead = true;
                for role in &host.roles {
                    if !role.ended {
                        let all = self.scenario.streams[role.stream].lens.len();
                        self.left -= all - role.over;
                    }
                }
                for entrant in &host.entrants {
                    self.left -= entrant.rest(&self.scenario.barriers);
                }
                for stream in 0..self.scenario.streams.len() {
                    self.admit_last(stream);
                }
            }
            Act::Readdress(i) => self.readdress(i),
            Act::Change(i) => self.change(i),
            Act::Notice(i) => {
                let gone = f.crashes[i].host;
                for h in 0..self.hosts.len() {
                    let together = |g: &crate::workload::GroupPlan| {
                        g.members.contains(&h) && g.members.contains(&gone)
                    };
                    let parted = self.hosts[h].parted.contains(&(gone as u32));
                    if h != gone && !parted && self.scenario.groups.iter().any(together) {
                        self.hosts[h].to_remove.push(gone as u32);
                        self.step_when_free(h);
                    }
                }
            }
            Act::Block(i, blocked) => {
                let link = self.fabric.downlink(f.blocks[i].host as u32);
                let what = match blocked {
                    true => f.blocks[i].what,
                    false => Blocked::Nothing,
                };
                self.fabric.block(link, what);
            }
            Act::Rate(i) => {
                let r = f.rates[i];
                for link in [
                    self.fabric.downlink(r.host as u32),
                    self.fabric.uplink(r.host as u32),
                ] {
                    self.fabric.set_rate(link, r.rate);
                }
            }
            Act::FixedRate(i) => self.change_rate(i),
        }
    }

    fn set_faults(&mut self, down: LinkFaults, up: LinkFaults, trunk: LinkFaults) {
        for h in 0..self.hosts.len() as u32 {
            self.fabric.set_faults(self.fabric.downlink(h), down);
            self.fabric.set_faults(self.fabric.uplink(h), up);
        }
        for link in self.fabric.trunks().to_vec() {
            self.fabric.set_faults(link, trunk);
        }
    }
}
