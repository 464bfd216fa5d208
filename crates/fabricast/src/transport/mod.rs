//! What carries datagrams: one narrow trait, which every network and the simulator implement.
//!
//! A transport may lose, repeat and reorder datagrams without notice. It never blocks except in
//! [`Transport::wait`]. Only the operating system causes errors: what comes from the network is
//! handed up as bytes, whatever it is.

pub mod fault;
pub mod link;
#[cfg(target_os = "linux")]
pub mod shm;
#[cfg(target_os = "linux")]
pub mod udp;

use std::io;
use std::time::Duration;

use fabricast_proto::{Dest, GroupId, NodeId, Time};

/// Capabilities of a transport.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caps {
    /// Largest datagram (head and body), in bytes.
    pub datagram_max: usize,
    /// Real size of the receive buffer, in bytes (read back from the system, not the size that was
    /// asked for).
    pub receive_buffer: usize,
}

/// A datagram to be sent, in two pieces so that a payload is never copied to get a header.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// The node or group to which the datagram goes.
    pub to: Dest,
    /// Header and frames, without the last frame's payload.
    pub head: &'a [u8],
    /// The payload of the last frame.
    pub body: &'a [u8],
}

impl Outgoing<'_> {
    /// Length of the datagram in bytes.
    pub fn len(&self) -> usize {
        self.head.len() + self.body.len()
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Function that reads from a datagram which node it claims to come from; `None`: it makes no
/// claim.
pub type Claims = fn(&[u8]) -> Option<NodeId>;

/// A network, or something that behaves like one.
pub trait Transport {
    /// How this network names a node.
    type Address: Clone;

    /// The capabilities of this transport.
    fn caps(&self) -> Caps;

    /// Sends datagrams for `node` to `address` from now on.
    fn peer(&mut self, node: NodeId, address: Self::Address);

    /// Forgets the address of `node`.
    fn forget(&mut self, node: NodeId);

    /// Sends datagrams for `group` to `address`. With `receive`, also receives those that are sent
    /// there.
    fn join(&mut self, group: GroupId, address: Self::Address, receive: bool) -> io::Result<()>;

    /// Undoes [`Transport::join`].
    fn leave(&mut self, group: GroupId);

    /// From now on, drops a datagram that claims to come from a node but comes from another address
    /// than that node's ([`Transport::peer`]), or from a node without an address. Such datagrams
    /// count as foreign. A datagram without a claim is handed up. A network in which no node can
    /// make a false claim need not do anything.
    fn screen(&mut self, claims: Claims) {
        let _ = claims;
    }

    /// Sends as many datagrams of `batch`, from its front, as the network takes now. Returns how
    /// many. Fewer is back-pressure, not an error. A datagram for an unknown node or group counts
    /// as sent and is dropped.
    fn send(&mut self, now: Time, batch: &[Outgoing<'_>]) -> io::Result<usize>;

    /// Hands up to some dozens of waiting datagrams to `sink`, each with the time at which it came
    /// out of the network. Without that time it passes `now`; time spent in the receive buffer then
    /// looks like a queue in the network. Returns how many it has handed up. Zero means that none
    /// waits, or that the call read only the node's own datagrams, so many that [`Transport::wait`]
    /// will return at once.
    fn recv(&mut self, now: Time, sink: &mut dyn FnMut(Time, &[u8])) -> io::Result<usize>;

    /// Whether nothing waits to be received, as far as the last receive call found out, without
    /// asking the system. The driver then need not receive again at once to find out. A datagram
    /// that has arrived since ends the next wait at once.
    fn is_drained(&self) -> bool {
        false
    }

    /// Blocks until a datagram waits, the waker was rung, the network takes datagrams again (if the
    /// last `send` took fewer than offered), or `timeout` has passed.
    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()>;
}
