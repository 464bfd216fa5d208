//! Costs of a broadcast, by a baseline or by multicast.

use std::collections::BTreeMap;
use std::time::Duration;

use fabricast::collective::{Action, Peer};
use fabricast::proto::Time;

use crate::baseline::{Baseline, pair};
use crate::cluster::{Cluster, Failure};
use crate::scenario::Scenario;
use crate::trace::Trace;
use crate::workload::{GroupPlan, StreamPlan};

/// Window in packets: far more than a round trip holds. It stays small for the sake of memory,
/// since there are as many streams as hosts.
const WINDOW: u32 = 1024;

impl Scenario {
    /// A scenario of a healthy network on which `baseline` runs.
    pub fn baseline(hosts: usize, baseline: Baseline) -> Scenario {
        let mut s = Scenario::new(hosts);
        s.scheme.window = WINDOW;
        let mut add = |members| {
            s.groups.push(GroupPlan {
                members,
                payload_size: baseline.payload_size,
                start: 0,
            });
            s.groups.len() - 1
        };
        for members in &baseline.groups {
            add(members.clone());
        }
        let mut pairs = BTreeMap::new();
        for host in 0..hosts {
            let mut streams = BTreeMap::<Peer, Vec<u64>>::new();
            for step in baseline.steps(hosts, host).flatten() {
                if step.action == Action::Send {
                    streams.entry(step.peer).or_default().push(step.part.len);
                }
            }
            for (peer, lens) in streams {
                let group = match peer {
                    Peer::Group { group, .. } => group,
                    Peer::Local { .. } => unreachable!("baselines know no hosts"),
                    Peer::Rank(peer) => {
                        let (low, high) = pair(host, peer);
                        let new = || add(vec![low, high]);
                        *pairs.entry((low, high)).or_insert_with(new)
                    }
                };
                s.streams.push(StreamPlan::new(group, host, lens));
            }
        }
        s.baseline = Some(baseline);
        s
    }
}

/// Measured costs of a broadcast, by whatever means.
#[derive(Clone, PartialEq, Debug)]
pub struct Timing {
    /// For each host, time from the root's beginning until the host had all messages (zero for a
    /// host that was sent none). For the root, time until it knew that its receivers had what it
    /// sent.
    pub completed: Vec<Duration>,
    /// Time until the last receiver had all messages.
    pub slowest: Duration,
    /// Bytes on the wire that the root sent.
    pub root_bytes: u64,
    /// Bytes on the wire that all hosts sent.
    pub all_bytes: u64,
    /// Packets and wake-ups given to nodes.
    pub events: u64,
}

/// Runs a scenario in which one host sends to others: by a baseline or, by multicast, in its first
/// stream.
pub fn measure(scenario: &Scenario) -> Result<Timing, Failure> {
    let (root, start) = match (&scenario.baseline, scenario.streams.first()) {
        (Some(b), _) => (b.root, b.start),
        (None, Some(s)) => (s.root, s.start),
        (None, None) => (0, Duration::ZERO),
    };
    let o = Cluster::new(scenario, Trace::silent()).run()?;
    let since = |t: Time| t.since(Time(start.as_nanos() as u64));
    let mut completed: Vec<Duration> = o.received_at.iter().map(|&t| since(t)).collect();
    completed[root] = Duration::ZERO;
    let slowest = completed.iter().max().copied().unwrap_or_default();
    completed[root] = since(o.host_done_at[root]);
    Ok(Timing {
        completed,
        slowest,
        root_bytes: o.sent_bytes[root],
        all_bytes: o.sent_bytes.iter().sum(),
        events: o.events,
    })
}
