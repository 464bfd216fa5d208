//! Datagrams by UDP, multicast and unicast, IPv4 and IPv6.
//!
//! One *unicast socket*, bound to the interface's own address and a free port, sends everything,
//! multicasts too. So the source address of a datagram tells which node sent it. Datagrams for this
//! node alone arrive at the unicast socket. *Receive sockets* join the group addresses that this
//! node listens to, each of them several addresses of one port. A receive socket receives what is
//! sent to its addresses, on that interface, and nothing else.
//!
//! Sending gathers datagrams (GSO inside `sendmmsg`, `send.rs`), and receiving splits messages
//! (`recvmmsg` with GRO, `receive.rs`). Both fall back to single datagrams where the kernel
//! refuses. An error that concerns one destination is a lost datagram with a [`Notice`]. An error
//! that concerns the interface is an [`io::Error`]. The reasons are in `spec/6-transports.md`.

mod config;
mod groups;
mod hearsay;
mod input;
mod notice;
mod receive;
#[cfg(test)]
mod script;
mod send;
mod socket;
mod stamps;
mod sys;
#[cfg(test)]
mod tests;
mod watch;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::iter;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use fabricast_proto::{AddressId, NodeId, Time, limits, wire};
use socket2::{SockAddr, Socket};

pub use self::config::UdpConfig;
pub use self::notice::Notice;

use self::input::Input;
use self::socket::{open, scoped, set_gro, set_stamps, set_up_receiving, whole};
use self::stamps::Days;
use super::wait::{Descriptors, sharpen_timers};
use super::{
    Arrival, Caps, Counters, DatagramId, GroupAddress, News, NodeAddress, Outgoing, Ready, Sleeper,
    Slots, Transport, Watch,
};
use crate::interface::sys::set_int;
use crate::interface::{Device, Family, because, choose};
use crate::setting::DATAGRAM;
use crate::waker::Waker;

/// Bytes of the Ethernet header, which the wire carries in addition to each datagram and its other
/// headers. (FCS, preamble and gap are not counted.)
const ETHERNET: u64 = 14;
/// Largest MTU that is used unless [`UdpConfig::datagram`] says otherwise, in bytes: that of jumbo
/// frames. (A loopback offers 65 536, where one lost datagram costs as much as seven of these.)
const MTU_MAX: usize = 9000;
/// Smallest datagram size that a caller may ask for, in bytes. The longest head that the core
/// writes (feedback with all its ranges) must fit, and a data packet must have room for payload.
const DATAGRAM_MIN: usize = limits::HEAD_MAX;
const _: () = assert!(DATAGRAM_MIN >= wire::DATA_OVERHEAD + limits::PAYLOAD_MIN as usize);
/// Largest number of messages taken by one `recvmmsg`. With GRO each may hold dozens of datagrams.
const RECEIVE_MESSAGES: usize = 64;
/// Smallest limit for the number of messages taken by one `recvmmsg`.
const RECEIVE_MESSAGES_MIN: usize = 4;
/// Bytes that one `recvmmsg` should bring, estimated from the length of the last messages. They are
/// read again at once, and must still be in the processor's second-level cache.
const RECEIVE_AT_ONCE: usize = 256 << 10;
/// Length of a receive buffer, in bytes: the longest message that UDP or GRO can hand up.
const RECEIVE_BYTES: usize = 65_536;
/// Time after which to try again a send that found the kernel without buffers. The kernel does not
/// tell when it has some again.
const STARVED: Duration = Duration::from_micros(200);
/// Shortest time between two checks of an interface that is well, however many errors occur.
const STANDING: Duration = Duration::from_millis(100);
/// Largest number of notices kept for [`Udp::notice`]. More are dropped: their owner does not ask.
const NOTICES_MAX: usize = 64;

/// Why the last `send` took fewer datagrams than it was given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Blocked {
    No,
    /// The socket's send buffer is full. The kernel tells when it no longer is.
    Full,
    /// The kernel had no memory, and does not tell when it has some.
    Starved,
}

/// An address to which the transport sends.
struct Destination {
    address: SockAddr,
    /// The kernel has not refused to segment messages to this address.
    gso: bool,
    /// The kinds of notices about it that were reported already, as bits of [`Notice::bit`].
    noticed: u8,
}

struct Group {
    to: Destination,
    receive: bool,
}

/// UDP on one interface.
pub struct Udp {
    device: Device,
    family: Family,
    local: SocketAddr,
    socket: Socket,
    /// The threads that sleep until datagrams wait.
    sleepers: Vec<Descriptors>,
    inputs: Vec<Input>,
    nodes: BTreeMap<NodeId, Destination>,
    /// The nodes by their addresses.
    sources: BTreeMap<(IpAddr, u16), NodeId>,
    hearsay: hearsay::Hearsay,
    groups: BTreeMap<AddressId, Group>,
    caps: Caps,
    /// Size of the receive buffers to ask for, in bytes.
    receive_buffer: usize,
    /// The smallest receive buffer that the kernel has granted, as it reports it, in bytes.
    granted: usize,
    slots: Slots,
    /// Datagrams that were sent and not named as completed.
    sent: Vec<DatagramId>,
    gso: bool,
    gro: bool,
    sending: sys::Sending,
    messages: Vec<sys::Message>,
    receiving: sys::Receiving,
    /// Limit for the messages that the next `recvmmsg` takes; see [`RECEIVE_AT_ONCE`].
    appetite: usize,
    days: Days,
    turn: usize,
    /// Number of calls in a row in which the node's own socket had to wait.
    passed: u32,
    /// Whether the node's own socket was empty when last looked at.
    empty: bool,
    /// Number of calls that have relied on sockets having been empty.
    relied: u32,
    /// A wait has looked at all sockets, and none was read since.
    fresh: bool,
    poll: Vec<libc::pollfd>,
    waker: Waker,
    blocked: Blocked,
    /// The time of the last `send`.
    now: Time,
    /// When the interface was last seen to be well.
    stood_at: Option<Time>,
    counters: Counters,
    /// Packets that the kernel dropped at sockets that are closed.
    drops_past: u64,
    notices: VecDeque<Notice>,
    /// How joins have ended.
    joins: VecDeque<News>,
    #[cfg(test)]
    script: script::Script,
}

impl Udp {
    /// Opens the unicast socket on the interface that `config` selects.
    pub fn new(config: &UdpConfig) -> io::Result<Udp> {
        let (device, address) = choose(&config.interface, config.family)?;
        let family = Family::of(address);
        let datagram_max = datagram_max(&device, family, config.datagram)?;
        let local = scoped(SocketAddr::new(address, config.port), device.index);
        let socket = open(local, &format!("the unicast socket on {}", device.name))?;
        let mut udp = Udp {
            family,
            local: socket.local_addr()?.as_socket().unwrap_or(local),
            inputs: Vec::new(),
            nodes: BTreeMap::new(),
            sources: BTreeMap::new(),
            hearsay: hearsay::Hearsay::default(),
            groups: BTreeMap::new(),
            caps: Caps {
                overhead: ETHERNET + family.headers() as u64,
                ..Caps::datagrams(datagram_max)
            },
            receive_buffer: config.receive_buffer,
            granted: 0,
            slots: Slots::new(datagram_max),
            sent: Vec::new(),
            gso: config.offload
                && set_int(socket.as_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok(),
            gro: config.offload,
            sending: sys::Sending::default(),
            messages: Vec::new(),
            receiving: sys::Receiving::new(RECEIVE_MESSAGES, RECEIVE_BYTES),
            appetite: RECEIVE_MESSAGES,
            days: Days::default(),
            turn: 0,
            passed: 0,
            empty: false,
            relied: 0,
            fresh: false,
            poll: Vec::new(),
            waker: match &config.waker {
                Some(waker) => waker.clone(),
                None => Waker::new()?,
            },
            blocked: Blocked::No,
            now: Time::ZERO,
            stood_at: None,
            counters: Counters::default(),
            drops_past: 0,
            notices: VecDeque::new(),
            joins: VecDeque::new(),
            #[cfg(test)]
            script: script::Script::default(),
            device,
            sleepers: Vec::new(),
            socket,
        };
        udp.set_up_sending(config)?;
        udp.set_loopback(config.loopback)?;
        udp.granted = set_up_receiving(&udp.socket, config.receive_buffer)?;
        set_stamps(&udp.socket);
        if udp.gro && set_gro(&udp.socket).is_err() {
            udp.gro = false;
        }
        if config.offload && !(udp.gso && udp.gro) {
            let (gso, gro) = (udp.gso, udp.gro);
            udp.notify(Notice::NoOffload { gso, gro });
        }
        // The kernel doubles the size that it is asked for, to make up for its own overhead.
        let granted = udp.granted / 2;
        if granted < config.receive_buffer {
            udp.notify(Notice::ReceiveBuffer {
                asked: config.receive_buffer,
                granted,
            });
        }
        Ok(udp)
    }

    /// The address at which this node receives unicasts and from which its datagrams come.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The interface in use, as it was when the transport was opened.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The oldest notice that was not read yet. It is no error, but worth telling a user.
    fn notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    /// The IP address in `address`, with the interface's scope. `None`, with a notice, if nothing
    /// can be sent there.
    fn usable(&mut self, address: &NodeAddress) -> Option<SocketAddr> {
        let Some(ip) = address.ip() else {
            let address = *address;
            self.notify(Notice::NoIpAddress { address });
            return None;
        };
        let address = scoped(ip, self.device.index);
        if Family::of(address.ip()) != self.family {
            let family = self.family;
            self.notify(Notice::OtherFamily { address, family });
            return None;
        }
        Some(address)
    }

    /// Takes note that another node says that `node` is at `address`. Until `address` has answered,
    /// only one question of `hearsay::LEN` bytes goes there. Datagrams from there are accepted as
    /// with [`Transport::peer`].
    fn told(&mut self, node: NodeId, address: &NodeAddress) {
        let Some(address) = self.usable(address) else {
            return;
        };
        let ip = address.ip();
        let broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
        let anybody = ip.is_multicast() || ip.is_unspecified() || broadcast;
        if !anybody && address.port() != 0 {
            self.hearsay.insert(node, address);
        }
    }

    /// Sends questions and answers, and registers the nodes that have answered as peers.
    fn speak(&mut self) {
        if self.hearsay.is_idle() {
            return;
        }
        for (to, bytes) in self.hearsay.outgoing() {
            // The datagram may be lost like any other, so an error is ignored.
            if self.socket.send_to(&bytes, &to.into()).is_ok() {
                self.counters.datagrams_sent += 1;
                self.counters.bytes_sent += bytes.len() as u64;
            }
        }
        for (node, address) in self.hearsay.proven() {
            self.add(node, address);
        }
    }

    /// From now on `node` is at `address`. If other nodes are said to be there, too, datagrams from
    /// there are those of the first.
    fn add(&mut self, node: NodeId, address: SocketAddr) {
        self.remove(node);
        self.nodes.insert(node, Destination::new(address));
        self.sources.entry(whole(address)).or_insert(node);
    }

    fn remove(&mut self, node: NodeId) {
        let Some(gone) = self.nodes.remove(&node).and_then(|n| n.address.as_socket()) else {
            return;
        };
        if self.sources.get(&whole(gone)) != Some(&node) {
            return;
        }
        self.sources.remove(&whole(gone));
        let next = self.nodes.iter().find(|(_, n)| n.is(gone));
        if let Some((&next, _)) = next {
            self.sources.insert(whole(gone), next);
        }
    }

    fn notify(&mut self, notice: Notice) {
        if self.notices.len() < NOTICES_MAX {
            self.notices.push_back(notice);
        }
    }

    /// Sets the options of the socket that sends everything.
    fn set_up_sending(&self, config: &UdpConfig) -> io::Result<()> {
        let name = &self.device.name;
        let fails = |what: &'static str| {
            move |e: io::Error| because(e, format!("cannot set {what} for interface {name}"))
        };
        let fd = self.socket.as_fd();
        let index = self.device.index;
        let ttl = u32::from(config.group_ttl);
        match self.family {
            Family::V4 => {
                use libc::{IP_MTU_DISCOVER, IP_PMTUDISC_PROBE, IPPROTO_IP};
                sys::set_multicast_interface_v4(fd, index).map_err(fails("IP_MULTICAST_IF"))?;
                let socket = &self.socket;
                socket
                    .set_multicast_ttl_v4(ttl)
                    .map_err(fails("IP_MULTICAST_TTL"))?;
                set_int(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE)
                    .map_err(fails("IP_MTU_DISCOVER"))?;
            }
            Family::V6 => {
                use libc::{IPPROTO_IPV6, IPV6_DONTFRAG, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_PROBE};
                let socket = &self.socket;
                socket
                    .set_multicast_if_v6(index)
                    .map_err(fails("IPV6_MULTICAST_IF"))?;
                socket
                    .set_multicast_hops_v6(ttl)
                    .map_err(fails("IPV6_MULTICAST_HOPS"))?;
                set_int(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_PROBE)
                    .map_err(fails("IPV6_MTU_DISCOVER"))?;
                set_int(fd, IPPROTO_IPV6, IPV6_DONTFRAG, 1).map_err(fails("IPV6_DONTFRAG"))?;
            }
        }
        if let Some(bytes) = config.send_buffer {
            self.socket
                .set_send_buffer_size(bytes)
                .map_err(fails("SO_SNDBUF"))?;
        }
        Ok(())
    }
}

impl Transport for Udp {
    fn caps(&self) -> Caps {
        self.caps
    }

    /// The kernel charges a packet for its whole buffer, up to twice its length, and for its
    /// descriptor.
    fn backlog(&self, payload_size: u32) -> u32 {
        (self.granted / (2 * payload_size as usize + 512)) as u32
    }

    fn address(&self) -> NodeAddress {
        self.local.into()
    }

    fn port(&self) -> &str {
        &self.device.name
    }

    fn peer(&mut self, node: NodeId, address: &NodeAddress) {
        self.hearsay.forget(node);
        match self.usable(address) {
            Some(address) => self.add(node, address),
            None => self.remove(node),
        }
    }

    fn forget(&mut self, node: NodeId) {
        self.hearsay.forget(node);
        self.remove(node);
    }

    fn hearsay(&mut self, node: NodeId, address: &NodeAddress) {
        self.told(node, address);
    }

    fn unanswered(&self) -> Vec<NodeId> {
        self.hearsay.silent().collect()
    }

    fn ask_again(&mut self, node: NodeId) {
        self.hearsay.again(node);
        self.speak();
    }

    fn join(&mut self, id: AddressId, address: &GroupAddress, receive: bool) {
        let news = match self.try_join(id, address, receive) {
            Ok(()) => News::Joined(id),
            Err(e) => News::JoinFailed(id, e),
        };
        self.joins.push_back(news);
    }

    fn leave(&mut self, id: AddressId) {
        self.leave_address(id);
    }

    fn loop_back(&mut self, on: bool) {
        // If this fails, it costs time only.
        let _ = self.set_loopback(on);
    }

    fn slots(&mut self) -> &mut Slots {
        &mut self.slots
    }

    fn send(&mut self, now: Time, batch: &[Outgoing<'_>]) -> io::Result<usize> {
        self.now = now;
        let sent = self.send_batch(batch);
        let taken = sent.as_ref().map_or(0, |&taken| taken);
        self.sent.extend(batch[..taken].iter().map(|d| d.id));
        self.speak();
        sent
    }

    /// The kernel has copied everything when `send` returns.
    fn completions(&mut self, _now: Time, done: &mut dyn FnMut(DatagramId)) {
        self.sent.drain(..).for_each(done);
    }

    fn recv(&mut self, now: Time, sink: &mut dyn FnMut(&mut Arrival<'_>)) -> io::Result<usize> {
        let received = self.receive(now, sink);
        self.speak();
        received
    }

    fn is_drained(&self) -> bool {
        self.empty && self.inputs.iter().all(|i| i.empty)
    }

    fn news(&mut self) -> Option<News> {
        let join = self.joins.pop_front();
        join.or_else(|| Some(News::Notice(self.notice()?.to_string())))
    }

    /// The kernel does not tell when it has memory again.
    fn due(&self) -> Option<Time> {
        (self.blocked == Blocked::Starved).then(|| self.now + STARVED)
    }

    fn is_full(&self) -> bool {
        self.blocked == Blocked::Full
    }

    fn attach(&mut self, sleeper: &Sleeper) -> io::Result<Box<dyn Watch>> {
        self.watch(sleeper)
    }

    /// The next calls read only the sockets that are ready.
    fn woken(&mut self, ready: &Ready) {
        self.empty = !ready.may_have(self.socket.as_fd());
        for input in &mut self.inputs {
            input.empty = !ready.may_have(input.socket.as_fd());
        }
        (self.relied, self.fresh) = (0, true);
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        sharpen_timers();
        let entry = |fd, events| libc::pollfd {
            fd,
            events,
            revents: 0,
        };
        let full = match self.blocked {
            Blocked::Full => libc::POLLOUT,
            _ => 0,
        };
        self.poll.clear();
        self.poll
            .push(entry(self.waker.as_fd().as_raw_fd(), libc::POLLIN));
        self.poll
            .push(entry(self.socket.as_raw_fd(), libc::POLLIN | full));
        let inputs = self.inputs.iter();
        self.poll
            .extend(inputs.map(|i| entry(i.socket.as_raw_fd(), libc::POLLIN)));
        let timeout = match self.blocked {
            Blocked::Starved => Some(timeout.map_or(STARVED, |t| t.min(STARVED))),
            _ => timeout,
        };
        self.blocked = Blocked::No;
        sys::poll(&mut self.poll, timeout).map_err(|e| because(e, "cannot wait for datagrams"))?;
        self.counters.wait_calls += 1;
        if self.poll[0].revents != 0 {
            self.waker.hush();
        }
        (self.relied, self.fresh) = (0, true);
        let empty = self.inputs.iter_mut().map(|i| &mut i.empty);
        for (empty, entry) in iter::once(&mut self.empty)
            .chain(empty)
            .zip(&self.poll[1..])
        {
            *empty = entry.revents & libc::POLLIN == 0;
        }
        // An error that is pending at a socket would end every wait at once, so fetch it. It
        // concerns a datagram that is lost (for example, a peer's port was closed), and needs no
        // report.
        let sockets = [&self.socket]
            .into_iter()
            .chain(self.inputs.iter().map(|i| &i.socket));
        for (socket, entry) in sockets.zip(&self.poll[1..]) {
            if entry.revents & libc::POLLERR != 0 {
                let _ = socket.take_error();
                self.counters.errors_ignored += 1;
            }
        }
        Ok(())
    }

    fn counters(&self) -> Counters {
        let mut counters = self.counters;
        counters.dropped_by_kernel = self.drops_past;
        let sockets = self.inputs.iter().map(|i| &i.socket);
        for socket in sockets.chain([&self.socket]) {
            let memory = sys::memory(socket.as_fd());
            counters.dropped_by_kernel += u64::from(memory.drops);
            counters.queued += u64::from(memory.queued);
        }
        (counters.gso, counters.gro) = (self.gso, self.gro);
        counters
    }
}

/// The largest datagram on an interface: the one that was `chosen`, or what its MTU leaves.
fn datagram_max(device: &Device, family: Family, chosen: Option<usize>) -> io::Result<usize> {
    let mtu = match device.mtu {
        0 => 1500,
        mtu => mtu,
    };
    // The length field of an IP packet holds at most 65 535.
    let fits = mtu.min(65_535).saturating_sub(family.headers());
    let datagram_max = chosen.unwrap_or(fits.min(MTU_MAX - family.headers()));
    if !(DATAGRAM_MIN..=fits).contains(&datagram_max) {
        let name = &device.name;
        let text = if fits < DATAGRAM_MIN {
            format!(
                "interface {name} (MTU {mtu}, {family}) takes datagrams of {fits} bytes at \
                 most, and {DATAGRAM_MIN} are needed: raise its MTU or choose another interface"
            )
        } else if datagram_max < DATAGRAM_MIN {
            format!(
                "a datagram of {datagram_max} bytes has no room for the protocol: choose \
                 {DATAGRAM_MIN} to {fits} ({DATAGRAM})"
            )
        } else {
            format!(
                "a datagram of {datagram_max} bytes does not fit interface {name} (MTU {mtu}, \
                 {family}): choose {DATAGRAM_MIN} to {fits} ({DATAGRAM}), or raise the MTU on \
                 every host and switch"
            )
        };
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    Ok(datagram_max)
}

impl Destination {
    fn new(address: SocketAddr) -> Destination {
        Destination {
            address: address.into(),
            gso: true,
            noticed: 0,
        }
    }

    /// Whether `address` is this destination's.
    fn is(&self, address: SocketAddr) -> bool {
        self.address.as_socket().map(whole) == Some(whole(address))
    }
}
