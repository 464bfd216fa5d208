//! What has arrived of a stream: bursts, new packets, and how many are lost on the way.

use core::time::Duration;

use crate::limits;
use crate::path::Losses;
use crate::time::Time;

/// The number of a burst (16 bits) is believed for so long: at 1 GB/s, in packets of 1.4 KB, half
/// of the numbers are used up in 0.7 s.
const BURST_AGE: Duration = Duration::from_millis(200);

/// So many packets of earlier bursts, and none of the newest, say that the newest one never was:
/// on the way packets hardly overtake so many others.
const EARLIER_MAX: u32 = 2 * limits::BURST_PACKETS;

/// The newest burst that has reached this node.
#[derive(Clone, Copy, Debug)]
pub struct Newest {
    pub burst: u16,
    pub at: Time,
    pub received: u32,
}

impl Newest {
    /// Whether so many bursts may have left since that its number means nothing any more.
    pub fn is_old(&self, now: Time) -> bool {
        now.since(self.at) >= BURST_AGE
    }
}

/// What has arrived of a stream.
#[derive(Clone, Copy, Debug, Default)]
pub struct Arrivals {
    /// New packets received, modulo 2^32.
    pub received: u32,
    /// The newest burst.
    pub newest: Option<Newest>,
    /// Packets of earlier bursts since the newest one's.
    earlier: u32,
    /// What is lost on the way here.
    pub losses: Losses,
}

impl Arrivals {
    /// Notes the burst that a packet belongs to. A forged packet may name one that never was, so
    /// many packets of earlier ones overrule the newest.
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
