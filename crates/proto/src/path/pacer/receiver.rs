//! What the pacer of a path knows of one receiver.

use core::time::Duration;

use super::usual_loss::{LOSS_EXCESS, UsualLoss};
use crate::mutant::{self, Mutant};
use crate::path::Burst;
use crate::time::Time;

/// Share of the rate. A sender that sends less than this share does not use its rate.
pub(super) const USED: f64 = 0.75;
/// Queue below which the link has room, in µs.
pub(super) const QUEUE_LOW_US: f64 = 1_000.0;

/// The state of one receiver, as its feedback shows it.
#[derive(Clone, Debug)]
pub(super) struct ReceiverState {
    /// Whether the rate follows this receiver, unless it is set aside.
    pub(super) required: bool,
    /// How long this receiver may hold the rate; `None`: the group may not outpace it.
    pub(super) may_hold: Option<Duration>,
    /// Whether the group outpaces it, so that the rate does not follow it.
    pub(super) aside: bool,
    /// Whether that has not been told yet.
    pub(super) found: bool,
    /// Share of the time of late in which this receiver has held the rate.
    pub(super) holds: f64,
    /// Since when it has held the rate most of the time.
    pub(super) held: Option<Time>,
    /// Shortest one-way delays seen in the current and in the last period: arrival by the
    /// receiver's clock less departure by the sender's, in µs, modulo 2^32.
    pub(super) base: [Option<u32>; 2],
    /// Shortest one-way delay in the drain under way.
    pub(super) drained: Option<u32>,
    /// Where the present measurement of the delivered rate began.
    pub(super) mark: Option<Mark>,
    /// When the last reported burst arrived, by the receiver's clock, in µs.
    pub(super) last_us: u32,
    /// Number of the newest reported burst.
    pub(super) newest: u32,
    /// Shortest queue in this round, in µs.
    pub(super) queue_us: Option<u32>,
    /// Delivered rate in bytes per second of what was sent: the usual loss does not lower it.
    pub(super) delivered: Option<f64>,
    /// Rate in bytes per second at which packets arrived, when that was last measured.
    pub(super) arrives: Option<f64>,
    /// When the delivered rate was last measured.
    pub(super) measured: Time,
    /// The packets that are lost on the way to it.
    pub(super) loss: UsualLoss,
}

/// The beginning of a measurement of the delivered rate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub(super) burst: Burst,
    /// Packets that the receiver had received.
    pub(super) received: u32,
    /// When the burst arrived, by the receiver's clock, in µs.
    pub(super) arrived_us: u32,
}

impl ReceiverState {
    /// Whether the rate follows this receiver.
    pub(super) fn counts(&self) -> bool {
        self.required && !self.aside
    }

    /// Whether this receiver has held the rate for as long as it may, or as `least` if it may for
    /// ever.
    pub(super) fn has_held(&self, now: Time, least: Duration) -> bool {
        let may_hold = match mutant::active(Mutant::MomentsCount) {
            true => Duration::ZERO,
            false => self.may_hold.unwrap_or(least),
        };
        self.held.is_some_and(|since| now.since(since) >= may_hold)
    }

    /// Whether the usual loss of this receiver is far above that of most others, `most_lose`.
    pub(super) fn loses_more(&self, most_lose: f64) -> bool {
        self.loss.usual() > most_lose + LOSS_EXCESS
    }

    pub(super) fn new() -> ReceiverState {
        ReceiverState {
            required: false,
            may_hold: None,
            aside: false,
            found: false,
            holds: 0.0,
            held: None,
            base: [None; 2],
            drained: None,
            mark: None,
            last_us: 0,
            newest: 0,
            queue_us: None,
            delivered: None,
            arrives: None,
            measured: Time::ZERO,
            loss: UsualLoss::default(),
        }
    }
}
