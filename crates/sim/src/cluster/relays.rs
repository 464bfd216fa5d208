//! Hosts do their parts in a baseline.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use fabricast::collective::{Begun, Channel, Executor, Pace, Peer, Step};
use fabricast::proto::{Command, GroupId, Seq, Time};

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
                roles.insert((peer, role.root), r);
            }
            if roles.is_empty() {
                continue; // the host takes no part
            }
            let (seed, disk) = (self.scenario.seed, self.scenario.disk(h));
            let world = (&self.world, &self.hosts[h].bell);
            let buffers = PatternBuffer::all(&b, seed, h, disk, world);
            let all: Vec<Vec<Step>> = b.steps(self.hosts.len(), h).collect();
            let numbering = self.numbering;
            let channel = |peer| {
                let (group, other) = match peer {
                    Peer::Group { group, root } => (group, root),
                    Peer::Rank(peer) => (pairs[&pair(h, peer)], peer),
                    Peer::Local { .. } => unreachable!("baselines know no hosts"),
                };
                Channel {
                    network: (),
                    group: group_id(group),
                    node: numbering.node(other as u32),
                }
            };
            // In the order of the steps, as a rank meets its peers.
            let mut known = BTreeSet::new();
            for step in all.iter().flatten() {
                let Channel { group, node, .. } = channel(step.peer);
                if !known.insert(step.peer) || !matches!(step.peer, Peer::Rank(_)) {
                    continue;
                }
                let command = Command::GroupAdd {
                    group,
                    address: None,
                    members: vec![numbering.node(h as u32), node],
                    payload_size: b.payload_size,
                    start: Seq(0),
                };
                if let Err(e) = self.hosts[h].driver.command(Time::ZERO, command) {
                    self.world
                        .complain(|| format!("host {h}: channel refused: {e}"));
                }
            }
            let mut executor = Executor::new(0);
            for (steps, buffer) in all.into_iter().zip(buffers) {
                let pace = Pace::Listed { ahead: b.ahead };
                executor.add(GroupId(0), pace, steps, buffer, channel);
            }
            let enters = match b.enter.iter().find(|e| e.0 == h) {
                Some(&(_, at)) => at,
                None if h == b.root => b.start,
                None => Duration::ZERO,
            };
            self.hosts[h].relay = Some(Box::new(Relay {
                executor,
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
            match relay.executor.next(Time(now), &mut self.hosts[h].driver) {
                Ok(Some(Begun { id, step, op })) => {
                    let step = relay.executor.step(id, step).copied();
                    let buffer = relay.executor.buffer(id);
                    if let (Some(step), Some(buffer), Some(((), op))) = (step, buffer, op) {
                        let progress = Rc::clone(&buffer.made);
                        self.begun(h, relay.role(&step), op, progress, step.part.len);
                    }
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
