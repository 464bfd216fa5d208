//! The network interfaces of this host, and how one of them is chosen.

pub(crate) mod sys;

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;

pub(crate) use self::sys::stay_on_link;

/// How an interface is chosen.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Interface {
    /// The interface by which the kernel would send a multicast, else the only real one that is up.
    #[default]
    Auto,
    /// The interface with this name.
    Name(String),
    /// The interface that has this address (for an address of the loopback network: the loopback).
    Address(IpAddr),
    /// The interface by which this host is reached.
    Toward(IpAddr),
}

impl std::str::FromStr for Interface {
    type Err = std::convert::Infallible;

    /// Parses what a user writes: `auto`, an address, or a name.
    fn from_str(s: &str) -> Result<Interface, Self::Err> {
        Ok(match (s, s.parse()) {
            ("auto", _) => Interface::Auto,
            (_, Ok(address)) => Interface::Address(address),
            (name, Err(_)) => Interface::Name(name.into()),
        })
    }
}

/// IPv4 or IPv6.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// The family of an address.
    pub fn of(address: IpAddr) -> Family {
        if address.is_ipv4() {
            Family::V4
        } else {
            Family::V6
        }
    }

    /// Bytes of IP and UDP header before a datagram.
    pub fn headers(self) -> usize {
        match self {
            Family::V4 => 20 + 8,
            Family::V6 => 40 + 8,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        })
    }
}

/// An interface of this host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Its number in the kernel.
    pub index: u32,
    /// Whether it is up.
    pub up: bool,
    /// Whether it is the loopback.
    pub loopback: bool,
    /// Whether it reports that it can multicast (the loopback does not report so, and can).
    pub multicast: bool,
    /// Largest packet with its IP header, in bytes; 0 if the kernel did not say.
    pub mtu: usize,
    /// Its addresses, in the kernel's order.
    pub addresses: Vec<IpAddr>,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (", self.name)?;
        for address in &self.addresses {
            write!(f, "{address}, ")?;
        }
        let state = if self.up { "up" } else { "down" };
        write!(f, "MTU {}, {state})", self.mtu)
    }
}

/// All interfaces of this host.
pub fn devices() -> io::Result<Vec<Device>> {
    let entries = sys::interfaces().map_err(|e| because(e, "cannot list network interfaces"))?;
    // Any socket serves; a host without IPv4 may still have IPv6.
    let probe = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))
        .or_else(|_| UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)))
        .map_err(|e| because(e, "cannot open a UDP socket"))?;
    let mut devices: Vec<Device> = Vec::new();
    for entry in entries {
        let known = devices.iter().position(|d| d.name == entry.name);
        let at = known.unwrap_or_else(|| {
            let has = |flag: i32| entry.flags & flag as u32 != 0;
            devices.push(Device {
                index: entry.index,
                up: has(libc::IFF_UP),
                loopback: has(libc::IFF_LOOPBACK),
                multicast: has(libc::IFF_MULTICAST),
                mtu: sys::mtu(probe.as_fd(), &entry.name).unwrap_or(0),
                addresses: Vec::new(),
                name: entry.name.clone(),
            });
            devices.len() - 1
        });
        devices[at].addresses.extend(entry.address);
    }
    Ok(devices)
}

/// The interface that `choice` selects, and its address in `family` (by default that of the address
/// in `choice`, else IPv4 if the interface has such an address, else IPv6). The error lists the
/// interfaces of this host.
pub fn choose(choice: &Interface, family: Option<Family>) -> io::Result<(Device, IpAddr)> {
    let devices = devices()?;
    let wrong = |what: String| {
        let list: Vec<String> = devices.iter().map(Device::to_string).collect();
        let text = format!("{what}; choose one of: {}", list.join("; "));
        Err(io::Error::new(io::ErrorKind::NotFound, text))
    };
    let (device, wish) = match choice {
        Interface::Name(name) => match devices.iter().find(|d| d.name == *name) {
            Some(device) => (device, None),
            None => return wrong(format!("there is no interface {name}")),
        },
        Interface::Address(address) => match holder(&devices, *address) {
            Some(device) => (device, Some(*address)),
            None => return wrong(format!("no interface has the address {address}")),
        },
        Interface::Toward(peer) => match source_for(*peer) {
            Ok(source) => match holder(&devices, source) {
                Some(device) => (device, Some(source)),
                None => return wrong(format!("no interface has {source}, the way to {peer}")),
            },
            Err(e) => return wrong(format!("there is no route to {peer} ({e})")),
        },
        Interface::Auto => match auto(&devices, family) {
            Some((device, source)) => (device, source),
            None => return wrong("no interface is the obvious one".into()),
        },
    };
    if !device.up {
        let name = &device.name;
        return wrong(format!(
            "interface {name} is down (`ip link set {name} up` brings it up)"
        ));
    }
    let family = family.or(wish.map(Family::of));
    if let (Some(wish), Some(family)) = (wish, family)
        && Family::of(wish) == family
    {
        return Ok((device.clone(), wish));
    }
    let address = match family {
        Some(family) => address_in(device, family),
        None => address_in(device, Family::V4).or_else(|| address_in(device, Family::V6)),
    };
    match (address, family) {
        (Some(address), _) => Ok((device.clone(), address)),
        (None, Some(f)) => wrong(format!("interface {} has no {f} address", device.name)),
        (None, None) => wrong(format!("interface {} has no address", device.name)),
    }
}

fn holder(devices: &[Device], address: IpAddr) -> Option<&Device> {
    let named = devices.iter().find(|d| d.addresses.contains(&address));
    named.or_else(|| devices.iter().find(|d| d.loopback && address.is_loopback()))
}

fn auto(devices: &[Device], family: Option<Family>) -> Option<(&Device, Option<IpAddr>)> {
    let v4 = Ipv4Addr::new(239, 255, 0, 1).into();
    let v6 = Ipv6Addr::new(0xff0e, 0, 0, 0, 0, 0, 0, 1).into();
    let probes: [IpAddr; 2] = [v4, v6];
    for probe in probes {
        let of = Family::of(probe);
        if family.is_some_and(|f| f != of) {
            continue;
        }
        if let Ok(source) = source_for(probe)
            && let Some(device) = holder(devices, source)
            && !device.loopback
        {
            return Some((device, Some(source)));
        }
        let real = |d: &&Device| d.up && d.multicast && !d.loopback;
        let mut usable = devices
            .iter()
            .filter(real)
            .filter_map(|d| Some((d, address_in(d, of)?)));
        if let (Some((only, address)), None) = (usable.next(), usable.next()) {
            return Some((only, Some(address)));
        }
    }
    None
}

/// The address from which the kernel would send to `peer`. Nothing is sent.
fn source_for(peer: IpAddr) -> io::Result<IpAddr> {
    let any: IpAddr = match peer {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(SocketAddr::new(peer, 9))?;
    Ok(socket.local_addr()?.ip())
}

/// The device's address in `family`. An address that other links can use comes before one that only
/// this link knows.
fn address_in(device: &Device, family: Family) -> Option<IpAddr> {
    let of = |a: &&IpAddr| Family::of(**a) == family;
    let link_local = |a: &IpAddr| match a {
        IpAddr::V4(a) => a.is_link_local(),
        IpAddr::V6(a) => a.is_unicast_link_local(),
    };
    let mut addresses: Vec<IpAddr> = device.addresses.iter().filter(of).copied().collect();
    addresses.sort_by_key(link_local);
    addresses.first().copied()
}

/// The same error with an explanation before it.
pub(crate) fn because(error: io::Error, what: impl fmt::Display) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}
