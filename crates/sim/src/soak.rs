//! One seed, or many of them on several threads.

use std::any::Any;
use std::fmt;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};

use fabricast::proto::Time;

use crate::cluster::{self, Cluster, Failure, Tried};
use crate::ibrmp::{FileExperiment, FileResult, transfer_files};
use crate::parallel;
use crate::scenario::Scenario;
use crate::subnet::{self, Subnet};
use crate::trace::Trace;

/// When the network of a soak has read what it is given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Network {
    /// At once, as sockets do.
    Prompt,
    /// Late, as devices do that read memory by themselves ([`Scenario::delayed`]).
    Delayed,
    /// At once; hosts begin to send by other addresses again and again
    /// ([`Scenario::readdressed`]).
    Readdressed,
    /// At once; receivers join and leave ([`Scenario::joined`]).
    Joined,
    /// At once; some receivers take less than the others ([`Scenario::outpaced`]).
    Outpaced,
    /// At once; streams of one host share its fixed rate by weights ([`Scenario::weighted`]).
    Weighted,
    /// At once; P3's protocol sends files to receivers that join and leave
    /// ([`FileExperiment::from_seed`]).
    Files,
    /// At once; communicators get their addresses from a subnet manager
    /// ([`subnet::Scenario::from_seed`]).
    Subnet,
}

/// What a seed stands for.
enum Run {
    Cluster(Box<Scenario>),
    Subnet(Box<subnet::Scenario>),
    Files(Box<FileExperiment>),
}

impl Network {
    fn scenario(self, seed: u64) -> Run {
        Run::cluster(match self {
            Network::Prompt => Scenario::from_seed(seed),
            Network::Delayed => Scenario::delayed(seed),
            Network::Readdressed => Scenario::readdressed(seed),
            Network::Joined => Scenario::joined(seed),
            Network::Outpaced => Scenario::outpaced(seed),
            Network::Weighted => Scenario::weighted(seed),
            Network::Files => return Run::Files(Box::new(FileExperiment::from_seed(seed))),
            Network::Subnet => return Run::Subnet(Box::new(subnet::Scenario::from_seed(seed))),
        })
    }
}

impl Run {
    fn cluster(scenario: Scenario) -> Run {
        Run::Cluster(Box::new(scenario))
    }

    fn judge(&self, network: Network, trace: Trace<'_>) -> Verdict {
        let scenario = match self {
            Run::Cluster(scenario) => {
                let verdict = run_scenario(scenario, trace);
                return Verdict { network, ..verdict };
            }
            Run::Files(experiment) => return judge_files(experiment),
            Run::Subnet(scenario) => scenario,
        };
        let mut subnet = Subnet::new(scenario, trace);
        let run = catch_unwind(AssertUnwindSafe(|| subnet.run()));
        let result = run.unwrap_or_else(|panic| Err(panicked(Time(subnet.now()), &*panic)));
        Verdict {
            seed: scenario.seed,
            hash: subnet.hash(),
            events: subnet.events(),
            network,
            result: result.map(|outcome| Passed::Subnet(Box::new(outcome))),
        }
    }
}

/// Runs an experiment with P3's protocol.
fn judge_files(experiment: &FileExperiment) -> Verdict {
    let run = catch_unwind(AssertUnwindSafe(|| transfer_files(experiment)));
    let failed = |what| Failure {
        at: Time::ZERO,
        what,
        out_of_bounds: false,
    };
    let result = match run {
        Ok(result) => result.map_err(failed),
        Err(panic) => Err(panicked(Time::ZERO, &*panic)),
    };
    let of = |number: fn(&FileResult) -> u64| result.as_ref().map_or(0, number);
    Verdict {
        seed: experiment.seed,
        hash: of(|files| files.hash),
        events: of(|files| files.events),
        network: Network::Files,
        result: result.map(|files| Passed::Files(Box::new(files))),
    }
}

/// The failure of a run in which the core has panicked.
fn panicked(at: Time, panic: &(dyn Any + Send)) -> Failure {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    Failure {
        at,
        what: format!("panic: {}", text.unwrap_or("no message")),
        out_of_bounds: false,
    }
}

/// The outcome of a run in which nothing was wrong.
#[derive(Clone, PartialEq, Debug)]
pub enum Passed {
    /// Of streams and barriers.
    Cluster(Box<cluster::Outcome>),
    /// Of communicators with a subnet manager.
    Subnet(Box<subnet::Outcome>),
    /// Of files.
    Files(Box<FileResult>),
}

/// Result of a seed.
#[derive(Clone, PartialEq, Debug)]
pub struct Verdict {
    /// The seed.
    pub seed: u64,
    /// Hash over every transition; equal whenever the seed is run.
    pub hash: u64,
    /// Packets, and wake-ups without any, given to nodes.
    pub events: u64,
    /// The network of the run.
    pub network: Network,
    /// The outcome of the run, or why it failed.
    pub result: Result<Passed, Failure>,
}

impl Verdict {
    /// The command that repeats the run.
    pub fn repeat(&self) -> String {
        let network = match self.network {
            Network::Prompt => "",
            Network::Delayed => " --delayed",
            Network::Readdressed => " --readdressed",
            Network::Joined => " --joined",
            Network::Outpaced => " --outpaced",
            Network::Weighted => " --weighted",
            Network::Subnet => " --subnet",
            Network::Files => " --files",
        };
        format!("fabricast-lab sim run {}{network}", self.seed)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.result {
            Ok(o) => {
                write!(f, "seed {}: good; {} events", self.seed, self.events)?;
                match o {
                    Passed::Cluster(o) => write!(f, ", done at {:?}", o.done_at)?,
                    Passed::Subnet(o) => write!(f, ", {} requests served", o.served)?,
                    Passed::Files(o) => {
                        write!(f, ", {} files complete, {} not", o.complete, o.unfinished)?
                    }
                }
                write!(f, ", trace {:016x}", self.hash)
            }
            Err(e) => write!(
                f,
                "seed {}: FAILED {e}\n  repeat it: {}",
                self.seed,
                self.repeat()
            ),
        }
    }
}

/// Results of many seeds.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct SoakReport {
    /// Seeds that were run.
    pub seeds: u64,
    /// Events of all runs; a seed without a failure is run twice.
    pub events: u64,
    /// Failed runs, by seed.
    pub failures: Vec<Verdict>,
    /// What receivers of streams have tried in runs without a failure, each counted once.
    pub tried: Tried,
    /// Exclusive or of all traces' hashes. It is equal when the same seeds run, in whatever order,
    /// and every transition is the same.
    pub traces: u64,
}

impl SoakReport {
    /// Whether no run failed.
    pub fn is_clean(&self) -> bool {
        self.failures.is_empty()
    }
}

impl fmt::Display for SoakReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for v in &self.failures {
            writeln!(f, "{v}")?;
        }
        write!(
            f,
            "{} seeds, {} failed; {} events; {} joins, {} leaves, {} declines, {} times told of an \
             expired file; traces {:016x}",
            self.seeds,
            self.failures.len(),
            self.events,
            self.tried.joins,
            self.tried.leaves,
            self.tried.declines,
            self.tried.expired,
            self.traces
        )
    }
}

/// Runs a scenario; a panic of the core is a failure like any other.
pub fn run_scenario(scenario: &Scenario, trace: Trace<'_>) -> Verdict {
    let mut cluster = Cluster::new(scenario, trace);
    let run = catch_unwind(AssertUnwindSafe(|| cluster.run()));
    let result = run.unwrap_or_else(|panic| Err(panicked(Time(cluster.now()), &*panic)));
    Verdict {
        seed: scenario.seed,
        hash: cluster.hash(),
        events: cluster.events(),
        network: match scenario.reads_late() {
            true => Network::Delayed,
            false => Network::Prompt,
        },
        result: result.map(|outcome| Passed::Cluster(Box::new(outcome))),
    }
}

/// Runs the scenario of a seed. Prints the scenario, one line per transition, and the verdict.
pub fn run_seed(seed: u64, network: Network, print: &mut dyn Write) -> Verdict {
    let run = network.scenario(seed);
    // When the reader has gone away (a closed pipe), the judge goes on.
    let _ = match &run {
        Run::Cluster(scenario) => writeln!(print, "{scenario:#?}"),
        Run::Subnet(scenario) => writeln!(print, "{scenario:#?}"),
        Run::Files(experiment) => writeln!(print, "{experiment:#?}"),
    };
    let verdict = run.judge(network, Trace::printed(print));
    let _ = writeln!(print, "{verdict}");
    verdict
}

/// Runs the scenario of a seed. If `twice`, runs it twice; the traces must then be equal.
pub fn judge_seed(seed: u64, network: Network, twice: bool) -> Verdict {
    let run = network.scenario(seed);
    let mut verdict = run.judge(network, Trace::silent());
    if twice && verdict.result.is_ok() {
        let again = run.judge(network, Trace::silent());
        if again.hash != verdict.hash || again.result != verdict.result {
            let (a, b) = (verdict.hash, again.hash);
            verdict.result = Err(Failure {
                at: Time::ZERO,
                what: format!("two runs differ: traces {a:016x} and {b:016x}"),
                out_of_bounds: false,
            });
        }
    }
    verdict
}

/// Runs `count` seeds from `first`, each twice, on `threads` threads. After each seed, `progress`
/// is called in the caller's thread with the verdict and the number of finished seeds. When
/// `progress` returns `false`, the soak ends early.
pub fn soak(
    network: Network,
    first: u64,
    count: u64,
    threads: usize,
    progress: &mut dyn FnMut(&Verdict, u64) -> bool,
) -> SoakReport {
    let mut report = SoakReport::default();
    let judge = |n| judge_seed(first.wrapping_add(n), network, true);
    parallel::jobs(count, threads, judge, |_, verdict| {
        report.seeds += 1;
        report.traces ^= verdict.hash;
        report.events += verdict.events * if verdict.result.is_ok() { 2 } else { 1 };
        match &verdict.result {
            Ok(Passed::Cluster(outcome)) => report.tried += outcome.tried,
            Ok(Passed::Files(files)) => report.tried += files.tried,
            _ => {}
        }
        let go_on = progress(&verdict, report.seeds);
        if verdict.result.is_err() {
            report.failures.push(verdict);
        }
        go_on
    });
    report.failures.sort_by_key(|v| v.seed);
    report
}

/// Seeds for runs with a member that lies. Among them, each mutant that trusts this member is
/// caught by at least one.
pub const LIAR_SEEDS: std::ops::Range<u64> = 0..36;
/// Largest factor by which a lying member may lengthen the others' time.
pub const LIAR_COSTS: f64 = 1.3;

/// Runs a scenario in which one member lies ([`Scenario::lied_to`]), and the same scenario without
/// the lies. Returns the factor by which the others took longer, or why a run has failed. A factor
/// above [`LIAR_COSTS`] is a failure, too.
pub fn judge_liar(seed: u64) -> Result<f64, String> {
    let lied_to = Scenario::lied_to(seed);
    let mut honest = lied_to.clone();
    honest.faults.liar = None;
    let done = |scenario: &Scenario| -> Result<Time, String> {
        let verdict = run_scenario(scenario, Trace::silent());
        let outcome = match verdict.result.map_err(|e| format!("seed {seed}: {e}"))? {
            Passed::Cluster(outcome) => outcome,
            _ => unreachable!("this run has streams"),
        };
        // The liar is the last host. The root, the first host, waits for the liar, too, if only for
        // a while.
        let others = &outcome.host_done_at[1..scenario.hosts - 1];
        Ok(others.iter().copied().max().unwrap_or_default())
    };
    let [with, without] = [done(&lied_to)?, done(&honest)?];
    let factor = with.0 as f64 / without.0 as f64;
    if factor > LIAR_COSTS {
        return Err(format!(
            "seed {seed}: the others took {factor:.2} times as long"
        ));
    }
    Ok(factor)
}
