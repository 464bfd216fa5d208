//! The TCP sockets at which a server listens.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use socket2::{Domain, Protocol, Socket, Type};

/// Listens on one port at these addresses, or at all addresses (IPv4 and IPv6) if there are none.
pub fn listen(addresses: &[SocketAddr], port: u16) -> io::Result<Vec<TcpListener>> {
    match addresses {
        [] => {
            let both = listener((Ipv6Addr::UNSPECIFIED, port).into(), true);
            let one = both.or_else(|_| listener((Ipv4Addr::UNSPECIFIED, port).into(), false));
            Ok(vec![one?])
        }
        some => listeners(some, port),
    }
}

/// Opens one listener for each address. If `port` is 0, all get the port that the first one got.
fn listeners(addresses: &[SocketAddr], port: u16) -> io::Result<Vec<TcpListener>> {
    const TRIES: usize = 16;
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for _ in 0..TRIES {
        match listeners_once(addresses, port) {
            Ok(listeners) => return Ok(listeners),
            // A port that is free at one address may be taken at the next.
            Err(e) if port == 0 && e.kind() == io::ErrorKind::AddrInUse => last = e,
            Err(e) => return Err(e),
        }
    }
    Err(last)
}

fn listeners_once(addresses: &[SocketAddr], mut port: u16) -> io::Result<Vec<TcpListener>> {
    let mut listeners = Vec::new();
    let mut missing = None;
    for address in addresses {
        let mut address = *address;
        address.set_port(port);
        match listener(address, false) {
            Ok(listener) => {
                port = listener.local_addr()?.port();
                listeners.push(listener);
            }
            // The address is still being acquired, or has gone this moment.
            Err(e) if e.kind() == io::ErrorKind::AddrNotAvailable => missing = Some(e),
            Err(e) => return Err(e),
        }
    }
    match (listeners.is_empty(), missing) {
        (true, Some(e)) => Err(e),
        (true, None) => Err(io::ErrorKind::AddrNotAvailable.into()),
        (false, _) => Ok(listeners),
    }
}

/// Listens at an address. With `both`, an unspecified IPv6 address also takes IPv4 connections.
fn listener(address: SocketAddr, both: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    if address.is_ipv6() {
        socket.set_only_v6(!both)?;
    }
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(1024)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}
