//! The papers' experiments in the simulator, each by its paper's own method, and a verdict on every
//! claim.
//!
//! An [`Experiment`] is a value: what it reproduces, how, and a function that runs it and returns
//! [`Findings`]: tables, plots, and numbers for claims. All experiments run the same protocol code
//! and the same schemes as live, on testbeds with the costs of `calibration.toml`. `lab` has the
//! methods of P1, P2 and P4; `p1` to `p5` have the experiments. `verdict` compares
//! their findings with the paper and its model; `plot` and `html` show them. The papers are
//! available only as texts: of their plots, only the numbers in the text can be compared.

use crate::calibration::Testbed;

mod experiment;
pub mod html;
pub mod lab;
mod p1;
mod p2;
mod p3;
mod p4;
mod p5;
pub mod plot;
pub mod verdict;

pub use experiment::{Effort, Experiment, Findings, Found, Live, Stopped, Study, Table};
pub use plot::{Plot, Points, Series};
pub use verdict::{Ruling, Verdict, verdicts};

/// The experiments of a paper; `None`: of all papers.
pub fn experiments(testbed: Option<Testbed>) -> Vec<&'static Experiment> {
    let all = [
        p1::EXPERIMENTS,
        p2::EXPERIMENTS,
        p3::EXPERIMENTS,
        p4::EXPERIMENTS,
        p5::EXPERIMENTS,
    ];
    all.into_iter()
        .flatten()
        .filter(|e| testbed.is_none_or(|t| t == e.testbed))
        .collect()
}

/// Runs experiments one after the other. Calls `progress` with the name of each experiment before
/// it begins.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::claim::Figure;
    use crate::model::claims::claims;

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

    /// Simulations are deterministic, so every ruling is known. A change of one needs a reason.
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
            "p3-unicast-5",
            "p4-channels-2",
            "p4-channels-16",
            "p4-synchronisation",
            "p4-256",
            "p4-reliability",
            "p5-iterations-16",
            "p5-iterations-32",
            "p5-compute-16",
            "p5-compute-32",
        ];
        assert_eq!(ruled(Ruling::Calibrated), calibrated);
        let not_held = [
            "p1-large-2k",
            "p1-large-8k",
            "p1-skew-400",
            "p1-coroot-2us",
            "p3-files",
            "p3-loss-90",
            "p3-mpi",
            "p4-generic",
        ];
        assert_eq!(ruled(Ruling::NotHeld), not_held);
        assert_eq!(
            ruled(Ruling::Open),
            [
                "p2-curves",
                "p3-flat",
                "p3-one",
                "p3-files-unicast",
                "p3-loss-sum",
                "p3-multicast-98",
                "p3-latency",
                "p4-libraries",
                "p5-curves"
            ]
        );
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
