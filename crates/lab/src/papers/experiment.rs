//! Experiments, their extent and their results.

use serde::Serialize;

use crate::calibration::Testbed;
use fabricast_sim::Failure;
use fabricast_sim::parallel;

use super::plot::Plot;

/// A measurement of a paper, to be repeated.
#[derive(Clone, Copy, Debug)]
pub struct Experiment {
    /// The experiment's name, which begins with the paper's.
    pub name: &'static str,
    /// The testbed of the paper.
    pub testbed: Testbed,
    /// The experiment's title.
    pub title: &'static str,
    /// Figure or section of the paper.
    pub reproduces: &'static str,
    /// How this experiment measures.
    pub method: &'static str,
    /// Runs the experiment.
    pub run: fn(&Effort<'_>) -> Result<Findings, Stopped>,
}

/// How much is run, on how many threads, and whether to go on.
pub struct Effort<'a> {
    /// Run fewer sizes, nodes and repetitions, for tests.
    pub quick: bool,
    /// Number of simulations at once.
    pub threads: usize,
    /// Called after each simulation; `false` ends the experiment.
    pub go_on: &'a dyn Fn() -> bool,
    /// Round trips of a real network, by rising numbers of peers, to be shown beside the simulated
    /// ones. May be empty.
    pub live: &'a [Live],
}

/// Round trips to a number of peers at once, on a real network (P2.5).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Live {
    /// Number of peers.
    pub peers: u64,
    /// Shortest round trip in microseconds.
    pub min_us: f64,
    /// Mean round trip in microseconds.
    pub mean_us: f64,
    /// Mean time that sending to all of the peers took, in microseconds.
    pub sending_us: f64,
}

/// Why an experiment has no findings.
#[derive(Clone, PartialEq, Debug)]
pub enum Stopped {
    /// The caller told it not to go on.
    Interrupted,
    /// A simulation failed.
    Failed(Failure),
}

impl From<Failure> for Stopped {
    fn from(failure: Failure) -> Stopped {
        Stopped::Failed(failure)
    }
}

/// Results of an experiment.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Findings {
    /// Tables for people.
    pub tables: Vec<Table>,
    /// Plots for people.
    pub plots: Vec<Plot>,
    /// Numbers that claims are judged by.
    pub found: Vec<Found>,
}

/// Words and numbers in rows.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Table {
    /// What the table shows, and in which unit.
    pub title: String,
    /// Names of the columns.
    pub head: Vec<String>,
    /// Rows, with as many cells as `head` has names.
    pub rows: Vec<Vec<String>>,
}

/// Number that was found for a claim.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Found {
    /// The claim's name.
    pub claim: &'static str,
    /// The simulation's number.
    pub number: f64,
    /// A remark on the number: why it differs from the paper's, or what it depends on.
    pub remark: &'static str,
}

/// An experiment that has been run.
#[derive(Clone, PartialEq, Debug)]
pub struct Study {
    /// The experiment's name; see [`super::experiments`].
    pub name: &'static str,
    /// The experiment's findings.
    pub findings: Findings,
}

impl Effort<'_> {
    /// The longer list, or the shorter one if `quick`.
    pub(super) fn of<T: Copy>(&self, full: &[T], quick: &[T]) -> Vec<T> {
        let list = if self.quick { quick } else { full };
        list.to_vec()
    }

    /// Simulates for each item, several at once. Returns the results in the order of the items.
    pub(super) fn each<T: Sync, R: Send>(
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
    /// A table without rows.
    pub(super) fn new(title: impl Into<String>, head: &[&str]) -> Table {
        Table {
            title: title.into(),
            head: head.iter().map(|h| h.to_string()).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row: the item that it is about, and its numbers.
    pub(super) fn row(&mut self, of: impl ToString, numbers: impl IntoIterator<Item = f64>) {
        let numbers = numbers.into_iter().map(|n| format!("{n:.2}"));
        self.rows
            .push(std::iter::once(of.to_string()).chain(numbers).collect());
    }
}
