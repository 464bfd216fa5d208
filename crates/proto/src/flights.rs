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
    ring: Vec<Flight>,
    now: u32,
    packets: u32,
}

impl Flights {
    /// No flight yet.
    pub fn new() -> Flights {
        Flights {
            ring: vec![Flight::default(); limits::FLIGHTS],
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
            self.ring[self.now as usize & (limits::FLIGHTS - 1)] = flight;
        }
        self.packets += 1;
        self.now
    }

    /// The full number of a flight that the wire gives in 16 bits.
    pub fn extend(&self, low: u16) -> u32 {
        self.now
            .wrapping_sub(u32::from((self.now as u16).wrapping_sub(low)))
    }

    /// A flight, if it is still remembered.
    pub fn get(&self, flight: u32) -> Option<&Flight> {
        (self.now.wrapping_sub(flight) < limits::FLIGHTS as u32 && flight != 0)
            .then(|| &self.ring[flight as usize & (limits::FLIGHTS - 1)])
    }
}
