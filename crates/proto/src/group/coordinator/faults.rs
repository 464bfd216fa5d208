//! Which host is at fault where an address cannot be joined or proven: hosts that are set aside.
//!
//! The others keep their addresses, and new ones are without such a host. Its groups share the
//! context's address, or use unicast. After a pause the coordinator tries the host again, by one
//! address at a time.

use super::Coordinator;
use super::aside::Aside;
use super::entry::{Entry, Owner, Phase};
use crate::group::address::Refusal;
use crate::group::holder::MULTICAST_MIN;
use crate::group::hosts::{HostId, HostSet};
use crate::id::AddressId;
use crate::mutant::{self, Mutant};
use crate::time::Time;

impl Coordinator {
    /// The hosts that new addresses may be for.
    pub(super) fn able(&self, now: Time) -> HostSet {
        let mut able = self.live.clone();
        for (&host, aside) in &self.aside {
            if aside.until > now {
                able.remove(host);
            }
        }
        able
    }

    /// The hosts that an address of the pool may be for: those that were told to leave it, and have
    /// not said that they have, may never say so.
    pub(super) fn able_to_join(&self, now: Time, address: AddressId) -> HostSet {
        let able = self.able(now);
        match self.addresses.get(&address) {
            Some(entry) => able.without(&entry.leaving),
            None => able,
        }
    }

    /// The hosts that are set aside, and why.
    pub(in crate::group) fn all_aside(&self) -> Vec<(HostId, Refusal)> {
        let all = self.aside.iter();
        all.map(|(&host, aside)| (host, aside.why)).collect()
    }

    /// Why these hosts have no address.
    pub(super) fn why_none(&self, hosts: &HostSet) -> Refusal {
        let mut aside = self.aside.iter();
        let aside = aside.find(|(host, _)| hosts.contains(**host));
        aside.map_or(self.capacity.reason(), |(_, aside)| aside.why)
    }

    /// An address is joined by these hosts: one that was set aside is tried by it.
    pub(super) fn tries(&mut self, now: Time, address: AddressId, host: HostId) {
        if let Some(aside) = self.aside.get_mut(&host)
            && aside.until <= now
        {
            aside.begin_trial(now, address);
        }
    }

    /// Hosts have proven an address: those that were tried by it are able again.
    pub(super) fn bring_back(&mut self, address: AddressId, hosts: &HostSet) {
        let before = self.aside.len();
        self.aside
            .retain(|&host, aside| aside.trial != Some(address) || !hosts.contains(host));
        self.replan |= self.aside.len() < before;
    }

    /// An address is given up: hosts that were tried by it are tried again later.
    pub(super) fn end_trials(&mut self, now: Time, address: AddressId) {
        for aside in self.aside.values_mut() {
            if aside.trial == Some(address) {
                aside.fail(now, aside.why);
            }
        }
    }

    /// Hosts cannot join an address that others have joined. The others go on without them where no
    /// group can have the address yet; else it is withdrawn.
    pub(super) fn set_aside(
        &mut self,
        now: Time,
        address: AddressId,
        hosts: &HostSet,
        why: Refusal,
    ) {
        for host in hosts.iter() {
            match self.aside.get_mut(&host) {
                Some(aside) if aside.trial == Some(address) => aside.fail(now, why),
                Some(_) => {}
                None => {
                    self.statistics.set_aside[why.index()] += 1;
                    self.aside.insert(host, Aside::new(now, why));
                }
            }
        }
        self.replan = true;
        if why == Refusal::NoAnswer {
            self.take_shares_back(now, hosts);
        }
        let Some(entry) = self.addresses.get_mut(&address) else {
            return;
        };
        let left = entry.hosts.without(hosts);
        if entry.owner == Owner::Spare && left.common(&self.live).len() >= MULTICAST_MIN {
            entry.hosts = left;
            entry.tries = 0;
            // The pool's size follows how long a proof takes, without the wait for one host.
            entry.since = now;
            self.leave_outside(address);
            self.advance(now, address);
        } else {
            self.withdraw(now, address);
        }
    }

    /// Hosts that do not answer give no address to a group.
    fn take_shares_back(&mut self, now: Time, hosts: &HostSet) {
        let theirs = |entry: &Entry| match entry.owner {
            Owner::Dealt(host) => hosts.contains(host),
            _ => false,
        };
        let all = self.addresses.iter().filter(|(_, entry)| theirs(entry));
        let all: Vec<_> = all.map(|(&address, _)| address).collect();
        for address in all {
            self.withdraw(now, address);
        }
    }

    /// Decides about the hosts that the manager has refused an address, once it is known whether
    /// another host can join it.
    pub(super) fn judge_refusals(&mut self, now: Time, address: AddressId) {
        let Some(entry) = self.addresses.get(&address).filter(|entry| entry.is_live()) else {
            return;
        };
        let Some(&why) = entry.refusals.values().min() else {
            return;
        };
        if mutant::active(Mutant::OneForAll) {
            self.give_up(now, address, why);
        } else if !entry.joined.is_empty() {
            let all = entry.refusals.clone();
            for reason in Refusal::ALL {
                let of = all.iter().filter(|(_, why)| **why == reason);
                let of: HostSet = of.map(|(&host, _)| host).collect();
                if !of.is_empty() {
                    self.set_aside(now, address, &of, reason);
                }
            }
        } else if entry.refusals.len() >= entry.asked.len() as usize {
            self.give_up(now, address, why);
        }
    }

    /// Hosts have not answered the order to join in time, though others have.
    pub(super) fn unanswered_orders(&mut self, now: Time, address: AddressId) {
        let Some(entry) = self.addresses.get_mut(&address) else {
            return;
        };
        for host in entry.asked.iter() {
            entry.refusals.entry(host).or_insert(Refusal::NoAnswer);
        }
        self.judge_refusals(now, address);
    }

    /// Notes whose pause is over. Returns when the next is.
    pub(super) fn end_pauses(&mut self, now: Time) -> Time {
        let mut next = Time::NEVER;
        for aside in self.aside.values_mut() {
            if aside.until > now {
                next = next.min(aside.until);
            } else if aside.until > Time::ZERO {
                aside.until = Time::ZERO;
                aside.trial = None;
                self.replan = true;
            }
        }
        next
    }

    /// Has hosts join an address of the pool that was proven without them, one address at a time.
    pub(super) fn widen(&mut self, now: Time) {
        let able = self.able(now);
        let mut spares = self.addresses.values().filter(|entry| entry.is_spare());
        let returns = self.addresses.values().any(|entry| entry.returns);
        let joins = spares.any(|entry| entry.phase != Phase::Proven);
        if able.len() < MULTICAST_MIN || returns || joins {
            return;
        }
        let lacks = |entry: &Entry| {
            let wanted = able.without(&entry.leaving);
            entry.is_spare() && !entry.hosts.includes(&wanted)
        };
        let all = self.addresses.iter().filter(|(_, entry)| lacks(entry));
        let mut best = None;
        for (&address, entry) in all {
            if entry.may_serve(now, &able.without(&entry.leaving)) {
                let rank = (entry.owner != Owner::Spare, entry.since, address);
                best = best.min(Some(rank)).or(Some(rank));
            } else if entry.rests_until() > now {
                self.again = self.again.min(entry.rests_until());
            }
        }
        match best {
            Some((false, _, address)) => {
                let hosts = self.able_to_join(now, address);
                self.retarget(now, address, hosts, Owner::Spare);
            }
            Some((true, _, address)) => {
                if let Some(entry) = self.addresses.get_mut(&address) {
                    entry.returns = true;
                }
                self.withdraw(now, address);
            }
            None => {}
        }
    }
}
