//! What the machines of addresses want done, and what they are told.

use std::collections::BTreeMap;
use std::time::Duration;

use fabricast::proto::group::{HostId, HostSet, Message, Output};
use fabricast::proto::{AddressId, Command, GroupId, Time};
use fabricast::transport::Transport;

use super::manager::{Answer, CONTEXT, Request, Step};
use super::{Event, Fault, Subnet, alarm};

/// Longest time until a host learns that the network has forgotten a membership.
const NEWS: Duration = Duration::from_millis(20);
/// Time in which senders learn from a host what the host has learnt, beside the messages' own time.
const EXCUSE: Duration = Duration::from_millis(60);
/// Longest time until a host learns of a crash.
const NOTICE: Duration = Duration::from_millis(50);
/// Time after which the coordinator knows of a communicator that has ended at all hosts.
const KNOWN: Duration = Duration::from_millis(100);
/// Communicators of a run from which on it is large, and how rarely states are looked at there.
const LARGE: usize = 100;
const SELDOM: u64 = 1024;
/// Outputs of one machine at one time before it counts as spinning.
const OUTPUTS_MAX: usize = 100_000;

impl Subnet<'_> {
    /// Executes what a host's machine wants done.
    pub(super) fn drain(&mut self, h: u32) {
        let now = self.fabric.now();
        for _ in 0..OUTPUTS_MAX {
            let host = &mut self.hosts[h as usize];
            if host.dead {
                return;
            }
            let output = host.machine.poll(now);
            match output {
                Output::Wait(until) => {
                    self.look(h);
                    let host = &mut self.hosts[h as usize];
                    if host.due != until.0 {
                        host.due = until.0;
                        if until != Time::NEVER {
                            self.fabric.alarm(until, alarm::MACHINE, h);
                        }
                    }
                    self.step_when_free(h);
                    return;
                }
                output => self.execute(h, output),
            }
        }
        self.complain(|| format!("host {h}: its machine of addresses never waits"));
    }

    /// Checks that a machine's state makes sense, and that it remembers only what its addresses and
    /// groups explain. In a large run it looks now and then.
    fn look(&mut self, h: u32) {
        self.drained += 1;
        if self.scenario.plans.len() >= LARGE && !self.drained.is_multiple_of(SELDOM) {
            return;
        }
        let machine = &self.hosts[h as usize].machine;
        machine.invariants();
        let snapshot = machine.snapshot();
        let known = self.now().saturating_sub(KNOWN.as_nanos() as u64);
        // The coordinator learns nothing while it is stopped.
        let known = match self.hosts[0].stopped > known {
            true => 0,
            false => known,
        };
        while self.ended_at.front().is_some_and(|&at| at < known) {
            self.ended_at.pop_front();
        }
        let alive = self.judge.groups.len() + self.ended_at.len();
        let addresses = self.scenario.addresses + 1;
        let most = 7 * addresses + 2 * snapshot.groups + 4 * snapshot.alive;
        let (alive, entries) = (alive as u32, snapshot.entries);
        self.entries = self.entries.max(entries.into());
        if snapshot.alive > alive || snapshot.groups > alive || entries > most {
            self.complain(|| {
                format!("host {h} remembers too much: {alive} groups exist, {snapshot:?}")
            });
        }
    }

    fn execute(&mut self, h: u32, output: Output) {
        let now = self.now();
        let id = HostId(h);
        self.trace.say(now, || format!("h{h} {output:?}"));
        match output {
            Output::Join(address) | Output::JoinAnew(address) => {
                self.attach(h, address);
                self.request(id, address, true);
            }
            Output::Leave(address) => {
                if !self.judge.crashed.contains(HostId(0)) && !self.closing {
                    self.judge.leaves(id, address);
                }
                let host = &mut self.hosts[h as usize];
                if host.attached.remove(&address) {
                    host.net().leave(address);
                }
                self.request(id, address, false);
            }
            Output::Prove { address, hosts } => self.prove(h, address, hosts),
            Output::SendBy { group, address } => self.send_by(h, group, address),
            Output::Tell { to, message } => {
                let proof = matches!(message, Message::Prove(..) | Message::Proved(..));
                self.unrest += u64::from(!proof);
                self.tell(h, to.0, Event::Tell(h, to.0, message));
            }
            Output::Ready(group) => self.ready(h, group),
            Output::Wait(_) => {}
        }
    }

    /// A host sends to a group by an address from now on, or by unicast.
    pub(super) fn send_by(&mut self, h: u32, group: GroupId, address: Option<AddressId>) {
        let (now, id) = (self.now(), HostId(h));
        let numbers = [1 << 32 | u64::from(h), u64::from(group.0), key(address)];
        self.trace.note(now, numbers, String::new);
        match address {
            Some(address) => {
                self.judge.by.insert((id, group), address);
                self.judge.sends(id, group, address);
            }
            None => _ = self.judge.by.remove(&(id, group)),
        }
        let driver = &mut self.hosts[h as usize].driver;
        let by = Command::SendBy { group, address };
        if let Err(refused) = driver.command(Time(now), by) {
            self.complain(|| format!("host {h}: {group:?} by {address:?}: {refused}"));
        }
    }

    /// A machine's timer has expired.
    pub(super) fn machine_due(&mut self, h: u32) {
        let host = &mut self.hosts[h as usize];
        if host.due == self.fabric.now().0 && host.stopped <= host.due {
            host.due = u64::MAX;
            self.drain(h);
        }
    }

    /// A host that was stopped does what is due.
    pub(super) fn resumes(&mut self, h: u32) {
        let host = &mut self.hosts[h as usize];
        let now = self.fabric.now().0;
        if host.stopped <= now {
            // What it was to do meanwhile is due now.
            (host.due, host.wake, host.alarm) = (u64::MAX, now, u64::MAX);
            self.drain(h);
            self.step_when_free(h);
        }
    }

    pub(super) fn told(&mut self, from: u32, to: u32, message: Message) {
        let now = self.fabric.now();
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        let hosts = self.scenario.hosts;
        let Some(message) = Message::decode(&bytes, hosts) else {
            return self.complain(|| format!("{message:?} cannot be read"));
        };
        // A connection ends with its host.
        if !self.hosts[from as usize].dead {
            let machine = &mut self.hosts[to as usize].machine;
            machine.message(now, HostId(from), message);
            self.drain(to);
        }
    }

    /// A request goes to the manager; requests of one host keep their order.
    fn request(&mut self, host: HostId, address: AddressId, join: bool) {
        self.unrest += 1;
        let Some(way) = self.manager.way() else {
            return;
        };
        let last = &mut self.last_request[host.0 as usize];
        let at = self.fabric.now().0 + way.as_nanos() as u64;
        *last = at.max(*last + 1);
        let at = *last;
        let request = Request {
            host,
            address,
            join,
        };
        self.at(at, Event::Request(request));
    }

    /// Plans the manager's next steps, and notes which tables are not written yet.
    pub(super) fn after_manager(&mut self) {
        for (wait, life, step) in self.manager.take() {
            self.after(wait, Event::Manager(life, step));
        }
        let now = self.now();
        for address in 0..self.unsettled.len() {
            if !self.manager.is_settled(AddressId(address as u32)) {
                self.unsettled[address] = now;
            }
        }
    }

    pub(super) fn manager_step(&mut self, life: u32, step: Step) {
        let now = self.now();
        let answer = self.manager.step(&mut self.fabric, (life, step));
        self.after_manager();
        self.trace.say(now, || format!("manager: {step:?}"));
        for address in std::mem::take(&mut self.manager.written) {
            let members = self.manager.members(address);
            self.judge.tables_changed(&self.fabric, address, &members);
        }
        if matches!(step, Step::Written { .. }) {
            for address in 0..self.answered.len() {
                let id = AddressId(address as u32);
                let was = self.answered[address];
                if was > 0 && self.manager.is_settled(id) {
                    self.lag = self.lag.max(now - was);
                    self.answered[address] = 0;
                }
            }
        }
        let Some((request, answer)) = answer else {
            return;
        };
        let kind = match answer {
            Answer::Joined => 0,
            Answer::Left => 1,
            Answer::Refused(_) => 2,
        };
        let host = u64::from(request.host.0);
        let numbers = [2 << 32 | host, request.address.0.into(), kind];
        self.trace
            .note(now, numbers, || format!("manager: {request:?} {answer:?}"));
        if answer == Answer::Left {
            self.judge.left(request.address, request.host);
        }
        if !matches!(answer, Answer::Refused(_)) {
            self.answered[request.address.0 as usize] = now;
        }
        if let Some(way) = self.manager.way() {
            self.after(way, Event::Answer(request, answer));
        }
    }

    pub(super) fn answer(&mut self, request: Request, answer: Answer) {
        let now = self.fabric.now();
        let Request { host, address, .. } = request;
        let machine = &mut self.hosts[host.0 as usize].machine;
        match answer {
            Answer::Joined => machine.joined(now, address),
            Answer::Left => machine.left(now, address),
            Answer::Refused(why) => machine.refused(now, address, why),
        }
        self.drain(host.0);
    }

    pub(super) fn lost(&mut self, h: u32, address: AddressId) {
        let now = self.fabric.now();
        self.hosts[h as usize].machine.lost(now, address);
        self.drain(h);
    }

    pub(super) fn fault(&mut self, fault: Fault) {
        let now = self.now();
        self.trace.say(now, || format!("# {fault:?}"));
        match fault {
            Fault::Crash(host) => self.crash(host),
            Fault::Stop(host, time) => {
                let until = self.fabric.now() + time;
                let stopped = &mut self.hosts[host.0 as usize].stopped;
                *stopped = until.0.max(*stopped);
                self.fabric.alarm(until, alarm::RESUME, host.0);
                // Nobody hears from it what the network has forgotten.
                let late = (time + EXCUSE).as_nanos() as u64;
                self.judge.excuse_longer(now, now + late);
            }
            Fault::PortDown(host) => {
                for address in self.manager.port_down(host) {
                    self.forgotten(host, address, Duration::ZERO);
                }
                self.after_manager();
            }
            Fault::Restart(down) => {
                let lost = self.manager.stop();
                for (&address, hosts) in &lost {
                    for host in hosts.iter() {
                        self.excuse(host, address, down + NEWS);
                    }
                }
                self.after(down, Event::Back(lost));
            }
        }
    }

    /// The manager is back, and hosts learn that they have lost their memberships.
    pub(super) fn back(&mut self, lost: BTreeMap<AddressId, HostSet>) {
        self.manager.start();
        self.after_manager();
        for (address, hosts) in lost {
            for host in hosts.iter() {
                self.forgotten(host, address, Duration::ZERO);
            }
        }
    }

    fn forgotten(&mut self, host: HostId, address: AddressId, wait: Duration) {
        let news = wait + self.within((Duration::ZERO, NEWS));
        self.excuse(host, address, news);
        self.after(news, Event::Lost(host.0, address));
    }

    /// From when no host is stopped, at the earliest.
    fn goes_on(&self) -> u64 {
        let stopped = self.hosts.iter().map(|host| host.stopped).max();
        stopped.unwrap_or(0).max(self.now())
    }

    fn excuse(&mut self, host: HostId, address: AddressId, news: Duration) {
        let until = news + EXCUSE + 4 * self.scenario.message.1;
        let until = match self.judge.crashed.contains(HostId(0)) {
            true => u64::MAX,
            false => self.goes_on() + until.as_nanos() as u64,
        };
        self.judge.forgotten(address, host, until);
    }

    fn crash(&mut self, host: HostId) {
        if !self.judge.crashed.insert(host) {
            return;
        }
        self.hosts[host.0 as usize].dead = true;
        if host == HostId(0) {
            self.judge.coordinator_crashed();
        }
        for to in 0..self.scenario.hosts {
            let wait = self.within((Duration::ZERO, NOTICE));
            self.after(wait, Event::Gone(to, host.0));
        }
        self.all_ended();
    }

    /// Whether datagrams may no longer reach a host by an address: the host has left, and the
    /// tables have followed some time ago.
    pub(super) fn has_left(&self, h: u32, address: AddressId) -> bool {
        const UNDER_WAY: u64 = 10_000_000;
        let left = !self.manager.members(address).contains(HostId(h));
        let since = self.unsettled[address.0 as usize];
        left && address != CONTEXT
            && !self.manager.is_down()
            && self.manager.is_settled(address)
            && self.now() > since + UNDER_WAY
    }
}

/// An address as a number for the trace.
fn key(address: Option<AddressId>) -> u64 {
    address.map_or(u64::MAX, |address| u64::from(address.0))
}
