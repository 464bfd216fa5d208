//! The pool: how many addresses are joined and proven in advance, and which host gets which share.

use core::time::Duration;

use crate::group::hosts::{HostId, HostSet};
use crate::group::strategy::Strategy;
use crate::time::Time;

/// Time over which the coordinator counts new groups.
const WINDOW: Duration = Duration::from_secs(1);
/// Weight of one group that a host created, in its share.
const CREATED: u32 = 64;
/// Weight of a host that has created none yet and is likely to.
const LIKELY: u32 = 32;

/// How many of so many addresses the coordinator keeps.
fn reserve(addresses: u32) -> u32 {
    addresses / 4
}

/// How large the pool is to be, and how likely each host needs addresses.
pub(super) struct Pool {
    size: u32,
    max: u32,
    target: u32,
    /// Groups created in this window, and in windows before, halved with each.
    created: u32,
    rate: u32,
    window: Time,
    /// How long it took lately to join and prove an address by all hosts.
    lead: Duration,
    /// Groups that each host, as their lowest, created lately, with a weight.
    demand: Vec<u32>,
}

impl Pool {
    pub(super) fn new(strategy: Strategy, hosts: u32) -> Pool {
        let (size, max) = strategy.sizes(hosts);
        // The last two hosts are no group's lowest: a pair uses unicast.
        let lowest = hosts.saturating_sub(2);
        let mut demand = vec![0; hosts as usize];
        if size - reserve(size) >= lowest {
            demand[..lowest as usize].fill(LIKELY);
            // A second one for host 0, once each other host has one.
            demand[0] = 2 * LIKELY - 1;
        } else {
            // Groups are mostly blocks of hosts: their lowest hosts divide the context evenly.
            for at in 0..size.min(hosts) {
                let bits = hosts.next_power_of_two().trailing_zeros();
                let place = match bits {
                    0 => 0,
                    _ => at.reverse_bits() >> (32 - bits),
                };
                if let Some(demand) = demand.get_mut(place as usize) {
                    *demand = LIKELY;
                }
            }
            demand[0] = 2 * LIKELY;
        }
        Pool {
            size,
            max,
            target: size,
            created: 0,
            rate: 0,
            window: Time::NEVER,
            lead: Duration::from_millis(100),
            demand,
        }
    }

    /// Addresses that are to be in the pool.
    pub(super) fn target(&self) -> u32 {
        self.target
    }

    /// Addresses that the coordinator keeps, for hosts whose share is used up.
    pub(super) fn reserve(&self) -> u32 {
        reserve(self.target)
    }

    /// A host has created a group; `missed` if no address was at hand.
    pub(super) fn created(&mut self, now: Time, host: HostId, missed: bool) {
        if self.max == 0 {
            return;
        }
        if let Some(demand) = self.demand.get_mut(host.0 as usize) {
            *demand = demand.saturating_add(CREATED);
        }
        self.created += 1;
        if missed {
            self.target = (self.target * 2).min(self.max);
        }
        self.window = self.window.min(now + WINDOW);
    }

    /// An address was joined and proven by all hosts in this time.
    pub(super) fn replaced(&mut self, lead: Duration) {
        self.lead = (self.lead * 3 + lead.min(Duration::from_secs(10))) / 4;
    }

    /// When a window ends.
    pub(super) fn window(&self) -> Time {
        self.window
    }

    /// A window has ended with this many addresses in the pool. Returns whether they are too many.
    pub(super) fn window_ended(&mut self, now: Time, spares: u32) -> bool {
        self.rate = self.created.max(self.rate / 2);
        self.created = 0;
        for demand in &mut self.demand {
            // Hosts that are likely to create groups stay so.
            *demand -= demand.saturating_sub(2 * LIKELY) / 2;
        }
        // Twice the groups that come while an address is replaced.
        let seconds = self.lead.as_secs_f64();
        let needed = (f64::from(self.rate) * seconds * 2.0).ceil() as u32;
        let shrunk = self.target - (self.target - self.size).div_ceil(4);
        self.target = shrunk.max(needed).clamp(self.size, self.max);
        let surplus = spares > self.target;
        let quiet = self.rate == 0 && self.target == self.size && !surplus;
        self.window = if quiet { Time::NEVER } else { now + WINDOW };
        surplus
    }

    /// The host that an address goes to: the one that creates most groups for its share, given the
    /// size of each host's share.
    pub(super) fn neediest(&self, live: &HostSet, share: impl Fn(HostId) -> u32) -> Option<HostId> {
        let weight = |host: HostId| {
            let demand = self.demand.get(host.0 as usize).copied().unwrap_or(0);
            demand / (share(host) + 1)
        };
        let hosts = live.iter().filter(|&host| weight(host) > 0);
        hosts.max_by_key(|&host| (weight(host), core::cmp::Reverse(host)))
    }
}
