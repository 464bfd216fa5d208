//! The 1:P and P:1 ping-pong of P2 section 2.1 (P2.5), over any transport. One node sends one byte
//! to each of P others, all at once, and each answers at once with the same byte.
//!
//! It shows what a network costs below everything that the protocol does: how much less a message
//! costs when several leave together.

use std::io;
use std::time::{Duration, Instant};

use fabricast_proto::{Dest, NodeId};

use crate::net::Clock;
use crate::transport::{Transport, send_plain};

/// The node that sends first. The nodes that answer are 1 and upwards.
pub const ASKER: NodeId = NodeId(0);

/// Number of first round trips that are not counted: caches are cold and neighbours unknown.
const WARM: u32 = 10;
/// Time after which an unfinished round trip has lost a datagram and is made again.
const LOST: Duration = Duration::from_millis(100);
/// Number of lost round trips in a row that means that a node is not there.
const LOST_MAX: u32 = 30;

/// Round trips to several other nodes. A round trip ends when all of them have answered.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RoundTrips {
    /// Number of other nodes.
    pub peers: u32,
    /// The shortest round trip.
    pub min: Duration,
    /// The mean of all round trips.
    pub mean: Duration,
    /// The mean time that the asker took to send to all others.
    pub sending: Duration,
    /// Number of round trips that were made again, because a datagram was lost.
    pub lost: u32,
}

/// Makes `count` round trips, one after the other, to the nodes 1 to `peers`. The transport must
/// know these nodes.
pub fn ask<T: Transport>(net: &mut T, peers: u32, count: u32) -> io::Result<RoundTrips> {
    let clock = Clock(Instant::now());
    let mut found = RoundTrips {
        peers,
        min: Duration::MAX,
        mean: Duration::ZERO,
        sending: Duration::ZERO,
        lost: 0,
    };
    let (mut made, mut lost_in_a_row) = (0, 0);
    for mark in (0..=u8::MAX).cycle() {
        if made == WARM + count {
            break;
        }
        let Some((sending, whole)) = round_trip(net, clock, peers, mark)? else {
            found.lost += 1;
            lost_in_a_row += 1;
            if lost_in_a_row == LOST_MAX {
                let text = "somebody does not answer";
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            continue;
        };
        lost_in_a_row = 0;
        made += 1;
        if made > WARM {
            found.min = found.min.min(whole);
            found.mean += whole;
            found.sending += sending;
        }
    }
    found.mean /= count;
    found.sending /= count;
    Ok(found)
}

/// Makes one round trip. Returns the time that sending took and the time of all of it; `None`: a
/// datagram was lost. `mark` distinguishes the round trip from those before.
fn round_trip<T: Transport>(
    net: &mut T,
    clock: Clock,
    peers: u32,
    mark: u8,
) -> io::Result<Option<(Duration, Duration)>> {
    let began = clock.now();
    send(net, clock, (1..=peers).map(NodeId), mark)?;
    let sending = clock.now().since(began);
    let mut missing = peers;
    loop {
        let now = clock.now();
        let some = net.recv(now, &mut |arrival| {
            missing = missing.saturating_sub(u32::from(arrival.bytes() == [mark]));
        })?;
        let spent = clock.now().since(began);
        if missing == 0 {
            return Ok(Some((sending, spent)));
        }
        if spent >= LOST {
            return Ok(None);
        }
        if some == 0 {
            net.wait(Some(LOST - spent))?;
        }
    }
}

/// Answers the datagrams of [`ASKER`] while `go_on` returns true. It is called several times a
/// second.
pub fn answer<T: Transport>(net: &mut T, go_on: &dyn Fn() -> bool) -> io::Result<()> {
    let clock = Clock(Instant::now());
    let mut marks = Vec::new();
    while go_on() {
        let some = net.recv(clock.now(), &mut |arrival| {
            let bytes = arrival.bytes();
            marks.extend(bytes.first().filter(|_| bytes.len() == 1));
        })?;
        for mark in marks.drain(..) {
            send(net, clock, std::iter::once(ASKER), mark)?;
        }
        if some == 0 {
            net.wait(Some(LOST))?;
        }
    }
    Ok(())
}

fn send<T: Transport>(
    net: &mut T,
    clock: Clock,
    to: impl Iterator<Item = NodeId>,
    mark: u8,
) -> io::Result<()> {
    let head = [mark];
    let datagram = |to| (Dest::Node(to), &head[..], &[][..]);
    let batch: Vec<_> = to.map(datagram).collect();
    let mut sent = 0;
    while sent < batch.len() {
        sent += send_plain(net, clock.now(), &batch[sent..])?;
        if sent < batch.len() {
            net.wait(Some(LOST))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;
    use crate::interface::Interface;
    use crate::transport::delayed::Delayed;
    use crate::transport::fault::{Fault, Faults};
    use crate::transport::udp::{Udp, UdpConfig};

    fn open(loss: f64) -> (Fault<Delayed<Udp>>, std::net::SocketAddr) {
        let config = UdpConfig {
            interface: Interface::Address(Ipv4Addr::LOCALHOST.into()),
            ..UdpConfig::default()
        };
        let udp = Udp::new(&config).unwrap();
        let address = udp.local_addr();
        let delayed = Delayed::in_tests(udp, address.port().into());
        (Fault::new(delayed, Faults::loss(1, loss)), address)
    }

    fn job(loss: f64, peers: u32) -> Vec<io::Result<RoundTrips>> {
        let over = AtomicBool::new(false);
        let (mut asker, address) = open(loss);
        thread::scope(|scope| {
            for peer in 1..=3 {
                let (mut net, here) = open(0.0);
                net.peer(ASKER, &address.into());
                asker.peer(NodeId(peer), &here.into());
                let over = &over;
                scope.spawn(move || answer(&mut net, &|| !over.load(Ordering::Relaxed)).unwrap());
            }
            let all = (1..=peers).map(|peers| ask(&mut asker, peers, 20));
            let all = all.collect();
            over.store(true, Ordering::Relaxed);
            all
        })
    }

    #[test]
    fn all_answer() {
        let nothing_is_lost = || {
            let mut lost = 0;
            for (peers, found) in (1..).zip(job(0.0, 3)) {
                let found = found.unwrap();
                assert_eq!(found.peers, peers);
                assert!(found.min <= found.mean && found.sending <= found.mean);
                assert!(found.min > Duration::ZERO);
                lost += found.lost;
            }
            lost == 0
        };
        // On a busy machine an answer may come too late, and counts as lost.
        assert!((0..10).any(|_| nothing_is_lost()));
    }

    #[test]
    fn what_is_lost_is_made_again() {
        let found = job(0.02, 3);
        let lost: u32 = found.iter().map(|f| f.as_ref().unwrap().lost).sum();
        assert!(lost > 0);
    }

    #[test]
    fn who_is_not_there_is_noticed() {
        let found = job(0.0, 4);
        let error = found[3].as_ref().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
