//! One file from one host to many, from the rendezvous to the report.
//!
//! [`send`] and [`recv`] block; each drives one [`crate::driver::Driver`] on the calling thread and
//! tells what happens through a callback. Disk and control connections have threads of their own
//! ([`crate::object`], [`crate::bootstrap`]), which ring when they have something.
//!
//! ```text
//!   send:  gather ── start ── prove paths ── stream file, then hash list ── all verified
//!   recv:  connect ── join, post ── receive ── prove hashes (mend) ── fsync, rename ── verified
//! ```

mod events;
mod finding;
mod gather;
mod plan;
mod receiving;
mod roster;
mod sending;

pub use events::{
    ReceiverReport, RecvEvent, RecvReport, SendEvent, SendReport, State, Traffic, WIRE_OVERHEAD,
};
pub use receiving::recv;
pub use sending::send;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fabricast_proto::{Config, GroupId, NodeId, Scheme, Session, Time};

use crate::config::{DATAGRAM_MIN, NetOptions};
use crate::driver::Driver;
use crate::error::Error;
use crate::object::FileObject;
use crate::transport::fault::{Fault, Faults};
use crate::transport::udp::{self, Family, Interface, Udp, UdpConfig};
use crate::transport::{Caps, Transport};

/// The sender's number.
const ROOT: NodeId = NodeId(0);
/// The group of all.
const ALL: GroupId = GroupId(0);
/// How often the loops look at what only time changes.
const TICK: Duration = Duration::from_millis(100);

type Net = Fault<Udp>;
type FileDriver = Driver<Net, FileObject>;

/// The only clock of a transfer.
struct Clock(Instant);

impl Clock {
    fn now(&self) -> Time {
        Time(self.0.elapsed().as_nanos() as u64)
    }
}

/// Opens UDP where the control connection goes, unless told otherwise.
fn open_net(
    options: &NetOptions,
    near: std::net::IpAddr,
    ttl: u8,
    seed: u64,
) -> Result<Net, Error> {
    let config = UdpConfig {
        interface: match &options.interface {
            Interface::Auto => Interface::Address(near),
            // Of an interface's addresses, the one that the others know us by.
            Interface::Name(name) if has(name, near) => Interface::Address(near),
            chosen => chosen.clone(),
        },
        family: Some(Family::of(near)),
        group_ttl: ttl,
        datagram: options.datagram,
        offload: options.offload,
        ..UdpConfig::default()
    };
    let udp = Udp::new(&config).map_err(|e| Error::io("opening the network", e))?;
    let (device, fits) = (udp.device(), udp.caps().datagram_max);
    if fits < DATAGRAM_MIN {
        return Err(Error::Usage(format!(
            "interface {} takes datagrams of {fits} bytes and {DATAGRAM_MIN} are needed: raise \
             its MTU (now {}), or choose another one with --interface",
            device.name, device.mtu
        )));
    }
    let faults = Faults {
        corrupt: options.inject_corruption,
        ..Faults::loss(seed, options.inject_loss)
    };
    Ok(Fault::new(udp, faults))
}

fn has(name: &str, address: std::net::IpAddr) -> bool {
    let devices = udp::devices().unwrap_or_default();
    let mut named = devices.iter().filter(|d| d.name == name);
    named.any(|d| d.addresses.contains(&address) || d.loopback && address.is_loopback())
}

fn config(
    node: NodeId,
    session: u64,
    (mut scheme, window): (Scheme, u32),
    chunk: u32,
    caps: Caps,
) -> Config {
    // A file is placed in blocks, which must fit the window, whatever the scheme's own.
    scheme.window = window;
    Config {
        node,
        session: Session(session),
        scheme,
        hold: 0,
        // The kernel charges a packet for its whole buffer, up to twice its length, and for its
        // descriptor.
        backlog: (caps.receive_buffer / (2 * chunk as usize + 512)).max(16) as u32,
        rate: None,
        patience: Duration::from_secs(10),
    }
}

/// What the transport has noticed since it was last asked, in words.
fn notices(driver: &mut FileDriver) -> impl Iterator<Item = String> + '_ {
    std::iter::from_fn(|| {
        driver
            .transport()
            .inner_mut()
            .notice()
            .map(|n| n.to_string())
    })
}

fn random() -> Result<u64, Error> {
    let mut bits = [0; 8];
    rustix::rand::getrandom(&mut bits, rustix::rand::GetRandomFlags::empty())
        .map_err(|e| Error::io("drawing a random number", e))?;
    Ok(u64::from_ne_bytes(bits))
}

fn check(interrupt: &AtomicBool) -> Result<(), Error> {
    match interrupt.load(Ordering::Relaxed) {
        true => Err(Error::Interrupted),
        false => Ok(()),
    }
}

/// Waits for the network, the bell, the node's next deadline or the next tick.
fn rest(driver: &mut FileDriver, wake: Option<Time>, now: Time) -> Result<(), Error> {
    let timeout = wake.map_or(TICK, |at| at.since(now).min(TICK));
    driver
        .transport()
        .wait(Some(timeout))
        .map_err(|e| Error::io("waiting for the network", e))
}
