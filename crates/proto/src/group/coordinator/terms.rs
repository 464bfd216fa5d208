//! The terms of an address: hosts join, probes prove it, hosts stop sending, hosts leave.

use core::time::Duration;

use super::entry::{ANSWERS, Entry, Owner, Phase, Proof, VERIFY, WITHDRAWALS};
use super::{BAN, Coordinator};
use crate::group::address::Refusal;
use crate::group::holder::{CONTEXT, MULTICAST_MIN};
use crate::group::hosts::{HostId, HostSet};
use crate::group::message::{Grant, Message};
use crate::id::AddressId;
use crate::mutant::{self, Mutant};
use crate::time::Time;

/// Wait after the first proof that hosts did not answer; tables are usually programmed soon.
const PROOF_MIN: Duration = Duration::from_millis(1);
/// Largest wait between two proofs of an address that hosts wait for.
const PROOF_MAX: Duration = Duration::from_secs(1);
/// Proofs in a row that some host did not answer before the coordinator sets the silent hosts aside
/// or gives the address up.
const PROOFS: u32 = 14;
/// Unanswered proofs after which the silent hosts join again.
const REJOIN_EVERY: u32 = 5;
/// Time from when a host has left an address until another host may join it, and from when a
/// membership was lost until the address is proven again. If the switches' tables followed the
/// manager later than that, probes could pass by the tables of before.
const REST: Duration = Duration::from_secs(1);
/// Wait before the next proof when a sender has noticed that multicast does not reach a member.
const RECHECK: Duration = Duration::from_secs(1);

impl Coordinator {
    /// Gives an address, which no host sends to, to other hosts and a new owner.
    pub(super) fn retarget(&mut self, now: Time, address: AddressId, hosts: HostSet, owner: Owner) {
        self.terms += 1;
        let term = self.terms;
        let Some(entry) = self.addresses.get_mut(&address) else {
            return;
        };
        entry.term = term;
        entry.owner = owner;
        entry.phase = Phase::Joining;
        entry.tries = 0;
        entry.due = now;
        entry.since = now;
        entry.idle = None;
        entry.returns = false;
        entry.hosts = hosts.clone();
        self.leave_outside(address);
        if owner == Owner::Set {
            let set = self.sets.entry(hosts.clone()).or_default();
            set.address = Some(address);
            self.waiting.remove(&hosts);
        }
        let Some(entry) = self.addresses.get_mut(&address) else {
            return;
        };
        let of = (owner == Owner::Set).then_some(&hosts);
        entry.unheard = 0;
        let all = hosts.common(&self.live);
        let new: Vec<_> = all.without(&entry.joined).iter().collect();
        for host in &new {
            entry.ask(now, *host);
        }
        for host in all.iter() {
            let grant = Grant { address, term };
            let hosts = of.cloned();
            let join = Message::Join { grant, hosts };
            self.orders.push_back((host, join));
        }
        for host in new {
            self.tries(now, address, host);
        }
        self.advance(now, address);
    }

    /// A group of fewer hosts has taken an address from the pool: the others leave.
    pub(super) fn narrow(&mut self, now: Time, address: AddressId, hosts: &HostSet) {
        let Some(entry) = self.addresses.get_mut(&address) else {
            return;
        };
        entry.owner = Owner::Set;
        entry.hosts = hosts.clone();
        entry.since = now;
        let set = self.sets.entry(hosts.clone()).or_default();
        set.address = Some(address);
        self.waiting.remove(hosts);
        self.leave_outside(address);
        self.advance(now, address);
    }

    /// Tells members that are not to be members to leave.
    pub(super) fn leave_outside(&mut self, address: AddressId) {
        let Some(entry) = self.addresses.get_mut(&address) else {
            return;
        };
        let members = entry.asked.iter().chain(entry.joined.iter());
        let outside: Vec<_> = members
            .filter(|&host| !entry.hosts.contains(host))
            .collect();
        for host in outside {
            entry.forget(host);
            entry.leaving.insert(host);
            self.orders.push_back((host, Message::Leave(address)));
        }
    }

    /// Ends a term: no host sends to the address from when all members have said so.
    pub(super) fn withdraw(&mut self, now: Time, address: AddressId) {
        let Some(entry) = self.addresses.get_mut(&address) else {
            return;
        };
        if !entry.is_live() {
            return;
        }
        entry.phase = Phase::Withdrawing;
        entry.answers = now + WITHDRAWALS;
        entry.idle = None;
        entry.awaited = entry.asked.clone();
        entry.awaited.extend(entry.joined.iter());
        for host in entry.awaited.iter() {
            self.orders.push_back((host, Message::Withdraw(address)));
        }
        let (owner, hosts, why) = (entry.owner, entry.hosts.clone(), entry.abandoned);
        if owner == Owner::Set {
            let why = why.unwrap_or(self.why_none(&hosts));
            self.set_without_address(&hosts, why);
        }
        self.advance(now, address);
    }

    /// Gives up an address that does not work, and remembers why.
    pub(super) fn give_up(&mut self, now: Time, address: AddressId, why: Refusal) {
        let Some(entry) = self.addresses.get_mut(&address) else {
            return;
        };
        if entry.abandoned.is_some() {
            return;
        }
        entry.abandoned = Some(why);
        self.end_trials(now, address);
        self.statistics.given_up[why.index()] += 1;
        match why {
            Refusal::Denied => {
                self.rest(address, now + BAN);
                self.capacity.pause(now, why);
            }
            Refusal::NoAnswer | Refusal::Gone => self.capacity.pause(now, why),
            // The network of some managers never says that it has no more addresses: it just does
            // not forward.
            Refusal::NoAddresses | Refusal::Unproven => {
                let held = self.held(now);
                self.capacity.refused(now, held, why);
            }
        }
        self.withdraw(now, address);
    }

    /// A host says that it is a member.
    pub(super) fn joined(&mut self, now: Time, host: HostId, address: AddressId) {
        if let Some(entry) = self.addresses.get_mut(&address)
            && entry.asked.remove(host)
        {
            entry.joined.insert(host);
            entry.refusals.remove(&host);
            entry.answers = now + ANSWERS;
            if entry.untold.contains(host) {
                entry.due = now;
            }
            self.judge_refusals(now, address);
            self.advance(now, address);
        }
    }

    /// A host says that the manager refuses it.
    pub(super) fn refused(&mut self, now: Time, host: HostId, address: AddressId, why: Refusal) {
        let Some(entry) = self.addresses.get_mut(&address) else {
            return;
        };
        if !entry.asked.contains(host) {
            return;
        }
        if entry.owner == Owner::Context {
            entry.refused = true;
            entry.due = entry.due.max(now + VERIFY);
        } else {
            entry.refusals.insert(host, why);
            self.judge_refusals(now, address);
        }
    }

    /// A host says that the network has forgotten its membership. It joins again by itself.
    pub(super) fn lost(&mut self, now: Time, host: HostId, address: AddressId) {
        if let Some(entry) = self.addresses.get_mut(&address)
            && entry.joined.contains(host)
        {
            entry.ask(now, host);
            entry.unprove(host);
            self.unproven(now, address);
            // The tables of before may still be there, for the manager to empty.
            if let Some(entry) = self.addresses.get_mut(&address) {
                entry.due = entry.due.max(now + rest());
            }
            self.advance(now, address);
        }
    }

    /// A host says that it has left.
    pub(super) fn left(&mut self, now: Time, host: HostId, address: AddressId) {
        let Some(entry) = self.addresses.get_mut(&address) else {
            return;
        };
        if !entry.leaving.remove(host) {
            return;
        }
        entry.rest = now + rest();
        // The pool may have waited for it.
        self.replan |= entry.leaving.is_empty();
        self.advance(now, address);
    }

    /// A host says that it sends no more.
    pub(super) fn withdrawn(&mut self, now: Time, host: HostId, address: AddressId) {
        if let Some(entry) = self.addresses.get_mut(&address) {
            entry.awaited.remove(host);
            self.advance(now, address);
        }
    }

    /// The prover says which hosts have not answered.
    pub(super) fn proved(&mut self, now: Time, host: HostId, address: AddressId, silent: &HostSet) {
        let Some(entry) = self.addresses.get_mut(&address) else {
            return;
        };
        let Some(proof) = entry.proof.take_if(|proof| proof.prover == host) else {
            return;
        };
        let mut silent = proof.of.common(silent);
        if silent.len() + 1 >= proof.of.len() && !silent.is_empty() {
            // Answers come by the address, too: perhaps they do not reach the prover.
            silent.insert(host);
            entry.unheard = entry.unheard.wrapping_add(1);
        }
        let answered = proof.of.without(&silent).common(&entry.joined);
        entry.proven.extend(answered.iter());
        for host in answered.common(&entry.untold).iter() {
            entry.untold.remove(host);
            self.orders.push_back((host, Message::Proven(address)));
        }
        let silent = silent.common(&entry.joined).common(&entry.hosts);
        for host in silent.iter() {
            entry.proven.remove(host);
        }
        if silent.is_empty() {
            entry.answered = now;
            entry.tries = 0;
            entry.due = match entry.phase {
                Phase::Proven => now + VERIFY,
                _ => now,
            };
        } else {
            self.statistics.silent += 1;
            self.unanswered(now, address, &silent);
        }
        self.advance(now, address);
    }

    /// A sender has noticed that an address does not reach a member.
    pub(super) fn unreached(&mut self, now: Time, from: HostId, address: AddressId) {
        if let Some(entry) = self.addresses.get_mut(&address)
            && entry.phase == Phase::Proven
            && entry.joined.contains(from)
            && entry.proof.is_none()
        {
            entry.due = entry.due.min(now + RECHECK);
        }
    }

    /// Hosts have not answered a proof.
    fn unanswered(&mut self, now: Time, address: AddressId, silent: &HostSet) {
        let keeps = |entry: &Entry| entry.phase == Phase::Proven && entry.owner == Owner::Context;
        // Groups without these hosts go on by the context's address, and groups with them have no
        // better one. A sender serves a member that multicast does not reach by unicast.
        let is_kept = self.addresses.get(&address).is_some_and(keeps);
        let was_proven = !is_kept && self.unproven(now, address);
        let Some(entry) = self.addresses.get_mut(&address) else {
            return;
        };
        entry.tries += 1;
        entry.mute = match entry.tries {
            1 => silent.clone(),
            _ => entry.mute.common(silent),
        };
        let wait = PROOF_MIN * (1 << (entry.tries - 1).min(10));
        let wait = match entry.owner {
            Owner::Context if entry.tries > PROOFS => VERIFY,
            _ => wait.min(PROOF_MAX),
        };
        entry.due = now + wait;
        if !entry.is_live() {
            return;
        }
        let is_first = is_kept && entry.tries == 1;
        if was_proven || is_first || entry.tries % REJOIN_EVERY == 0 {
            for host in silent.iter() {
                if is_kept {
                    entry.untold.insert(host);
                }
                entry.unprove(host);
                entry.ask(now, host);
                self.orders.push_back((host, Message::Rejoin(address)));
            }
        }
        if entry.tries >= PROOFS && address != CONTEXT {
            // Of a host that has answered a proof, other answers were lost by chance. If each host
            // has answered one, only the last proof is left to go by.
            let mute = match entry.mute.is_empty() {
                true => silent.clone(),
                false => entry.mute.clone(),
            };
            let needed = entry.hosts.common(&self.live);
            match mute.includes(&needed) {
                true => self.give_up(now, address, Refusal::Unproven),
                false => self.set_aside(now, address, &mute, Refusal::Unproven),
            }
        }
    }

    /// The proof of an address holds no longer: no host sends there. False if none held before.
    fn unproven(&mut self, now: Time, address: AddressId) -> bool {
        let Some(entry) = self.addresses.get_mut(&address) else {
            return false;
        };
        if entry.phase != Phase::Proven {
            return false;
        }
        entry.phase = Phase::Joining;
        entry.tries = 0;
        entry.due = now;
        for host in entry.hosts.common(&self.live).iter() {
            self.orders.push_back((host, Message::Unproven(address)));
        }
        true
    }

    /// Takes the steps for which everything is there.
    pub(super) fn advance(&mut self, now: Time, address: AddressId) {
        let Some(entry) = self.addresses.get_mut(&address) else {
            return;
        };
        let needed = entry.hosts.common(&self.live);
        match entry.phase {
            Phase::Joining if entry.joined.includes(&needed) => {
                entry.refused = false;
                let believed = mutant::active(Mutant::AnswerBelieved);
                if entry.proven.includes(&needed) || believed {
                    self.become_proven(now, address, &needed);
                } else if entry.proof.is_none() && entry.due <= now {
                    self.prove(address, needed);
                }
            }
            Phase::Joining if entry.refused && entry.due <= now => {
                entry.due = now + VERIFY;
                for host in entry.asked.iter() {
                    self.orders.push_back((host, Message::Rejoin(address)));
                }
            }
            Phase::Joining => {}
            Phase::Proven => {
                if entry.proof.is_none() && entry.due <= now {
                    self.prove(address, needed);
                }
            }
            Phase::Withdrawing => {
                if entry.awaited.is_empty() {
                    self.reuse(now, address);
                }
            }
            Phase::Leaving => {
                if entry.is_empty() && entry.proof.is_none() {
                    let rest = entry.rest;
                    self.addresses.remove(&address);
                    self.rest(address, rest);
                    self.replan = true;
                }
            }
        }
    }

    fn become_proven(&mut self, now: Time, address: AddressId, needed: &HostSet) {
        let Some(entry) = self.addresses.get_mut(&address) else {
            return;
        };
        entry.phase = Phase::Proven;
        entry.tries = 0;
        // The proof may be that of an earlier term.
        entry.due = (entry.answered + VERIFY).max(now + RECHECK);
        if entry.owner == Owner::Spare {
            self.pool.replaced(now.since(entry.since));
        }
        // One that is being tried beside it may not work.
        let works = |entry: &&Entry| entry.owner != Owner::Context && entry.phase == Phase::Proven;
        let work = self.addresses.values().filter(works).count();
        self.capacity.proven(work as u32);
        self.bring_back(address, needed);
        for host in needed.iter() {
            self.orders.push_back((host, Message::Proven(address)));
        }
        self.replan = true;
    }

    fn prove(&mut self, address: AddressId, needed: HostSet) {
        let Some(entry) = self.addresses.get_mut(&address) else {
            return;
        };
        let turn = entry.unheard % needed.len().max(1);
        let Some(prover) = needed.iter().nth(turn as usize) else {
            return;
        };
        self.statistics.proofs += 1;
        let mut others = needed.clone();
        others.remove(prover);
        entry.proof = Some(Proof { prover, of: needed });
        self.orders
            .push_back((prover, Message::Prove(address, others)));
    }

    /// Finds the next owner of an address that no host sends to, or has all hosts leave it.
    fn reuse(&mut self, now: Time, address: AddressId) {
        let Some(entry) = self.addresses.get(&address) else {
            return;
        };
        if entry.abandoned.is_none() {
            let next = match self.neediest(now) {
                Some(hosts) => Some((hosts, Owner::Set)),
                None if entry.returns || self.spares() < self.pool.target() => {
                    let able = self.able_to_join(now, address);
                    (able.len() >= MULTICAST_MIN).then_some((able, Owner::Spare))
                }
                None => None,
            };
            let next = next.filter(|(hosts, _)| entry.may_serve(now, &hosts.common(&self.live)));
            if let Some((hosts, owner)) = next {
                return self.retarget(now, address, hosts, owner);
            }
        }
        let Some(entry) = self.addresses.get_mut(&address) else {
            return;
        };
        entry.phase = Phase::Leaving;
        entry.returns = false;
        entry.answers = now + ANSWERS;
        entry.hosts = HostSet::new();
        self.leave_outside(address);
        self.advance(now, address);
    }

    /// Begins the first term of a free address.
    pub(super) fn begin(&mut self, now: Time, address: AddressId, hosts: HostSet, owner: Owner) {
        let mut entry = Entry::new(now, owner);
        if let Some(before) = self.addresses.remove(&address) {
            entry.leaving = before.leaving;
        }
        self.addresses.insert(address, entry);
        self.retarget(now, address, hosts, owner);
    }

    /// A host is gone: nothing waits for it any more.
    pub(super) fn forget_member(&mut self, now: Time, host: HostId) {
        let all: Vec<_> = self.addresses.keys().copied().collect();
        for address in all {
            let Some(entry) = self.addresses.get_mut(&address) else {
                continue;
            };
            entry.forget(host);
            entry.leaving.remove(host);
            entry.awaited.remove(host);
            entry.proof.take_if(|proof| proof.prover == host);
            if entry.owner == Owner::Dealt(host) {
                // Nobody can tell whether the host gave it to a group: all hosts are asked.
                self.withdraw(now, address);
            }
            self.judge_refusals(now, address);
            self.advance(now, address);
        }
    }
}

/// Time for which an address rests.
fn rest() -> Duration {
    match mutant::active(Mutant::OldTablesBelieved) {
        true => Duration::ZERO,
        false => REST,
    }
}
