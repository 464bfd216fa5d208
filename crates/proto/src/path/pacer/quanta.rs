//! When packets may leave at a rate: in quanta, each worth a system call.

use core::time::Duration;

use crate::time::Time;

/// Time whose bytes are a quantum, which leaves at once; at most [`QUANTUM_BYTES`].
const QUANTUM: Duration = Duration::from_micros(500);
/// Largest quantum, in bytes.
const QUANTUM_BYTES: f64 = 65_536.0;
/// Longest delay of a wake-up that is caught up with.
const CATCH_UP: Duration = Duration::from_millis(4);

/// When packets may leave at a rate.
#[derive(Clone, Debug)]
pub struct Quanta {
    /// Time of one byte at the rate, in ns.
    byte_ns: f64,
    /// Time of one quantum at the rate, in ns.
    quantum_ns: f64,
    /// When the next packet is due, by the rate alone.
    due: Time,
    /// When the next quantum may start.
    open_at: Time,
}

impl Quanta {
    /// The first packet may leave at once. `rate`: bytes per second, above zero.
    pub fn new(rate: f64) -> Quanta {
        let mut quanta = Quanta {
            byte_ns: 0.0,
            quantum_ns: 0.0,
            due: Time::ZERO,
            open_at: Time::ZERO,
        };
        quanta.set_rate(rate);
        quanta
    }

    /// Sets the rate of what leaves from now on, in bytes per second. What has left is paid for at
    /// the rate of before.
    pub fn set_rate(&mut self, rate: f64) {
        // Divisions are too slow for every packet.
        self.byte_ns = 1e9 / rate;
        self.quantum_ns = (QUANTUM_BYTES * self.byte_ns).min(QUANTUM.as_nanos() as f64);
    }

    /// Sets the rate from `now` on, in bytes per second. What has left and is not paid for yet is
    /// paid for at the new rate.
    pub fn change_rate(&mut self, now: Time, rate: f64) {
        let slower = 1e9 / rate / self.byte_ns;
        let rescaled = |t: Time| match t > now {
            true => now + Duration::from_nanos((t.since(now).as_nanos() as f64 * slower) as u64),
            false => t,
        };
        (self.due, self.open_at) = (rescaled(self.due), rescaled(self.open_at));
        self.set_rate(rate);
    }

    /// Whether a packet may leave now.
    pub fn is_open(&self, now: Time) -> bool {
        now >= self.open_at && now >= self.due
    }

    /// When a packet may leave.
    pub fn opens_at(&self) -> Time {
        self.open_at.max(self.due)
    }

    /// Notes that a packet of `bytes` bytes (UDP payload) leaves.
    pub fn sent(&mut self, now: Time, bytes: u32) {
        let floor = now - CATCH_UP;
        let step = Duration::from_nanos((f64::from(bytes) * self.byte_ns) as u64);
        self.due = self.due.max(floor) + step;
        if self.due > now {
            // This quantum is over: what follows waits until the next is worth a system call.
            self.open_at = self.due + Duration::from_nanos(self.quantum_ns as u64);
        }
    }
}
