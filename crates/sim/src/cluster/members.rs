//! Members join and leave a group in the midst of a run.

use std::rc::Rc;
use std::time::Duration;

use fabricast::proto::{Command, NodeId, Refused, Time};

use super::{Cluster, group_id};
use crate::host::{Admitted, Role};
use crate::object::{Progress, packets_of};
use crate::scenario::{Change, Step};

/// Longest time that the other receivers may take where some are slow: this multiple of the time
/// that they take alone, and this multiple of the patience. Slow receivers need not be found in the
/// same trial, and each holds the others for the patience at least.
const OTHERS_TAKE: (u32, u32) = (2, 10);

impl Cluster<'_> {
    /// Makes a change of members.
    pub(super) fn change(&mut self, i: usize) {
        let change = self.scenario.changes[i];
        let root = self.scenario.streams[change.stream].root;
        if self.hosts[root].dead || self.hosts[change.host].dead {
            return;
        }
        let at = match change.step {
            Step::Admit | Step::Remove => root,
            Step::Join | Step::Leave => change.host,
        };
        // What the driver has found must not be taken for news of what comes now.
        self.take_events(at);
        match change.step {
            Step::Admit => self.admit(change, root),
            Step::Join => self.join(change, root),
            Step::Remove => self.remove(change, root),
            Step::Leave => self.leave_group(change),
        }
        self.step_when_free(at);
    }

    fn admit(&mut self, Change { stream, host, .. }: Change, root: usize) {
        let now = Time(self.now());
        let plan = &self.scenario.streams[stream];
        let (group, node) = (group_id(plan.group), self.numbering.node(host as u32));
        let begun = self.hosts[root].roles.iter().find(|r| r.stream == stream);
        let from = begun.map_or(0, |role| role.begun);
        let driver = &mut self.hosts[root].driver;
        if let Err(e) = driver.command(now, Command::MemberAdd { group, node }) {
            let refused = || format!("host {root}: to admit host {host} is refused: {e}");
            return self.world.complain(refused);
        }
        let Some(admission) = driver.node().admission(group, node) else {
            let unknown = || format!("host {root} does not know host {host}");
            return self.world.complain(unknown);
        };
        if let Some(judge) = &mut self.judge {
            judge.admitted((stream, host as u32, from), admission);
        }
        self.admitted.push(Admitted {
            stream,
            host,
            admission,
            from,
        });
    }

    fn join(&mut self, Change { stream, host, .. }: Change, root: usize) {
        let now = self.now();
        let ours = |a: &Admitted| (a.stream, a.host) == (stream, host);
        let Some(at) = self.admitted.iter().position(ours) else {
            return;
        };
        let Admitted {
            admission, from, ..
        } = self.admitted.swap_remove(at);
        let plan = &self.scenario.streams[stream];
        let group = group_id(plan.group);
        let node = self.numbering.node(host as u32);
        let mut members = self.hosts[root].driver.node().members(group);
        if members.any(|m| m.node == node && m.heard.is_some()) {
            let early = || format!("host {root} has heard host {host} before it joins");
            self.world.complain(early);
        }
        drop(members);
        let join = Command::GroupJoin {
            group,
            sender: self.numbering.node(root as u32),
            payload_size: self.scenario.groups[plan.group].payload_size,
            admission,
        };
        if let Err(e) = self.hosts[host].driver.command(Time(now), join) {
            let refused = || format!("host {host}: to join stream {stream} is refused: {e}");
            return self.world.complain(refused);
        }
        let mut role = Role::new(stream, false, std::time::Duration::ZERO, true);
        (role.begun, role.over) = (from, from);
        self.tried.joins += 1;
        self.left += plan.lens.len() - from;
        self.hosts[host].roles.push(role);
    }

    /// Declines the next object of a role; `false` if the node is too busy.
    pub(super) fn decline(&mut self, h: usize, r: usize) -> bool {
        let now = self.now();
        let role = &self.hosts[h].roles[r];
        let (stream, number) = (role.stream, role.begun);
        let plan = &self.scenario.streams[stream];
        let len = plan.lens[number];
        let decline = Command::Decline {
            group: group_id(plan.group),
            sender: self.numbering.node(plan.root as u32),
            len,
        };
        let packets = packets_of(len, self.scenario.payload_size(plan.group, len));
        match self.hosts[h].driver.command(Time(now), decline) {
            Ok(()) => {}
            Err(Refused::Busy) => return false,
            Err(e) => {
                let refused = || format!("host {h}: to decline operation {number} is refused: {e}");
                self.world.complain(refused);
                return false;
            }
        }
        self.trace.note(
            now,
            [h as u64, 5 << 32 | stream as u64, number as u64],
            || format!("h{h} declines s{stream}/{number}"),
        );
        if let Some(judge) = &mut self.judge {
            let progress = Rc::new(Progress::declined(packets));
            judge.posted(stream, h as u32, progress);
            judge.declines((stream, h as u32), number);
        }
        self.tried.declines += 1;
        let role = &mut self.hosts[h].roles[r];
        role.begun += 1;
        role.over += 1;
        if !role.ended {
            self.left -= 1;
        }
        self.host_done_at[h] = self.host_done_at[h].max(Time(now));
        true
    }

    fn remove(&mut self, Change { stream, host, .. }: Change, root: usize) {
        let now = Time(self.now());
        let plan = &self.scenario.streams[stream];
        let (group, node) = (group_id(plan.group), self.numbering.node(host as u32));
        let driver = &mut self.hosts[root].driver;
        if let Err(e) = driver.command(now, Command::MemberRemove { group, node }) {
            let refused = || format!("host {root}: to remove host {host} is refused: {e}");
            return self.world.complain(refused);
        }
        if let Some(judge) = &mut self.judge {
            judge.left(stream, host as u32);
        }
        let ours = |a: &Admitted| (a.stream, a.host) == (stream, host);
        self.admitted.retain(|a| !ours(a));
    }

    fn leave_group(&mut self, Change { stream, host, .. }: Change) {
        let now = Time(self.now());
        let plan = &self.scenario.streams[stream];
        let roles = &mut self.hosts[host].roles;
        let Some(r) = roles.iter().position(|r| r.stream == stream && !r.ended) else {
            return; // it was admitted, and has never joined
        };
        roles[r].ended = true;
        roles[r].gone = true;
        self.tried.leaves += 1;
        self.left -= plan.lens.len() - roles[r].over;
        let command = Command::GroupRemove(group_id(plan.group));
        let host = &mut self.hosts[host];
        if let Err(e) = host.driver.command(now, command) {
            self.world.complain(|| format!("a group is not left: {e}"));
        }
        let posted = host.ops.iter().filter(|(_, op)| op.role == r && !op.copied);
        host.returning.extend(posted.map(|(op, _)| *op));
    }
}

/// How long a receiver that gets on may hold the others, at most.
const OUTPACED_AFTER: Duration = Duration::from_millis(300);

/// Receivers that the root leaves behind because they hold the others.
impl Cluster<'_> {
    /// Lets a group outpace its receivers, if the scenario says so.
    pub(super) fn may_outpace(&mut self, stream: usize) {
        if self.scenario.outpaced.is_none() {
            return;
        }
        let plan = &self.scenario.streams[stream];
        let (group, root) = (group_id(plan.group), plan.root);
        for host in (0..self.hosts.len()).filter(|host| *host != root) {
            let node = self.numbering.node(host as u32);
            let may_hold = Some(self.scenario.patience.min(OUTPACED_AFTER));
            let command = Command::MayOutpace {
                group,
                node,
                may_hold,
            };
            if let Err(e) = self.hosts[root].driver.command(Time::ZERO, command) {
                let refused = || format!("host {root}: to outpace host {host} is refused: {e}");
                self.world.complain(refused);
            }
        }
    }

    /// The root finds that a receiver is outpaced: removes it, if it holds the others.
    pub(super) fn outpaces(&mut self, root: usize, node: NodeId) {
        let Some(host) = self.numbering.host(node).map(|host| host as usize) else {
            return;
        };
        let expected = self.scenario.outpaced.as_ref();
        match expected.is_some_and(|hosts| hosts.contains(&host)) {
            true => self.part(root, host),
            false => self
                .world
                .complain(|| format!("host {host} is outpaced, and holds nobody back")),
        }
    }

    /// Checks that no receiver holds the others back. One that is to be outpaced is, or the sender
    /// does not wait for it: then it takes more than twice as long as the others, as one does that
    /// takes less than half of what they take.
    pub(super) fn outpaced_are_found(&self) {
        let Some(slow) = &self.scenario.outpaced else {
            return;
        };
        let root = self.scenario.streams.first().map_or(0, |plan| plan.root);
        let done = |host: usize| self.host_done_at[host].0;
        let others = (0..self.hosts.len()).filter(|host| *host != root && !slow.contains(host));
        let others = others.map(done).max().unwrap_or_default();
        let parted = &self.hosts[root].parted;
        for &host in slow {
            if !parted.contains(&(host as u32)) && done(host) < 2 * others {
                self.world
                    .complain(|| format!("host {host} holds the others back to the end"));
            }
        }
        let bytes: u64 = self.scenario.streams.iter().flat_map(|s| &s.lens).sum();
        let rate = self.scenario.topology.host.rate;
        let alone = Duration::from_secs_f64(bytes as f64 / rate as f64);
        let most = alone * OTHERS_TAKE.0 + self.scenario.patience * OTHERS_TAKE.1;
        if Duration::from_nanos(others) > most {
            let others = Time(others);
            let late = || format!("the others are done at {others:?}, and {most:?} is the most");
            self.world.complain(late);
        }
    }
}
