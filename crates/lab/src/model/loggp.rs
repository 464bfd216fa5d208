//! LogGP, the broadcasts that are built from messages (binomial tree, chain, scatter with
//! allgather), and a multicast beside them.
//!
//! A message of `k` bytes keeps its sender busy for `o_s`, leaves byte by byte every `G`, is under
//! way for `L`, and keeps its receiver busy for `o_r`. Between two messages of one node lies `g`.
//! Source: A. Alexandrov, M. Ionescu, K. Schauer, C. Scheiman: LogGP, 1995; P2's reference \[2\].

use super::rounds;

/// A network's parameters, in microseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Loggp {
    /// `L`: the network's latency.
    pub latency_us: f64,
    /// `o_s`: overhead of the sender.
    pub send_us: f64,
    /// `o_r`: overhead of the receiver.
    pub recv_us: f64,
    /// `g`: the gap between messages.
    pub gap_us: f64,
    /// `G`: the gap between bytes.
    pub byte_us: f64,
}

/// Algorithm that puts the parts of a scattered message together again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allgather {
    /// Partners exchange all that they have, twice as much in each round.
    RecursiveDoubling,
    /// Each node passes what it got last to its neighbour.
    Ring,
}

impl Loggp {
    /// Time of one message: `o_s + (k − 1) G + L + o_r` (LogGP, section 2).
    pub fn message_us(&self, bytes: u64) -> f64 {
        self.send_us + self.body_us(bytes) + self.latency_us + self.recv_us
    }

    /// Time from the beginning of a message to that of the next one from the same node:
    /// `max(o_s, (k − 1) G + g)`.
    pub fn spacing_us(&self, bytes: u64) -> f64 {
        self.send_us.max(self.body_us(bytes) + self.gap_us)
    }

    /// Time of a binomial tree: each node that has the message sends it on, to the largest sub-tree
    /// first. For a power of two nodes, and spacing below a message's time, this is the time of
    /// `log2 P` messages one after another.
    pub fn binomial_us(&self, nodes: u64, bytes: u64) -> f64 {
        let (hop, spacing) = (self.message_us(bytes), self.spacing_us(bytes));
        // When the last of 2^k nodes has the message: the child of each send starts a full tree of
        // its own.
        let mut full = vec![0.0f64];
        for k in 1..=rounds(nodes) as usize {
            let last = |sent: usize| sent as f64 * spacing + hop + full[k - 1 - sent];
            full.push((0..k).map(last).fold(0.0, f64::max));
        }
        self.partial(nodes, hop, spacing, &full)
    }

    /// Time of a binomial tree for a number of nodes that is no power of two. The first child's
    /// sub-tree is what is left.
    fn partial(&self, nodes: u64, hop: f64, spacing: f64, full: &[f64]) -> f64 {
        let k = rounds(nodes) as usize;
        if k == 0 {
            return 0.0;
        }
        let first = hop + self.partial(nodes - (1 << (k - 1)), hop, spacing, full);
        let others = (1..k).map(|sent| sent as f64 * spacing + hop + full[k - 1 - sent]);
        others.fold(first, f64::max)
    }

    /// Time of a chain through all nodes, in pieces of `piece` bytes. The first piece passes
    /// `P − 1` hops. The others follow at the pace of a node, which both receives and sends:
    /// `(P − 1) · message + (pieces − 1) · max(o_r + o_s, (c − 1) G + g)`.
    pub fn chain_us(&self, nodes: u64, bytes: u64, piece: u64) -> f64 {
        let piece = piece.clamp(1, bytes.max(1));
        let pieces = bytes.div_ceil(piece).max(1);
        let busy = match nodes {
            0..=2 => self.send_us.max(self.recv_us),
            _ => self.send_us + self.recv_us,
        };
        let pace = busy.max(self.body_us(piece) + self.gap_us);
        let hops = nodes.saturating_sub(1) as f64;
        match nodes {
            0 | 1 => 0.0,
            _ => hops * self.message_us(piece) + (pieces - 1) as f64 * pace,
        }
    }

    /// The piece with which the chain is fastest: a power of two of at least 256 bytes, or the
    /// whole message.
    pub fn best_piece(&self, nodes: u64, bytes: u64) -> u64 {
        let mut best = bytes.max(1);
        let mut piece = 256;
        while piece < bytes {
            if self.chain_us(nodes, bytes, piece) < self.chain_us(nodes, bytes, best) {
                best = piece;
            }
            piece = piece.saturating_mul(2);
        }
        best
    }

    /// Time of a scatter by a binomial tree, which sends half of the rest in each round, and an
    /// allgather. MPI libraries do this with large messages. Ring: `P − 1` messages of `k/P` bytes;
    /// doubling: `log2 P` rounds of `k/P, 2k/P, …` bytes.
    pub fn scatter_allgather_us(&self, nodes: u64, bytes: u64, allgather: Allgather) -> f64 {
        let rounds = rounds(nodes);
        let share = |shares: u64| bytes.saturating_mul(shares).div_ceil(nodes).min(bytes);
        let halves = (0..rounds).map(|r| self.message_us(share(1 << r)));
        let scatter: f64 = halves.clone().sum();
        scatter
            + match allgather {
                Allgather::RecursiveDoubling => halves.sum(),
                Allgather::Ring => {
                    let hop = self.message_us(share(1)).max(self.spacing_us(share(1)));
                    nodes.saturating_sub(1) as f64 * hop
                }
            }
    }

    /// Time of a multicast in datagrams of at most `payload` bytes, without any reliability. It is
    /// one message, whatever the number of receivers. Further datagrams follow at the pace of the
    /// slower side: `message + (datagrams − 1) · max(o_s, o_r, (c − 1) G + g)`.
    pub fn multicast_us(&self, bytes: u64, payload: u64) -> f64 {
        let payload = payload.clamp(1, bytes.max(1));
        let datagrams = bytes.div_ceil(payload).max(1);
        let pace = self.spacing_us(payload).max(self.recv_us);
        self.message_us(payload) + (datagrams - 1) as f64 * pace
    }

    /// `RTT(P)` of P2's ping-pong to `peers` peers and back by LogP, linear in their number:
    /// `(P − 1) · max(g, o) + 2 (o_s + L + o_r)` (P2 section 2.2).
    pub fn round_trip_us(&self, peers: u64) -> f64 {
        peers.saturating_sub(1) as f64 * self.spacing_us(1) + 2.0 * self.message_us(1)
    }

    /// Time in which all bytes of a message but the first leave, one every `G`.
    fn body_us(&self, bytes: u64) -> f64 {
        bytes.saturating_sub(1) as f64 * self.byte_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NET: Loggp = Loggp {
        latency_us: 4.0,
        send_us: 2.0,
        recv_us: 1.0,
        gap_us: 3.0,
        byte_us: 0.01,
    };

    fn near(a: f64, b: f64) {
        assert!((a - b).abs() < 1e-9, "{a} is not {b}");
    }

    #[test]
    fn by_hand() {
        near(NET.message_us(0), 7.0);
        near(NET.message_us(1), 7.0);
        near(NET.message_us(101), 8.0);
        near(NET.spacing_us(1), 3.0);
        near(NET.spacing_us(101), 4.0);
        near(NET.binomial_us(1, 1), 0.0);
        near(NET.binomial_us(2, 1), 7.0);
        near(NET.binomial_us(8, 1), 21.0);
        near(NET.binomial_us(1024, 101), 80.0);
        // Four nodes, 1001 bytes in pieces of 101: three hops of 8, nine more pieces at max(3, 4).
        near(NET.chain_us(4, 1001, 101), 3.0 * 8.0 + 9.0 * 4.0);
        near(NET.chain_us(4, 101, 101), 24.0);
        near(NET.chain_us(1, 101, 101), 0.0);
        // 404 bytes to 4 nodes: shares of 101 and 202, both ways; or three ring steps of 101.
        let scatter = 8.0 + 9.01;
        near(
            NET.scatter_allgather_us(4, 404, Allgather::RecursiveDoubling),
            2.0 * scatter,
        );
        near(
            NET.scatter_allgather_us(4, 404, Allgather::Ring),
            scatter + 24.0,
        );
        near(NET.multicast_us(101, 2000), 8.0);
        near(NET.multicast_us(303, 101), 8.0 + 2.0 * 4.0);
        near(NET.round_trip_us(1), 14.0);
        near(NET.round_trip_us(5), 26.0);
    }

    /// Computes the closed form's time by walking over all nodes.
    fn walk(net: &Loggp, nodes: u64, bytes: u64) -> f64 {
        let mut has = vec![f64::INFINITY; nodes as usize];
        has[0] = 0.0;
        let mut last = 0.0f64;
        for node in 0..nodes {
            let reach = match node {
                0 => nodes.next_power_of_two(),
                n => 1 << n.trailing_zeros(),
            };
            let mut sent = 0;
            let mut distance = reach / 2;
            while distance > 0 {
                if node + distance < nodes {
                    let at = has[node as usize] + f64::from(sent) * net.spacing_us(bytes);
                    has[(node + distance) as usize] = at + net.message_us(bytes);
                    sent += 1;
                }
                distance /= 2;
            }
            last = last.max(has[node as usize]);
        }
        last
    }

    #[test]
    fn the_binomial_tree_ends_with_its_last_node() {
        let slow = Loggp {
            gap_us: 20.0,
            ..NET
        };
        for net in [NET, slow] {
            for nodes in 1..200 {
                near(net.binomial_us(nodes, 64), walk(&net, nodes, 64));
            }
        }
    }

    #[test]
    fn more_nodes_and_more_bytes_never_cost_less() {
        for nodes in 2..130 {
            for bytes in [1, 64, 4096] {
                let (more, larger) = (nodes + 1, bytes * 2);
                assert!(NET.binomial_us(nodes, bytes) <= NET.binomial_us(more, bytes));
                assert!(NET.binomial_us(nodes, bytes) <= NET.binomial_us(nodes, larger));
                assert!(NET.chain_us(nodes, bytes, 512) < NET.chain_us(more, bytes, 512));
                assert!(NET.multicast_us(bytes, 1024) < NET.multicast_us(larger, 1024));
            }
        }
    }

    #[test]
    fn each_algorithm_has_its_place() {
        let (small, large) = (64, 16 << 20);
        let chain = |bytes| NET.chain_us(16, bytes, NET.best_piece(16, bytes));
        let scatter = |bytes| NET.scatter_allgather_us(16, bytes, Allgather::Ring);
        assert!(NET.binomial_us(16, small) < chain(small));
        assert!(NET.binomial_us(16, small) < scatter(small));
        assert!(scatter(large) < NET.binomial_us(16, large));
        assert!(chain(large) < NET.binomial_us(16, large));
        assert!(NET.multicast_us(small, 1440) < NET.binomial_us(16, small));
        // The chain's best piece is neither the smallest piece nor the whole message.
        assert!((256..large).contains(&NET.best_piece(16, large)));
        assert_eq!(NET.best_piece(16, 100), 100);
    }
}
