//! P1's experiments on 8 nodes, as the paper measured: latency, large messages, throughput, and the
//! model beside them.

use fabricast::proto::Scheme;

use super::bed::{KILO, SMALL, SMALL_QUICK, bed, p1};
use crate::papers::experiment::{Effort, Findings, Found, Stopped, Table};
use crate::papers::plot::{Plot, Points, column, curve};
use fabricast_sim::Failure;

/// The paper's schemes.
fn schemes() -> [(&'static str, Scheme); 4] {
    [
        ("basic", Scheme::basic()),
        ("window", Scheme::acknowledged()),
        ("co-root 2", Scheme::coroot(2)),
        ("aggregate 10", Scheme::acknowledged().aggregate(10)),
    ]
}

/// Columns of the tables that show all schemes.
const HEAD: [&str; 7] = [
    "bytes",
    "original",
    "basic",
    "window",
    "co-root 2",
    "aggregate 10",
    "gain",
];

/// Measures each size: the original broadcast, then each scheme.
fn of_all_schemes(
    effort: &Effort<'_>,
    sizes: &[u64],
    original: impl Fn(u64) -> Result<f64, Failure> + Sync,
    other: impl Fn(&Scheme, u64) -> Result<f64, Failure> + Sync,
) -> Result<Vec<[f64; 5]>, Stopped> {
    effort.each(sizes, |&bytes| {
        let mut row = [0.0; 5];
        row[0] = original(bytes)?;
        for (cell, (_, scheme)) in row[1..].iter_mut().zip(schemes()) {
            *cell = other(&scheme, bytes)?;
        }
        Ok(row)
    })
}

pub(super) fn latency(effort: &Effort<'_>) -> Result<Findings, Stopped> {
    let sizes = effort.of(&SMALL, &SMALL_QUICK);
    let turns = if effort.quick { 12 } else { 100 };
    let bed = bed(8);
    let rows = of_all_schemes(
        effort,
        &sizes,
        |bytes| bed.original_latency(bytes),
        |scheme, bytes| bed.latency_by_turns(scheme, bytes, turns),
    )?;
    let mut table = Table::new(
        format!("µs; gain: original over window; {turns} turns each"),
        &HEAD,
    );
    for (bytes, row) in sizes.iter().zip(&rows) {
        table.row(bytes, row.iter().copied().chain([row[0] / row[2]]));
    }
    let at = |size| rows[sizes.iter().position(|&s| s == size).unwrap_or(0)];
    let above: Vec<f64> = sizes
        .iter()
        .zip(&rows)
        .filter(|(b, _)| **b > 32)
        .map(|(_, r)| r[3] - r[2])
        .collect();
    let mut series = vec![curve(
        "original",
        Points::Simulated,
        column(&sizes, &rows, 0),
    )];
    for (i, (name, _)) in schemes().into_iter().enumerate() {
        series.push(curve(name, Points::Simulated, column(&sizes, &rows, i + 1)));
    }
    let model = p1();
    let modelled = sizes
        .iter()
        .map(|&b| (b as f64, model.multicast_us(8, b, 1)));
    series.push(curve("window, model", Points::Model, modelled));
    let fastest = at(KILO)[0] / 1.58;
    series.push(curve(
        "original / 1.58 (paper)",
        Points::Paper,
        [(KILO as f64, fastest)],
    ));
    Ok(Findings {
        tables: vec![table],
        plots: vec![Plot {
            name: "p1-latency",
            title: "Latency on 8 nodes (P1 figure 6)".into(),
            x: "bytes",
            y: "µs",
            log_y: false,
            series,
        }],
        found: vec![
            Found {
                claim: "p1-latency-8",
                number: at(KILO)[0] / at(KILO)[2],
                remark: "the answer of the receiver whose turn it is waits behind the others' \
                     acknowledgements, which the model \
                         does not charge",
            },
            Found {
                claim: "p1-coroot-2us",
                number: above.iter().sum::<f64>() / above.len() as f64,
                remark: "our co-root receives the root's second copy after the multicast and drops \
                     it, and the root handles half as many acknowledgements; what cost P1's \
                     implementation 2 us was unknown to its authors",
            },
        ],
    })
}

pub(super) fn large(effort: &Effort<'_>) -> Result<Findings, Stopped> {
    const SIZES: [u64; 6] = [2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10];
    const QUICK: [u64; 4] = [2 << 10, 8 << 10, 32 << 10, 64 << 10];
    let sizes = effort.of(&SIZES, &QUICK);
    let turns = if effort.quick { 8 } else { 50 };
    let (bed, model) = (bed(8), p1());
    let window = Scheme::acknowledged();
    let rows = effort.each(&sizes, |&bytes| {
        let original = bed.original_latency(bytes)?;
        let window = bed.latency_by_turns(&window, bytes, turns)?;
        let modelled = (model.original_us(8, bytes), model.multicast_us(8, bytes, 1));
        Ok([original, window, original / window, modelled.0 / modelled.1])
    })?;
    let head = ["bytes", "original", "window", "gain", "gain, model"];
    let mut table = Table::new(format!("µs; {turns} turns each"), &head);
    for (bytes, row) in sizes.iter().zip(&rows) {
        table.row(bytes, *row);
    }
    let gain = |size| rows[sizes.iter().position(|&s| s == size).unwrap_or(0)][2];
    let found = |claim, bytes, remark| Found {
        claim,
        number: gain(bytes),
        remark,
    };
    const POSTED: &str = "the root has posted every buffer of so short a message before the first \
         acknowledgement is back; the model, which was fitted to this number, charges it the \
         acknowledgements of each buffer before the next, so that further buffers cost the paper's \
         implementation more than a copy, a descriptor and the way";
    Ok(Findings {
        tables: vec![table],
        plots: vec![Plot {
            name: "p1-large",
            title: "Original over Window, large messages on 8 nodes (P1 figure 7)".into(),
            x: "bytes",
            y: "times as fast",
            log_y: false,
            series: vec![
                curve("simulated", Points::Simulated, column(&sizes, &rows, 2)),
                curve("model", Points::Model, column(&sizes, &rows, 3)),
                curve("paper", Points::Paper, [(2048.0, 3.10), (8192.0, 1.86)]),
            ],
        }],
        found: vec![
            found("p1-large-2k", 2 << 10, POSTED),
            found("p1-large-8k", 8 << 10, POSTED),
            found("p1-large-32k", 32 << 10, ""),
            found("p1-large-64k", 64 << 10, ""),
        ],
    })
}

pub(super) fn throughput(effort: &Effort<'_>) -> Result<Findings, Stopped> {
    let sizes = effort.of(&SMALL, &SMALL_QUICK);
    let count = if effort.quick { 200 } else { 1000 };
    let bed = bed(8);
    let rows = of_all_schemes(
        effort,
        &sizes,
        |bytes| bed.original_each(bytes, count),
        |scheme, bytes| bed.each(scheme, bytes, count),
    )?;
    let title = format!("µs for each of {count}; gain: original over aggregate 10");
    let mut table = Table::new(title, &HEAD);
    for (bytes, row) in sizes.iter().zip(&rows) {
        table.row(bytes, row.iter().copied().chain([row[0] / row[4]]));
    }
    let kilo = rows[sizes.iter().position(|&s| s == KILO).unwrap_or(0)];
    let per_second = |i| {
        let us = column(&sizes, &rows, i).into_iter();
        us.map(|(x, us)| (x, 1e3 / us)).collect::<Vec<_>>()
    };
    let mut series = vec![curve("original", Points::Simulated, per_second(0))];
    for (i, (name, _)) in schemes().into_iter().enumerate() {
        series.push(curve(name, Points::Simulated, per_second(i + 1)));
    }
    let best = [(KILO as f64, 2.12 * 1e3 / kilo[0])];
    series.push(curve("2.12 x original (paper)", Points::Paper, best));
    let found = |claim, scheme: usize| Found {
        claim,
        number: kilo[0] / kilo[scheme],
        remark: "",
    };
    Ok(Findings {
        tables: vec![table],
        plots: vec![Plot {
            name: "p1-throughput",
            title: "Broadcasts back to back on 8 nodes (P1 figure 8)".into(),
            x: "bytes",
            y: "thousand a second",
            log_y: false,
            series,
        }],
        found: vec![
            found("p1-throughput", 4),
            found("p1-throughput-window", 2),
            found("p1-throughput-basic", 1),
        ],
    })
}

pub(super) fn model(effort: &Effort<'_>) -> Result<Findings, Stopped> {
    let sizes = effort.of(&SMALL, &SMALL_QUICK);
    let (bed, model) = (bed(8), p1());
    let window = Scheme::acknowledged();
    let rows = effort.each(&sizes, |&bytes| {
        let original = bed.original_latency(bytes)?;
        let window = bed.latency(&window, bytes)?;
        let modelled = [model.original_us(8, bytes), model.multicast_us(8, bytes, 1)];
        Ok([original, modelled[0], window, modelled[1]])
    })?;
    let head = ["bytes", "original", "its model", "window", "its model"];
    let mut table = Table::new("µs", &head);
    for (bytes, row) in sizes.iter().zip(&rows) {
        table.row(bytes, *row);
    }
    let apart = |a: f64, b: f64| (a / b).max(b / a);
    let most = rows
        .iter()
        .map(|r| apart(r[0], r[1]).max(apart(r[2], r[3])));
    Ok(Findings {
        tables: vec![table],
        plots: vec![Plot {
            name: "p1-model",
            title: "Model and simulation on 8 nodes (P1 figure 10)".into(),
            x: "bytes",
            y: "µs",
            log_y: false,
            series: vec![
                curve("original", Points::Simulated, column(&sizes, &rows, 0)),
                curve("original, model", Points::Model, column(&sizes, &rows, 1)),
                curve("window", Points::Simulated, column(&sizes, &rows, 2)),
                curve("window, model", Points::Model, column(&sizes, &rows, 3)),
            ],
        }],
        found: vec![Found {
            claim: "p1-model-8",
            number: most.fold(1.0, f64::max),
            remark: "the simulation stands for the paper's measurement, and its costs are the \
                 model's: it shows that the protocol \
                     adds nothing of its own",
        }],
    })
}
