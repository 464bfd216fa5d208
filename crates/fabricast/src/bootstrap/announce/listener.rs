//! The receiver's end of discovery: asks, hears announcements and answers, and tells which senders
//! are there.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use super::announcement::{EVERY, GROUP, MAX, Offer, READ_MAX};
use super::asker::Asker;
use super::senders::{Found, Senders};
use super::sockets::{listener, wait};

/// Finds senders for a receiver.
pub struct Listener {
    /// Socket that announcements arrive at, or why there is none.
    group: Result<UdpSocket, String>,
    asker: Asker,
    senders: Senders,
}

impl Listener {
    /// Listens on the interfaces with these indices. `asks` is a random number.
    pub fn new(interfaces: &[u32], asks: u64) -> io::Result<Listener> {
        let group = match listener(GROUP, interfaces) {
            Ok(group) => Ok(group),
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => Err(e.to_string()),
            Err(e) => return Err(e),
        };
        let rest = group.is_err().then_some(EVERY);
        Ok(Listener {
            group,
            asker: Asker::new(interfaces, asks, rest)?,
            senders: Senders::default(),
        })
    }

    /// Why announcements are not heard, if they are not.
    pub fn deaf(&self) -> Option<&str> {
        self.group.as_ref().err().map(String::as_str)
    }

    /// Forgets what the sender at this address has announced.
    pub fn forget(&mut self, address: SocketAddr) {
        self.senders.forget(address);
    }

    /// Asks and listens until there is something to tell, for `moment` at most. Tells which senders
    /// are there among those whose offer is `wanted`.
    pub fn listen(
        &mut self,
        moment: Duration,
        wanted: &dyn Fn(&Offer) -> bool,
    ) -> io::Result<Found> {
        let until = Instant::now() + moment;
        loop {
            let now = Instant::now();
            self.asker.tick(now);
            let found = self.senders.found(now);
            if now >= until || matches!(found, Found::One(_)) {
                return Ok(found);
            }
            let pause = pause(now, until, [self.asker.next, self.senders.sure()]);
            let [group, asked] = wait(self.group.as_ref().ok(), Some(&self.asker.socket), pause)?;
            let nobody = !self.senders.is_any();
            if group {
                self.read(false, wanted)?;
            }
            if asked {
                self.read(true, wanted)?;
            }
            // A first sender was heard, so ask whether there are others.
            if nobody && self.senders.is_any() {
                self.asker.again(Instant::now());
            }
        }
    }

    /// Reads what has arrived, announcements or answers.
    fn read(&mut self, answers: bool, wanted: &dyn Fn(&Offer) -> bool) -> io::Result<()> {
        let socket = match (answers, &self.group) {
            (true, _) => &self.asker.socket,
            (false, Ok(group)) => group,
            (false, Err(_)) => return Ok(()),
        };
        let asks = answers.then_some(self.asker.asks);
        let mut bytes = [0; MAX];
        for _ in 0..READ_MAX {
            match socket.recv_from(&mut bytes) {
                Ok((n, from)) => {
                    let now = Instant::now();
                    self.senders.take(&bytes[..n], from.ip(), asks, now, wanted);
                }
                Err(e) if is_nothing(&e) => break,
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

/// How long to wait at `now` for the first of what is due, and until `until` at most. Times in the
/// past do not count, and the shortest wait is 1 ms, so that the caller does not spin.
fn pause(now: Instant, until: Instant, due: [Option<Instant>; 2]) -> Duration {
    let due = due.into_iter().flatten().filter(|at| *at > now);
    let first = due.fold(until, Instant::min);
    first
        .saturating_duration_since(now)
        .max(Duration::from_millis(1))
}

fn is_nothing(e: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(e.kind(), Interrupted | TimedOut | WouldBlock)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_over_is_waited_for_no_longer() {
        let now = Instant::now();
        let in_ms = |ms: u64| now + Duration::from_millis(ms);
        let over = now.checked_sub(Duration::from_secs(1));
        for (due, ms) in [
            ([None, None], 100),
            ([Some(in_ms(30)), Some(in_ms(50))], 30),
            ([Some(in_ms(30)), over], 30),
            ([over, over], 100),
        ] {
            assert_eq!(pause(now, in_ms(100), due), Duration::from_millis(ms));
        }
    }
}
