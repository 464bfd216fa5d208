//! What worlds are like.

use fabricast_proto::AddressId;
use fabricast_proto::group::{HostId, Strategy};
use fabricast_proto::rng::Rng;

use super::manager::Behaviour;

/// What a world is like.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub hosts: u32,
    pub strategy: Strategy,
    /// Addresses that groups may have.
    pub addresses: u32,
    pub context_address: bool,
    pub manager: Behaviour,
    /// Most microseconds that a message takes.
    pub delay_us: u64,
    /// Groups that are created in all.
    pub groups: u32,
    /// Groups that exist at the same time.
    pub at_once: usize,
    /// Times at which the network forgets memberships.
    pub losses: u32,
    /// Times at which a host does nothing for a while.
    pub stops: u32,
    pub crashes: u32,
}

impl Scenario {
    /// Whether the manager refuses, or does not answer, what hosts want, or a host is cut off.
    pub fn is_scarce(&self) -> bool {
        let m = &self.manager;
        let lame = m.barred.or(m.unheard).or(m.deaf);
        m.limit < u32::MAX || m.denied.is_some() || m.lost > 0.0 || lame.is_some()
    }

    /// A world without faults and limits.
    pub fn calm(hosts: u32, strategy: Strategy) -> Scenario {
        Scenario {
            hosts,
            strategy,
            addresses: 64,
            context_address: true,
            manager: Behaviour {
                limit: u32::MAX,
                silent_limit: false,
                service_us: 100,
                lag_us: 10_000,
                lost: 0.0,
                denied: None,
                barred: None,
                unheard: None,
                deaf: None,
                probes_lost: 0.0,
            },
            delay_us: 50,
            groups: 40,
            at_once: 8,
            losses: 0,
            stops: 0,
            crashes: 0,
        }
    }

    /// A world drawn from a seed.
    pub fn random(seed: u64) -> Scenario {
        let mut rng = Rng::new(seed ^ 0x5eed);
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
        let hosts = 3 + rng.below(7) as u32;
        let mut scenario = Scenario::calm(hosts, strategy);
        scenario.addresses = [0, 1, 4, 8, 40, 40][rng.below(6) as usize];
        scenario.context_address = rng.chance(0.9);
        scenario.manager.limit = [0, 1, 4, 6, u32::MAX, u32::MAX][rng.below(6) as usize];
        scenario.manager.silent_limit = rng.chance(0.3);
        scenario.manager.service_us = [10, 200, 3000][rng.below(3) as usize];
        scenario.manager.lag_us = [0, 1000, 10_000, 100_000][rng.below(4) as usize];
        scenario.manager.lost = [0.0, 0.0, 0.05, 0.3][rng.below(4) as usize];
        if rng.chance(0.1) {
            scenario.manager.denied = Some(AddressId(1 + rng.below(5) as u32));
        }
        if rng.chance(0.15) {
            let lame = Some(HostId(rng.below(u64::from(hosts)) as u32));
            match rng.below(3) {
                0 => scenario.manager.barred = lame,
                1 => scenario.manager.unheard = lame,
                _ => scenario.manager.deaf = lame,
            }
        }
        scenario.delay_us = [20, 500, 4000][rng.below(3) as usize];
        scenario.groups = 5 + rng.below(40) as u32;
        scenario.at_once = 1 + rng.below(12) as usize;
        scenario.losses = [0, 0, 1, 4][rng.below(4) as usize];
        // A host that is stopped cannot know what the network forgets.
        if scenario.losses == 0 && rng.chance(0.3) {
            scenario.stops = 1;
        }
        scenario.crashes = [0, 0, 0, 1, 2][rng.below(5) as usize];
        scenario
    }
}
