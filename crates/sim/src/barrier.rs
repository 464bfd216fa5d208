//! Barriers of a cluster's hosts: when each enters, what is recorded, and what must never be.

use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use fabricast::proto::wire::{self, Frame};
use fabricast::proto::{Dest, Event, GroupId, OpId, Refused, Time};

use crate::cluster::{Cluster, group_id};
use crate::host::think;
use crate::object::World;
use crate::scenario::Scenario;
use crate::workload::BarrierPlan;

/// A host's part in the barriers of one plan.
#[derive(Debug)]
pub(crate) struct Entrant {
    plan: usize,
    /// Its place among the group's members.
    place: usize,
    entered: usize,
    left: usize,
    not_before: u64,
    /// The barriers that it has asked for and not left, in order.
    ops: VecDeque<OpId>,
}

impl Entrant {
    /// Barriers of `all` that it has not left.
    pub(crate) fn rest(&self, all: &[BarrierPlan]) -> usize {
        all[self.plan].algorithms.len() - self.left
    }
}

/// When the members of a group, in their order, have entered and left one barrier. Who has not is
/// there with [`Time::NEVER`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Crossing {
    /// When each asked for it.
    pub entered: Vec<Time>,
    /// When each was told that all had.
    pub left: Vec<Time>,
}

impl Crossing {
    /// From the last entry to the last exit.
    pub fn time(&self) -> Duration {
        let last = |times: &[Time]| times.iter().max().copied().unwrap_or_default();
        last(&self.left).since(last(&self.entered))
    }
}

/// Looks on, and complains when somebody leaves too early or a barrier fails without a reason.
#[derive(Debug)]
pub(crate) struct Watchman {
    world: Rc<World>,
    /// Per plan: its group's members, and how many barriers each has entered.
    plans: Vec<(Vec<usize>, Vec<usize>)>,
    /// Hosts that have been told that a peer is gone, and whom.
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

    /// `host` has been told that `peer` is gone.
    pub(crate) fn removed(&mut self, host: usize, peer: usize) {
        self.parted.push((host, peer));
    }

    fn left(&self, plan: usize, place: usize, number: usize, event: Event) {
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

/// Loses the first transmission of every word ([`crate::fault::Faults::first_words`]).
#[derive(Debug, Default)]
pub(crate) struct FirstWords {
    /// From whom, to whom, of which group, and what it said.
    seen: BTreeSet<(u32, Target, GroupId, u32, u16)>,
}

type Target = (bool, u32);

impl FirstWords {
    /// Whether a datagram says a word that its source has not said to its destination before.
    pub(crate) fn loses(&mut self, from: u32, dest: Dest, bytes: &[u8]) -> bool {
        let Ok(datagram) = wire::decode(bytes) else {
            return false;
        };
        let dest = match dest {
            Dest::Group(g) => (true, g.0),
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

impl Cluster<'_> {
    /// Before the run: who takes part in which barriers.
    pub(crate) fn start_barriers(&mut self) {
        for (plan, p) in self.scenario.barriers.iter().enumerate() {
            let members = &self.scenario.groups[p.group].members;
            for (place, &host) in members.iter().enumerate() {
                let late = p.late.iter().find(|(h, _)| *h == host);
                let begins = late.map_or(p.start, |l| l.1);
                self.left += p.algorithms.len();
                self.hosts[host].entrants.push(Entrant {
                    plan,
                    place,
                    entered: 0,
                    left: 0,
                    not_before: begins.as_nanos() as u64,
                    ops: VecDeque::new(),
                });
            }
            let never = Crossing {
                entered: vec![Time::NEVER; members.len()],
                left: vec![Time::NEVER; members.len()],
            };
            self.crossings.push(vec![never; p.algorithms.len()]);
        }
    }

    /// Enters what may be entered. Returns when more may be.
    pub(crate) fn enter(&mut self, h: usize) -> u64 {
        let now = self.now();
        let mut later = u64::MAX;
        for e in 0..self.hosts[h].entrants.len() {
            loop {
                let host = &mut self.hosts[h];
                let entrant = &mut host.entrants[e];
                let (plan, number) = (entrant.plan, entrant.entered);
                let p = &self.scenario.barriers[plan];
                if number == p.algorithms.len() || entrant.ops.len() >= p.ahead {
                    break;
                }
                if entrant.not_before > now {
                    later = later.min(entrant.not_before);
                    break;
                }
                let algorithm = p.algorithms[number];
                let group = group_id(p.group);
                let op = match host.driver.barrier(Time(now), group, algorithm) {
                    Ok(op) => op,
                    Err(Refused::Busy) => break,
                    Err(e) => {
                        self.world
                            .complain(|| format!("host {h}: barrier {number} refused: {e}"));
                        break;
                    }
                };
                entrant.entered += 1;
                entrant.ops.push_back(op);
                self.crossings[plan][number].entered[entrant.place] = Time(now);
                if let Some(watchman) = &mut self.watchman {
                    watchman.plans[plan].1[entrant.place] += 1;
                }
                let numbers = [h as u64, 5 << 32 | plan as u64, number as u64];
                self.trace.note(now, numbers, || {
                    format!("h{h} enters b{plan}/{number}: {algorithm} as {op:?}")
                });
            }
        }
        later
    }

    /// An event of a host may be the end of one of its barriers. Whether it is.
    pub(crate) fn leave(&mut self, h: usize, event: Event) -> bool {
        let (Event::Complete(op) | Event::Failed(op) | Event::Mismatch(op)) = event else {
            return false;
        };
        // As a broadcast's end: when the processor is done with what it has received.
        let now = self.now().max(self.hosts[h].received_until());
        let host = &mut self.hosts[h];
        let front = |e: &Entrant| e.ops.front() == Some(&op);
        let Some(at) = host.entrants.iter().position(front) else {
            return false;
        };
        let most = self.scenario.barriers[host.entrants[at].plan].think_max;
        let thinks = think(&mut host.rng, most);
        let entrant = &mut host.entrants[at];
        entrant.ops.pop_front();
        let (plan, number, place) = (entrant.plan, entrant.left, entrant.place);
        entrant.left += 1;
        entrant.not_before = entrant.not_before.max(now + thinks);
        self.crossings[plan][number].left[place] = Time(now);
        self.left -= 1;
        self.host_done_at[h] = Time(now);
        let numbers = [h as u64, 6 << 32 | plan as u64, number as u64];
        self.trace.note(self.fabric.now().0, numbers, || {
            format!("h{h} leaves b{plan}/{number}: {event:?}")
        });
        if let Some(watchman) = &self.watchman {
            watchman.left(plan, place, number, event);
        }
        true
    }
}
