//! The papers' experiments in the simulator, each by its paper's own method, and a verdict for
//! every claim.
//!
//! An [`Experiment`] is a value: what it reproduces, how, and a function that runs it and returns
//! [`Findings`]: tables, plots, and what it found of claims. All run the same protocol code and the same
//! schemes as live, on testbeds that cost what `calibration.toml` says. `lab` has the methods,
//! `p1`, `p2` and `p4` the experiments, `verdict` sets what they found beside the paper and its
//! model, `plot` and `html` show it.
//! The papers are at hand as texts: of their plots only the numbers in the text can be compared.

use serde::Serialize;

use crate::calibration::Testbed;
use fabricast_sim::Failure;
use fabricast_sim::parallel;

pub mod html;
pub mod lab;
mod p1;
mod p2;
mod p4;
pub mod plot;
pub mod verdict;

pub use plot::{Plot, Points, Series};
use plot::{column, curve};
pub use verdict::{Ruling, Verdict, verdicts};

/// What a paper has measured, to be measured again.
#[derive(Clone, Copy, Debug)]
pub struct Experiment {
    /// Its name; those of one paper begin with the paper's.
    pub name: &'static str,
    /// Whose.
    pub testbed: Testbed,
    /// What it is about.
    pub title: &'static str,
    /// Which figure or section of the paper.
    pub reproduces: &'static str,
    /// How it is measured here.
    pub method: &'static str,
    /// Runs it.
    pub run: fn(&Effort<'_>) -> Result<Findings, Stopped>,
}

/// How much is run, by how many, and whether to go on.
pub struct Effort<'a> {
    /// Fewer sizes, nodes and repetitions, for tests.
    pub quick: bool,
    /// Simulations at once.
    pub threads: usize,
    /// Asked after each simulation.
    pub go_on: &'a dyn Fn() -> bool,
    /// Round trips of a real network, by rising numbers of peers, to be set beside the simulated
    /// ones; there may be none.
    pub live: &'a [Live],
}

/// Round trips to a number of peers at once, on a real network (P2.5).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Live {
    /// The peers.
    pub peers: u64,
    /// The shortest, in microseconds.
    pub min_us: f64,
    /// The mean.
    pub mean_us: f64,
    /// The mean of what sending to all of them took.
    pub sending_us: f64,
}

/// Why there are no findings.
#[derive(Clone, PartialEq, Debug)]
pub enum Stopped {
    /// It was told not to go on.
    Interrupted,
    /// A simulation failed.
    Failed(Failure),
}

impl From<Failure> for Stopped {
    fn from(failure: Failure) -> Stopped {
        Stopped::Failed(failure)
    }
}

/// What an experiment has come to.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Findings {
    /// For people.
    pub tables: Vec<Table>,
    /// Likewise.
    pub plots: Vec<Plot>,
    /// Numbers for claims.
    pub found: Vec<Found>,
}

/// Words and numbers in rows.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Table {
    /// What it shows, and in what.
    pub title: String,
    /// Names of the columns.
    pub head: Vec<String>,
    /// As many cells as there are names, each.
    pub rows: Vec<Vec<String>>,
}

/// What was found of a claim.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Found {
    /// The claim's name.
    pub claim: &'static str,
    /// The simulation's number.
    pub number: f64,
    /// What is to be known about it: why it is not the paper's, or what it hangs by.
    pub remark: &'static str,
}

/// An experiment that has been run.
#[derive(Clone, PartialEq, Debug)]
pub struct Study {
    /// Its name; see [`experiments`].
    pub name: &'static str,
    /// What it has come to.
    pub findings: Findings,
}

/// The experiments of a paper, or of all.
pub fn experiments(testbed: Option<Testbed>) -> Vec<&'static Experiment> {
    let all = [p1::EXPERIMENTS, p2::EXPERIMENTS, p4::EXPERIMENTS];
    all.into_iter()
        .flatten()
        .filter(|e| testbed.is_none_or(|t| t == e.testbed))
        .collect()
}

/// Runs experiments one after the other. `progress` is called with the name of each before it
/// begins.
pub fn run(
    experiments: &[&'static Experiment],
    effort: &Effort<'_>,
    progress: &mut dyn FnMut(&'static str),
) -> Result<Vec<Study>, (&'static str, Stopped)> {
    let study = |e: &&'static Experiment| {
        progress(e.name);
        let findings = (e.run)(effort).map_err(|stopped| (e.name, stopped))?;
        Ok(Study {
            name: e.name,
            findings,
        })
    };
    experiments.iter().map(study).collect()
}

impl Effort<'_> {
    /// The longer list, or the shorter one.
    fn of<T: Copy>(&self, full: &[T], quick: &[T]) -> Vec<T> {
        let list = if self.quick { quick } else { full };
        list.to_vec()
    }

    /// Simulates for each item, several at once; the results in the items' order.
    fn each<T: Sync, R: Send>(
        &self,
        items: &[T],
        simulate: impl Fn(&T) -> Result<R, Failure> + Sync,
    ) -> Result<Vec<R>, Stopped> {
        let mut results: Vec<Option<R>> = items.iter().map(|_| None).collect();
        let mut stopped = None;
        let job = |n: u64| simulate(&items[n as usize]);
        parallel::jobs(items.len() as u64, self.threads, job, |n, result| {
            match result {
                Ok(result) => results[n as usize] = Some(result),
                Err(failure) => stopped = Some(Stopped::Failed(failure)),
            }
            if stopped.is_none() && !(self.go_on)() {
                stopped = Some(Stopped::Interrupted);
            }
            stopped.is_none()
        });
        match (stopped, results.into_iter().collect()) {
            (None, Some(results)) => Ok(results),
            (stopped, _) => Err(stopped.unwrap_or(Stopped::Interrupted)),
        }
    }
}

impl Table {
    /// Without rows yet.
    fn new(title: impl Into<String>, head: &[&str]) -> Table {
        Table {
            title: title.into(),
            head: head.iter().map(|h| h.to_string()).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row: what it is of, and numbers.
    fn row(&mut self, of: impl ToString, numbers: impl IntoIterator<Item = f64>) {
        let numbers = numbers.into_iter().map(|n| format!("{n:.2}"));
        self.rows
            .push(std::iter::once(of.to_string()).chain(numbers).collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::claim::{Figure, claims};

    #[test]
    fn experiments_have_names_of_their_own() {
        let all = experiments(None);
        for (i, e) in all.iter().enumerate() {
            assert!(
                all[..i].iter().all(|other| other.name != e.name),
                "{}",
                e.name
            );
            assert!(e.name.starts_with(e.testbed.key()), "{}", e.name);
        }
    }

    /// Simulations are deterministic, so that every ruling is known; whoever changes one says why.
    #[test]
    fn every_number_of_the_papers_is_looked_for_once_and_judged() {
        let effort = Effort {
            quick: true,
            threads: 2,
            go_on: &|| true,
            live: &[],
        };
        let studies = run(&experiments(None), &effort, &mut |_| ()).unwrap();
        for table in studies.iter().flat_map(|s| &s.findings.tables) {
            let whole = |row: &Vec<String>| row.len() == table.head.len();
            assert!(!table.rows.is_empty() && table.rows.iter().all(whole));
        }
        let all = verdicts(&studies);
        let ruled = |ruling| {
            let of_it = all.iter().filter(move |v| v.ruling == ruling);
            of_it.map(|v| v.claim.id).collect::<Vec<_>>()
        };
        let calibrated = [
            "p1-latency-8",
            "p1-throughput",
            "p1-groups-1024",
            "p2-40",
            "p2-logp",
            "p4-channels-2",
            "p4-channels-16",
            "p4-synchronisation",
            "p4-256",
            "p4-reliability",
        ];
        assert_eq!(ruled(Ruling::Calibrated), calibrated);
        let not_held = [
            "p1-large-2k",
            "p1-large-8k",
            "p1-skew-400",
            "p1-coroot-2us",
            "p4-generic",
        ];
        assert_eq!(ruled(Ruling::NotHeld), not_held);
        assert_eq!(ruled(Ruling::Open), ["p2-curves", "p4-libraries"]);
        for verdict in &all {
            let explained = verdict.ruling == Ruling::Held || !verdict.remark.is_empty();
            let silent = ["p1-throughput", "p4-channels-16", "p4-reliability"];
            assert!(
                explained || silent.contains(&verdict.claim.id),
                "{verdict:?}"
            );
        }
        for testbed in Testbed::ALL {
            for claim in claims(testbed) {
                let of_it = |f: &&Found| f.claim == claim.id;
                let found = studies.iter().flat_map(|s| &s.findings.found);
                let expected = usize::from(claim.figure != Figure::Unnamed);
                assert_eq!(found.filter(of_it).count(), expected, "{}", claim.id);
            }
        }
    }

    #[test]
    fn whoever_is_told_to_stop_stops() {
        let effort = Effort {
            quick: true,
            threads: 2,
            go_on: &|| false,
            live: &[],
        };
        let stopped = run(&experiments(None), &effort, &mut |_| ());
        assert!(matches!(stopped, Err((_, Stopped::Interrupted))));
    }
}
