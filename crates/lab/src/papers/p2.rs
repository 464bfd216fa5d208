//! P2's experiments: the n-way dissemination barrier on up to 64 nodes, beside the library's and
//! the others (P2.5, P2.6, P2.8).

use fabricast::proto::Barrier;

use crate::calibration::{Calibration, Testbed};
use crate::model::P2;
use crate::model::lop::fit_line;
use fabricast_sim::Failure;

use super::experiment::{Effort, Experiment, Findings, Found, Live, Stopped, Table};
use super::lab::Bed;
use super::plot::{Plot, Points, column, curve};

/// P2's experiments, in the paper's order.
pub(super) const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        name: "p2-ping-pong",
        testbed: Testbed::P2,
        title: "RTT(P): one node tells P others, each of which answers",
        reproduces: "figures 2 and 3, section 2.1",
        method: "Barriers by a central counter, back to back: their period is the 1:P and P:1 \
             ping-pong of its root with all others. The \
                 mean of each; virtual time has no other minimum.",
        run: ping_pong,
    },
    Experiment {
        name: "p2-ways",
        testbed: Testbed::P2,
        title: "The barrier by the number of ways n, for each number of nodes",
        reproduces: "figure 6, section 4.1",
        method: "Barriers back to back, after warm-ups: the mean of each, by the last to leave.",
        run: by_ways,
    },
    Experiment {
        name: "p2-library",
        testbed: Testbed::P2,
        title: "The library's barrier, n = 1 and the best n, by nodes",
        reproduces: "figures 6 and 7, section 4.1",
        method: "As before. The library's is n = 1 that finds its partners in each round \
             (calibrated). The best n is that of the \
                 runs, as P2's tuning would find it.",
        run: beside_library,
    },
    Experiment {
        name: "p2-others",
        testbed: Testbed::P2,
        title: "n = 1 beside the other barriers, by nodes",
        reproduces: "section 1.1 (P2.6), where the paper cites an overview",
        method: "As before. What multicasts costs as much as a word here, for the paper's network \
             has none that is measured.",
        run: beside_others,
    },
];

fn p2() -> P2 {
    P2::new(&Calibration::of(Testbed::P2))
}

/// Number of timed barriers: the paper's sample, but virtual time needs no repetition of it.
fn sample(effort: &Effort<'_>) -> usize {
    match effort.quick {
        true => 20,
        false => Calibration::of(Testbed::P2).count("rtt_samples") as usize,
    }
}

fn each(nodes: u64, barrier: Barrier, count: usize) -> Result<f64, Failure> {
    let bed = Bed {
        simulated: p2().simulated(),
        hosts: nodes as usize,
    };
    bed.barrier_each(barrier, count)
}

fn ways(n: u64) -> Barrier {
    Barrier::Dissemination { ways: n as u16 }
}

fn found(claim: &'static str, number: f64, remark: &'static str) -> Found {
    Found {
        claim,
        number,
        remark,
    }
}

fn title(count: usize) -> String {
    format!("µs for each of {count}")
}

fn ping_pong(effort: &Effort<'_>) -> Result<Findings, Stopped> {
    let peers = effort.of(&[1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64], &[1, 4, 16, 64]);
    let count = sample(effort);
    let p = p2();
    let rows = effort.each(&peers, |&peers| {
        let simulated = each(peers + 1, Barrier::Central, count)?;
        let (lop, logp) = (p.lop.round_trip_us(peers), p.logp().round_trip_us(peers));
        Ok([simulated, simulated / peers as f64, lop, logp])
    })?;
    // LoP's round trip is a line through all points; LogP extrapolates from one peer.
    let points = column(&peers, &rows, 0).into_iter();
    let (intercept, slope) = fit_line(points);
    let head = ["P", "RTT(P)", "RTT(P) / P", "LoP", "LogP", "line fitted"];
    let mut table = Table::new(title(count), &head);
    for (peers, row) in peers.iter().zip(&rows) {
        let fitted = intercept + slope * *peers as f64;
        table.row(peers, row.iter().copied().chain([fitted]));
    }
    let mut fit = Table::new(
        "LoP from RTT(P): only two of its four values can be told from round trips",
        &["", "calibrated", "fitted"],
    );
    let lop = p.lop;
    fit.row(EACH, [lop.send_us + lop.congestion_us, slope]);
    let once = 2.0 * (lop.start_us + lop.latency_us) + lop.send_us - lop.congestion_us;
    fit.row(ONCE, [once, intercept]);
    let at = |n| rows[peers.iter().position(|&m| m == n).unwrap_or(0)];
    let mut tables = vec![table, fit];
    tables.extend(live(effort.live));
    Ok(Findings {
        tables,
        plots: vec![Plot {
            name: "p2-ping-pong",
            title: "A message among P: RTT(P) / P (P2 figures 2 and 3)".into(),
            x: "peers",
            y: "µs",
            log_y: true,
            series: vec![
                curve("simulated", Points::Simulated, column(&peers, &rows, 1)),
                curve(
                    "LogP",
                    Points::Model,
                    peers
                        .iter()
                        .zip(&rows)
                        .map(|(&p, r)| (p as f64, r[3] / p as f64)),
                ),
            ],
        }],
        found: vec![
            found("p2-together", at(1)[0] / (at(4)[0] / 4.0), ""),
            found(
                "p2-logp",
                at(64)[0] / at(64)[3],
                "the start that messages leaving together share was chosen so",
            ),
        ],
    })
}

/// What a line through round trips shows of LoP: its slope.
const EACH: &str = "send + congestion, µs a peer";
/// What a line through round trips shows of LoP: its value at zero.
const ONCE: &str = "2 (start + latency) + send - congestion, µs";

/// Tables of round trips on a real network.
fn live(trips: &[Live]) -> Vec<Table> {
    let [one, _, ..] = trips else {
        return Vec::new();
    };
    let line = |of: fn(&Live) -> f64| fit_line(trips.iter().map(|t| (t.peers as f64, of(t))));
    let (least, mean) = (line(|t| t.min_us), line(|t| t.mean_us));
    let mut table = Table::new(
        "live, µs; o(P) is what sending takes for each peer, LogP goes on from one",
        &[
            "P",
            "minimum",
            "RTT(P)",
            "RTT(P) / P",
            "o(P)",
            "LogP",
            "line fitted",
        ],
    );
    for t in trips {
        let peers = t.peers as f64;
        let logp = one.mean_us + (peers - 1.0) * one.sending_us;
        let fitted = mean.0 + mean.1 * peers;
        let (each, sending) = (t.mean_us / peers, t.sending_us / peers);
        table.row(t.peers, [t.min_us, t.mean_us, each, sending, logp, fitted]);
    }
    let mut fit = Table::new("LoP, live", &["", "by minima", "by means"]);
    fit.row(EACH, [least.1, mean.1]);
    fit.row(ONCE, [least.0, mean.0]);
    vec![table, fit]
}

/// Numbers of ways that the experiment tries.
const WAYS: [u64; 13] = [1, 2, 3, 4, 5, 6, 7, 9, 12, 15, 21, 31, 63];

fn by_ways(effort: &Effort<'_>) -> Result<Findings, Stopped> {
    const NODES: [u64; 5] = [4, 8, 16, 32, 64];
    let tried = effort.of(&WAYS, &[1, 3, 15, 63]);
    let count = sample(effort);
    let rows = effort.each(&tried, |&n| {
        let mut row = [0.0; NODES.len()];
        for (cell, &nodes) in row.iter_mut().zip(&NODES) {
            // With more ways than other nodes, each node tells all others.
            *cell = each(nodes, ways(n), count)?;
        }
        Ok(row)
    })?;
    let mut table = Table::new(
        title(count),
        &[
            "n", "4 nodes", "8 nodes", "16 nodes", "32 nodes", "64 nodes", "64, LoP",
        ],
    );
    for (n, row) in tried.iter().zip(&rows) {
        table.row(n, row.iter().copied().chain([p2().lop.barrier_us(64, *n)]));
    }
    let at = |n| rows[tried.iter().position(|&m| m == n).unwrap_or(0)][4];
    let best = rows.iter().map(|r| r[4]).fold(f64::INFINITY, f64::min);
    let model = tried
        .iter()
        .map(|&n| (n as f64, p2().lop.barrier_us(64, n)));
    Ok(Findings {
        tables: vec![table],
        plots: vec![Plot {
            name: "p2-ways",
            title: "64 nodes, by the number of ways (P2 figure 6)".into(),
            x: "n",
            y: "µs",
            log_y: true,
            series: vec![
                curve("simulated", Points::Simulated, column(&tried, &rows, 4)),
                curve("LoP", Points::Model, model),
            ],
        }],
        found: vec![found("p2-too-many", at(15) / best, "")],
    })
}

fn beside_library(effort: &Effort<'_>) -> Result<Findings, Stopped> {
    let nodes = effort.of(&[2, 4, 8, 12, 16, 24, 32, 48, 64], &[8, 64]);
    let tried = effort.of(&WAYS, &[1, 2, 3, 5, 7]);
    let count = sample(effort);
    let rows = effort.each(&nodes, |&nodes| {
        let library = Bed {
            simulated: p2().simulated_library(),
            hosts: nodes as usize,
        };
        let library = library.barrier_each(ways(1), count)?;
        let one = each(nodes, ways(1), count)?;
        let mut best = (1, one);
        for &n in tried.iter().filter(|&&n| n > 1 && n < nodes) {
            let time = each(nodes, ways(n), count)?;
            if time < best.1 {
                best = (n, time);
            }
        }
        Ok([
            library,
            one,
            best.1,
            best.0 as f64,
            library / one,
            one / best.1,
            library / best.1,
        ])
    })?;
    let head = [
        "nodes",
        "library",
        "n = 1",
        "best n",
        "n",
        "library / n = 1",
        "n = 1 / best",
        "library / best",
    ];
    let mut table = Table::new(title(count), &head);
    for (nodes, row) in nodes.iter().zip(&rows) {
        table.row(nodes, *row);
    }
    let at = |n| rows[nodes.iter().position(|&m| m == n).unwrap_or(0)];
    let gap = |n| at(n)[1] - at(n)[2];
    Ok(Findings {
        tables: vec![table],
        plots: vec![Plot {
            name: "p2-library",
            title: "By nodes (P2 figure 6)".into(),
            x: "nodes",
            y: "µs",
            log_y: false,
            series: vec![
                curve("library", Points::Simulated, column(&nodes, &rows, 0)),
                curve("n = 1", Points::Simulated, column(&nodes, &rows, 1)),
                curve("best n", Points::Simulated, column(&nodes, &rows, 2)),
            ],
        }],
        found: vec![
            found("p2-40", at(64)[6], REMARK_40),
            found(
                "p2-one-way",
                (at(64)[0] - at(64)[1]) / (at(64)[0] - at(64)[2]),
                "",
            ),
            found("p2-growth", gap(64) / gap(8), ""),
        ],
    })
}

const REMARK_40: &str = "more than the model's 1.40, by n = 3: words that leave one after another \
     arrive so, and are less in each other's way than \
                         L(p) has it, which is of words that arrive at once; n = 1 is the model's";

fn beside_others(effort: &Effort<'_>) -> Result<Findings, Stopped> {
    const OTHERS: [Barrier; 8] = [
        Barrier::Dissemination { ways: 1 },
        Barrier::Butterfly,
        Barrier::Bst,
        Barrier::Tournament,
        Barrier::Mcs,
        Barrier::CombiningTree { fanout: 4 },
        Barrier::Central,
        Barrier::Release { fanout: 4 },
    ];
    let nodes = effort.of(&[4, 8, 12, 16, 24, 32, 48, 64], &[8, 64]);
    let count = sample(effort);
    let rows = effort.each(&nodes, |&nodes| {
        let mut row = [0.0; OTHERS.len()];
        for (cell, &barrier) in row.iter_mut().zip(&OTHERS) {
            *cell = each(nodes, barrier, count)?;
        }
        Ok(row)
    })?;
    let names: Vec<String> = OTHERS.iter().map(|b| b.to_string()).collect();
    let head = std::iter::once("nodes").chain(names.iter().map(String::as_str));
    let mut table = Table::new(title(count), &head.collect::<Vec<_>>());
    for (nodes, row) in nodes.iter().zip(&rows) {
        table.row(nodes, *row);
    }
    Ok(Findings {
        tables: vec![table],
        ..Findings::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_live_is_fitted_likewise() {
        let trip = |peers: u64| Live {
            peers,
            min_us: 20.0 + 3.0 * peers as f64,
            mean_us: 30.0 + 4.0 * peers as f64,
            sending_us: 5.0 + peers as f64,
        };
        assert!(live(&[]).is_empty() && live(&[trip(1)]).is_empty());
        let tables = live(&[trip(1), trip(2), trip(5)]);
        assert_eq!(
            tables[0].rows[2],
            ["5", "35.00", "50.00", "10.00", "2.00", "58.00", "50.00"]
        );
        assert_eq!(tables[1].rows[0][1..], ["3.00", "4.00"]);
        assert_eq!(tables[1].rows[1][1..], ["20.00", "30.00"]);
    }
}
