//! What a run with a manager depends on, as a value, and how a seed becomes such a value.

use std::time::Duration;

use fabricast::proto::group::{HostId, HostSet, Strategy};
use fabricast::proto::rng::Rng;
use fabricast::proto::{AddressId, Barrier};

use super::manager::Behaviour;
use crate::topology::{LinkSpec, Topology};
use crate::workload::{Cost, Costs};

/// A communicator: when it is created, and what its hosts do with it.
#[derive(Clone, PartialEq, Debug)]
pub struct Plan {
    /// When its lowest host begins to create it.
    pub at: Duration,
    /// Its hosts.
    pub hosts: HostSet,
    /// Time for which each host computes once the communicator is ready there.
    pub compute: Duration,
    /// Its broadcasts, one after another: the root and the length.
    pub bcasts: Vec<(HostId, u64)>,
    /// Broadcasts that a host begins before an earlier one has ended there.
    pub ahead: usize,
    /// The last barrier.
    pub barrier: Barrier,
    /// Whether the creation fails once its lowest host has taken an address.
    pub fails: bool,
}

impl Plan {
    /// A communicator whose hosts compute nothing and broadcast one after another.
    pub fn new(at: Duration, hosts: HostSet, bcasts: Vec<(HostId, u64)>) -> Plan {
        Plan {
            at,
            hosts,
            compute: Duration::ZERO,
            bcasts,
            ahead: 1,
            barrier: Barrier::Release { fanout: 4 },
            fails: false,
        }
    }
}

/// Something that goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// A host ends without a word.
    Crash(HostId),
    /// The manager ends, and begins again after this time without its database.
    Restart(Duration),
    /// A host's process is stopped for this time.
    Stop(HostId, Duration),
    /// A host's port is down for a moment, so that the manager ends the host's memberships.
    PortDown(HostId),
}

/// A complete description of a run.
#[derive(Clone, PartialEq, Debug)]
pub struct Scenario {
    /// Seed of every random choice that is left.
    pub seed: u64,
    /// Number of hosts, 3 to 64.
    pub hosts: u32,
    /// How the hosts are connected.
    pub topology: Topology,
    /// Costs of datagrams at the hosts' processors.
    pub costs: Costs,
    /// Payload of the largest data packet in bytes.
    pub payload_size: u32,
    /// Fixed rate of each sender in bytes per second; `None`: senders find it.
    pub rate: Option<u64>,
    /// When groups get addresses.
    pub strategy: Strategy,
    /// Addresses that groups may have.
    pub addresses: u32,
    /// Whether the context has an address of its own.
    pub context_address: bool,
    /// Whether all communicators exist from the start and share the addresses by a hash of their
    /// hosts, as those of a context without a strategy do. The manager then has nothing to do, and
    /// only [`super::Subnet::work_only`] ends without a complaint.
    pub shared: bool,
    /// The manager.
    pub manager: Behaviour,
    /// Least and longest time that a message between hosts takes by the connections of the control
    /// channel.
    pub message: (Duration, Duration),
    /// Loss on each link in each direction, until the communicators have ended.
    pub loss: f64,
    /// Communicators.
    pub plans: Vec<Plan>,
    /// Faults, and when they happen.
    pub faults: Vec<(Duration, Fault)>,
    /// Time within which all communicators must have ended.
    pub complete_within: Duration,
}

impl Scenario {
    /// A healthy network and manager as measured (see [`Behaviour::opensm`]), without work.
    pub fn new(hosts: u32, strategy: Strategy) -> Scenario {
        let link = LinkSpec {
            rate: 1_000_000_000,
            delay: Duration::from_nanos(200),
            queue: 1 << 20,
        };
        let mut topology = Topology::two_level(8, link, link);
        topology.cut_through = true;
        Scenario {
            seed: 1,
            hosts,
            topology,
            costs: Costs::all(Cost {
                send: Duration::from_nanos(500),
                receive: Duration::from_nanos(1000),
                ..Cost::default()
            }),
            payload_size: 2000,
            rate: None,
            strategy,
            addresses: 64,
            context_address: true,
            shared: false,
            manager: Behaviour::opensm(),
            message: (Duration::from_micros(20), Duration::from_micros(50)),
            loss: 0.0,
            plans: Vec::new(),
            faults: Vec::new(),
            complete_within: Duration::from_secs(120),
        }
    }

    /// The scenario that a seed stands for.
    pub fn from_seed(seed: u64) -> Scenario {
        let mut rng = Rng::new(seed ^ 0x005b_4e70);
        let rng = &mut rng;
        let size = 1 + rng.below(5) as u32;
        let strategy = match rng.below(4) {
            0 => Strategy::Basic,
            1 => Strategy::Lazy,
            _ => Strategy::Pool {
                size,
                max: size + rng.below(8) as u32,
            },
        };
        let hosts = 3 + rng.below(14) as u32;
        let mut s = Scenario::new(hosts, strategy);
        s.seed = seed;
        s.topology.fanout = one(rng, &[vec![], vec![2], vec![4], vec![2, 2]]);
        s.addresses = one(rng, &[0, 1, 4, 8, 40, 40]);
        s.context_address = rng.chance(0.9);
        s.loss = one(rng, &[0.0, 0.0, 0.001, 0.02]);
        s.message.1 = us(one(rng, &[50, 500, 4000]));
        s.manager(rng);
        let groups = 3 + rng.below(20);
        let mut at = Duration::ZERO;
        for _ in 0..groups {
            // Some communicators come in a burst, some after a pause.
            let pause = one(rng, &[0, 100, 5000, 200_000, 500_000]);
            at += us(rng.below(pause + 1));
            let plan = s.plan(at, rng);
            s.plans.push(plan);
        }
        let until = at.as_micros() as u64 + 50_000;
        for _ in 0..one(rng, &[0, 0, 0, 1, 3]) {
            let host = HostId(rng.below(u64::from(hosts)) as u32);
            let fault = match rng.below(4) {
                // The coordinator crashes more rarely: nothing new happens without it.
                0 if host == HostId(0) && rng.chance(0.6) => continue,
                0 => Fault::Crash(host),
                1 => Fault::Restart(us(rng.below(3_000_000))),
                2 => Fault::Stop(host, us(rng.below(20_000_000))),
                _ => Fault::PortDown(host),
            };
            s.faults.push((us(rng.below(until)), fault));
        }
        s
    }

    fn manager(&mut self, rng: &mut Rng) {
        let m = &mut self.manager;
        m.service.1 = us(one(rng, &[40, 40, 3000]));
        m.compute.1 = us(one(rng, &[460, 460, 10_000]));
        m.outstanding = one(rng, &[1, 4, 4, 0]);
        *m = m.clone().slower(us(one(rng, &[0, 0, 500, 1000])));
        m.smp_lost = one(rng, &[0.0, 0.0, 0.0, 0.02]);
        m.limit = one(rng, &[0, 1, 4, 6, u32::MAX, u32::MAX, u32::MAX]);
        m.silent_limit = rng.chance(0.2);
        m.lost = one(rng, &[0.0, 0.0, 0.03, 0.15]);
        if rng.chance(0.1) {
            m.denied = Some(AddressId(1 + rng.below(5) as u32));
        }
        let lame = HostId(rng.below(u64::from(self.hosts)) as u32);
        match rng.below(12) {
            0 => m.barred = Some(lame),
            1 => m.unheard = Some(lame),
            _ => {}
        }
    }

    fn plan(&self, at: Duration, rng: &mut Rng) -> Plan {
        let n = self.hosts;
        let hosts: HostSet = match rng.below(6) {
            0 => HostSet::first_hosts(n),
            1 => HostSet::first_hosts(n / 2 + 1),
            2 => (n / 2..n).map(HostId).collect(),
            3 => (0..n).step_by(2).map(HostId).collect(),
            _ => {
                let count = 2 + rng.below(u64::from(n) - 1) as u32;
                let host = |_| HostId(rng.below(u64::from(n)) as u32);
                (0..count).map(host).collect()
            }
        };
        let all: Vec<_> = hosts.iter().collect();
        let count = rng.below(8);
        let bcast = |_| (one(rng, &all), one(rng, &[4, 1000, 20_000, 100_000]));
        let bcasts = (0..count).map(bcast).collect();
        Plan {
            at,
            hosts,
            compute: us(one(rng, &[0, 100, 10_000, 400_000])),
            bcasts,
            ahead: one(rng, &[1, 2, 4]),
            barrier: one(
                rng,
                &[
                    Barrier::Dissemination { ways: 1 },
                    Barrier::Central,
                    Barrier::Release { fanout: 4 },
                    Barrier::Release { fanout: 4 },
                ],
            ),
            fails: rng.chance(0.05),
        }
    }
}

fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

fn one<T: Clone>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.below(of.len() as u64) as usize].clone()
}
