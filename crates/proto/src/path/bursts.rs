//! When bursts of data packets left, and how much had been sent before them.
//!
//! A *burst* is at most [`limits::BURST_PACKETS`] data packets of one path. Its number travels in
//! the header. A receiver reports the newest burst that has reached it, when that arrived, and how
//! many packets it had received before. From this the sender learns how long a packet took, how
//! fast packets arrive, how many are lost, and whether a report was made before or after a repair.

use core::time::Duration;

use crate::limits;
use crate::time::Time;

/// Age at which a burst is closed even when it is not full.
const BURST_AGE_MAX: Duration = Duration::from_micros(100);

/// Number of bursts that the ring has room for before it grows to its full size.
const FEW: usize = 32;

/// One burst.
#[derive(Clone, Copy, Debug, Default)]
pub struct Burst {
    /// When its first packet left.
    pub at: Time,
    /// The number of the path that it belongs to.
    pub path: u32,
    /// New (not repeated) data packets of the path sent before it.
    pub fresh: u32,
    /// New data packets that the group's path had sent before it.
    pub group_fresh: u32,
    /// Bytes of the path sent before it, repairs included.
    pub bytes: u64,
}

/// The last bursts of a sender.
#[derive(Clone, Debug)]
pub struct Bursts {
    /// It grows once, because many streams have few bursts.
    ring: Vec<Burst>,
    now: u32,
    packets: u32,
}

impl Bursts {
    /// The state before the first burst.
    pub fn new() -> Bursts {
        let mut ring = Vec::with_capacity(FEW);
        ring.push(Burst::default());
        Bursts {
            ring,
            now: 0,
            packets: limits::BURST_PACKETS,
        }
    }

    /// Number of the newest burst.
    pub fn newest(&self) -> u32 {
        self.now
    }

    /// Counts a data packet that leaves, and returns the number of its burst. `burst` is the new
    /// burst if one begins with this packet.
    pub fn packet(&mut self, burst: Burst) -> u32 {
        let open = &self.ring[self.now as usize & (limits::BURSTS - 1)];
        if self.packets >= limits::BURST_PACKETS
            || open.path != burst.path
            || burst.at.since(open.at) >= BURST_AGE_MAX
        {
            self.now = self.now.wrapping_add(1);
            self.packets = 0;
            match self.ring.get_mut(self.now as usize & (limits::BURSTS - 1)) {
                Some(slot) => *slot = burst,
                None => {
                    if self.ring.len() == self.ring.capacity() {
                        self.ring.reserve_exact(limits::BURSTS - self.ring.len());
                    }
                    self.ring.push(burst);
                }
            }
        }
        self.packets += 1;
        self.now
    }

    /// The full number of a burst that the wire gives in 16 bits.
    pub fn extend(&self, low: u16) -> u32 {
        self.now
            .wrapping_sub(u32::from((self.now as u16).wrapping_sub(low)))
    }

    /// A burst, if it is still remembered. (A report may name a burst that never was.)
    pub fn get(&self, burst: u32) -> Option<&Burst> {
        let known = self.now.wrapping_sub(burst) < limits::BURSTS as u32 && burst != 0;
        let at = burst as usize & (limits::BURSTS - 1);
        self.ring.get(at).filter(|_| known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bursts_that_were_are_known() {
        let mut bursts = Bursts::new();
        for path in 1..3 * limits::BURSTS as u32 {
            // Neither a burst before the first nor one that is still to come is known.
            assert!(bursts.get(bursts.extend(u16::MAX)).is_none());
            assert!(bursts.get(path).is_none());
            let burst = Burst {
                path,
                ..Burst::default()
            };
            assert_eq!(bursts.packet(burst), path);
            assert_eq!(bursts.get(path).map(|f| f.path), Some(path));
            let old = path.saturating_sub(limits::BURSTS as u32 - 1).max(1);
            assert_eq!(bursts.get(old).map(|f| f.path), Some(old));
        }
    }
}
