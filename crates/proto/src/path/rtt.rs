//! Round-trip time, and the timeouts that follow from it.

use core::time::Duration;

/// Round-trip time that the retransmission timeout assumes before anything was measured.
const UNKNOWN: Duration = Duration::from_millis(20);
/// Least retransmission timeout.
const RTO_MIN: Duration = Duration::from_millis(2);
/// Largest retransmission timeout.
const RTO_MAX: Duration = Duration::from_millis(500);

/// The smoothed round-trip time of a stream and its variation, as TCP has them (RFC 6298).
#[derive(Clone, Copy, Debug, Default)]
pub struct RttEstimator {
    smoothed: Option<Duration>,
    variation: Duration,
}

impl RttEstimator {
    /// Takes one measurement: a packet and the report about it were under way for `rtt`.
    pub fn sample(&mut self, rtt: Duration) {
        match self.smoothed {
            None => (self.smoothed, self.variation) = (Some(rtt), rtt / 2),
            Some(r) => {
                self.variation = (self.variation * 3 + r.abs_diff(rtt)) / 4;
                self.smoothed = Some((r * 7 + rtt) / 8);
            }
        }
    }

    /// The smoothed round-trip time; `None`: nothing was measured yet.
    pub fn smoothed(&self) -> Option<Duration> {
        self.smoothed
    }

    /// How long an answer may take: two round trips and a margin for their variation. `None`:
    /// nothing was measured yet.
    pub fn answer_timeout(&self) -> Option<Duration> {
        self.smoothed.map(|rtt| rtt * 2 + self.variation * 4)
    }

    /// The retransmission timeout: a NACK that comes later than this after a retransmission is
    /// believed to be about the retransmission.
    pub fn rto(&self) -> Duration {
        let rtt = self.smoothed.unwrap_or(UNKNOWN);
        (rtt * 2)
            .max(rtt + self.variation * 4)
            .clamp(RTO_MIN, RTO_MAX)
    }
}
