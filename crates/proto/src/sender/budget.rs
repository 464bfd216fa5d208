//! How many repairs a receiver gets: a report is only a claim (spec 2.5).
//!
//! A receiver earns a repair with each packet that it has more than before, and has some in
//! advance, so that losses can be repaired before it gets on. When everything has been sent for the
//! first time and nobody waits for new packets, it earns as many as a packet needs tries on the way
//! to it. What a receiver asks for beyond that shares, with all other such receivers, one fifth of
//! the pace. A receiver that has told numbers that cannot be true earns nothing, and has half the
//! share.

use core::time::Duration;

use crate::border::Config;
use crate::scheme::How;
use crate::time::Time;

/// A receiver can have earned a repair for one of so many packets of the window.
const EARNED: u32 = 8;
/// It can always have earned so many.
const EARNED_MIN: u32 = 64;
/// The share of the pace for repairs that nobody has earned.
const SHARE: f64 = 0.2;
/// What a repair takes of the share for a receiver that is not believed.
pub const PRICE_DOUBTED: u32 = 2;
/// What the share amounts to in this time can be saved up.
const SAVED: Duration = Duration::from_millis(50);
/// So many packets can always be saved up.
const SAVED_MIN: f64 = 8.0;

/// What a sender can spend on repairs that receivers have not earned.
#[derive(Clone, Debug)]
pub struct Budget {
    /// Repairs that a member can have earned.
    pub most: u32,
    /// Bytes of a packet.
    packet: f64,
    /// Whether each member that lacks a packet is sent one of its own.
    pub singly: bool,
    /// Packets of the share that are saved up, and as of when; less than nothing after a block that
    /// cost more than there was.
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

    /// Repairs that a member can have earned.
    pub fn most(&self) -> u32 {
        self.most
    }

    /// Saves up what the share has amounted to, of a path with this pace (bytes per second).
    pub fn save(&mut self, now: Time, pace: u64) {
        let share = pace as f64 * SHARE / self.packet;
        let most = (share * SAVED.as_secs_f64()).max(SAVED_MIN);
        let more = share * now.since(self.at).as_secs_f64();
        (self.saved, self.at) = ((self.saved + more).min(most), now);
    }
}
