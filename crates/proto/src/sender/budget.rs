//! How many repairs a receiver gets: a report is only a claim (spec 2.5).
//!
//! A receiver earns a repair with each packet that it has more than before. It has some repairs in
//! advance, so that losses can be repaired before it makes progress. When everything has been sent
//! for the first time and no receiver waits for new packets, it earns as many repairs as a packet
//! needs tries on the way to it. For repairs beyond that, all such receivers share one fifth of the
//! rate. A receiver that has reported numbers that cannot be true earns nothing, and gets half of
//! what others get from the share.

use core::time::Duration;

use crate::border::Config;
use crate::scheme::How;
use crate::time::Time;

/// A receiver can save up one repair for this many packets of the window.
const EARNED: u32 = 8;
/// Repairs that a receiver can save up in any case, however small the window.
const EARNED_MIN: u32 = 64;
/// Share of the rate for repairs that no receiver has earned.
const SHARE: f64 = 0.2;
/// What a repair for a receiver that is not believed costs, in packets of the share.
pub const PRICE_DOUBTED: u32 = 2;
/// Time for which the share can be saved up.
const SAVED: Duration = Duration::from_millis(50);
/// Packets of the share that can be saved up in any case, however low the rate.
const SAVED_MIN: f64 = 8.0;

/// What a sender can spend on repairs that receivers have not earned.
#[derive(Clone, Debug)]
pub struct Budget {
    /// Repairs that a member can save up.
    pub most: u32,
    /// Size of a packet with its headers, in bytes.
    packet: f64,
    /// Whether the sender repairs by unicast, with one copy for each member that lacks a packet.
    pub singly: bool,
    /// Packets of the share that are saved up, as of `at`. Negative after a block that cost more
    /// than was saved up.
    pub saved: f64,
    at: Time,
}

impl Budget {
    pub fn new(config: &Config, relay: bool, payload_size: u32) -> Budget {
        let scheme = &config.scheme;
        Budget {
            most: (scheme.window / EARNED).max(EARNED_MIN),
            packet: f64::from(payload_size + scheme.data_overhead() as u32),
            singly: relay || scheme.repair.how == How::Unicast,
            saved: SAVED_MIN,
            at: Time::ZERO,
        }
    }

    /// Repairs that a member can save up.
    pub fn most(&self) -> u32 {
        self.most
    }

    /// Saves up the share since the last call, for a path with this rate in bytes per second.
    pub fn save(&mut self, now: Time, pace: u64) {
        let share = pace as f64 * SHARE / self.packet;
        let most = (share * SAVED.as_secs_f64()).max(SAVED_MIN);
        let more = share * now.since(self.at).as_secs_f64();
        (self.saved, self.at) = ((self.saved + more).min(most), now);
    }
}
