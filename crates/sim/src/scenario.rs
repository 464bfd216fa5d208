//! Everything that a run depends on, as a value, and how a seed becomes such a value.

mod variants;

use std::collections::BTreeSet;
use std::time::Duration;

use fabricast::proto::rng::Rng;
use fabricast::proto::scheme::{Checksum, Copied, FeedbackTopology, How};
use fabricast::proto::{Barrier, Scheme};
use fabricast::transport::delayed::Delays;

use crate::baseline::Baseline;
use crate::fault::{Block, Blocked, Burst, Crash, Faults, LinkFaults, Pause, RateChange};
use crate::object::Disk;
use crate::topology::{LinkSpec, Topology};
use crate::transport;
use crate::workload::{
    BarrierPlan, Cost, Costs, GroupPlan, HostPlan, Posting, Sending, StreamPlan,
};

/// What the root does about a member that its node reports as slow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SlowRule {
    /// The root goes on waiting.
    Wait,
    /// The root removes the member.
    Drop,
}

/// From a time on, a host sends to a group by another address.
#[derive(Clone, PartialEq, Debug)]
pub struct Readdress {
    /// When.
    pub at: Duration,
    /// Which host.
    pub host: usize,
    /// The group's number in the scenario.
    pub group: usize,
    /// By what.
    pub by: SendsBy,
}

/// By what a host sends to a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendsBy {
    /// The group's own address.
    Own,
    /// One of the addresses that all hosts have joined.
    Shared(usize),
    /// Unicast to each member.
    Nothing,
}

/// A change of the members of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change {
    /// When.
    pub at: Duration,
    /// The stream whose members change; the only one of its group.
    pub stream: usize,
    /// The receiver that joins or leaves.
    pub host: usize,
    /// What happens.
    pub step: Step,
}

/// A step by which a receiver joins or leaves. Steps of the root and of the receiver lie apart,
/// since other means than the protocol carry the news from one to the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The root admits the receiver.
    Admit,
    /// The receiver adds the group.
    Join,
    /// The root removes the receiver.
    Remove,
    /// The receiver removes the group.
    Leave,
}

/// A complete description of a run.
#[derive(Clone, PartialEq, Debug)]
pub struct Scenario {
    /// Seed of every random choice that is left: faults, think times, the nodes' own choices.
    pub seed: u64,
    /// Number of hosts.
    pub hosts: usize,
    /// How the hosts are connected.
    pub topology: Topology,
    /// Costs of datagrams at the hosts' processors.
    pub costs: Costs,
    /// Most datagrams that a host takes at once.
    pub batch: usize,
    /// Most datagrams that a host sends before it receives again.
    pub sends_at_once: usize,
    /// Size of a host's receive queue in bytes.
    pub receive_buffer: usize,
    /// Whether a full send queue pushes back; otherwise it drops.
    pub back_pressure: bool,
    /// Bytes that the layers below add to a datagram.
    pub overhead: u64,
    /// Number of the first node, and distance between the numbers of two nodes.
    pub numbering: (u32, u32),
    /// Groups.
    pub groups: Vec<GroupPlan>,
    /// Streams; at most one for each group and root.
    pub streams: Vec<StreamPlan>,
    /// Barriers.
    pub barriers: Vec<BarrierPlan>,
    /// A baseline whose schedule drives the streams, which follow from it; see
    /// [`Scenario::baseline`].
    pub baseline: Option<Baseline>,
    /// Hosts with disks of their own.
    pub special: Vec<HostPlan>,
    /// Patience with which roots prove their paths before they send; `None`: they do not prove
    /// them.
    pub prove: Option<Duration>,
    /// How multicast is made reliable.
    pub scheme: Scheme,
    /// Packets that a node holds in its unexpected-message buffer.
    pub unexpected_max: u32,
    /// A fixed rate of each host in bytes per second, for all its streams together, in place of the
    /// pacer's.
    pub rate: Option<u64>,
    /// When the fixed rates of hosts change, and to which rate.
    pub rate_changes: Vec<RateChange>,
    /// Time after which a slow member is reported.
    pub patience: Duration,
    /// What the root does with a slow member.
    pub slow: SlowRule,
    /// The receivers that must not hold the others: the root finds them outpaced and removes them,
    /// or does not wait for them. It may find no others outpaced. `None`: no receiver may be
    /// outpaced.
    pub outpaced: Option<BTreeSet<usize>>,
    /// Faults.
    pub faults: Faults,
    /// Longest time after which a datagram is read once it is given to the network, and as long
    /// again until the driver has its memory back; zero: at once. `None`: at once, too, unless the
    /// crate is built so that all networks read late.
    pub delay: Option<Duration>,
    /// Multicast addresses that all hosts join, beside one for each group.
    pub shared_addresses: usize,
    /// When hosts begin to send by other addresses.
    pub readdressed: Vec<Readdress>,
    /// Receivers decline one in this many operations; zero: none.
    pub declined_one_in: u64,
    /// Changes of members, in the order of their times.
    pub changes: Vec<Change>,
    /// Time after everything has healed within which all operations must complete.
    pub complete_within: Duration,
    /// Time after completion from which on there must be silence.
    pub silent_after: Duration,
    /// Most events that a run may have.
    pub events_max: u64,
    /// Whether the checkers watch the run; a benchmark turns them off.
    pub judged: bool,
}

impl Scenario {
    /// A healthy network of `hosts` hosts on one switch, without work.
    pub fn new(hosts: usize) -> Scenario {
        Scenario {
            seed: 1,
            hosts,
            topology: Topology::single(LinkSpec::GIGABIT),
            costs: Costs::default(),
            batch: 64,
            sends_at_once: usize::MAX,
            receive_buffer: 2 << 20,
            back_pressure: true,
            overhead: 42,
            numbering: (0, 1),
            groups: Vec::new(),
            streams: Vec::new(),
            barriers: Vec::new(),
            baseline: None,
            special: Vec::new(),
            prove: None,
            scheme: Scheme::auto(),
            unexpected_max: 256,
            rate: None,
            rate_changes: Vec::new(),
            patience: Duration::from_secs(3600),
            slow: SlowRule::Wait,
            outpaced: None,
            faults: Faults::none(),
            delay: None,
            shared_addresses: 0,
            readdressed: Vec::new(),
            declined_one_in: 0,
            changes: Vec::new(),
            complete_within: Duration::from_secs(60),
            silent_after: Duration::from_secs(10),
            events_max: 50_000_000,
            judged: true,
        }
    }

    /// A scenario with one object of `len` bytes from host 0 to all others.
    pub fn bulk(hosts: usize, len: u64, payload_size: u32) -> Scenario {
        let mut s = Scenario::new(hosts);
        s.groups.push(GroupPlan {
            members: (0..hosts).collect(),
            payload_size,
            start: 0,
        });
        s.streams.push(StreamPlan::new(0, 0, vec![len]));
        s
    }

    /// Payload of the packets of a broadcast of `len` bytes in a group.
    pub fn payload_size(&self, group: usize, len: u64) -> u32 {
        let room = self.groups[group].payload_size;
        self.scheme
            .cut(len, room)
            .map_or(room, |cut| cut.payload_size)
    }

    /// Whether a host declines an operation of a stream. All receivers decline some operations.
    pub fn declines(&self, stream: usize, host: usize, number: usize) -> bool {
        let draw = |who: u64| {
            let name = (stream as u64) << 48 ^ who << 32 ^ number as u64;
            Rng::new(self.seed ^ name ^ 0xdec1).below(self.declined_one_in) == 0
        };
        self.declined_one_in > 0 && (draw(1 + host as u64) || draw(0))
    }

    /// Groups whose members change.
    pub fn groups_that_change(&self) -> BTreeSet<usize> {
        let streams = self.changes.iter().map(|c| c.stream);
        streams.map(|s| self.streams[s].group).collect()
    }

    /// Largest datagram that the scenario's groups need.
    pub fn datagram_max(&self) -> usize {
        let payload_size = self
            .groups
            .iter()
            .map(|g| g.payload_size)
            .max()
            .unwrap_or(0);
        (payload_size as usize + self.scheme.data_overhead())
            .max(fabricast::proto::limits::HEAD_MAX)
    }

    /// Whether this scenario says that networks read late.
    pub fn reads_late(&self) -> bool {
        self.delay.is_some_and(|delay| !delay.is_zero())
    }

    /// How late the network reads a host's datagrams.
    pub fn delays(&self, host: u32) -> Option<Delays> {
        transport::delays(self.delay, self.seed, host)
    }

    /// The disk of a host.
    pub fn disk(&self, host: usize) -> Disk {
        self.special
            .iter()
            .find(|p| p.host == host)
            .map(|p| p.disk)
            .unwrap_or_default()
    }

    /// The scenario that a seed of the soak stands for.
    pub fn from_seed(seed: u64) -> Scenario {
        Draw {
            rng: Rng::new(seed ^ 0x5ce7_a210),
        }
        .scenario(seed)
    }
}

struct Draw {
    rng: Rng,
}

fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

impl Draw {
    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.rng.below(of.len() as u64) as usize]
    }

    /// Returns true once in `n` times.
    fn rarely(&mut self, n: u64) -> bool {
        self.rng.below(n) == 0
    }

    fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.rng.below(to - from + 1)
    }

    fn scenario(&mut self, seed: u64) -> Scenario {
        let hosts = match self.rng.below(10) {
            0 => self.between(16, 40),
            1 | 2 => self.between(9, 16),
            _ => self.between(2, 8),
        } as usize;
        let mut s = Scenario::new(hosts);
        s.seed = seed;
        let link = LinkSpec {
            rate: self.one(&[12_500_000, 25_000_000, 125_000_000, 1_250_000_000]),
            delay: us(self.one(&[0, 1, 5, 20, 200])),
            queue: self.one(&[32, 64, 256, 1024]) * 1024,
        };
        s.topology = Topology::single(link);
        if hosts > 4 && self.rarely(2) {
            s.topology.fanout = vec![self.between(2, 6) as usize; self.between(1, 2) as usize];
        }
        if self.rarely(3) {
            s.costs = Costs::all(Cost {
                send: Duration::from_nanos(self.between(100, 2000)),
                receive: Duration::from_nanos(self.between(100, 4000)),
                byte_ps: self.between(0, 300),
                way: Duration::ZERO,
            });
        }
        s.batch = self.one(&[1, 8, 64]);
        s.receive_buffer = self.one(&[64, 208, 1024, 4096]) * 1024;
        s.back_pressure = !self.rarely(4);
        s.numbering = self.one(&[(0, 1), (1, 1), (1000, 7), (0xffff_0000, 3)]);
        s.unexpected_max = self.one(&[0, 1, 16, 64, 256]);
        self.scheme(&mut s);
        self.work(&mut s);
        if self.rarely(2) {
            s.prove = Some(ms(self.one(&[1000, 2000])));
        }
        self.faults(&mut s);
        if self.rarely(6) {
            s.slow = SlowRule::Drop;
            s.patience = ms(self.one(&[20, 200, 1000]));
        }
        // Later additions are drawn last, so that the rest of a seed keeps its meaning.
        if self.rarely(4) {
            s.scheme.checksum = self.one(&[Checksum::Additive, Checksum::Crc32c]);
            let often = self.one(&[0.0, 0.001, 0.02]);
            s.faults.down.corrupt = often;
            // In an additive sum, two changes may cancel out.
            if s.scheme.checksum == Checksum::Crc32c {
                s.faults.up.corrupt = often;
            }
        }
        if self.rarely(4) {
            s.scheme.feedback.piggyback = us(self.one(&[100, 1000, 2000]));
        }
        s.scheme.credits = self.rarely(6);
        s.scheme.copied = match self.one(&[0, 0, 2000, 100_000]) {
            0 => Copied::Never,
            most => Copied::UpTo(most),
        };
        self.barriers(&mut s);
        // Completion takes long if the sender notices losses by itself and its queue drops most of
        // a burst.
        s.complete_within = Duration::from_secs(300);
        s.events_max = 3_000_000;
        s
    }

    fn scheme(&mut self, s: &mut Scenario) {
        let scheme = &mut s.scheme;
        if self.rarely(3) {
            *scheme = self.preset();
            return;
        }
        scheme.window = self.one(&[16, 64, 256, 1024, 16_384]);
        if self.rarely(2) {
            scheme.feedback.every = self.one(&[4, 16, 64, 256]).min(scheme.window / 2);
            scheme.feedback.skewed = self.rarely(2);
            scheme.feedback.spacing_min = us(self.one(&[0, 200, 2000]));
            scheme.feedback.delay_max = ms(self.one(&[2, 20]));
            scheme.detect.reorder_min = us(self.one(&[50, 500, 2000]));
            scheme.detect.rto_min = ms(self.one(&[2, 10, 50]));
            scheme.repair.nack_delay = us(self.one(&[0, 500, 4000]));
            scheme.repair.how = self.one(&[
                How::Coded,
                How::Parity,
                How::Parity,
                How::Cheaper,
                How::Unicast,
                How::Multicast,
            ]);
        } else {
            scheme.feedback.every = scheme.feedback.every.min(scheme.window / 2);
        }
    }

    /// One of the papers' schemes, or a combination of several.
    fn preset(&mut self) -> Scheme {
        let n = self.one(&[1, 2, 3, 5, 16]);
        let mut scheme = match self.rng.below(7) {
            0 => Scheme::basic(),
            1 => Scheme::acknowledged(),
            2 | 3 => Scheme::coroot(n),
            4 => Scheme::tree(n.max(2)),
            5 => return Scheme::channels(n),
            _ => return Scheme::nack(),
        };
        match self.rng.below(4) {
            0 => scheme = scheme.aggregate(self.one(&[2, 10, 32])),
            1 => scheme = scheme.skewed(self.one(&[2, 10, 32])),
            _ => {}
        }
        // In one case of three, receivers notice losses and the sender does not.
        scheme.detect.by_sender = !self.rarely(3);
        if self.rarely(3) {
            scheme.repair.how = self.one(&[How::Coded, How::Cheaper, How::Multicast]);
        }
        scheme
    }

    fn lens(&mut self, payload_size: u64) -> Vec<u64> {
        let edges = [
            0,
            1,
            payload_size - 1,
            payload_size,
            payload_size + 1,
            2 * payload_size,
            3 * payload_size - 1,
        ];
        match self.rng.below(4) {
            // One large object.
            0 => {
                let packets = self.between(100, 1500);
                vec![packets * payload_size - self.rng.below(payload_size)]
            }
            // Many small objects, back to back.
            1 => {
                let n = self.between(20, 200);
                (0..n).map(|_| self.one(&edges)).collect()
            }
            // Objects of all sizes.
            2 => {
                let n = self.between(3, 20);
                let mut lens = Vec::new();
                for _ in 0..n {
                    let large = self.rng.below(100 * payload_size);
                    let edge = self.one(&edges);
                    lens.push(if self.rarely(2) { large } else { edge });
                }
                lens
            }
            _ => vec![self.one(&edges)],
        }
    }

    fn work(&mut self, s: &mut Scenario) {
        let groups = if self.rarely(4) {
            self.between(2, 3)
        } else {
            1
        };
        for group in 0..groups as usize {
            let mut members: Vec<usize> = (0..s.hosts).collect();
            for i in (1..members.len()).rev() {
                members.swap(i, self.rng.below(i as u64 + 1) as usize);
            }
            if group > 0 && members.len() > 2 {
                members.truncate(self.between(2, members.len() as u64) as usize);
            }
            let payload_size = self.one(&[64, 100, 512, 1440, 1440, 8900]);
            let mut roots = members.clone();
            roots.sort_unstable();
            let count = if self.rarely(4) { 3 } else { 1 };
            for _ in 0..count.min(roots.len()) {
                let root = roots.swap_remove(self.rng.below(roots.len() as u64) as usize);
                let lens = self.lens(u64::from(payload_size));
                let mut stream = StreamPlan::new(group, root, lens);
                stream.start = us(self.one(&[0, 0, 100, 20_000]));
                stream.sending = match self.rng.below(4) {
                    0 => Sending::Ahead(1),
                    1 => Sending::Ahead(4),
                    2 => Sending::Every(us(self.one(&[10, 300, 3000]))),
                    _ => Sending::Ahead(usize::MAX),
                };
                stream.posting = self.posting(&members, root);
                if s.scheme.topology != FeedbackTopology::Direct {
                    // In such a topology, others may wait for the last member.
                    stream.posting.last.clear();
                }
                s.streams.push(stream);
            }
            // The first sequence number is often close to the wrap.
            let wraps = 0u32.wrapping_sub(self.rng.below(300) as u32);
            let any = self.rng.bits() as u32;
            let start = self.one(&[0, wraps, wraps, any]);
            s.groups.push(GroupPlan {
                members,
                payload_size,
                start,
            });
        }
    }

    /// Draws barriers of some of the groups, beside their broadcasts.
    fn barriers(&mut self, s: &mut Scenario) {
        for group in 0..s.groups.len() {
            if !self.rarely(3) {
                continue;
            }
            let count = self.one(&[1, 3, 10, 40]);
            let same = self.rarely(2).then(|| self.algorithm());
            let algorithms = (0..count).map(|_| same.unwrap_or_else(|| self.algorithm()));
            let mut plan = BarrierPlan::new(group, algorithms.collect());
            plan.start = us(self.one(&[0, 0, 300, 20_000]));
            plan.think_max = us(self.one(&[0, 0, 10, 1000, 20_000]));
            plan.ahead = self.one(&[1, 1, 2, 100]);
            if self.rarely(3) {
                let host = self.one(&s.groups[group].members);
                plan.late.push((host, ms(self.between(1, 400))));
            }
            s.barriers.push(plan);
        }
    }

    fn algorithm(&mut self) -> Barrier {
        let (ways, fanout) = (self.one(&[1, 1, 2, 3, 7, 40]), self.one(&[2, 3, 4, 8, 40]));
        self.one(&[
            Barrier::Dissemination { ways },
            Barrier::Dissemination { ways },
            Barrier::Central,
            Barrier::CombiningTree { fanout },
            Barrier::Mcs,
            Barrier::Tournament,
            Barrier::Bst,
            Barrier::Butterfly,
            Barrier::Release { fanout },
            Barrier::Release { fanout },
        ])
    }

    fn posting(&mut self, members: &[usize], root: usize) -> Posting {
        let mut p = Posting {
            ahead: self.one(&[1, 2, 8, usize::MAX, usize::MAX]),
            think_max: us(self.one(&[0, 0, 0, 100, 2000])),
            late: Vec::new(),
            last: Vec::new(),
        };
        if self.rarely(3) {
            for _ in 0..self.between(1, 2) {
                let host = self.one(members);
                if host != root && p.late.iter().all(|(h, _)| *h != host) {
                    p.late.push((host, ms(self.between(1, 400))));
                }
            }
        }
        if self.rarely(8) && members.len() > 2 {
            let host = self.one(members);
            if host != root {
                p.last.push(host);
            }
        }
        p
    }

    fn link_faults(&mut self, hard: bool) -> LinkFaults {
        let mut f = LinkFaults::NONE;
        if self.rarely(2) {
            f.loss = self.one(&[0.001, 0.01, 0.05, if hard { 0.3 } else { 0.1 }]);
        }
        if self.rarely(3) {
            f.burst = Some(Burst {
                enter: self.one(&[0.001, 0.01]),
                leave: self.one(&[0.02, 0.1, 0.5]),
                loss: self.one(&[0.5, 1.0]),
            });
        }
        if self.rarely(3) {
            f.duplicate = self.one(&[0.01, 0.2]);
        }
        if self.rarely(3) {
            f.reorder = self.one(&[0.01, 0.2, 0.5]);
        }
        f.late_max = us(self.one(&[20, 200, 3000]));
        f
    }

    fn faults(&mut self, s: &mut Scenario) {
        let f = &mut s.faults;
        f.heal_at = ms(self.one(&[50, 200, 600]));
        if !self.rarely(8) {
            f.down = self.link_faults(true);
        }
        if self.rarely(2) {
            f.up = self.link_faults(false);
        }
        if self.rarely(3) {
            f.trunk = self.link_faults(false);
        }
        if self.rarely(4) {
            f.down.multicast_only = true;
        }
        if self.rarely(3) {
            f.hostile_every = Some(us(self.one(&[100, 1000, 10_000])));
        }
        f.echo = self.rarely(4);
        let heal = f.heal_at.as_micros() as u64;
        if self.rarely(4) {
            for _ in 0..self.between(1, 3) {
                let at = self.rng.below(heal);
                f.pauses.push(Pause {
                    host: self.rng.below(s.hosts as u64) as usize,
                    at: us(at),
                    length: us(self.between(1, heal - at)),
                });
            }
        }
        if self.rarely(4) {
            for _ in 0..self.between(1, 2) {
                let host = self.rng.below(s.hosts as u64) as usize;
                let busy = s.streams.iter().any(|t| t.root == host);
                if !busy && f.crashes.iter().all(|c| c.host != host) {
                    f.crashes.push(Crash {
                        host,
                        at: us(self.rng.below(heal)),
                        noticed_after: us(self.one(&[0, 100, 20_000, 300_000])),
                    });
                }
            }
        }
        if self.rarely(4) {
            let all = self.rarely(4);
            for host in 0..s.hosts {
                if all || self.rarely(s.hosts as u64) {
                    let at = if self.rarely(2) {
                        0
                    } else {
                        self.rng.below(heal)
                    };
                    let until = (!self.rarely(2)).then(|| us(at + self.between(1, heal)));
                    let at = us(at);
                    // An outage ends; the block of a firewall may stay.
                    let outage = until.is_some() && self.rarely(3);
                    let what = if outage {
                        Blocked::All
                    } else {
                        Blocked::Multicast
                    };
                    f.blocks.push(Block {
                        host,
                        what,
                        at,
                        until,
                    });
                }
            }
        }
        if self.rarely(6) {
            f.rates.push(RateChange {
                host: self.rng.below(s.hosts as u64) as usize,
                at: us(self.rng.below(heal)),
                rate: self.one(&[5_000_000, 25_000_000, 1_250_000_000]),
            });
        }
        // A block of a disk that the window cannot hold would never be complete.
        let packets = s.scheme.window / 2;
        let block_max = s
            .groups
            .iter()
            .map(|g| g.payload_size * packets)
            .min()
            .unwrap_or(0);
        for host in 0..s.hosts {
            if self.rarely(8) {
                let disk = Disk {
                    delay_max_ns: self.one(&[1000, 100_000, 5_000_000]),
                    corrupt: self.one(&[0.0, 0.0, 0.01, 0.1]),
                    full_after: self.rarely(12).then(|| self.rng.below(50)),
                    block: self.one(&[0, 0, 1000, 4096, 65_536]).min(block_max),
                };
                s.special.push(HostPlan { host, disk });
            }
        }
    }
}
