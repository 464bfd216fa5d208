//! The system calls that the standard library does not offer, each behind a safe function.
//!
//! All unsafe code of this transport is here. The buffers of [`Sending`] keep their capacity
//! between calls, but each call writes anew every header that it reads. The headers of
//! [`Receiving`] are [`Fixed`], and only those that a call has used are written anew.
#![allow(unsafe_code)]

use std::io;
use std::mem::{size_of, zeroed};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::slice;
use std::time::Duration;

use libc::{c_int, c_void, cmsghdr, iovec, mmsghdr, sockaddr_storage, socklen_t};
use socket2::SockAddr;

use crate::interface::sys::check;
use crate::transport::{Outgoing, Pieces, Slots};

/// Room for two control messages, an integer and a time, aligned as the kernel wants them.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; CONTROL]);
const CONTROL: usize = 64;
// SAFETY: CMSG_SPACE computes on its argument alone.
const _: () = assert!(
    unsafe {
        libc::CMSG_SPACE(size_of::<c_int>() as u32)
            + libc::CMSG_SPACE(size_of::<libc::timespec>() as u32)
    } as usize
        <= CONTROL
);
const _: () = assert!(align_of::<Control>() >= align_of::<cmsghdr>());

/// Largest number of pieces of a datagram.
const PIECES: usize = size_of::<Pieces<'_>>() / size_of::<&[u8]>();

/// Bytes between two receive buffers that nothing is written into. Datagrams fill only the front of
/// each buffer. In buffers of 64 KiB one after the other, they would compete for the same few sets
/// of a cache.
const APART: usize = 9 << 10;

/// One message for the kernel: `count` datagrams of a batch, from `first`, to one address.
#[derive(Clone)]
pub(super) struct Message {
    pub to: SockAddr,
    pub first: usize,
    pub count: usize,
    /// Length at which the kernel cuts the message into datagrams; `None`: it is one datagram.
    pub segment: Option<u16>,
}

/// Headers for `sendmmsg`, kept so that sending does not allocate.
#[derive(Default)]
pub(super) struct Sending {
    pieces: Vec<iovec>,
    controls: Vec<Control>,
    headers: Vec<mmsghdr>,
}

// SAFETY: the pointers in it are dead between calls (see the module's doc), so that it may move
// to another thread.
unsafe impl Send for Sending {}

impl Sending {
    /// Hands `messages`, which consist of datagrams of `batch`, to the kernel. Returns how many it
    /// took. An error is the first message's.
    pub fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        messages: &[Message],
        batch: &[Outgoing<'_>],
        slots: &Slots,
    ) -> io::Result<usize> {
        self.pieces.clear();
        self.controls.clear();
        self.headers.clear();
        // Reserve first: nothing below may move what a header points to.
        let datagrams: usize = messages.iter().map(|m| m.count).sum();
        self.pieces.reserve(PIECES * datagrams);
        self.controls.reserve(messages.len());
        self.headers.reserve(messages.len());
        for message in messages {
            let first = self.pieces.len();
            for datagram in &batch[message.first..message.first + message.count] {
                for piece in slots.pieces(datagram) {
                    if !piece.is_empty() {
                        self.pieces.push(iovec {
                            iov_base: piece.as_ptr() as *mut c_void,
                            iov_len: piece.len(),
                        });
                    }
                }
            }
            // SAFETY: an all-zero mmsghdr is a valid value: null pointers and zero lengths.
            let mut header: mmsghdr = unsafe { zeroed() };
            header.msg_hdr.msg_name = message.to.as_ptr() as *mut c_void;
            header.msg_hdr.msg_namelen = message.to.len();
            header.msg_hdr.msg_iovlen = (self.pieces.len() - first) as _;
            // SAFETY: `first <= len <= capacity`; `pieces` does not grow beyond what is reserved,
            // so the pointer stays valid.
            header.msg_hdr.msg_iov = unsafe { self.pieces.as_mut_ptr().add(first) };
            if let Some(segment) = message.segment {
                self.controls.push(Control([0; CONTROL]));
                let control = self.controls.last_mut().expect("just pushed");
                header.msg_hdr.msg_control = control.0.as_mut_ptr().cast();
                // SAFETY: a control message with a u16 fits `Control` (asserted above for an int)
                // and `Control` is aligned for it; `controls` does not grow beyond its reserve.
                unsafe {
                    header.msg_hdr.msg_controllen = libc::CMSG_SPACE(2) as _;
                    let cmsg = libc::CMSG_FIRSTHDR(&header.msg_hdr);
                    (*cmsg).cmsg_level = libc::SOL_UDP;
                    (*cmsg).cmsg_type = libc::UDP_SEGMENT;
                    (*cmsg).cmsg_len = libc::CMSG_LEN(2) as _;
                    libc::CMSG_DATA(cmsg).cast::<u16>().write_unaligned(segment);
                }
            }
            self.headers.push(header);
        }
        // SAFETY: the headers' pointers are valid. They point to names in `messages`, to `slots`
        // and to payloads in `batch`, all borrowed until this call returns, and otherwise into
        // vectors that have not moved since. The kernel only reads what they point to (except
        // `msg_len` in the headers, which this value owns).
        check(unsafe {
            libc::sendmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                self.headers.len() as u32,
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
            )
        })
        .map(|n| n as usize)
    }
}

/// What one message of [`Receiving`] holds.
pub(super) struct Received<'a> {
    /// The bytes: one datagram, or several of `segment` bytes each (the last may be shorter).
    pub bytes: &'a mut [u8],
    /// Length of a datagram if the kernel has joined several.
    pub segment: Option<usize>,
    /// When the kernel took the message from the network, since 1970; `None` if it does not say.
    pub stamp: Option<Duration>,
    /// The sender's address.
    pub from: Option<SocketAddr>,
    /// Whether the end is missing because the message was longer than a buffer.
    pub truncated: bool,
}

/// Elements to which the kernel gets pointers that it keeps between calls. They never move, and all
/// access goes through the one pointer from which the kernel's were derived. A reference to all of
/// them would invalidate that pointer.
struct Fixed<T> {
    base: NonNull<T>,
    count: usize,
}

impl<T: Copy> Fixed<T> {
    fn new(value: T, count: usize) -> Fixed<T> {
        let all = Box::leak(vec![value; count].into_boxed_slice());
        Fixed {
            base: NonNull::from(all).cast(),
            count,
        }
    }

    /// A pointer to `count` elements from `first`.
    fn at(&self, first: usize, count: usize) -> *mut T {
        assert!(first <= self.count && count <= self.count - first);
        // SAFETY: the result is within what `base` points to, or at its end.
        unsafe { self.base.as_ptr().add(first) }
    }
}

impl<T> Drop for Fixed<T> {
    fn drop(&mut self) {
        let all = ptr::slice_from_raw_parts_mut(self.base.as_ptr(), self.count);
        // SAFETY: `all` is what `new` has leaked, and nothing else points to it any more.
        drop(unsafe { Box::from_raw(all) });
    }
}

/// Buffers for `recvmmsg`, made once, and headers that point to them.
pub(super) struct Receiving {
    each: usize,
    count: usize,
    /// Bytes from the start of one buffer to the start of the next.
    stride: usize,
    bytes: Fixed<u8>,
    names: Fixed<sockaddr_storage>,
    controls: Fixed<Control>,
    pieces: Fixed<iovec>,
    headers: Fixed<mmsghdr>,
    filled: usize,
    /// Number of headers, from the front, that must be reset before the next call.
    used: usize,
}

// SAFETY: the pointers in it point to what it owns itself, which does not move with it.
unsafe impl Send for Receiving {}

impl Receiving {
    /// Makes `count` buffers of `each` bytes.
    pub fn new(count: usize, each: usize) -> Receiving {
        let stride = each + APART;
        // SAFETY: all-zero is a valid value of all three plain C structs.
        let (name, piece, header) = unsafe { (zeroed(), zeroed(), zeroed()) };
        Receiving {
            each,
            count,
            stride,
            bytes: Fixed::new(0, count * stride),
            names: Fixed::new(name, count),
            controls: Fixed::new(Control([0; CONTROL]), count),
            pieces: Fixed::new(piece, count),
            headers: Fixed::new(header, count),
            filled: 0,
            used: count,
        }
    }

    /// Takes waiting messages, one per buffer and at most `most`. Returns their number. Never
    /// blocks: if none waits, the error is `WouldBlock`.
    pub fn receive(&mut self, socket: BorrowedFd<'_>, most: usize) -> io::Result<usize> {
        self.filled = 0;
        for i in 0..self.used {
            let piece = self.pieces.at(i, 1);
            // SAFETY: both elements belong to this value alone, and no reference to them exists.
            let (piece, header) = unsafe { (&mut *piece, &mut (*self.headers.at(i, 1)).msg_hdr) };
            piece.iov_base = self.bytes.at(i * self.stride, self.each).cast();
            piece.iov_len = self.each;
            header.msg_name = self.names.at(i, 1).cast();
            header.msg_namelen = size_of::<sockaddr_storage>() as socklen_t;
            header.msg_iov = self.pieces.at(i, 1);
            header.msg_iovlen = 1;
            header.msg_control = self.controls.at(i, 1).cast();
            header.msg_controllen = CONTROL as _;
            header.msg_flags = 0;
        }
        // Until the number is known, all headers may be used. The kernel writes only into those it
        // fills.
        let count = self.count;
        self.used = count;
        // SAFETY: every pointer points to a distinct element of memory that this value owns, that
        // does not move, and to which no reference exists during the call. The lengths, which the
        // kernel overwrites, were set anew where it has used them.
        let answer = check(unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.headers.at(0, count),
                count.min(most) as u32,
                libc::MSG_DONTWAIT,
                ptr::null_mut(),
            )
        });
        self.filled = answer.as_ref().map_or(0, |&n| n as usize);
        // The kernel has looked at the header after them.
        self.used = count.min(self.filled + 1);
        answer.map(|_| self.filled)
    }

    /// Bytes of all messages that the last [`Receiving::receive`] took.
    pub fn filled_bytes(&self) -> usize {
        // SAFETY: they are initialized, and nothing writes there while `self` is borrowed.
        let lengths =
            (0..self.filled).map(|i| unsafe { (*self.headers.at(i, 1)).msg_len as usize });
        lengths.sum()
    }

    /// Message `i` of those that the last [`Receiving::receive`] took.
    pub fn message(&mut self, i: usize) -> Received<'_> {
        assert!(i < self.filled, "message {i} of {}", self.filled);
        // SAFETY: they are initialized, and nothing writes there while `self` is borrowed.
        let (header, name) = unsafe { (&*self.headers.at(i, 1), &*self.names.at(i, 1)) };
        let (mut segment, mut stamp) = (None, None);
        // SAFETY: the kernel has filled `msg_control` up to `msg_controllen`, both still as the
        // call left them. The CMSG functions stay within that, and the length is checked before the
        // integer is read.
        unsafe {
            let mut cmsg = libc::CMSG_FIRSTHDR(&header.msg_hdr);
            while let Some(c) = cmsg.as_ref() {
                if c.cmsg_level == libc::SOL_UDP
                    && c.cmsg_type == libc::UDP_GRO
                    && c.cmsg_len >= libc::CMSG_LEN(size_of::<c_int>() as u32) as _
                {
                    let length = libc::CMSG_DATA(cmsg).cast::<c_int>().read_unaligned();
                    segment = usize::try_from(length).ok().filter(|&n| n > 0);
                }
                if c.cmsg_level == libc::SOL_SOCKET
                    && c.cmsg_type == libc::SCM_TIMESTAMPNS
                    && c.cmsg_len >= libc::CMSG_LEN(size_of::<libc::timespec>() as u32) as _
                {
                    let t = libc::CMSG_DATA(cmsg)
                        .cast::<libc::timespec>()
                        .read_unaligned();
                    stamp = Some(Duration::new(t.tv_sec as u64, t.tv_nsec as u32));
                }
                cmsg = libc::CMSG_NXTHDR(&header.msg_hdr, cmsg);
            }
        }
        let start = i * self.stride;
        let length = (header.msg_len as usize).min(self.each);
        // SAFETY: the bytes are initialized, too, and nothing else uses them while `self` is
        // borrowed.
        let bytes = unsafe { slice::from_raw_parts_mut(self.bytes.at(start, length), length) };
        Received {
            bytes,
            segment,
            stamp,
            from: address(name, header.msg_hdr.msg_namelen),
            truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
        }
    }
}

/// The IP address in `name`, if it is one.
fn address(name: &sockaddr_storage, length: socklen_t) -> Option<SocketAddr> {
    let length = length as usize;
    match c_int::from(name.ss_family) {
        libc::AF_INET if length >= size_of::<libc::sockaddr_in>() => {
            // SAFETY: a sockaddr_storage is large enough and aligned for every socket address,
            // and the family says that it is this one.
            let a = unsafe { &*ptr::from_ref(name).cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(u32::from_be(a.sin_addr.s_addr));
            Some(SocketAddrV4::new(ip, u16::from_be(a.sin_port)).into())
        }
        libc::AF_INET6 if length >= size_of::<libc::sockaddr_in6>() => {
            // SAFETY: as above.
            let a = unsafe { &*ptr::from_ref(name).cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(a.sin6_addr.s6_addr);
            let port = u16::from_be(a.sin6_port);
            Some(SocketAddrV6::new(ip, port, 0, a.sin6_scope_id).into())
        }
        _ => None,
    }
}

/// Makes IPv4 multicasts of this socket leave by the interface with this index.
pub(super) fn set_multicast_interface_v4(socket: BorrowedFd<'_>, index: u32) -> io::Result<()> {
    let request = libc::ip_mreqn {
        imr_multiaddr: libc::in_addr { s_addr: 0 },
        imr_address: libc::in_addr { s_addr: 0 },
        imr_ifindex: index as c_int,
    };
    // SAFETY: as in `set_int`, with an ip_mreqn, which has no padding.
    check(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_MULTICAST_IF,
            ptr::from_ref(&request).cast(),
            size_of::<libc::ip_mreqn>() as socklen_t,
        )
    })
    .map(drop)
}

/// What a socket's buffers hold now.
#[derive(Clone, Copy, Default)]
pub(super) struct Memory {
    /// Bytes in the receive queue, as the kernel charges them (overhead included).
    pub queued: u32,
    /// Packets that the kernel dropped at this socket since it was made, modulo 2^32.
    pub drops: u32,
}

/// Reads [`Memory`]; zeros where the kernel does not know the option (before Linux 4.12).
pub(super) fn memory(socket: BorrowedFd<'_>) -> Memory {
    // SK_MEMINFO_RMEM_ALLOC, …, SK_MEMINFO_DROPS: <linux/sock_diag.h>.
    let mut values = [0u32; 9];
    let mut length = size_of_val(&values) as socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into `values`.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            values.as_mut_ptr().cast(),
            &mut length,
        )
    };
    if answer < 0 {
        return Memory::default();
    }
    Memory {
        queued: values[0],
        drops: values[8],
    }
}

/// Waits for one of `set`. Returns how many are ready. A signal ends the wait like a time-out.
pub(super) fn poll(set: &mut [libc::pollfd], timeout: Option<Duration>) -> io::Result<usize> {
    let limit = timeout.map(|t| libc::timespec {
        tv_sec: t.as_secs().min(i32::MAX as u64) as libc::time_t,
        tv_nsec: t.subsec_nanos().into(),
    });
    let limit = limit.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: `set` is borrowed mutably for the call and has the length given; `limit` is null or
    // points to a value that lives until the end of this function; no signal mask is given.
    let answer = check(unsafe {
        libc::ppoll(
            set.as_mut_ptr(),
            set.len() as libc::nfds_t,
            limit,
            ptr::null(),
        )
    });
    match answer {
        Ok(n) => Ok(n as usize),
        Err(e) if e.kind() == io::ErrorKind::Interrupted => {
            set.iter_mut().for_each(|entry| entry.revents = 0);
            Ok(0)
        }
        Err(e) => Err(e),
    }
}

/// Gives the calling thread a network of its own, which contains only a loopback that is down.
#[cfg(test)]
pub(super) fn own_network() -> io::Result<()> {
    // SAFETY: no memory is involved; only this thread is affected.
    check(unsafe { libc::unshare(libc::CLONE_NEWNET) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interface::sys::set_int;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    #[test]
    fn a_datagram_longer_than_its_buffer_is_marked() {
        let (to, from) = ("127.0.0.1:0", "127.0.0.1:0");
        let to = UdpSocket::bind(to).unwrap();
        let from = UdpSocket::bind(from).unwrap();
        for len in [8, 9, 0] {
            from.send_to(&[7; 9][..len], to.local_addr().unwrap())
                .unwrap();
        }
        let mut receiving = Receiving::new(4, 8);
        assert_eq!(receiving.receive(to.as_fd(), 4).unwrap(), 3);
        let mut cut = |i| {
            let message = receiving.message(i);
            (message.bytes.len(), message.truncated)
        };
        let cut: Vec<_> = (0..3).map(&mut cut).collect();
        assert_eq!(cut, [(8, false), (8, true), (0, false)]);
        assert_eq!(receiving.message(0).from, Some(from.local_addr().unwrap()));
        let none = receiving.receive(to.as_fd(), 4).unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn headers_serve_again_whether_they_were_used_or_not() {
        let [to, from] = ["127.0.0.1:0"; 2].map(|any| UdpSocket::bind(any).unwrap());
        to.set_nonblocking(true).unwrap();
        let mut receiving = Receiving::new(4, 8);
        for (count, stamps) in [(4, false), (1, true), (4, true), (2, false), (3, true)] {
            let option = libc::SO_TIMESTAMPNS;
            set_int(to.as_fd(), libc::SOL_SOCKET, option, stamps.into()).unwrap();
            for i in 0..count {
                let text = &[i; 8][..usize::from(i) + 5];
                from.send_to(text, to.local_addr().unwrap()).unwrap();
            }
            assert_eq!(
                receiving.receive(to.as_fd(), 4).unwrap(),
                usize::from(count)
            );
            for i in 0..count {
                let message = receiving.message(i.into());
                assert_eq!(message.bytes, &[i; 8][..usize::from(i) + 5]);
                assert_eq!(
                    (message.truncated, message.stamp.is_some()),
                    (false, stamps)
                );
                assert_eq!(message.from, Some(from.local_addr().unwrap()));
            }
        }
    }
}
