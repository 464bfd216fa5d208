//! The quantities that the models predict.

use std::fmt;

use serde::Serialize;

/// The quantity that a table shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// Time until a broadcast has reached every receiver.
    Latency,
    /// Time for which the root is busy with each of many broadcasts.
    Throughput,
    /// Times of broadcasts made of messages, by LogGP.
    Loggp,
    /// Mean time of broadcasts over channels.
    Broadcast,
    /// Time of a barrier.
    Barrier,
    /// Time of a ping-pong to several peers and back, per peer.
    RoundTrip,
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Quantity::Latency => "latency of a broadcast, µs (P1 section 7.1)",
            Quantity::Throughput => "back to back: µs of the root for each (P1 section 7.2)",
            Quantity::Loggp => "the same network in LogGP, µs",
            Quantity::Broadcast => "back to back: mean µs of a broadcast (P4 section 6)",
            Quantity::Barrier => "barrier, µs (P2 section 3, by LoP)",
            Quantity::RoundTrip => "ping-pong to so many peers at once, µs for each (P2 section 2)",
        })
    }
}
