//! What an experiment is, how much of it is run, and what it comes to.

use serde::Serialize;

use crate::calibration::Testbed;
use fabricast_sim::Failure;
use fabricast_sim::parallel;

use super::plot::Plot;

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
    /// Its name; see [`super::experiments`].
    pub name: &'static str,
    /// What it has come to.
    pub findings: Findings,
}

impl Effort<'_> {
    /// The longer list, or the shorter one.
    pub(super) fn of<T: Copy>(&self, full: &[T], quick: &[T]) -> Vec<T> {
        let list = if self.quick { quick } else { full };
        list.to_vec()
    }

    /// Simulates for each item, several at once; the results in the items' order.
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
    /// Without rows yet.
    pub(super) fn new(title: impl Into<String>, head: &[&str]) -> Table {
        Table {
            title: title.into(),
            head: head.iter().map(|h| h.to_string()).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row: what it is of, and numbers.
    pub(super) fn row(&mut self, of: impl ToString, numbers: impl IntoIterator<Item = f64>) {
        let numbers = numbers.into_iter().map(|n| format!("{n:.2}"));
        self.rows
            .push(std::iter::once(of.to_string()).chain(numbers).collect());
    }
}
