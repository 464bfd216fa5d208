//! What the drivers of hosts do: when they step, what they send, what they report.

use std::rc::Rc;

use fabricast::proto::group::HostId;
use fabricast::proto::{AddressId, Command, Dest, Event, GroupId, NodeId, PathState, Time};

use super::{Subnet, alarm};
use crate::fabric::{Packet, Target};
use crate::trace::digest;

/// Rounds of one step before the host counts as spinning.
const ROUNDS_MAX: u32 = 10_000;

impl Subnet<'_> {
    /// A datagram reaches a host.
    pub(super) fn arrive(&mut self, h: u32, packet: Rc<Packet>) {
        let now = self.fabric.now();
        let host = &mut self.hosts[h as usize];
        if host.dead {
            return;
        }
        if let Target::Group(number) = packet.to {
            let address = AddressId(number);
            let attached = host.attached.contains(&address);
            let id = HostId(h);
            self.judge.arrives(id, address, attached, &packet.bytes);
            if self.has_left(h, address) {
                let from = packet.from;
                self.complain(|| format!("host {h} has left {address:?}, by which {from} sends"));
            }
            if !attached {
                return;
            }
        }
        let host = &mut self.hosts[h as usize];
        if host.net().deliver(now, packet) {
            self.step_when_free(h);
        }
    }

    /// A host's alarm rings.
    pub(super) fn rung(&mut self, h: u32) {
        let now = self.now();
        let host = &mut self.hosts[h as usize];
        if host.dead || host.alarm != now {
            return; // an earlier alarm has overtaken this one
        }
        host.alarm = u64::MAX;
        if host.stopped > now {
            return;
        }
        host.wake = match host.wake <= now {
            true => host.cpu_free.max(now),
            false => host.wake,
        };
        match host.wake > now {
            true => self.set_alarm(h),
            false => self.step(h),
        }
    }

    /// Has a host step as soon as its processor is free. The step is an event of its own, also if
    /// that is now.
    pub(super) fn step_when_free(&mut self, h: u32) {
        let now = self.now();
        let host = &mut self.hosts[h as usize];
        if !host.dead && host.stopped <= now {
            host.wake = host.wake.min(host.cpu_free.max(now));
            self.set_alarm(h);
        }
    }

    fn set_alarm(&mut self, h: u32) {
        let host = &mut self.hosts[h as usize];
        if host.wake < host.alarm {
            host.alarm = host.wake;
            self.fabric.alarm(Time(host.wake), alarm::HOST, h);
        }
    }

    /// Lets the application and the driver work until neither has anything to do at this time.
    pub(super) fn step(&mut self, h: u32) {
        let now = self.now();
        let mut wake;
        let mut rounds = 0;
        loop {
            rounds += 1;
            if rounds > ROUNDS_MAX {
                return self.complain(|| format!("host {h} spins"));
            }
            let later = self.work(h);
            let (at, again) = self.round(h);
            wake = at.min(later);
            let busy = self.take_events(h) || again;
            let host = &mut self.hosts[h as usize];
            host.take_back();
            let more = busy || host.net().waiting();
            if more && host.cpu_free > now {
                wake = wake.min(host.cpu_free);
            }
            if self.world.broken.get() || !more || host.cpu_free > now {
                break;
            }
        }
        self.hosts[h as usize].wake = wake;
        self.set_alarm(h);
    }

    /// Makes one step of the driver and puts what it sent on the network. Returns when the driver
    /// wants to be woken, and whether it wants another step at once.
    fn round(&mut self, h: u32) -> (u64, bool) {
        let now = self.now();
        let room = self.fabric.room(h);
        let host = &mut self.hosts[h as usize];
        if host.bell.get() <= now {
            host.bell.set(u64::MAX);
        }
        host.net().begin(room);
        let step = match host.driver.step(Time(now)) {
            Ok(step) => step,
            Err(error) => {
                self.complain(|| format!("host {h}: step: {error}"));
                return (u64::MAX, false);
            }
        };
        let mut wake = step.wake.unwrap_or(Time::NEVER).0;
        let again = wake <= now;
        if again {
            wake = u64::MAX;
        }
        wake = wake.min(host.bell.get());
        let (_, receive_ns) = host.net().received();
        let cpu = host.cpu_free.max(now) + receive_ns;
        self.depart(h, cpu);
        let host = &mut self.hosts[h as usize];
        let pushed_back = host.net().pushed_back();
        host.net().memberships().clear(); // the switches follow the manager
        if pushed_back {
            wake = wake.min(self.fabric.half_drained(h).0.max(now + 1));
        }
        (wake, again)
    }

    /// Hands the datagrams that a host has sent to the network, each as soon as the host's
    /// processor is done with it.
    fn depart(&mut self, h: u32, mut cpu: u64) {
        let now = self.now();
        let costs = self.scenario.costs;
        let mut outbox = std::mem::take(self.hosts[h as usize].net().outbox());
        for d in outbox.drain(..) {
            let cost = costs.of(d.kind);
            cpu += cost.send_ns(d.bytes.len() as u64);
            let to = match d.dest {
                Dest::Address(address) => u64::from(address.0) << 1 | 1,
                Dest::Node(node) => u64::from(node.0) << 1,
            };
            self.trace
                .note(now, [u64::from(h), to, digest(&d.bytes)], || {
                    format!("h{h} -> {:?} {}", d.dest, crate::words::datagram(&d.bytes))
                });
            if let Dest::Address(address) = d.dest {
                self.departs(h, address, &d.bytes);
            }
            let Some(to) = d.to else { continue };
            let packet = Rc::new(Packet {
                from: h,
                to,
                kind: d.kind,
                way_ns: cost.way.as_nanos() as u64,
                bytes: d.bytes,
            });
            self.fabric.send(Time(cpu), packet);
        }
        let host = &mut self.hosts[h as usize];
        *host.net().outbox() = outbox;
        host.cpu_free = cpu;
    }

    /// Takes the driver's events. Returns whether there were any.
    fn take_events(&mut self, h: u32) -> bool {
        let mut any = false;
        while let Some(event) = self.hosts[h as usize].driver.event() {
            any = true;
            match event {
                Event::Complete(op) => self.complete(h, op),
                Event::Failed(op) | Event::Mismatch(op) => self.failed(h, op),
                Event::AddressSilent { address, node, .. } => self.is_silent(h, address, node),
                Event::AddressProven { address, .. } => self.proof_ends(h, address),
                Event::Path {
                    group,
                    node,
                    path_state,
                } => self.path(h, group, (node, path_state)),
                Event::Arrived(_)
                | Event::Slow { .. }
                | Event::Outpaced { .. }
                | Event::Proven(_) => {}
            }
        }
        any
    }

    fn path(&mut self, h: u32, group: GroupId, (node, path_state): (NodeId, PathState)) {
        let now = self.fabric.now();
        let alive = self.numbering.host(node);
        let alive = alive.is_some_and(|peer| !self.hosts[peer as usize].dead);
        match path_state {
            PathState::Nothing if alive => {
                self.complain(|| format!("host {h} gives up {node:?}, which lives"));
            }
            PathState::Unicast => {
                let id = HostId(h);
                if let Some(&address) = self.judge.by.get(&(id, group)) {
                    self.hosts[h as usize].machine.unreached(now, address);
                    self.drain(h);
                }
            }
            _ => {}
        }
    }

    /// Removes a group from a host's driver.
    pub(super) fn remove_group(&mut self, h: u32, group: GroupId) {
        self.command(h, Command::GroupRemove(group));
        self.step_when_free(h);
    }
}
