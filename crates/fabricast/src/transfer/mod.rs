//! Transfer of files from one host to many, from admission to the report.
//!
//! [`send`] and [`recv`] block. Each drives one [`crate::driver::Driver`] on the calling thread and
//! reports events through a callback. Disk and control connections have threads of their own
//! ([`crate::object`], [`crate::bootstrap`]). These threads use a waker when they have something.
//!
//! ```text
//!   send:  list ── gather ── start ── prove paths ── announce and send packs ── all verified
//!   recv:  connect ── join ── post packs ── prove (mend), store each ── links ── verified
//! ```
//!
//! With P3's protocol ([`crate::ibrmp`]), another pair of loops runs between start and report.
//!
//! A receiver that comes late joins the group from the next pack on. While the stream runs, it gets
//! what it has missed from receivers that serve, and from the sender within one percent of the
//! stream's bytes. After the stream the sender sends all packs again that receivers lack.

mod comparing;
mod events;
mod kept_packs;
mod receiver;
mod sender;

pub use events::{
    By, Part, ReceiverReport, RecvEvent, RecvReport, SendEvent, SendFailure, SendReport, State,
    Traffic,
};
pub use receiver::recv;
pub(crate) use receiver::resolve;
pub use sender::{Source, send};
pub(crate) use sender::{host, places};

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fabricast_proto::{AddressId, Command, GroupId, NodeId, Seq, Time};

use self::receiver::Incoming;
use crate::bootstrap::message::Start;
use crate::driver::Driver;
use crate::error::Error;
use crate::net::Net;
use crate::object::{Memory, Object};
use crate::transport::News;

/// The sender's node number.
const ROOT: NodeId = NodeId(0);
/// The group of all nodes of the transfer.
const ALL: GroupId = GroupId(0);
/// The number of its multicast address, if it has one.
const ADDRESS: AddressId = AddressId(0);
/// Bytes that may be under way to a receiver; the window must not exceed them.
const WINDOW_BYTES: u64 = 58 << 20;
/// How often the loops check what changes only with time.
const TICK: Duration = Duration::from_millis(100);
/// How often a receiver tells the sender that it is at work.
const WORKING: Duration = Duration::from_secs(1);
/// How long a receiver that has finished waits for the sender's `Bye`.
const FAREWELL: Duration = Duration::from_secs(5);

/// The driver of a sender, whose packs lie in memory.
type SendDriver = Driver<Net, Memory>;
/// The driver of a receiver.
type RecvDriver = Driver<Net, Incoming>;

/// What the transport has noticed since the last call, in words.
fn notices<O: Object>(driver: &mut Driver<Net, O>) -> impl Iterator<Item = String> + '_ {
    let news = std::iter::from_fn(|| driver.news());
    let told = news.filter(|n| !matches!(n, News::Joined(_)));
    told.map(|n| n.to_string())
}

/// Adds the group of the sender and the receivers that are there from the start.
fn group_add(start: &Start, session: u64) -> Command {
    Command::GroupAdd {
        group: ALL,
        address: start.group.is_some().then_some(ADDRESS),
        members: start.members.iter().copied().map(NodeId).collect(),
        payload_size: start.payload_size,
        start: Seq(session as u32),
    }
}

fn check(interrupt: &AtomicBool) -> Result<(), Error> {
    match interrupt.load(Ordering::Relaxed) {
        true => Err(Error::Interrupted),
        false => Ok(()),
    }
}

/// Waits for the network, the waker, the node's next deadline or the next tick.
fn rest<O: Object>(
    driver: &mut Driver<Net, O>,
    wake: Option<Time>,
    now: Time,
) -> Result<(), Error> {
    let timeout = wake.map_or(TICK, |at| at.since(now).min(TICK));
    driver
        .transport()
        .wait(Some(timeout))
        .map_err(|e| Error::io("waiting for the network", e))
}
