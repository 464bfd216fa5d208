//! How the processes of a job come to know each other: each gives a descriptor to all.
//!
//! There are three rounds. In the first, each process says where it is. In the second, each says
//! whether it has reached rank 0, which watches all processes, and the memory that it shares with
//! its local ranks. In the third, the processes that have probed the others say which hosts their
//! multicasts do not reach. A process in trouble tells all others in the round in which the trouble
//! arises, so that either all continue or none.
//!
//! Owns the endpoint descriptors (`descriptor`), what a process opens before it knows the others,
//! and the connections that tell which process is lost (`peers`). Imports from networks and
//! hierarchy.

pub(crate) mod descriptor;
mod line;
pub(crate) mod mail;
pub(crate) mod peers;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use fabricast_proto::group::Strategy;
use fabricast_proto::scheme::Copied;
use fabricast_proto::{Config, Node, NodeId, Scheme, limits};
use tracing::info;

use self::descriptor::{EndpointDescriptor, Reached, VERSION, agree, short};
use self::mail::Mail;
use self::peers::{Listener, Peers};
use super::hierarchy::host;
use super::hierarchy::intra_node::{self, LocalRanks};
use super::hierarchy::topology::Hosts;
use super::limits::{ADDRESSES_MAX, COPY_MAX};
use super::networks::Networks;
use super::options::{Bootstrap, BroadcastAlgorithm, Options};
use crate::communicator::error::Error;
use crate::driver::Driver;
use crate::interface;
use crate::net::{self, MeetingPoint, Net, SharedMemory, random};
use crate::object::Divisible;
use crate::setting::{INTERFACE, JOB_BROADCAST, JOB_GROUPS, JOB_SCHEME, JOB_SUBNET};
use crate::subnet::Subnet;
use crate::subnet::igmp::Igmp;
use crate::transport::{GroupAddress, NodeAddress, Transport};
use crate::waker::Waker;

/// Window of a stream, in packets. It is smaller than that of a file transfer, because each of
/// thousands of groups has streams of its own.
const WINDOW: u32 = 2048;
/// Size of the unexpected-message buffer per stream, in packets. With more, a root runs so far
/// ahead that what it sends falls out of the processors' caches before the receivers read it: with
/// 2048, 8 KB took twice as long.
const HOLD: u32 = 512;
/// Upper bound of the reordering threshold. A needless retransmission costs less than a program
/// that stands still.
const REORDER_MAX: Duration = Duration::from_millis(2);

/// What the wire-up gives to the engine.
pub(crate) struct Setting<O: Divisible> {
    pub networks: Networks<O>,
    pub hosts: Hosts,
    pub rank: NodeId,
    pub size: u32,
    /// Payload of a data packet over the network, and through shared memory, in bytes.
    pub payload_size: [u32; 2],
    pub addresses: [GroupAddress; ADDRESSES_MAX],
    /// What grants these addresses.
    pub subnet: Box<dyn Subnet + Send>,
    /// When groups get addresses of their own, and how processes agree on that.
    pub addressing: Option<Addressing>,
    pub broadcast: BroadcastAlgorithm,
    /// Why this process shares no memory with others of its host, if there are any.
    pub unshared: Option<String>,
}

/// What a process needs to give groups addresses of their own.
pub(crate) struct Addressing {
    pub strategy: Strategy,
    /// Most addresses that groups get of their own.
    pub addresses: u32,
    pub mail: Arc<Mail>,
}

/// What a process has opened before it knows the others.
struct Opened {
    net: Net,
    listener: Option<Listener>,
    session: u64,
    /// Seed of the secret numbers that this node generates.
    seed: u64,
    key: u64,
    host: u64,
    channel: Option<MeetingPoint>,
    scheme: Scheme,
    broadcast: BroadcastAlgorithm,
    subnet: Box<dyn Subnet + Send>,
}

impl Opened {
    /// The channel by which it shares memory, if it may. Algorithms of messages between two count
    /// each process as a host of its own.
    fn channel(&self) -> Option<&MeetingPoint> {
        let channel = self.channel.as_ref();
        channel.filter(|_| self.broadcast == BroadcastAlgorithm::Multicast)
    }
}

/// The scheme of this name, adapted to short objects that a caller waits for.
fn scheme(name: &str) -> Result<Scheme, Error> {
    let mut scheme = name.parse::<Scheme>()?;
    if scheme.copied == Copied::Unsaid {
        scheme.copied = Copied::UpTo(COPY_MAX);
    }
    scheme.window = scheme.window.min(WINDOW);
    let detect = &mut scheme.detect;
    detect.reorder_max = REORDER_MAX.max(detect.reorder_min);
    Ok(scheme)
}

fn open(options: &Options, rank: u32) -> Result<Opened, Error> {
    options.net.check()?;
    let scheme = scheme(&options.scheme)?;
    let (_, near) = interface::choose(&options.net.interface, None)
        .map_err(|e| Error::io("choosing a network interface", e))?;
    let session = random()?;
    let waker = Waker::new().map_err(|e| Error::io("making a waker", e))?;
    let net = net::open(&options.network, &options.net, near, 1, session, &waker)?;
    let listener = match rank {
        0 => Some(Listener::open(near)?),
        _ => None,
    };
    // Messages between two need no multicast address.
    let subnet: Box<dyn Subnet + Send> = match options.broadcast {
        BroadcastAlgorithm::Multicast => {
            let subnet = options.subnet.open(net.port());
            let name = options.subnet.name();
            let text = || format!("opening the subnet '{name}' ({JOB_SUBNET})");
            subnet.map_err(|e| Error::io(text(), e))?
        }
        _ => Box::new(Igmp::new()),
    };
    Ok(Opened {
        subnet,
        net,
        listener,
        session,
        seed: random()?,
        key: random()?,
        host: host::host(options.host.as_deref()),
        // A process without a channel shares no memory.
        channel: MeetingPoint::open(random()?).ok(),
        scheme,
        broadcast: options.broadcast,
    })
}

/// Takes no part, and tells the others `why`. Returns the error that all get.
pub(crate) fn refuse(why: &str, bootstrap: &mut dyn Bootstrap) -> Error {
    let rank = bootstrap.rank();
    let mine: Result<EndpointDescriptor, String> = Err(why.into());
    let all: Result<Vec<EndpointDescriptor>, Error> = agree(bootstrap, &mine);
    let reason = short(why).into();
    all.err().unwrap_or(Error::CannotTakePart { rank, reason })
}

/// Opens the network and makes the processes known to each other.
pub(crate) fn wire_up<O: Divisible>(
    options: &Options,
    bootstrap: &mut dyn Bootstrap,
) -> Result<(Setting<O>, Peers), Error> {
    let (rank, size) = (bootstrap.rank(), bootstrap.size());
    let opened = open(options, rank);
    let mine = opened
        .as_ref()
        .map_err(Error::to_string)
        .map(|o| EndpointDescriptor {
            version: VERSION,
            session: o.session,
            address: o.net.address(),
            watch: o.listener.as_ref().map(Listener::address),
            datagram: o.net.caps().datagram_max as u32,
            host: o.channel().map(|waker| (o.host, waker.name())),
            key: o.key,
            scheme: host::number(options.scheme.as_bytes()),
            broadcast: host::number(options.broadcast.name().as_bytes()),
            groups: host::number(options.groups_name().as_bytes()),
        });
    let descriptors: Vec<EndpointDescriptor> = agree(bootstrap, &mine)?;
    let mut opened = opened?;
    let joined = join(options, &mut opened, &descriptors, (rank, size));
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
        .zip(&descriptors)
        .zip(&reached)
        .map(|((rank, descriptor), reached)| {
            let host = descriptor.host.map(|host| (host.0, reached.near.is_ok()));
            host.unwrap_or((rank, false))
        });
    let hosts = Hosts::new(&hosts.collect::<Vec<_>>());
    let unshared = unshared(&descriptors, &reached, rank);
    info!(
        rank,
        size,
        interface = ?opened.net.port(),
        address = %opened.net.address(),
        ?unshared,
        "wired up"
    );
    let near = near.ok().flatten();
    let mail = peers.mail().clone();
    let multicasts = options.broadcast == BroadcastAlgorithm::Multicast;
    let strategy = options.groups.filter(|_| multicasts);
    let addressing = strategy.map(|strategy| Addressing {
        strategy,
        addresses: options.addresses.unwrap_or(u32::MAX),
        mail,
    });
    let setting = Setting {
        unshared,
        addressing,
        ..setting(opened, &descriptors, (rank, size), hosts, near)
    };
    Ok((setting, peers))
}

/// Why this process shares no memory with others of its host, if there are any.
fn unshared(descriptors: &[EndpointDescriptor], reached: &[Reached], rank: u32) -> Option<String> {
    let host = |descriptor: &EndpointDescriptor| descriptor.host.map(|host| host.0);
    let here = host(descriptors.get(rank as usize)?)?;
    let mut all = (0..).zip(descriptors).zip(reached);
    all.find_map(|((other, descriptor), reached)| match &reached.near {
        Err(reason) if host(descriptor) == Some(here) => Some(format!("rank {other}: {reason}")),
        _ => None,
    })
}

/// Connects to rank 0, which watches all processes, and obtains the memory of this host if other
/// processes are on it.
fn join(
    options: &Options,
    opened: &mut Opened,
    descriptors: &[EndpointDescriptor],
    (rank, size): (u32, u32),
) -> Result<(Peers, Result<Option<SharedMemory>, String>), Error> {
    if descriptors.len() != size as usize || descriptors.iter().any(|c| c.version != VERSION) {
        let text = "the processes use different versions of Fabricast";
        return Err(Error::Disagreement(text.into()));
    }
    if descriptors
        .iter()
        .any(|c| c.scheme != descriptors[0].scheme)
    {
        let text = format!("the processes use different schemes ({JOB_SCHEME})");
        return Err(Error::Disagreement(text));
    }
    if descriptors
        .iter()
        .any(|c| c.broadcast != descriptors[0].broadcast)
    {
        let text =
            format!("the processes use different algorithms of broadcasts ({JOB_BROADCAST})");
        return Err(Error::Disagreement(text));
    }
    if descriptors
        .iter()
        .any(|c| c.groups != descriptors[0].groups)
    {
        let text = format!("the processes give groups addresses differently ({JOB_GROUPS})");
        return Err(Error::Disagreement(text));
    }
    let alike = |d: &EndpointDescriptor| d.address.is_like(&descriptors[0].address);
    if !descriptors.iter().all(alike) {
        let text = format!(
            "some processes use IPv4 and others IPv6; choose an interface address that all are \
             reached by ({INTERFACE})"
        );
        return Err(Error::Disagreement(text));
    }
    // This comes before the wait for rank 0: the process that creates the memory may have to wait
    // until the others take it.
    let said: Vec<_> = descriptors
        .iter()
        .map(EndpointDescriptor::local_rank)
        .collect();
    let near = LocalRanks::new(opened.channel.take(), &said, rank)
        .map(|ranks| ranks.meet(&options.net))
        .transpose();
    let session = descriptors[0].session;
    let peers = match (opened.listener.take(), descriptors[0].watch) {
        (Some(listener), _) => listener.accept(session, size)?,
        (None, Some(address)) => Peers::connect(address, session, rank)?,
        (None, None) => return Err(Error::Disagreement("rank 0 does not listen".into())),
    };
    Ok((peers, near))
}

/// What the engine begins with, except that `unshared` is `None`.
fn setting<O: Divisible>(
    opened: Opened,
    descriptors: &[EndpointDescriptor],
    (rank, size): (u32, u32),
    hosts: Hosts,
    near: Option<SharedMemory>,
) -> Setting<O> {
    let session = descriptors[0].session;
    let Opened {
        mut net,
        scheme,
        seed,
        broadcast,
        ..
    } = opened;
    for (peer, descriptor) in (0..).zip(descriptors).filter(|&(peer, _)| peer != rank) {
        net.peer(NodeId(peer), &descriptor.address);
    }
    if !hears_itself(&hosts, descriptors, rank) {
        net.loop_back(false);
    }
    let datagram = descriptors.iter().map(|c| c.datagram).min().unwrap_or(0);
    let payload_size = datagram.saturating_sub(scheme.data_overhead() as u32);
    let payload_size = payload_size.min(limits::PAYLOAD_MAX);
    let config = Config {
        unexpected_max: HOLD,
        ..net::node_config(NodeId(rank), session, scheme, payload_size, &net)
    };
    let all: Vec<NodeId> = (0..size).map(NodeId).collect();
    let local_ranks = hosts.local_ranks(NodeId(rank), &all);
    let near = near.filter(|_| local_ranks.len() > 1);
    let near = near.map(|shm| intra_node::driver(shm, NodeId(rank), (session, seed), &local_ranks));
    let far = Driver::new(Node::new(config, seed), net);
    Setting {
        networks: Networks { far, near },
        hosts,
        rank: NodeId(rank),
        size,
        payload_size: [payload_size, intra_node::PAYLOAD],
        addresses: addresses(session, descriptors[0].address),
        subnet: opened.subnet,
        addressing: None,
        broadcast,
        unshared: None,
    }
}

/// Whether multicast loopback is needed: a process on this host, or at this address, shares no
/// memory with this process and must receive its multicasts. Otherwise this process would be the
/// only one on this host to receive them.
fn hears_itself(hosts: &Hosts, descriptors: &[EndpointDescriptor], rank: u32) -> bool {
    let own = &descriptors[rank as usize];
    let host = |descriptor: &EndpointDescriptor| descriptor.host.map(|(host, _)| host);
    let near = |descriptor: &EndpointDescriptor| {
        host(descriptor).is_some() && host(descriptor) == host(own)
    };
    let others = (0..)
        .zip(descriptors)
        .filter(|(_, descriptor)| near(descriptor) || descriptor.address.shares_host(&own.address));
    let mut others = others.filter(|&(other, _)| !hosts.share(NodeId(rank), NodeId(other)));
    others.next().is_some()
}

/// The addresses of a job's groups, of the kind that the network of `node` has: one random block,
/// in a random order. Two jobs have all or none in common: an InfiniBand subnet knows no ports, and
/// where two jobs draw single addresses, one in five pairs would have some in common.
fn addresses(session: u64, node: NodeAddress) -> [GroupAddress; ADDRESSES_MAX] {
    const { assert!(ADDRESSES_MAX == 128) };
    let word = |x, y| u16::from_be_bytes([x, y]);
    let [a, b, _, _, e, f, g, h] = session.to_be_bytes();
    std::array::from_fn(|i| {
        // Steps of an odd number meet each number of the block once.
        let place = word(g, h).wrapping_add((word(e, f) | 1).wrapping_mul(i as u16));
        let number = word(a, b) & !127 | place & 127;
        match node {
            NodeAddress::Ip(ip) => GroupAddress::Ip(multicast(session, number, ip.is_ipv4())),
            NodeAddress::Number(_) => GroupAddress::Number(number.into()),
        }
    })
}

/// An IP multicast address of local scope, at the job's port.
fn multicast(session: u64, number: u16, v4: bool) -> SocketAddr {
    let [a, b, c, d, e, f, _, _] = session.to_be_bytes();
    let word = |x, y| u16::from_be_bytes([x, y]);
    // The port lies below the range from which systems take the ports of outgoing connections.
    let port = 16_384 + (word(e, f) & 0x3fff);
    let ip: IpAddr = match v4 {
        true => {
            let [high, low] = number.to_be_bytes();
            Ipv4Addr::new(239, 255, high, low).into()
        }
        false => Ipv6Addr::new(0xff15, 0, 0, 0, 0, word(c, d), word(a, b), number).into(),
    };
    (ip, port).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::NetOptions;
    use crate::interface::Interface;

    #[test]
    fn a_lost_packet_is_noticed_soon_whatever_was_late_before() {
        for name in ["auto", "nack"] {
            let scheme = scheme(name).unwrap();
            assert!(scheme.detect.reorder_max <= REORDER_MAX.max(scheme.detect.reorder_min));
            assert_eq!(
                (scheme.copied, scheme.window),
                (Copied::UpTo(COPY_MAX), WINDOW)
            );
        }
        assert!(matches!(scheme("fast"), Err(Error::Scheme(_))));
    }

    #[test]
    fn the_papers_schemes_have_their_own_window_and_copy_rule() {
        let of = |name| {
            let scheme = scheme(name).unwrap();
            (scheme.window, scheme.copied)
        };
        assert_eq!(of("window"), (64, Copied::IntoWindow));
        assert_eq!(of("coroot(2)"), (64, Copied::IntoWindow));
        assert_eq!(of("tree(2)"), (64, Copied::IntoWindow));
        assert_eq!(of("window+copied(100)"), (64, Copied::UpTo(100)));
        assert_eq!(of("channels(8)"), (256, Copied::UpTo(16 << 10)));
        assert_eq!(of("basic").1, Copied::Never);
    }

    /// Every datagram contains the session. It must not reveal the numbers with which a node probes
    /// others.
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
        let at = |last, port| NodeAddress::from((IpAddr::from([10, 0, 0, last]), port));
        let descriptor = |last: u8| EndpointDescriptor {
            version: VERSION,
            session: 1,
            address: at(last, 1000 + u16::from(last)),
            watch: None,
            datagram: 1472,
            host: Some((u64::from(last), 1)),
            key: 1,
            scheme: 1,
            broadcast: 1,
            groups: 0,
        };
        let mut descriptors = [1, 2, 2, 3, 3].map(descriptor);
        let hosts = Hosts::new(&[(1, true), (2, true), (2, true), (3, false), (4, true)]);
        let all = [0, 1, 2, 3, 4].map(|rank| hears_itself(&hosts, &descriptors, rank));
        assert_eq!(all, [false, false, false, true, true]);
        // The process is at another address of the same host; then on a host that has no name.
        descriptors[4].address = at(4, 1);
        assert!(hears_itself(&hosts, &descriptors, 3));
        descriptors[4].host = None;
        assert!(!hears_itself(&hosts, &descriptors, 3));
        descriptors[4].address = descriptors[3].address;
        assert!(hears_itself(&hosts, &descriptors, 3));
    }

    #[test]
    fn jobs_have_all_groups_in_common_or_none() {
        let node = NodeAddress::from((IpAddr::from([10, 0, 0, 1]), 1));
        let mut rng = fabricast_proto::rng::Rng::new(1);
        let mut job = || {
            let all = addresses(rng.bits(), node).map(|at| at.ip());
            std::collections::BTreeSet::from(all)
        };
        let jobs: Vec<_> = (0..200).map(|_| job()).collect();
        let pairs = jobs.iter().enumerate();
        let pairs = pairs.flat_map(|(i, a)| jobs[..i].iter().map(move |b| (a, b)));
        let common = pairs.map(|(a, b)| a.intersection(b).count());
        let common: Vec<_> = common.filter(|&common| common > 0).collect();
        assert!(common.iter().all(|&common| common == ADDRESSES_MAX));
        // About one in 512 of 19 900 pairs.
        assert!(common.len() < 100, "{}", common.len());
    }

    #[test]
    fn the_groups_of_a_job_are_different_and_of_local_scope() {
        for session in [0, u64::MAX, 0x1234_5678_9abc_def0] {
            for node in ["10.0.0.1:1", "[fd00::1]:1"] {
                let node: SocketAddr = node.parse().unwrap();
                let all = addresses(session, node.into());
                for (i, a) in all.iter().enumerate() {
                    let ip = a.ip().unwrap();
                    assert!(ip.ip().is_multicast() && ip.port() >= 16_384);
                    assert!(!all[..i].contains(a));
                }
            }
        }
    }
}
