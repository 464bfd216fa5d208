//! P5's experiments: multicast groups of a subnet manager for new communicators (P5.5, P5.6).
//!
//! The simulated manager has the values of a real OpenSM (`calibration.toml`). A communicator of
//! half the cluster's hosts is created, its hosts compute, and one of them broadcasts 1 KB again
//! and again. Until a communicator has an address, it sends by unicast (P5.3), or by an address of
//! all hosts ("shared"), which P5 does not have.

use std::time::Duration;

use fabricast::proto::group::Strategy;
use fabricast_sim::Failure;
use fabricast_sim::subnet::Behaviour;
use fabricast_sim::subnet::curve::{Effective, Experiment as New};

use crate::calibration::Testbed;

use super::experiment::{Effort, Experiment, Findings, Found, Stopped, Table};
use super::plot::{Plot, Points, Series, column, curve};

/// P5's experiments, in the paper's order.
pub(super) const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        name: "p5-mads",
        testbed: Testbed::P5,
        title: "The notification phase, by outstanding MADs",
        reproduces: "experiment 1",
        method: "The time until the call that creates a communicator returns with basic: all hosts \
             have joined, and probes have proven the address. The added latency is the same for \
             each SMP.",
        run: mads,
    },
    Experiment {
        name: "p5-timeout",
        testbed: Testbed::P5,
        title: "The notification phase, by transaction timeout and lost SMPs",
        reproduces: "experiment 1",
        method: "As before on 32 nodes, where a part of the SMPs is lost and sent again after the \
             timeout. OpenSM's own timeout is 200 ms.",
        run: timeouts,
    },
    Experiment {
        name: "p5-operations",
        testbed: Testbed::P5,
        title: "Joins beside the routing entries, by nodes",
        reproduces: "experiment 2",
        method: "All hosts join one address at once. The time from a host's request to the \
             manager's answer (median), and from the last answer to the last table entry (mean). \
             The same at a real OpenSM: bench/opensm.",
        run: operations,
    },
    Experiment {
        name: "p5-iterations",
        testbed: Testbed::P5,
        title: "Effective broadcast latency, by the number of broadcasts",
        reproduces: "experiment 3",
        method: "The time from the call that creates the communicator until all hosts have all \
             broadcasts, divided by their number. The number at which the gain equals the paper's \
             is searched. In the column 'lazy, shared' an address of all hosts is proven from the \
             beginning, and carries the broadcasts until the group's own is; in the others they go \
             by unicast. Senders have a fixed rate, so high that it holds nothing back. Only with \
             that does lazy lie between basic and pool: with the pacer's own rate it is slower \
             than basic for some numbers of broadcasts.",
        run: by_iterations,
    },
    Experiment {
        name: "p5-compute",
        testbed: Testbed::P5,
        title: "Effective broadcast latency, by computation time",
        reproduces: "experiment 4",
        method: "As before with 10 broadcasts, before which all hosts compute once. The latencies \
             are without the computation. The gain is with it, because without it a gain over \
             basic depends on it no more; the time at which it equals the paper's is searched. \
             Broadcasts that meet the proof of an address take longer: with pool that of the next \
             one, which all hosts take part in.",
        run: by_compute,
    },
    Experiment {
        name: "p5-first",
        testbed: Testbed::P5,
        title: "The first broadcast by an address of the pool",
        reproduces: "benefits of the pool",
        method: "The first broadcast on a new communicator, from when its creation has returned, \
             and the same a second later, when the manager and the tables are long done.",
        run: first,
    },
];

/// Rate of the senders in bytes per second, so high that no pacer holds a packet back, as in the
/// other papers' experiments.
const RATE: u64 = 40_000_000_000;
/// Nodes of the paper's figures.
const NODES: [u32; 2] = [16, 32];
/// Broadcasts after a computation.
const BROADCASTS: usize = 10;
/// Added latency of an SMP in microseconds, where switches are not to answer at once.
const ADDED_US: u64 = 500;

/// How a communicator gets its address: the column's name, the strategy, and whether an address of
/// all hosts is there.
type Way = (&'static str, Strategy, bool);

const BASIC: Way = ("basic", Strategy::Basic, false);
const POOL: Way = ("pool", Strategy::pool(8), false);
const WAYS: [Way; 4] = [
    BASIC,
    ("lazy", Strategy::Lazy, false),
    ("lazy, shared", Strategy::Lazy, true),
    POOL,
];

/// An experiment of a way, without its seed.
fn new(nodes: u32, (_, strategy, context_address): Way) -> New {
    New {
        context_address,
        rate: Some(RATE),
        ..New::new(nodes, strategy)
    }
}

fn us(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

/// Seeds of each cell: all times of a manager are drawn from ranges.
fn seeds(effort: &Effort<'_>, full: u64) -> Vec<u64> {
    (1..=if effort.quick { full.min(2) } else { full }).collect()
}

/// The mean over seeds of one number of an experiment, in microseconds.
fn mean(of: &New, seeds: &[u64], number: fn(&Effective) -> Duration) -> Result<f64, Failure> {
    let mut sum = 0.0;
    for &seed in seeds {
        sum += us(number(&New { seed, ..of.clone() }.run()?));
    }
    Ok(sum / seeds.len() as f64)
}

/// The latencies of all ways, in microseconds for each broadcast.
fn latencies(
    nodes: u32,
    seeds: &[u64],
    change: impl Fn(&mut New),
) -> Result<[f64; WAYS.len()], Failure> {
    let mut row = [0.0; WAYS.len()];
    for (cell, way) in row.iter_mut().zip(WAYS) {
        let mut of = new(nodes, way);
        change(&mut of);
        *cell = mean(&of, seeds, |e| e.latency)?;
    }
    Ok(row)
}

fn found(claim: &'static str, number: f64, remark: &'static str) -> Found {
    Found {
        claim,
        number,
        remark,
    }
}

fn mads(effort: &Effort<'_>) -> Result<Findings, Stopped> {
    const OUTSTANDING: [usize; 5] = [1, 2, 4, 8, 16];
    let nodes = effort.of(&[4, 8, 16, 32], &[8, 32]);
    let added = [0, ADDED_US];
    let seeds = seeds(effort, 32);
    let cells: Vec<(u64, u32)> = added
        .into_iter()
        .flat_map(|added| nodes.iter().map(move |&nodes| (added, nodes)))
        .collect();
    let rows = effort.each(&cells, |&(added, nodes)| {
        let mut row = [0.0; OUTSTANDING.len()];
        for (cell, outstanding) in row.iter_mut().zip(OUTSTANDING) {
            let mut of = new(nodes, BASIC);
            of.manager = of.manager.slower(Duration::from_micros(added));
            of.manager.outstanding = outstanding;
            *cell = mean(&of, &seeds, |e| e.creation)?;
        }
        Ok(row)
    })?;
    let names = OUTSTANDING.map(|n| n.to_string());
    let head = [
        &["nodes, added µs"][..],
        &names.each_ref().map(|n| n.as_str()),
    ]
    .concat();
    let mut table = Table::new("µs until the call returns, by outstanding MADs", &head);
    for ((added, nodes), row) in cells.iter().zip(&rows) {
        table.row(format!("{nodes}, {added}"), *row);
    }
    let most = *nodes.last().unwrap_or(&0);
    let line = |(&(added, _), row): (&(u64, u32), &[f64; OUTSTANDING.len()])| {
        let at = OUTSTANDING.iter().map(|&n| n as f64).zip(*row);
        curve(format!("{added} µs added"), Points::Simulated, at)
    };
    let lines = cells.iter().zip(&rows).filter(|((_, n), _)| *n == most);
    Ok(Findings {
        tables: vec![table],
        plots: vec![Plot {
            name: "p5-mads",
            title: format!("Notification on {most} nodes, by outstanding MADs (P5 experiment 1)"),
            x: "outstanding MADs",
            y: "µs",
            log_y: false,
            series: lines.map(line).collect(),
        }],
        found: Vec::new(),
    })
}

fn timeouts(effort: &Effort<'_>) -> Result<Findings, Stopped> {
    const LOST: [f64; 4] = [0.0, 0.1, 1.0, 5.0];
    let timeouts = effort.of(&[1, 5, 20, 50, 200, 1000], &[1, 200]);
    let seeds = seeds(effort, 200);
    let rows = effort.each(&timeouts, |&ms| {
        let mut row = [0.0; LOST.len()];
        for (cell, lost) in row.iter_mut().zip(LOST) {
            let mut of = new(32, BASIC);
            of.manager.smp_timeout = Duration::from_millis(ms);
            of.manager.smp_lost = lost / 100.0;
            *cell = mean(&of, &seeds, |e| e.creation)? / 1e3;
        }
        Ok(row)
    })?;
    let names = LOST.map(|lost| format!("{lost} % lost"));
    let head = [&["timeout, ms"][..], &names.each_ref().map(|n| n.as_str())].concat();
    let title = format!("mean ms until the call returns, {} runs each", seeds.len());
    let mut table = Table::new(title, &head);
    for (ms, row) in timeouts.iter().zip(&rows) {
        table.row(ms, *row);
    }
    let lines = names.iter().enumerate();
    let line = |(i, name): (usize, &String)| {
        curve(name.clone(), Points::Simulated, column(&timeouts, &rows, i))
    };
    Ok(Findings {
        tables: vec![table],
        plots: vec![Plot {
            name: "p5-timeout",
            title: "Notification on 32 nodes, by transaction timeout (P5 experiment 1)".into(),
            x: "timeout, ms",
            y: "ms",
            log_y: true,
            series: lines.map(line).collect(),
        }],
        found: Vec::new(),
    })
}

fn operations(effort: &Effort<'_>) -> Result<Findings, Stopped> {
    let nodes = effort.of(&[4, 8, 16, 32], &[4, 32]);
    let seeds = seeds(effort, 32);
    let rows = effort.each(&nodes, |&nodes| {
        let mut row = [0.0; 5];
        let added = |us| Behaviour::opensm().slower(Duration::from_micros(us));
        for (added, cells) in [added(0), added(ADDED_US)].into_iter().zip([1, 3]) {
            let mut of = new(nodes as u32, BASIC);
            of.manager = added;
            row[0] = mean(&of, &seeds, |e| e.answer)?;
            row[cells] = mean(&of, &seeds, |e| e.tables)?;
            row[cells + 1] = row[cells] / row[0];
        }
        Ok(row)
    })?;
    let head = [
        "nodes",
        "answer",
        "tables after it",
        "ratio",
        "tables, 500 added",
        "ratio",
    ];
    let mut table = Table::new("µs; the last two with 500 µs added to each SMP", &head);
    for (nodes, row) in nodes.iter().zip(&rows) {
        table.row(nodes, *row);
    }
    let line = |name: &str, i| curve(name, Points::Simulated, column(&nodes, &rows, i));
    Ok(Findings {
        tables: vec![table],
        plots: vec![Plot {
            name: "p5-operations",
            title: "Joins and routing entries, by nodes (P5 experiment 2)".into(),
            x: "nodes",
            y: "µs",
            log_y: true,
            series: vec![
                line("answer", 0),
                line("tables", 1),
                line("tables, 500 µs added", 3),
            ],
        }],
        found: vec![found(
            "p5-issue",
            rows.iter().map(|row| row[2]).fold(f64::INFINITY, f64::min),
            "the least of all rows, and hardly more than 1: the simulated switches answer SMPs at \
             once, as ibsim's do, so that little but the manager's own work counts; at the real \
             OpenSM it is 1.9 with 4 members and 0.5 with 32 that join at once \
             (bench/results/opensm-2026-11-25.md), since answers wait for each other there; with \
             latency added to SMPs it is much more at both",
        )],
    })
}

/// An effective latency's gain: basic over pool, with this time of computing counted.
fn gain(effort: &Effort<'_>, nodes: u32, n: usize, compute: Duration) -> Result<f64, Stopped> {
    let total = |way: Way, seed| {
        let of = New {
            iterations: n,
            compute,
            seed,
            ..new(nodes, way)
        };
        Ok(us(of.run()?.latency) * n as f64 + us(compute))
    };
    // The pool's courses hardly differ, and take longer to simulate.
    let basic = effort.each(&seeds(effort, 32), |&seed| total(BASIC, seed))?;
    let pool = effort.each(&seeds(effort, 2), |&seed| total(POOL, seed))?;
    let mean = |times: Vec<f64>| times.iter().sum::<f64>() / times.len() as f64;
    Ok(mean(basic) / mean(pool))
}

/// A point on an axis and the gain there.
type Point = (u64, f64);

/// Searches where a gain that falls along an axis equals `wanted`, from 1 to `last`: the first
/// point within 1 %, otherwise the nearest of two neighbours.
fn search(
    wanted: f64,
    last: u64,
    gain: impl Fn(u64) -> Result<f64, Stopped>,
) -> Result<Point, Stopped> {
    let mut low = (1, gain(1)?);
    let mut high = (last, gain(last)?);
    while low.1 > wanted && high.1 < wanted && high.0 - low.0 > 1 {
        // The axes are logarithmic.
        let middle = ((low.0 as f64 * high.0 as f64).sqrt() as u64).clamp(low.0 + 1, high.0 - 1);
        let at = (middle, gain(middle)?);
        if (at.1 / wanted - 1.0).abs() < 0.01 {
            return Ok(at);
        }
        match at.1 > wanted {
            true => low = at,
            false => high = at,
        }
    }
    let far = |at: &Point| (at.1 / wanted).ln().abs();
    Ok(if far(&low) < far(&high) { low } else { high })
}

/// The points at which the gain equals the paper's, as a table.
fn points(title: &str, axis: &str, all: &[(f64, Point)]) -> Table {
    let mut table = Table::new(title, &["nodes", "paper's gain", axis, "gain there"]);
    for (nodes, (wanted, (at, gain))) in NODES.iter().zip(all) {
        table.row(nodes, [*wanted, *at as f64, *gain]);
    }
    table
}

/// The rows of one number of nodes: latencies, then the gain.
type Row = [f64; WAYS.len() + 1];

/// Tables and curves of latencies, one for each number of nodes.
fn latency_tables(axis: &str, gain: &str, at: &[u64], rows: &[Vec<Row>]) -> Vec<Table> {
    let names = WAYS.map(|way| way.0);
    let head = [&[axis][..], &names, &[gain]].concat();
    let tables = NODES.iter().zip(rows).map(|(nodes, rows)| {
        let mut table = Table::new(format!("µs for each broadcast, {nodes} nodes"), &head);
        for (at, row) in at.iter().zip(rows) {
            table.row(at, *row);
        }
        table
    });
    tables.collect()
}

fn latency_lines(at: &[u64], rows: &[Row]) -> Vec<Series> {
    let line = |(i, way): (usize, &Way)| curve(way.0, Points::Simulated, column(at, rows, i));
    WAYS.iter().enumerate().map(line).collect()
}

/// How much faster pool is than basic, at least.
fn least(rows: &[Vec<Row>]) -> f64 {
    let gains = rows
        .iter()
        .flatten()
        .map(|row| row[0] / row[WAYS.len() - 1]);
    gains.fold(f64::INFINITY, f64::min)
}

fn by_iterations(effort: &Effort<'_>) -> Result<Findings, Stopped> {
    const PAPER: [f64; 2] = [2.42, 4.8];
    let counts = effort.of(&[1, 2, 5, 10, 20, 50, 100, 200, 500], &[1, 10, 100]);
    let seeds = seeds(effort, 6);
    let mut rows = Vec::new();
    let mut all = Vec::new();
    for (nodes, wanted) in NODES.into_iter().zip(PAPER) {
        rows.push(effort.each(&counts, |&n| {
            let row = latencies(nodes, &seeds, |of| of.iterations = n as usize)?;
            Ok([row[0], row[1], row[2], row[3], row[0] / row[3]])
        })?);
        let gain = |n| gain(effort, nodes, n as usize, Duration::ZERO);
        all.push((wanted, search(wanted, 500, gain)?));
    }
    let mut tables = latency_tables("broadcasts", "basic / pool", &counts, &rows);
    let title = "where the gain equals the paper's";
    tables.push(points(title, "broadcasts", &all));
    let plot = |name, i: usize| Plot {
        name,
        title: format!("{} nodes, by broadcasts (P5 experiment 3)", NODES[i]),
        x: "broadcasts",
        y: "µs",
        log_y: true,
        series: latency_lines(&counts, &rows[i]),
    };
    Ok(Findings {
        tables,
        plots: vec![plot("p5-iterations-16", 0), plot("p5-iterations-32", 1)],
        found: vec![
            found("p5-iterations-16", all[0].1.1, REMARK_SEARCHED),
            found("p5-iterations-32", all[1].1.1, REMARK_SEARCHED),
            found("p5-best", least(&rows), "the least gain over iterations"),
        ],
    })
}

const REMARK_SEARCHED: &str = "the text names no axis: this is the gain at the point where it is \
     nearest to the paper's; the tables say where that is, and what the gain is elsewhere";

fn by_compute(effort: &Effort<'_>) -> Result<Findings, Stopped> {
    const PAPER: [f64; 2] = [1.95, 1.80];
    let times = effort.of(
        &[1, 100, 200, 500, 1000, 2000, 5000, 10_000],
        &[1, 1000, 10_000],
    );
    let seeds = seeds(effort, 6);
    let mut rows = Vec::new();
    let mut all = Vec::new();
    for (nodes, wanted) in NODES.into_iter().zip(PAPER) {
        rows.push(effort.each(&times, |&time| {
            let row = latencies(nodes, &seeds, |of| {
                of.iterations = BROADCASTS;
                of.compute = Duration::from_micros(time);
            })?;
            let total = |latency: f64| latency * BROADCASTS as f64 + time as f64;
            let gain = total(row[0]) / total(row[3]);
            Ok([row[0], row[1], row[2], row[3], gain])
        })?);
        let gain = |time| gain(effort, nodes, BROADCASTS, Duration::from_micros(time));
        all.push((wanted, search(wanted, 10_000, gain)?));
    }
    let mut tables = latency_tables("computing, µs", "gain with it", &times, &rows);
    let title = "where the gain, computation counted, equals the paper's";
    tables.push(points(title, "computing, µs", &all));
    let plot = |name, i: usize| Plot {
        name,
        title: format!("{} nodes, by computation time (P5 experiment 4)", NODES[i]),
        x: "computing, µs",
        y: "µs",
        log_y: true,
        series: latency_lines(&times, &rows[i]),
    };
    Ok(Findings {
        tables,
        plots: vec![plot("p5-compute-16", 0), plot("p5-compute-32", 1)],
        found: vec![
            found("p5-compute-16", all[0].1.1, REMARK_SEARCHED),
            found("p5-compute-32", all[1].1.1, REMARK_SEARCHED),
        ],
    })
}

/// When every address is long proven.
const LATER: Duration = Duration::from_secs(1);

/// The first broadcast on a communicator that computes first, in microseconds from the end of that.
fn first_us(
    way: Way,
    nodes: u32,
    len: u64,
    compute: Duration,
    seeds: &[u64],
) -> Result<f64, Failure> {
    let of = New {
        len,
        compute,
        ..new(nodes, way)
    };
    mean(&of, seeds, |e| e.latency.saturating_sub(e.creation))
}

fn first(effort: &Effort<'_>) -> Result<Findings, Stopped> {
    let lens = effort.of(&[4, 1 << 10, 64 << 10], &[1 << 10]);
    let seeds = seeds(effort, 4);
    let cells: Vec<(u32, u64)> = NODES
        .into_iter()
        .flat_map(|nodes| lens.iter().map(move |&len| (nodes, len)))
        .collect();
    let rows = effort.each(&cells, |&(nodes, len)| {
        let at = |compute| first_us(POOL, nodes, len, compute, &seeds);
        let (now, later) = (at(Duration::ZERO)?, at(LATER)?);
        Ok([now, later, now / later])
    })?;
    let head = ["nodes, bytes", "at once", "a second later", "ratio"];
    let mut table = Table::new("µs of the first broadcast", &head);
    for ((nodes, len), row) in cells.iter().zip(&rows) {
        table.row(format!("{nodes}, {len}"), *row);
    }
    Ok(Findings {
        tables: vec![table],
        ..Findings::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(of: fn(&Effort<'_>) -> Result<Findings, Stopped>) -> Findings {
        let effort = Effort {
            quick: true,
            threads: 2,
            go_on: &|| true,
            live: &[],
        };
        of(&effort).unwrap()
    }

    fn numbers(table: &Table) -> Vec<Vec<f64>> {
        let row = |row: &Vec<String>| row[1..].iter().map(|n| n.parse().unwrap()).collect();
        table.rows.iter().map(row).collect()
    }

    /// While the pool is filled again, its proofs may delay broadcasts, so that pool is a little
    /// slower than lazy in a row.
    #[test]
    fn lazy_lies_between_basic_and_pool() {
        for (nodes, n, compute) in [(16, 1, 0), (32, 1, 0), (16, 50, 0), (16, 10, 500)] {
            let row = latencies(nodes, &[1, 2], |of| {
                of.iterations = n;
                of.compute = Duration::from_micros(compute);
            });
            let row = row.unwrap();
            let [basic, lazy, _, pool] = row;
            assert!(pool <= 1.05 * lazy && lazy < basic, "{row:?}");
        }
    }

    #[test]
    fn a_group_of_the_pool_broadcasts_at_once_as_later() {
        for row in numbers(&run(first).tables[0]) {
            assert!(row[2] <= 1.2, "{row:?}");
        }
        // Otherwise it is slower: lazy begins by unicast, and 64 KiB have many packets.
        let lazy = |compute| first_us(WAYS[1], 16, 64 << 10, compute, &[1, 2]).unwrap();
        assert!(lazy(Duration::ZERO) > 1.2 * lazy(LATER));
    }

    #[test]
    fn more_mads_and_shorter_timeouts_are_faster() {
        let mads = numbers(&run(mads).tables[0]);
        // With latency added, 32 nodes: one MAD at a time is slower than 16.
        let last = mads.last().unwrap();
        assert!(last[0] > 1.2 * last[4], "{last:?}");
        let timeouts = numbers(&run(timeouts).tables[0]);
        assert!(timeouts[0][3] < timeouts[1][3], "{timeouts:?}");
        assert_eq!(timeouts[0][0], timeouts[1][0]);
    }

    #[test]
    fn a_point_is_searched_where_the_gain_falls() {
        let falls = |n: u64| Ok(1.0 + 100.0 / n as f64);
        assert_eq!(search(3.0, 1000, falls).unwrap().0, 50);
        // Beyond both ends the nearer one is returned.
        assert_eq!(search(200.0, 1000, falls).unwrap().0, 1);
        assert_eq!(search(1.01, 1000, falls).unwrap().0, 1000);
    }
}
