//! What the pacer of a path knows of one receiver.

use crate::path::Burst;
use crate::time::Time;

/// The state of one receiver, as its feedback shows it.
#[derive(Clone, Debug)]
pub(super) struct ReceiverState {
    /// Whether the rate follows this receiver.
    pub(super) required: bool,
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
    /// Share of packets lost of late, over some 100 packets.
    pub(super) loss: f64,
    /// Share of packets lost as a rule, over some 2000 packets.
    pub(super) usual_loss: f64,
    /// Number of packets that `loss` and `usual_loss` were learnt from.
    pub(super) learnt: f64,
    /// When they were last learnt from.
    pub(super) learnt_at: Time,
    /// Since when loss has been far above the usual one, and the value of `learnt` then.
    pub(super) over: Option<(Time, f64)>,
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
    pub(super) fn new() -> ReceiverState {
        ReceiverState {
            required: false,
            base: [None; 2],
            drained: None,
            mark: None,
            last_us: 0,
            newest: 0,
            queue_us: None,
            delivered: None,
            loss: 0.0,
            usual_loss: 0.0,
            learnt: 0.0,
            learnt_at: Time::ZERO,
            over: None,
        }
    }
}
