//! What has arrived of a stream: bursts, new packets, and how many packets are lost on the way.

use core::time::Duration;

use crate::limits;
use crate::path::Losses;
use crate::time::Time;

/// How long the number of a burst (16 bits) is believed: at 1 GB/s, in packets of 1.4 KB, half of
/// the numbers are used up in 0.7 s.
const BURST_AGE: Duration = Duration::from_millis(200);

/// Packets of earlier bursts, with none of the newest between them, that prove that the newest
/// burst never was. On the way packets hardly overtake that many others.
const EARLIER_MAX: u32 = 2 * limits::BURST_PACKETS;

/// The newest burst that has reached this node.
#[derive(Clone, Copy, Debug)]
pub struct Newest {
    /// Its number.
    pub burst: u16,
    /// When its first packet arrived.
    pub at: Time,
    /// New packets received before it.
    pub received: u32,
}

impl Newest {
    /// Whether so much time has passed that the burst's number means nothing any more.
    pub fn is_old(&self, now: Time) -> bool {
        now.since(self.at) >= BURST_AGE
    }
}

/// What has arrived of a stream.
#[derive(Clone, Copy, Debug, Default)]
pub struct Arrivals {
    /// New packets received, modulo 2^32.
    pub received: u32,
    /// The newest burst; `None`: no packet has arrived.
    pub newest: Option<Newest>,
    /// Packets of earlier bursts that have arrived since the last packet of the newest.
    earlier: u32,
    /// Packet loss on the way to this node.
    pub losses: Losses,
}

impl Arrivals {
    /// Notes the burst that a packet belongs to. A forged packet may name a burst that never was,
    /// so many packets of earlier bursts overrule the newest.
    pub fn note_burst(&mut self, (burst, arrived): (u16, Time)) {
        let ahead = self.newest.map_or(1, |n| match n.is_old(arrived) {
            true => 1,
            false => burst.wrapping_sub(n.burst) as i16,
        });
        let overruled = ahead < 0 && self.earlier >= EARLIER_MAX;
        if ahead > 0 || overruled {
            self.newest = Some(Newest {
                burst,
                at: arrived,
                received: self.received,
            });
        }
        self.earlier = match ahead < 0 && !overruled {
            true => self.earlier + 1,
            false => 0,
        };
    }
}
