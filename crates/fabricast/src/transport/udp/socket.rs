//! The transport's sockets, and the options that each of them has.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;

use socket2::{Domain, Protocol, SockFilter, Socket, Type};

use crate::interface::because;
use crate::interface::sys::set_int;

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

/// What two addresses have in common that are the same. A node sends from the socket at which it
/// receives, which is bound to one address and port, multicasts too. (The scope of an IPv6 address
/// is this host's number of the interface, so it does not count.)
pub fn whole(address: SocketAddr) -> (IpAddr, u16) {
    (address.ip(), address.port())
}

/// A non-blocking datagram socket of the family of `address`, not bound yet.
fn new(address: SocketAddr) -> io::Result<Socket> {
    let kind = Type::DGRAM.nonblocking().cloexec();
    let socket = Socket::new(Domain::for_address(address), kind, Some(Protocol::UDP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    Ok(socket)
}

/// Opens a non-blocking datagram socket bound to `address`. Other processes may share a group's.
pub fn open(address: SocketAddr, what: &str) -> io::Result<Socket> {
    let open = || {
        let socket = new(address)?;
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

/// Opens a non-blocking socket that receives multicasts to the port of `address`, on the interface
/// with this index, and to addresses that it joins later. It receives nothing else. Other sockets
/// and processes may share the port.
///
/// The socket is bound to the wildcard address, so it would also receive unicasts and broadcasts to
/// the port, by any interface. A filter in the kernel drops these before they take room in the
/// receive buffer. The kernel counts them as dropped.
///
/// An error does not mean that the address cannot be received: a socket bound to it may work.
pub fn open_shared(address: SocketAddr, index: u32) -> io::Result<Socket> {
    let socket = new(address)?;
    socket.set_reuse_address(true)?;
    match address {
        SocketAddr::V4(_) => socket.set_multicast_all_v4(false)?,
        SocketAddr::V6(_) => {
            // Linux has this since 4.20.
            socket.set_multicast_all_v6(false)?;
            bind_to_interface(&socket, index)?;
        }
    }
    // No datagram may come in before.
    socket.attach_filter(&only_multicasts(address))?;
    socket.bind(&wildcard(address).into())?;
    Ok(socket)
}

/// Makes the socket receive by the interface with this index alone. Linux allows it without
/// privilege since 5.7.
///
/// IPv6 needs it, because the kernel does not compare the interface of a membership with that of a
/// datagram. IPv4 does not.
pub fn bind_to_interface(socket: &Socket, index: u32) -> io::Result<()> {
    let index = index as libc::c_int;
    let socket = socket.as_fd();
    set_int(socket, libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX, index)
}

/// The wildcard address of the family of `address`, with its port.
fn wildcard(address: SocketAddr) -> SocketAddr {
    let ip: IpAddr = match address {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(ip, address.port())
}

/// A filter for datagrams of the family of `address`. It accepts those whose destination is a
/// multicast address.
fn only_multicasts(address: SocketAddr) -> [SockFilter; 5] {
    use libc::{BPF_ABS, BPF_ALU, BPF_AND, BPF_B, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET};
    // Where the destination begins in the IP header, and the bits that its first byte has if it is
    // a multicast address.
    let (at, mask, bits) = match address {
        SocketAddr::V4(_) => (16, 0xf0, 0xe0),
        SocketAddr::V6(_) => (24, 0xff, 0xff),
    };
    let plain = |code: u32, k| SockFilter::new(code as u16, 0, 0, k);
    [
        plain(BPF_LD | BPF_B | BPF_ABS, libc::SKF_NET_OFF as u32 + at),
        plain(BPF_ALU | BPF_AND | BPF_K, mask),
        SockFilter::new((BPF_JMP | BPF_JEQ | BPF_K) as u16, 0, 1, bits),
        plain(BPF_RET | BPF_K, u32::MAX),
        plain(BPF_RET | BPF_K, 0),
    ]
}

/// Asks for a receive buffer, with privilege if this process has it. Returns the size that
/// `getsockopt` then reports.
pub fn set_up_receiving(socket: &Socket, bytes: usize) -> io::Result<usize> {
    let asked = i32::try_from(bytes).unwrap_or(i32::MAX / 2);
    let forced = set_int(
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
    let _ = set_int(socket.as_fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1);
}

/// Makes the kernel join datagrams that it hands up.
pub fn set_gro(socket: &Socket) -> io::Result<()> {
    set_int(socket.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 1)
}
