//! P1's experiments with late processes: the time in the broadcast, and needless retransmissions.

use std::time::Duration;

use fabricast::proto::Scheme;

use fabricast_sim::Failure;
use fabricast_sim::skew;

use super::bed::bed;
use crate::papers::experiment::{Effort, Findings, Found, Stopped, Table};
use crate::papers::plot::{Plot, Points, column, curve};

pub(super) fn skewed(effort: &Effort<'_>) -> Result<Findings, Stopped> {
    let skews = effort.of(&[0, 25, 50, 100, 150, 200, 300, 400], &[0, 100, 400]);
    let times = if effort.quick { 40 } else { 400 };
    let bed = bed(8);
    let window = Scheme::acknowledged();
    let rows = effort.each(&skews, |&us| {
        let skew = Duration::from_micros(us);
        let original = bed.original_inside_us(4, skew, times)?;
        let window = bed.inside_us(&window, 4, skew, times)?;
        Ok([original, window, original / window])
    })?;
    let mut table = Table::new(
        format!("mean µs in the broadcast over {times} of them"),
        &["skew, µs", "original", "window", "ratio"],
    );
    for (skew, row) in skews.iter().zip(&rows) {
        table.row(skew, *row);
    }
    let (first, last) = (rows[0], rows[rows.len() - 1]);
    // A logarithmic axis has no zero.
    let shown: Vec<u64> = skews.iter().map(|&us| us.max(10)).collect();
    Ok(Findings {
        tables: vec![table],
        plots: vec![Plot {
            name: "p1-skew",
            title: "Time in the broadcast under skew, 8 nodes (P1 figure 9); none is drawn at 10"
                .into(),
            x: "skew, µs",
            y: "µs",
            log_y: true,
            series: vec![
                curve("original", Points::Simulated, column(&shown, &rows, 0)),
                curve("window", Points::Simulated, column(&shown, &rows, 1)),
                curve(
                    "a tenth of the original (the ratio of the paper)",
                    Points::Paper,
                    [(400.0, last[0] / 10.0)],
                ),
            ],
        }],
        found: vec![
            Found {
                claim: "p1-skew-400",
                number: last[2],
                remark: "more than the paper's: a receiver that comes late finds the message there \
                     and leaves after what one message costs its processor; what else a call of \
                     the paper's library took is not in the text. Here 400 us is the longest \
                     delay, as section 6.4 may be read, and 10 is reached at half of that; the \
                     paper's section 9 calls it the average",
            },
            Found {
                claim: "p1-skew-flat",
                number: last[1] / first[1],
                remark: "it falls: a late rank does not wait",
            },
        ],
    })
}

pub(super) fn false_repairs(effort: &Effort<'_>) -> Result<Findings, Stopped> {
    const SCHEMES: [&str; 4] = ["auto", "window", "coroot(4)", "tree(2)"];
    let seeds = if effort.quick { 1 } else { 5 };
    let rows = effort.each(&SCHEMES, |name| {
        let scheme: Scheme = name.parse().unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut sum = [0.0; 2];
        for seed in 0..seeds {
            let f = skew::false_repairs(scheme.clone(), seed)?;
            sum[0] += f.sent as f64 / seeds as f64;
            sum[1] += f.received as f64 / seeds as f64;
        }
        Ok::<_, Failure>(sum)
    })?;
    let mut table = Table::new(
        format!("packets, mean of {seeds} seeds"),
        &["scheme", "sent again", "had already"],
    );
    for (name, row) in SCHEMES.iter().zip(&rows) {
        table.row(name, *row);
    }
    Ok(Findings {
        tables: vec![table],
        plots: Vec::new(),
        found: vec![Found {
            claim: "p1-tree-false",
            number: rows[3][1] / rows[2][1].max(1.0),
            remark: "the root of a tree cannot know who below a silent child is the one that is \
                 late",
        }],
    })
}
