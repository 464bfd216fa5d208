//! P1's experiments: broadcast over InfiniBand's multicast, on 8 nodes and on 1024 (P1.12, P1.14).

use std::time::Duration;

use fabricast::proto::Scheme;

use crate::calibration::{Calibration, Testbed};
use crate::cluster::Failure;
use crate::model::P1;
use crate::skew;

use super::lab::Bed;
use super::{Effort, Experiment, Findings, Found, Plot, Points, Stopped, Table, column, curve};

/// P1's experiments, in the paper's order.
pub(super) const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        name: "p1-latency",
        testbed: Testbed::P1,
        title: "Latency of small messages on 8 nodes",
        reproduces: "figure 6, section 6.2",
        method: "The root broadcasts, one receiver answers with a message; the receivers take turns. The time of a turn less \
                 that of a message, at the receiver that is reached last. Original by one clock: it has no acknowledgements \
                 in the background that turns could meet.",
        run: latency,
    },
    Experiment {
        name: "p1-large",
        testbed: Testbed::P1,
        title: "Latency of large messages on 8 nodes",
        reproduces: "figure 7, section 6.2.1",
        method: "As for small messages. Window sends buffers of 1836 bytes, Original whole messages by rendezvous.",
        run: large,
    },
    Experiment {
        name: "p1-throughput",
        testbed: Testbed::P1,
        title: "Broadcasts back to back on 8 nodes",
        reproduces: "figure 8, section 6.3",
        method: "Broadcasts of one length without a pause; the time of each after 20 warm-ups, until the root knows that all \
                 have them.",
        run: throughput,
    },
    Experiment {
        name: "p1-skew",
        testbed: Testbed::P1,
        title: "Process skew on 8 nodes",
        reproduces: "figure 9, section 6.4",
        method: "A barrier; the root broadcasts 4 bytes at once, each receiver enters after a random delay from 0 to the skew, and \
                 until then neither looks at the network nor passes anything on. The mean time that the 8 processes \
                 spend in the broadcast.",
        run: skewed,
    },
    Experiment {
        name: "p1-model",
        testbed: Testbed::P1,
        title: "Model against simulation on 8 nodes",
        reproduces: "figure 10, section 7.1",
        method: "One broadcast each, by one clock, as the model has it, beside the model's equations.",
        run: model,
    },
    Experiment {
        name: "p1-1024",
        testbed: Testbed::P1,
        title: "Latency on 1024 nodes",
        reproduces: "figure 11, section 7.1",
        method: "One broadcast each, by one clock, on a fat tree of 8-port switches. The paper's figure is its model's; here the \
                 protocol runs on all 1024 nodes.",
        run: on_1024,
    },
    Experiment {
        name: "p1-coroots",
        testbed: Testbed::P1,
        title: "The number of co-roots on 1024 nodes",
        reproduces: "figure 12, section 7.2",
        method: "Broadcasts of 4 bytes back to back, and one alone by one clock, for each number of delivery groups (the root's \
                 own included).",
        run: coroots,
    },
    Experiment {
        name: "p1-false",
        testbed: Testbed::P1,
        title: "False retransmissions: a tree of acknowledgements against co-roots",
        reproduces: "section 4.3's argument (P1.5)",
        method: "400 broadcasts of 1 KB, half a millisecond apart, to 31 receivers each of which computes half of the time in \
                 stretches of up to 30 ms, without looking at the network. Nothing is lost. Gigabit Ethernet, not the \
                 paper's testbed: what counts is whether time-outs (10 ms) strike.",
        run: false_repairs,
    },
];

/// Sizes of one buffer.
const SMALL: [u64; 7] = [4, 32, 128, 256, 512, 1024, 1836];
const SMALL_QUICK: [u64; 4] = [4, 32, 256, 1024];
/// Where the paper's "up to" is read: the largest power of two in one buffer.
const KILO: u64 = 1024;

fn p1() -> P1 {
    P1::new(&Calibration::of(Testbed::P1))
}

fn bed(hosts: usize) -> Bed {
    Bed {
        simulated: p1().simulated(),
        hosts,
    }
}

/// The paper's schemes.
fn schemes() -> [(&'static str, Scheme); 4] {
    [
        ("basic", Scheme::basic()),
        ("window", Scheme::acknowledged()),
        ("co-root 2", Scheme::coroot(2)),
        ("aggregate 10", Scheme::acknowledged().aggregate(10)),
    ]
}

fn latency(effort: &Effort<'_>) -> Result<Findings, Stopped> {
    let sizes = effort.of(&SMALL, &SMALL_QUICK);
    let turns = if effort.quick { 12 } else { 100 };
    let bed = bed(8);
    let rows = effort.each(&sizes, |&bytes| {
        let mut row = [0.0; 5];
        row[0] = bed.original_latency(bytes)?;
        for (cell, (_, scheme)) in row[1..].iter_mut().zip(schemes()) {
            *cell = bed.latency_by_turns(&scheme, bytes, turns)?;
        }
        Ok(row)
    })?;
    let head = [
        "bytes",
        "original",
        "basic",
        "window",
        "co-root 2",
        "aggregate 10",
        "gain",
    ];
    let mut table = Table::new(
        format!("µs; gain: original over window; {turns} turns each"),
        &head,
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
                remark: "the answer of the receiver whose turn it is waits behind the others' acknowledgements, which the model \
                         does not charge",
            },
            Found {
                claim: "p1-coroot-2us",
                number: above.iter().sum::<f64>() / above.len() as f64,
                remark: "our co-root receives the root's second copy after the multicast and drops it, and the root handles half as \
                         many acknowledgements; what cost P1's implementation 2 us was unknown to its authors",
            },
        ],
    })
}

fn large(effort: &Effort<'_>) -> Result<Findings, Stopped> {
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
    const POSTED: &str = "the root has posted every buffer of so short a message before the first acknowledgement is back; the model, \
                          which was fitted to this number, charges it the acknowledgements of each buffer before the next, so that \
                          further buffers cost the paper's implementation more than a copy, a descriptor and the way";
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

fn throughput(effort: &Effort<'_>) -> Result<Findings, Stopped> {
    let sizes = effort.of(&SMALL, &SMALL_QUICK);
    let count = if effort.quick { 200 } else { 1000 };
    let bed = bed(8);
    let rows = effort.each(&sizes, |&bytes| {
        let mut row = [0.0; 5];
        row[0] = bed.original_each(bytes, count)?;
        for (cell, (_, scheme)) in row[1..].iter_mut().zip(schemes()) {
            *cell = bed.each(&scheme, bytes, count)?;
        }
        Ok(row)
    })?;
    let head = [
        "bytes",
        "original",
        "basic",
        "window",
        "co-root 2",
        "aggregate 10",
        "gain",
    ];
    let title = format!("µs for each of {count}; gain: original over aggregate 10");
    let mut table = Table::new(title, &head);
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

fn skewed(effort: &Effort<'_>) -> Result<Findings, Stopped> {
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
                    "original / 10 (paper)",
                    Points::Paper,
                    [(400.0, last[0] / 10.0)],
                ),
            ],
        }],
        found: vec![
            Found {
                claim: "p1-skew-400",
                number: last[2],
                remark: "more than the paper's: a receiver that comes late finds the message there and leaves after what one message \
                         costs its processor; what else a call of the paper's library took, and how its delays were \
                         distributed, is not in the text",
            },
            Found {
                claim: "p1-skew-flat",
                number: last[1] / first[1],
                remark: "it falls: who comes late does not wait",
            },
        ],
    })
}

fn model(effort: &Effort<'_>) -> Result<Findings, Stopped> {
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
            remark: "the simulation stands for the paper's measurement, and its costs are the model's: it shows that the protocol \
                     adds nothing of its own",
        }],
    })
}

fn on_1024(effort: &Effort<'_>) -> Result<Findings, Stopped> {
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
            remark: "a message between distant nodes passes the switches in between here, which the paper's average hop leaves out",
        }],
    })
}

fn coroots(effort: &Effort<'_>) -> Result<Findings, Stopped> {
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
                remark: "it follows from the ratio of two times, which was fitted to it, whatever the number of nodes",
            },
            Found {
                claim: "p1-groups-latency",
                number: latency(256) / latency(2),
                remark: "",
            },
        ],
    })
}

fn false_repairs(effort: &Effort<'_>) -> Result<Findings, Stopped> {
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
            remark: "the root of a tree cannot know who below a silent child is the one that is late",
        }],
    })
}
