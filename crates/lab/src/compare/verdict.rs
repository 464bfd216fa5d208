//! Whether `auto` is the best scheme in a cell: by time and, among schemes that are as fast, by the
//! root's bytes.

use super::{Comparison, Cost, Entry, Fate};

/// Factor up to which a scheme may be worse and still count as equal.
const EQUAL: f64 = 1.05;

/// How `auto` compares with the best other scheme, by one measure.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Standing {
    /// `auto` needs as much or less, or no other scheme is as fast.
    Better,
    /// `auto` needs at most 5 % more.
    Equal,
    /// `auto` needs over 5 % more.
    Worse,
}

impl Standing {
    fn of(ratio: f64) -> Standing {
        match ratio {
            r if r <= 1.0 => Standing::Better,
            r if r <= EQUAL => Standing::Equal,
            _ => Standing::Worse,
        }
    }

    /// The word that is printed.
    pub fn word(self) -> &'static str {
        match self {
            Standing::Better => "better",
            Standing::Equal => "within 5 %",
            Standing::Worse => "worse",
        }
    }
}

/// How `auto` compares by one measure, with which scheme, and by which factor.
#[derive(Clone, PartialEq, Debug)]
pub struct Verdict {
    /// The comparison in a word.
    pub standing: Standing,
    /// The best other scheme, and the value of `auto` divided by that scheme's; `None`: there is no
    /// other.
    pub against: Option<(String, f64)>,
}

impl Verdict {
    fn of(ours: &Cost, others: &[(&Entry, &Cost)], measure: fn(&Cost) -> f64) -> Verdict {
        let best = others
            .iter()
            .min_by(|a, b| measure(a.1).total_cmp(&measure(b.1)));
        match best {
            None => Verdict {
                standing: Standing::Better,
                against: None,
            },
            Some((entry, cost)) => {
                let ratio = measure(ours) / measure(cost);
                Verdict {
                    standing: Standing::of(ratio),
                    against: Some((entry.scheme.clone(), ratio)),
                }
            }
        }
    }
}

impl Comparison {
    /// Verdicts on `auto` by the time of the slowest receiver and by the root's bytes. The second
    /// one compares only with schemes that are about as fast as `auto` or faster. `None`: most
    /// seeds of `auto` were given up, or a run failed, or another scheme was given up before `auto`
    /// had ended.
    pub fn verdicts(&self) -> Option<[Verdict; 2]> {
        let ours = self.auto.fate.cost()?;
        let unknown = |e: &Entry| match &e.fate {
            Fate::Cost(..) => false,
            Fate::GivenUp(after) => *after < ours.slowest,
            Fate::Wrong(_) => true,
        };
        if self.presets.iter().any(unknown) {
            return None;
        }
        let others = self.presets.iter();
        let mut others: Vec<_> = others
            .filter_map(|e| e.fate.cost().map(|c| (e, c)))
            .collect();
        let seconds = |c: &Cost| c.slowest.as_secs_f64();
        let time = Verdict::of(ours, &others, seconds);
        others.retain(|(_, c)| seconds(c) <= seconds(ours) * EQUAL);
        let bytes = Verdict::of(ours, &others, |c| c.root_bytes as f64);
        Some([time, bytes])
    }

    /// The worse of the two verdicts, in a word.
    pub fn standing(&self) -> Standing {
        let verdicts = self.verdicts();
        verdicts.map_or(Standing::Worse, |[a, b]| a.standing.max(b.standing))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::compare::{AUTO, Cell, Loss};

    fn entry(scheme: &str, (slowest_us, root_bytes): (u64, u64)) -> Entry {
        let cost = Cost {
            slowest: Duration::from_micros(slowest_us),
            root_bytes,
            root_feedback: 0,
            events: 0,
        };
        Entry {
            scheme: scheme.into(),
            fate: Fate::Cost(cost, 0),
        }
    }

    fn comparison(auto: (u64, u64), others: &[(u64, u64)]) -> Comparison {
        let loss = Loss {
            mean: 0.0,
            burst: None,
        };
        Comparison {
            cell: Cell {
                nodes: 8,
                len: 4,
                loss,
                payload_size: 1440,
            },
            auto: entry(AUTO, auto),
            presets: others.iter().map(|&o| entry("other", o)).collect(),
        }
    }

    #[test]
    fn time_counts_first_and_bytes_among_those_as_fast() {
        use Standing::{Better, Equal, Worse};
        for (auto, others, verdicts) in [
            ((100, 100), &[(100, 100)][..], (Better, Better)),
            ((105, 105), &[(100, 100)], (Equal, Equal)),
            ((106, 100), &[(100, 100)], (Worse, Better)),
            ((100, 106), &[(105, 100)], (Better, Worse)),
            // The bytes of a scheme that is far slower do not count.
            ((100, 900), &[(106, 100), (100, 890)], (Better, Equal)),
            // That slow scheme, which sends few bytes, may be the only other one.
            ((100, 900), &[(106, 100)], (Better, Better)),
        ] {
            let c = comparison(auto, others);
            let found = c.verdicts().map(|[t, b]| (t.standing, b.standing));
            assert_eq!(found, Some(verdicts), "{auto:?} against {others:?}");
            assert_eq!(c.standing(), verdicts.0.max(verdicts.1));
        }
    }

    /// A scheme that was given up before `auto` ended may have been the better one.
    #[test]
    fn nothing_is_said_without_the_others_end() {
        let mut c = comparison((100, 100), &[(100, 100)]);
        c.presets[0].fate = Fate::GivenUp(Duration::from_micros(101));
        assert!(c.verdicts().is_some());
        c.presets[0].fate = Fate::GivenUp(Duration::from_micros(99));
        assert_eq!((c.verdicts(), c.standing()), (None, Standing::Worse));
    }
}
