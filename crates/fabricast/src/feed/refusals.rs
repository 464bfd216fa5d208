//! Which refusals a feed tells of. A feed runs for months, and a host that it refuses comes again
//! and again.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Most refusals that are told of in [`PERIOD`].
const TOLD_MAX: usize = 64;
/// How long it takes until a host that is refused again for the same reason is told of again.
const PERIOD: Duration = Duration::from_secs(3600);

/// The refusals that were told of, and how many were not.
#[derive(Default)]
pub struct Refusals {
    /// When a host was told of that was refused for a reason.
    told: BTreeMap<(IpAddr, String), Instant>,
    /// Number of refusals since the last one that was told of.
    untold: u64,
}

impl Refusals {
    /// Notes that a host was refused at `now`. Returns how many refusals were not told of since the
    /// last one that was. `None`: this one is not told of either, because there were too many, or
    /// the host was refused for the same reason before.
    pub fn add(&mut self, host: IpAddr, reason: &str, now: Instant) -> Option<u64> {
        self.told.retain(|_, at| now.duration_since(*at) < PERIOD);
        let refusal = (host, reason.to_owned());
        if self.told.len() >= TOLD_MAX || self.told.contains_key(&refusal) {
            self.untold += 1;
            return None;
        }
        self.told.insert(refusal, now);
        Some(std::mem::take(&mut self.untold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_told_of_once_an_hour_for_each_reason() {
        let (mut refusals, now) = (Refusals::default(), Instant::now());
        let host = |n: u8| IpAddr::from([10, 0, 0, n]);
        assert_eq!(refusals.add(host(1), "old", now), Some(0));
        (0..9).for_each(|_| assert_eq!(refusals.add(host(1), "old", now), None));
        assert_eq!(refusals.add(host(1), "full", now), Some(9));
        assert_eq!(refusals.add(host(2), "old", now), Some(0));
        assert_eq!(refusals.add(host(1), "old", now), None);
        assert_eq!(refusals.add(host(1), "old", now + PERIOD), Some(1));
    }

    /// However many reasons clients make up, and from however many addresses they come.
    #[test]
    fn what_is_told_and_kept_is_bounded() {
        let (mut refusals, now) = (Refusals::default(), Instant::now());
        let mut add = |n: u32, now| refusals.add(IpAddr::from(n.to_be_bytes()), "full", now);
        let told = (0..1000).filter(|n| add(*n, now).is_some()).count();
        assert_eq!(told, TOLD_MAX);
        assert_eq!(add(0, now + PERIOD), Some(1000 - TOLD_MAX as u64));
        assert_eq!(refusals.told.len(), 1);
    }
}
