//! What carries datagrams: one narrow trait, which every network and the simulator implement.
//!
//! A transport may lose, repeat and reorder datagrams without notice. It never blocks except in
//! [`Transport::wait`]. Only the operating system causes errors: what comes from the network is
//! handed up as bytes, whatever it is.
//!
//! ```text
//!   Slots::take ─► write the head ─► send (posts) ─ ─ ─► completions ─► Slots::release
//!                                      the transport reads
//!                                      slot and payload
//! ```
//! Sending has two ends. `send` posts datagrams. From then on the transport, or a device, may read
//! their bytes at any time, until `completions` names them. UDP and shared memory have read all
//! bytes when `send` returns.

/// Methods of [`Transport`] that a wrapper hands on to the transport in its field `$inner`.
macro_rules! forward {
    ($inner:ident: $($method:ident)*) => { $(forward!(@$inner $method);)* };
    (@$inner:ident caps) => {
        fn caps(&self) -> Caps { self.$inner.caps() }
    };
    (@$inner:ident names) => {
        fn backlog(&self, payload_size: u32) -> u32 { self.$inner.backlog(payload_size) }
        fn address(&self) -> NodeAddress { self.$inner.address() }
        fn port(&self) -> &str { self.$inner.port() }
        fn counters(&self) -> Counters { self.$inner.counters() }
    };
    (@$inner:ident members) => {
        fn peer(&mut self, node: NodeId, address: &NodeAddress) {
            self.$inner.peer(node, address);
        }
        fn forget(&mut self, node: NodeId) { self.$inner.forget(node); }
        fn hearsay(&mut self, node: NodeId, address: &NodeAddress) {
            self.$inner.hearsay(node, address);
        }
        fn unanswered(&self) -> Vec<NodeId> { self.$inner.unanswered() }
        fn ask_again(&mut self, node: NodeId) { self.$inner.ask_again(node); }
        fn join(&mut self, id: AddressId, address: &GroupAddress, receive: bool) {
            self.$inner.join(id, address, receive);
        }
        fn leave(&mut self, id: AddressId) { self.$inner.leave(id); }
        fn loop_back(&mut self, on: bool) { self.$inner.loop_back(on); }
    };
    (@$inner:ident news) => {
        fn news(&mut self) -> Option<News> { self.$inner.news() }
    };
    (@$inner:ident slots) => {
        fn slots(&mut self) -> &mut Slots { self.$inner.slots() }
    };
    (@$inner:ident send) => {
        fn send(&mut self, now: Time, batch: &[Outgoing<'_>]) -> io::Result<usize> {
            self.$inner.send(now, batch)
        }
    };
    (@$inner:ident completions) => {
        fn completions(&mut self, now: Time, done: &mut dyn FnMut(DatagramId)) {
            self.$inner.completions(now, done);
        }
    };
    (@$inner:ident cancel) => {
        fn cancel(&mut self) { self.$inner.cancel(); }
    };
    (@$inner:ident recv) => {
        fn recv(
            &mut self,
            now: Time,
            sink: &mut dyn FnMut(&mut Arrival<'_>),
        ) -> io::Result<usize> {
            self.$inner.recv(now, sink)
        }
    };
    (@$inner:ident is_drained) => {
        fn is_drained(&self) -> bool { self.$inner.is_drained() }
    };
    (@$inner:ident due) => {
        fn due(&self) -> Option<Time> { self.$inner.due() }
    };
    (@$inner:ident wait) => {
        fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
            self.$inner.wait(timeout)
        }
    };
    (@$inner:ident sleep) => {
        fn is_full(&self) -> bool { self.$inner.is_full() }
        fn attach(&mut self, sleeper: &Sleeper) -> io::Result<Box<dyn Watch>> {
            self.$inner.attach(sleeper)
        }
        fn woken(&mut self, ready: &Ready) { self.$inner.woken(ready); }
    };
}

pub mod delayed;
pub mod fault;
pub mod link;
#[cfg(target_os = "linux")]
pub mod shm;
#[cfg(target_os = "linux")]
pub mod udp;

mod address;
mod any;
mod arrival;
mod counters;
mod news;
mod slots;
#[cfg(test)]
pub(crate) mod testing;
mod wait;

pub use address::{GroupAddress, NodeAddress};
pub use any::AnyTransport;
pub use arrival::{Arrival, Kept};
pub use counters::Counters;
pub use news::News;
pub use slots::{DatagramId, Outgoing, Part, Pieces, SLOTS, Slots};
pub use wait::{Descriptors, Ready, Sleeper, Watch};

use std::io;
use std::time::Duration;

use fabricast_proto::{AddressId, Dest, NodeId, Time};

/// Capabilities of a transport.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caps {
    /// Largest datagram, in bytes.
    pub datagram_max: usize,
    /// Bytes that the wire carries in addition to each datagram.
    pub overhead: u64,
    /// Whether the transport reads slots and payloads after `send` has returned. If not, every
    /// datagram that `send` has taken is complete at once.
    pub zero_copy: bool,
}

impl Caps {
    /// The capabilities of a network that carries datagrams of at most `datagram_max` bytes, and
    /// reads them in `send`.
    pub const fn datagrams(datagram_max: usize) -> Caps {
        Caps {
            datagram_max,
            overhead: 0,
            zero_copy: false,
        }
    }
}

/// A network, or something that behaves like one.
pub trait Transport {
    /// The capabilities of this transport.
    fn caps(&self) -> Caps;

    /// Number of datagrams that can wait to be received before the network drops them, if each
    /// carries a payload of this many bytes.
    fn backlog(&self, payload_size: u32) -> u32;

    /// Where this node receives what is sent to it alone.
    fn address(&self) -> NodeAddress;

    /// Name of the port (interface, adapter) in use; empty if the network has none.
    fn port(&self) -> &str {
        ""
    }

    /// From now on, sends datagrams for `node` to `address`, and takes those that come from there
    /// to be the node's. Gives a notice ([`Transport::news`]) if the network has no such address.
    fn peer(&mut self, node: NodeId, address: &NodeAddress);

    /// Forgets the address of `node`.
    fn forget(&mut self, node: NodeId);

    /// Like [`Transport::peer`], but only another node has said so, which may lie. A network in
    /// which that could do harm asks the address before it sends anything else there.
    fn hearsay(&mut self, node: NodeId, address: &NodeAddress) {
        self.peer(node, address);
    }

    /// The nodes known from hearsay that were asked, or must be, and have not answered.
    fn unanswered(&self) -> Vec<NodeId> {
        Vec::new()
    }

    /// Asks `node` once more. The caller must have a reason no smaller than the question.
    fn ask_again(&mut self, node: NodeId) {
        let _ = node;
    }

    /// Begins to send datagrams for [`Dest::Address`] of `id` to `address`, and with `receive` also
    /// to receive those that are sent there. [`Transport::news`] says how that has ended. Until
    /// then such datagrams may be lost.
    fn join(&mut self, id: AddressId, address: &GroupAddress, receive: bool);

    /// Undoes [`Transport::join`].
    fn leave(&mut self, id: AddressId);

    /// Sets whether multicasts also reach other nodes at this port. Networks where that
    /// costs nothing always deliver them.
    fn loop_back(&mut self, on: bool) {
        let _ = on;
    }

    /// The slots of the datagrams to be sent.
    fn slots(&mut self) -> &mut Slots;

    /// Posts as many datagrams of `batch`, from its front, as the network takes now. Returns how
    /// many. Fewer is back-pressure, not an error. After an error nothing of the batch is posted. A
    /// datagram for an unknown node or address counts as sent and is dropped.
    ///
    /// The caller neither moves nor changes the slot and the payload of a posted datagram until
    /// [`Transport::completions`] has named it ([`Slots::lending`]).
    fn send(&mut self, now: Time, batch: &[Outgoing<'_>]) -> io::Result<usize>;

    /// Names the posted datagrams that the transport reads no more and has not named yet, in any
    /// order. Their slots are still taken.
    fn completions(&mut self, now: Time, done: &mut dyn FnMut(DatagramId));

    /// Gives up all posted datagrams. When it returns, the transport reads none of them any more,
    /// and the next [`Transport::completions`] names them. A transport with [`Caps::zero_copy`]
    /// must do something here; any other one has read all bytes already.
    fn cancel(&mut self) {}

    /// Hands up to some dozens of waiting datagrams to `sink`, each with its source and the time at
    /// which it came out of the network. Without that time it passes `now`; time spent in the
    /// receive buffer then looks like a queue in the network. Returns how many it has handed up.
    /// Zero means that none waits, or that the call read only the node's own datagrams, so many
    /// that [`Transport::wait`] will return at once.
    fn recv(&mut self, now: Time, sink: &mut dyn FnMut(&mut Arrival<'_>)) -> io::Result<usize>;

    /// Whether nothing waits to be received, as far as the last receive call found out, without
    /// asking the system. The driver then need not receive again at once to find out. A datagram
    /// that has arrived since ends the next wait at once.
    fn is_drained(&self) -> bool {
        false
    }

    /// What has happened beside datagrams, the oldest first; `None` if there is nothing more.
    fn news(&mut self) -> Option<News> {
        None
    }

    /// When the owner must use the transport again at the latest, although nothing arrives: a
    /// device is looked at, or the network takes datagrams again. `None`: no such time is known.
    fn due(&self) -> Option<Time> {
        None
    }

    /// Whether the last `send` took fewer than offered and a wait ends when the network takes more.
    fn is_full(&self) -> bool {
        false
    }

    /// From now on, arrivals end the sleep of this thread. The thread calls what is returned before
    /// and after each sleep.
    fn attach(&mut self, sleeper: &Sleeper) -> io::Result<Box<dyn Watch>>;

    /// Takes note of what a sleep has seen: for some calls the transport may read only what is
    /// ready.
    fn woken(&mut self, ready: &Ready) {
        let _ = ready;
    }

    /// Blocks until a datagram waits, the waker was rung, the network takes datagrams again (if the
    /// last `send` took fewer than offered), or `timeout` has passed.
    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()>;

    /// Counters since the start. Some networks ask the system, so this is not for every datagram.
    fn counters(&self) -> Counters {
        Counters::default()
    }
}

/// Sends datagrams that no driver has written, each to a destination and in two pieces: the first
/// is copied, the second is sent from where it is, unless the transport reads it late. P3's
/// protocol, measurements and tests send so. Returns how many were taken. Panics if a piece that is
/// copied does not fit in a datagram of the network.
pub fn send_plain<T: Transport>(
    net: &mut T,
    now: Time,
    batch: &[(Dest, &[u8], &[u8])],
) -> io::Result<usize> {
    let reads_late = net.caps().zero_copy;
    let mut sent = 0;
    while sent < batch.len() {
        release_completed(net, now);
        let slots = net.slots();
        let mut outgoing = Vec::with_capacity(SLOTS);
        for &(to, head, payload) in &batch[sent..] {
            let Some(id) = slots.take() else { break };
            slots.head(id).put(head);
            outgoing.push(match reads_late {
                true => {
                    slots.payload(id).put(payload);
                    slots.outgoing(id, to)
                }
                // SAFETY: the transport reads the payload in `send` alone.
                #[allow(unsafe_code)]
                false => unsafe { slots.lending(id, to, payload) },
            });
        }
        let taken = net.send(now, &outgoing);
        let not_taken = &outgoing[*taken.as_ref().unwrap_or(&0)..];
        not_taken.iter().for_each(|d| net.slots().release(d.id));
        let taken = taken?;
        sent += taken;
        if taken < outgoing.len() || outgoing.is_empty() {
            break;
        }
    }
    release_completed(net, now);
    Ok(sent)
}

/// Frees the slots of the datagrams that the transport reads no more.
fn release_completed<T: Transport>(net: &mut T, now: Time) {
    let mut done = Vec::new();
    net.completions(now, &mut |id| done.push(id));
    done.into_iter().for_each(|id| net.slots().release(id));
}
