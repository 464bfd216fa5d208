//! What the papers claim, beside what the models say; and which of it the models were told.
//!
//! Whether a claim is calibrated is not written down but found out: if another value of anything
//! that was fitted to the claim changes what the model says of it, the model was told the answer.
//! Everything else is predicted. A claim that the models know nothing of has the reason instead,
//! and one of which the text names no number can only be looked at. What simulations find is set
//! beside the same claims (`papers`).

use std::fmt;

use serde::Serialize;

use crate::calibration::{Calibration, Testbed};

use super::quantity::Quantity;

/// A number is met if the model is within this share of it.
pub(super) const NEAR: f64 = 0.10;
/// Other values that are tried to see what depends on one.
pub(super) const FACTORS: [f64; 4] = [0.25, 0.5, 2.0, 4.0];

/// What a paper says of a quantity.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Figure {
    /// It is so much.
    About(f64),
    /// It is more than this.
    Above(f64),
    /// It is less than this.
    Below(f64),
    /// The text gives no number.
    Unnamed,
}

impl Figure {
    /// Whether a number agrees: one within 10 %, a bound kept. `None`: there is nothing to agree
    /// with.
    pub fn agrees(&self, number: f64) -> Option<bool> {
        match *self {
            Figure::About(n) => Some((number / n - 1.0).abs() <= NEAR),
            Figure::Above(n) => Some(number > n),
            Figure::Below(n) => Some(number < n),
            Figure::Unnamed => None,
        }
    }
}

/// What the model says of a claim.
#[derive(Clone, Copy, Debug)]
pub enum Says {
    /// So much.
    Number(fn(&Calibration) -> f64),
    /// Nothing, for this reason.
    Nothing(&'static str),
}

/// Where in the tables of [`super::predict()`] a claim is.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Place {
    /// Which table.
    pub quantity: Quantity,
    /// Its columns.
    pub columns: &'static [&'static str],
    /// How many nodes.
    pub nodes: u64,
    /// How many bytes.
    pub bytes: u64,
    /// Processes on a node.
    pub per_node: u64,
}

/// A result of a paper, and what the model says.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// Its name, as in the calibration's `fits`.
    pub id: &'static str,
    /// Whose.
    pub testbed: Testbed,
    /// What the paper says, and where.
    pub text: &'static str,
    /// Its number.
    pub figure: Figure,
    /// The model's.
    pub model: Says,
    /// Where it is in the tables.
    pub place: Option<Place>,
}

/// Whether the model knew.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Standing {
    /// Values were fitted to it: that they agree shows nothing but that a fit exists.
    Calibrated,
    /// None was.
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

/// A claim beside the model.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// The claim.
    pub claim: &'static Claim,
    /// The model's number.
    pub model: f64,
    /// Whether it knew.
    pub standing: Standing,
    /// Whether they agree.
    pub held: bool,
}

impl Claim {
    /// Sets it beside the model with these values, if that says anything.
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
            Figure::Above(n) => write!(f, "> {n}"),
            Figure::Below(n) => write!(f, "< {n}"),
            Figure::Unnamed => f.write_str("-"),
        }
    }
}
