//! The datagrams of discovery, and where and how often they are sent.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Where announcements go, an address of the organisation-local scope.
pub const GROUP: Ipv4Addr = Ipv4Addr::new(239, 255, 76, 40);
/// Where queries go, another such address.
pub const ASKED: Ipv4Addr = Ipv4Addr::new(239, 255, 76, 41);
/// The UDP port of both.
pub const PORT: u16 = 7642;
/// How often a sender announces itself.
pub const EVERY: Duration = Duration::from_millis(500);
/// Datagrams that are read in one moment.
pub const READ_MAX: usize = 64;
/// Longest announcement.
pub const MAX: usize = 1400;
/// Length of a query, and so of the longest answer.
pub const QUERY: usize = 1024;

/// What a sender announces.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Announcement {
    /// The version of the control messages.
    pub fabricast: u32,
    /// The transfer.
    pub session: u64,
    /// Port of the rendezvous, on the address that the announcement comes from.
    pub port: u16,
    /// Name of the file, as it is.
    pub name: String,
    /// Its length in bytes.
    #[serde(default)]
    pub len: Option<u64>,
    /// The number of the query that this answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answers: Option<u64>,
}

/// A receiver asks who is there; spaces follow, up to [`QUERY`] bytes.
#[derive(Serialize, Deserialize)]
pub struct Query {
    /// The version of the control messages.
    pub fabricast: u32,
    /// Drawn at random: an answer repeats it, so that only those who hear the query can answer.
    pub asks: u64,
}

/// What a sender that was found offers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Offer {
    /// Its rendezvous.
    pub address: SocketAddr,
    /// Name of the file, as it came: it is escaped where it is shown.
    pub name: String,
    /// Length of the file in bytes, if it was told.
    pub len: Option<u64>,
}
