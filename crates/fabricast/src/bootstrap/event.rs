//! What the rendezvous tells the transfer: who said what, and who is gone.

use std::net::SocketAddr;

use super::message::{Hello, ToSender};

/// A connection; never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct PeerKey(pub(super) u64);

/// What has happened at the control connections.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// Somebody has connected and says who it is.
    Hello {
        /// Its connection.
        peer: PeerKey,
        /// Its address.
        address: SocketAddr,
        /// Ours, by which it came.
        local: SocketAddr,
        /// What it said.
        hello: Hello,
    },
    /// Somebody who had said `Hello` says something else.
    Said {
        /// Who.
        peer: PeerKey,
        /// What.
        message: ToSender,
    },
    /// Somebody who had said `Hello` is gone.
    Lost {
        /// Who.
        peer: PeerKey,
        /// Why, in words.
        reason: String,
    },
    /// A connection made no sense and was closed. So many so far.
    Pending(u64),
}
