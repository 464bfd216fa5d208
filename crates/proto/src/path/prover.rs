//! Proves which members of a group multicast reaches, by probes of full datagram size.
//!
//! A join that was answered "ok" does not mean that the switches forward yet, and a path may carry
//! small datagrams and drop large ones. So the sender believes only in what has arrived. It tries
//! members that answer no multicast probe by unicast.

use core::time::Duration;

use super::Target;
use crate::border::PathState;
use crate::id::{AddressId, NodeId};
use crate::time::Time;
use crate::wire::{Probe, flag};
use crate::{GroupId, limits};

/// Time between the first two probes of a stage.
const INTERVAL_MIN: Duration = Duration::from_millis(2);
/// Longest time between two probes; with few members a [`HASTE`]th of this.
const INTERVAL_MAX: Duration = Duration::from_millis(20);
/// Largest number of members that are probed [`HASTE`] times as often as more members are.
const FEW: usize = 16;
/// Factor by which few members are probed more often. Where nine of ten datagrams are lost, one
/// probe of a hundred is answered.
const HASTE: u32 = 4;
/// Least number of probes of a stage; with few members it is [`HASTE`] times this. Time alone does
/// not end a stage, because a node that was not running for a while has not tried.
const PROBES_MIN: u32 = 20;
/// How long the result waits after a member answered by unicast alone: a multicast probe may yet
/// wait in its buffers.
const SETTLE: Duration = Duration::from_millis(50);

/// The probing of one group, or of one address of some of its members.
#[derive(Clone, Debug)]
pub struct Prover {
    group: GroupId,
    /// Nonces of multicast probes, which every node may see, and of unicast probes.
    nonces: [u32; 2],
    /// How long the unicast stage lasts at least.
    unicast_for: Duration,
    until: Time,
    /// Probes sent in this stage; in the unicast stage, rounds of probes.
    probes: u32,
    /// Earliest time of the result.
    settles: Time,
    next_at: Time,
    interval: Duration,
    unicast: bool,
    /// Whether multicast is tried at all.
    multicast: bool,
    /// The address that is proven: probes and answers go by it, and by nothing else.
    by: Option<AddressId>,
    /// The members, sorted by node: each with its path state, if known, and the number of probes
    /// that its answer took.
    members: Vec<(NodeId, Option<PathState>, u32)>,
    /// In the unicast stage: index of the member to probe next in this round.
    cursor: usize,
}

impl Prover {
    /// Starts probing `members`, sorted by node: for the time `multicast` by multicast, then for
    /// the time `unicast` by unicast. If `multicast` is zero, or no datagram goes to all of them at
    /// once (`alone`), it tries unicast alone.
    pub fn new(
        now: Time,
        group: GroupId,
        nonces: [u32; 2],
        members: impl Iterator<Item = NodeId>,
        [multicast, unicast]: [Duration; 2],
        alone: bool,
    ) -> Prover {
        let alone = alone || multicast.is_zero();
        let prover = Prover {
            group,
            nonces,
            unicast_for: unicast,
            until: now + if alone { unicast } else { multicast },
            probes: 0,
            settles: now,
            next_at: now,
            interval: INTERVAL_MIN,
            unicast: alone,
            multicast: !alone,
            by: None,
            members: members.map(|m| (m, None, 1)).collect(),
            cursor: 0,
        };
        debug_assert!(prover.members.len() <= limits::MEMBERS_MAX);
        prover
    }

    /// Starts probing `members`, sorted by node, by the address `by`, for the time `patience`. They
    /// answer by the same address.
    pub fn of_address(
        now: Time,
        group: GroupId,
        nonces: [u32; 2],
        members: impl Iterator<Item = NodeId>,
        by: AddressId,
        patience: Duration,
    ) -> Prover {
        // No time at all would mean that multicast is not to be tried.
        let patience = [patience.max(Duration::from_nanos(1)), Duration::ZERO];
        let mut prover = Prover::new(now, group, nonces, members, patience, false);
        prover.by = Some(by);
        prover
    }

    /// Takes a member's answer. One to a probe of another kind than this prover sends decides
    /// nothing. Before the first unicast probe no node can have the nonce of these, and a node that
    /// is no member never has it. So such an answer in a member's name decides nothing, either.
    pub fn ack(&mut self, now: Time, from: NodeId, probe: &Probe) {
        let flags = flag::MULTICAST | flag::BY_ADDRESS;
        let other = match self.by {
            Some(_) => probe.flags & flags != flags,
            None => probe.flags & flag::BY_ADDRESS != 0,
        };
        if other || probe.nonce != self.nonce(probe.flags & flag::MULTICAST != 0) {
            return;
        }
        if let Ok(i) = self.members.binary_search_by_key(&from, |r| r.0) {
            let multicast = probe.flags & flag::MULTICAST != 0;
            if self.members[i].1.is_none() {
                self.members[i].2 = self.probes.max(1);
            }
            self.members[i].1 = match self.members[i].1 {
                Some(PathState::Multicast) => Some(PathState::Multicast),
                _ if multicast => Some(PathState::Multicast),
                Some(_) => Some(PathState::Unicast),
                None => {
                    if self.multicast {
                        self.settles = now + SETTLE;
                    }
                    Some(PathState::Unicast)
                }
            };
        }
    }

    fn nonce(&self, multicast: bool) -> u32 {
        self.nonces[usize::from(!multicast)]
    }

    /// Members that have answered no probe yet.
    pub fn unanswered(&self) -> impl Iterator<Item = NodeId> + '_ {
        let silent = self.members.iter().filter(|r| r.1.is_none());
        silent.map(|r| r.0)
    }

    /// A member is gone.
    pub fn remove(&mut self, node: NodeId) {
        if let Ok(i) = self.members.binary_search_by_key(&node, |r| r.0) {
            self.members.remove(i);
            // Members after the cursor are still to be probed in this round.
            self.cursor -= usize::from(i < self.cursor);
        }
    }

    /// The result, once there is one: each member's path state, and how many probes of that kind it
    /// took.
    pub fn result(&self, now: Time) -> Option<impl Iterator<Item = (NodeId, PathState, u32)> + '_> {
        let known = self.members.iter().all(|r| r.1.is_some());
        let over = match known {
            true => now >= self.settles,
            false => (self.unicast || self.by.is_some()) && self.is_tried(now),
        };
        over.then(|| {
            self.members
                .iter()
                .map(|r| (r.0, r.1.unwrap_or(PathState::Nothing), r.2))
        })
    }

    /// Whether this stage has had its time and its probes.
    fn is_tried(&self, now: Time) -> bool {
        now >= self.until && self.probes >= PROBES_MIN * self.haste()
    }

    /// Factor by which these members are probed more often than those of a large group.
    fn haste(&self) -> u32 {
        let unknown = || self.members.iter().filter(|r| r.1.is_none()).count();
        let answering = match self.unicast {
            true => unknown(),
            false => self.members.len(),
        };
        if answering <= FEW { HASTE } else { 1 }
    }

    /// The next probe, if one is due.
    pub fn poll(&mut self, now: Time) -> Option<(Target, Probe)> {
        if !self.unicast && self.by.is_none() && self.is_tried(now) {
            self.unicast = true;
            self.until = now + self.unicast_for;
            self.probes = 0;
            self.interval = INTERVAL_MIN;
            self.next_at = now;
        }
        if now < self.next_at {
            return None;
        }
        let mut probe = Probe {
            group: self.group,
            nonce: self.nonce(!self.unicast),
            flags: 0,
            only: None,
            by: None,
        };
        let to = if self.unicast {
            let rest = &self.members[self.cursor..];
            match rest.iter().position(|r| r.1.is_none()) {
                Some(i) => {
                    self.cursor += i + 1;
                    return Some((Target::Node(rest[i].0), probe));
                }
                None => self.cursor = 0,
            }
            None
        } else {
            probe.flags = flag::MULTICAST;
            probe.by = self.by;
            if self.by.is_some() {
                probe.flags |= flag::BY_ADDRESS;
            }
            Some((Target::All, probe))
        };
        self.probes += 1;
        self.next_at = now + self.interval;
        self.interval = (self.interval * 3 / 2).min(INTERVAL_MAX / self.haste());
        to
    }

    /// When [`Prover::poll`] or [`Prover::result`] has something new.
    pub fn wake(&self) -> Time {
        self.next_at
    }
}
