//! How hosts and switches are joined: a tree of switches with hosts at its leaves.
//!
//! Hosts are numbered so that everything below a switch is one range; a route is arithmetic.

use std::time::Duration;

/// What both directions of a cable are like.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LinkSpec {
    /// Bytes per second.
    pub rate: u64,
    /// Propagation, and the work of the switch at its end.
    pub delay: Duration,
    /// Bytes that wait at the sending end before more are dropped.
    pub queue: u64,
}

impl LinkSpec {
    /// Gigabit Ethernet with a switch's usual buffer.
    pub const GIGABIT: LinkSpec = LinkSpec {
        rate: 125_000_000,
        delay: Duration::from_micros(5),
        queue: 256 * 1024,
    };
}

/// The shape of the network.
#[derive(Clone, PartialEq, Debug)]
pub struct Topology {
    /// Children of a switch, from the switches with hosts (first) upwards; one root switch joins
    /// whatever is left above the last. Empty: a single switch.
    pub fanout: Vec<usize>,
    /// Cables between a host and its switch.
    pub host: LinkSpec,
    /// Cables between switches.
    pub trunk: LinkSpec,
    /// Whether a switch passes a packet on as soon as it begins to arrive, as those of InfiniBand
    /// and Quadrics do; else when it is there.
    pub cut_through: bool,
}

impl Topology {
    /// All hosts at one switch.
    pub fn single(link: LinkSpec) -> Topology {
        Topology {
            fanout: Vec::new(),
            host: link,
            trunk: link,
            cut_through: false,
        }
    }

    /// Switches with `per_leaf` hosts each, joined by one more.
    pub fn two_level(per_leaf: usize, host: LinkSpec, trunk: LinkSpec) -> Topology {
        Topology {
            fanout: vec![per_leaf],
            host,
            trunk,
            cut_through: false,
        }
    }

    /// Hosts below a switch of each level, the root switch last.
    pub fn spans(&self, hosts: usize) -> Vec<usize> {
        let mut spans = Vec::new();
        let mut span = 1usize;
        for &f in &self.fanout {
            span = span.saturating_mul(f.max(2));
            if span >= hosts {
                break;
            }
            spans.push(span);
        }
        spans.push(hosts);
        spans
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_end_with_all_hosts() {
        let mut t = Topology::single(LinkSpec::GIGABIT);
        assert_eq!(t.spans(9), [9]);
        t.fanout = vec![4];
        assert_eq!(t.spans(9), [4, 9]);
        t.fanout = vec![4, 4];
        assert_eq!(t.spans(9), [4, 9]);
        assert_eq!(t.spans(40), [4, 16, 40]);
        t.fanout = vec![64];
        assert_eq!(t.spans(9), [9]);
    }
}
