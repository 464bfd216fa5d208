//! Communicators: how hosts create them, broadcast, and end with a barrier.

use std::rc::Rc;
use std::time::Duration;

use fabricast::proto::group::{Grant, HostId, HostSet};
use fabricast::proto::{AddressId, Command, GroupId, NodeId, OpId, Refused, Seq, Time};

use super::host::{Op, Part};
use super::judge::Members;
use super::{Event, Subnet};
use crate::object::{Disk, PatternObject, Place, Progress, content_of};

/// Time after which the hosts forget a communicator that has ended at all of them: repetitions of
/// the last barrier's words may be under way.
const FORGET: Duration = Duration::from_millis(20);

/// The number of a plan's communicator.
fn group_of(plan: usize) -> GroupId {
    GroupId(plan as u32 + 10)
}

fn plan_of(group: GroupId) -> usize {
    group.0 as usize - 10
}

impl Subnet<'_> {
    /// The lowest host of a new communicator takes an address, whose number goes to the members.
    pub(super) fn take(&mut self, k: usize) {
        let now = self.fabric.now();
        let plan = &self.scenario.plans[k];
        let (hosts, fails) = (plan.hosts.clone(), plan.fails);
        let alive = hosts.common(&self.judge.crashed).is_empty();
        let lowest = hosts.lowest().filter(|_| alive && hosts.len() >= 2);
        let Some(HostId(lowest)) = lowest else {
            self.left -= 1;
            return;
        };
        let machine = &mut self.hosts[lowest as usize].machine;
        let takes = !self.scenario.shared;
        let grant = takes.then(|| machine.take(now, &hosts)).flatten();
        if fails {
            if let Some(grant) = grant {
                machine.put_back(now, grant);
            }
            self.left -= 1;
            return self.drain(lowest);
        }
        self.courses[k].granted = grant.is_some();
        let members = Members {
            hosts: hosts.clone(),
            ended: HostSet::new(),
        };
        self.judge.groups.insert(group_of(k), members);
        for host in hosts.iter() {
            self.add(host.0, k);
            let event = Event::Create(host.0, k, grant);
            match host.0 == lowest {
                true => self.after(Duration::ZERO, event),
                false => self.tell(lowest, host.0, event),
            }
        }
    }

    /// A host knows the group before the members agree on it, so no packet can come too early.
    fn add(&mut self, h: u32, k: usize) {
        let (group, hosts) = (group_of(k), &self.scenario.plans[k].hosts);
        let add = Command::GroupAdd {
            group,
            address: None,
            members: hosts.iter().map(|m| self.numbering.node(m.0)).collect(),
            payload_size: self.scenario.payload_size,
            start: Seq(k as u32),
        };
        self.command(h, add);
    }

    /// The members have agreed on a communicator.
    pub(super) fn create(&mut self, h: u32, k: usize, grant: Option<Grant>) {
        let now = self.fabric.now();
        let (group, hosts) = (group_of(k), self.scenario.plans[k].hosts.clone());
        self.courses[k].created.get_or_insert(now);
        let host = &mut self.hosts[h as usize];
        host.parts.insert(group, Part::default());
        let gone = hosts.iter().any(|member| host.parted.contains(&member.0));
        if self.scenario.shared {
            return self.create_shared(h, group, &hosts);
        }
        if !host.machine.create(now, group, hosts, grant) {
            return self.complain(|| format!("host {h} refuses {group:?}"));
        }
        self.drain(h);
        if gone {
            self.abandon(h, group);
        }
    }

    /// The call that creates a communicator returns.
    pub(super) fn ready(&mut self, h: u32, group: GroupId) {
        let now = self.fabric.now();
        let k = plan_of(group);
        let compute = self.scenario.plans[k].compute;
        let Some(part) = self.hosts[h as usize].parts.get_mut(&group) else {
            return; // it has ended already
        };
        if part.ready {
            return self.complain(|| format!("host {h}: {group:?} is ready twice"));
        }
        part.ready = true;
        part.not_before = (now + compute).0;
        self.courses[k].ready = Some(now);
        self.step_when_free(h);
    }

    /// Begins what a host may begin now. Returns when it may begin more.
    pub(super) fn work(&mut self, h: u32) -> u64 {
        let now = self.now();
        let mut later = u64::MAX;
        let mut groups = Vec::new();
        for (&group, part) in &self.hosts[h as usize].parts {
            let plan = &self.scenario.plans[plan_of(group)];
            let all = plan.bcasts.len();
            let may = part.over == all || part.begun < all && part.begun - part.over < plan.ahead;
            match part.not_before > now {
                _ if !part.ready || part.barrier.is_some() || !may => {}
                true => later = later.min(part.not_before),
                false => groups.push(group),
            }
        }
        for group in groups {
            let plan = &self.scenario.plans[plan_of(group)];
            let (all, ahead, barrier) = (plan.bcasts.len(), plan.ahead, plan.barrier);
            while let Some(part) = self.hosts[h as usize].parts.get(&group) {
                if part.over == all {
                    let driver = &mut self.hosts[h as usize].driver;
                    let entered = driver.barrier(Time(now), group, barrier);
                    match (entered, self.hosts[h as usize].parts.get_mut(&group)) {
                        (Ok(op), Some(part)) => part.barrier = Some(op),
                        (why, _) => self.complain(|| format!("host {h}: barrier: {why:?}")),
                    }
                    break;
                }
                let waits = part.begun == all || part.begun - part.over >= ahead;
                if waits || !self.begin(h, group) {
                    break;
                }
            }
        }
        later
    }

    /// Sends or posts a communicator's next broadcast; `false` if the node is too busy.
    fn begin(&mut self, h: u32, group: GroupId) -> bool {
        let now = self.fabric.now();
        let host = &mut self.hosts[h as usize];
        let Some(part) = host.parts.get_mut(&group) else {
            return false;
        };
        let number = part.begun;
        let (root, len) = self.scenario.plans[plan_of(group)].bcasts[number];
        let scheme = host.driver.node().scheme();
        let room = self.scenario.payload_size;
        let payload_size = scheme.cut(len, room).map_or(room, |cut| cut.payload_size);
        let place = Place {
            world: Rc::clone(&self.world),
            bell: Rc::clone(&host.bell),
            name: (h, group.0, number as u32),
        };
        let content = content_of(self.scenario.seed, group.0 as usize, number);
        let disk = Disk::default();
        let sends = root == HostId(h);
        let progress = (!sends).then(Rc::<Progress>::default);
        let begun = match &progress {
            None => {
                let object = PatternObject::source(place, content, len, payload_size, disk);
                let sent = host.driver.bcast(now, group, Box::new(object));
                sent.map(|(op, copied)| (op, copied.is_some()))
            }
            Some(progress) => {
                let (root, p) = (self.numbering.node(root.0), Rc::clone(progress));
                let object = PatternObject::room(place, content, len, payload_size, disk, p);
                let posted = host.driver.post(now, group, root, Box::new(object));
                posted.map(|op| (op, false))
            }
        };
        let (op, copied) = match begun {
            Ok(begun) => begun,
            Err((Refused::Busy, _)) => return false,
            Err((refused, _)) => {
                self.complain(|| format!("host {h}: {group:?}, {number}: {refused}"));
                return false;
            }
        };
        part.begun += 1;
        let op_state = Op {
            group,
            number,
            copied,
            progress,
        };
        host.ops.insert(op, op_state);
        if number == 1 {
            host.machine.used_again(now, group);
        }
        if sends && number == 0 {
            let own = host.machine.status(group).is_some_and(|status| status.own);
            self.courses[plan_of(group)].own_first = Some(own);
        }
        if sends {
            host.machine.sent(now, group, len);
            self.drain(h);
        }
        true
    }

    /// An operation of a driver is complete.
    pub(super) fn complete(&mut self, h: u32, id: OpId) {
        let now = self.fabric.now();
        let host = &mut self.hosts[h as usize];
        let Some(op) = host.ops.remove(&id) else {
            let mut parts = host.parts.iter();
            let crossed = parts.find(|(_, part)| part.barrier == Some(id));
            if let Some(group) = crossed.map(|(&group, _)| group) {
                self.crossed(h, group);
            }
            return;
        };
        if !op.copied {
            host.returning.push(id);
        }
        if op.progress.is_some_and(|progress| !progress.whole()) {
            return self.complain(|| format!("host {h}: {:?}, {} not whole", op.group, op.number));
        }
        let Some(part) = host.parts.get_mut(&op.group) else {
            return self.complain(|| format!("host {h}: {:?} is over, not so {id:?}", op.group));
        };
        part.over += 1;
        let numbers = [4 << 32 | u64::from(h), op.group.0.into(), op.number as u64];
        self.trace.note(now.0, numbers, || {
            format!("h{h} {:?} has broadcast {}", op.group, op.number)
        });
        let k = plan_of(op.group);
        if part.over == self.scenario.plans[k].bcasts.len() {
            self.courses[k].done = Some(now);
        }
    }

    /// An operation of a driver has failed, which only a crash explains.
    pub(super) fn failed(&mut self, h: u32, id: OpId) {
        let host = &mut self.hosts[h as usize];
        let mut parts = host.parts.iter();
        let barrier = parts.find(|(_, part)| part.barrier == Some(id));
        let barrier = barrier.map(|(&group, _)| group);
        let group = host.ops.get(&id).map(|op| op.group).or(barrier);
        if let Some(group) = group {
            self.complain(|| format!("host {h}: {group:?}: {id:?} failed"));
        }
    }

    /// A host has left the last barrier: all members have entered it, so all have all broadcasts.
    fn crossed(&mut self, h: u32, group: GroupId) {
        let plan = &self.scenario.plans[plan_of(group)];
        let (hosts, all) = (plan.hosts.clone(), plan.bcasts.len());
        for member in hosts.iter() {
            let part = self.hosts[member.0 as usize].parts.get(&group);
            let ended = self.judge.groups[&group].ended.contains(member);
            if !ended && part.is_none_or(|part| part.over < all || part.barrier.is_none()) {
                self.complain(|| format!("host {h} leaves {group:?}, host {} has not", member.0));
            }
        }
        self.end(h, group);
    }

    /// A communicator has ended at a host.
    fn end(&mut self, h: u32, group: GroupId) {
        let now = self.fabric.now();
        self.trace
            .say(now.0, || format!("h{h} {group:?} has ended"));
        self.hosts[h as usize].parts.remove(&group);
        if let Some(members) = self.judge.groups.get_mut(&group) {
            members.ended.insert(HostId(h));
        }
        self.judge.by.remove(&(HostId(h), group));
        // What a host still repeats is for few others, and the address may go to other groups.
        let address = None;
        self.command(h, Command::SendBy { group, address });
        let machine = &mut self.hosts[h as usize].machine;
        if let Some(reason) = machine.status(group).and_then(|status| status.reason) {
            self.courses[plan_of(group)].reason = Some(reason);
        }
        machine.ended(now, group);
        self.drain(h);
        self.ended([group]);
    }

    /// A host gives a communicator up because one of its hosts is gone.
    fn abandon(&mut self, h: u32, group: GroupId) {
        let host = &mut self.hosts[h as usize];
        let mut ops = std::mem::take(&mut host.ops);
        ops.retain(|&id, op| {
            let over = op.group == group;
            if over && !op.copied {
                host.returning.push(id);
            }
            !over
        });
        host.ops = ops;
        self.end(h, group);
        self.remove_group(h, group);
    }

    /// A host has crashed: communicators may have ended at all hosts that live.
    pub(super) fn all_ended(&mut self) {
        let all: Vec<_> = self.judge.groups.keys().copied().collect();
        self.ended(all);
    }

    /// Notes which of these communicators have ended at all hosts that live.
    fn ended(&mut self, groups: impl IntoIterator<Item = GroupId>) {
        let crashed = self.judge.crashed.clone();
        let over = |m: &Members| m.hosts.without(&m.ended).without(&crashed).is_empty();
        for group in groups {
            if !self.judge.groups.get(&group).is_some_and(over) {
                continue;
            }
            let Some(members) = self.judge.groups.remove(&group) else {
                continue;
            };
            for host in members.hosts.iter() {
                self.judge.by.remove(&(host, group));
            }
            self.left -= 1;
            self.ended_at.push_back(self.now());
            if members.hosts.common(&crashed).is_empty() {
                self.after(FORGET, Event::Remove(group));
            }
        }
    }

    /// The hosts forget a communicator.
    pub(super) fn remove(&mut self, group: GroupId) {
        for host in self.scenario.plans[plan_of(group)].hosts.clone().iter() {
            let h = host.0;
            let gone = |m: HostId| self.hosts[h as usize].parted.contains(&m.0);
            let plan = &self.scenario.plans[plan_of(group)];
            if !self.hosts[h as usize].dead && !plan.hosts.iter().any(gone) {
                self.remove_group(h, group);
            }
        }
    }

    /// A host learns that another is gone.
    pub(super) fn gone(&mut self, h: u32, gone: u32) {
        let now = self.fabric.now();
        let host = &mut self.hosts[h as usize];
        if host.dead || !host.parted.insert(gone) {
            return;
        }
        let node: NodeId = self.numbering.node(gone);
        let plans = &self.scenario.plans;
        let parts = host.parts.keys().copied();
        let with = parts.filter(|&g| plans[plan_of(g)].hosts.contains(HostId(gone)));
        let with: Vec<_> = with.collect();
        for group in with {
            self.abandon(h, group);
        }
        self.command(h, Command::PeerRemove(node));
        self.hosts[h as usize].machine.gone(now, HostId(gone));
        self.drain(h);
        self.step_when_free(h);
    }

    /// A host sends a datagram to an address.
    pub(super) fn departs(&mut self, h: u32, address: AddressId, bytes: &[u8]) {
        self.judge.departs(&self.fabric, HostId(h), address, bytes);
    }
}
