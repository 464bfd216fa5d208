//! Tables of the models' predictions for any nodes, sizes, groups, channels and partners.
//!
//! A cell is calibrated if it is the place of a claim that values were fitted to. All other cells
//! are predictions.

use serde::Serialize;

use crate::calibration::{Calibration, Testbed};

use super::claim::Outcome;
use super::claims::outcomes;
use super::p4::Broadcast;
use super::quantity::Quantity;
use super::{Allgather, Loggp, P1, P2, P4, Standing};

/// The requested combinations: each number of nodes with each size is a row.
#[derive(Clone, PartialEq, Debug)]
pub struct Grid {
    /// Numbers of nodes.
    pub nodes: Vec<u64>,
    /// Sizes in bytes.
    pub bytes: Vec<u64>,
    /// Numbers of groups, the root's own included (P1).
    pub groups: Vec<u64>,
    /// Numbers of channels (P4).
    pub channels: Vec<u64>,
    /// Processes on each node (P4).
    pub per_node: u64,
    /// Numbers of partners in a round of the barrier (P2).
    pub ways: Vec<u64>,
}

impl Grid {
    /// The combinations that the testbed's own paper looks at.
    pub fn of(testbed: Testbed) -> Grid {
        let (nodes, bytes): (&[u64], &[u64]) = match testbed {
            Testbed::P1 => (&[8, 64, 1024], &[4, 1024, 2048, 8192, 32768, 65536]),
            Testbed::P2 => (&[4, 8, 16, 32, 64, 1024], &[1]),
            Testbed::P4 => (&[8, 32, 64, 256], &[4, 8, 256, 4096, 65536]),
            Testbed::P3 | Testbed::P5 => (&[], &[]),
        };
        Grid {
            nodes: nodes.to_vec(),
            bytes: bytes.to_vec(),
            groups: vec![2, 8, 128],
            channels: vec![2, 4, 8, 16, 32],
            per_node: 1,
            ways: vec![1, 2, 3, 7, 15],
        }
    }
}

/// Unit of a cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// Microseconds.
    Us,
    /// One time over another.
    Ratio,
    /// A number of things.
    Count,
}

/// One cell of a table.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Prediction {
    /// Table of the cell.
    pub quantity: Quantity,
    /// Row of the cell: number of nodes.
    pub nodes: u64,
    /// Row of the cell: size in bytes.
    pub bytes: u64,
    /// Column of the cell.
    pub column: String,
    /// The number.
    pub value: f64,
    /// Unit of the number.
    pub measure: Measure,
    /// Whether the number was predicted.
    pub standing: Standing,
}

/// All requested cells, table by table, row by row.
pub fn predict(c: &Calibration, grid: &Grid) -> Vec<Prediction> {
    let mut cells = Cells {
        grid,
        outcomes: outcomes(c),
        all: Vec::new(),
    };
    match c.testbed() {
        Testbed::P1 => cells.p1(&P1::new(c)),
        Testbed::P2 => cells.p2(&P2::new(c)),
        Testbed::P4 => cells.p4(&P4::new(c)),
        Testbed::P3 | Testbed::P5 => {}
    }
    cells.all
}

struct Cells<'a> {
    grid: &'a Grid,
    outcomes: Vec<Outcome>,
    all: Vec<Prediction>,
}

/// A table and one of its rows: number of nodes, and size in bytes.
#[derive(Clone, Copy)]
struct Row(Quantity, u64, u64);

impl Cells<'_> {
    fn p1(&mut self, p: &P1) {
        for (nodes, bytes) in rows(self.grid) {
            let row = Row(Quantity::Latency, nodes, bytes);
            let (original, window) = (p.original_us(nodes, bytes), p.multicast_us(nodes, bytes, 1));
            self.us(row, "original", original);
            self.us(row, "window", window);
            for groups in self.groups(nodes) {
                let us = p.multicast_us(nodes, bytes, groups);
                self.us(row, &format!("co-root {groups}"), us);
            }
            self.add(row, "gain", original / window, Measure::Ratio);
        }
        for (nodes, bytes) in rows(self.grid) {
            // The paper's throughput is that of messages of one buffer.
            if bytes > p.payload_bytes {
                continue;
            }
            let row = Row(Quantity::Throughput, nodes, bytes);
            let times = p.times(bytes, nodes);
            self.us(row, "original", times.original_root_us(nodes));
            self.us(row, "basic", times.basic_us(nodes, p.empty.pp_us));
            self.us(row, "window", times.root_us(nodes, 1));
            for groups in self.groups(nodes) {
                let us = times.root_us(nodes, groups);
                self.us(row, &format!("co-root {groups}"), us);
            }
            let aggregate = times.acks_every(p.acks_every).root_us(nodes, 1);
            self.us(row, "aggregate", aggregate);
            let best = times.best_groups(nodes);
            self.add(row, "best groups", best as f64, Measure::Count);
        }
        self.loggp(&p.loggp(), p.payload_bytes);
    }

    fn p2(&mut self, p: &P2) {
        for &nodes in &self.grid.nodes {
            let row = Row(Quantity::Barrier, nodes, 1);
            self.us(row, "library", p.library_us(nodes));
            for &ways in self.grid.ways.iter().filter(|&&n| n < nodes) {
                self.us(row, &format!("n = {ways}"), p.lop.barrier_us(nodes, ways));
            }
            let best = p.lop.best_ways(nodes);
            self.us(row, "best", p.lop.barrier_us(nodes, best));
            self.add(row, "best n", best as f64, Measure::Count);
        }
        for &peers in &self.grid.nodes {
            let row = Row(Quantity::RoundTrip, peers, 1);
            self.us(row, "LoP", p.lop.round_trip_us(peers) / peers as f64);
            self.us(row, "LogP", p.logp().round_trip_us(peers) / peers as f64);
        }
    }

    fn p4(&mut self, p: &P4) {
        for (nodes, bytes) in rows(self.grid) {
            let row = Row(Quantity::Broadcast, nodes, bytes);
            let at = |channels| Broadcast {
                nodes,
                per_node: self.grid.per_node,
                bytes,
                channels,
                reliable: false,
            };
            let usual = at(p.channels);
            for &channels in &self.grid.channels {
                let us = p.broadcast_us(&at(channels));
                self.us(row, &format!("{channels} channels"), us);
            }
            let reliable = p.reliability_us(bytes);
            self.us(row, "+ reliable", reliable);
            self.us(row, "a sync", p.synchronisation_us(nodes));
            self.us(row, "generic alone", p.generic_us(&usual));
        }
        self.loggp(&p.loggp(), p.payload_bytes);
    }

    fn loggp(&mut self, net: &Loggp, payload: u64) {
        for (nodes, bytes) in rows(self.grid) {
            let row = Row(Quantity::Loggp, nodes, bytes);
            let piece = net.best_piece(nodes, bytes);
            self.us(row, "binomial", net.binomial_us(nodes, bytes));
            self.us(row, "chain", net.chain_us(nodes, bytes, piece));
            let [doubling, ring] = [Allgather::RecursiveDoubling, Allgather::Ring]
                .map(|a| net.scatter_allgather_us(nodes, bytes, a));
            self.us(row, "scatter+doubling", doubling);
            self.us(row, "scatter+ring", ring);
            self.us(row, "multicast", net.multicast_us(bytes, payload));
        }
    }

    /// The requested numbers of groups that this many nodes can have.
    fn groups(&self, nodes: u64) -> Vec<u64> {
        let groups = self.grid.groups.iter().copied();
        groups.filter(|&k| k <= nodes).collect()
    }

    fn us(&mut self, row: Row, column: &str, us: f64) {
        self.add(row, column, us, Measure::Us);
    }

    fn add(&mut self, row: Row, column: &str, value: f64, measure: Measure) {
        let Row(quantity, nodes, bytes) = row;
        let here = |o: &&Outcome| {
            o.claim.place.is_some_and(|p| {
                (p.quantity, p.nodes, p.bytes) == (quantity, nodes, bytes)
                    && p.per_node == self.grid.per_node
                    && p.columns.contains(&column)
            })
        };
        let mut claims = self.outcomes.iter().filter(here);
        let standing = match claims.any(|o| o.standing == Standing::Calibrated) {
            true => Standing::Calibrated,
            false => Standing::Predicted,
        };
        self.all.push(Prediction {
            quantity,
            nodes,
            bytes,
            column: column.to_owned(),
            value,
            measure,
            standing,
        });
    }
}

fn rows(grid: &Grid) -> impl Iterator<Item = (u64, u64)> {
    let nodes = grid.nodes.iter();
    nodes.flat_map(|&n| grid.bytes.iter().map(move |&b| (n, b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(testbed: Testbed, grid: &Grid) -> Vec<Prediction> {
        predict(&Calibration::of(testbed), grid)
    }

    fn calibrated(cells: &[Prediction]) -> Vec<(u64, u64, &str)> {
        let told = cells.iter().filter(|p| p.standing == Standing::Calibrated);
        told.map(|p| (p.nodes, p.bytes, p.column.as_str()))
            .collect()
    }

    #[test]
    fn only_the_places_of_claims_are_calibrated() {
        let p1 = all(Testbed::P1, &Grid::of(Testbed::P1));
        let expected = [
            (8, 1024, "window"),
            (8, 1024, "gain"),
            (8, 2048, "original"),
            (8, 2048, "window"),
            (8, 2048, "gain"),
            (8, 8192, "original"),
            (8, 8192, "window"),
            (8, 8192, "gain"),
            (8, 1024, "original"),
            (8, 1024, "aggregate"),
            (1024, 4, "best groups"),
        ];
        assert_eq!(calibrated(&p1), expected);
        let mut grid = Grid::of(Testbed::P4);
        let p4 = all(Testbed::P4, &grid);
        assert_eq!(
            calibrated(&p4),
            [
                (8, 8, "2 channels"),
                (8, 8, "16 channels"),
                (8, 8, "a sync")
            ]
        );
        grid.per_node = 4;
        assert_eq!(
            calibrated(&all(Testbed::P4, &grid)),
            [(64, 4, "16 channels")]
        );
    }

    #[test]
    fn every_place_of_a_claim_is_a_cell_with_its_number() {
        for claim in super::super::CLAIMS {
            let Some(place) = claim.place else { continue };
            let mut grid = Grid::of(claim.testbed);
            (grid.nodes, grid.bytes) = (vec![place.nodes], vec![place.bytes]);
            grid.per_node = place.per_node;
            let cells = all(claim.testbed, &grid);
            for column in place.columns {
                let cell = cells
                    .iter()
                    .find(|p| p.quantity == place.quantity && p.column == *column);
                assert!(cell.is_some(), "{}: no column {column}", claim.id);
                // One column holds the claim's own number; several columns make a ratio.
                if place.columns.len() == 1 {
                    let outcome = claim.outcome(&Calibration::of(claim.testbed));
                    let model = outcome.map(|o| o.model);
                    assert_eq!(cell.map(|p| p.value), model, "{}", claim.id);
                }
            }
        }
    }

    #[test]
    fn groups_beyond_the_nodes_are_left_out() {
        let cells = all(Testbed::P1, &Grid::of(Testbed::P1));
        let of = |nodes| {
            let here = cells.iter().filter(move |p| p.nodes == nodes);
            here.filter(|p| p.column == "co-root 128").count()
        };
        assert_eq!(of(8), 0);
        assert!(of(1024) > 0);
    }

    #[test]
    fn everything_is_a_number() {
        for testbed in Testbed::ALL {
            let mut grid = Grid::of(testbed);
            grid.nodes.extend([2, 3, 1_000_000]);
            grid.bytes.extend([1, 1 << 30]);
            for p in all(testbed, &grid) {
                assert!(p.value.is_finite() && p.value >= 0.0, "{p:?}");
            }
        }
    }
}
