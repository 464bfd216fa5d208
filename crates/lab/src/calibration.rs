//! Costs of the papers' testbeds, and the source of each value.
//!
//! `calibration.toml` holds one set of values for each testbed. Models and simulations take their
//! values from here and from nowhere else. A value tells its kind: a paper or another source states
//! it, it was fitted to a claim of a paper, or it is assumed. So every result can tell whether it
//! was predicted.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Content of `calibration.toml`.
const TEXT: &str = include_str!("../calibration.toml");
/// Upper bound of every calibrated value.
const VALUE_MAX: f64 = 1e9;

/// The machines that a paper measured on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Testbed {
    /// Broadcast over InfiniBand's multicast.
    P1,
    /// The n-way dissemination barrier.
    P2,
    /// Files by multicast and reliable connections.
    P3,
    /// Broadcast over Quadrics.
    P4,
    /// A subnet manager for communicators' multicast groups.
    P5,
}

impl Testbed {
    /// All testbeds, in the order of the papers.
    pub const ALL: [Testbed; 5] = [
        Testbed::P1,
        Testbed::P2,
        Testbed::P3,
        Testbed::P4,
        Testbed::P5,
    ];

    /// The testbed's name in the file.
    pub fn key(self) -> &'static str {
        match self {
            Testbed::P1 => "p1",
            Testbed::P2 => "p2",
            Testbed::P3 => "p3",
            Testbed::P4 => "p4",
            Testbed::P5 => "p5",
        }
    }

    /// A description of the testbed on one line.
    pub fn title(self) -> &'static str {
        match self {
            Testbed::P1 => "P1: MPI broadcast on InfiniBand's multicast, 8 nodes (2004)",
            Testbed::P2 => "P2: n-way dissemination barrier on InfiniBand, 64 nodes (2006)",
            Testbed::P3 => "P3: IBRMP, reliable multicast of files on InfiniBand, 6 hosts (2014)",
            Testbed::P4 => "P4: LA-MPI's broadcast on Quadrics, 8 and 64 nodes (2004)",
            Testbed::P5 => "P5: OpenSM on ibsim, 32 hosts (measured here, 2026)",
        }
    }
}

/// Unit of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Unit {
    /// Microseconds.
    #[serde(rename = "µs")]
    Microsecond,
    /// Nanoseconds per byte: the inverse of gigabytes per second.
    #[serde(rename = "ns/byte")]
    NanosecondPerByte,
    /// Bytes.
    #[serde(rename = "byte")]
    Byte,
    /// A number of things.
    #[serde(rename = "count")]
    Count,
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Unit::Microsecond => "µs",
            Unit::NanosecondPerByte => "ns/byte",
            Unit::Byte => "byte",
            Unit::Count => "count",
        })
    }
}

/// Where a value comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The paper's text states it.
    Stated,
    /// A public specification or description of what the paper used states it.
    Cited,
    /// This project measured it.
    Measured,
    /// The value was chosen so that the model meets a claim.
    Fitted,
    /// Nobody states it; the value is assumed.
    Assumed,
    /// The user who runs the model gave it, instead of the file.
    #[serde(skip_deserializing)]
    Given,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Kind::Stated => "stated",
            Kind::Cited => "cited",
            Kind::Measured => "measured",
            Kind::Fitted => "fitted",
            Kind::Assumed => "assumed",
            Kind::Given => "given",
        })
    }
}

/// A value and its source.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Value {
    /// The number.
    pub value: f64,
    /// Its unit.
    pub unit: Unit,
    /// The kind of its source.
    pub kind: Kind,
    /// The place in the source, or the reason for the value.
    pub origin: String,
    /// Claims that the value was fitted to, or that it was taken from.
    #[serde(default)]
    pub fits: Vec<String>,
}

/// All values of a testbed.
#[derive(Clone, PartialEq, Debug)]
pub struct Calibration {
    testbed: Testbed,
    values: BTreeMap<String, Value>,
}

/// Why a value could not be set.
#[derive(Clone, PartialEq, Debug)]
pub enum SetError {
    /// There is no value of this name.
    Unknown {
        /// The name that was given.
        name: String,
        /// All names that exist.
        known: Vec<String>,
    },
    /// The value cannot be this number.
    OutOfRange {
        /// The name of the value.
        name: String,
        /// The range of allowed numbers.
        range: String,
    },
}

impl fmt::Display for SetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SetError::Unknown { name, known } => {
                write!(
                    f,
                    "no value is called {name:?}; there are {}",
                    known.join(", ")
                )
            }
            SetError::OutOfRange { name, range } => write!(f, "{name} must be {range}"),
        }
    }
}

impl std::error::Error for SetError {}

impl Calibration {
    /// The values of `testbed` in the file.
    pub fn of(testbed: Testbed) -> Calibration {
        let mut all: BTreeMap<String, BTreeMap<String, Value>> = match toml::from_str(TEXT) {
            Ok(all) => all,
            Err(e) => panic!("calibration.toml, a part of this program, is broken: {e}"),
        };
        match all.remove(testbed.key()) {
            Some(values) => Calibration { testbed, values },
            None => panic!("calibration.toml has nothing of {}", testbed.key()),
        }
    }

    /// The testbed that the values belong to.
    pub fn testbed(&self) -> Testbed {
        self.testbed
    }

    /// The number of the value of this name. The names are those of the file.
    ///
    /// # Panics
    /// The name is unknown: a mistake in the program.
    pub fn value(&self, name: &str) -> f64 {
        match self.values.get(name) {
            Some(v) => v.value,
            None => panic!("{} has no {name}", self.testbed.key()),
        }
    }

    /// The number of the value of this name, as a whole number.
    pub fn count(&self, name: &str) -> u64 {
        self.value(name) as u64
    }

    /// All values with their names, in the order of the names.
    pub fn values(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.values.iter().map(|(name, v)| (name.as_str(), v))
    }

    /// Replaces the file's value with another one. The file's origin and claims no longer hold for
    /// the new value.
    pub fn set(&mut self, name: &str, value: f64) -> Result<(), SetError> {
        let Some(v) = self.values.get_mut(name) else {
            return Err(SetError::Unknown {
                name: name.to_owned(),
                known: self.values.keys().cloned().collect(),
            });
        };
        let (min, whole) = match v.unit {
            Unit::Microsecond | Unit::NanosecondPerByte => (0.0, false),
            Unit::Byte => (1.0, true),
            Unit::Count => (0.0, true),
        };
        // Written so that a value that is not a number is out of range, too.
        let within = (min..=VALUE_MAX).contains(&value);
        if !within || (whole && value.fract() != 0.0) {
            let a = if whole { "a whole number" } else { "a number" };
            return Err(SetError::OutOfRange {
                name: name.to_owned(),
                range: format!("{a} of {} from {min} to {VALUE_MAX}", v.unit),
            });
        }
        *v = Value {
            value,
            unit: v.unit,
            kind: Kind::Given,
            origin: format!("given instead of {} ({})", v.value, v.kind),
            fits: Vec::new(),
        };
        Ok(())
    }

    /// A copy in which one value is multiplied, whatever the result, to see what depends on the
    /// value.
    pub(crate) fn scaled(&self, name: &str, by: f64) -> Calibration {
        let mut other = self.clone();
        if let Some(v) = other.values.get_mut(name) {
            v.value *= by;
        }
        other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_has_a_unit_that_its_name_tells_and_an_origin() {
        for testbed in Testbed::ALL {
            for (name, v) in Calibration::of(testbed).values() {
                let unit = match name {
                    n if n.ends_with("_us") => Unit::Microsecond,
                    n if n.ends_with("_byte_ns") || n == "byte_ns" => Unit::NanosecondPerByte,
                    n if n.ends_with("_bytes") => Unit::Byte,
                    _ => Unit::Count,
                };
                assert_eq!(v.unit, unit, "{name}");
                assert!(v.value.is_finite() && v.value >= 0.0, "{name}");
                assert!(v.origin.len() > 3, "{name} has no origin");
                if v.kind == Kind::Fitted {
                    assert!(!v.fits.is_empty(), "{name} is fitted, to what?");
                }
                if v.kind == Kind::Stated {
                    assert!(v.origin.contains("section"), "{name} is stated, where?");
                }
                if matches!(v.kind, Kind::Assumed | Kind::Cited) {
                    assert!(v.fits.is_empty(), "{name} was fitted after all");
                }
            }
        }
    }

    #[test]
    fn the_simulated_manager_has_these_values() {
        let p5 = Calibration::of(Testbed::P5);
        let manager = fabricast_sim::subnet::Behaviour::opensm();
        let same = |name: &str, (from, to): (std::time::Duration, std::time::Duration)| {
            for (end, time) in [("min", from), ("max", to)] {
                let value = p5.value(&format!("{name}_{end}_us"));
                assert_eq!(value, time.as_nanos() as f64 / 1e3, "{name}");
            }
        };
        same("service", manager.service);
        same("way", manager.way);
        same("tables", manager.compute);
        same("smp", manager.smp);
        for (end, way, service) in [
            ("min", manager.way.0, manager.service.0),
            ("max", manager.way.1, manager.service.1),
        ] {
            let answer = (2 * way + service).as_nanos() as f64 / 1e3;
            assert_eq!(p5.value(&format!("answer_{end}_us")), answer);
        }
        assert_eq!(p5.count("smps_outstanding"), manager.outstanding as u64);
        assert_eq!(p5.count("smps_per_switch"), u64::from(manager.smps));
    }

    #[test]
    fn a_value_that_is_given_is_no_longer_fitted() {
        let mut c = Calibration::of(Testbed::P1);
        c.set("t_mc_us", 9.0).unwrap();
        assert_eq!(c.value("t_mc_us"), 9.0);
        let (_, v) = c.values().find(|(name, _)| *name == "t_mc_us").unwrap();
        assert_eq!(v.kind, Kind::Given);
        assert!(v.fits.is_empty());
        assert_eq!(v.origin, "given instead of 11.94 (fitted)");
    }

    #[test]
    fn what_cannot_be_is_refused_with_what_can() {
        let mut c = Calibration::of(Testbed::P1);
        let unknown = c.set("t_xx_us", 1.0).unwrap_err().to_string();
        assert!(
            unknown.contains("t_xx_us") && unknown.contains("t_pp_us"),
            "{unknown}"
        );
        for (name, value) in [
            ("t_pp_us", -1.0),
            ("t_pp_us", f64::NAN),
            ("t_pp_us", f64::INFINITY),
            ("payload_bytes", 0.0),
            ("payload_bytes", 1.5),
            ("nodes_measured", 2.5),
        ] {
            let refused = c.set(name, value).unwrap_err().to_string();
            assert!(refused.contains("from"), "{refused}");
        }
        assert_eq!(c, Calibration::of(Testbed::P1));
    }
}
