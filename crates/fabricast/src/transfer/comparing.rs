//! What both ends hold to while receivers compare what they have (spec 5.16).

use std::time::Duration;

/// Packs that a member has not compared, at most.
pub const AHEAD_MAX: usize = 8;
/// How long the sender waits for members that look at what they have, at most.
pub const LOOKING: Duration = Duration::from_secs(10);
/// How long a receiver may compare a pack, at most. The others wait for it as long.
pub const COMPARING_MAX: Duration = Duration::from_secs(5);

/// How long a receiver may compare a pack. Then it gives up comparing, and says so before the
/// sender's patience ends.
pub fn time_for_a_pack(patience: Duration) -> Duration {
    COMPARING_MAX.min(patience / 2)
}
