//! The phases of a run: communicators come and go, everything is returned, the context ends.

use std::time::Duration;

use fabricast::proto::Time;
use fabricast::proto::group::{HostId, HostSet};

use super::manager::CONTEXT;
use super::{Event, Outcome, Subnet, alarm};
use crate::cluster::Failure;
use crate::fabric::Happening;
use crate::fault::LinkFaults;

/// Events of one run before it counts as endless.
const EVENTS_MAX: u64 = 20_000_000;
/// Time after the last communicator in which addresses are returned, and in which there is silence
/// after that.
const SETTLE: Duration = Duration::from_secs(300);
const SILENCE: Duration = Duration::from_secs(120);
/// Time in which the hosts of a closed context leave everything.
const CLOSE: Duration = Duration::from_secs(300);

impl Subnet<'_> {
    /// Runs until the communicators have ended, and nothing more.
    pub fn work_only(&mut self) -> Result<Outcome, Failure> {
        self.start();
        self.until_done();
        self.outcome()
    }

    /// Runs until the communicators have ended, all addresses are returned and the context is
    /// closed, or something is wrong.
    pub fn run(&mut self) -> Result<Outcome, Failure> {
        self.start();
        self.until_done();
        self.set_loss(0.0);
        self.until(SETTLE);
        self.returned();
        let unrest = self.unrest;
        self.until(SILENCE);
        self.silent(unrest);
        self.close();
        self.reached();
        self.outcome()
    }

    fn start(&mut self) {
        self.set_loss(self.scenario.loss);
        self.add_proof();
        self.join_context();
        if self.scenario.shared {
            self.share_out();
        }
        for k in 0..self.scenario.plans.len() {
            self.after(self.scenario.plans[k].at, Event::Take(k));
        }
        for (at, fault) in self.scenario.faults.clone() {
            self.after(at, Event::Fault(fault));
        }
        for h in 0..self.scenario.hosts {
            self.drain(h);
        }
    }

    fn set_loss(&mut self, loss: f64) {
        let faults = LinkFaults {
            loss,
            ..LinkFaults::NONE
        };
        for h in 0..self.scenario.hosts {
            self.fabric.set_faults(self.fabric.downlink(h), faults);
            self.fabric.set_faults(self.fabric.uplink(h), faults);
        }
    }

    fn until_done(&mut self) {
        let limit = self.scenario.complete_within.as_nanos() as u64;
        let mut events = 0;
        while self.left > 0 && self.next() {
            events += 1;
            if self.now() > limit || events > EVENTS_MAX {
                let groups: Vec<_> = self.judge.groups.iter().take(4).collect();
                self.complain(|| format!("{} communicators do not end: {groups:?}", self.left));
            }
        }
        if self.left > 0 {
            self.complain(|| format!("{} communicators wait for ever", self.left));
        }
    }

    fn until(&mut self, wait: Duration) {
        let end = self.fabric.now() + wait;
        self.fabric.alarm(end, alarm::NOTHING, 0);
        let mut events = 0;
        while self.fabric.now() < end && self.next() {
            events += 1;
            if events > EVENTS_MAX {
                self.complain(|| "too many events after the end".into());
            }
        }
    }

    /// Handles what happens next. Returns false when nothing does, or something is wrong.
    fn next(&mut self) -> bool {
        if self.world.broken.get() {
            return false;
        }
        let Some(happening) = self.fabric.next_happening() else {
            return false;
        };
        self.happened += 1;
        self.world.now_ns.set(self.now());
        match happening {
            Happening::Arrive { host, packet } => self.arrive(host, packet),
            Happening::Alarm { a: alarm::HOST, b } => self.rung(b),
            Happening::Alarm {
                a: alarm::MACHINE,
                b,
            } => self.machine_due(b),
            Happening::Alarm {
                a: alarm::RESUME,
                b,
            } => self.resumes(b),
            Happening::Alarm { a: alarm::EVENT, b } => {
                if let Some(event) = self.events[b as usize].take() {
                    self.free.push(b);
                    self.happens(event);
                }
            }
            Happening::Alarm { .. } => {}
        }
        true
    }

    fn happens(&mut self, event: Event) {
        // What happens at a host that has crashed happens no more.
        let at = match &event {
            Event::Tell(_, to, _) => Some(*to),
            Event::Answer(request, _) => Some(request.host.0),
            Event::Lost(h, _) | Event::Create(h, ..) | Event::Gone(h, _) => Some(*h),
            Event::Take(k) => self.scenario.plans[*k].hosts.lowest().map(|host| host.0),
            _ => None,
        };
        if let Some(host) = at.map(|h| &self.hosts[h as usize]) {
            // What happens to a host that is stopped waits for it.
            if host.stopped > self.now() && !host.dead {
                return self.at(host.stopped, event);
            }
            if host.dead && !matches!(event, Event::Take(_)) {
                return;
            }
        }
        match event {
            Event::Tell(from, to, message) => self.told(from, to, message),
            Event::Request(request) => {
                self.manager.arrive(request);
                self.after_manager();
            }
            Event::Manager(life, step) => self.manager_step(life, step),
            Event::Answer(request, answer) => self.answer(request, answer),
            Event::Lost(h, address) => self.lost(h, address),
            Event::Back(lost) => self.back(lost),
            Event::Take(k) => self.take(k),
            Event::Create(h, k, grant) => self.create(h, k, grant),
            Event::Remove(group) => self.remove(group),
            Event::Fault(fault) => self.fault(fault),
            Event::Gone(h, gone) => self.gone(h, gone),
        }
    }

    fn live(&self) -> HostSet {
        HostSet::first_hosts(self.scenario.hosts).without(&self.judge.crashed)
    }

    /// Where the network forgets nothing, every datagram is led to all members.
    fn reached(&mut self) {
        let unreached = self.judge.unreached;
        if self.scenario.faults.is_empty() && unreached > 0 {
            self.complain(|| format!("{unreached} datagrams were not led to all members"));
        }
    }

    /// Checks that all addresses are free or in the pool.
    fn returned(&mut self) {
        let (live, alone) = (self.live(), self.judge.crashed.contains(HostId(0)));
        for host in live.iter() {
            let snapshot = self.hosts[host.0 as usize].machine.snapshot();
            if snapshot.groups != 0 || snapshot.in_use != 0 {
                self.complain(|| format!("{host:?}: groups are left: {snapshot:?}"));
            }
        }
        if alone {
            return;
        }
        let snapshot = self.hosts[0].machine.snapshot();
        let context = u32::from(self.scenario.context_address);
        let kept = snapshot.taken - context - snapshot.spare;
        // A manager with few addresses is asked for one more now and then.
        let tried = u32::from(self.is_scarce());
        let (pool, _) = self.scenario.strategy.sizes(self.scenario.hosts);
        let left = snapshot.alive + snapshot.waiting;
        if left != 0 || kept > tried || snapshot.spare > pool {
            self.complain(|| format!("addresses are not returned: {snapshot:?}"));
        }
        let shares = live.iter().map(|host| &self.hosts[host.0 as usize]);
        let shares: u32 = shares.map(|host| host.machine.snapshot().share).sum();
        if shares != snapshot.dealt {
            self.complain(|| format!("no host has them: {shares} in shares, {snapshot:?}"));
        }
        // One host that cannot join takes the pool from nobody.
        let m = &self.scenario.manager;
        let able = self.able();
        let plenty = m.limit == u32::MAX && m.denied.is_none() && m.lost == 0.0;
        if plenty && self.scenario.addresses > 8 && able.len() >= 3 && snapshot.spare < pool {
            self.complain(|| format!("the pool is not full: {snapshot:?}"));
        }
        let mut partly = 0;
        for address in self.manager.addresses() {
            let members = self.manager.members(address).common(&live);
            let some = !members.is_empty() && members != live && members != able;
            partly += u32::from(some && address != CONTEXT);
        }
        if partly > tried && live.len() >= 3 {
            self.complain(|| format!("{partly} addresses are not returned to the manager"));
        }
    }

    /// Whether the manager refuses, or does not answer, what the hosts want.
    fn is_scarce(&self) -> bool {
        let m = &self.scenario.manager;
        let lame = m.barred.or(m.unheard).is_some();
        m.limit < u32::MAX || m.denied.is_some() || m.lost > 0.0 || lame
    }

    /// The hosts that live and whose joins the manager grants.
    fn able(&self) -> HostSet {
        let m = &self.scenario.manager;
        let lame: HostSet = m.barred.or(m.unheard).into_iter().collect();
        self.live().without(&lame)
    }

    /// Checks that little has happened since `unrest` was counted.
    fn silent(&mut self, unrest: u64) {
        let unrest = self.unrest - unrest;
        let alone = self.judge.crashed.contains(HostId(0));
        // Two addresses are tried in this time. Hosts join and prove one again and again if the
        // network never says that it does not work.
        let each = match self.scenario.manager.silent_limit {
            true => 30,
            false => 20,
        };
        let most = match self.is_scarce() && !alone {
            true => 2 * each * u64::from(self.scenario.hosts),
            // A host that gets no answers goes on to ask.
            false if self.scenario.manager.unheard.is_some() => {
                4 * u64::from(self.scenario.addresses)
            }
            false => 0,
        };
        if unrest > most {
            self.complain(|| format!("{unrest} joins, leaves and messages in silence"));
        }
    }

    /// The context ends: everything is returned, and nothing happens any more.
    fn close(&mut self) {
        let now = self.fabric.now();
        self.closing = true;
        let live = self.live();
        for host in live.iter() {
            self.hosts[host.0 as usize].machine.close(now);
            self.drain(host.0);
        }
        self.until(CLOSE);
        for host in live.iter() {
            let unheard = self.scenario.manager.unheard == Some(host);
            if !self.hosts[host.0 as usize].machine.is_closed() && !unheard {
                self.complain(|| format!("{host:?} is not closed"));
            }
        }
        for address in self.manager.addresses() {
            let members = self.manager.members(address).common(&live);
            if !members.is_empty() {
                self.complain(|| format!("{address:?} has {members:?} after the end"));
            }
        }
        // A host that gets no answers goes on to ask.
        let unheard = self.scenario.manager.unheard.is_some();
        if self.fabric.next_happening().is_some() && !unheard {
            self.complain(|| "no silence after the end".into());
        }
        for host in live.iter() {
            let host = &mut self.hosts[host.0 as usize];
            host.take_back();
            if !host.returning.is_empty() {
                let rest = host.returning.len();
                self.complain(|| format!("{rest} objects never released"));
            }
        }
    }

    fn outcome(&self) -> Result<Outcome, Failure> {
        if let Some(what) = self.world.wrong.borrow().clone() {
            return Err(Failure {
                at: Time(self.now()),
                what,
                out_of_bounds: false,
            });
        }
        Ok(Outcome {
            hash: self.trace.hash(),
            courses: self.courses.clone(),
            received: self.judge.received,
            sent: self.judge.sent,
            unreached: self.judge.unreached,
            served: self.manager.served,
            smps: self.manager.smps,
            lag: Duration::from_nanos(self.lag),
            entries: self.entries,
        })
    }
}
