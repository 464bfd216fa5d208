//! Where the sender listens, and where it announces itself.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use crate::bootstrap::announce::{Announcement, Announcer};
use crate::error::Error;
use crate::interface::{self, Family, Interface};

/// The addresses to listen at, the best first; an empty list means all addresses. On a named
/// interface the sender listens at all its addresses, because receivers may know any of them. With
/// a group, only addresses of the group's family count, because receivers of the other family could
/// not take part.
pub fn places(choice: &Interface, family: Option<Family>) -> Result<Vec<SocketAddr>, Error> {
    let usage = |e: std::io::Error| Error::Usage(e.to_string());
    let (device, address) = match (choice, family) {
        (Interface::Auto, None) => return Ok(Vec::new()),
        (Interface::Auto, Some(Family::V4)) => {
            return Ok(vec![(Ipv4Addr::UNSPECIFIED, 0).into()]);
        }
        (Interface::Auto, Some(Family::V6)) => {
            return Ok(vec![(Ipv6Addr::UNSPECIFIED, 0).into()]);
        }
        (chosen, family) => interface::choose(chosen, family).map_err(usage)?,
    };
    let mut addresses = vec![address];
    match choice {
        Interface::Name(_) => addresses.extend(device.addresses.iter().filter(|a| **a != address)),
        Interface::Address(given) if *given != address => {
            return Err(Error::Usage(format!(
                "the interface's address {given} and the group are of different families"
            )));
        }
        _ => {}
    }
    addresses.retain(|a| family.is_none_or(|f| Family::of(*a) == f));
    let place = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => SocketAddr::from((ip, 0)),
        IpAddr::V6(ip) if ip.is_unicast_link_local() => {
            SocketAddrV6::new(ip, 0, 0, device.index).into()
        }
        IpAddr::V6(ip) => SocketAddr::from((ip, 0)),
    };
    Ok(addresses.into_iter().map(place).collect())
}

/// Announces where receivers can connect; the error says why that is impossible.
pub fn announce(
    choice: &Interface,
    places: &[SocketAddr],
    what: &Announcement,
) -> Result<Announcer, String> {
    if !places.is_empty() && !places.iter().any(SocketAddr::is_ipv4) {
        return Err("announcements go by IPv4, and this transfer does not".into());
    }
    let chosen = interface::choose(choice, Some(Family::V4)).map_err(|e| e.to_string())?;
    match chosen.1 {
        IpAddr::V4(address) => {
            Announcer::new(address, chosen.0.index, what).map_err(|e| e.to_string())
        }
        IpAddr::V6(_) => Err("there is no IPv4 address".into()),
    }
}
