//! The multicast addresses to which a node sends and which it receives.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use fabricast_proto::AddressId;

use super::input::{Input, is_out_of_memberships};
use super::socket::{scoped, set_gro, set_stamps, set_up_receiving};
use super::{Destination, Group, Udp, sys};
use crate::interface::{Family, because};
use crate::transport::GroupAddress;

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

    /// Receives `address`: by a socket that has room, else by a new one.
    fn listen(&mut self, address: SocketAddr) -> io::Result<()> {
        if let Some(input) = self.inputs.iter_mut().find(|i| i.has(address)) {
            return input.join(address);
        }
        for input in self.inputs.iter_mut().filter(|i| i.has_room(address)) {
            match input.join(address) {
                // The kernel may allow fewer memberships than `SHARED_MAX`.
                Err(e) if is_out_of_memberships(&e) => {}
                joined => return joined.map_err(|e| self.cannot_join(address, e)),
            }
        }
        let mut input = Input::open(address, self.device.index)?;
        let joined = input.join(address);
        joined.map_err(|e| self.cannot_join(address, e))?;
        let granted = set_up_receiving(&input.socket, self.receive_buffer)?;
        self.granted = self.granted.min(granted);
        set_stamps(&input.socket);
        if self.gro && set_gro(&input.socket).is_err() {
            self.gro = false;
        }
        let socket = input.socket.as_fd();
        self.sleepers.iter().try_for_each(|s| s.read(socket))?;
        self.inputs.push(input);
        Ok(())
    }

    fn cannot_join(&self, address: SocketAddr, error: io::Error) -> io::Error {
        let hint = match error.raw_os_error() {
            _ if is_out_of_memberships(&error) => {
                ": out of memberships; raise `sysctl net.ipv4.igmp_max_memberships` or \
                 `net.core.optmem_max`"
            }
            Some(libc::ENODEV) => ": the interface is gone or cannot multicast",
            _ => "",
        };
        let name = &self.device.name;
        because(
            error,
            format!("cannot join {address} on interface {name}{hint}"),
        )
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
            self.listen(address)?;
        }
        let to = Destination::new(address);
        self.groups.insert(id, Group { to, receive });
        Ok(())
    }

    /// Leaves an address. Closes its socket if that has joined no other one.
    pub(super) fn leave_address(&mut self, id: AddressId) {
        let Some(gone) = self.groups.remove(&id) else {
            return;
        };
        let Some(address) = gone.to.address.as_socket().filter(|_| gone.receive) else {
            return;
        };
        let Some(at) = self.inputs.iter().position(|i| i.has(address)) else {
            return;
        };
        self.inputs[at].leave(address);
        if self.inputs[at].is_unused() {
            let input = self.inputs.remove(at);
            self.drops_past += u64::from(sys::memory(input.socket.as_fd()).drops);
        }
    }
}
