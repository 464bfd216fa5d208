//! A transfer's share of a rate that several transfers of the process share.

use std::time::{Duration, Instant};

use crate::config::RateShare;
use crate::transfer::TICK;

/// A transfer that sends at least this share of its rate could send more.
const USES: f64 = 0.75;
/// A transfer that sends less wants this many times what it sends. With that it uses less than
/// [`USES`] of what it has, until it sends more.
const ROOM: f64 = 1.5;
/// A transfer that sends anything wants at least this part of the whole rate, so that it soon uses
/// it if it could send more.
const LEAST: u64 = 32;
/// Packets after which what a transfer sends says how much it could send.
const PACKETS: u64 = 16;
/// Time after which it says so in any case.
const LONG: Duration = Duration::from_secs(1);

/// What a transfer has sent until some time.
#[derive(Clone, Copy)]
pub struct Outgoing {
    pub at: Instant,
    /// Data packets and repairs.
    pub packets: u64,
    /// Bytes of all datagrams.
    pub bytes: u64,
}

/// A transfer's share of a rate.
pub struct TransferShare {
    rate: RateShare,
    /// What the transfer has, in bytes per second.
    holds: u64,
    /// What the transfer wants, in bytes per second; zero: it has nothing to send.
    wants: u64,
    /// What it had sent when its share changed last, or when it looked last.
    before: Option<Outgoing>,
}

impl TransferShare {
    /// The share of a transfer that begins. It has nothing to send yet.
    pub fn new(rate: RateShare) -> TransferShare {
        TransferShare {
            rate,
            holds: 0,
            wants: 0,
            before: None,
        }
    }

    /// The share, in bytes per second; `None`: it is zero.
    pub fn rate(&self) -> Option<u64> {
        (self.holds > 0).then_some(self.holds)
    }

    /// Whether the transfer had nothing to send when it looked last.
    pub fn is_idle(&self) -> bool {
        self.wants == 0
    }

    /// The transfer has something to send, which only the rate holds back.
    pub fn begins(&mut self) {
        self.want(u64::MAX);
    }

    /// The transfer's share from now on, in bytes per second, if it changes.
    pub fn take(&mut self, sent: impl FnOnce() -> Outgoing) -> Option<u64> {
        self.holds = self.rate.take()?;
        self.before = Some(sent());
        Some(self.holds)
    }

    /// Finds out from what the transfer has `sent`, in packets of `size` bytes, how much it could
    /// send. `is_held`: whether it has something to send now, and only the rate holds it back.
    pub fn look(&mut self, sent: Outgoing, size: u64, is_held: bool) {
        let Some(before) = self.before.filter(|_| self.holds > 0) else {
            return;
        };
        let time = sent.at.duration_since(before.at);
        let holds = self.holds as f64;
        let long = Duration::from_secs_f64((PACKETS * size) as f64 / holds).min(LONG);
        if time < long.max(TICK / 2) {
            return;
        }
        let rate = sent.bytes.saturating_sub(before.bytes) as f64 / time.as_secs_f64();
        let wants = match sent.packets == before.packets {
            true => 0,
            // One that gets its work in pieces uses little of a small share, and does each piece
            // as fast as the share lets it.
            false if is_held || rate >= USES * holds => u64::MAX,
            false => ((ROOM * rate) as u64).max(self.rate.total() / LEAST),
        };
        self.before = Some(sent);
        self.want(wants);
    }

    fn want(&mut self, wants: u64) {
        self.wants = wants;
        self.rate.want(wants);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SharedRate;

    const SIZE: u64 = 1000;

    /// What a transfer wants that has 1 MB/s and has sent these packets in this time.
    fn wants(packets: u64, time: Duration) -> u64 {
        wants_if(false, packets, time)
    }

    /// The same, if the rate holds it back when it looks or not.
    fn wants_if(is_held: bool, packets: u64, time: Duration) -> u64 {
        let mut share = TransferShare::new(SharedRate::new(1_000_000).join());
        share.want(u64::MAX);
        share.holds = share.rate.take().expect("it is alone");
        let (at, bytes) = (Instant::now(), 77);
        let before = Outgoing {
            at,
            packets: 5,
            bytes,
        };
        share.before = Some(before);
        let sent = Outgoing {
            at: at + time,
            packets: 5 + packets,
            bytes: bytes + packets * SIZE,
        };
        share.look(sent, SIZE, is_held);
        share.wants
    }

    #[test]
    fn a_transfer_wants_what_it_could_send() {
        assert_eq!(wants(100, TICK), u64::MAX, "the rate holds it");
        assert_eq!(wants(75, TICK), u64::MAX);
        assert_eq!(wants(50, TICK), 750_000);
        assert_eq!(wants(1, TICK), 31_250, "it may need more soon");
        assert_eq!(wants(0, TICK), 0);
        assert_eq!(wants_if(true, 1, TICK), u64::MAX, "the rate holds it");
        // It is too soon to say.
        assert_eq!(wants(0, TICK / 3), u64::MAX);
    }
}
