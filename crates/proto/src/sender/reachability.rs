//! Whether multicast reaches a member: the watch that finds that it does not any more, and the
//! times at which the sender tries again.

use core::time::Duration;

use crate::time::Time;

/// Multicast is taken for lost on the way to a member that got none of so many packets in so long;
/// where few arrive anyway, of as many more, up to the first of these numbers.
const DEAF: [(u32, Duration); 3] = [
    (128, Duration::from_millis(100)),
    (16, Duration::from_millis(500)),
    (4, Duration::from_secs(2)),
];
/// And that says so again after this: one that was not running answers questions before it has
/// read what waits in its buffers.
const DOUBT: Duration = Duration::from_millis(100);

/// Watches whether a member hears what is sent to the group.
#[derive(Clone, Debug, Default)]
pub struct Hearing {
    /// New packets that it had received, and that the group had been sent, at the last change.
    received: u32,
    sent: u32,
    since: Time,
    doubted: Option<Time>,
}

impl Hearing {
    /// Begins to watch.
    pub fn start(&mut self, now: Time, received: u32, sent: u32) {
        *self = Hearing {
            received,
            sent,
            since: now,
            doubted: None,
        };
    }

    /// Nothing was sent until now.
    pub fn rest(&mut self, now: Time, sent: u32) {
        if self.sent == sent {
            self.since = now;
        }
    }

    /// The member says that it has `received` so many new packets, and the group has been `sent`
    /// so many: whether multicast does not reach it any more.
    pub fn is_lost(
        &mut self,
        now: Time,
        (received, sent): (u32, u32),
        rtt: Duration,
        tries: u32,
    ) -> bool {
        if received != self.received {
            self.start(now, received, sent);
            return false;
        }
        let (missed, silent) = (sent.wrapping_sub(self.sent), now.since(self.since));
        // Everything that it lacks was sent long enough ago to have arrived.
        let deaf = silent > rtt * 4 && {
            let most = DEAF[0].0;
            DEAF.iter()
                .any(|d| missed >= (d.0 * tries).min(most) && silent >= d.1)
        };
        if !deaf {
            return false;
        }
        let doubted = *self.doubted.get_or_insert(now);
        now.since(doubted) >= DOUBT
    }
}

/// How long after multicast was found not to reach a member it is tried again; doubled each time in
/// vain.
pub const REPROBE_MIN: Duration = Duration::from_millis(200);
/// Longest time between two attempts. For a member that was reached again for longer than this, the
/// intervals begin anew.
pub const REPROBE_MAX: Duration = Duration::from_secs(5);

/// When a member is tried again.
#[derive(Clone, Copy, Debug)]
pub struct Reprobe {
    /// When it is tried next, while multicast does not reach it.
    pub at: Option<Time>,
    /// How long it waits for that; doubled each time in vain.
    pub wait: Duration,
    /// When it was last reached again.
    pub reached: Time,
    /// The nonce of its last probe, unless that has been answered.
    pub nonce: Option<u32>,
}

impl Reprobe {
    /// It has never been tried.
    pub const NEW: Reprobe = Reprobe {
        at: None,
        wait: REPROBE_MIN,
        reached: Time::ZERO,
        nonce: None,
    };
}
