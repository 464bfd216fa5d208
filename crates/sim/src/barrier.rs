//! Barriers of a cluster's hosts: when each host enters, what is recorded, and what must never
//! happen.

use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use fabricast::proto::wire::{self, Frame};
use fabricast::proto::{Dest, Event, GroupId, OpId, Time};

use crate::object::World;
use crate::scenario::Scenario;
use crate::workload::BarrierPlan;

/// A host's part in the barriers of one plan.
#[derive(Debug)]
pub(crate) struct Entrant {
    pub(crate) plan: usize,
    /// The host's index among the group's members.
    pub(crate) place: usize,
    pub(crate) entered: usize,
    pub(crate) left: usize,
    pub(crate) not_before: u64,
    /// Barriers that the host has entered and not left, in order.
    pub(crate) ops: VecDeque<OpId>,
}

impl Entrant {
    /// Number of barriers of `all` that the host has not left.
    pub(crate) fn rest(&self, all: &[BarrierPlan]) -> usize {
        all[self.plan].algorithms.len() - self.left
    }
}

/// When the members of a group entered and left one barrier, in the order of the members.
/// [`Time::NEVER`] stands for a member that has not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Crossing {
    /// When each member entered the barrier.
    pub entered: Vec<Time>,
    /// When each member was told that all members had entered.
    pub left: Vec<Time>,
}

impl Crossing {
    /// Time from the last entry to the last exit.
    pub fn time(&self) -> Duration {
        let last = |times: &[Time]| times.iter().max().copied().unwrap_or_default();
        last(&self.left).since(last(&self.entered))
    }
}

/// Complains when a host leaves a barrier too early or a barrier fails without a reason.
#[derive(Debug)]
pub(crate) struct Watchman {
    world: Rc<World>,
    /// Per plan: its group's members, and how many barriers each has entered.
    pub(crate) plans: Vec<(Vec<usize>, Vec<usize>)>,
    /// Pairs of a host and the peer that it was told is gone.
    parted: Vec<(usize, usize)>,
}

impl Watchman {
    pub(crate) fn new(scenario: &Scenario, world: Rc<World>) -> Watchman {
        let members = |p: &BarrierPlan| scenario.groups[p.group].members.clone();
        let plans = scenario.barriers.iter().map(members);
        Watchman {
            world,
            plans: plans.map(|m| (m.clone(), vec![0; m.len()])).collect(),
            parted: Vec::new(),
        }
    }

    /// Notes that `host` has been told that `peer` is gone.
    pub(crate) fn removed(&mut self, host: usize, peer: usize) {
        self.parted.push((host, peer));
    }

    pub(crate) fn left(&self, plan: usize, place: usize, number: usize, event: Event) {
        let (members, entered) = &self.plans[plan];
        let parted = |(a, b): &(usize, usize)| members.contains(a) && members.contains(b);
        let late = entered.iter().position(|&n| n <= number);
        let what = match (event, late) {
            (Event::Complete(_), None) => return,
            (Event::Complete(_), Some(late)) => {
                format!("before host {} has entered", members[late])
            }
            (Event::Failed(_), _) if self.parted.iter().any(parted) => return,
            _ => format!("with {event:?}"),
        };
        let host = members[place];
        self.world
            .complain(|| format!("host {host} leaves barrier {number} of plan {plan} {what}"));
    }
}

/// Loses the first transmission of every barrier word ([`crate::fault::Faults::first_words`]).
#[derive(Debug, Default)]
pub(crate) struct FirstWords {
    /// Words seen: source, destination, group, and the word's count and round.
    seen: BTreeSet<(u32, Target, GroupId, u32, u16)>,
}

type Target = (bool, u32);

impl FirstWords {
    /// Whether a datagram carries a word that its source has not sent to its destination before.
    pub(crate) fn loses(&mut self, from: u32, dest: Dest, bytes: &[u8]) -> bool {
        let Ok(datagram) = wire::decode(bytes) else {
            return false;
        };
        let dest = match dest {
            Dest::Address(g) => (true, g.0),
            Dest::Node(n) => (false, n.0),
        };
        datagram.frames().any(|frame| match frame {
            Frame::Word(w) => self
                .seen
                .insert((from, dest, w.group, w.at.count.0, w.at.round)),
            _ => false,
        })
    }
}
