//! The datagrams of discovery, and where and how often they are sent.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The group for announcements, an address of the organisation-local scope.
pub const GROUP: Ipv4Addr = Ipv4Addr::new(239, 255, 76, 40);
/// The group for queries, an address of the organisation-local scope.
pub const ASKED: Ipv4Addr = Ipv4Addr::new(239, 255, 76, 41);
/// UDP port of announcements and queries.
pub const PORT: u16 = 7642;
/// How often a sender announces itself.
pub const EVERY: Duration = Duration::from_millis(500);
/// Datagrams that are read in one turn at most.
pub const READ_MAX: usize = 64;
/// Longest announcement in bytes.
pub const MAX: usize = 1400;
/// Length of a query in bytes, and so of the longest answer.
pub const QUERY: usize = 1024;

/// What a sender announces.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Announcement {
    /// The version of the control messages.
    pub fabricast: u32,
    /// The transfer's session number.
    pub session: u64,
    /// TCP port of the rendezvous, at the address that the announcement comes from.
    pub port: u16,
    /// Name of the file, as it is.
    pub name: String,
    /// Length of the file in bytes.
    #[serde(default)]
    pub len: Option<u64>,
    /// The number of the query that this announcement answers, if it is an answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answers: Option<u64>,
}

/// A receiver's query for senders. Spaces follow, up to [`QUERY`] bytes.
#[derive(Serialize, Deserialize)]
pub struct Query {
    /// The version of the control messages.
    pub fabricast: u32,
    /// Random number that an answer repeats, so that only a sender that heard the query can answer.
    pub asks: u64,
}

/// The offer of a sender that was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Offer {
    /// Address of the sender's rendezvous.
    pub address: SocketAddr,
    /// Name of the file, as it came; it is escaped where it is shown.
    pub name: String,
    /// Length of the file in bytes, if the sender told it.
    pub len: Option<u64>,
    /// Number of files and directories that are sent together. The first has the name above. An
    /// announcement tells of one.
    pub tops: u32,
}
