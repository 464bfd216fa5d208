//! What carries datagrams: one narrow trait, behind which every network and the simulator stand.
//!
//! A transport may lose, repeat and reorder datagrams and tells nobody; it never blocks but in
//! [`Transport::wait`]. Errors are the operating system's alone: what comes from the network is
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

/// What a transport can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caps {
    /// Largest datagram (head and body), in bytes.
    pub datagram_max: usize,
    /// Bytes that the receive buffer really holds (read back, not what was asked for).
    pub receive_buffer: usize,
}

/// A datagram on its way out, in two pieces so that a payload is never copied to get a header.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// To whom.
    pub to: Dest,
    /// Header and frames, without the last frame's payload.
    pub head: &'a [u8],
    /// That payload.
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

/// From whom a datagram says it is; `None`: it does not say.
pub type Claims = fn(&[u8]) -> Option<NodeId>;

/// A network, or something that behaves like one.
pub trait Transport {
    /// How this network names a node.
    type Address: Clone;

    /// What this transport can do.
    fn caps(&self) -> Caps;

    /// Datagrams for `node` go to `address` from now on.
    fn peer(&mut self, node: NodeId, address: Self::Address);

    /// `node` is not written to any more.
    fn forget(&mut self, node: NodeId);

    /// Datagrams for `group` go to `address`; with `receive`, those sent there are received.
    fn join(&mut self, group: GroupId, address: Self::Address, receive: bool) -> io::Result<()>;

    /// Undoes [`Transport::join`].
    fn leave(&mut self, group: GroupId);

    /// From now on, what claims to come from a node and comes from elsewhere than that node's
    /// address ([`Transport::peer`]), or from a node without one, is dropped and counted as
    /// foreign; what does not say is handed up. A network in which nobody can lie about that need
    /// not do anything.
    fn screen(&mut self, claims: Claims) {
        let _ = claims;
    }

    /// Sends as many of `batch`, from its front, as the network takes now, and says how many.
    /// Fewer is back-pressure, not an error. A datagram for a node or group that is not known is
    /// counted as sent and dropped.
    fn send(&mut self, now: Time, batch: &[Outgoing<'_>]) -> io::Result<usize>;

    /// Hands up to some dozens of waiting datagrams to `sink`, each with the time at which it came
    /// out of the network (`now`, if that is not known: then time spent in the receive buffer
    /// looks like a queue in the network); says how many. Zero: none waits, or only after so many
    /// of one's own that [`Transport::wait`] will say at once that there is more.
    fn recv(&mut self, now: Time, sink: &mut dyn FnMut(Time, &[u8])) -> io::Result<usize>;

    /// Whether nothing waits to be received, as far as the last look said, without asking the
    /// system: then the driver need not come again at once to find out. What has come since ends
    /// the next wait at once.
    fn is_drained(&self) -> bool {
        false
    }

    /// Blocks until a datagram waits, the waker was rung, the network takes datagrams again (if
    /// the last `send` took fewer), or `timeout` has passed.
    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()>;
}
