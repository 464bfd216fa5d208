//! A host's work: when it steps, what its application asks for, what its steps bring.

use std::rc::Rc;

use fabricast::proto::scheme::FeedbackTopology;
use fabricast::proto::{Command, Dest, Event, OpId, PathState, Refused, Time};
use fabricast::transport::Transport;

use super::{Cluster, alarm, group_id};
use crate::check::GROUP_FIRST;
use crate::fabric::{Packet, Target};
use crate::host::{Host, Op, Role, ns, think};
use crate::object::{PatternObject, Place, Progress, content_of};
use crate::scenario::SlowRule;
use crate::trace::digest;
use crate::transport::Membership;
use crate::words;
use crate::workload::{After, Sending};

/// Steps between two checks of the core's own invariants, which look at all of its state.
const INVARIANTS_EVERY: u64 = 16;
/// Rounds of one host at one point in time before it counts as spinning.
const ROUNDS_AT_ONCE_MAX: u32 = 10_000;

impl Cluster<'_> {
    // ---- when it steps ------------------------------------------------------------------------

    /// Hands an arrived datagram to a host. Returns whether the host stepped.
    pub(crate) fn arrive(&mut self, h: usize, packet: Rc<Packet>) -> bool {
        let now = self.now();
        if let Some((liar, (host, _))) = self.liar.as_mut().zip(self.scenario.faults.liar)
            && host == h
        {
            liar.hears(&packet.bytes);
        }
        let host = &mut self.hosts[h];
        if host.dead {
            return false;
        }
        let numbers = [h as u64, u64::from(packet.from), packet.bytes.len() as u64];
        let text = self.trace.prints().then(|| Rc::clone(&packet));
        let said = self.judge.as_ref().map(|_| Rc::clone(&packet));
        let taken = host.net().deliver(Time(now), packet);
        self.trace.note(now, numbers, || {
            let what = text.map(|p| format!("h{} {}", p.from, words::datagram(&p.bytes)));
            let how = if taken { "<-" } else { "<- full, dropped:" };
            format!("h{h} {how} {}", what.unwrap_or_default())
        });
        if !taken {
            host.overflowed += 1;
            return false;
        }
        if let (Some(judge), Some(packet)) = (&mut self.judge, said) {
            judge.hears(h as u32, &packet.bytes);
        }
        self.step_when_free(h)
    }

    /// Handles a host's alarm. Returns whether the host stepped.
    pub(crate) fn rung(&mut self, h: usize) -> bool {
        let now = self.now();
        let host = &mut self.hosts[h];
        if host.dead || host.alarm != now {
            return false; // an earlier alarm has overtaken this one
        }
        host.alarm = u64::MAX;
        if host.wake > now {
            self.set_alarm(h);
            return false;
        }
        self.step_when_free(h)
    }

    /// Steps a host now if its processor is free, otherwise as soon as it is.
    pub(crate) fn step_when_free(&mut self, h: usize) -> bool {
        let now = self.now();
        let host = &mut self.hosts[h];
        if host.dead {
            return false;
        }
        let free = host.cpu_free.max(host.paused_until);
        if free <= now {
            self.step(h);
            return true;
        }
        host.wake = free;
        self.set_alarm(h);
        false
    }

    fn set_alarm(&mut self, h: usize) {
        let host = &mut self.hosts[h];
        if host.wake < host.alarm {
            host.alarm = host.wake;
            self.fabric.alarm(Time(host.wake), alarm::HOST, h as u32);
        }
    }

    /// Lets the application and the driver work until neither has anything to do at this time.
    fn step(&mut self, h: usize) {
        let now = self.now();
        let mut wake;
        let mut packets = 0;
        loop {
            let host = &mut self.hosts[h];
            if host.round_at != now {
                (host.round_at, host.rounds) = (now, 0);
            }
            host.rounds += 1;
            if host.rounds > ROUNDS_AT_ONCE_MAX {
                return self.world.complain(|| format!("host {h} spins"));
            }
            self.remove_peers(h);
            let later = match self.hosts[h].relay {
                None => self.work(h),
                Some(_) => self.relay(h),
            };
            let later = later.min(self.enter(h));
            let (at, again) = self.round(h);
            packets += self.hosts[h].net().received().0 as u64;
            wake = at.min(later);
            let busy = self.take_events(h) || again;
            let host = &mut self.hosts[h];
            if !host.returning.is_empty() {
                host.take_back();
            }
            let back = host.relay.as_mut().map(|r| r.take_back(&mut host.driver));
            let more = busy || back == Some(true) || host.net().waiting();
            if more && host.cpu_free > now {
                wake = wake.min(host.cpu_free);
            }
            if self.world.broken.get() || !more || host.cpu_free > now {
                break;
            }
        }
        self.events += packets.max(1);
        self.steps += 1;
        self.look_who_shares(h);
        let host = &mut self.hosts[h];
        if self.scenario.judged && self.steps.is_multiple_of(INVARIANTS_EVERY) {
            host.driver.node().invariants();
        }
        host.wake = wake;
        self.set_alarm(h);
    }

    /// Makes one step of the driver and puts what it sent on the network. Returns when the driver
    /// wants to be woken, and whether it wants another step at once.
    fn round(&mut self, h: usize) -> (u64, bool) {
        let now = self.now();
        let room = self.fabric.room(h as u32);
        let host = &mut self.hosts[h];
        if host.bell.get() <= now {
            host.bell.set(u64::MAX);
        }
        host.net().begin(room);
        let step = match host.driver.step(Time(now)) {
            Ok(step) => step,
            Err(e) => {
                self.world.complain(|| format!("host {h}: step: {e}"));
                return (u64::MAX, false);
            }
        };
        let mut wake = step.wake.unwrap_or(Time::NEVER).0;
        let (datagrams, receive_ns) = host.net().received();
        let again = wake <= now;
        if again && datagrams == 0 && host.net().outbox().is_empty() {
            self.world
                .complain(|| format!("host {h} wants to be woken at once, for nothing"));
        }
        if again {
            wake = u64::MAX;
        }
        wake = wake.min(host.bell.get());
        let cpu = host.cpu_free.max(now) + receive_ns;
        host.received_until = cpu;
        self.depart(h, cpu);
        let host = &mut self.hosts[h];
        let transport = host.net();
        if transport.pushed_back() {
            wake = wake.min(self.fabric.half_drained(h as u32).0.max(now + 1));
        }
        for m in transport.memberships().drain(..) {
            match m {
                Membership::Join(g) => self.fabric.join(g, h as u32),
                Membership::Leave(g) => self.fabric.leave(g, h as u32),
            }
        }
        (wake, again)
    }

    /// Hands the datagrams that a host has sent to the network, each as soon as the host's
    /// processor is done with it.
    fn depart(&mut self, h: usize, mut cpu: u64) {
        let now = self.now();
        let costs = self.scenario.costs;
        let mut outbox = std::mem::take(self.hosts[h].net().outbox());
        if !outbox.is_empty() {
            cpu += ns(costs.start);
        }
        for d in outbox.drain(..) {
            let cost = costs.of(d.kind);
            cpu += cost.send_ns(d.bytes.len() as u64);
            let to = match d.dest {
                Dest::Address(g) => u64::from(g.0) << 1 | 1,
                Dest::Node(n) => u64::from(n.0) << 1,
            };
            self.trace
                .note(now, [h as u64 | 1 << 32, to, digest(&d.bytes)], || {
                    let to = match d.dest {
                        Dest::Address(g) => format!("g{}", g.0 as usize - GROUP_FIRST),
                        Dest::Node(n) => format!("n{}", n.0),
                    };
                    format!("h{h} -> {to} {}", words::datagram(&d.bytes))
                });
            if let Some(judge) = &mut self.judge {
                judge.departs(h as u32, d.dest, &d.bytes);
            }
            if let Some(judge) = &mut self.share_judge {
                judge.departs(h, &d.bytes);
            }
            self.hosts[h].sent += 1;
            let Some(to) = d.to else { continue };
            let first = self.scenario.faults.first_words;
            if first && self.first_words.loses(h as u32, d.dest, &d.bytes) {
                continue;
            }
            let packet = Rc::new(Packet {
                from: h as u32,
                to,
                kind: d.kind,
                way_ns: ns(cost.way),
                bytes: d.bytes,
            });
            if self.scenario.faults.hostile_every.is_some() {
                self.hostile.remember(&packet);
            }
            if self.scenario.faults.echo && matches!(to, Target::Group(_)) {
                let back = Time(cpu + 1000);
                self.fabric.inject(back, h as u32, Rc::clone(&packet));
            }
            self.fabric.send(Time(cpu), packet);
        }
        let host = &mut self.hosts[h];
        *host.net().outbox() = outbox;
        host.cpu_free = cpu;
    }

    // ---- what its application asks for --------------------------------------------------------

    fn remove_peers(&mut self, h: usize) {
        let now = self.now();
        while let Some(peer) = self.hosts[h].to_remove.pop() {
            let node = self.numbering.node(peer);
            let host = &mut self.hosts[h];
            if let Err(e) = host.driver.command(Time(now), Command::PeerRemove(node)) {
                self.world
                    .complain(|| format!("host {h}: removal refused: {e}"));
            }
            host.net().forget(node);
            self.trace
                .note(now, [h as u64, 2 << 32, u64::from(peer)], || {
                    format!("h{h} is told that h{peer} is gone")
                });
            if let Some(judge) = &mut self.judge {
                judge.removed(h as u32, peer);
            }
            if let Some(watchman) = &mut self.watchman {
                watchman.removed(h, peer as usize);
            }
        }
    }

    /// Begins the operations that a host may begin now. Returns when it may begin more.
    fn work(&mut self, h: usize) -> u64 {
        let now = self.now();
        let mut later = u64::MAX;
        for r in 0..self.hosts[h].roles.len() {
            loop {
                let role = &self.hosts[h].roles[r];
                let plan = &self.scenario.streams[role.stream];
                let under_way = role.begun - role.over;
                let most = match (role.root, plan.sending) {
                    (true, Sending::Ahead(n)) => n,
                    (true, Sending::Every(_)) => usize::MAX,
                    (false, _) => plan.posting.ahead,
                };
                if role.ended || !role.proven || role.begun == plan.lens.len() || under_way >= most
                {
                    break;
                }
                if !self.turn(h, r) {
                    break;
                }
                let role = &self.hosts[h].roles[r];
                if role.not_before > now {
                    later = later.min(role.not_before);
                    break;
                }
                let (stream, number) = (role.stream, role.begun);
                let begun = match !role.root && self.scenario.declines(stream, h, number) {
                    true => self.decline(h, r),
                    false => self.begin(h, r),
                };
                if !begun {
                    break;
                }
            }
        }
        later
    }

    /// Whether the other stream that a root takes turns with has come far enough.
    fn turn(&self, h: usize, r: usize) -> bool {
        let roles = &self.hosts[h].roles;
        let role = &roles[r];
        let Some(After { stream, lag }) = self.scenario.streams[role.stream].after else {
            return true;
        };
        let other = roles.iter().find(|other| other.stream == stream);
        !role.root || other.is_some_and(|other| other.over + lag > role.begun)
    }

    /// Sends or posts the next object of a role; `false` if the node is too busy.
    fn begin(&mut self, h: usize, r: usize) -> bool {
        let now = self.now();
        let disk = self.scenario.disk(h);
        let host = &mut self.hosts[h];
        let role = &mut host.roles[r];
        let plan = &self.scenario.streams[role.stream];
        let (number, len) = (role.begun, plan.lens[role.begun]);
        let group = group_id(plan.group);
        let payload_size = self.scenario.payload_size(plan.group, len);
        let place = Place {
            world: Rc::clone(&self.world),
            bell: Rc::clone(&host.bell),
            name: (h as u32, role.stream as u32, number as u32),
        };
        let content = content_of(self.scenario.seed, role.stream, number);
        let progress = Rc::<Progress>::default();
        let begun = if role.root {
            let object = PatternObject::source(place, content, len, payload_size, disk);
            let object = match self.scenario.reads_late() {
                true => object.in_memory(),
                false => object,
            };
            let sent = host.driver.bcast(Time(now), group, Box::new(object));
            sent.map(|(op, copied)| (op, copied.is_some()))
        } else {
            let root = self.numbering.node(plan.root as u32);
            let p = Rc::clone(&progress);
            let object = PatternObject::room(place, content, len, payload_size, disk, p);
            let op = host.driver.post(Time(now), group, root, Box::new(object));
            op.map(|op| (op, false))
        };
        let (op, copied) = match begun {
            Ok(begun) => begun,
            Err((Refused::Busy, _)) => return false,
            Err((e, _)) => {
                self.world
                    .complain(|| format!("host {h}: operation {number} refused: {e}"));
                return false;
            }
        };
        if role.root
            && let Sending::Every(d) = plan.sending
        {
            role.not_before = now + ns(d);
        }
        self.begun(h, r, op, progress, len);
        if let Some(op) = self.hosts[h].ops.get_mut(&op) {
            op.copied = copied;
        }
        true
    }

    /// Notes that the next operation of a role has begun.
    pub(crate) fn begun(&mut self, h: usize, r: usize, op: OpId, progress: Rc<Progress>, len: u64) {
        let now = self.now();
        let host = &mut self.hosts[h];
        let role = &mut host.roles[r];
        let (root, stream, number) = (role.root, role.stream, role.begun);
        role.begun += 1;
        let copied = false;
        host.ops.insert(
            op,
            Op {
                role: r,
                number,
                copied,
            },
        );
        let numbers = [h as u64, 3 << 32 | stream as u64, number as u64];
        self.trace.note(now, numbers, || {
            let verb = if root { "sends" } else { "posts" };
            format!("h{h} {verb} s{stream}/{number}: {len} bytes as {op:?}")
        });
        if let Some(judge) = &mut self.judge {
            if root {
                judge.begun(stream);
            } else {
                judge.posted(stream, h as u32, progress);
            }
        }
    }

    // ---- what its steps bring -----------------------------------------------------------------

    /// Takes the driver's events. Returns whether there were any.
    pub(super) fn take_events(&mut self, h: usize) -> bool {
        let mut any = false;
        while let Some(event) = self.hosts[h].driver.event() {
            any = true;
            self.event(h, event);
        }
        any
    }

    fn event(&mut self, h: usize, event: Event) {
        let now = self.now();
        if self.leave(h, event) {
            return;
        }
        let host = &mut self.hosts[h];
        let about = match event {
            Event::Complete(op) | Event::Failed(op) | Event::Mismatch(op) => {
                let found = host.ops.remove(&op);
                let left = |op: &Op| host.roles[op.role].gone;
                if found.as_ref().is_some_and(left) {
                    return;
                }
                match &mut host.relay {
                    Some(relay) => relay.event(event),
                    None if found.as_ref().is_some_and(|op| !op.copied) => host.returning.push(op),
                    None => {}
                }
                found
            }
            _ => None,
        };
        let what = about.map(|op| {
            let role = &host.roles[op.role];
            (role.stream, op.number, role.root)
        });
        let number = match event {
            Event::Complete(op) => u64::from(op.0),
            Event::Failed(op) => 1 << 33 | u64::from(op.0),
            Event::Mismatch(op) => 2 << 33 | u64::from(op.0),
            Event::Path {
                group,
                node,
                path_state,
            } => 3 << 33 ^ u64::from(group.0) << 20 ^ u64::from(node.0) << 2 ^ path_state as u64,
            Event::Proven(group) => 4 << 33 | u64::from(group.0),
            Event::Arrived(op) => 6 << 33 | u64::from(op.0),
            Event::AddressSilent { address, node, .. } => {
                7 << 33 ^ u64::from(address.0) << 20 ^ u64::from(node.0) << 2
            }
            Event::AddressProven { address, .. } => 8 << 33 | u64::from(address.0),
            Event::Slow { group, node } => {
                5 << 33 ^ u64::from(group.0) << 20 ^ u64::from(node.0) << 2
            }
            Event::Outpaced { group, node } => {
                9 << 33 ^ u64::from(group.0) << 20 ^ u64::from(node.0) << 2
            }
        };
        self.trace.note(now, [h as u64, 4 << 32, number], || {
            let what = what.map(|(s, n, _)| format!(" s{s}/{n}"));
            format!("h{h} {event:?}{}", what.unwrap_or_default())
        });
        if let Some(judge) = &mut self.judge {
            judge.event(h as u32, event, what);
        }
        if let Some(op) = about {
            self.over(h, op);
        }
        match event {
            Event::Proven(group) => {
                let group = group.0 as usize - GROUP_FIRST;
                let streams = &self.scenario.streams;
                let roles = &mut self.hosts[h].roles;
                for role in roles.iter_mut().filter(|r| r.root) {
                    role.proven |= streams[role.stream].group == group;
                }
            }
            Event::Slow { node, .. } if self.scenario.slow == SlowRule::Drop => {
                if let Some(peer) = self.numbering.host(node) {
                    self.part(h, peer as usize);
                }
            }
            Event::Outpaced { node, .. } => self.outpaces(h, node),
            Event::Failed(_) => {
                // A receiver that cannot take the object says so over the control channel and is
                // left out.
                if let Some((stream, _, false)) = what {
                    self.part(h, self.scenario.streams[stream].root);
                }
            }
            Event::Path {
                node,
                path_state: PathState::Nothing,
                ..
            } => {
                let peer = self.numbering.host(node);
                if peer.is_none_or(|p| !self.hosts[p as usize].dead) {
                    self.world
                        .complain(|| format!("host {h} gives up n{}, which lives", node.0));
                }
            }
            _ => {}
        }
    }

    fn over(&mut self, h: usize, op: Op) {
        let now = self.now().max(self.hosts[h].received_until);
        let host = &mut self.hosts[h];
        let role = &mut host.roles[op.role];
        role.over += 1;
        let plan = &self.scenario.streams[role.stream];
        if role.root {
            self.root_done_at[role.stream] = Time(now);
        } else {
            let most = plan.posting.think_max;
            let thinks = think(&mut host.rng, most);
            role.not_before = role.not_before.max(now + thinks);
        }
        let (stream, receives) = (role.stream, !role.root);
        if !role.ended {
            self.left -= 1;
        }
        self.host_done_at[h] = Time(now);
        if receives {
            self.received_at[h] = Time(now);
            self.admit_last(stream);
        }
    }

    /// Lets the members that post last do so once all others have received their first object.
    pub(crate) fn admit_last(&mut self, stream: usize) {
        let posting = &self.scenario.streams[stream].posting;
        if posting.last.is_empty() {
            return;
        }
        let last = posting.last.clone();
        let now = self.now();
        let waits = |(h, host): (usize, &Host)| {
            let lacks = |r: &Role| r.stream == stream && !r.root && !r.ended && r.over == 0;
            !host.dead && !last.contains(&h) && host.roles.iter().any(lacks)
        };
        if self.hosts.iter().enumerate().any(waits) {
            return;
        }
        for h in last {
            let host = &mut self.hosts[h];
            for role in host.roles.iter_mut().filter(|r| r.stream == stream) {
                if role.not_before == u64::MAX {
                    role.not_before = now;
                    host.wake = host.wake.min(now + 1);
                }
            }
            self.set_alarm(h);
        }
    }

    /// Parts two hosts: the control channel tells both, and neither expects anything of the other.
    pub(super) fn part(&mut self, a: usize, b: usize) {
        // Where receivers report for each other, all hosts must know.
        let alone = self.scenario.scheme.topology == FeedbackTopology::Direct;
        let others = 0..self.hosts.len();
        for other in others.filter(|&o| o != b && (!alone || o == a)) {
            self.part_two(other, b);
        }
        for stream in 0..self.scenario.streams.len() {
            self.admit_last(stream);
        }
    }

    fn part_two(&mut self, a: usize, b: usize) {
        for (me, other) in [(a, b), (b, a)] {
            let host = &mut self.hosts[me];
            if host.dead || host.parted.contains(&(other as u32)) {
                continue;
            }
            host.parted.push(other as u32);
            host.to_remove.push(other as u32);
            for role in &mut host.roles {
                let plan = &self.scenario.streams[role.stream];
                if !role.root && plan.root == other && !role.ended {
                    role.ended = true;
                    self.left -= plan.lens.len() - role.over;
                }
            }
            host.wake = host.wake.min(self.fabric.now().0 + 1);
            self.set_alarm(me);
        }
    }
}
