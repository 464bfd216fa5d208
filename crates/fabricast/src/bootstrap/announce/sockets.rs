//! Sockets that hear one group, and waiting for two of them.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use socket2::{Domain, InterfaceIndexOrAddress, Protocol, Socket, Type};

use super::announcement::PORT;

/// Opens a socket that hears this group on the interfaces with these indices, and nothing else.
/// IP_MULTICAST_ALL is off: otherwise the socket would also hear a group that another process has
/// joined on another interface.
pub fn listener(group: Ipv4Addr, interfaces: &[u32]) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_reuse_address(true)?;
    socket.set_multicast_all_v4(false)?;
    socket.bind(&SocketAddrV4::new(group, PORT).into())?;
    let mut joined = Err(io::Error::new(
        io::ErrorKind::NotFound,
        "no interface can multicast",
    ));
    for &index in interfaces {
        let on = InterfaceIndexOrAddress::Index(index);
        let this = socket.join_multicast_v4_n(&group, &on);
        joined = joined.or(this);
    }
    joined?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Waits for at most `pause` until one of these sockets, as far as there are any, can be read.
/// Returns which of them can.
pub fn wait(
    first: Option<impl AsFd>,
    second: Option<impl AsFd>,
    pause: Duration,
) -> io::Result<[bool; 2]> {
    let first = first.as_ref().map(AsFd::as_fd);
    let second = second.as_ref().map(AsFd::as_fd);
    let both = [first, second];
    let mut fds: Vec<_> = both
        .iter()
        .flatten()
        .map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN))
        .collect();
    let pause = Timespec {
        tv_sec: pause.as_secs() as i64,
        tv_nsec: pause.subsec_nanos().into(),
    };
    match poll(&mut fds, Some(&pause)) {
        Ok(_) => {}
        Err(Errno::INTR) => return Ok([false; 2]),
        Err(e) => return Err(e.into()),
    }
    let mut ready = fds.iter().map(|fd| !fd.revents().is_empty());
    Ok(both.map(|fd| fd.is_some() && ready.next() == Some(true)))
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use rustix::net::sockopt::set_ip_multicast_if_with_ifindex;

    use super::*;
    use crate::interface::{Device, devices};

    /// Finding 12: a listener also heard what came in by an interface that another process listens
    /// on.
    #[test]
    fn a_listener_hears_its_own_interface_alone() {
        const HERE: Ipv4Addr = Ipv4Addr::new(239, 255, 77, 9); // no other test uses this group
        let any = &Ipv4Addr::UNSPECIFIED;
        let all = devices().unwrap();
        let find = |loopback| {
            let usable = |d: &&Device| d.up && d.loopback == loopback;
            let multicasts = |d: &&Device| loopback || d.multicast;
            let has_v4 = |d: &&Device| d.addresses.iter().any(IpAddr::is_ipv4);
            let all = all.iter().filter(usable).filter(multicasts);
            all.filter(has_v4).map(|d| d.index).next()
        };
        let (Some(home), Some(wire)) = (find(true), find(false)) else {
            eprintln!("skipped: this machine has no second interface with an IPv4 address");
            return;
        };
        let [mut at_home, mut on_wire] = [home, wire].map(|i| listener(HERE, &[i]).unwrap());
        for (interface, text) in [(home, "at home"), (wire, "on the wire")] {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
            set_ip_multicast_if_with_ifindex(&socket, any, any, interface).unwrap();
            // The datagram does not leave this host.
            socket.set_multicast_ttl_v4(0).unwrap();
            socket.send_to(text.as_bytes(), (HERE, PORT)).unwrap();
        }
        let heard = |socket: &mut UdpSocket| {
            let (mut bytes, mut texts) = ([0; 100], Vec::new());
            wait(
                Some(socket.as_fd()),
                None::<UdpSocket>.as_ref(),
                Duration::from_secs(5),
            )
            .unwrap();
            while let Ok(len) = socket.recv(&mut bytes) {
                texts.push(String::from_utf8_lossy(&bytes[..len]).into_owned());
            }
            texts
        };
        assert_eq!(heard(&mut on_wire), ["on the wire"]);
        assert_eq!(heard(&mut at_home), ["at home"]);
    }
}
