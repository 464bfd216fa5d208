//! False retransmissions: packets that are sent again to receivers that have them, because the
//! nodes that report for these receivers were busy computing (P1.5 against P1.4).

use std::time::Duration;

use fabricast::proto::rng::Rng;
use fabricast::proto::scheme::FeedbackTopology;
use fabricast::proto::{Counters, Scheme};

use crate::cluster::{Cluster, Failure};
use crate::fault::Pause;
use crate::scenario::Scenario;
use crate::trace::Trace;
use crate::workload::Sending;

/// Hosts, the root among them.
pub const HOSTS: usize = 32;
/// Number of broadcasts, of one packet each.
const BROADCASTS: usize = 400;
/// Time between the starts of two broadcasts.
const APART: Duration = Duration::from_micros(500);
/// Longest time that a receiver computes without looking at the network.
const COMPUTES_MAX: Duration = Duration::from_millis(30);

/// Costs of skew under one scheme, without the co-roots' own copies.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FalseRepairs {
    /// Data packets that the root or a co-root retransmitted, although nothing was lost.
    pub sent: u64,
    /// Data packets that receivers had already.
    pub received: u64,
}

/// Counts false retransmissions. The root sends small broadcasts on a network that loses nothing,
/// and each receiver computes half of the time, in stretches of random length.
pub fn false_repairs(scheme: Scheme, seed: u64) -> Result<FalseRepairs, Failure> {
    let mut s = Scenario::bulk(HOSTS, 1024, 1024);
    s.seed = seed;
    s.scheme = scheme;
    s.unexpected_max = 256;
    s.streams[0].lens = vec![1024; BROADCASTS];
    s.streams[0].sending = Sending::Every(APART);
    let mut rng = Rng::new(seed);
    let mut part = || Duration::from_nanos(rng.below(COMPUTES_MAX.as_nanos() as u64));
    let end = APART * BROADCASTS as u32;
    for host in 1..HOSTS {
        let mut at = Duration::ZERO;
        while at < end {
            let length = part();
            s.faults.pauses.push(Pause { host, at, length });
            at += length + part();
        }
    }
    let o = Cluster::new(&s, Trace::silent()).run()?;
    // The copy of everything that each co-root gets is no false retransmission.
    let copies = match s.scheme.topology {
        FeedbackTopology::Coroots(groups) => u64::from(groups - 1) * BROADCASTS as u64,
        FeedbackTopology::Direct | FeedbackTopology::Tree(_) => 0,
    };
    let sum = |f: fn(&Counters) -> u64| o.counters.iter().map(f).sum::<u64>();
    Ok(FalseRepairs {
        sent: sum(|c| c.repairs_unicast + c.repairs_multicast).saturating_sub(copies),
        received: sum(|c| c.duplicates).saturating_sub(copies),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The paper's argument against combining ACKs in a tree: the root cannot know which node has
    /// not answered, so that one busy node has its whole sub-tree repaired.
    #[test]
    fn a_tree_repairs_falsely_more_than_co_roots_do() {
        for seed in 0..3 {
            let tree = false_repairs(Scheme::tree(2), seed).unwrap();
            let coroots = false_repairs(Scheme::coroot(4), seed).unwrap();
            assert!(tree.received > coroots.received, "{tree:?}, {coroots:?}");
        }
    }
}
