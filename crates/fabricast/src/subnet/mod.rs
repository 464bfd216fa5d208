//! Memberships of multicast addresses: how a host gets them, and what becomes of them.
//!
//! A [`Subnet`] makes this host's port a member of multicast addresses, and ends that again. Each
//! call only begins something; [`Subnet::news`] says later how it has ended.
//!
//! ```text
//!   create ─┐                ┌─► Joined ─► (Lost ─► Joined)* ─┐
//!   join ───┴─ ─ step ─ ─ ─ ─┤                                 ├─ leave ─ ─ step ─ ─► Left
//!                            └─► Refused                       │
//! ```
//! A granted membership does not mean that the network forwards: switches learn of it later, at a
//! time that nobody reports. Only a probe proves that an address works.
//!
//! [`igmp::Igmp`] grants everything. [`opensm::OpenSm`] asks an InfiniBand subnet manager.

use std::fmt;
use std::io;
use std::time::Duration;

use fabricast_proto::Time;

use crate::transport::{GroupAddress, Sleeper};

pub mod failed;
pub mod igmp;
pub mod kind;
pub mod opensm;

/// What grants memberships of multicast addresses to this host's port.
///
/// Several joins of one address are one membership of the port, which ends with the last leave. The
/// functions that are provided are those of a subnet that answers each call at once.
pub trait Subnet {
    /// A word for what grants addresses.
    fn name(&self) -> &'static str {
        "subnet"
    }

    /// Begins to join `address`, and to create it if it does not exist. [`News::Joined`] or
    /// [`News::Refused`] answers each call.
    fn create(&mut self, now: Time, address: &GroupAddress);

    /// Begins to join `address`, which another host has created or which always exists.
    /// [`News::Joined`] or [`News::Refused`] answers each call.
    fn join(&mut self, now: Time, address: &GroupAddress);

    /// Begins to undo one create or join of `address` that was not refused. [`News::Left`] answers
    /// each call. A leave before the answer withdraws the create or join: then only
    /// [`News::Left`] comes.
    fn leave(&mut self, now: Time, address: &GroupAddress);

    /// Takes the answers that have arrived, and sends what is due. An error ends the use of the
    /// subnet.
    fn step(&mut self, now: Time) -> io::Result<()> {
        let _ = now;
        Ok(())
    }

    /// What has happened, the oldest first; `None` if there is nothing more.
    fn news(&mut self) -> Option<News>;

    /// When the owner must call [`Subnet::step`] again at the latest, although nothing arrives.
    /// `None`: no such time is known.
    fn due(&self) -> Option<Time> {
        None
    }

    /// From now on, answers end the sleep of this thread. Where the system cannot watch for
    /// answers, [`Subnet::due`] says when to look for them.
    fn attach(&mut self, sleeper: &Sleeper) -> io::Result<()> {
        let _ = sleeper;
        Ok(())
    }

    /// Blocks until an answer may have arrived, or `timeout` has passed.
    fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        let _ = timeout;
        Ok(())
    }
}

/// Something that has happened to a membership or to the port.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum News {
    /// The port is a member of the address. Switches may learn of it later.
    Joined(GroupAddress),
    /// The port could not become a member of the address. The call is undone.
    Refused(GroupAddress, Refusal),
    /// One create or join of the address is undone.
    Left(GroupAddress),
    /// The port is no member of the address any more, although nobody has left it. The subnet
    /// joins it again by itself, and [`News::Joined`] follows then.
    Lost(GroupAddress),
    /// The port carries nothing any more.
    PortDown {
        /// The port's name.
        port: String,
    },
    /// The port carries datagrams again. What it was a member of is being checked.
    PortUp {
        /// The port's name.
        port: String,
    },
    /// Something that a user may want to know or fix. The subnet continues.
    Notice(String),
}

/// Why an address was not granted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// The network has no more addresses.
    NoAddresses,
    /// The manager was busy, however often it was asked.
    Busy,
    /// The manager has refused the request with this status of its own.
    Invalid(u16),
    /// The manager did not answer, however often it was asked.
    TimedOut,
    /// The address is not of a kind that this subnet grants.
    Foreign,
    /// This process is a member of as many addresses as it may be.
    TooMany,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::NoAddresses => f.write_str("no more addresses"),
            Refusal::Busy => f.write_str("the subnet manager is busy"),
            Refusal::Invalid(status) => {
                write!(f, "the subnet manager refuses it with status {status:#06x}")
            }
            Refusal::TimedOut => f.write_str("the subnet manager does not answer"),
            Refusal::Foreign => f.write_str("the network has no such addresses"),
            Refusal::TooMany => f.write_str("this process has joined too many addresses"),
        }
    }
}

impl fmt::Display for News {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            News::Joined(address) => write!(f, "joined {address}"),
            News::Refused(address, refusal) => write!(f, "cannot join {address}: {refusal}"),
            News::Left(address) => write!(f, "left {address}"),
            News::Lost(address) => write!(f, "lost the membership of {address}"),
            News::PortDown { port } => write!(f, "port {port} is down"),
            News::PortUp { port } => write!(f, "port {port} is up"),
            News::Notice(text) => f.write_str(text),
        }
    }
}
