//! Opens the network and configures a node, alike for everything that drives one.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use fabricast_proto::{Config, NodeId, Scheme, Session, Time};

use crate::config::{DATAGRAM_MIN, NetOptions};
use crate::error::NetworkError;
use crate::setting::INTERFACE;
use crate::transport::fault::{Fault, Faults};
use crate::transport::link::Link;
use crate::transport::udp::{self, Family, Interface, Udp, UdpConfig};
use crate::transport::{Caps, Transport};

/// UDP, faults injected for tests, and the emulated link of the demo. A datagram that is dropped on
/// purpose has used the link.
pub(crate) type Net = Link<Fault<Udp>>;

/// The only clock of whatever drives a node.
#[derive(Clone, Copy)]
pub(crate) struct Clock(pub Instant);

impl Clock {
    pub fn now(&self) -> Time {
        Time(self.0.elapsed().as_nanos() as u64)
    }
}

/// Opens UDP by which `near` is reached, unless told otherwise.
pub(crate) fn open(
    options: &NetOptions,
    near: IpAddr,
    ttl: u8,
    seed: u64,
) -> Result<Net, NetworkError> {
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
        ..UdpConfig::default()
    };
    let udp = Udp::new(&config).map_err(|e| NetworkError::io("opening the network", e))?;
    let (device, fits) = (udp.device(), udp.caps().datagram_max);
    if fits < DATAGRAM_MIN {
        return Err(NetworkError::Options(format!(
            "interface {} takes datagrams of {fits} bytes and {DATAGRAM_MIN} are needed: raise \
             its MTU (now {}), or choose another one with {INTERFACE}",
            device.name, device.mtu
        )));
    }
    let faults = Faults {
        corrupt: options.inject_corruption,
        ..Faults::loss(seed, options.inject_loss)
    };
    let faulty = Fault::new(udp, faults);
    Ok(Link::new(faulty, options.emulate_link, udp::WIRE_OVERHEAD))
}

fn has(name: &str, address: std::net::IpAddr) -> bool {
    let devices = udp::devices().unwrap_or_default();
    let mut named = devices.iter().filter(|d| d.name == name);
    named.any(|d| d.addresses.contains(&address) || d.loopback && address.is_loopback())
}

/// The configuration of a node of this session, over a transport with these capabilities.
pub(crate) fn node_config(
    node: NodeId,
    session: u64,
    scheme: Scheme,
    payload_size: u32,
    caps: Caps,
) -> Config {
    Config {
        node,
        session: Session(session),
        scheme,
        unexpected_max: 0,
        // The kernel charges a packet for its whole buffer, up to twice its length, and for its
        // descriptor.
        backlog: (caps.receive_buffer / (2 * payload_size as usize + 512)).max(16) as u32,
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
