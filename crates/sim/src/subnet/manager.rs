//! A subnet manager: it answers joins and leaves one by one, and writes the switches' tables later.
//!
//! It has no clock of its own. [`Manager::take`] says what happens next and when, and the caller
//! hands that back when its time has come.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use fabricast::proto::AddressId;
use fabricast::proto::group::{HostId, HostSet, Refusal};
use fabricast::proto::rng::Rng;

use crate::fabric::{Fabric, Table};

/// The context's own address, which counts for no limit.
pub(crate) const CONTEXT: AddressId = AddressId(0);

/// How a manager behaves.
#[derive(Clone, PartialEq, Debug)]
pub struct Behaviour {
    /// Least and longest time that a request takes at the manager.
    pub service: (Duration, Duration),
    /// Least and longest time that a request, or an answer, is under way between a host and the
    /// manager.
    pub way: (Duration, Duration),
    /// Least and longest time from a change of a membership until the manager has computed the
    /// tables and begins to write them.
    pub compute: (Duration, Duration),
    /// Least and longest time of an SMP and its answer.
    pub smp: (Duration, Duration),
    /// SMPs that may be under way at the same time; zero: any number.
    pub outstanding: usize,
    /// SMPs that write the table of one switch, one after another. The table changes with the last.
    pub smps: u32,
    /// Chance that an SMP is lost and sent again.
    pub smp_lost: f64,
    /// Time after which a lost SMP is sent again.
    pub smp_timeout: Duration,
    /// Addresses beside the context's that the manager has; `u32::MAX`: any number.
    pub limit: u32,
    /// Whether the manager grants an address beyond its limit and never writes its tables, as
    /// switches with IGMP snooping do.
    pub silent_limit: bool,
    /// An address that the manager denies to every host.
    pub denied: Option<AddressId>,
    /// A host that the manager denies every address but the context's.
    pub barred: Option<HostId>,
    /// A host that the manager never answers, but about the context's address.
    pub unheard: Option<HostId>,
    /// Chance that a request is lost on its way, and again that its answer is.
    pub lost: f64,
}

fn us(from: u64, to: u64) -> (Duration, Duration) {
    (Duration::from_micros(from), Duration::from_micros(to))
}

impl Behaviour {
    /// A manager as OpenSM was measured on ibsim on 2026-11-25, with 32 hosts, 8 at a leaf. An
    /// answer that waits for no other takes 48 to 100 µs, and the last of 31 that come at once 411
    /// µs. `compute`, `smp` and `smps` are fitted to how late the tables follow the last answer
    /// when 31 hosts join at once: 442, 156, 204 and 206 µs with 1, 4, 8 and 16 outstanding SMPs,
    /// and 5.5, 1.9, 0.9 and 0.8 ms with 500 µs added to each SMP. Simulated means are within a
    /// quarter.
    pub fn opensm() -> Behaviour {
        Behaviour {
            service: us(6, 16),
            way: us(21, 42),
            compute: us(60, 160),
            smp: us(40, 70),
            outstanding: 4,
            smps: 1,
            smp_lost: 0.0,
            smp_timeout: Duration::from_millis(200),
            limit: u32::MAX,
            silent_limit: false,
            denied: None,
            barred: None,
            unheard: None,
            lost: 0.0,
        }
    }

    /// The same manager with this time added to each SMP.
    pub fn slower(mut self, added: Duration) -> Behaviour {
        self.smp = (self.smp.0 + added, self.smp.1 + added);
        self
    }
}

/// A request of a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Request {
    pub(crate) host: HostId,
    pub(crate) address: AddressId,
    /// A join; otherwise a leave.
    pub(crate) join: bool,
}

/// What the manager says to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    Joined,
    Left,
    Refused(Refusal),
}

/// Something that happens at the manager at its time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// The request at the head of the queue has been served.
    Served,
    /// The tables are computed.
    Computed,
    /// A switch has answered an SMP; the number counts the SMPs of its table that are done.
    Written { switch: usize, done: u32 },
}

/// A step with the number of the manager's life in which it was planned.
pub(crate) type Planned = (Duration, u32, Step);

/// The tables that are being written.
#[derive(Debug, Default)]
struct Pass {
    /// New tables by switch.
    tables: BTreeMap<usize, Vec<(AddressId, Table)>>,
    /// Switches that wait for an SMP, and how many each has had.
    waiting: VecDeque<(usize, u32)>,
    under_way: usize,
}

/// The manager and its database.
#[derive(Debug)]
pub(crate) struct Manager {
    behaviour: Behaviour,
    rng: Rng,
    queue: VecDeque<Request>,
    serving: bool,
    members: BTreeMap<AddressId, HostSet>,
    /// Addresses whose tables may differ from the database.
    changed: BTreeSet<AddressId>,
    /// Addresses whose tables are written again even if the manager believes them to be right.
    doubted: BTreeSet<AddressId>,
    /// Tables as the manager believes them to be, for each switch.
    believed: BTreeMap<AddressId, Vec<Table>>,
    pass: Option<Pass>,
    planned: Vec<Planned>,
    /// Addresses of which a table was written by the last step.
    pub(crate) written: Vec<AddressId>,
    /// Counts the manager's restarts.
    life: u32,
    down: bool,
    /// SMPs sent.
    pub(crate) smps: u64,
    /// Requests served.
    pub(crate) served: u64,
}

impl Manager {
    pub(crate) fn new(behaviour: Behaviour, seed: u64) -> Manager {
        Manager {
            behaviour,
            rng: Rng::new(seed),
            queue: VecDeque::new(),
            serving: false,
            members: BTreeMap::new(),
            changed: BTreeSet::new(),
            doubted: BTreeSet::new(),
            believed: BTreeMap::new(),
            pass: None,
            planned: Vec::new(),
            written: Vec::new(),
            life: 0,
            down: false,
            smps: 0,
            served: 0,
        }
    }

    /// Makes these hosts members whose tables are written already.
    pub(crate) fn grant(&mut self, fabric: &mut Fabric, address: AddressId, hosts: &HostSet) {
        let tables = fabric.tables_for(hosts.iter().map(|host| host.0));
        for (switch, table) in tables.iter().enumerate() {
            fabric.set_table(address.0, switch, table.clone());
        }
        self.members.insert(address, hosts.clone());
        self.believed.insert(address, tables);
    }

    /// The members of an address in the manager's database.
    pub(crate) fn members(&self, address: AddressId) -> HostSet {
        self.members.get(&address).cloned().unwrap_or_default()
    }

    /// Addresses that have members.
    pub(crate) fn addresses(&self) -> Vec<AddressId> {
        let used = self.members.iter().filter(|(_, m)| !m.is_empty());
        used.map(|(&address, _)| address).collect()
    }

    /// Whether the switches' tables of an address are those of the database.
    pub(crate) fn is_settled(&self, address: AddressId) -> bool {
        let writing = |pass: &Pass| {
            let mut tables = pass.tables.values().flatten();
            tables.any(|(of, _)| *of == address)
        };
        !self.changed.contains(&address) && !self.pass.as_ref().is_some_and(writing)
    }

    /// Whether the manager is restarting.
    pub(crate) fn is_down(&self) -> bool {
        self.down
    }

    /// Time for a request or an answer to cross the network; `None`: it is lost.
    pub(crate) fn way(&mut self) -> Option<Duration> {
        let lost = self.rng.chance(self.behaviour.lost);
        let way = within(&mut self.rng, self.behaviour.way);
        (!lost).then_some(way)
    }

    /// A request arrives. A manager that is down loses it, and one may lose all of a host.
    pub(crate) fn arrive(&mut self, request: Request) {
        let unheard = self.behaviour.unheard == Some(request.host) && request.address != CONTEXT;
        if !self.down && !unheard {
            self.queue.push_back(request);
            self.serve();
        }
    }

    /// What was planned since the last call: after which time each step is due.
    pub(crate) fn take(&mut self) -> Vec<Planned> {
        std::mem::take(&mut self.planned)
    }

    /// A step's time has come. Returns an answer, for the host of its request.
    pub(crate) fn step(
        &mut self,
        fabric: &mut Fabric,
        (life, step): (u32, Step),
    ) -> Option<(Request, Answer)> {
        self.written.clear();
        if life != self.life || self.down {
            return None;
        }
        match step {
            Step::Served => {
                self.serving = false;
                let request = self.queue.pop_front()?;
                self.served += 1;
                let answer = self.answer(request);
                self.serve();
                self.compute();
                return Some((request, answer));
            }
            Step::Computed => self.computed(fabric),
            Step::Written { switch, done } => self.written(fabric, switch, done),
        }
        None
    }

    /// The manager ends, with all that it knew. The switches keep their tables.
    pub(crate) fn stop(&mut self) -> BTreeMap<AddressId, HostSet> {
        self.down = true;
        self.life += 1;
        self.queue.clear();
        self.serving = false;
        self.pass = None;
        self.doubted.clear();
        std::mem::take(&mut self.members)
    }

    /// The manager is back. It empties all tables, since it knows no members.
    pub(crate) fn start(&mut self) {
        self.down = false;
        self.changed = self.believed.keys().copied().collect();
        self.doubted = self.changed.clone();
        self.compute();
    }

    /// The manager learns that a host's port was down, which ends the host's memberships.
    pub(crate) fn port_down(&mut self, host: HostId) -> Vec<AddressId> {
        let mut lost = Vec::new();
        for (&address, members) in &mut self.members {
            if members.remove(host) {
                self.changed.insert(address);
                lost.push(address);
            }
        }
        self.compute();
        lost
    }

    fn plan(&mut self, range: (Duration, Duration), step: Step) {
        let after = within(&mut self.rng, range);
        self.planned.push((after, self.life, step));
    }

    fn serve(&mut self) {
        if !self.serving && !self.queue.is_empty() {
            self.serving = true;
            self.plan(self.behaviour.service, Step::Served);
        }
    }

    fn answer(&mut self, request: Request) -> Answer {
        let Request {
            host,
            address,
            join,
        } = request;
        let used = |(of, members): &(&AddressId, &HostSet)| **of != CONTEXT && !members.is_empty();
        let used = self.members.iter().filter(used).count() as u32;
        let members = self.members.entry(address).or_default();
        let full = address != CONTEXT && members.is_empty() && used >= self.behaviour.limit;
        if !join {
            return match members.remove(host) {
                true => {
                    self.changed.insert(address);
                    Answer::Left
                }
                false => Answer::Refused(Refusal::Denied),
            };
        }
        let barred = self.behaviour.barred == Some(host) && address != CONTEXT;
        if barred || self.behaviour.denied == Some(address) {
            return Answer::Refused(Refusal::Denied);
        }
        if full && !self.behaviour.silent_limit {
            return Answer::Refused(Refusal::NoAddresses);
        }
        if !full {
            if !members.insert(host) {
                // A member that joins again has reason to.
                self.doubted.insert(address);
            }
            self.changed.insert(address);
        }
        Answer::Joined
    }

    /// Begins to compute tables, unless tables are being written.
    fn compute(&mut self) {
        if !self.down && self.pass.is_none() && !self.changed.is_empty() {
            self.pass = Some(Pass::default());
            self.plan(self.behaviour.compute, Step::Computed);
        }
    }

    fn computed(&mut self, fabric: &Fabric) {
        let mut pass = Pass::default();
        for address in std::mem::take(&mut self.changed) {
            let members = self.members(address);
            let tables = fabric.tables_for(members.iter().map(|host| host.0));
            let none = vec![Table::default(); fabric.switches()];
            let before = self.believed.get(&address).unwrap_or(&none);
            let again = self.doubted.remove(&address);
            for (switch, table) in tables.iter().enumerate() {
                if before[switch] != *table || again {
                    let new = pass.tables.entry(switch).or_default();
                    new.push((address, table.clone()));
                }
            }
            self.believed.insert(address, tables);
        }
        pass.waiting = pass.tables.keys().map(|&switch| (switch, 0)).collect();
        self.pass = Some(pass);
        self.write();
    }

    /// Sends SMPs, as many as may be under way.
    fn write(&mut self) {
        let Some(mut pass) = self.pass.take() else {
            return;
        };
        let most = match self.behaviour.outstanding {
            0 => usize::MAX,
            most => most,
        };
        while pass.under_way < most
            && let Some((switch, done)) = pass.waiting.pop_front()
        {
            pass.under_way += 1;
            self.smps += 1;
            let mut range = self.behaviour.smp;
            while self.rng.chance(self.behaviour.smp_lost) {
                range.0 += self.behaviour.smp_timeout;
                range.1 += self.behaviour.smp_timeout;
            }
            let done = done + 1;
            self.plan(range, Step::Written { switch, done });
        }
        match pass.under_way {
            0 => self.compute(),
            _ => self.pass = Some(pass),
        }
    }

    fn written(&mut self, fabric: &mut Fabric, switch: usize, done: u32) {
        let Some(pass) = &mut self.pass else {
            return;
        };
        pass.under_way -= 1;
        if done < self.behaviour.smps {
            pass.waiting.push_back((switch, done));
        } else {
            for (address, table) in pass.tables.remove(&switch).into_iter().flatten() {
                fabric.set_table(address.0, switch, table);
                self.written.push(address);
            }
        }
        self.write();
    }
}

/// Draws a time of a range, its ends included.
fn within(rng: &mut Rng, (from, to): (Duration, Duration)) -> Duration {
    let range = to.saturating_sub(from).as_nanos() as u64;
    from + Duration::from_nanos(rng.below(range + 1))
}
