//! A toy world: hosts with ordered connections, a manager, switches whose tables lag, and a judge.
//!
//! A run draws everything from its seed. Time jumps from event to event.

mod checks;
mod faults;
pub mod judge;
pub mod manager;
pub mod scenario;

use std::collections::BTreeMap;
use std::time::Duration;

use fabricast_proto::group::{Config, Grant, Host, HostId, HostSet, Message, Output};
use fabricast_proto::rng::Rng;
use fabricast_proto::{AddressId, GroupId, Time};

use crate::seeds::{caught, variable};

use judge::{Group, Judge};
use manager::{Answer, CONTEXT, Manager, Request};
pub use scenario::Scenario;

/// What happens at a moment.
enum Event {
    Deliver(HostId, HostId, Message),
    Arrive(Request),
    Serve,
    Answer(Request, Answer),
    Follow(Request, u64),
    Proved(HostId, AddressId, HostSet),
    LostNews(HostId, AddressId),
    GoneNews(HostId, HostId),
    Wake(HostId),
    Take(HostSet),
    Create(HostId, GroupId, Option<Grant>),
    End(GroupId),
    EndAt(HostId, GroupId),
    Sent(HostId, GroupId),
    Forget(u32),
    Stop,
    GoOn(HostId),
    Crash,
}

/// A message may come this much later than its drawn delay, since messages keep their order.
const EXCUSE: Duration = Duration::from_millis(60);
/// Time in which an unnoticed loss is found by the next regular proof.
const UNNOTICED: Duration = Duration::from_secs(62);

pub struct World {
    pub scenario: Scenario,
    pub now: Time,
    rng: Rng,
    pub hosts: Vec<Option<Host>>,
    pub manager: Manager,
    pub judge: Judge,
    events: BTreeMap<(Time, u64), Event>,
    number: u64,
    /// When the last message of a connection arrives.
    last: BTreeMap<(HostId, HostId), Time>,
    last_request: BTreeMap<HostId, Time>,
    wakes: Vec<Time>,
    /// Hosts that do nothing for a while, and what has happened to them meanwhile.
    stopped: HostSet,
    kept: Vec<(HostId, Event)>,
    serving: bool,
    created: u32,
    dirty: bool,
    /// Outputs other than `Wait`, and joins, leaves and messages beside proofs.
    pub outputs: u64,
    pub unrest: u64,
    pub losses: u32,
    /// Memberships that the network forgot.
    pub forgotten: u64,
    /// Messages of the coordinator to other hosts.
    pub messages: u64,
    /// Groups that got an address by their creation, and those that sent by it at once.
    pub granted: u32,
    pub at_once: u32,
    trace: bool,
}

impl World {
    pub fn new(seed: u64, scenario: Scenario) -> World {
        let all = HostSet::first_hosts(scenario.hosts);
        let context = scenario.context_address.then(|| all.clone());
        let config = |host| Config {
            host,
            hosts: scenario.hosts,
            strategy: scenario.strategy,
            addresses: scenario.addresses,
            first: 1,
            context_address: scenario.context_address,
        };
        let hosts = all
            .iter()
            .map(|host| Some(Host::new(Time::ZERO, &config(host))));
        let mut world = World {
            now: Time::ZERO,
            rng: Rng::new(seed),
            hosts: hosts.collect(),
            manager: Manager::new(scenario.manager.clone(), context),
            judge: Judge::default(),
            events: BTreeMap::new(),
            number: 0,
            last: BTreeMap::new(),
            last_request: BTreeMap::new(),
            wakes: vec![Time::NEVER; scenario.hosts as usize],
            stopped: HostSet::new(),
            kept: Vec::new(),
            serving: false,
            created: 0,
            dirty: false,
            outputs: 0,
            unrest: 0,
            losses: 0,
            forgotten: 0,
            messages: 0,
            granted: 0,
            at_once: 0,
            trace: variable("GROUP_TRACE").is_some(),
            scenario,
        };
        for host in all.iter() {
            world.judge.proved(CONTEXT, host);
        }
        world
    }

    /// Like [`World::run`]; a panic is a failure, too.
    pub fn judge(seed: u64, scenario: Scenario) -> Result<World, String> {
        caught(|| World::run(seed, scenario))
    }

    /// Runs a whole world: groups come and go, faults happen, and at the end all is silent.
    pub fn run(seed: u64, scenario: Scenario) -> Result<World, String> {
        let mut world = World::new(seed, scenario);
        world.drain_all()?;
        world.plan();
        // Groups come and go.
        world.until(Time::ZERO + Duration::from_secs(40))?;
        // Without new groups everything settles; groups that live still have their addresses.
        world.until(Time::ZERO + Duration::from_secs(400))?;
        world.settled()?;
        let alive: Vec<_> = world.judge.groups.keys().copied().collect();
        for id in alive {
            world.after(Duration::ZERO, Event::End(id));
        }
        world.until(Time::ZERO + Duration::from_secs(800))?;
        world.returned()?;
        world.unrest = 0;
        let before = world.outputs;
        world.until(Time::ZERO + Duration::from_secs(920))?;
        world.silent(before)?;
        world.close()?;
        Ok(world)
    }

    /// Executes what all hosts want done.
    pub fn start(&mut self) -> Result<(), String> {
        self.drain_all()
    }

    /// A live host's machine.
    pub fn machine(&mut self, host: u32) -> &mut Host {
        self.hosts[host as usize].as_mut().expect("a live host")
    }

    /// Creates a group at all of its hosts at the same time.
    pub fn create(&mut self, id: u32, hosts: &HostSet) -> Result<Option<Grant>, String> {
        let (now, lowest) = (self.now, hosts.lowest().expect("a host"));
        let grant = self.machine(lowest.0).take(now, hosts);
        let group = Group {
            hosts: hosts.clone(),
            created: HostSet::new(),
            ended: HostSet::new(),
            ready: HostSet::new(),
        };
        self.judge.groups.insert(GroupId(id), group);
        for host in hosts.iter() {
            self.create_at(host, GroupId(id), grant)?;
        }
        Ok(grant)
    }

    /// Draws what happens.
    fn plan(&mut self) {
        let mut at = Duration::ZERO;
        for _ in 0..self.scenario.groups {
            // Some groups come in a burst, some after a pause.
            let pause = [0, 100, 5000, 400_000, 2_000_000][self.rng.below(5) as usize];
            at += Duration::from_micros(self.rng.below(pause + 1));
            let hosts = self.draw_hosts();
            self.after(at.min(Duration::from_secs(30)), Event::Take(hosts));
        }
        for kind in 0..self.scenario.losses {
            let at = Duration::from_millis(self.rng.below(30_000));
            self.after(at, Event::Forget(kind));
        }
        for _ in 0..self.scenario.stops {
            let at = Duration::from_millis(self.rng.below(30_000));
            self.after(at, Event::Stop);
        }
        for _ in 0..self.scenario.crashes {
            let at = Duration::from_millis(self.rng.below(30_000));
            self.after(at, Event::Crash);
        }
    }

    fn draw_hosts(&mut self) -> HostSet {
        let n = self.scenario.hosts;
        let host = |at: u32| HostId(at % n);
        match self.rng.below(6) {
            0 => HostSet::first_hosts(n),
            1 => HostSet::first_hosts(n / 2 + 1),
            2 => (n / 2..n).map(HostId).collect(),
            3 => (0..n).step_by(2).map(HostId).collect(),
            _ => {
                let count = 1 + self.rng.below(u64::from(n)) as u32;
                (0..count).map(|_| host(self.rng.bits() as u32)).collect()
            }
        }
    }

    fn after(&mut self, wait: Duration, event: Event) {
        self.number += 1;
        self.events.insert((self.now + wait, self.number), event);
    }

    fn within(&mut self, most_us: u64) -> Duration {
        Duration::from_nanos(1000 + self.rng.below(most_us * 1000 + 1))
    }

    /// Runs until a time.
    pub fn until(&mut self, end: Time) -> Result<(), String> {
        let mut steps = 0;
        while let Some((&(at, _), _)) = self.events.first_key_value()
            && at <= end
        {
            let Some((_, event)) = self.events.pop_first() else {
                break;
            };
            self.now = at;
            self.step(event)?;
            steps += 1;
            if steps > 4_000_000 {
                return Err(format!("{:?}: too many events", self.now));
            }
        }
        self.now = end;
        self.judge.senders(self.now, &self.manager)
    }

    fn step(&mut self, event: Event) -> Result<(), String> {
        let now = self.now;
        let at = match &event {
            Event::Deliver(_, at, _) => Some(*at),
            Event::Answer(request, _) => Some(request.host),
            Event::Wake(at) | Event::LostNews(at, _) | Event::GoneNews(at, _) => Some(*at),
            Event::Proved(at, ..) | Event::Create(at, ..) => Some(*at),
            Event::EndAt(at, _) | Event::Sent(at, _) => Some(*at),
            _ => None,
        };
        if let Some(at) = at.filter(|at| self.stopped.contains(*at)) {
            self.kept.push((at, event));
            return Ok(());
        }
        match event {
            Event::Deliver(from, to, message) => {
                let gone = self.judge.crashed.contains(from);
                let mut bytes = Vec::new();
                message.encode(&mut bytes);
                if bytes.len() > Message::size_max(self.scenario.hosts) {
                    return Err(format!("{message:?} is too long"));
                }
                let message = Message::decode(&bytes, self.scenario.hosts).expect("a message");
                // A connection to a host that has crashed ends before its end is known.
                if !gone && let Some(host) = self.host(to) {
                    host.message(now, from, message);
                    self.drain(to)?;
                }
            }
            Event::Arrive(request) => {
                self.manager.queue.push_back(request);
                self.serve();
            }
            Event::Serve => {
                self.serving = false;
                self.served();
                self.serve();
            }
            Event::Answer(request, answer) => {
                let Request {
                    host: to, address, ..
                } = request;
                if let Some(host) = self.host(to) {
                    match answer {
                        Answer::Joined => host.joined(now, address),
                        Answer::Left => host.left(now, address),
                        Answer::Refused(why) => host.refused(now, address, why),
                    }
                    self.drain(to)?;
                }
            }
            Event::Follow(request, number) => {
                if self.manager.follow(request, number) {
                    self.dirty = true;
                    self.judge.proven.remove(&(request.address, request.host));
                }
            }
            Event::Proved(prover, address, hosts) => self.probe(prover, address, &hosts)?,
            Event::LostNews(to, address) => {
                if let Some(host) = self.host(to) {
                    host.lost(now, address);
                    self.drain(to)?;
                }
            }
            Event::GoneNews(to, gone) => {
                if let Some(host) = self.host(to) {
                    host.gone(now, gone);
                    self.drain(to)?;
                }
            }
            Event::Wake(host) => {
                if self.wakes[host.0 as usize] <= now {
                    self.wakes[host.0 as usize] = Time::NEVER;
                    self.drain(host)?;
                }
            }
            Event::Take(hosts) => self.take(hosts)?,
            Event::Create(host, group, grant) => self.create_at(host, group, grant)?,
            Event::End(group) => self.end(group),
            Event::EndAt(host, group) => self.end_at(host, group)?,
            Event::Sent(host, group) => self.sent(host, group)?,
            Event::Forget(kind) => self.forget(kind),
            Event::Stop => {
                let host = HostId(self.rng.below(u64::from(self.scenario.hosts)) as u32);
                self.stop(host);
                let wait = self.within(20_000_000);
                self.after(wait, Event::GoOn(host));
            }
            Event::GoOn(host) => self.go_on(host),
            Event::Crash => self.crash(),
        }
        // In a large world the judge looks now and then.
        let looks = self.scenario.groups < 100 || self.number.is_multiple_of(4096);
        if looks && core::mem::take(&mut self.dirty) {
            self.judge.senders(now, &self.manager)?;
        }
        Ok(())
    }

    fn host(&mut self, host: HostId) -> Option<&mut Host> {
        self.hosts[host.0 as usize].as_mut()
    }

    fn drain_all(&mut self) -> Result<(), String> {
        for host in 0..self.scenario.hosts {
            self.drain(HostId(host))?;
        }
        Ok(())
    }

    /// Executes what a host wants done.
    fn drain(&mut self, id: HostId) -> Result<(), String> {
        let now = self.now;
        let few = self.scenario.groups < 100;
        for checked in self.number..self.number + 100_000 {
            let Some(host) = self.host(id) else {
                return Ok(());
            };
            // They look at everything, which takes long in a large world.
            if few || checked.is_multiple_of(1024) {
                host.invariants();
            }
            let output = host.poll(now);
            if self.trace && !matches!(output, Output::Wait(_)) {
                println!("{now:?} {id:?} {output:?}");
            }
            self.outputs += 1;
            match output {
                Output::Join(address) | Output::JoinAnew(address) => {
                    self.request(id, address, true)
                }
                Output::Leave(address) => {
                    if !self.judge.crashed.contains(HostId(0)) {
                        self.judge.leaves(id, address)?;
                    }
                    self.request(id, address, false);
                }
                Output::Prove { address, hosts } => {
                    let wait = self.within(3000);
                    self.after(wait, Event::Proved(id, address, hosts));
                }
                Output::SendBy { group, address } => {
                    self.judge.by.insert((id, group), address);
                    self.dirty = true;
                }
                Output::Tell { to, message } => {
                    self.messages += u64::from(id == HostId(0));
                    let proof = matches!(message, Message::Prove(..) | Message::Proved(..));
                    self.unrest += u64::from(!proof);
                    let wait = self.within(self.scenario.delay_us);
                    let key = (id, to);
                    let last = self.last.get(&key).copied().unwrap_or(Time::ZERO);
                    let at = (now + wait).max(last + Duration::from_nanos(1));
                    self.last.insert(key, at);
                    self.number += 1;
                    let event = Event::Deliver(id, to, message);
                    self.events.insert((at, self.number), event);
                }
                Output::Ready(group) => {
                    if !self
                        .judge
                        .groups
                        .get_mut(&group)
                        .is_some_and(|g| g.ready.insert(id))
                    {
                        return Err(format!("{id:?}: {group:?} is ready twice"));
                    }
                }
                Output::Wait(until) => {
                    if until <= now {
                        return Err(format!("{id:?} waits for the past"));
                    }
                    if until != Time::NEVER && self.wakes[id.0 as usize] != until {
                        self.wakes[id.0 as usize] = until;
                        self.number += 1;
                        self.events.insert((until, self.number), Event::Wake(id));
                    }
                    return Ok(());
                }
            }
        }
        Err(format!("{id:?} never waits"))
    }

    /// A request goes to the manager; requests of one host keep their order.
    fn request(&mut self, host: HostId, address: AddressId, join: bool) {
        self.unrest += 1;
        let wait = self.within(100);
        let last = self.last_request.get(&host).copied().unwrap_or(Time::ZERO);
        let at = (self.now + wait).max(last + Duration::from_nanos(1));
        self.last_request.insert(host, at);
        self.number += 1;
        let request = Request {
            host,
            address,
            join,
        };
        self.events
            .insert((at, self.number), Event::Arrive(request));
    }

    fn serve(&mut self) {
        if !self.serving && !self.manager.queue.is_empty() {
            self.serving = true;
            let wait = self.within(self.scenario.manager.service_us);
            self.after(wait, Event::Serve);
        }
    }

    fn served(&mut self) {
        let Some(served) = self.manager.serve(self.now, &mut self.rng) else {
            return;
        };
        if let Some((lag, number)) = served.table {
            self.after(lag, Event::Follow(served.request, number));
        }
        if let Some(answer) = served.answer {
            let wait = self.within(100);
            self.after(wait, Event::Answer(served.request, answer));
        }
    }

    /// Probes arrive where the tables lead, and the answers come by the same address.
    fn probe(&mut self, prover: HostId, address: AddressId, of: &HostSet) -> Result<(), String> {
        if self.judge.crashed.contains(prover) {
            return Ok(());
        }
        let reached =
            |host| self.manager.forwards(address, host) && !self.judge.crashed.contains(host);
        let reached = |host| reached(host) && !self.stopped.contains(host);
        let back = reached(prover);
        let mut answered: HostSet = of.iter().filter(|&host| back && reached(host)).collect();
        for host in of.iter() {
            if self.rng.chance(self.manager.behaviour.probes_lost) {
                answered.remove(host);
            }
        }
        for host in answered.iter() {
            self.judge.proved(address, host);
            self.judge.excused.remove(&(address, host));
        }
        if !answered.is_empty() || back && of.is_empty() {
            self.judge.proved(address, prover);
            self.judge.excused.remove(&(address, prover));
        }
        let (now, silent) = (self.now, of.without(&answered));
        if let Some(host) = self.host(prover) {
            host.proved(now, address, &silent);
        }
        self.drain(prover)
    }

    /// The lowest host of a new group takes an address; its number travels to the members.
    fn take(&mut self, hosts: HostSet) -> Result<(), String> {
        let alive = self.judge.groups.values();
        let alive = alive.filter(|group| !group.hosts.without(&group.ended).is_empty());
        let late = hosts.iter().any(|host| self.judge.crashed.contains(host));
        if alive.count() >= self.scenario.at_once || late && self.rng.chance(0.7) {
            return Ok(());
        }
        let lowest = hosts.lowest().filter(|&host| !self.stopped.contains(host));
        let (now, Some(lowest)) = (self.now, lowest) else {
            return Ok(());
        };
        let grant = self.host(lowest).and_then(|host| host.take(now, &hosts));
        self.drain(lowest)?;
        if self.rng.chance(0.05) {
            if let (Some(grant), Some(host)) = (grant, self.host(lowest)) {
                host.put_back(now, grant);
                self.drain(lowest)?;
            }
            return Ok(());
        }
        self.created += 1;
        let id = GroupId(self.created);
        let group = Group {
            hosts: hosts.clone(),
            created: HostSet::new(),
            ended: HostSet::new(),
            ready: HostSet::new(),
        };
        self.judge.groups.insert(id, group);
        // Some creations take long: the address may have gone to other groups in the meantime.
        let slow = self.rng.chance(0.1);
        for host in hosts.iter() {
            let most = if slow {
                3_000_000
            } else {
                self.scenario.delay_us
            };
            let wait = self.within(most);
            self.after(wait, Event::Create(host, id, grant));
        }
        // A third live until the end of the run.
        if self.rng.chance(0.7) {
            let most = [10_000, 500_000, 5_000_000][self.rng.below(3) as usize];
            let wait = self.within(most);
            self.after(wait, Event::End(id));
        }
        Ok(())
    }

    fn create_at(&mut self, to: HostId, id: GroupId, grant: Option<Grant>) -> Result<(), String> {
        let now = self.now;
        let Some(group) = self.judge.groups.get_mut(&id) else {
            return Ok(());
        };
        let hosts = group.hosts.clone();
        group.created.insert(to);
        if let Some(host) = self.host(to) {
            if !host.create(now, id, hosts, grant) {
                return Err(format!("{to:?} refuses {id:?}"));
            }
            self.drain(to)?;
            if let Some(grant) = grant {
                self.granted += 1;
                let by = self.judge.by.get(&(to, id)).copied().flatten();
                self.at_once += u32::from(by == Some(grant.address));
            }
            for _ in 0..self.rng.below(4) {
                let wait = self.within(4_000_000);
                self.after(wait, Event::Sent(to, id));
            }
        }
        Ok(())
    }

    /// All members enter the group's last barrier.
    fn end(&mut self, id: GroupId) {
        let Some(group) = self.judge.groups.get(&id) else {
            return;
        };
        let created = group
            .hosts
            .without(&group.created)
            .without(&self.judge.crashed);
        if !created.is_empty() {
            return self.after(Duration::from_millis(5), Event::End(id));
        }
        let hosts: Vec<_> = group.hosts.iter().collect();
        for host in hosts {
            let wait = self.within(self.scenario.delay_us * 2);
            self.after(wait, Event::EndAt(host, id));
        }
    }

    fn end_at(&mut self, at: HostId, id: GroupId) -> Result<(), String> {
        let now = self.now;
        let Some(group) = self.judge.groups.get_mut(&id) else {
            return Ok(());
        };
        if !group.ended.insert(at) {
            return Ok(());
        }
        self.judge.by.remove(&(at, id));
        if let Some(host) = self.host(at) {
            host.ended(now, id);
            self.drain(at)?;
        }
        let group = &self.judge.groups[&id];
        if group
            .hosts
            .without(&group.ended)
            .without(&self.judge.crashed)
            .is_empty()
        {
            self.judge.groups.remove(&id);
            self.judge.by.retain(|(_, group), _| *group != id);
        }
        Ok(())
    }

    fn sent(&mut self, at: HostId, id: GroupId) -> Result<(), String> {
        let (now, bytes) = (self.now, 1 + self.rng.below(1 << 20));
        let by = self.judge.by.get(&(at, id)).copied().flatten();
        if !self.judge.by.contains_key(&(at, id)) {
            return Ok(());
        }
        // A sender notices that multicast does not reach a member.
        let hosts = self.judge.groups[&id].hosts.clone();
        let silent = |a| hosts.iter().any(|host| !self.manager.forwards(a, host));
        let unreached = by.filter(|&address| silent(address));
        if let Some(host) = self.host(at) {
            host.sent(now, id, bytes);
            if let Some(address) = unreached {
                host.unreached(now, address);
            }
            self.drain(at)?;
        }
        Ok(())
    }
}
