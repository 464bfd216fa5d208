//! Hosts do their parts in a baseline.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use fabricast::collective::{Channel, Direction, Peer, Runner};
use fabricast::proto::{Seq, Time};

use super::{Cluster, group_id};
use crate::baseline::{PatternBuffer, Relay, pair};
use crate::workload::StreamPlan;

impl Cluster<'_> {
    /// Gives each host its part in the baseline, if there is one.
    pub(crate) fn start_baseline(&mut self) {
        let Some(b) = self.scenario.baseline.clone() else {
            return;
        };
        let several = b.groups.len();
        let pairs = self.scenario.groups.iter().enumerate().skip(several);
        let pairs = pairs.map(|(g, plan)| (pair(plan.members[0], plan.members[1]), g));
        let pairs: BTreeMap<_, _> = pairs.collect();
        for h in 0..self.hosts.len() {
            let mut roles = BTreeMap::new();
            for (r, role) in self.hosts[h].roles.iter().enumerate() {
                let &StreamPlan { group, root, .. } = &self.scenario.streams[role.stream];
                let members = &self.scenario.groups[group].members;
                let peer = match group < several {
                    true => Peer::Group { group, root },
                    false => Peer::Rank(members[0] + members[1] - h),
                };
                let way = if role.root {
                    Direction::Send
                } else {
                    Direction::Receive
                };
                roles.insert((peer, way), r);
            }
            if roles.is_empty() {
                continue; // the host takes no part
            }
            let (seed, disk) = (self.scenario.seed, self.scenario.disk(h));
            let (world, bell) = (Rc::clone(&self.world), Rc::clone(&self.hosts[h].bell));
            let buffer = PatternBuffer::new(&b, seed, h, disk, world, bell);
            let mut runner = Runner::new(buffer, b.ahead);
            for steps in b.steps(self.hosts.len(), h) {
                runner.add(&steps);
            }
            let numbering = self.numbering;
            let opened = runner.open(
                Time::ZERO,
                &mut self.hosts[h].driver,
                (numbering.node(h as u32), b.payload_size, Seq(0)),
                |peer| {
                    let (group, other) = match peer {
                        Peer::Group { group, root } => (group, root),
                        Peer::Rank(peer) => (pairs[&pair(h, peer)], peer),
                    };
                    Channel {
                        group: group_id(group),
                        node: numbering.node(other as u32),
                    }
                },
            );
            if let Err(e) = opened {
                self.world
                    .complain(|| format!("host {h}: channel refused: {e}"));
            }
            let enters = match b.enter.iter().find(|e| e.0 == h) {
                Some(&(_, at)) => at,
                None if h == b.root => b.start,
                None => Duration::ZERO,
            };
            self.hosts[h].relay = Some(Box::new(Relay {
                runner,
                enters: enters.as_nanos() as u64,
                roles,
            }));
        }
    }

    /// Begins the steps that a host's part may begin. Returns when the host enters, if it has not.
    pub(crate) fn relay(&mut self, h: usize) -> u64 {
        let now = self.now();
        let Some(mut relay) = self.hosts[h].relay.take() else {
            return u64::MAX;
        };
        while relay.enters <= now {
            match relay.runner.next(Time(now), &mut self.hosts[h].driver) {
                Ok(Some((op, task))) => {
                    let (_, step) = relay.runner.step(task);
                    let (role, len) = (relay.roles[&(step.peer, step.way)], step.part.len);
                    let progress = Rc::clone(&relay.runner.buffer().made);
                    self.begun(h, role, op, progress, len);
                }
                Ok(None) => break,
                Err(e) => {
                    self.world.complain(|| format!("host {h}: refused: {e}"));
                    break;
                }
            }
        }
        let later = if relay.enters > now {
            relay.enters
        } else {
            u64::MAX
        };
        self.hosts[h].relay = Some(relay);
        later
    }
}
