//! How the processes of a job come to know each other: each gives a card to all.
//!
//! There are three rounds. In the first each says where it is; in the second whether it has reached
//! the process that watches all, and the memory that it shares with those on its host; in the third
//! those that have probed the others say whom their multicasts do not reach. A process in trouble
//! tells all in the round in which the trouble arises, so that either all go on or none.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use fabricast_proto::scheme::UnknownScheme;
use fabricast_proto::{Config, Node, NodeId, Scheme, limits};
use serde::{Deserialize, Serialize};

use super::engine::{ADDRESSES, Engine, Setting};
use super::hosts::Hosts;
use super::near::{self, Mates};
use super::peers::{Listener, Peers};
use super::ways::Ways;
use super::{Bootstrap, Options};
use crate::driver::Driver;
use crate::error::Error;
use crate::net::{self, Net, random};
use crate::object::Divisible;
use crate::transport::Transport;
use crate::transport::shm::{Doorbell, Shm};
use crate::transport::udp;

/// Bytes that each process gives in a round.
pub const CARD: usize = 512;
/// What the cards' format and the protocol are called; all must say the same.
const VERSION: u32 = 3;
/// Packets of a stream that may be under way. Thousands of groups have streams of their own, so it
/// is less than a file has.
const WINDOW: u32 = 2048;
/// A broadcast of at most so many bytes is copied at its root, whose call then returns at once.
pub(super) const COPY_MAX: u32 = 256 << 10;
/// Packets of each stream that are kept for broadcasts that have not been called here yet. (With
/// more, a root runs so far ahead that what it sends falls out of the processors' caches before it
/// is read: with 2048, 8 KB took twice as long.)
const HOLD: u32 = 512;
/// A packet is not waited for any longer before it counts as lost: what is sent again for nothing
/// costs less than a program that stands still.
const REORDER_MAX: Duration = Duration::from_millis(2);
/// Bytes of a reason, as it is written on a card.
const REASON: usize = 400;

/// What a process says of itself.
#[derive(Serialize, Deserialize, Debug)]
pub(super) struct Card {
    version: u32,
    /// Of rank 0 it counts.
    session: u64,
    /// Where datagrams for it go.
    udp: SocketAddr,
    /// Where rank 0 listens.
    watch: Option<SocketAddr>,
    /// Largest datagram that its interface takes, in bytes.
    datagram: u32,
    /// On which host it is, and the name of its doorbell there; `None`: it cannot share memory.
    pub host: Option<(u64, u64)>,
    /// A number that only these processes know.
    pub key: u64,
    /// Of the scheme's name: all must have the same.
    scheme: u64,
}

/// What a process says of itself when it has tried to reach the others.
#[derive(Serialize, Deserialize, Debug)]
struct Reached {
    /// The memory of its host, or why not.
    near: Result<(), String>,
}

/// What a process that has probed the others says. Hosts are numbered in the order of their
/// leaders.
#[derive(Serialize, Deserialize, Debug)]
struct Tried {
    /// Its own host.
    host: u32,
    /// Those that its multicasts do not reach, in runs: the first, and how many.
    unreached: Vec<(u32, u32)>,
}

/// So many runs fit a card. Of hosts in further runs each root finds out by itself that its
/// multicasts do not reach them, as it does of hosts that are cut off in the midst of a job.
const RUNS_MAX: usize = 16;

fn put(given: &Result<impl Serialize, String>) -> Vec<u8> {
    let given = given.as_ref().map_err(|reason| short(reason));
    let mut bytes = serde_json::to_vec(&given).unwrap_or_default();
    bytes.resize(CARD, b' ');
    bytes
}

/// As much of a reason as fits a card.
fn short(reason: &str) -> &str {
    let fits = |text: &str| serde_json::to_string(text).is_ok_and(|t| t.len() <= REASON);
    let ends = (0..=REASON.min(reason.len())).rev();
    let mut cut = ends.filter_map(|end| reason.get(..end));
    cut.find(|text| fits(text)).unwrap_or_default()
}

/// What all gave; an error names the first who could not.
fn agree<T: for<'a> Deserialize<'a>>(
    bootstrap: &mut dyn Bootstrap,
    mine: &Result<impl Serialize, String>,
) -> Result<Vec<T>, Error> {
    let given = bootstrap.allgather(&put(mine))?;
    let read = (0..).zip(&given).map(|(rank, bytes)| {
        let card: Result<T, String> = serde_json::from_slice(bytes)
            .unwrap_or_else(|_| Err("it speaks another version of Fabricast".into()));
        card.map_err(|reason| Error::Refused(format!("rank {rank} cannot take part: {reason}")))
    });
    read.collect()
}

/// Tells all that this process has come so far, or why not; an error names the first that has not.
/// A process that has probed the others gives its own host and, sorted, the hosts that its
/// multicasts do not reach. All get the hosts that no prober on another host reaches.
pub(super) fn agree_on_unreached(
    bootstrap: &mut dyn Bootstrap,
    mine: Result<Option<(u32, Vec<u32>)>, &Error>,
) -> Result<Vec<u32>, Error> {
    let mine = mine.map_err(Error::to_string);
    let mine = mine.map(|tried| {
        tried.map(|(host, unreached)| Tried {
            host,
            unreached: runs(&unreached),
        })
    });
    let said: Vec<Option<Tried>> = agree(bootstrap, &mine)?;
    let hosts = said.len() as u32;
    let tried: Vec<Tried> = said.into_iter().flatten().collect();
    let misses = |tried: &Tried, host: u32| {
        let mut runs = tried.unreached.iter();
        runs.any(|&(first, count)| host.checked_sub(first).is_some_and(|i| i < count))
    };
    let unreached = (0..hosts).filter(|&host| {
        let mut others = tried.iter().filter(|tried| tried.host != host).peekable();
        others.peek().is_some() && others.all(|tried| misses(tried, host))
    });
    Ok(unreached.collect())
}

/// Sorted numbers as runs, as many as fit a card.
fn runs(hosts: &[u32]) -> Vec<(u32, u32)> {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &host in hosts {
        let follows = runs
            .last()
            .is_some_and(|&(first, count)| first + count == host);
        match runs.last_mut() {
            Some((_, count)) if follows => *count += 1,
            _ => runs.push((host, 1)),
        }
    }
    runs.truncate(RUNS_MAX);
    runs
}

/// What a process has opened before it knows the others.
struct Opened {
    net: Net,
    listener: Option<Listener>,
    session: u64,
    /// Where this node's secret numbers begin.
    seed: u64,
    key: u64,
    host: u64,
    doorbell: Option<Doorbell>,
    scheme: Scheme,
}

/// The scheme of this name, for short objects that somebody waits for.
fn scheme(name: &str) -> Result<Scheme, Error> {
    let scheme = name.parse::<Scheme>();
    let mut scheme = scheme
        .map_err(|e: UnknownScheme| Error::Usage(e.to_string()))?
        .copied(COPY_MAX);
    let detect = &mut scheme.detect;
    detect.reorder_max = REORDER_MAX.max(detect.reorder_min);
    Ok(scheme)
}

fn open(options: &Options, rank: u32) -> Result<Opened, Error> {
    options.net.check()?;
    let scheme = scheme(&options.scheme)?;
    let (_, near) = udp::choose(&options.net.interface, None)
        .map_err(|e| Error::io("choosing a network interface", e))?;
    let session = random()?;
    let net = net::open(&options.net, near, 1, session)?;
    let listener = match rank {
        0 => Some(Listener::open(near)?),
        _ => None,
    };
    Ok(Opened {
        net,
        listener,
        session,
        seed: random()?,
        key: random()?,
        host: near::host(options.host.as_deref()),
        // Who has none shares no memory.
        doorbell: Doorbell::hang(random()?).ok(),
        scheme,
    })
}

/// Opens the network and makes the processes known to each other.
pub(super) fn introduce<O: Divisible>(
    options: &Options,
    bootstrap: &mut dyn Bootstrap,
) -> Result<(Engine<O>, Peers), Error> {
    let (rank, size) = (bootstrap.rank(), bootstrap.size());
    let opened = open(options, rank);
    let mine = opened.as_ref().map_err(Error::to_string).map(|o| Card {
        version: VERSION,
        session: o.session,
        udp: o.net.inner().local_addr(),
        watch: o.listener.as_ref().map(Listener::address),
        datagram: o.net.caps().datagram_max as u32,
        host: o.doorbell.as_ref().map(|bell| (o.host, bell.name())),
        key: o.key,
        scheme: near::number(options.scheme.as_bytes()),
    });
    let cards: Vec<Card> = agree(bootstrap, &mine)?;
    let mut opened = opened?;
    let joined = join(&mut opened, &cards, (rank, size));
    let said = joined.as_ref().map_err(Error::to_string);
    let said = said.map(|(_, near)| Reached {
        near: near
            .as_ref()
            .map(|_| ())
            .map_err(|reason| short(reason).into()),
    });
    let reached: Vec<Reached> = agree(bootstrap, &said)?;
    let (peers, near) = joined?;
    let hosts = (0..)
        .zip(&cards)
        .zip(&reached)
        .map(|((rank, card), reached)| {
            let host = card.host.map(|host| (host.0, reached.near.is_ok()));
            host.unwrap_or((rank, false))
        });
    let hosts = Hosts::new(&hosts.collect::<Vec<_>>());
    let unshared = unshared(&cards, &reached, rank);
    let near = near.ok().flatten();
    let setting = engine(opened, &cards, (rank, size), hosts, near);
    let engine = Engine::new(Setting {
        unshared,
        ..setting
    });
    Ok((engine, peers))
}

/// Why this process shares no memory with others of its host, if there are any.
fn unshared(cards: &[Card], reached: &[Reached], rank: u32) -> Option<String> {
    let host = |card: &Card| card.host.map(|host| host.0);
    let here = host(cards.get(rank as usize)?)?;
    let mut all = (0..).zip(cards).zip(reached);
    all.find_map(|((other, card), reached)| match &reached.near {
        Err(reason) if host(card) == Some(here) => Some(format!("rank {other}: {reason}")),
        _ => None,
    })
}

/// Reaches the process that watches all, and the memory of this host if others are on it.
fn join(
    opened: &mut Opened,
    cards: &[Card],
    (rank, size): (u32, u32),
) -> Result<(Peers, Result<Option<Shm>, String>), Error> {
    if cards.len() != size as usize || cards.iter().any(|c| c.version != VERSION) {
        let text = "the processes use different versions of Fabricast";
        return Err(Error::Refused(text.into()));
    }
    if cards.iter().any(|c| c.scheme != cards[0].scheme) {
        let text = "the processes use different schemes (FABRICAST_SCHEME)";
        return Err(Error::Refused(text.into()));
    }
    let families = |card: &Card| card.udp.is_ipv4() == cards[0].udp.is_ipv4();
    if !cards.iter().all(families) {
        let text = "some processes use IPv4 and others IPv6; choose an interface address that all \
                    are reached by (FABRICAST_INTERFACE)";
        return Err(Error::Refused(text.into()));
    }
    // Before rank 0 is waited for: the process that makes the memory may have to wait for the
    // others to take it.
    let near = Mates::new(opened.doorbell.take(), cards, rank)
        .map(Mates::meet)
        .transpose();
    let session = cards[0].session;
    let peers = match (opened.listener.take(), cards[0].watch) {
        (Some(listener), _) => listener.accept(session, size)?,
        (None, Some(address)) => Peers::connect(address, session, rank)?,
        (None, None) => return Err(Error::Refused("rank 0 does not listen".into())),
    };
    Ok((peers, near))
}

fn engine<O: Divisible>(
    opened: Opened,
    cards: &[Card],
    (rank, size): (u32, u32),
    hosts: Hosts,
    near: Option<Shm>,
) -> Setting<O> {
    let session = cards[0].session;
    let Opened {
        mut net,
        scheme,
        seed,
        ..
    } = opened;
    for (peer, card) in (0..).zip(cards).filter(|&(peer, _)| peer != rank) {
        net.peer(NodeId(peer), card.udp);
    }
    if !hears_itself(&hosts, cards, rank) {
        // Else it costs time, no more.
        let _ = net.inner().set_loopback(false);
    }
    let datagram = cards.iter().map(|c| c.datagram).min().unwrap_or(0);
    let chunk = datagram.saturating_sub(scheme.data_overhead() as u32);
    let chunk = chunk.min(limits::CHUNK_MAX);
    let config = Config {
        hold: HOLD,
        ..net::node_config(NodeId(rank), session, (scheme, WINDOW), chunk, net.caps())
    };
    let all: Vec<NodeId> = (0..size).map(NodeId).collect();
    let mates = hosts.mates(NodeId(rank), &all);
    let near = near.filter(|_| mates.len() > 1);
    let near = near.map(|shm| near::driver(shm, NodeId(rank), (session, seed), &mates));
    let far = Driver::new(Node::new(config, seed), net);
    Setting {
        ways: Ways { far, near },
        hosts,
        rank: NodeId(rank),
        size,
        chunk: [chunk, near::CHUNK],
        addresses: addresses(session, cards[0].udp.is_ipv4()),
        unshared: None,
    }
}

/// Whether somebody on this host, or at this address, who shares no memory with this process is to
/// hear its multicasts. Else on this host it would be alone in hearing them.
fn hears_itself(hosts: &Hosts, cards: &[Card], rank: u32) -> bool {
    let own = &cards[rank as usize];
    let host = |card: &Card| card.host.map(|(host, _)| host);
    let near = |card: &Card| host(card).is_some() && host(card) == host(own);
    let others = (0..)
        .zip(cards)
        .filter(|(_, card)| near(card) || card.udp.ip() == own.udp.ip());
    let mut others = others.filter(|&(other, _)| !hosts.share(NodeId(rank), NodeId(other)));
    others.next().is_some()
}

/// The IP groups of a job: at random in the range of local scope, at a random port.
fn addresses(session: u64, v4: bool) -> [SocketAddr; ADDRESSES] {
    let [a, b, c, d, e, f, ..] = session.to_be_bytes();
    // Below the range from which systems take the ports of outgoing connections.
    let port = 16_384 + (u16::from_be_bytes([e, f]) & 0x3fff);
    std::array::from_fn(|i| {
        let last = (b & !(ADDRESSES as u8 - 1)) | i as u8;
        let ip: IpAddr = match v4 {
            true => Ipv4Addr::new(239, 255, a, last).into(),
            false => {
                let word = |x, y| u16::from_be_bytes([x, y]);
                Ipv6Addr::new(0xff15, 0, 0, 0, 0, word(c, d), word(a, last), i as u16).into()
            }
        };
        (ip, port).into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::NetOptions;
    use crate::transport::udp::Interface;

    #[test]
    fn a_card_fits_whatever_it_says() {
        let card = |udp: &str| Card {
            version: u32::MAX,
            session: u64::MAX,
            udp: udp.parse().unwrap(),
            watch: Some(udp.parse().unwrap()),
            datagram: u32::MAX,
            host: Some((u64::MAX, u64::MAX)),
            key: u64::MAX,
            scheme: u64::MAX,
        };
        for udp in [
            "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff%4294967295]:65535",
            "10.0.0.1:1",
        ] {
            let bytes = put(&Ok(card(udp)));
            assert_eq!(bytes.len(), CARD);
            let read: Result<Card, String> = serde_json::from_slice(&bytes).unwrap();
            assert_eq!(read.unwrap().udp, udp.parse().unwrap());
        }
        let near = |reason: &str| Reached {
            near: Err(short(reason).into()),
        };
        for letters in ["a", "ü\"\\\n", "\u{1}"] {
            let reason = letters.repeat(600);
            let bytes = put(&Err::<Card, _>(reason.clone()));
            let read: Result<Card, String> = serde_json::from_slice(&bytes).unwrap();
            let said = read.unwrap_err();
            assert!(said.len() > 60 && reason.starts_with(&said), "{said}");
            let bytes = put(&Ok(near(&reason)));
            let read: Result<Reached, String> = serde_json::from_slice(&bytes).unwrap();
            assert_eq!(read.unwrap().near, Err(said));
        }
    }

    /// The leaders of the first two of six hosts have probed the others.
    #[test]
    fn a_host_is_unreached_if_all_who_tried_say_so() {
        struct Said(Vec<Vec<u8>>);
        impl Bootstrap for Said {
            fn rank(&self) -> u32 {
                0
            }
            fn size(&self) -> u32 {
                6
            }
            fn allgather(&mut self, _: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
                Ok(self.0.clone())
            }
        }
        let agreed = |first: Option<&[u32]>, second: Option<&[u32]>| {
            let said = (0..).zip([first, second, None, None, None, None]);
            let said = said.map(|(host, unreached)| {
                let unreached = unreached.map(runs);
                put(&Ok(unreached.map(|unreached| Tried { host, unreached })))
            });
            agree_on_unreached(&mut Said(said.collect()), Ok(None)).unwrap()
        };
        assert!(agreed(Some(&[]), Some(&[])).is_empty());
        assert_eq!(agreed(Some(&[4]), Some(&[4])), [4]);
        let blocked = agreed(Some(&[1, 2, 3, 4, 5]), Some(&[0, 2, 3, 4, 5]));
        assert_eq!(blocked, [0, 1, 2, 3, 4, 5]);
        // The first one's way out may be the trouble. Of the second host nobody else knows.
        assert_eq!(agreed(Some(&[1, 2, 3, 4, 5]), Some(&[3])), [1, 3]);
        assert_eq!(agreed(Some(&[3]), None), [3]);
        assert!(agreed(None, None).is_empty());
    }

    #[test]
    fn hosts_are_said_in_runs_that_fit_a_card() {
        assert_eq!(runs(&[0, 1, 2, 7, 9, 10]), [(0, 3), (7, 1), (9, 2)]);
        let every_other: Vec<u32> = (0..1000).map(|i| u32::MAX - 2000 + 2 * i).collect();
        let tried = Tried {
            host: u32::MAX,
            unreached: runs(&every_other),
        };
        let bytes = put(&Ok(Some(tried)));
        assert_eq!(bytes.len(), CARD);
        let read: Result<Option<Tried>, String> = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(read.unwrap().unwrap().unreached.len(), RUNS_MAX);
    }

    #[test]
    fn a_lost_packet_is_noticed_soon_whatever_was_late_before() {
        for name in ["auto", "ibrmp"] {
            let scheme = scheme(name).unwrap();
            assert!(scheme.detect.reorder_max <= REORDER_MAX.max(scheme.detect.reorder_min));
            assert_eq!(scheme.copied, COPY_MAX);
        }
        assert!(matches!(scheme("fast"), Err(Error::Usage(_))));
    }

    /// The session stands in every datagram: from it nobody may know what a node asks others with.
    #[test]
    fn what_a_node_asks_with_does_not_follow_from_the_session() {
        let options = Options {
            net: NetOptions {
                interface: Interface::Address(Ipv4Addr::LOCALHOST.into()),
                ..NetOptions::default()
            },
            ..Options::default()
        };
        let [a, b] = [1, 1].map(|rank| open(&options, rank).unwrap());
        assert_ne!(a.seed, b.seed);
        assert_ne!(a.seed ^ a.session, b.seed ^ b.session);
    }

    #[test]
    fn who_is_alone_at_its_address_need_not_hear_itself() {
        let card = |last: u8| Card {
            version: VERSION,
            session: 1,
            udp: ([10, 0, 0, last], 1000 + u16::from(last)).into(),
            watch: None,
            datagram: 1472,
            host: Some((u64::from(last), 1)),
            key: 1,
            scheme: 1,
        };
        let mut cards = [1, 2, 2, 3, 3].map(card);
        let hosts = Hosts::new(&[(1, true), (2, true), (2, true), (3, false), (4, true)]);
        let all = [0, 1, 2, 3, 4].map(|rank| hears_itself(&hosts, &cards, rank));
        assert_eq!(all, [false, false, false, true, true]);
        // Another address of the same host; and of one that has no name.
        cards[4].udp = ([10, 0, 0, 4], 1).into();
        assert!(hears_itself(&hosts, &cards, 3));
        cards[4].host = None;
        assert!(!hears_itself(&hosts, &cards, 3));
        cards[4].udp = cards[3].udp;
        assert!(hears_itself(&hosts, &cards, 3));
    }

    #[test]
    fn the_groups_of_a_job_are_different_and_of_local_scope() {
        for session in [0, u64::MAX, 0x1234_5678_9abc_def0] {
            for v4 in [true, false] {
                let all = addresses(session, v4);
                for (i, a) in all.iter().enumerate() {
                    assert!(a.ip().is_multicast() && a.port() >= 16_384);
                    assert!(!all[..i].contains(a));
                }
            }
        }
    }
}
