//! Events that the rendezvous reports to the transfer: what receivers say, and which are gone.

use std::net::SocketAddr;

use fabricast_proto::ibrmp::Frame;

use super::message::{Hello, ToSender};

/// A connection; a key is never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct PeerKey(pub(super) u64);

#[cfg(test)]
impl PeerKey {
    /// A key for tests.
    pub fn numbered(number: u64) -> PeerKey {
        PeerKey(number)
    }
}

/// What has happened at the control connections.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// A peer has connected and has said hello.
    Hello {
        /// Its connection.
        peer: PeerKey,
        /// Its address.
        address: SocketAddr,
        /// The sender's address that it connected to.
        local: SocketAddr,
        /// Its hello.
        hello: Hello,
    },
    /// A peer has shown the ticket of a receiver that serves.
    Guest {
        /// Its connection.
        peer: PeerKey,
        /// Its address.
        address: SocketAddr,
    },
    /// A peer has said hello in a way that this version cannot read. It was told so.
    Refused {
        /// Name of the receiver, or its IP address.
        name: String,
        /// Its address.
        address: SocketAddr,
        /// Why, in words.
        reason: String,
    },
    /// A peer that has said hello says something else.
    Said {
        /// Its connection.
        peer: PeerKey,
        /// The message.
        message: ToSender,
    },
    /// A frame has come by a peer's reliable channel.
    Frame {
        /// Its connection.
        peer: PeerKey,
        /// The frame. It has no payload.
        frame: Frame,
    },
    /// A peer that had said hello is gone.
    Lost {
        /// Its connection.
        peer: PeerKey,
        /// Why, in words.
        reason: String,
    },
    /// A pending connection was closed; the number of such connections so far.
    Pending(u64),
}
