//! The network: hosts, links and switches under virtual time.
//!
//! Links are directed and come in pairs (`l` and `l ^ 1` are the two directions of one cable). A
//! link is a drop-tail queue, a rate and a delay. The fabric never walks a link's queue: it keeps
//! only the time at which the queue will be empty, so that a hop costs one event. Switches copy a
//! multicast to the links that lead to members. A packet's bytes exist once, however many copies
//! are under way.

mod tables;

use std::rc::Rc;
use std::time::Duration;

use fabricast::proto::Time;
use fabricast::proto::rng::Rng;

use crate::fault::{Blocked, LinkFaults};
use crate::queue::{Due, Queue};
use crate::topology::{LinkSpec, Topology};
use crate::workload::Kind;

/// Packet size in bytes with which an idle link counts the packets that might have passed.
const PACKET: u64 = 1500;
/// A link's time is kept in ticks of 2^-16 ns, which is good for 78 hours.
const TICK_BITS: u32 = 16;

/// Destination of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// One host.
    Host(u32),
    /// All hosts that have joined.
    Group(u32),
}

/// A datagram on its way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packet {
    /// Host that sent it.
    pub from: u32,
    /// Destination.
    pub to: Target,
    /// Kind, which decides what the datagram costs its receiver.
    pub kind: Kind,
    /// Time that the packet takes beyond what cables and switches take, in nanoseconds.
    pub way_ns: u64,
    /// The whole datagram.
    pub bytes: Vec<u8>,
}

/// The next thing that the network brings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Happening {
    /// A packet reaches a host.
    Arrive {
        /// Host that the packet reaches.
        host: u32,
        /// The packet.
        packet: Rc<Packet>,
    },
    /// An alarm set with [`Fabric::alarm`].
    Alarm {
        /// First word.
        a: u32,
        /// Second word.
        b: u32,
    },
}

/// What has passed over a link, and what was lost on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LinkStats {
    /// Packets that left it at its far end.
    pub packets: u64,
    /// Bytes of these packets, including headers of the layers below.
    pub bytes: u64,
    /// Packets that were dropped because the link's queue was full.
    pub overflowed: u64,
    /// Packets that a fault dropped.
    pub lost: u64,
    /// Packets that a fault duplicated.
    pub doubled: u64,
    /// Packets that a fault changed.
    pub corrupted: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Host(u32),
    Switch(u32),
}

#[derive(Clone, Debug)]
struct Link {
    to: End,
    /// Time per byte, in ticks.
    cost: u64,
    /// How long a full queue takes to drain, in ticks.
    queue: u64,
    /// When the queue will be empty, in ticks.
    free: u64,
    delay_ns: u64,
    queue_bytes: u64,
    /// Whether `faults` does anything: the only field that a healthy link looks at.
    faulty: bool,
    blocked: Blocked,
    /// Gilbert–Elliott model: whether the link is in its bad state.
    bad: bool,
    faults: LinkFaults,
    /// The link's own generator, so that a packet's fate does not depend on traffic elsewhere.
    rng: Rng,
    stats: LinkStats,
}

#[derive(Clone, Debug)]
struct Switch {
    /// Hosts `lo .. hi` are below it.
    lo: u32,
    hi: u32,
    /// Hosts below each child.
    child_span: u32,
    /// Links to the children, in their order.
    down: Vec<u32>,
    up: Option<u32>,
}

/// Members of one multicast group, as the switches see them.
#[derive(Clone, Debug)]
struct Membership {
    members: u32,
    /// Per switch: members below it.
    below: Vec<u32>,
    /// Per switch: links to children with members.
    fan: Vec<Vec<u32>>,
    /// Per switch: the table that a manager has written; `None`: the switches follow the members.
    tables: Option<Vec<Table>>,
}

/// What a switch does with the datagrams to one address.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Table {
    /// Links downwards to which it copies them.
    pub down: Vec<u32>,
    /// Whether it also sends them upwards.
    pub up: bool,
}

#[derive(Debug)]
struct Slot {
    packet: Option<Rc<Packet>>,
    /// Number of events that name this slot.
    refs: u32,
}

/// The network and its clock.
#[derive(Debug)]
pub struct Fabric {
    queue: Queue,
    links: Vec<Link>,
    switches: Vec<Switch>,
    /// Per host: the link out of it; the other direction is `^ 1`.
    host_up: Vec<u32>,
    /// Links between switches, downwards.
    trunks: Vec<u32>,
    groups: Vec<Membership>,
    slots: Vec<Slot>,
    free_slots: Vec<u32>,
    overhead: u64,
    cut_through: bool,
    hops: u64,
}

fn ticks(ns: u64) -> u64 {
    ns << TICK_BITS
}

impl Fabric {
    /// A network of `hosts` hosts. `overhead` bytes are added to each datagram on every link
    /// (Ethernet, IP and UDP headers: 42). The seed drives faults only.
    pub fn new(topology: &Topology, hosts: usize, overhead: u64, seed: u64) -> Fabric {
        assert!(hosts > 0, "a network has hosts");
        let mut fabric = Fabric {
            queue: Queue::default(),
            links: Vec::new(),
            switches: Vec::new(),
            host_up: Vec::new(),
            trunks: Vec::new(),
            groups: Vec::new(),
            slots: Vec::new(),
            free_slots: Vec::new(),
            overhead,
            cut_through: topology.cut_through,
            hops: 0,
        };
        let mut rng = Rng::new(seed);
        let spans = topology.spans(hosts);
        let mut below: Vec<u32> = Vec::new(); // switches of the level below, by number
        let mut child_span = 1;
        for (level, &span) in spans.iter().enumerate() {
            let mut here = Vec::new();
            for lo in (0..hosts).step_by(span) {
                let number = fabric.switches.len() as u32;
                let hi = (lo + span).min(hosts);
                fabric.switches.push(Switch {
                    lo: lo as u32,
                    hi: hi as u32,
                    child_span,
                    down: Vec::new(),
                    up: None,
                });
                here.push(number);
                if level == 0 {
                    for h in lo..hi {
                        let ends = (End::Host(h as u32), End::Switch(number));
                        let up = fabric.cable(ends, &topology.host, &mut rng);
                        fabric.host_up.push(up);
                        fabric.switches[number as usize].down.push(up ^ 1);
                    }
                } else {
                    let first = lo / child_span as usize;
                    let last = hi.div_ceil(child_span as usize);
                    for &child in &below[first..last] {
                        let ends = (End::Switch(child), End::Switch(number));
                        let up = fabric.cable(ends, &topology.trunk, &mut rng);
                        fabric.switches[child as usize].up = Some(up);
                        fabric.switches[number as usize].down.push(up ^ 1);
                        fabric.trunks.push(up ^ 1);
                    }
                }
            }
            below = here;
            child_span = span as u32;
        }
        fabric
    }

    /// Lays a cable and returns the link from `low` to `high`.
    fn cable(&mut self, (low, high): (End, End), spec: &LinkSpec, rng: &mut Rng) -> u32 {
        let up = self.links.len() as u32;
        for to in [high, low] {
            let mut link = Link {
                to,
                cost: 0,
                queue: 0,
                free: 0,
                delay_ns: spec.delay.as_nanos() as u64,
                queue_bytes: spec.queue,
                faulty: false,
                blocked: Blocked::Nothing,
                bad: false,
                faults: LinkFaults::NONE,
                rng: Rng::new(rng.bits()),
                stats: LinkStats::default(),
            };
            link.run_at(spec.rate, 0);
            self.links.push(link);
        }
        up
    }

    /// The simulated time.
    pub fn now(&self) -> Time {
        Time(self.queue.now())
    }

    /// Hops that packets have made so far.
    pub fn hops(&self) -> u64 {
        self.hops
    }

    /// The link out of a host.
    pub fn uplink(&self, host: u32) -> u32 {
        self.host_up[host as usize]
    }

    /// The link into a host.
    pub fn downlink(&self, host: u32) -> u32 {
        self.host_up[host as usize] ^ 1
    }

    /// The links between switches, downwards. A loss on one of them is a loss for a whole sub-tree.
    pub fn trunks(&self) -> &[u32] {
        &self.trunks
    }

    /// Bytes of datagrams that a host may send now before its queue overflows.
    pub fn room(&self, host: u32) -> u64 {
        let link = &self.links[self.uplink(host) as usize];
        let waiting = link.free.saturating_sub(ticks(self.queue.now()));
        link.queue.saturating_sub(waiting) / link.cost
    }

    /// When a host's queue will have drained to one half.
    pub fn half_drained(&self, host: u32) -> Time {
        let link = &self.links[self.uplink(host) as usize];
        Time((link.free.saturating_sub(link.queue / 2) >> TICK_BITS) + 1)
    }

    /// What has passed over a link.
    pub fn stats(&self, link: u32) -> LinkStats {
        self.links[link as usize].stats
    }

    /// What has passed over all links.
    pub fn stats_total(&self) -> LinkStats {
        self.links
            .iter()
            .fold(LinkStats::default(), |a, l| LinkStats {
                packets: a.packets + l.stats.packets,
                bytes: a.bytes + l.stats.bytes,
                overflowed: a.overflowed + l.stats.overflowed,
                lost: a.lost + l.stats.lost,
                doubled: a.doubled + l.stats.doubled,
                corrupted: a.corrupted + l.stats.corrupted,
            })
    }

    /// Changes a link's rate; what waits in its queue then counts at the new rate.
    pub fn set_rate(&mut self, link: u32, bytes_per_s: u64) {
        let now = self.queue.now();
        self.links[link as usize].run_at(bytes_per_s, now);
    }

    /// Changes what goes wrong on a link.
    pub fn set_faults(&mut self, link: u32, faults: LinkFaults) {
        let l = &mut self.links[link as usize];
        l.faulty = faults != LinkFaults::NONE;
        l.faults = faults;
        l.bad = false;
    }

    /// Sets what a link does not let through.
    pub fn block(&mut self, link: u32, blocked: Blocked) {
        self.links[link as usize].blocked = blocked;
    }

    /// Sets an alarm for `at`; `a` and `b` tell the caller later what the alarm is for.
    pub fn alarm(&mut self, at: Time, a: u32, b: u32) {
        self.queue.push(at.0, Due::Alarm { a, b });
    }

    /// Adds a multicast group without members and returns its number.
    pub fn group(&mut self) -> u32 {
        self.groups.push(Membership {
            members: 0,
            below: vec![0; self.switches.len()],
            fan: vec![Vec::new(); self.switches.len()],
            tables: None,
        });
        self.groups.len() as u32 - 1
    }

    /// Lets `host` receive what is sent to `group`; the host must not have joined already.
    pub fn join(&mut self, group: u32, host: u32) {
        self.count(group, host, true);
    }

    /// Lets `host`, which has joined, no longer receive what is sent to `group`.
    pub fn leave(&mut self, group: u32, host: u32) {
        self.count(group, host, false);
    }

    fn count(&mut self, group: u32, host: u32, joins: bool) {
        let m = &mut self.groups[group as usize];
        m.members = if joins { m.members + 1 } else { m.members - 1 };
        let mut up = self.host_up[host as usize];
        let mut changes = true; // whether the link below began or ceased to lead to members
        loop {
            let End::Switch(s) = self.links[up as usize].to else {
                unreachable!("a link upwards ends at a switch")
            };
            let s = s as usize;
            if changes && joins {
                m.fan[s].push(up ^ 1);
            } else if changes {
                m.fan[s].retain(|&l| l != up ^ 1);
            }
            m.below[s] = if joins {
                m.below[s] + 1
            } else {
                m.below[s] - 1
            };
            changes = m.below[s] == u32::from(joins);
            match self.switches[s].up {
                Some(l) => up = l,
                None => return,
            }
        }
    }

    /// Hands a packet of a host to the network at `at` (now or later, in rising order per host).
    pub fn send(&mut self, at: Time, packet: Rc<Packet>) {
        let up = self.uplink(packet.from);
        let slot = self.store(packet);
        self.transmit(up, at.0.max(self.queue.now()), slot);
        self.release(slot);
    }

    /// Delivers a packet to a host at `at` without a sender: a late copy, or a hostile datagram.
    pub fn inject(&mut self, at: Time, host: u32, packet: Rc<Packet>) {
        let slot = self.store(packet);
        let link = self.downlink(host);
        self.queue.push(at.0, Due::Packet { link, slot });
    }

    /// The next thing that concerns the world outside the network.
    pub fn next_happening(&mut self) -> Option<Happening> {
        loop {
            match self.queue.pop()? {
                Due::Alarm { a, b } => return Some(Happening::Alarm { a, b }),
                Due::Packet { link, slot } => {
                    if let Some(h) = self.arrived(link, slot) {
                        return Some(h);
                    }
                }
            }
        }
    }

    fn arrived(&mut self, link: u32, slot: u32) -> Option<Happening> {
        self.hops += 1;
        let to = self.links[link as usize].to;
        let switch = match to {
            End::Host(host) => {
                let packet = self.slots[slot as usize].packet.clone();
                self.release(slot);
                return packet.map(|packet| Happening::Arrive { host, packet });
            }
            End::Switch(s) => s as usize,
        };
        let now = self.queue.now();
        let target = match &self.slots[slot as usize].packet {
            Some(p) => p.to,
            None => unreachable!("a packet under way is in its slot"),
        };
        match target {
            Target::Host(h) => {
                let s = &self.switches[switch];
                let next = if (s.lo..s.hi).contains(&h) {
                    Some(s.down[((h - s.lo) / s.child_span) as usize])
                } else {
                    s.up
                };
                if let Some(next) = next
                    && next != link ^ 1
                {
                    self.transmit(next, now, slot);
                }
            }
            Target::Group(g) if self.groups[g as usize].tables.is_some() => {
                for next in self.copies(g, switch, link) {
                    self.transmit(next, now, slot);
                }
            }
            Target::Group(g) => {
                for i in 0..self.groups[g as usize].fan[switch].len() {
                    let next = self.groups[g as usize].fan[switch][i];
                    if next != link ^ 1 {
                        self.transmit(next, now, slot);
                    }
                }
                let m = &self.groups[g as usize];
                if let Some(up) = self.switches[switch].up
                    && up != link ^ 1
                    && m.members > m.below[switch]
                {
                    self.transmit(up, now, slot);
                }
            }
        }
        self.release(slot);
        None
    }

    /// Puts a packet into a link's queue, or drops it.
    fn transmit(&mut self, link: u32, at: u64, slot: u32) {
        let Some(packet) = &self.slots[slot as usize].packet else {
            unreachable!("a packet under way is in its slot")
        };
        let multicast = matches!(packet.to, Target::Group(_));
        let way_ns = packet.way_ns;
        let len = packet.bytes.len() as u64 + self.overhead;
        let l = &mut self.links[link as usize];
        let start = l.free.max(ticks(at));
        let waiting = start - ticks(at);
        let takes = len * l.cost;
        if waiting > 0 && waiting + takes > l.queue {
            l.stats.overflowed += 1;
            return;
        }
        let idle = start.saturating_sub(l.free) / (PACKET * l.cost).max(1);
        l.free = start + takes;
        let end = match l.to {
            End::Switch(_) if self.cut_through => start,
            _ => l.free,
        };
        let mut arrives = (end >> TICK_BITS) + l.delay_ns;
        if matches!(l.to, End::Host(_)) {
            arrives += way_ns;
        }
        let blocked = match l.blocked {
            Blocked::Nothing => false,
            Blocked::Multicast => multicast,
            Blocked::All => true,
        };
        if blocked {
            l.stats.lost += 1;
            return;
        }
        let mut corrupt = None;
        if l.faulty {
            let fate = l.faults.fate(&mut l.bad, idle, multicast, &mut l.rng);
            if fate.lost {
                l.stats.lost += 1;
                return;
            }
            arrives += fate.delay_ns;
            if let Some(after) = fate.again_ns {
                l.stats.doubled += 1;
                l.stats.packets += 1;
                l.stats.bytes += len;
                self.slots[slot as usize].refs += 1;
                self.queue.push(arrives + after, Due::Packet { link, slot });
            }
            l.stats.corrupted += u64::from(fate.corrupt.is_some());
            corrupt = fate.corrupt;
        }
        l.stats.packets += 1;
        l.stats.bytes += len;
        let slot = match corrupt {
            None => {
                self.slots[slot as usize].refs += 1;
                slot
            }
            Some(change) => self.changed(slot, change),
        };
        self.queue.push(arrives, Due::Packet { link, slot });
    }

    /// Stores a copy of a packet in which one byte is changed. The other copies stay as they are.
    fn changed(&mut self, slot: u32, (byte, bits): (u64, u8)) -> u32 {
        let Some(packet) = &self.slots[slot as usize].packet else {
            unreachable!("a packet under way is in its slot")
        };
        let mut packet = Packet::clone(packet);
        let at = (byte % packet.bytes.len() as u64) as usize;
        packet.bytes[at] ^= bits;
        self.store(Rc::new(packet))
    }

    /// Stores a packet in a slot with one reference.
    fn store(&mut self, packet: Rc<Packet>) -> u32 {
        let slot = Slot {
            packet: Some(packet),
            refs: 1,
        };
        match self.free_slots.pop() {
            Some(n) => {
                self.slots[n as usize] = slot;
                n
            }
            None => {
                self.slots.push(slot);
                self.slots.len() as u32 - 1
            }
        }
    }

    fn release(&mut self, slot: u32) {
        let s = &mut self.slots[slot as usize];
        s.refs -= 1;
        if s.refs == 0 {
            s.packet = None;
            self.free_slots.push(slot);
        }
    }
}

impl Link {
    fn run_at(&mut self, bytes_per_s: u64, now_ns: u64) {
        let waiting = self.free.saturating_sub(ticks(now_ns));
        let bytes = waiting.checked_div(self.cost).unwrap_or(0);
        self.cost = ((1_000_000_000u128 << TICK_BITS) / u128::from(bytes_per_s.max(1)))
            .clamp(1, u128::from(u32::MAX)) as u64;
        self.queue = self.queue_bytes.saturating_mul(self.cost);
        self.free = ticks(now_ns) + bytes * self.cost;
    }
}

/// Time that `bytes` take at `bytes_per_s`.
pub fn transfer_time(bytes: u64, bytes_per_s: u64) -> Duration {
    Duration::from_nanos((u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_s)) as u64)
}
