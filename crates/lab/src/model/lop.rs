//! LoP and the n-way dissemination barrier (P2 sections 2.3 and 3).
//!
//! In LogP a message costs the same, whatever was sent before it. LoP lets overhead and latency
//! depend on how many messages leave together: `o(P)` and `L(P)`. P2 shows both as plots and refers
//! to its reference \[13\] for a formula. The two formulas here are ours, the simplest with the
//! behaviour that P2 describes: messages share a start-up, and messages that meet at a receiver
//! delay each other.

use super::levels;

/// Largest number of partners of a round that is tried.
pub const WAYS_MAX: u64 = 64;

/// A network's parameters, in microseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Lop {
    /// Cost of each message at its sender.
    pub send_us: f64,
    /// Cost that messages which leave together pay once.
    pub start_us: f64,
    /// Latency from the sender to the receiver's memory, where nothing else arrives.
    pub latency_us: f64,
    /// Delay of each further message that arrives at the same receiver.
    pub congestion_us: f64,
}

impl Lop {
    /// `o(p) = send + start / p`: the sender's overhead of each of `p` messages (ours, after P2
    /// section 2.3).
    pub fn overhead_us(&self, together: u64) -> f64 {
        self.send_us + self.start_us / together.max(1) as f64
    }

    /// `L(p) = latency + congestion · (p − 1)`: time until a receiver sees the last of `p` messages
    /// (ours, after P2 sections 2.1 and 4.1).
    pub fn latency_us(&self, together: u64) -> f64 {
        self.latency_us + self.congestion_us * together.saturating_sub(1) as f64
    }

    /// `RTT(p) = p · o(p) + L(1) + o(1) + L(p)`: the 1:P and P:1 ping-pong of P2 section 2.1, to
    /// `p` peers that each answer at once.
    pub fn round_trip_us(&self, peers: u64) -> f64 {
        peers as f64 * self.overhead_us(peers)
            + self.latency_us(1)
            + self.overhead_us(1)
            + self.latency_us(peers)
    }

    /// Time of one round in which every node tells `ways` others and hears from as many:
    /// `n · o(n) + L(n)`.
    pub fn round_us(&self, ways: u64) -> f64 {
        ways as f64 * self.overhead_us(ways) + self.latency_us(ways)
    }

    /// Time of the n-way dissemination barrier of `nodes` nodes: the sum over its
    /// `ceil(log_{n+1} P)` rounds (P2 section 3). The last round may need fewer partners.
    pub fn barrier_us(&self, nodes: u64, ways: u64) -> f64 {
        partners(nodes, ways).map(|n| self.round_us(n)).sum()
    }

    /// The number of partners for which the barrier is fastest; the smallest of equal ones. P2
    /// measures instead (section 4.1), because congestion cannot be modelled precisely.
    pub fn best_ways(&self, nodes: u64) -> u64 {
        let mut best = 1;
        for ways in 2..=WAYS_MAX.min(nodes.saturating_sub(1)) {
            if self.barrier_us(nodes, ways) < self.barrier_us(nodes, best) {
                best = ways;
            }
        }
        best
    }
}

/// Number of rounds of the n-way dissemination barrier: `ceil(log_{n+1} P)` (P2 section 3).
pub fn barrier_rounds(nodes: u64, ways: u64) -> u32 {
    levels(nodes, ways.max(1).saturating_add(1))
}

/// Partners of each round: `n`, without those that would be the node itself or a node that knows
/// already, `i · (n+1)^r ≥ P` (P2.1).
pub fn partners(nodes: u64, ways: u64) -> impl Iterator<Item = u64> {
    let ways = ways.max(1);
    (0..barrier_rounds(nodes, ways)).map(move |round| {
        let reach = ways.saturating_add(1).saturating_pow(round);
        ways.min(nodes.div_ceil(reach) - 1)
    })
}

/// The line that fits some points by least squares. Returns its value at zero and its slope.
pub fn fit_line(points: impl Iterator<Item = (f64, f64)>) -> (f64, f64) {
    let points: Vec<_> = points.collect();
    let n = points.len() as f64;
    let mean = |f: fn(&(f64, f64)) -> f64| points.iter().map(f).sum::<f64>() / n;
    let (x, y) = (mean(|p| p.0), mean(|p| p.1));
    let square: f64 = points.iter().map(|p| (p.0 - x) * (p.0 - x)).sum();
    let product: f64 = points.iter().map(|p| (p.0 - x) * (p.1 - y)).sum();
    let slope = product / square;
    (y - slope * x, slope)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOP: Lop = Lop {
        send_us: 0.5,
        start_us: 1.0,
        latency_us: 4.0,
        congestion_us: 1.0,
    };

    #[test]
    fn by_hand() {
        assert_eq!(LOP.overhead_us(1), 1.5);
        assert_eq!(LOP.overhead_us(4), 0.75);
        assert_eq!(LOP.latency_us(1), 4.0);
        assert_eq!(LOP.latency_us(4), 7.0);
        assert_eq!(LOP.round_trip_us(1), 11.0);
        // 4·0.75 + 4 + 1.5 + 7
        assert_eq!(LOP.round_trip_us(4), 15.5);
        // 3·(0.5 + 1/3) + 6
        assert!((LOP.round_us(3) - 8.5).abs() < 1e-12);
        assert_eq!(LOP.barrier_us(64, 1), 6.0 * 5.5);
        assert!((LOP.barrier_us(64, 3) - 3.0 * 8.5).abs() < 1e-12);
    }

    #[test]
    fn lop_is_found_again_in_its_round_trips() {
        let points = (1..=64).map(|p| (p as f64, LOP.round_trip_us(p)));
        let (once, each) = fit_line(points);
        assert!((each - 1.5).abs() < 1e-9, "{each}");
        assert!(
            (once - (2.0 * (1.0 + 4.0) + 0.5 - 1.0)).abs() < 1e-9,
            "{once}"
        );
    }

    #[test]
    fn rounds_and_partners() {
        assert_eq!(barrier_rounds(1, 1), 0);
        assert_eq!(barrier_rounds(9, 2), 2);
        assert_eq!(barrier_rounds(64, 1), 6);
        assert_eq!(barrier_rounds(64, 7), 2);
        assert_eq!(partners(9, 2).collect::<Vec<_>>(), [2, 2]);
        // P2.1's own example: for P = 6, n = 2, r = 1 the second partner would be the node itself.
        assert_eq!(partners(6, 2).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(partners(5, 9).collect::<Vec<_>>(), [4]);
    }

    #[test]
    fn partners_are_enough_for_everybody_to_have_heard_of_everybody() {
        for nodes in 1..=64u64 {
            for ways in 1..nodes.max(2) {
                let mut known = 1u64;
                for n in partners(nodes, ways) {
                    // In a round each node learns what each of its `n` partners knows.
                    known += n * known;
                }
                assert!(known >= nodes, "{nodes} nodes, {ways} ways");
            }
        }
    }

    #[test]
    fn a_message_costs_less_in_company() {
        let each = |p: u64| LOP.round_trip_us(p) / p as f64;
        assert!(each(4) < each(1) / 2.0);
        for p in 1..64 {
            assert!(LOP.overhead_us(p + 1) < LOP.overhead_us(p));
            assert!(LOP.round_trip_us(p + 1) > LOP.round_trip_us(p));
        }
    }

    #[test]
    fn the_best_number_of_partners_is_a_minimum_and_depends_on_what_they_cost() {
        for nodes in 2..100 {
            let best = LOP.best_ways(nodes);
            for ways in 1..nodes.min(WAYS_MAX + 1) {
                assert!(LOP.barrier_us(nodes, best) <= LOP.barrier_us(nodes, ways));
            }
        }
        let free = Lop {
            send_us: 0.0,
            congestion_us: 0.0,
            ..LOP
        };
        assert_eq!(free.best_ways(64), 63);
        let dear = Lop {
            congestion_us: 50.0,
            ..LOP
        };
        assert_eq!(dear.best_ways(64), 1);
        assert_eq!(LOP.best_ways(1), 1);
    }
}
