//! The sockets that receive multicasts, and which addresses each of them receives.

use std::io;
use std::net::{IpAddr, SocketAddr};

use socket2::{InterfaceIndexOrAddress, Socket};

use super::socket::{bind_to_interface, open, open_shared, whole};

/// Largest number of addresses that share a socket: the kernel's default for IPv4
/// (`igmp_max_memberships`). The kernel looks through the addresses of a socket for each datagram,
/// so a socket does not take more where it could. Where the kernel allows fewer, further sockets
/// are opened earlier.
pub(super) const SHARED_MAX: usize = 20;

/// A socket that receives what is sent to the addresses that it has joined, and nothing else.
pub(super) struct Input {
    pub socket: Socket,
    /// Whether several addresses of one port may share the socket. If not, the socket is bound to
    /// its only address.
    shared: bool,
    /// Index of the interface.
    index: u32,
    members: Vec<Member>,
    /// Whether the socket was empty when last looked at.
    pub empty: bool,
}

/// An address that a socket has joined.
struct Member {
    address: SocketAddr,
    /// Number of joins that share the address.
    users: usize,
}

impl Input {
    /// Opens a socket for `address` on the interface with this index, without joining it.
    ///
    /// The socket can be shared if this kernel supports that, and no socket without
    /// `SO_REUSEADDR` has the port. Otherwise the socket is for `address` alone.
    pub fn open(address: SocketAddr, index: u32) -> io::Result<Input> {
        let shared = open_shared(address, index);
        let is_shared = shared.is_ok();
        let socket = shared.or_else(|_| {
            let socket = open(address, &format!("a receive socket for group {address}"))?;
            match address {
                SocketAddr::V4(_) => socket.set_multicast_all_v4(false)?,
                // Older kernels lack the options, or refuse them without privilege. They only keep
                // out what comes by other interfaces, since the socket is bound to the group.
                SocketAddr::V6(_) => {
                    let _ = socket.set_multicast_all_v6(false);
                    let _ = bind_to_interface(&socket, index);
                }
            }
            Ok::<_, io::Error>(socket)
        })?;
        Ok(Input {
            socket,
            shared: is_shared,
            index,
            members: Vec::new(),
            empty: false,
        })
    }

    /// Whether `address` may be joined here, as far as is known without asking the kernel.
    pub fn has_room(&self, address: SocketAddr) -> bool {
        let port = self.members.first().map(|m| m.address.port());
        self.shared && port == Some(address.port()) && self.members.len() < SHARED_MAX
    }

    /// Whether the socket has joined `address`.
    pub fn has(&self, address: SocketAddr) -> bool {
        self.position(address).is_some()
    }

    /// Whether the socket has joined no address.
    pub fn is_unused(&self) -> bool {
        self.members.is_empty()
    }

    fn position(&self, address: SocketAddr) -> Option<usize> {
        let is = |m: &Member| whole(m.address) == whole(address);
        self.members.iter().position(is)
    }

    /// Joins `address`, or counts one more user of it.
    pub fn join(&mut self, address: SocketAddr) -> io::Result<()> {
        if let Some(at) = self.position(address) {
            self.members[at].users += 1;
            return Ok(());
        }
        match address.ip() {
            IpAddr::V4(group) => self.socket.join_multicast_v4_n(&group, &self.interface()),
            IpAddr::V6(group) => self.socket.join_multicast_v6(&group, self.index),
        }?;
        self.members.push(Member { address, users: 1 });
        Ok(())
    }

    /// Undoes one [`Input::join`]. Datagrams to the address that wait already stay in the buffer.
    pub fn leave(&mut self, address: SocketAddr) {
        let Some(at) = self.position(address) else {
            return;
        };
        self.members[at].users -= 1;
        if self.members[at].users > 0 {
            return;
        }
        self.members.remove(at);
        // This fails only if the interface is gone, and the membership with it.
        let _ = match address.ip() {
            IpAddr::V4(group) => self.socket.leave_multicast_v4_n(&group, &self.interface()),
            IpAddr::V6(group) => self.socket.leave_multicast_v6(&group, self.index),
        };
    }

    fn interface(&self) -> InterfaceIndexOrAddress {
        InterfaceIndexOrAddress::Index(self.index)
    }
}

/// Whether a socket can join no further address: `igmp_max_memberships` of them, or `optmem_max`
/// bytes.
pub(super) fn is_out_of_memberships(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM))
}
