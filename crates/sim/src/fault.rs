//! Faults on links and at hosts, and when they happen.

use std::time::Duration;

use fabricast::proto::rng::Rng;

/// Bursty loss (Gilbert–Elliott): a link is good or bad. Its state may change with each packet, and
/// changes while the link is idle as if packets were passing.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Burst {
    /// Chance that a good link turns bad.
    pub enter: f64,
    /// Chance that a bad link turns good; the mean burst is 1 / `leave` packets.
    pub leave: f64,
    /// Loss while the link is bad.
    pub loss: f64,
}

impl Burst {
    /// Bursts of `packets` packets on average, all of them lost, so that in the long run the share
    /// `mean` of all packets is lost.
    pub fn lossy(mean: f64, packets: f64) -> Burst {
        let leave = packets.max(1.0).recip();
        Burst {
            enter: mean * leave / (1.0 - mean),
            leave,
            loss: 1.0,
        }
    }

    /// The share of packets that is lost in the long run.
    pub fn mean_loss(&self) -> f64 {
        self.loss * self.share_bad()
    }

    /// The share of time in which the link is bad.
    fn share_bad(&self) -> f64 {
        match self.enter + self.leave {
            0.0 => 0.0,
            changes => self.enter / changes,
        }
    }

    /// The chance that a link is bad `packets` packets after its state was `bad`.
    fn is_bad_after(&self, bad: bool, packets: i32) -> f64 {
        let kept = (1.0 - self.enter - self.leave).powi(packets);
        let share = self.share_bad();
        share + (f64::from(u8::from(bad)) - share) * kept
    }
}

/// Faults of one direction of a link.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LinkFaults {
    /// Loss of each packet, independently.
    pub loss: f64,
    /// Loss in bursts, in addition to `loss`.
    pub burst: Option<Burst>,
    /// Chance that a packet arrives twice.
    pub duplicate: f64,
    /// Chance that one bit of a packet is changed.
    pub corrupt: f64,
    /// Chance that a packet is delayed, so that later packets overtake it.
    pub reorder: f64,
    /// Longest delay of such a packet; also the longest delay of a duplicate.
    pub late_max: Duration,
    /// The faults harm multicast only; unicast passes unharmed.
    pub multicast_only: bool,
}

/// What happens to one packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fate {
    pub(crate) lost: bool,
    pub(crate) delay_ns: u64,
    pub(crate) again_ns: Option<u64>,
    /// Index of the byte that is changed (modulo the length), and the bits that are flipped.
    pub(crate) corrupt: Option<(u64, u8)>,
}

impl LinkFaults {
    /// No faults.
    pub const NONE: LinkFaults = LinkFaults {
        loss: 0.0,
        burst: None,
        duplicate: 0.0,
        corrupt: 0.0,
        reorder: 0.0,
        late_max: Duration::ZERO,
        multicast_only: false,
    };

    /// Loss of every packet with probability `p`.
    pub fn uniform(p: f64) -> LinkFaults {
        LinkFaults {
            loss: p,
            ..LinkFaults::NONE
        }
    }

    /// Draws what happens to the next packet. `idle` is the number of packets that could have
    /// passed since the last one.
    pub(crate) fn fate(&self, bad: &mut bool, idle: u64, multicast: bool, rng: &mut Rng) -> Fate {
        let mut fate = Fate {
            lost: false,
            delay_ns: 0,
            again_ns: None,
            corrupt: None,
        };
        if self.multicast_only && !multicast {
            return fate;
        }
        if let Some(b) = self.burst {
            let passed = idle.min(1000) as i32 + 1;
            *bad = rng.chance(b.is_bad_after(*bad, passed));
            fate.lost = *bad && rng.chance(b.loss);
        }
        fate.lost = fate.lost || rng.chance(self.loss);
        let late_max = (self.late_max.as_nanos() as u64).max(1);
        if rng.chance(self.reorder) {
            fate.delay_ns = rng.below(late_max);
        }
        if rng.chance(self.duplicate) {
            fate.again_ns = Some(rng.below(late_max));
        }
        if rng.chance(self.corrupt) {
            fate.corrupt = Some((rng.bits(), 1 << rng.below(8)));
        }
        fate
    }
}

/// A host that processes nothing for a while (SIGSTOP, a busy machine); its queue overflows.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Pause {
    /// The host that pauses.
    pub host: usize,
    /// When the pause begins.
    pub at: Duration,
    /// How long the pause lasts.
    pub length: Duration,
}

/// A host that crashes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Crash {
    /// The host, which must not have anything to send.
    pub host: usize,
    /// When the host crashes.
    pub at: Duration,
    /// Time after the crash until the control channel tells the other hosts.
    pub noticed_after: Duration,
}

/// Kind of datagrams that do not reach a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Blocked {
    /// Nothing is blocked.
    Nothing,
    /// Multicast does not reach the host.
    Multicast,
    /// Nothing reaches the host.
    All,
}

/// Datagrams that do not reach a host.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Block {
    /// The host that is cut off.
    pub host: usize,
    /// The datagrams that do not reach the host.
    pub what: Blocked,
    /// When the block begins.
    pub at: Duration,
    /// When the block ends; `None`: never.
    pub until: Option<Duration>,
}

/// A link that changes its rate.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RateChange {
    /// The host whose cable changes, in both directions.
    pub host: usize,
    /// When the rate changes.
    pub at: Duration,
    /// The new rate in bytes per second.
    pub rate: u64,
}

/// All faults of a run.
#[derive(Clone, PartialEq, Debug)]
pub struct Faults {
    /// Faults of every link into a host.
    pub down: LinkFaults,
    /// Faults of every link out of a host: on data of roots and feedback of receivers.
    pub up: LinkFaults,
    /// Faults of every link from a switch to a switch below it, which hit a whole sub-tree
    /// together.
    pub trunk: LinkFaults,
    /// Mean time between two hostile datagrams: nobody of this session sent them, or they are
    /// repeated long after they were sent.
    pub hostile_every: Option<Duration>,
    /// A host that only misleads the other hosts of its groups, and the mean time between two of
    /// its datagrams.
    pub liar: Option<(usize, Duration)>,
    /// The first transmission of every word of a barrier is lost.
    pub first_words: bool,
    /// Hosts receive their own multicast.
    pub echo: bool,
    /// Hosts that pause.
    pub pauses: Vec<Pause>,
    /// Hosts that crash.
    pub crashes: Vec<Crash>,
    /// Hosts that multicast, or any datagram, does not reach.
    pub blocks: Vec<Block>,
    /// Links that change their rate.
    pub rates: Vec<RateChange>,
    /// When link faults begin.
    pub begin_at: Duration,
    /// When links and hosts are healthy again. Blocked multicast may stay blocked, and crashed
    /// hosts stay crashed.
    pub heal_at: Duration,
}

impl Faults {
    /// No faults.
    pub fn none() -> Faults {
        Faults {
            down: LinkFaults::NONE,
            up: LinkFaults::NONE,
            trunk: LinkFaults::NONE,
            hostile_every: None,
            liar: None,
            first_words: false,
            echo: false,
            pauses: Vec::new(),
            crashes: Vec::new(),
            blocks: Vec::new(),
            rates: Vec::new(),
            begin_at: Duration::ZERO,
            heal_at: Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rare packets meet as much loss as packets of a dense stream.
    #[test]
    fn bursts_have_their_mean_whatever_passes() {
        let burst = Burst::lossy(0.05, 8.0);
        assert!((burst.mean_loss() - 0.05).abs() < 1e-12);
        let faults = LinkFaults {
            burst: Some(burst),
            ..LinkFaults::NONE
        };
        for idle in [0, 3, 1_000_000] {
            let (mut bad, mut rng) = (false, Rng::new(1));
            let lost = (0..100_000)
                .filter(|_| faults.fate(&mut bad, idle, true, &mut rng).lost)
                .count();
            assert!((4_500..5_500).contains(&lost), "{lost} at idle {idle}");
        }
    }
}
