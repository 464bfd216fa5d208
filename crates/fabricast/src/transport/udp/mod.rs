//! Datagrams by UDP, multicast and unicast, IPv4 and IPv6.
//!
//! One *unicast socket*, bound to the interface's own address and a free port, sends everything,
//! multicasts too. So the source address of a datagram tells which node sent it. Datagrams for this
//! node alone arrive at the unicast socket. Each group that this node listens to has a *receive
//! socket* bound to the group's address and port. It receives that group, on that interface, and
//! nothing else.
//!
//! Sending gathers datagrams (GSO inside `sendmmsg`, `send.rs`), and receiving splits messages
//! (`recvmmsg` with GRO, `receive.rs`). Both fall back to single datagrams where the kernel
//! refuses. An error that concerns one destination is a lost datagram with a [`Notice`]. An error
//! that concerns the interface is an [`io::Error`]. The reasons are in `spec/6-transports.md`.

mod config;
mod hearsay;
mod interface;
mod notice;
mod receive;
#[cfg(test)]
mod script;
mod send;
mod sleep;
mod socket;
mod stamps;
mod sys;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use fabricast_proto::{GroupId, NodeId, Time, limits, wire};
use socket2::{InterfaceIndexOrAddress, SockAddr, Socket};

pub use self::config::UdpConfig;
pub use self::interface::{Device, Family, Interface, choose, devices};
pub use self::notice::{Notice, UdpCounters};
pub use self::sleep::{Ready, Sending, Sleeper};
pub use self::sys::stay_on_link;

use self::interface::because;
use self::socket::{open, scoped, set_gro, set_stamps, set_up_receiving};
use self::stamps::Days;
use super::{Caps, Claims, Outgoing, Transport};
use crate::setting::DATAGRAM;

/// Bytes of the Ethernet, IPv4 and UDP headers, which the wire carries in addition to each
/// datagram. (FCS, preamble and gap are not counted; IPv6 adds 20 bytes.)
pub const WIRE_OVERHEAD: u64 = 14 + 20 + 8;
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

/// A socket that receives one group address.
struct Input {
    socket: Socket,
    address: SocketAddr,
    /// Number of this node's groups that share the address. The socket closes with the last.
    users: usize,
}

/// UDP on one interface.
pub struct Udp {
    device: Device,
    family: Family,
    local: SocketAddr,
    socket: Socket,
    /// The epoll descriptors of threads that sleep until datagrams wait.
    sleepers: Vec<Arc<OwnedFd>>,
    inputs: Vec<Input>,
    nodes: BTreeMap<NodeId, Destination>,
    hearsay: hearsay::Hearsay,
    groups: BTreeMap<GroupId, Group>,
    /// Reads a datagram's claimed sender. `None`: the transport checks no claims.
    claims: Option<Claims>,
    caps: Caps,
    receive_buffer: usize,
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
    /// The sockets that were empty when last read, one bit each.
    empty: u64,
    /// Number of calls that have relied on `empty`.
    relied: u32,
    /// A wait has looked at all sockets, and none was read since.
    fresh: bool,
    poll: Vec<libc::pollfd>,
    waker: Arc<sys::Waker>,
    blocked: Blocked,
    /// The time of the last `send`.
    now: Time,
    /// When the interface was last seen to be well.
    stood_at: Option<Time>,
    counters: UdpCounters,
    /// Packets that the kernel dropped at sockets that are closed.
    drops_past: u64,
    notices: VecDeque<Notice>,
    #[cfg(test)]
    script: script::Script,
}

/// Ends a [`Transport::wait`] from another thread.
#[derive(Clone)]
pub struct Waker(Arc<sys::Waker>);

impl PartialEq for Waker {
    /// Whether both wake the same waiting thread.
    fn eq(&self, other: &Waker) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Waker {
    /// Makes the wait under way, or else the next one, return at once.
    pub fn wake(&self) {
        self.0.ring();
    }
}

impl Udp {
    /// Opens the unicast socket on the interface that `config` selects.
    pub fn new(config: &UdpConfig) -> io::Result<Udp> {
        let (device, address) = choose(&config.interface, config.family)?;
        let family = Family::of(address);
        let mtu = match device.mtu {
            0 => 1500,
            mtu => mtu,
        };
        // The length field of an IP packet holds at most 65 535.
        let fits = mtu.min(65_535).saturating_sub(family.headers());
        let datagram_max = config
            .datagram
            .unwrap_or(fits.min(MTU_MAX - family.headers()));
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
        let local = scoped(SocketAddr::new(address, config.port), device.index);
        let socket = open(local, &format!("the unicast socket on {}", device.name))?;
        let mut udp = Udp {
            family,
            local: socket.local_addr()?.as_socket().unwrap_or(local),
            inputs: Vec::new(),
            nodes: BTreeMap::new(),
            hearsay: hearsay::Hearsay::default(),
            groups: BTreeMap::new(),
            claims: None,
            caps: Caps {
                datagram_max,
                receive_buffer: 0,
            },
            receive_buffer: config.receive_buffer,
            gso: config.offload
                && sys::set_int(socket.as_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok(),
            gro: config.offload,
            sending: sys::Sending::default(),
            messages: Vec::new(),
            receiving: sys::Receiving::new(RECEIVE_MESSAGES, RECEIVE_BYTES),
            appetite: RECEIVE_MESSAGES,
            days: Days::default(),
            turn: 0,
            passed: 0,
            empty: 0,
            relied: 0,
            fresh: false,
            poll: Vec::new(),
            waker: Arc::new(sys::Waker::new().map_err(|e| because(e, "cannot make an eventfd"))?),
            blocked: Blocked::No,
            now: Time::ZERO,
            stood_at: None,
            counters: UdpCounters::default(),
            drops_past: 0,
            notices: VecDeque::new(),
            #[cfg(test)]
            script: script::Script::default(),
            device,
            sleepers: Vec::new(),
            socket,
        };
        udp.set_up_sending(config)?;
        udp.set_loopback(config.loopback)?;
        udp.caps.receive_buffer = set_up_receiving(&udp.socket, config.receive_buffer)?;
        set_stamps(&udp.socket);
        if udp.gro && set_gro(&udp.socket).is_err() {
            udp.gro = false;
        }
        if config.offload && !(udp.gso && udp.gro) {
            let (gso, gro) = (udp.gso, udp.gro);
            udp.notify(Notice::NoOffload { gso, gro });
        }
        // The kernel doubles the size that it is asked for, to make up for its own overhead.
        let granted = udp.caps.receive_buffer / 2;
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

    /// What ends a `wait` from another thread.
    pub fn waker(&self) -> Waker {
        Waker(self.waker.clone())
    }

    /// The oldest notice that was not read yet. It is no error, but worth telling a user.
    pub fn notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    /// Counters since the start. Queries the kernel, so do not call it for every datagram.
    pub fn counters(&self) -> UdpCounters {
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

    /// Takes note that another node says that `node` is at `address`. Until `address` has answered,
    /// only one question of `hearsay::LEN` bytes goes there. Datagrams from there are accepted as
    /// with [`Transport::peer`].
    pub fn hearsay(&mut self, node: NodeId, address: SocketAddr) {
        let address = scoped(address, self.device.index);
        let ip = address.ip();
        let broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
        let anybody = ip.is_multicast() || ip.is_unspecified() || broadcast;
        if Family::of(ip) != self.family {
            let family = self.family;
            self.notify(Notice::OtherFamily { address, family });
        } else if !anybody && address.port() != 0 {
            self.hearsay.insert(node, address);
        }
    }

    /// The nodes known from hearsay that were asked, or must be, and have not answered.
    pub fn unanswered(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.hearsay.silent()
    }

    /// Asks `node` once more. The caller must have a reason no smaller than the question.
    pub fn ask_again(&mut self, node: NodeId) {
        self.hearsay.again(node);
        self.speak();
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
            self.nodes.insert(node, Destination::new(address));
        }
    }

    fn notify(&mut self, notice: Notice) {
        if self.notices.len() < NOTICES_MAX {
            self.notices.push_back(notice);
        }
    }

    /// Sets whether multicasts also go to receivers on this host, this node itself among them: see
    /// [`UdpConfig::loopback`].
    pub fn set_loopback(&self, on: bool) -> io::Result<()> {
        let (set, what) = match self.family {
            Family::V4 => (self.socket.set_multicast_loop_v4(on), "IP_MULTICAST_LOOP"),
            Family::V6 => (self.socket.set_multicast_loop_v6(on), "IPV6_MULTICAST_LOOP"),
        };
        let name = &self.device.name;
        set.map_err(|e| because(e, format!("cannot set {what} for interface {name}")))
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
                sys::set_int(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE)
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
                sys::set_int(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_PROBE)
                    .map_err(fails("IPV6_MTU_DISCOVER"))?;
                sys::set_int(fd, IPPROTO_IPV6, IPV6_DONTFRAG, 1).map_err(fails("IPV6_DONTFRAG"))?;
            }
        }
        if let Some(bytes) = config.send_buffer {
            self.socket
                .set_send_buffer_size(bytes)
                .map_err(fails("SO_SNDBUF"))?;
        }
        Ok(())
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
        self.caps.receive_buffer = self.caps.receive_buffer.min(granted);
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
}

impl Transport for Udp {
    type Address = SocketAddr;

    fn caps(&self) -> Caps {
        self.caps
    }

    fn peer(&mut self, node: NodeId, address: SocketAddr) {
        self.hearsay.forget(node);
        let address = scoped(address, self.device.index);
        if Family::of(address.ip()) != self.family {
            let family = self.family;
            self.notify(Notice::OtherFamily { address, family });
            self.nodes.remove(&node);
            return;
        }
        self.nodes.insert(node, Destination::new(address));
    }

    fn forget(&mut self, node: NodeId) {
        self.hearsay.forget(node);
        self.nodes.remove(&node);
    }

    fn join(&mut self, group: GroupId, address: SocketAddr, receive: bool) -> io::Result<()> {
        let address = scoped(address, self.device.index);
        let wrong = |what: String| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
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
        self.leave(group);
        if receive {
            let known = self.inputs.iter().position(|i| i.address == address);
            let at = match known {
                Some(at) => at,
                None => {
                    let input = self.listen(address)?;
                    self.watch(&input.socket)?;
                    self.inputs.push(input);
                    self.inputs.len() - 1
                }
            };
            self.inputs[at].users += 1;
        }
        let to = Destination::new(address);
        self.groups.insert(group, Group { to, receive });
        Ok(())
    }

    fn leave(&mut self, group: GroupId) {
        let Some(gone) = self.groups.remove(&group) else {
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

    fn screen(&mut self, claims: Claims) {
        self.claims = Some(claims);
    }

    fn send(&mut self, now: Time, batch: &[Outgoing<'_>]) -> io::Result<usize> {
        self.now = now;
        let sent = self.send_batch(batch);
        self.speak();
        sent
    }

    fn recv(&mut self, now: Time, sink: &mut dyn FnMut(Time, &[u8])) -> io::Result<usize> {
        let received = self.receive(now, sink);
        self.speak();
        received
    }

    fn is_drained(&self) -> bool {
        (0..=self.inputs.len()).all(|at| self.empty & bit(at) != 0)
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
        self.poll.push(entry(self.waker.raw(), libc::POLLIN));
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
        (self.empty, self.relied, self.fresh) = (0, 0, true);
        for (at, entry) in self.poll[1..].iter().enumerate() {
            self.empty |= bit(at) * u64::from(entry.revents & libc::POLLIN == 0);
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
}

/// The bit of a socket in `Udp::empty`; none for sockets beyond its 64 bits.
fn bit(at: usize) -> u64 {
    1u64.checked_shl(at as u32).unwrap_or(0)
}

impl Destination {
    fn new(address: SocketAddr) -> Destination {
        Destination {
            address: address.into(),
            gso: true,
            noticed: 0,
        }
    }

    /// Whether a datagram from `from` is from this destination. A peer sends from the socket at
    /// which it receives, which is bound to one address and port, multicasts too. (The scope of an
    /// IPv6 address is this host's number of the interface, so it is not compared.)
    fn is(&self, from: Option<SocketAddr>) -> bool {
        let whole = |a: SocketAddr| (a.ip(), a.port());
        from.is_some() && self.address.as_socket().map(whole) == from.map(whole)
    }
}

/// Makes the time-outs of the calling thread exact, once per thread.
fn sharpen_timers() {
    thread_local!(static SHARP: Cell<bool> = const { Cell::new(false) });
    if !SHARP.replace(true) {
        sys::sharpen_timers();
    }
}
