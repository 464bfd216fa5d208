//! The coordinator, at host 0: which set of hosts has which address.
//!
//! It orders and waits: each `Join`, `Leave`, `Withdraw` and `Prove` has one answer, and a host is
//! told to join again only after it has left. Everything about addresses is decided
//! here, except that a host gives addresses of its share to new groups by itself.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use core::time::Duration;

use super::border::Config;
use super::holder::{CONTEXT, MULTICAST_MIN};
use super::hosts::{HostId, HostSet};
use super::message::{Grant, Message};
use super::statistics::{CoordinatorStatistics, Snapshot};
use crate::id::AddressId;
use crate::time::Time;

mod aside;
mod backoff;
mod capacity;
mod demand;
mod entry;
mod faults;
mod pool;
mod sets;
mod terms;

use aside::Aside;
use capacity::Capacity;
use entry::{Entry, Owner, Phase, VERIFY};
use pool::Pool;
use sets::{Group, GroupKey, Set};

/// Most addresses of the pool that are being joined and proven at the same time.
const REPLACED_MAX: usize = 8;
/// Time for which the coordinator does not use an address that the manager denies.
const BAN: Duration = Duration::from_secs(600);
/// Longest time for which the pool waits until hosts outside a new group have left its address.
const LEAVES_FIRST: Duration = Duration::from_millis(20);

/// Decides about all addresses of a context.
pub(super) struct Coordinator {
    count: u32,
    live: HostSet,
    /// Addresses that are not free.
    addresses: BTreeMap<AddressId, Entry>,
    /// Sets of hosts that have groups or an address.
    sets: BTreeMap<HostSet, Set>,
    /// Sets that have groups and no address.
    waiting: BTreeSet<HostSet>,
    groups: BTreeMap<GroupKey, Group>,
    capacity: Capacity,
    pool: Pool,
    /// Hosts that could not join what others have joined.
    aside: BTreeMap<HostId, Aside>,
    /// When to plan again: an address has rested, or hosts have not answered in time.
    again: Time,
    /// Free addresses that are not used before a time.
    resting: BTreeMap<AddressId, Time>,
    range: u32,
    /// The lowest number of an address.
    first: u32,
    /// The place in the range that follows the one allocated last.
    following: u32,
    /// Terms that have begun.
    terms: u32,
    /// An address may be free for those who wait.
    replan: bool,
    pub(super) orders: VecDeque<(HostId, Message)>,
    pub(super) statistics: CoordinatorStatistics,
}

impl Coordinator {
    pub(super) fn new(now: Time, config: &Config) -> Coordinator {
        let live = HostSet::first_hosts(config.hosts);
        let mut addresses = BTreeMap::new();
        if config.context_address {
            let mut entry = Entry::new(now, Owner::Context);
            entry.phase = Phase::Proven;
            entry.hosts = live.clone();
            entry.joined = live.clone();
            entry.proven = live.clone();
            entry.due = now + VERIFY;
            addresses.insert(CONTEXT, entry);
        }
        Coordinator {
            count: config.hosts,
            live,
            addresses,
            sets: BTreeMap::new(),
            waiting: BTreeSet::new(),
            groups: BTreeMap::new(),
            capacity: Capacity::new(config.addresses),
            pool: Pool::new(config.strategy, config.hosts),
            aside: BTreeMap::new(),
            again: Time::NEVER,
            resting: BTreeMap::new(),
            range: config.addresses,
            first: config.first,
            following: 0,
            terms: 0,
            replan: config.hosts >= MULTICAST_MIN,
            orders: VecDeque::new(),
            statistics: CoordinatorStatistics::default(),
        }
    }

    /// A message of a host.
    pub(super) fn message(&mut self, now: Time, from: HostId, message: Message) {
        if !self.live.contains(from) {
            return;
        }
        match message {
            Message::Joined(address) => self.joined(now, from, address),
            Message::Refused(address, why) => self.refused(now, from, address, why),
            Message::Lost(address) => self.lost(now, from, address),
            Message::Withdrawn(address) => self.withdrawn(now, from, address),
            Message::Left(address) => self.left(now, from, address),
            Message::Proved(address, silent) => self.proved(now, from, address, &silent),
            Message::Unreached(address) => self.unreached(now, from, address),
            Message::Created {
                group,
                hosts,
                grant,
            } => {
                let known = hosts.iter().all(|host| host.0 < self.count);
                if known && hosts.len() >= MULTICAST_MIN {
                    self.created(now, from, group, hosts, grant);
                }
            }
            Message::PutBack(grant) => self.put_back(now, from, grant),
            Message::Ended { group, lowest } => self.ended(now, from, group, lowest),
            Message::Sent(counts) => self.sent(now, from, &counts),
            // The others go to hosts.
            _ => {}
        }
    }

    /// A host is gone.
    pub(super) fn gone(&mut self, now: Time, host: HostId) {
        if self.live.remove(host) {
            self.aside.remove(&host);
            self.forget_user(now, host);
            self.forget_member(now, host);
            self.replan = true;
        }
    }

    /// Does what is due, and returns when something is due next.
    pub(super) fn tick(&mut self, now: Time) -> Time {
        let due = |entry: &Entry| entry.is_live() && entry.proof.is_none() && entry.due <= now;
        let due = self.addresses.iter().filter(|(_, entry)| due(entry));
        let due: Vec<_> = due.map(|(&address, _)| address).collect();
        for address in due {
            self.advance(now, address);
        }
        let late = self.addresses.iter();
        let late = late.filter(|(_, entry)| entry.late() <= now);
        let late: Vec<_> = late.map(|(&address, _)| address).collect();
        for address in late {
            self.unanswered_orders(now, address);
        }
        let pauses = self.end_pauses(now);
        self.replan |= self.again <= now;
        let lingering = self.end_lingering(now);
        if self.pool.window() <= now {
            let spares = self.spares();
            if self.pool.window_ended(now, spares) {
                self.drop_spare(now);
            }
            self.replan = true;
        }
        self.resting.retain(|_, until| *until > now);
        let able = self.able(now);
        let mut waiting = self.waiting.iter();
        let wanted = waiting.any(|hosts| able.includes(hosts));
        let wanted = wanted || self.spares() < self.pool.target();
        let wanted = wanted && able.len() >= MULTICAST_MIN;
        if wanted && self.capacity.allows(now, self.held(now)) {
            self.replan = true;
        }
        if core::mem::take(&mut self.replan) {
            self.plan(now);
        }
        let mut next = lingering.min(self.pool.window());
        next = next.min(pauses).min(self.again);
        if wanted {
            let rested = self.resting.values().copied().min();
            next = next.min(self.capacity.retry(now, self.held(now)));
            next = next.min(rested.unwrap_or(Time::NEVER));
            if let Some(until) = self.waits_for_leaves(now) {
                next = next.min(until);
            }
            let leaving = self.addresses.values().filter(|e| e.is_almost_left());
            let left = leaving.map(|entry| entry.answers.max(entry.rest));
            next = next.min(left.filter(|&at| at > now).min().unwrap_or(Time::NEVER));
        }
        for entry in self.addresses.values() {
            next = next.min(entry.late());
            let joins = entry.phase == Phase::Joining && !entry.refused;
            let waits = joins && !entry.joined.includes(&entry.hosts.common(&self.live));
            if entry.is_live() && entry.proof.is_none() && !waits {
                next = next.min(entry.due);
            }
        }
        next
    }

    /// Counts what the coordinator has at this moment.
    pub(super) fn snapshot(&self, snapshot: &mut Snapshot) {
        let taken = self
            .addresses
            .values()
            .filter(|entry| !entry.is_almost_left());
        snapshot.taken = taken.count() as u32;
        snapshot.spare = self.spares();
        let dealt = |entry: &&Entry| entry.is_live() && matches!(entry.owner, Owner::Dealt(_));
        snapshot.dealt = self.addresses.values().filter(dealt).count() as u32;
        snapshot.waiting = self.waiting.len() as u32;
        snapshot.alive = self.groups.len() as u32;
        snapshot.target = self.pool.target();
        let addresses = self.addresses.len() + self.resting.len() + self.orders.len();
        let users: usize = self.sets.values().map(|set| set.users.len()).sum();
        let sets = self.sets.len() + self.waiting.len() + self.groups.len() + users;
        snapshot.aside = self.aside.len() as u32;
        snapshot.entries += (addresses + sets) as u32;
    }

    /// Panics if the state contradicts itself.
    pub(super) fn invariants(&self) {
        for (address, entry) in &self.addresses {
            let parts = [&entry.asked, &entry.joined, &entry.leaving];
            for (at, part) in parts.iter().enumerate() {
                for other in &parts[at + 1..] {
                    assert!(part.common(other).is_empty(), "{address:?}: {parts:?}");
                }
                assert!(self.live.includes(part), "{address:?}: {part:?}");
            }
            assert!(entry.joined.includes(&entry.proven), "{address:?}");
            let mut refused = entry.refusals.keys();
            assert!(
                refused.all(|&host| entry.asked.contains(host)),
                "{address:?}"
            );
            if entry.is_live() {
                let back = entry.leaving.common(&entry.hosts);
                assert!(back.is_empty(), "{address:?}: {back:?}");
            }
            if entry.owner == Owner::Set && entry.is_live() {
                let set = self.sets.get(&entry.hosts);
                let has = set.and_then(|set| set.address);
                assert_eq!(has, Some(*address), "{:?}", entry.hosts);
            }
        }
        for (hosts, set) in &self.sets {
            assert!(set.address.is_some() || !set.users.is_empty(), "{hosts:?}");
            if let Some(address) = set.address {
                let entry = self.addresses.get(&address).expect("an address in use");
                assert!(entry.is_live() && entry.owner == Owner::Set);
                assert_eq!(entry.hosts, *hosts);
            }
            for id in &set.users {
                assert!(self.groups.contains_key(id), "{id:?}");
            }
        }
        for hosts in &self.waiting {
            let set = self.sets.get(hosts).expect("a set that waits");
            assert!(set.address.is_none() && !set.users.is_empty(), "{hosts:?}");
        }
    }

    /// Addresses that work or may come to work, without the context's.
    fn held(&self, now: Time) -> u32 {
        let works = |entry: &&Entry| {
            entry.owner != Owner::Context && entry.abandoned.is_none() && !entry.is_left(now)
        };
        self.addresses.values().filter(works).count() as u32
    }

    /// Addresses in the pool, or about to be in it again, whether proven yet or not.
    fn spares(&self) -> u32 {
        let spare = |entry: &&Entry| entry.is_spare() || entry.returns;
        self.addresses.values().filter(spare).count() as u32
    }

    /// A free address for these hosts, if one may be tried.
    fn allocate(&mut self, now: Time, hosts: &HostSet) -> Option<AddressId> {
        let held = self.held(now);
        if !self.capacity.allows(now, held) {
            return None;
        }
        let mut following = (0..self.range).map(|step| {
            let place = (u64::from(self.following) + u64::from(step)) % u64::from(self.range);
            AddressId(self.first + place as u32)
        });
        let serves = |entry: &Entry| entry.is_left(now) && entry.leaving.common(hosts).is_empty();
        let free = following.find(|address| {
            self.addresses.get(address).is_none_or(serves) && !self.resting.contains_key(address)
        })?;
        self.following = free.0 - self.first + 1;
        self.capacity.tried(now, held);
        Some(free)
    }

    /// Does not use an address before a time.
    fn rest(&mut self, address: AddressId, until: Time) {
        let rest = self.resting.entry(address).or_default();
        *rest = until.max(*rest);
    }

    /// Until when the pool waits with new addresses: hosts outside a group have yet to leave its
    /// address, and the manager is to serve them first. Does not wait where the pool is half empty.
    fn waits_for_leaves(&self, now: Time) -> Option<Time> {
        let proven = |entry: &&Entry| entry.is_spare() && entry.phase == Phase::Proven;
        let proven = self.addresses.values().filter(proven).count() as u32;
        let leave = |entry: &&Entry| {
            entry.owner == Owner::Set && entry.is_live() && !entry.leaving.is_empty()
        };
        let until = self.addresses.values().filter(leave);
        let until = until.map(|entry| entry.since + LEAVES_FIRST).max();
        until.filter(|until| *until > now && 2 * proven >= self.pool.target())
    }

    /// Whether an address is withdrawn to be in the pool for more hosts. They are tried by that
    /// one, which the manager has room for, and not by a new one.
    fn waits_for_return(&mut self, now: Time) -> bool {
        let returns = |entry: &&Entry| entry.returns && entry.answers > now;
        let until = self.addresses.values().filter(returns);
        let until = until.map(|entry| entry.answers).max();
        self.again = self.again.min(until.unwrap_or(Time::NEVER));
        until.is_some()
    }

    /// Gives free addresses to those who wait for one, and fills the pool.
    fn plan(&mut self, now: Time) {
        self.again = Time::NEVER;
        while let Some(hosts) = self.neediest(now) {
            let Some(address) = self.allocate(now, &hosts) else {
                break;
            };
            self.begin(now, address, hosts, Owner::Set);
        }
        // Before a new address is tried: that may be one too many, for which no host is at fault.
        self.widen(now);
        while self.waits_for_leaves(now).is_none() && !self.waits_for_return(now) {
            let joining = |entry: &&Entry| entry.is_spare() && entry.phase == Phase::Joining;
            let joining = self.addresses.values().filter(joining).count();
            let (enough, able) = (self.spares() >= self.pool.target(), self.able(now));
            if enough || joining >= REPLACED_MAX || able.len() < MULTICAST_MIN {
                break;
            }
            let Some(address) = self.allocate(now, &able) else {
                break;
            };
            self.begin(now, address, able, Owner::Spare);
        }
        if !self.waiting.is_empty() {
            self.make_room(now);
        }
        self.deal();
    }

    /// Deals proven addresses of the pool out to hosts, except for a reserve.
    fn deal(&mut self) {
        let undealt = |entry: &Entry| entry.owner == Owner::Spare && entry.phase == Phase::Proven;
        let free = self.addresses.iter().filter(|(_, entry)| undealt(entry));
        let free: Vec<_> = free.map(|(&address, _)| address).collect();
        let kept = self.pool.reserve() as usize;
        for &address in free.iter().skip(kept) {
            let mut shares: BTreeMap<HostId, u32> = BTreeMap::new();
            for entry in self.addresses.values() {
                if let Owner::Dealt(host) = entry.owner {
                    *shares.entry(host).or_default() += u32::from(entry.is_live());
                }
            }
            let share = |host| shares.get(&host).copied().unwrap_or(0);
            let Some(entry) = self.addresses.get_mut(&address) else {
                continue;
            };
            let hosts = entry.hosts.common(&self.live);
            if let Some(host) = self.pool.neediest(&hosts, share) {
                entry.owner = Owner::Dealt(host);
                let term = entry.term;
                let grant = Grant { address, term };
                self.orders.push_back((host, Message::Share(grant, hosts)));
            }
        }
    }

    /// Takes an address out of the pool, which has too many.
    fn drop_spare(&mut self, now: Time) {
        let spares = self.addresses.iter().filter(|(_, entry)| entry.is_spare());
        let oldest = spares.min_by_key(|(_, entry)| (entry.owner != Owner::Spare, entry.since));
        if let Some((&address, _)) = oldest {
            self.withdraw(now, address);
        }
    }
}
