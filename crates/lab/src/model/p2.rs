//! P2's testbed: barriers, and the barrier of the library that P2 compares with.

use std::time::Duration;

use crate::calibration::Calibration;
use fabricast_sim::topology::{LinkSpec, Topology};
use fabricast_sim::workload::{Cost, Costs};

use super::lop::partners;
use super::p1::micros;
use super::{Loggp, Lop, Simulated};

/// Rate in bytes per second at which the bytes of a word take no time.
const RATE: u64 = 1_000_000_000_000;

/// Costs of P2's cluster.
#[derive(Clone, PartialEq, Debug)]
pub struct P2 {
    /// Parameters of the network.
    pub lop: Lop,
    /// Additional time of the library in each round.
    pub setup_us: f64,
    /// Number of nodes in the measurements.
    pub nodes_measured: u64,
}

impl P2 {
    /// The cluster with calibrated values.
    pub fn new(c: &Calibration) -> P2 {
        P2 {
            lop: Lop {
                send_us: c.value("send_us"),
                start_us: c.value("start_us"),
                latency_us: c.value("latency_us"),
                congestion_us: c.value("congestion_us"),
            },
            setup_us: c.value("setup_us"),
            nodes_measured: c.count("nodes_measured"),
        }
    }

    /// Time of the library's barrier, a 1-way dissemination that computes its partners on the way:
    /// `rounds · (o(1) + L(1) + setup)` (ours, after P2 section 4.1).
    pub fn library_us(&self, nodes: u64) -> f64 {
        let rounds = partners(nodes, 1).count();
        self.lop.barrier_us(nodes, 1) + rounds as f64 * self.setup_us
    }

    /// The testbed for the simulator. Words meet at the receiver: each takes `congestion` there,
    /// the first one as part of its latency. P2 measured no multicasts; here a multicast costs as
    /// much as a word (assumed).
    pub fn simulated(&self) -> Simulated {
        let word = Cost {
            send: micros(self.lop.send_us),
            way: micros((self.lop.latency_us - self.lop.congestion_us).max(0.0)),
            receive: micros(self.lop.congestion_us),
            byte_ps: 0,
        };
        let wire = LinkSpec {
            rate: RATE,
            delay: Duration::ZERO,
            queue: 1 << 30,
        };
        Simulated {
            costs: Costs {
                start: micros(self.lop.start_us),
                ..Costs::all(word)
            },
            topology: Topology::single(wire),
            payload_bytes: 64,
        }
    }

    /// The testbed for the simulator, with the library, which computes its partners in each round
    /// before it sends.
    pub fn simulated_library(&self) -> Simulated {
        let mut simulated = self.simulated();
        simulated.costs.start += micros(self.setup_us);
        simulated
    }

    /// LogP's parameters, with the overhead and latency of a single message, and a `g` no shorter
    /// than that overhead, for the linear prediction of P2 section 2.2. RDMA costs the receiver
    /// nothing.
    pub fn logp(&self) -> Loggp {
        Loggp {
            latency_us: self.lop.latency_us(1),
            send_us: self.lop.overhead_us(1),
            recv_us: 0.0,
            gap_us: self.lop.overhead_us(1),
            byte_us: 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibration::Testbed;

    #[test]
    fn one_message_is_the_same_in_both_models() {
        let p = P2::new(&Calibration::of(Testbed::P2));
        let (lop, logp) = (p.lop.round_trip_us(1), p.logp().round_trip_us(1));
        assert!((lop - logp).abs() < 1e-9, "{lop} {logp}");
        // Several words at once cost less than LogP predicts.
        for peers in 2..=64 {
            assert!(p.lop.round_trip_us(peers) < p.logp().round_trip_us(peers));
        }
    }

    #[test]
    fn the_library_is_slower_by_its_setup() {
        let p = P2::new(&Calibration::of(Testbed::P2));
        let extra = p.library_us(64) - p.lop.barrier_us(64, 1);
        assert!((extra - 6.0 * p.setup_us).abs() < 1e-9);
        assert_eq!(p.library_us(1), 0.0);
    }
}
