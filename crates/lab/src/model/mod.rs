//! The papers' models as plain functions: predictions by arithmetic, before anything is simulated.
//!
//! `coroot`, `loggp`, `lop` and `channel` are equations of typed parameters and know no testbed.
//! `p1`, `p2` and `p4` are the testbeds. They take their values from the calibration, make the
//! parameters for a size and a number of nodes, and add what an equation leaves out. `claims` lists
//! the papers' results. `claim` compares one with its model and tells whether it was calibrated.
//! `predict` makes tables for any grid.
//!
//! Times are microseconds in `f64`. P1 leaves out numbers of nodes that are no power of two; here
//! they take as many rounds as the next power of two.

pub mod channel;
pub mod claim;
pub mod claims;
pub mod coroot;
pub mod loggp;
pub mod lop;
pub mod p1;
pub mod p2;
pub mod p4;
pub mod predict;
pub mod quantity;

pub use channel::Channels;
pub use claim::{Claim, Figure, Outcome, Says, Standing};
pub use claims::CLAIMS;
pub use coroot::Times;
pub use loggp::{Allgather, Loggp};
pub use lop::Lop;
pub use p1::P1;
pub use p2::P2;
pub use p4::P4;
pub use predict::{Grid, Prediction, predict};
pub use quantity::Quantity;

use fabricast_sim::topology::Topology;
use fabricast_sim::workload::Costs;

/// A testbed in the form that the simulator needs.
#[derive(Clone, PartialEq, Debug)]
pub struct Simulated {
    /// Costs of datagrams at the hosts.
    pub costs: Costs,
    /// How the hosts are connected.
    pub topology: Topology,
    /// Largest payload of a datagram.
    pub payload_bytes: u32,
}

/// Rounds in which a binomial tree reaches `nodes` nodes: log2, rounded up.
pub fn rounds(nodes: u64) -> u32 {
    levels(nodes, 2)
}

/// Levels below the root of a balanced tree whose leaves are `nodes` nodes, with `arity` children
/// at each inner node: log to the base `arity`, rounded up.
pub fn levels(nodes: u64, arity: u64) -> u32 {
    let arity = arity.max(2);
    let mut reached = 1u64;
    let mut levels = 0;
    while reached < nodes {
        reached = reached.saturating_mul(arity);
        levels += 1;
    }
    levels
}

/// Switches on the longest way between two of `nodes` hosts in a fat tree, up to the top and down
/// again. Switches have `down` children, those at the top `top`.
pub fn switches_passed(nodes: u64, down: u64, top: u64) -> u32 {
    2 * levels(nodes.div_ceil(top.max(1)), down) + 1
}

/// Time of `bytes` bytes at `byte_ns` nanoseconds each, in microseconds.
fn bytes_us(bytes: u64, byte_ns: f64) -> f64 {
    bytes as f64 * byte_ns / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_of_a_tree() {
        let cases = [
            (1, 0),
            (2, 1),
            (3, 2),
            (8, 3),
            (9, 4),
            (1024, 10),
            (1025, 11),
        ];
        for (nodes, expected) in cases {
            assert_eq!(rounds(nodes), expected, "{nodes}");
        }
        assert_eq!(levels(64, 4), 3);
        assert_eq!(levels(65, 4), 4);
        assert_eq!(levels(5, 0), 3);
        assert_eq!(levels(u64::MAX, 2), 64);
    }

    #[test]
    fn switches_of_a_fat_tree() {
        // Eight-port switches: one for 8 hosts, three levels of them for up to 128.
        for (nodes, expected) in [(2, 1), (8, 1), (9, 3), (32, 3), (33, 5), (1024, 9)] {
            assert_eq!(switches_passed(nodes, 4, 8), expected, "{nodes}");
        }
        // A quaternary tree, as with Quadrics' Elite: 4, 16, 64, 256 hosts.
        for (nodes, expected) in [(4, 1), (8, 3), (16, 3), (64, 5), (256, 7)] {
            assert_eq!(switches_passed(nodes, 4, 4), expected, "{nodes}");
        }
    }
}
