//! Opens the network and configures a node, alike for everything that drives one.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use fabricast_proto::{Config, NodeId, Scheme, Session, Time};

use crate::config::{DATAGRAM_MIN, NetOptions, NetworkKind};
use crate::error::NetworkError;
use crate::interface::{self, Family, Interface};
use crate::transport::delayed::{Delayed, Delays};
use crate::transport::fault::{Fault, Faults};
use crate::transport::link::Link;
use crate::transport::shm::{FdChannel, Meeting, Shm};
use crate::transport::udp::{Udp, UdpConfig};
use crate::transport::{AnyTransport, Transport};
use crate::waker::Waker;

/// The network between hosts ([`NetworkKind`]), with delays and faults injected for tests and the
/// emulated link of the demo. A datagram that is dropped on purpose has used the link.
pub(crate) type Net = Link<Fault<Delayed<AnyTransport>>>;
/// The memory that the processes of a host share, with delays injected for tests.
pub(crate) type SharedMemory = Delayed<Shm>;

/// The only clock of whatever drives a node.
#[derive(Clone, Copy)]
pub(crate) struct Clock(pub Instant);

impl Clock {
    pub fn now(&self) -> Time {
        Time(self.0.elapsed().as_nanos() as u64)
    }
}

/// Opens the network by which `near` is reached, unless told otherwise. `waker` ends its waits.
pub(crate) fn open(
    network: &NetworkKind,
    options: &NetOptions,
    near: IpAddr,
    ttl: u8,
    seed: u64,
    waker: &Waker,
) -> Result<Net, NetworkError> {
    let opened = match network {
        NetworkKind::Udp => AnyTransport::new(udp(options, near, ttl, waker)?),
        NetworkKind::Other(other) => other
            .open(waker)
            .map_err(|e| NetworkError::io("opening the network", e))?,
    };
    let caps = opened.caps();
    let fits = caps.datagram_max;
    if fits < DATAGRAM_MIN {
        return Err(NetworkError::Options(format!(
            "port {} takes datagrams of {fits} bytes, and {DATAGRAM_MIN} are needed",
            opened.port()
        )));
    }
    let faults = Faults {
        corrupt: options.inject_corruption,
        ..Faults::loss(seed, options.inject_loss)
    };
    let delayed = Delayed::new(opened, delays(options, seed));
    let faulty = Fault::new(delayed, faults);
    Ok(Link::new(faulty, options.emulate_link, caps.overhead))
}

/// Opens UDP.
fn udp(options: &NetOptions, near: IpAddr, ttl: u8, waker: &Waker) -> Result<Udp, NetworkError> {
    let config = UdpConfig {
        interface: match &options.interface {
            Interface::Auto => Interface::Address(near),
            // Of the interface's addresses, the one by which the other nodes know this one.
            Interface::Name(name) if has(name, near) => Interface::Address(near),
            chosen => chosen.clone(),
        },
        family: Some(Family::of(near)),
        group_ttl: ttl,
        datagram: options.datagram,
        offload: options.offload,
        waker: Some(waker.clone()),
        ..UdpConfig::default()
    };
    Udp::new(&config).map_err(|e| NetworkError::io("opening the network", e))
}

/// How late datagrams are on purpose.
fn delays(options: &NetOptions, seed: u64) -> Option<Delays> {
    match options.inject_delay {
        Some(longest) => Some(Delays { seed, longest }),
        None if cfg!(test) => Delays::in_tests(seed),
        None => None,
    }
}

/// The end by which a process meets the other processes of its host.
pub(crate) struct MeetingPoint(FdChannel);

impl MeetingPoint {
    /// Opens the end with this name, which no other process of the host may have.
    pub fn open(name: u64) -> std::io::Result<MeetingPoint> {
        Ok(MeetingPoint(FdChannel::hang(name)?))
    }

    /// The name by which the other processes reach it.
    pub fn name(&self) -> u64 {
        self.0.name()
    }

    /// Creates the memory that the processes of a host share, or takes it over from the first
    /// process. `names` are those of all processes' ends, in the order of the processes, and `me`
    /// is the index of this process there. `key` is a number that only these processes know.
    pub fn share_memory(
        self,
        options: &NetOptions,
        names: &[u64],
        me: usize,
        key: u64,
    ) -> std::io::Result<SharedMemory> {
        let wakers = names;
        let meeting = Meeting { wakers, me, key };
        let shm = match me {
            0 => meeting.create(self.0),
            _ => meeting.join(self.0),
        };
        Ok(Delayed::new(shm?, delays(options, key ^ me as u64)))
    }
}

fn has(name: &str, address: std::net::IpAddr) -> bool {
    let devices = interface::devices().unwrap_or_default();
    let mut named = devices.iter().filter(|d| d.name == name);
    named.any(|d| d.addresses.contains(&address) || d.loopback && address.is_loopback())
}

/// The configuration of a node of this session, over a transport. A node holds packets of
/// operations that it has not posted yet as far as the window reaches. So a sender never goes on
/// without a receiver that posts a moment later than others (spec 2.6).
pub(crate) fn node_config(
    node: NodeId,
    session: u64,
    scheme: Scheme,
    payload_size: u32,
    net: &impl Transport,
) -> Config {
    Config {
        node,
        session: Session(session),
        unexpected_max: scheme.window,
        scheme,
        backlog: net.backlog(payload_size).max(16),
        rate: None,
        patience: Duration::from_secs(10),
    }
}

/// 64 bits that nobody can guess.
pub(crate) fn random() -> Result<u64, NetworkError> {
    let mut bits = [0; 8];
    rustix::rand::getrandom(&mut bits, rustix::rand::GetRandomFlags::empty())
        .map_err(|e| NetworkError::io("drawing a random number", e))?;
    Ok(u64::from_ne_bytes(bits))
}
