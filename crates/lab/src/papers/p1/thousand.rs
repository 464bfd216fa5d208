//! P1's experiments on 1024 nodes, where the paper has only its model.

use fabricast::proto::Scheme;

use super::bed::{KILO, SMALL, bed, p1};
use crate::papers::experiment::{Effort, Findings, Found, Stopped, Table};
use crate::papers::plot::{Plot, Points, column, curve};

pub(super) fn on_1024(effort: &Effort<'_>) -> Result<Findings, Stopped> {
    let sizes = effort.of(&SMALL, &[4, KILO]);
    let (bed, model) = (bed(1024), p1());
    let rows = effort.each(&sizes, |&bytes| {
        let original = bed.original_latency(bytes)?;
        let window = bed.latency(&Scheme::acknowledged(), bytes)?;
        let coroots = bed.latency(&Scheme::coroot(128), bytes)?;
        let modelled = model.original_us(1024, bytes) / model.multicast_us(1024, bytes, 1);
        Ok([original, window, coroots, original / window, modelled])
    })?;
    let head = [
        "bytes",
        "original",
        "window",
        "co-root 128",
        "gain",
        "gain, model",
    ];
    let mut table = Table::new("µs; gain: original over window", &head);
    for (bytes, row) in sizes.iter().zip(&rows) {
        table.row(bytes, *row);
    }
    let kilo = rows[sizes.iter().position(|&s| s == KILO).unwrap_or(0)];
    Ok(Findings {
        tables: vec![table],
        plots: vec![Plot {
            name: "p1-1024",
            title: "Original over Window on 1024 nodes (P1 figure 11)".into(),
            x: "bytes",
            y: "times as fast",
            log_y: false,
            series: vec![
                curve("simulated", Points::Simulated, column(&sizes, &rows, 3)),
                curve("model", Points::Model, column(&sizes, &rows, 4)),
                curve("paper (its model)", Points::Paper, [(KILO as f64, 4.86)]),
            ],
        }],
        found: vec![Found {
            claim: "p1-latency-1024",
            number: kilo[3],
            remark: "a message between distant nodes passes the switches in between here, which \
                 the paper's average hop leaves out; read where the gain is largest (1836 B, see \
                 the table) it would be more than 10 % above the paper's",
        }],
    })
}

pub(super) fn coroots(effort: &Effort<'_>) -> Result<Findings, Stopped> {
    const ALL: [u64; 10] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];
    const QUICK: [u64; 4] = [2, 64, 128, 256];
    let groups = effort.of(&ALL, &QUICK);
    let count = if effort.quick { 12 } else { 80 };
    let (bed, model) = (bed(1024), p1());
    let times = model.times(4, 1024);
    let rows = effort.each(&groups, |&k| {
        let scheme = Scheme::coroot(k as u32);
        let each = bed.each(&scheme, 4, count)?;
        let latency = bed.latency(&scheme, 4)?;
        let modelled = (times.root_us(1024, k), model.multicast_us(1024, 4, k));
        Ok([each, modelled.0, latency, modelled.1])
    })?;
    let head = ["groups", "each", "its model", "latency", "its model"];
    let mut table = Table::new(format!("µs; each of {count} back to back"), &head);
    for (k, row) in groups.iter().zip(&rows) {
        table.row(k, *row);
    }
    let best = groups
        .iter()
        .zip(&rows)
        .min_by(|a, b| a.1[0].total_cmp(&b.1[0]));
    let latency = |k| rows[groups.iter().position(|&g| g == k).unwrap_or(0)][2];
    let least = best.map_or(0.0, |(_, row)| row[0]);
    Ok(Findings {
        tables: vec![table],
        plots: vec![Plot {
            name: "p1-coroots",
            title: "Groups and the time of a broadcast, 1024 nodes (P1 figure 12)".into(),
            x: "delivery groups",
            y: "µs for each",
            log_y: true,
            series: vec![
                curve("simulated", Points::Simulated, column(&groups, &rows, 0)),
                curve("model", Points::Model, column(&groups, &rows, 1)),
                curve("best in the paper", Points::Paper, [(128.0, least)]),
            ],
        }],
        found: vec![
            Found {
                claim: "p1-groups-1024",
                number: best.map_or(0.0, |(&k, _)| k as f64),
                remark: "it follows from the ratio of two times, which was fitted to it, whatever \
                     the number of nodes",
            },
            Found {
                claim: "p1-groups-latency",
                number: latency(256) / latency(2),
                remark: "",
            },
        ],
    })
}
