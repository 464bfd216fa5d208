//! How hosts and switches are connected: a tree of switches with hosts at its leaves.
//!
//! Hosts are numbered so that all hosts below a switch form one range; a route is arithmetic.

use std::time::Duration;

/// Properties of a cable, the same in both directions.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LinkSpec {
    /// Rate in bytes per second.
    pub rate: u64,
    /// Propagation delay, including the work of the switch at the cable's end.
    pub delay: Duration,
    /// Size of the queue at the sending end in bytes; more is dropped.
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
    /// Children of a switch, from the switches with hosts (first) upwards. One root switch joins
    /// the switches of the last level. Empty: a single switch.
    pub fanout: Vec<usize>,
    /// Cables between a host and its switch.
    pub host: LinkSpec,
    /// Cables between switches.
    pub trunk: LinkSpec,
    /// Whether a switch forwards a packet as soon as the packet begins to arrive, as InfiniBand and
    /// Quadrics switches do. Otherwise it forwards the packet once all of it has arrived.
    pub cut_through: bool,
}

impl Topology {
    /// A topology with all hosts at one switch.
    pub fn single(link: LinkSpec) -> Topology {
        Topology {
            fanout: Vec::new(),
            host: link,
            trunk: link,
            cut_through: false,
        }
    }

    /// A topology of switches with `per_leaf` hosts each, joined by one more switch.
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
