//! The transport's sockets, and the options that each of them has.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use socket2::{Domain, Protocol, Socket, Type};

use super::sys;
use crate::transport::interface::because;

/// The address with this interface's scope, if it is an IPv6 address whose meaning depends on the
/// interface.
pub fn scoped(address: SocketAddr, index: u32) -> SocketAddr {
    match address {
        SocketAddr::V6(mut a)
            if a.scope_id() == 0 && (a.ip().is_multicast() || a.ip().is_unicast_link_local()) =>
        {
            a.set_scope_id(index);
            a.into()
        }
        _ => address,
    }
}

/// Opens a non-blocking datagram socket bound to `address`. Other processes may share a group's.
pub fn open(address: SocketAddr, what: &str) -> io::Result<Socket> {
    let open = || {
        let kind = Type::DGRAM.nonblocking().cloexec();
        let socket = Socket::new(Domain::for_address(address), kind, Some(Protocol::UDP))?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        if address.ip().is_multicast() {
            socket.set_reuse_address(true)?;
        }
        socket.bind(&address.into())?;
        Ok(socket)
    };
    open().map_err(|e: io::Error| {
        let hint = match e.raw_os_error() {
            Some(libc::EADDRINUSE) => ": another program has the port; choose another one",
            Some(libc::EAFNOSUPPORT) => ": this kernel lacks the address family",
            Some(libc::EADDRNOTAVAIL) => ": no interface has the address",
            Some(libc::EMFILE) => ": too many open files; see `ulimit -n`",
            _ => "",
        };
        because(e, format!("cannot open {what}, bound to {address}{hint}"))
    })
}

/// Asks for a receive buffer, with privilege if this process has it. Returns the size that
/// `getsockopt` then reports.
pub fn set_up_receiving(socket: &Socket, bytes: usize) -> io::Result<usize> {
    let asked = i32::try_from(bytes).unwrap_or(i32::MAX / 2);
    let forced = sys::set_int(
        socket.as_fd(),
        libc::SOL_SOCKET,
        libc::SO_RCVBUFFORCE,
        asked,
    );
    if forced.is_err() {
        let set = socket.set_recv_buffer_size(asked as usize);
        set.map_err(|e| because(e, format!("cannot set SO_RCVBUF to {bytes}")))?;
    }
    let size = socket.recv_buffer_size();
    size.map_err(|e| because(e, "cannot read SO_RCVBUF back"))
}

/// Asks for the time at which the kernel took each datagram from the network. With it, a receiver
/// that was not running does not look like a queue in the network. Without it, the time of reading
/// must do.
pub fn set_stamps(socket: &Socket) {
    let _ = sys::set_int(socket.as_fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1);
}

/// Makes the kernel join datagrams that it hands up.
pub fn set_gro(socket: &Socket) -> io::Result<()> {
    sys::set_int(socket.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 1)
}
