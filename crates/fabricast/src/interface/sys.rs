//! The system calls about interfaces and sockets that no crate offers, each behind a safe function.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use libc::{c_int, socklen_t};

/// The answer of a system call, or its error if the answer is negative.
pub(crate) fn check(answer: c_int) -> io::Result<c_int> {
    if answer < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(answer)
    }
}

/// Sets a socket option that is an integer.
pub(crate) fn set_int(
    socket: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: c_int,
) -> io::Result<()> {
    // SAFETY: the kernel reads the given number of bytes at the given place: one c_int.
    check(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            ptr::from_ref(&value).cast(),
            size_of::<c_int>() as socklen_t,
        )
    })
    .map(drop)
}

/// Makes the socket send nothing, of any kind, to addresses that only a router reaches.
pub(crate) fn stay_on_link(socket: BorrowedFd<'_>) -> io::Result<()> {
    set_int(socket, libc::SOL_SOCKET, libc::SO_DONTROUTE, 1)
}

/// One address of one interface, as the kernel lists them. An interface without an address is one
/// entry without.
pub(super) struct Entry {
    pub name: String,
    pub index: u32,
    pub flags: u32,
    pub address: Option<IpAddr>,
}

/// All interfaces with their addresses.
pub(super) fn interfaces() -> io::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    // SAFETY: getifaddrs gives a list that this function owns until freeifaddrs. Each node's name
    // is a C string. Its address is null or a socket address of the family that it names, and only
    // that family's struct is read.
    unsafe {
        let mut list = ptr::null_mut();
        check(libc::getifaddrs(&mut list))?;
        let mut next = list;
        while let Some(node) = next.as_ref() {
            next = node.ifa_next;
            let address = node.ifa_addr.as_ref().and_then(|a| {
                let ip: IpAddr = match c_int::from(a.sa_family) {
                    libc::AF_INET => {
                        let a = &*node.ifa_addr.cast::<libc::sockaddr_in>();
                        Ipv4Addr::from(u32::from_be(a.sin_addr.s_addr)).into()
                    }
                    libc::AF_INET6 => {
                        let a = &*node.ifa_addr.cast::<libc::sockaddr_in6>();
                        Ipv6Addr::from(a.sin6_addr.s6_addr).into()
                    }
                    _ => return None,
                };
                Some(ip)
            });
            entries.push(Entry {
                name: CStr::from_ptr(node.ifa_name).to_string_lossy().into_owned(),
                index: libc::if_nametoindex(node.ifa_name),
                flags: node.ifa_flags,
                address,
            });
        }
        libc::freeifaddrs(list);
    }
    Ok(entries)
}

/// The largest packet that an interface carries, IP header included, in bytes. Any `socket` serves.
pub(super) fn mtu(socket: BorrowedFd<'_>, name: &str) -> io::Result<usize> {
    // SAFETY: all-zero is a valid ifreq. The name is cut so that a NUL remains behind it. The
    // kernel reads it and writes the MTU into the union, of which that member is then read.
    unsafe {
        let mut request: libc::ifreq = zeroed();
        let room = request.ifr_name.len() - 1;
        for (to, from) in request.ifr_name[..room].iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        check(libc::ioctl(
            socket.as_raw_fd(),
            libc::SIOCGIFMTU,
            &mut request,
        ))?;
        Ok(usize::try_from(request.ifr_ifru.ifru_mtu).unwrap_or(0))
    }
}
