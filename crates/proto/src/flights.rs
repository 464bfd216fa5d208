//! When bursts of data packets left, and how much had been sent before them.
//!
//! A *flight* is a burst of at most [`limits::FLIGHT_PACKETS`] data packets of one lane. Its
//! number travels in the header; a receiver tells the newest that has reached it, when, and how
//! many packets it had received before. So the root can tell how long a packet took, how fast
//! packets arrive, how many are lost, and whether a report was made before or after a repair.

use core::time::Duration;

use crate::limits;
use crate::time::Time;

/// A flight is closed after this time even when it is not full.
const FLIGHT_AGE_MAX: Duration = Duration::from_micros(100);

/// So many are remembered before the first allocation of all.
const FEW: usize = 32;

/// One flight.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flight {
    /// When its first packet left.
    pub at: Time,
    /// The number of the lane that it belongs to.
    pub lane: u32,
    /// New (not repeated) data packets of the lane sent before it.
    pub fresh: u32,
    /// Bytes of the lane sent before it, repairs included.
    pub bytes: u64,
}

/// The last flights of a root.
#[derive(Clone, Debug)]
pub struct Flights {
    /// Grows once, for many streams have few.
    ring: Vec<Flight>,
    now: u32,
    packets: u32,
}

impl Flights {
    /// No flight yet.
    pub fn new() -> Flights {
        let mut ring = Vec::with_capacity(FEW);
        ring.push(Flight::default());
        Flights {
            ring,
            now: 0,
            packets: limits::FLIGHT_PACKETS,
        }
    }

    /// Number of the newest flight.
    pub fn newest(&self) -> u32 {
        self.now
    }

    /// A data packet leaves; `flight` says what a new flight would be. Returns its flight.
    pub fn packet(&mut self, flight: Flight) -> u32 {
        let open = &self.ring[self.now as usize & (limits::FLIGHTS - 1)];
        if self.packets >= limits::FLIGHT_PACKETS
            || open.lane != flight.lane
            || flight.at.since(open.at) >= FLIGHT_AGE_MAX
        {
            self.now = self.now.wrapping_add(1);
            self.packets = 0;
            match self.ring.get_mut(self.now as usize & (limits::FLIGHTS - 1)) {
                Some(slot) => *slot = flight,
                None => {
                    if self.ring.len() == self.ring.capacity() {
                        self.ring.reserve_exact(limits::FLIGHTS - self.ring.len());
                    }
                    self.ring.push(flight);
                }
            }
        }
        self.packets += 1;
        self.now
    }

    /// The full number of a flight that the wire gives in 16 bits.
    pub fn extend(&self, low: u16) -> u32 {
        self.now
            .wrapping_sub(u32::from((self.now as u16).wrapping_sub(low)))
    }

    /// A flight, if it is still remembered. (Reports may name one that never was.)
    pub fn get(&self, flight: u32) -> Option<&Flight> {
        let known = self.now.wrapping_sub(flight) < limits::FLIGHTS as u32 && flight != 0;
        let at = flight as usize & (limits::FLIGHTS - 1);
        self.ring.get(at).filter(|_| known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_flights_that_were_are_known() {
        let mut flights = Flights::new();
        for lane in 1..3 * limits::FLIGHTS as u32 {
            // One before the first, and one that is still to come.
            assert!(flights.get(flights.extend(u16::MAX)).is_none());
            assert!(flights.get(lane).is_none());
            let flight = Flight {
                lane,
                ..Flight::default()
            };
            assert_eq!(flights.packet(flight), lane);
            assert_eq!(flights.get(lane).map(|f| f.lane), Some(lane));
            let old = lane.saturating_sub(limits::FLIGHTS as u32 - 1).max(1);
            assert_eq!(flights.get(old).map(|f| f.lane), Some(old));
        }
    }
}
