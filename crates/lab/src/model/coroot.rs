//! P1's model of a broadcast with co-roots, from its section 7 (P1.13).
//!
//! A broadcast goes to all nodes by multicast. The root also sends it to the co-roots by a reliable
//! binomial tree. Root and co-roots each collect the ACKs of their own sub-group. The model counts
//! groups, including the root's own: `groups` is the paper's `n/s`; one group is the plain window.

use super::rounds;

/// The six times of the model, for one size and one number of nodes, in microseconds (P1 section
/// 7).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Times {
    /// `T_pp`: one logical hop of a point-to-point message.
    pub pp_us: f64,
    /// `T_cc`: a copy between the user's buffer and one of the window.
    pub cc_us: f64,
    /// `T_ud`: posting the descriptor of a multicast.
    pub ud_us: f64,
    /// `T_mc`: the multicast packet, from the root to the farthest node.
    pub mc_us: f64,
    /// `T_um`: copying and posting a message to one node.
    pub um_us: f64,
    /// `T_pack`: processing one node's ACK.
    pub pack_us: f64,
}

impl Times {
    /// The original broadcast, a binomial tree of point-to-point messages: `T_pp · log2 n`
    /// (P1 section 7.1).
    pub fn original_us(&self, nodes: u64) -> f64 {
        self.pp_us * f64::from(rounds(nodes))
    }

    /// Latency by multicast from a single root: `T_sr = 2 T_cc + T_ud + T_mc` (P1 section 7.1).
    pub fn single_root_us(&self) -> f64 {
        2.0 * self.cc_us + self.ud_us + self.mc_us
    }

    /// Latency of the reliable part with co-roots: `T_rc = 2 T_cc + T_ud + T_pp · log2(n/s)` (P1
    /// section 7.1).
    pub fn reliable_us(&self, groups: u64) -> f64 {
        2.0 * self.cc_us + self.ud_us + self.pp_us * f64::from(rounds(groups))
    }

    /// Latency at a co-root, which takes the copy that comes first: `T_cr = min(T_rc, T_sr)` (P1
    /// section 7.1).
    pub fn at_coroot_us(&self, groups: u64) -> f64 {
        self.reliable_us(groups).min(self.single_root_us())
    }

    /// Latency of the whole broadcast, that of its latest node: `T_sr` at ordinary nodes and `T_cr`
    /// at co-roots (P1 section 7.1). With any node that is no co-root this is `T_sr`: the number of
    /// groups does not matter for latency.
    pub fn latency_us(&self, nodes: u64, groups: u64) -> f64 {
        let (groups, others) = (groups.clamp(1, nodes), nodes.saturating_sub(groups));
        let coroots = match groups {
            1 => 0.0,
            k => self.at_coroot_us(k),
        };
        match others {
            0 => coroots,
            _ => coroots.max(self.single_root_us()),
        }
    }

    /// Time for which the root is busy with each broadcast when broadcasts follow each other
    /// without a pause: `T_cc + T_ud + T_um · log2(n/s) + T_pack · s` (P1 section 7.2).
    pub fn root_us(&self, nodes: u64, groups: u64) -> f64 {
        let subgroup = nodes as f64 / groups as f64;
        let tree = self.um_us * f64::from(rounds(groups));
        self.cc_us + self.ud_us + tree + self.pack_us * subgroup
    }

    /// The number of groups, a power of two, for which the root is busy for the shortest time; the
    /// smaller of two equal ones (P1 section 7.2).
    pub fn best_groups(&self, nodes: u64) -> u64 {
        let mut best = 1;
        let mut groups = 2;
        while groups <= nodes {
            if self.root_us(nodes, groups) < self.root_us(nodes, best) {
                best = groups;
            }
            groups *= 2;
        }
        best
    }

    /// The best size of a sub-group: `s = T_um / (T_pack · ln 2)`, where the derivative of the
    /// root's time is zero. It does not depend on the number of nodes; the number of groups, `n/s`,
    /// grows with it.
    pub fn best_subgroup(&self) -> f64 {
        self.um_us / (self.pack_us * std::f64::consts::LN_2)
    }

    /// The times when each receiver acknowledges only every `every` broadcasts (P1.6):
    /// `T_pack / M`. The paper has no equation for it; this follows its description in section 4.4.
    pub fn acks_every(self, every: u64) -> Times {
        let pack_us = self.pack_us / every.max(1) as f64;
        Times { pack_us, ..self }
    }

    /// The root's time per broadcast in the original scheme, which sends a message to each of the
    /// root's children: `T_um · log2 n`. P1 has no equation for it; we take the term for the
    /// co-roots.
    pub fn original_root_us(&self, nodes: u64) -> f64 {
        self.um_us * f64::from(rounds(nodes))
    }

    /// The time per broadcast of the basic scheme, which waits for every ACK before it goes on:
    /// `T_ud + T_mc + T_cc + T_ack + T_pack · n`, where the ACK is a small message. P1 has no
    /// equation for it; we follow the description in P1 section 4.1. The root copies nothing.
    pub fn basic_us(&self, nodes: u64, ack_us: f64) -> f64 {
        self.ud_us + self.mc_us + self.cc_us + ack_us + self.pack_us * nodes as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Times = Times {
        pp_us: 7.0,
        cc_us: 0.5,
        ud_us: 2.0,
        mc_us: 9.0,
        um_us: 3.0,
        pack_us: 0.5,
    };

    #[test]
    fn by_hand() {
        assert_eq!(T.original_us(8), 21.0);
        assert_eq!(T.original_us(1024), 70.0);
        assert_eq!(T.single_root_us(), 12.0);
        assert_eq!(T.reliable_us(1), 3.0);
        assert_eq!(T.reliable_us(2), 10.0);
        assert_eq!(T.reliable_us(128), 52.0);
        assert_eq!(T.at_coroot_us(2), 10.0);
        assert_eq!(T.at_coroot_us(4), 12.0);
        // 0.5 + 2 + 3·log2(128) + 0.5·8
        assert_eq!(T.root_us(1024, 128), 27.5);
        assert_eq!(T.root_us(8, 1), 6.5);
        assert_eq!(T.acks_every(10).root_us(8, 1), 2.9);
        assert_eq!(T.original_root_us(8), 9.0);
        // 2 + 9 + 0.5 + 7 + 0.5·8
        assert_eq!(T.basic_us(8, 7.0), 22.5);
    }

    #[test]
    fn the_whole_is_its_slowest_node() {
        // A node that is no co-root waits for the multicast, whatever the co-roots do.
        for groups in [1, 2, 4, 128, 1023] {
            assert_eq!(T.latency_us(1024, groups), T.single_root_us(), "{groups}");
        }
        // If all nodes are co-roots, each has both ways, and the tree may be the shorter one.
        assert_eq!(T.latency_us(2, 2), 10.0);
        assert_eq!(T.latency_us(1024, 1024), 12.0);
        assert_eq!(T.latency_us(2, 99), 10.0);
    }

    #[test]
    fn the_best_sub_group_does_not_depend_on_the_nodes() {
        // Halving sub-groups of s saves T_pack·s/2 and costs T_um: it pays while s > 12.
        for nodes in [16, 64, 1024, 16384] {
            assert_eq!(T.best_groups(nodes), nodes / 8, "{nodes}");
        }
        assert_eq!(T.best_groups(8), 1);
        assert_eq!(T.best_groups(2), 1);
        assert!((T.best_subgroup() - 8.656).abs() < 1e-3);
    }

    #[test]
    fn the_best_number_of_groups_is_a_minimum() {
        for nodes in [2u64, 8, 100, 1024, 5000] {
            let best = T.best_groups(nodes);
            for groups in (0..).map(|i| 1 << i).take_while(|&k| k <= nodes) {
                assert!(T.root_us(nodes, best) <= T.root_us(nodes, groups));
            }
        }
    }

    #[test]
    fn more_nodes_never_cost_less() {
        for nodes in 2..300 {
            assert!(T.original_us(nodes) <= T.original_us(nodes + 1));
            assert!(T.root_us(nodes, 1) <= T.root_us(nodes + 1, 1));
            assert!(T.latency_us(nodes, 2) <= T.latency_us(nodes + 1, 2));
            assert!(T.basic_us(nodes, 7.0) < T.basic_us(nodes + 1, 7.0));
        }
    }
}
