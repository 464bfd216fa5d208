//! A verdict on each claim: the numbers of the paper, of its model and of the simulation, and
//! whether they agree.

use std::fmt;

use serde::Serialize;

use crate::calibration::{Calibration, Testbed};
use crate::model::claim::{Claim, Figure, Says, Standing};
use crate::model::claims::claims;

use super::experiment::{Found, Study};

/// Whether the simulation agrees with the paper.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ruling {
    /// The simulation agrees, and no value was fitted to this claim.
    Held,
    /// The simulation agrees, but values were fitted to this claim, or the place was searched where
    /// it agrees: this shows only that such values, or such a place, exist.
    Calibrated,
    /// The simulation does not agree.
    NotHeld,
    /// The text gives no number.
    Open,
}

impl fmt::Display for Ruling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Ruling::Held => "held",
            Ruling::Calibrated => "calibrated",
            Ruling::NotHeld => "NOT HELD",
            Ruling::Open => "open",
        })
    }
}

/// A claim and its verdict.
#[derive(Clone, Copy, Debug)]
pub struct Verdict {
    /// The paper's claim.
    pub claim: &'static Claim,
    /// The model's number, if it has one.
    pub model: Option<f64>,
    /// The simulation's number, if it has one.
    pub simulated: Option<f64>,
    /// Whether that number agrees with the paper's.
    pub ruling: Ruling,
    /// The reason, or a remark on the number; may be empty.
    pub remark: &'static str,
}

/// A verdict on each claim of the papers to which the studies belong.
pub fn verdicts(studies: &[Study]) -> Vec<Verdict> {
    let of = |testbed: Testbed| {
        let studied = studies.iter().any(|s| s.name.starts_with(testbed.key()));
        let values = Calibration::of(testbed);
        let all = claims(testbed).filter(move |_| studied);
        all.map(move |claim| rule(claim, &values, find(studies, claim.id)))
    };
    Testbed::ALL.into_iter().flat_map(of).collect()
}

fn find<'a>(studies: &'a [Study], id: &str) -> Option<&'a Found> {
    let mut found = studies.iter().flat_map(|s| &s.findings.found);
    found.find(|f| f.claim == id)
}

fn rule(claim: &'static Claim, values: &Calibration, found: Option<&Found>) -> Verdict {
    let outcome = claim.outcome(values);
    let searched = matches!(claim.figure, Figure::Somewhere(_));
    let told = searched || outcome.is_some_and(|o| o.standing == Standing::Calibrated);
    let ruling = match found.and_then(|f| claim.figure.agrees(f.number)) {
        None => Ruling::Open,
        Some(false) => Ruling::NotHeld,
        Some(true) if told => Ruling::Calibrated,
        Some(true) => Ruling::Held,
    };
    Verdict {
        claim,
        model: outcome.map(|o| o.model),
        simulated: found.map(|f| f.number),
        ruling,
        remark: match (found, claim.figure, claim.model) {
            (Some(f), ..) => f.remark,
            (None, Figure::Unnamed, Says::Nothing(why)) => why,
            (None, ..) => "not simulated",
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::papers::Findings;

    fn ruling(claim: &'static str, number: f64) -> Ruling {
        let found = Found {
            claim,
            number,
            remark: "",
        };
        let study = Study {
            name: &claim[..2],
            findings: Findings {
                found: vec![found],
                ..Findings::default()
            },
        };
        let all = verdicts(&[study]);
        assert!(all.iter().all(|v| v.claim.testbed.key() == &claim[..2]));
        let verdict = all.iter().find(|v| v.claim.id == claim);
        verdict.unwrap().ruling
    }

    #[test]
    fn what_was_fitted_is_never_called_held() {
        assert_eq!(ruling("p1-latency-8", 1.58), Ruling::Calibrated);
        assert_eq!(ruling("p1-latency-8", 1.30), Ruling::NotHeld);
        assert_eq!(ruling("p1-latency-1024", 4.80), Ruling::Held);
        assert_eq!(ruling("p1-latency-1024", 3.86), Ruling::NotHeld);
        assert_eq!(ruling("p1-throughput-basic", 0.4), Ruling::Held);
        // Where the place of a number was searched.
        assert_eq!(ruling("p5-iterations-32", 4.8), Ruling::Calibrated);
        assert_eq!(ruling("p5-iterations-32", 3.0), Ruling::NotHeld);
        assert_eq!(ruling("p5-best", 1.1), Ruling::Held);
        assert_eq!(ruling("p1-throughput-basic", 1.1), Ruling::NotHeld);
    }
}
