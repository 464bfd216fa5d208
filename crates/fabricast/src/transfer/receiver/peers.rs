//! How a late receiver gets packs from receivers that serve, while the stream runs (spec 5.15).

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::pack_table::PackTable;
use crate::bootstrap::message::{Serving, ToReceiver};
use crate::bootstrap::{Fetched, Fetcher, PORT_MIN, Throttle};
use crate::object::pack::{Header, Pack};
use crate::object::{INCOMPLETE_MAX, PackRecord};
use crate::waker::Waker;

/// Packs that a peer may lack. One that lacks more is not asked any more: it is late, too.
const LACKED_MAX: usize = 64;
// A peer is asked for a pack only if it lacks all earlier ones that are wanted. So the gaps between
// packs that have come are no more than the packs that one peer may lack, and those that are
// requested. A gap leaves two files incomplete at most.
const _: () = assert!(2 * (LACKED_MAX + ToReceiver::PEERS_MAX + 2) <= INCOMPLETE_MAX);
/// How often peers are asked again for what all of them lacked: it may have been under way to them.
const AGAIN: u32 = 4;
/// How long before that nothing is asked.
const AGAIN_PAUSE: Duration = Duration::from_millis(500);

/// A receiver that serves.
struct Peer {
    /// As the sender has told of it.
    told: Serving,
    address: SocketAddr,
    fetcher: Fetcher,
    /// The pack that was requested last and has not come.
    requested: Option<(u32, PackRecord)>,
    /// Packs that it lacks.
    lacks: BTreeSet<u32>,
}

/// What has come.
pub enum Come {
    /// A pack and its header, which are proven, with the pack's number.
    Pack(u32, Pack, Header),
    /// A peer is not asked any more, for this reason.
    Left(SocketAddr, String),
}

/// The receivers that serve, and the packs that are wanted of them.
pub struct Peers {
    /// This receiver's address on the control connection.
    local: SocketAddr,
    waker: Waker,
    /// What the sender has told of those that serve now.
    told: Vec<Serving>,
    /// Of these, those that this receiver has not connected to yet.
    new: Vec<Serving>,
    /// Whether packs are requested now, so that this receiver is connected.
    is_asking: bool,
    /// Those that this receiver is connected to.
    all: Vec<Peer>,
    /// Packs that are lacking and are not requested.
    wanted: BTreeSet<u32>,
    /// Since when nothing was requested, and how often peers may still be asked again for what they
    /// lacked.
    again: (Instant, u32),
    throttle: Arc<Throttle>,
}

/// The addresses that a sender may tell: those of the family that this receiver uses, but no
/// services of hosts, and nothing on this host itself unless the sender is on it.
fn address(serving: &Serving, local: SocketAddr) -> Option<SocketAddr> {
    let mut address = serving.address.ip()?;
    let (ip, own) = (address.ip().to_canonical(), local.ip().to_canonical());
    address.set_ip(ip);
    let is_sound = address.port() >= PORT_MIN
        && ip.is_ipv4() == own.is_ipv4()
        && (!ip.is_loopback() || own.is_loopback())
        && !ip.is_multicast()
        && !ip.is_unspecified();
    // An address of the link has this host's number of the link.
    if let (SocketAddr::V6(to), SocketAddr::V6(own)) = (&mut address, local) {
        to.set_scope_id(own.scope_id());
    }
    is_sound.then_some(address)
}

impl Peers {
    /// Nobody serves yet. `local`: this receiver's address on the control connection.
    pub fn new(local: SocketAddr, waker: &Waker) -> Peers {
        Peers {
            local,
            waker: waker.clone(),
            told: Vec::new(),
            new: Vec::new(),
            is_asking: false,
            all: Vec::new(),
            wanted: BTreeSet::new(),
            again: (Instant::now(), AGAIN),
            throttle: Arc::default(),
        }
    }

    /// Takes the receivers that serve now, as the sender tells: parts with others, and connects to
    /// those that are new, once something is wanted of them.
    pub fn tell(&mut self, told: &[Serving]) {
        let told = &told[..told.len().min(ToReceiver::PEERS_MAX)];
        self.new.retain(|serving| told.contains(serving));
        let is_known = |serving: &&Serving| self.told.contains(serving);
        self.new
            .extend(told.iter().filter(|serving| !is_known(serving)));
        self.told = told.to_vec();
        if !self.is_asking {
            return;
        }
        let gone = self.all.extract_if(.., |peer| !told.contains(&peer.told));
        let requested = gone.filter_map(|peer| peer.requested);
        self.wanted.extend(requested.map(|(number, _)| number));
        self.connect();
    }

    /// Connects to those that are new.
    fn connect(&mut self) {
        let peer = |serving: &Serving| {
            let address = address(serving, self.local)?;
            let (throttle, waker) = (self.throttle.clone(), self.waker.clone());
            let fetcher = Fetcher::start(address, serving.ticket, throttle, waker).ok()?;
            Some(Peer {
                told: *serving,
                address,
                fetcher,
                requested: None,
                lacks: BTreeSet::new(),
            })
        };
        let connected = self.new.iter().filter_map(peer);
        let connected: Vec<Peer> = connected.collect();
        self.new.clear();
        self.all.extend(connected);
        // A sender may tell of one several times.
        self.all.truncate(ToReceiver::PEERS_MAX);
        self.again = (Instant::now(), AGAIN);
    }

    /// Parts with those that this receiver is connected to. It asks none of these again.
    pub fn leave(&mut self) {
        self.is_asking = false;
        self.all.clear();
        self.wanted.clear();
    }

    /// Notes what is lacking, and connects to those that are new: packs are requested from now on,
    /// so no connection idles before.
    pub fn want(&mut self, lacking: impl Iterator<Item = u32>) {
        self.wanted = lacking.collect();
        self.is_asking = true;
        self.connect();
    }

    /// Notes how many packets of the stream have arrived, which must not become slower.
    pub fn arrived(&self, packets: u64) {
        self.throttle.arrived(packets);
    }

    /// Whether nothing comes any more.
    pub fn is_done(&self) -> bool {
        if !self.is_asking {
            return self.new.is_empty();
        }
        let is_over = self.wanted.is_empty() || self.again.1 == 0;
        let asked = |peer: &Peer| peer.lacks.len() <= LACKED_MAX;
        let is_idle = self.all.iter().all(|peer| peer.requested.is_none());
        is_idle && (is_over || !self.all.iter().any(asked))
    }

    /// The pack that is requested of this peer next.
    fn next(&self, peer: &Peer) -> Option<u32> {
        let mut wanted = self.wanted.iter();
        let is_asked = peer.lacks.len() <= LACKED_MAX;
        let next = wanted.find(|number| !peer.lacks.contains(number));
        next.copied().filter(|_| is_asked)
    }

    /// Requests a pack of each peer that has given the one before, as far as there is room for
    /// what is requested, in bytes.
    pub fn request(&mut self, table: &mut PackTable, room: u64) {
        self.ask_again();
        let requested = self.all.iter().filter_map(|peer| peer.requested);
        let mut requested: u64 = requested.map(|(_, record)| u64::from(record.len)).sum();
        for at in 0..self.all.len() {
            if self.all[at].requested.is_some() {
                continue;
            }
            let next = self.next(&self.all[at]);
            let Some((number, record)) = next.and_then(|n| Some((n, table.get(n)?.0))) else {
                continue;
            };
            requested += u64::from(record.len);
            if requested > room {
                return;
            }
            self.wanted.remove(&number);
            let peer = &mut self.all[at];
            peer.fetcher.request(number, record);
            peer.requested = Some((number, record));
            self.again.0 = Instant::now();
        }
    }

    /// Has peers asked again for what they lacked, when that is all that is wanted of them.
    fn ask_again(&mut self) {
        let is_idle = |peer: &Peer| peer.requested.is_none() && self.next(peer).is_none();
        if self.again.0.elapsed() < AGAIN_PAUSE || !self.all.iter().all(is_idle) {
            return;
        }
        self.again = (Instant::now(), self.again.1.saturating_sub(1));
        if self.again.1 > 0 {
            let asked = self.all.iter_mut();
            let asked = asked.filter(|peer| peer.lacks.len() <= LACKED_MAX);
            asked.for_each(|peer| peer.lacks.clear());
        }
    }

    /// What has come, if anything; does not block.
    pub fn come(&mut self) -> Option<Come> {
        for at in 0..self.all.len() {
            let peer = &mut self.all[at];
            while let Some((number, _)) = peer.requested
                && let Some(fetched) = peer.fetcher.next()
            {
                peer.requested = None;
                match fetched {
                    Fetched::Pack(pack, header) => {
                        return Some(Come::Pack(number, pack, header));
                    }
                    Fetched::Lacks => {
                        self.wanted.insert(number);
                        peer.lacks.insert(number);
                    }
                    Fetched::Gone(why) => {
                        self.wanted.insert(number);
                        let peer = self.all.remove(at);
                        return Some(Come::Left(peer.address, why));
                    }
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::bootstrap::Ticket;

    /// What several peers give at once has room together, or waits.
    #[test]
    fn no_more_is_requested_than_there_is_room_for() {
        let mut table = PackTable::new(usize::MAX);
        assert!(table.join(3));
        let record = |n| PackRecord {
            len: 10,
            header: 5,
            hash: [n; 32],
        };
        assert_eq!(table.list(&[record(0), record(1), record(2)]), 3);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let serving = Serving {
            address: at.into(),
            ticket: Ticket::random().unwrap(),
        };
        let mut peers = Peers::new(at, &Waker::new().unwrap());
        peers.tell(&[serving; 3]);
        assert!(peers.all.is_empty(), "nothing is wanted yet");
        peers.want(0..3);
        for (room, expected) in [(9, 0), (29, 2), (29, 2), (30, 3)] {
            peers.request(&mut table, room);
            let requested = peers.all.iter().filter(|peer| peer.requested.is_some());
            assert_eq!(requested.count(), expected, "{room}");
        }
    }

    /// One that the sender names no more is left at once, and what was requested of it is requested
    /// of another. A new one is asked, too.
    #[test]
    fn those_that_the_sender_names_no_more_are_left() {
        let mut table = PackTable::new(usize::MAX);
        assert!(table.join(4));
        let record = |n| PackRecord {
            len: 10,
            header: 5,
            hash: [n; 32],
        };
        assert_eq!(table.list(&[0, 1, 2, 3].map(record)), 4);
        let listeners = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let at = |n: usize| listeners[n].local_addr().unwrap();
        let [a, b, c] = [0, 1, 2].map(|n| Serving {
            address: at(n).into(),
            ticket: Ticket::random().unwrap(),
        });
        let mut peers = Peers::new(at(0), &Waker::new().unwrap());
        peers.tell(&[a]);
        peers.tell(&[a, b]);
        peers.want(0..4);
        let asked = |peers: &Peers| -> Vec<(SocketAddr, Option<u32>)> {
            let all = peers.all.iter();
            all.map(|peer| (peer.address, peer.requested.map(|r| r.0)))
                .collect()
        };
        peers.request(&mut table, 100);
        assert_eq!(asked(&peers), [(at(0), Some(0)), (at(1), Some(1))]);
        peers.tell(&[b, c]);
        peers.request(&mut table, 100);
        assert_eq!(asked(&peers), [(at(1), Some(1)), (at(2), Some(0))]);
        peers.tell(&[c; 4]);
        peers.tell(&[c, a, a, a]);
        assert!(peers.all.len() <= ToReceiver::PEERS_MAX);
        peers.tell(&[]);
        assert!(peers.is_done());
    }

    /// What this receiver has asked for all that they have is not asked once more.
    #[test]
    fn those_that_come_later_are_asked_alone() {
        let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [a, b] = listeners.map(|listener| Serving {
            address: listener.local_addr().unwrap().into(),
            ticket: Ticket::random().unwrap(),
        });
        let local = a.address.ip().unwrap();
        let mut peers = Peers::new(local, &Waker::new().unwrap());
        assert!(peers.is_done(), "nobody serves");
        peers.tell(&[a]);
        assert!(!peers.is_done());
        peers.want(0..4);
        peers.leave();
        assert!(peers.is_done() && peers.all.is_empty());
        peers.tell(&[a]);
        assert!(peers.is_done());
        peers.tell(&[a, b]);
        assert!(!peers.is_done());
        peers.want(2..4);
        let asked: Vec<_> = peers.all.iter().map(|peer| peer.told).collect();
        assert_eq!(asked, [b]);
        assert_eq!(peers.wanted.len(), 2);
        // One that has gone before it was asked is not asked.
        peers.leave();
        peers.tell(&[]);
        peers.tell(&[a]);
        peers.tell(&[]);
        assert!(peers.is_done());
    }

    /// What a sender tells is connected to only if a receiver may serve there.
    #[test]
    fn no_service_and_no_other_family_is_connected_to() {
        let serving = |at: &str| Serving {
            address: at.parse::<SocketAddr>().unwrap().into(),
            ticket: Ticket::random().unwrap(),
        };
        let v4 = "10.0.0.1:1".parse().unwrap();
        for bad in [
            "10.0.0.2:80",
            "10.0.0.2:0",
            "[fd00::2]:4000",
            "239.1.1.1:4000",
            "0.0.0.0:4000",
            "127.0.0.1:4000",
            "[::ffff:127.0.0.1]:4000",
            "[::1]:4000",
        ] {
            assert_eq!(address(&serving(bad), v4), None, "{bad}");
        }
        let good = "10.0.0.2:4000";
        assert_eq!(address(&serving(good), v4), good.parse().ok());
        // One host may have two ways to write one address.
        let mapped = "[::ffff:10.0.0.1]:1".parse().unwrap();
        assert_eq!(address(&serving(good), mapped), good.parse().ok());
        let to_mapped = serving("[::ffff:10.0.0.2]:4000");
        assert_eq!(address(&to_mapped, v4), good.parse().ok());
        // Where the sender is on this host, others are, too.
        let here = "127.0.0.1:4000";
        let own = "127.0.0.1:1".parse().unwrap();
        assert_eq!(address(&serving(here), own), here.parse().ok());
        // The number of a link is that of this host.
        let mut own: SocketAddr = "[fe80::1]:1".parse().unwrap();
        if let SocketAddr::V6(own) = &mut own {
            own.set_scope_id(7);
        }
        let to = address(&serving("[fe80::2]:4000"), own);
        assert!(matches!(to, Some(SocketAddr::V6(to)) if to.scope_id() == 7));
    }
}
