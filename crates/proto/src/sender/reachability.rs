//! Whether multicast reaches a member: the watch that finds that it no longer does, and the times
//! at which the sender tries again.

use core::time::Duration;

use crate::seq::Seq;
use crate::time::Time;

/// Thresholds, in packets and time, at which the sender concludes that multicast no longer reaches
/// a member: the member got none of that many new packets in that time. For a member that needs
/// several tries per packet the number of packets is multiplied by the tries, up to the first
/// number here.
const DEAF: [(u32, Duration); 3] = [
    (128, Duration::from_millis(100)),
    (16, Duration::from_millis(500)),
    (4, Duration::from_secs(2)),
];
/// Repairs and time at which the sender concludes the same although the group is sent nothing new:
/// the member got none of that many repairs in that time, and never had all that was sent. The
/// number of repairs is multiplied by the tries as in [`DEAF`].
const DEAF_TO_REPAIRS: (u32, Duration) = (4, Duration::from_secs(2));
/// Time after which the member must confirm the conclusion by further feedback. A process that was
/// stopped answers probes before it has read what waits in its buffers.
const DOUBT: Duration = Duration::from_millis(100);

/// Watches whether a member hears what is sent to the group. What a member reports is true as of a
/// time: that at which the newest packet that had reached it was sent.
#[derive(Clone, Debug, Default)]
pub struct Hearing {
    /// New packets that the member had received at the last change.
    received: u32,
    /// New packets that the group had been sent at the last change.
    sent: u32,
    /// Since when the member has been silent: the last change, or the end of the last pause.
    since: Time,
    /// The sequence number before which as many packets lie as the member has.
    had: Seq,
    /// Packets that had been queued for the member once more when it last got one of them.
    repairs: u32,
    /// Since when the member has got none of these.
    unrepaired: Time,
    /// When the watch first concluded that multicast does not reach the member.
    doubted: Option<Time>,
}

impl Hearing {
    /// Begins to watch: as of this time the member has received `received` new packets, the group
    /// has been sent `sent`, and `repairs` were queued for the member.
    pub fn start(&mut self, as_of: Time, (received, sent, repairs): (u32, u32, u32)) {
        *self = Hearing {
            received,
            sent,
            since: as_of,
            had: self.had,
            repairs,
            unrepaired: as_of,
            doubted: None,
        };
    }

    /// Does not count the time until now as silence, if the group was sent nothing in it.
    pub fn rest(&mut self, now: Time, sent: u32) {
        if self.sent == sent {
            (self.since, self.unrepaired) = (now, now);
        }
    }

    /// Notes that the member has as many packets as lie before `had`. If these are more than
    /// before, or it lacks nothing, the `repairs` that were queued until now reach it, or were not
    /// for it.
    pub fn note_repairs(&mut self, as_of: Time, had: Seq, lacks_nothing: bool, repairs: u32) {
        if had != self.had || lacks_nothing {
            (self.had, self.repairs, self.unrepaired) = (had, repairs, as_of);
        }
    }

    /// Takes the member's report of `received` new packets as of a time at which the group had been
    /// sent `sent`; `repairs` were queued for the member. Of what the group was sent since, the
    /// member may have got all up to `may_have`. Returns whether multicast no longer reaches the
    /// member.
    pub fn is_lost(
        &mut self,
        (now, as_of): (Time, Time),
        (received, sent, repairs): (u32, u32, u32),
        may_have: u32,
        rtt: Duration,
        tries: u32,
    ) -> bool {
        if received != self.received {
            self.start(as_of, (received, may_have, repairs));
            return false;
        }
        // This report may be as of a time before that of the last one, which named no burst.
        let missed = (sent.wrapping_sub(self.sent) as i32).max(0) as u32;
        let unrepaired = repairs.wrapping_sub(self.repairs);
        let most = DEAF[0].0;
        // After four round trips everything that the member lacks has had the time to arrive.
        let is_deaf = |missed: u32, since: Time, (packets, time): (u32, Duration)| {
            let silent = as_of.since(since);
            missed >= (packets * tries).min(most) && silent >= time && silent > rtt * 4
        };
        let deaf = DEAF.iter().any(|d| is_deaf(missed, self.since, *d))
            || is_deaf(unrepaired, self.unrepaired, DEAF_TO_REPAIRS);
        if !deaf {
            return false;
        }
        let doubted = *self.doubted.get_or_insert(now);
        now.since(doubted) >= DOUBT
    }
}

/// First interval of path re-probing: the time from the loss of multicast to the first probe. Each
/// probe without an answer doubles the interval.
pub const REPROBE_MIN: Duration = Duration::from_millis(200);
/// Longest interval of path re-probing. A member that multicast reached again for longer than this
/// starts with [`REPROBE_MIN`] when multicast is lost once more.
pub const REPROBE_MAX: Duration = Duration::from_secs(5);

/// The state of path re-probing of one member.
#[derive(Clone, Copy, Debug)]
pub struct Reprobe {
    /// When the sender next probes the member by multicast, while multicast does not reach it.
    pub at: Option<Time>,
    /// The interval before that probe; each probe without an answer doubles it.
    pub wait: Duration,
    /// When multicast last reached the member again.
    pub reached: Time,
    /// The nonce of the last probe, unless the member has answered it.
    pub nonce: Option<u32>,
}

impl Reprobe {
    /// The state of a member that the sender has not tried by multicast again.
    pub const NEW: Reprobe = Reprobe {
        at: None,
        wait: REPROBE_MIN,
        reached: Time::ZERO,
        nonce: None,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Whether multicast is found not to reach a member that has received 500 of 1000 packets by
    /// 1 s, and reports twice more, each time the same. `as_of(ms)`: as of when, and what the group
    /// had been sent and how many repairs had been queued by then; `had`: what it has got.
    fn is_found_lost(as_of: impl Fn(u32) -> (u32, u32, u32), had: impl Fn(u32) -> Seq) -> bool {
        let at = |ms: u32| Time::ZERO + ms * MS;
        let mut hearing = Hearing::default();
        hearing.start(at(1000), (500, 1000, 0));
        hearing.note_repairs(at(1000), had(1000), false, 0);
        let mut report = |ms| {
            let (as_of, sent, repairs) = as_of(ms);
            hearing.note_repairs(at(as_of), had(ms), false, repairs);
            hearing.is_lost((at(ms), at(as_of)), (500, sent, repairs), sent, MS, 1)
        };
        let _ = report(4000);
        report(4200)
    }

    #[test]
    fn a_member_that_gets_nothing_new_is_not_reached() {
        assert!(is_found_lost(|ms| (ms, 2000, 0), |_| Seq(500)));
        assert!(!is_found_lost(|ms| (ms, 1003, 0), |_| Seq(500)));
    }

    /// The member has all packets of the last burst; the burst's count is that before its packets.
    /// The sender sends nothing more.
    #[test]
    fn what_came_with_the_last_burst_is_not_missed() {
        let at = |ms: u32| Time::ZERO + ms * MS;
        let mut hearing = Hearing::default();
        let mut report = |ms, as_of, sent| {
            let counts = (1000, sent, 0);
            hearing.is_lost((at(ms), at(as_of)), counts, 1000, MS, 1)
        };
        assert!(!report(1000, 990, 940));
        assert!(!report(4000, 4000, 1000) && !report(4200, 4200, 1000));
        assert!(!report(5000, 5000, 1004) && report(5200, 5200, 1004));
    }

    /// Its newest burst was sent before the rest, which still waits in a queue.
    #[test]
    fn what_may_still_wait_on_the_way_is_not_missed() {
        assert!(!is_found_lost(|_| (1090, 2000, 0), |_| Seq(500)));
        assert!(!is_found_lost(|ms| (ms - 400, 1000, 0), |_| Seq(500)));
        // A report that names no burst is as of the time at which it comes.
        assert!(!is_found_lost(|ms| (ms - 3100, 900, 0), |_| Seq(500)));
    }

    #[test]
    fn a_member_that_gets_repairs_is_reached_although_it_gets_nothing_new() {
        assert!(is_found_lost(|ms| (ms, 1000, 500), |_| Seq(500)));
        assert!(!is_found_lost(|ms| (ms, 1000, 500), Seq));
    }
}
