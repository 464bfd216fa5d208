//! Hosts enter and leave barriers.

use std::collections::VecDeque;

use fabricast::proto::{Event, Refused, Time};

use super::{Cluster, group_id};
use crate::barrier::{Crossing, Entrant};
use crate::host::think;

impl Cluster<'_> {
    /// Before the run: notes which host takes part in which barriers.
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

    /// Enters the barriers that `h` may enter now. Returns when it may enter more.
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

    /// Leaves a barrier if this event of a host ends one. Returns whether it does.
    pub(crate) fn leave(&mut self, h: usize, event: Event) -> bool {
        let (Event::Complete(op) | Event::Failed(op) | Event::Mismatch(op)) = event else {
            return false;
        };
        // As at the end of a broadcast: the host leaves when its processor is done with what it
        // received.
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
