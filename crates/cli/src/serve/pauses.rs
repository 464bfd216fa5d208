//! Pauses after transfers that have reached nobody.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// The pause after such a transfer, and the longest after several.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Most hosts that are remembered.
const HOSTS_MAX: usize = 65_536;

/// What the feed does not do for a while. The hosts that were told of a transfer and did not
/// come have to wait, each time longer, so that they do not hold up others for ever.
#[derive(Default)]
pub struct Pauses {
    /// The end of the pause of the whole feed.
    until: Option<Instant>,
    /// The end of each host's pause, and how long it was.
    hosts: BTreeMap<IpAddr, (Instant, Duration)>,
}

impl Pauses {
    /// Has the feed pause for a moment: a transfer has reached nobody.
    pub fn pause(&mut self) {
        self.until = Some(Instant::now() + PAUSE.0);
    }

    /// Takes how a transfer has ended that these hosts were told of. Those that are absent pause
    /// for longer each time, whatever others have done, until they complete one.
    pub fn after(&mut self, completed: &BTreeSet<IpAddr>, absent: &BTreeSet<IpAddr>) {
        completed
            .iter()
            .for_each(|host| _ = self.hosts.remove(host));
        let now = Instant::now();
        // Several followers may count for one host.
        for host in absent.difference(completed) {
            if self.hosts.len() == HOSTS_MAX && !self.hosts.contains_key(host) {
                continue;
            }
            let (until, pause) = self.hosts.entry(*host).or_insert((now, Duration::ZERO));
            *pause = (*pause * 2).clamp(PAUSE.0, PAUSE.1);
            *until = now + *pause;
        }
    }

    /// Whether the whole feed pauses.
    pub fn is_pause(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() < until)
    }

    /// Whether nothing is sent for the sake of this host.
    pub fn is_paused(&self, host: IpAddr) -> bool {
        let pause = self.hosts.get(&host);
        pause.is_some_and(|(until, _)| Instant::now() < *until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_never_comes_waits_longer_each_time() {
        let (bad, good) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let mut pauses = Pauses::default();
        for n in 0..8u32 {
            // Others complete what it does not come for.
            pauses.after(&[good].into(), &[bad].into());
            assert!(pauses.is_paused(bad) && !pauses.is_paused(good) && !pauses.is_pause());
            let (_, pause) = pauses.hosts[&bad];
            assert_eq!(pause, Duration::from_secs((1 << n).min(60)));
        }
        // Another follower of the same host has not come.
        pauses.after(&[bad].into(), &[bad].into());
        assert!(!pauses.is_paused(bad));
        pauses.pause();
        assert!(pauses.is_pause());
    }
}
