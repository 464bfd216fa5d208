//! Whether multicast reaches a member: the watch that finds that it no longer does, and the times
//! at which the sender tries again.

use core::time::Duration;

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
/// the member got none of that many repairs in that time. The number of repairs is multiplied by
/// the tries as in [`DEAF`].
const DEAF_TO_REPAIRS: (u32, Duration) = (4, Duration::from_secs(2));
/// Time after which the member must confirm the conclusion by further feedback. A process that was
/// stopped answers probes before it has read what waits in its buffers.
const DOUBT: Duration = Duration::from_millis(100);

/// Watches whether a member hears what is sent to the group.
#[derive(Clone, Debug, Default)]
pub struct Hearing {
    /// New packets that the member had received at the last change.
    received: u32,
    /// New packets that the group had been sent at the last change.
    sent: u32,
    /// Packets that had been queued for the member once more at the last change.
    repairs: u32,
    /// Since when the member has been silent: the last change, or the end of the last pause.
    since: Time,
    /// When the watch first concluded that multicast does not reach the member.
    doubted: Option<Time>,
}

impl Hearing {
    /// Begins to watch: the member has received `received` new packets, the group has been sent
    /// `sent`, and `repairs` were queued for the member.
    pub fn start(&mut self, now: Time, (received, sent, repairs): (u32, u32, u32)) {
        *self = Hearing {
            received,
            sent,
            repairs,
            since: now,
            doubted: None,
        };
    }

    /// Does not count the time until now as silence, if the group was sent nothing in it.
    pub fn rest(&mut self, now: Time, sent: u32) {
        if self.sent == sent {
            self.since = now;
        }
    }

    /// Notes that the member lacks nothing: the `repairs` that were queued until now were not for
    /// it.
    pub fn needs_no_repairs(&mut self, repairs: u32) {
        self.repairs = repairs;
    }

    /// Takes the member's report of `received` new packets, when the group has been sent `sent`
    /// and `repairs` were queued for the member. Returns whether multicast no longer reaches the
    /// member.
    pub fn is_lost(
        &mut self,
        now: Time,
        (received, sent, repairs): (u32, u32, u32),
        rtt: Duration,
        tries: u32,
    ) -> bool {
        if received != self.received {
            self.start(now, (received, sent, repairs));
            return false;
        }
        let (missed, silent) = (sent.wrapping_sub(self.sent), now.since(self.since));
        let unrepaired = repairs.wrapping_sub(self.repairs);
        let most = DEAF[0].0;
        let is_deaf = |missed: u32, (packets, time): (u32, Duration)| {
            missed >= (packets * tries).min(most) && silent >= time
        };
        // After four round trips everything that the member lacks has had the time to arrive.
        let deaf = silent > rtt * 4
            && (DEAF.iter().any(|d| is_deaf(missed, *d)) || is_deaf(unrepaired, DEAF_TO_REPAIRS));
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
