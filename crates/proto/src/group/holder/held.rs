//! What a host holds of one address.

use crate::group::address::State;
use crate::group::hosts::HostSet;
use crate::mutant::{self, Mutant};
use crate::time::Time;

/// What this host holds of one address.
pub(super) struct Held {
    pub(super) state: State,
    /// The present term; `None` once the address is withdrawn.
    pub(super) term: Option<u32>,
    /// Groups within these hosts may send to the address.
    pub(super) hosts: Option<HostSet>,
    /// A request is under way.
    pub(super) asked: bool,
    /// Requests without an answer.
    pub(super) tries: u32,
    /// When the next request, or the timeout of the one under way, is due.
    pub(super) due: Time,
    /// The coordinator has said nothing of a proof in this term, and the membership was not lost.
    pub(super) untold: bool,
    /// Groups that send to the address.
    pub(super) users: u32,
    pub(super) requested: Option<Time>,
    pub(super) joined: Option<Time>,
    pub(super) proven: Option<Time>,
}

impl Held {
    pub(super) fn new(state: State) -> Held {
        Held {
            state,
            term: None,
            hosts: None,
            asked: false,
            tries: 0,
            due: Time::ZERO,
            untold: false,
            users: 0,
            requested: None,
            joined: None,
            proven: None,
        }
    }

    /// Whether groups of this host may send to the address.
    pub(super) fn may_send(&self) -> bool {
        let early = mutant::active(Mutant::UsedBeforeProof) && self.state == State::Joined;
        self.term.is_some() && (self.state.may_send() || early)
    }

    /// The hosts within which groups may send to the address at present.
    pub(super) fn usable(&self) -> Option<&HostSet> {
        self.hosts.as_ref().filter(|_| self.may_send())
    }

    /// When this address has something to do; `NEVER` while requests have no turn.
    pub(super) fn deadline(&self, turn: bool) -> Time {
        let waits = self.state.waits_for_turn() || self.state == State::Leaving;
        match self.asked || waits && turn {
            true => self.due,
            false => Time::NEVER,
        }
    }
}
