//! `auto` against the papers' schemes, on one network under equal conditions.
//!
//! Method:
//! - Before the measured broadcast, a small broadcast warms up, and a pause follows. By then all
//!   receivers have posted and the root has heard them, so that neither its patience with unheard
//!   members nor first reports count.
//! - The time of a broadcast runs from the root's command until the last receiver has all of it.
//! - The cost is the bytes that the root puts on the wire and the feedback that it reads, from the
//!   command until all is silent.
//! - Of several seeds the median counts.
//! - Every scheme gets the same rate, just below the links'. So the comparison shows the schemes
//!   and not how the pacer finds its rate.
//! - Links into hosts lose packets once the broadcast has begun, each link independently, data and
//!   control alike. The n-th packet on a link meets the same fate under every scheme.
//! - Hosts cost no time. Every object is read in place, since a scheme's copies save only time of
//!   hosts.
//! - A scheme that is far slower than `auto` is given up.

mod verdict;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use fabricast::proto::scheme::{Copied, UnknownScheme};
use fabricast::proto::{Scheme, Time};

use fabricast_sim::Scenario;
use fabricast_sim::Trace;
use fabricast_sim::fault::{Burst, LinkFaults};
use fabricast_sim::parallel;
use fabricast_sim::topology::{LinkSpec, Topology};
use fabricast_sim::workload::Sending;
use fabricast_sim::{Cluster, Failure};

pub use verdict::{Standing, Verdict};

/// The name of our scheme.
pub const AUTO: &str = "auto";

/// Bytes of the broadcast that warms up.
const WARM_LEN: u64 = 4;
/// Time from the warm-up until the measured broadcast.
const PAUSE: Duration = Duration::from_secs(5);
/// Rate in bytes of UDP payload per second: with it, full datagrams of 1500 bytes take 97 % of a
/// link of 1 Gbit/s.
const RATE: u64 = 118_000_000;
/// Hosts at a switch, and switches at a switch above.
const FANOUT: usize = 32;

/// Longest time of a run of `auto`.
const AUTO_WITHIN: Duration = Duration::from_secs(60);
/// Most events of a run of `auto`.
const AUTO_EVENTS: u64 = 1_000_000_000;
/// Another scheme is given up after this many times the time that `auto` took.
const TIMES: u32 = 20;
/// Another scheme is given up after this many times the events that `auto` took.
const TIMES_EVENTS: u64 = 3;
/// Time before which no other scheme is given up.
const WITHIN_LEAST: Duration = Duration::from_secs(2);
/// Number of events before which no other scheme is given up.
const EVENTS_LEAST: u64 = 4_000_000;

/// Loss on the link into each host.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Loss {
    /// The share of packets that is lost.
    pub mean: f64,
    /// Packets that are lost in a row, on average; `None`: losses are independent.
    pub burst: Option<f64>,
}

impl Loss {
    fn faults(&self) -> LinkFaults {
        match self.burst {
            None => LinkFaults::uniform(self.mean),
            Some(packets) => LinkFaults {
                burst: Some(Burst::lossy(self.mean, packets)),
                ..LinkFaults::NONE
            },
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = (self.mean * 1e6).round() / 1e4;
        match self.burst {
            None => write!(f, "{percent} %"),
            Some(packets) => write!(f, "{percent} % x{packets}"),
        }
    }
}

impl FromStr for Loss {
    type Err = String;

    /// Parses a loss: `1` (per cent) or `1x8` (per cent, in bursts of 8 packets).
    fn from_str(text: &str) -> Result<Loss, String> {
        let (mean, burst) = match text.split_once('x') {
            Some((mean, burst)) => (mean, Some(burst)),
            None => (text, None),
        };
        let number = |s: &str, range: core::ops::RangeInclusive<f64>| {
            let n = s.trim().trim_end_matches('%').parse().ok();
            n.filter(|n| range.contains(n)).ok_or_else(|| {
                format!(
                    "{text:?} is no loss: write 1 for 1 %, or 1x8 for 1 % in bursts of 8 packets; \
                     at most 50 %, and bursts of 1 to 1000"
                )
            })
        };
        Ok(Loss {
            mean: number(mean, 0.0..=50.0)? / 100.0,
            burst: burst.map(|b| number(b, 1.0..=1000.0)).transpose()?,
        })
    }
}

/// A scheme and its name.
#[derive(Clone, PartialEq, Debug)]
pub struct Named {
    /// The scheme's name.
    pub name: String,
    /// The scheme.
    pub scheme: Scheme,
}

impl FromStr for Named {
    type Err = UnknownScheme;

    fn from_str(name: &str) -> Result<Named, UnknownScheme> {
        Ok(Named {
            name: name.to_string(),
            scheme: name.parse()?,
        })
    }
}

/// The conditions in which schemes are compared.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Cell {
    /// Hosts, the root among them.
    pub nodes: usize,
    /// Bytes of the broadcast.
    pub len: u64,
    /// Loss on the links.
    pub loss: Loss,
    /// Payload of a data packet in bytes.
    pub payload_size: u32,
}

impl Cell {
    /// The papers' schemes, with parameters that suit the number of nodes.
    pub fn presets(&self) -> Vec<Named> {
        let coroots = format!("coroot({})", (self.nodes / 8).max(2));
        let names = [
            "basic",
            "window",
            "window+multicast",
            "aggregate(10)",
            "skewed(32)",
            &coroots,
            "tree(8)",
            "channels(16)",
            "nack",
            "nack+multicast",
        ];
        names.map(named).into()
    }

    fn scenario(&self, scheme: &Scheme, seed: u64) -> Scenario {
        let mut s = Scenario::bulk(self.nodes, 0, self.payload_size);
        s.seed = seed;
        s.scheme = scheme.clone();
        s.scheme.copied = Copied::Never;
        s.topology = Topology {
            fanout: vec![FANOUT; 3],
            host: LinkSpec::GIGABIT,
            trunk: LinkSpec::GIGABIT,
            cut_through: false,
        };
        s.rate = Some(RATE);
        s.streams[0].lens = vec![WARM_LEN, self.len];
        s.streams[0].sending = Sending::Every(PAUSE);
        s.faults.down = self.loss.faults();
        s.faults.begin_at = PAUSE;
        s.judged = false;
        s
    }
}

/// The scheme of this name, which must be valid.
fn named(name: &str) -> Named {
    name.parse().expect("a preset's name")
}

/// Costs of a broadcast.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cost {
    /// Time until the last receiver had all of the broadcast.
    pub slowest: Duration,
    /// Bytes on the wire that the root sent.
    pub root_bytes: u64,
    /// Feedback datagrams that the root read.
    pub root_feedback: u64,
    /// Packets and timers given to nodes, including those of the warm-up.
    pub events: u64,
}

/// Result of a scheme in a cell.
#[derive(Clone, PartialEq, Debug)]
pub enum Fate {
    /// Median costs, and how many of the seeds were given up.
    Cost(Cost, usize),
    /// Most seeds were given up; the shortest time after which one was.
    GivenUp(Duration),
    /// A run failed for another reason than its bounds.
    Wrong(Failure),
}

/// A scheme and its result in a cell.
#[derive(Clone, PartialEq, Debug)]
pub struct Entry {
    /// The scheme's name.
    pub scheme: String,
    /// The scheme's result.
    pub fate: Fate,
}

/// A cell and the results of all schemes in it.
#[derive(Clone, PartialEq, Debug)]
pub struct Comparison {
    /// The cell.
    pub cell: Cell,
    /// The entry of `auto`.
    pub auto: Entry,
    /// The entries of the other schemes.
    pub presets: Vec<Entry>,
}

/// Result of one seed.
type Run = Result<Cost, Failure>;

/// Tells whether to go on; all threads call it.
pub type GoOn<'a> = dyn Fn() -> bool + Sync + 'a;

/// Bounds of a run.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    within: Duration,
    events: u64,
}

/// Runs `auto` and each of `presets` in a cell, for the seeds `1 ..= seeds`, on `threads` threads.
/// Calls `done` after each run. When `go_on` returns `false`, all runs end and the result is
/// `None`.
pub fn compare(
    cell: Cell,
    presets: &[Named],
    seeds: u64,
    threads: usize,
    go_on: &GoOn,
    done: &mut dyn FnMut(),
) -> Option<Comparison> {
    let mut all = |schemes: &[Named], bounds: Bounds| {
        let mut runs = vec![Vec::new(); schemes.len()];
        // Once most seeds of a scheme were given up, its other seeds need not run.
        let most = seeds / 2 + 1;
        for part in [1..=most, most + 1..=seeds] {
            let hopeless = |s: &usize| {
                let given_up = runs[*s].iter().filter(|r: &&Run| r.is_err()).count();
                given_up as u64 == most
            };
            let left: Vec<usize> = (0..schemes.len()).filter(|s| !hopeless(s)).collect();
            let jobs: Vec<(usize, u64)> = left
                .into_iter()
                .flat_map(|s| part.clone().map(move |seed| (s, seed)))
                .collect();
            let work = |n: u64| {
                let (s, seed) = jobs[n as usize];
                cost(cell.scenario(&schemes[s].scheme, seed), bounds, go_on)
            };
            let mut results = vec![None; jobs.len()];
            parallel::jobs(jobs.len() as u64, threads, work, |n, run| {
                results[n as usize] = Some(run);
                done();
                go_on()
            });
            if !go_on() {
                return None;
            }
            for ((s, _), run) in jobs.into_iter().zip(results) {
                runs[s].push(run?);
            }
        }
        let entries = schemes.iter().zip(&runs).map(|(named, runs)| Entry {
            scheme: named.name.clone(),
            fate: Fate::of(runs),
        });
        Some(entries.collect::<Vec<_>>())
    };
    let bounds = Bounds {
        within: AUTO_WITHIN,
        events: AUTO_EVENTS,
    };
    let auto = all(&[named(AUTO)], bounds)?.pop()?;
    let bounds = match auto.fate.cost() {
        Some(cost) => Bounds {
            within: (cost.slowest * TIMES).max(WITHIN_LEAST),
            events: (cost.events * TIMES_EVENTS).max(EVENTS_LEAST),
        },
        None => bounds,
    };
    let presets = all(presets, bounds)?;
    Some(Comparison {
        cell,
        auto,
        presets,
    })
}

/// Runs a scenario of a warm-up and a broadcast, and returns the costs of the broadcast.
fn cost(mut scenario: Scenario, bounds: Bounds, go_on: &GoOn) -> Run {
    const ROOT: usize = 0;
    scenario.faults.heal_at = PAUSE + bounds.within;
    scenario.complete_within = Duration::ZERO;
    scenario.events_max = bounds.events;
    let begins = Time(PAUSE.as_nanos() as u64);
    // Costs of the warm-up at the root.
    let (mut bytes, mut feedback) = (0, 0);
    let outcome = {
        let mut cluster = Cluster::new(&scenario, Trace::silent());
        cluster.go_on_while(go_on);
        cluster.watch(|view| {
            if view.now() < begins {
                let up = view.fabric().uplink(ROOT as u32);
                bytes = view.fabric().stats(up).bytes;
                feedback = view.node(ROOT).counters().feedback_received;
            }
        });
        cluster.run()?
    };
    let last = outcome.received_at.iter().max();
    Ok(Cost {
        slowest: last.map_or(Duration::ZERO, |t| t.since(begins)),
        root_bytes: outcome.sent_bytes[ROOT] - bytes,
        root_feedback: outcome.counters[ROOT].feedback_received - feedback,
        events: outcome.events,
    })
}

impl Fate {
    /// The medians of several runs. A run that was given up counts as worse than any other.
    fn of(runs: &[Run]) -> Fate {
        let wrong = |r: &&Run| r.as_ref().is_err_and(|e| !e.out_of_bounds);
        if let Some(Err(failure)) = runs.iter().find(wrong) {
            return Fate::Wrong(failure.clone());
        }
        let costs: Vec<Cost> = runs
            .iter()
            .filter_map(|r| r.as_ref().ok().copied())
            .collect();
        let middle = runs.len() / 2;
        let given_up = runs.len() - costs.len();
        if given_up >= costs.len() {
            let begins = Time(PAUSE.as_nanos() as u64);
            let after = runs.iter().filter_map(|r| r.as_ref().err());
            let after = after.map(|e| e.at.since(begins)).min();
            return Fate::GivenUp(after.unwrap_or_default());
        }
        fn median<T: Ord>(values: impl Iterator<Item = T>, middle: usize) -> T {
            let mut values: Vec<T> = values.collect();
            values.sort_unstable();
            values.swap_remove(middle)
        }
        let cost = Cost {
            slowest: median(costs.iter().map(|c| c.slowest), middle),
            root_bytes: median(costs.iter().map(|c| c.root_bytes), middle),
            root_feedback: median(costs.iter().map(|c| c.root_feedback), middle),
            events: median(costs.iter().map(|c| c.events), middle),
        };
        Fate::Cost(cost, given_up)
    }

    /// The costs, if most seeds ran to the end.
    pub fn cost(&self) -> Option<&Cost> {
        match self {
            Fate::Cost(cost, _) => Some(cost),
            Fate::GivenUp(_) | Fate::Wrong(_) => None,
        }
    }
}
