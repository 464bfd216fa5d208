//! The multicast addresses to which a node sends and which it receives.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use fabricast_proto::AddressId;
use socket2::InterfaceIndexOrAddress;

use super::socket::{open, scoped, set_gro, set_stamps, set_up_receiving};
use super::{Destination, Group, Input, Udp, sys};
use crate::transport::GroupAddress;
use crate::transport::interface::{Family, because};

impl Udp {
    /// Sets whether multicasts also go to receivers on this host, this node itself among them: see
    /// [`UdpConfig::loopback`].
    pub(super) fn set_loopback(&self, on: bool) -> io::Result<()> {
        let (set, what) = match self.family {
            Family::V4 => (self.socket.set_multicast_loop_v4(on), "IP_MULTICAST_LOOP"),
            Family::V6 => (self.socket.set_multicast_loop_v6(on), "IPV6_MULTICAST_LOOP"),
        };
        let name = &self.device.name;
        set.map_err(|e| because(e, format!("cannot set {what} for interface {name}")))
    }

    /// Opens a socket that receives `address` and nothing else.
    fn listen(&mut self, address: SocketAddr) -> io::Result<Input> {
        let name = &self.device.name;
        let index = self.device.index;
        let socket = open(address, &format!("a receive socket for group {address}"))?;
        let joined = match address.ip() {
            IpAddr::V4(group) => socket.set_multicast_all_v4(false).and_then(|()| {
                socket.join_multicast_v4_n(&group, &InterfaceIndexOrAddress::Index(index))
            }),
            IpAddr::V6(group) => {
                // Linux before 4.20 lacks the option; the socket is bound to the group anyway.
                let _ = socket.set_multicast_all_v6(false);
                socket.join_multicast_v6(&group, index)
            }
        };
        joined.map_err(|e| {
            let hint = match e.raw_os_error() {
                Some(libc::ENOBUFS) => {
                    ": out of memberships; raise `sysctl net.ipv4.igmp_max_memberships` or \
                     `net.core.optmem_max`"
                }
                Some(libc::ENODEV) => ": the interface is gone or cannot multicast",
                _ => "",
            };
            because(
                e,
                format!("cannot join {address} on interface {name}{hint}"),
            )
        })?;
        let granted = set_up_receiving(&socket, self.receive_buffer)?;
        self.granted = self.granted.min(granted);
        set_stamps(&socket);
        if self.gro && set_gro(&socket).is_err() {
            self.gro = false;
        }
        Ok(Input {
            socket,
            address,
            users: 0,
        })
    }

    /// Joins an address at once.
    pub(super) fn try_join(
        &mut self,
        id: AddressId,
        address: &GroupAddress,
        receive: bool,
    ) -> io::Result<()> {
        let wrong = |what: String| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        let Some(ip) = address.ip() else {
            return wrong(format!("{address} is no IP address"));
        };
        let address = scoped(ip, self.device.index);
        if !address.ip().is_multicast() {
            return wrong(format!(
                "{address} is not a multicast address (239.0.0.0/8 or ff00::/8 are)"
            ));
        }
        if address.port() == 0 {
            return wrong(format!("group address {address} needs a port"));
        }
        if Family::of(address.ip()) != self.family {
            let Udp {
                device,
                family,
                local,
                ..
            } = self;
            let (name, local) = (&device.name, local.ip());
            return wrong(format!(
                "group {address} is not {family}, but interface {name} is used by {local}"
            ));
        }
        self.leave_address(id);
        if receive {
            let known = self.inputs.iter().position(|i| i.address == address);
            let at = match known {
                Some(at) => at,
                None => {
                    let input = self.listen(address)?;
                    let socket = input.socket.as_fd();
                    self.sleepers.iter().try_for_each(|s| s.read(socket))?;
                    self.inputs.push(input);
                    self.inputs.len() - 1
                }
            };
            self.inputs[at].users += 1;
        }
        let to = Destination::new(address);
        self.groups.insert(id, Group { to, receive });
        Ok(())
    }

    /// Leaves an address, and closes its socket if no other one shares it.
    pub(super) fn leave_address(&mut self, id: AddressId) {
        let Some(gone) = self.groups.remove(&id) else {
            return;
        };
        let address = gone.to.address.as_socket();
        let input = self.inputs.iter().position(|i| Some(i.address) == address);
        if let (true, Some(at)) = (gone.receive, input) {
            self.inputs[at].users -= 1;
            if self.inputs[at].users == 0 {
                let input = self.inputs.remove(at);
                self.empty = 0;
                self.drops_past += u64::from(sys::memory(input.socket.as_fd()).drops);
            }
        }
    }
}
