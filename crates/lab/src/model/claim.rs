//! The papers' claims beside the models' numbers, and which of these numbers are calibrated.
//!
//! Whether a claim is calibrated is not written down but found out. If another value of a parameter
//! that was fitted to the claim changes the model's number, the model was told the answer. Every
//! other claim is predicted. A claim about which the models know nothing has the reason instead. A
//! claim for which the text names no number can only be looked at. The numbers of simulations stand
//! beside the same claims (`papers`).

use std::fmt;

use serde::Serialize;

use crate::calibration::{Calibration, Testbed};

use super::quantity::Quantity;

/// The model meets a number if it is within this share of it.
pub(super) const NEAR: f64 = 0.10;
/// Factors by which a value is scaled to see what depends on it.
pub(super) const FACTORS: [f64; 4] = [0.25, 0.5, 2.0, 4.0];

/// A paper's statement about a quantity.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Figure {
    /// The quantity is about this number.
    About(f64),
    /// The quantity is about this number at a place that the text does not name. The place was
    /// searched, so agreement is calibrated at best.
    Somewhere(f64),
    /// The quantity is more than this number.
    Above(f64),
    /// The quantity is less than this number.
    Below(f64),
    /// The text gives no number.
    Unnamed,
}

impl Figure {
    /// Whether a number agrees: within 10 % of a number, or on the right side of a bound. `None`:
    /// the paper gives no number.
    pub fn agrees(&self, number: f64) -> Option<bool> {
        match *self {
            Figure::About(n) | Figure::Somewhere(n) => Some((number / n - 1.0).abs() <= NEAR),
            Figure::Above(n) => Some(number > n),
            Figure::Below(n) => Some(number < n),
            Figure::Unnamed => None,
        }
    }
}

/// The model's statement about a claim.
#[derive(Clone, Copy, Debug)]
pub enum Says {
    /// A number, computed from the calibration.
    Number(fn(&Calibration) -> f64),
    /// Nothing, for this reason.
    Nothing(&'static str),
}

/// Place of a claim in the tables of [`super::predict()`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Place {
    /// The table.
    pub quantity: Quantity,
    /// The columns: one holds the claim's number, several make a ratio.
    pub columns: &'static [&'static str],
    /// Number of nodes.
    pub nodes: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// Processes on a node.
    pub per_node: u64,
}

/// A result of a paper, and the model's statement about it.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// The claim's name, as in the calibration's `fits`.
    pub id: &'static str,
    /// The testbed of the paper.
    pub testbed: Testbed,
    /// The paper's statement, and where it stands.
    pub text: &'static str,
    /// The paper's number.
    pub figure: Figure,
    /// The model's statement.
    pub model: Says,
    /// Where the claim is in the tables.
    pub place: Option<Place>,
}

/// Whether the model was told the answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Standing {
    /// Values were fitted to the claim: agreement shows only that a fit exists.
    Calibrated,
    /// No value was fitted to the claim.
    Predicted,
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Standing::Calibrated => "calibrated",
            Standing::Predicted => "predicted",
        })
    }
}

/// A claim beside the model's number.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// The claim.
    pub claim: &'static Claim,
    /// The model's number.
    pub model: f64,
    /// Whether the model was told the answer.
    pub standing: Standing,
    /// Whether the model's number agrees with the paper.
    pub held: bool,
}

impl Claim {
    /// Compares the claim with the model under these values. `None`: one of both has no number.
    pub fn outcome(&'static self, c: &Calibration) -> Option<Outcome> {
        let Says::Number(model) = self.model else {
            return None;
        };
        let number = model(c);
        Some(Outcome {
            claim: self,
            model: number,
            standing: self.standing(c, model),
            held: self.figure.agrees(number)?,
        })
    }

    fn standing(&self, c: &Calibration, model: fn(&Calibration) -> f64) -> Standing {
        let number = model(c);
        let mut fitted = c
            .values()
            .filter(|(_, v)| v.fits.iter().any(|f| f == self.id));
        let told = fitted.any(|(name, _)| {
            let other = |&by: &f64| model(&c.scaled(name, by)) != number;
            FACTORS.iter().any(other)
        });
        match told {
            true => Standing::Calibrated,
            false => Standing::Predicted,
        }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Figure::About(n) => write!(f, "{n}"),
            Figure::Somewhere(n) => write!(f, "{n} somewhere"),
            Figure::Above(n) => write!(f, "> {n}"),
            Figure::Below(n) => write!(f, "< {n}"),
            Figure::Unnamed => f.write_str("-"),
        }
    }
}
