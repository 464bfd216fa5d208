//! What the coordinator knows of one address that is not free.

use std::collections::BTreeMap;

use core::time::Duration;

use crate::group::address::Refusal;
use crate::group::hosts::{HostId, HostSet};
use crate::time::Time;

/// Time between two proofs of an address that is proven: the network may forget unnoticed.
pub(super) const VERIFY: Duration = Duration::from_secs(60);

/// Time in which hosts must say that they send no more.
pub(super) const WITHDRAWALS: Duration = Duration::from_secs(1);
/// Time in which hosts must answer an order to join once another host has.
pub(super) const ANSWERS: Duration = Duration::from_secs(5);

/// For which groups an address is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Owner {
    /// It is the context's own.
    Context,
    /// It is in the pool, and the coordinator may give it to any set of hosts.
    Spare,
    /// It is in the pool, and this host may give it to a group.
    Dealt(HostId),
    /// It is for groups of exactly [`Entry::hosts`], and may be shared by groups of fewer hosts.
    Set,
}

/// How far a term has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Hosts join, and probes prove the address. No host sends.
    Joining,
    /// Hosts may send.
    Proven,
    /// Hosts were told to send no more.
    Withdrawing,
    /// Hosts were told to leave.
    Leaving,
}

/// Probes that are under way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Proof {
    /// The host that sends the probes.
    pub(super) prover: HostId,
    /// The prover and the hosts that it probes, without those whose membership has changed since.
    pub(super) of: HostSet,
}

/// An address that is not free. Each member is in exactly one of the sets `asked`, `joined` and
/// `leaving`.
pub(super) struct Entry {
    pub(super) term: u32,
    pub(super) owner: Owner,
    pub(super) phase: Phase,
    /// The hosts that are to be members.
    pub(super) hosts: HostSet,
    /// Hosts that were told to join and have not said that they are members, or have lost it.
    pub(super) asked: HostSet,
    /// Hosts that are members, as the manager has told them.
    pub(super) joined: HostSet,
    /// Hosts that were told to leave and have not said that they have.
    pub(super) leaving: HostSet,
    /// Members that answered probes and have not changed their membership since.
    pub(super) proven: HostSet,
    /// Members of the context's address that joined it again since it was proven, and do not send
    /// by it before they are told of a proof.
    pub(super) untold: HostSet,
    /// Hosts that have yet to say that they send no more.
    pub(super) awaited: HostSet,
    pub(super) proof: Option<Proof>,
    /// When all of `proven` had answered.
    pub(super) answered: Time,
    /// Proofs in a row that some hosts did not answer.
    pub(super) tries: u32,
    /// Hosts that have answered none of these proofs.
    pub(super) mute: HostSet,
    /// When the next proof may begin.
    pub(super) due: Time,
    /// Hosts of the context's address that the manager has refused; `due` says when they try again.
    pub(super) refused: bool,
    /// Why the manager has refused hosts of `asked` another address.
    pub(super) refusals: BTreeMap<HostId, Refusal>,
    /// Until when hosts must answer: those of `asked` if others have, those of `awaited`, or those
    /// of `leaving` if the address is left by all.
    pub(super) answers: Time,
    /// Proofs that nobody answered: each time another host proves.
    pub(super) unheard: u32,
    /// Why the address is given up: it is left even where it could be used again.
    pub(super) abandoned: Option<Refusal>,
    /// When the owner got the address.
    pub(super) since: Time,
    /// It is withdrawn to be in the pool for more hosts.
    pub(super) returns: bool,
    /// Since when no group has the address; `None` while groups have it.
    pub(super) idle: Option<Time>,
    /// Until when no host that is no member may join: the switches' tables may still lead to hosts
    /// that have left.
    pub(super) rest: Time,
}

impl Entry {
    pub(super) fn new(now: Time, owner: Owner) -> Entry {
        Entry {
            term: 0,
            owner,
            phase: Phase::Joining,
            hosts: HostSet::new(),
            asked: HostSet::new(),
            joined: HostSet::new(),
            leaving: HostSet::new(),
            proven: HostSet::new(),
            untold: HostSet::new(),
            awaited: HostSet::new(),
            proof: None,
            answered: now,
            tries: 0,
            mute: HostSet::new(),
            due: now,
            refused: false,
            refusals: BTreeMap::new(),
            answers: Time::NEVER,
            unheard: 0,
            abandoned: None,
            since: now,
            returns: false,
            idle: None,
            rest: Time::ZERO,
        }
    }

    /// Whether groups have the address, or may get it from a share.
    pub(super) fn is_live(&self) -> bool {
        matches!(self.phase, Phase::Joining | Phase::Proven)
    }

    /// Whether the address is in the pool.
    pub(super) fn is_spare(&self) -> bool {
        self.is_live() && matches!(self.owner, Owner::Spare | Owner::Dealt(_))
    }

    /// A host is told to join, and has not answered.
    pub(super) fn ask(&mut self, now: Time, host: HostId) {
        self.joined.remove(host);
        self.asked.insert(host);
        self.refusals.remove(&host);
        self.answers = now + ANSWERS;
    }

    /// A host is no member any more, or is about to be none.
    pub(super) fn forget(&mut self, host: HostId) {
        self.asked.remove(host);
        self.joined.remove(host);
        self.refusals.remove(&host);
        self.unprove(host);
    }

    /// When the hosts that have not answered the order to join are late; `NEVER` if all have, or
    /// if none has: then it may be the manager that does not answer.
    pub(super) fn late(&self) -> Time {
        let some = !self.joined.is_empty() || !self.refusals.is_empty();
        match self.is_live() && some && !self.asked.is_empty() && self.owner != Owner::Context {
            true => self.answers,
            false => Time::NEVER,
        }
    }

    /// A host's membership is not what it was: no proof holds for it.
    pub(super) fn unprove(&mut self, host: HostId) {
        self.proven.remove(host);
        if let Some(proof) = &mut self.proof {
            proof.of.remove(host);
        }
    }

    /// Whether the address may be for these hosts in the next term: they are members already, or
    /// no table still leads to hosts that have left.
    pub(super) fn may_serve(&self, now: Time, hosts: &HostSet) -> bool {
        let rested = self.rests_until() <= now && self.leaving.common(hosts).is_empty();
        let member = |host| self.joined.contains(host) || self.asked.contains(host);
        rested || hosts.iter().all(member)
    }

    /// Until when the address rests. It does not wait for hosts that never say that they have left.
    pub(super) fn rests_until(&self) -> Time {
        match self.leaving.is_empty() {
            true => self.rest,
            false => self.rest.max(self.since + ANSWERS),
        }
    }

    /// Whether the address may be used again by hosts that are not among `leaving`, which have not
    /// said in time that they have left. If the network still delivers to them, they drop that.
    pub(super) fn is_left(&self, now: Time) -> bool {
        self.is_almost_left() && self.answers <= now && self.rest <= now
    }

    /// Whether hosts that were told to leave are all that the address has.
    pub(super) fn is_almost_left(&self) -> bool {
        let left = self.asked.is_empty() && self.joined.is_empty() && self.proof.is_none();
        self.phase == Phase::Leaving && left
    }

    /// Whether any of these hosts is a member.
    pub(super) fn has_any(&self, hosts: &HostSet) -> bool {
        !self.joined.common(hosts).is_empty() || !self.asked.common(hosts).is_empty()
    }

    /// Whether no host is a member.
    pub(super) fn is_empty(&self) -> bool {
        self.asked.is_empty() && self.joined.is_empty() && self.leaving.is_empty()
    }
}
