//! One file from one host to many, from the rendezvous to the report.
//!
//! [`send`] and [`recv`] block; each drives one [`crate::driver::Driver`] on the calling thread and
//! tells what happens through a callback. Disk and control connections have threads of their own
//! ([`crate::object`], [`crate::bootstrap`]), which ring when they have something.
//!
//! ```text
//!   send:  gather ── start ── prove paths ── stream file, then hash list ── all verified
//!   recv:  connect ── join, post ── receive ── prove hashes (mend) ── fsync, rename ── verified
//! ```

mod events;
mod finding;
mod gather;
mod mending;
mod plan;
mod receiving;
mod refusals;
mod roster;
mod sending;

pub use events::{
    By, ReceiverReport, RecvEvent, RecvReport, SendEvent, SendFailure, SendReport, State, Traffic,
};
pub use receiving::recv;
pub use sending::send;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fabricast_proto::{GroupId, NodeId, Time};

use crate::driver::Driver;
use crate::error::Error;
use crate::net::Net;
use crate::object::FileObject;
use crate::transport::Transport;

/// The sender's number.
const ROOT: NodeId = NodeId(0);
/// The group of all.
const ALL: GroupId = GroupId(0);
/// How often the loops look at what only time changes.
const TICK: Duration = Duration::from_millis(100);

type FileDriver = Driver<Net, FileObject>;

/// What the transport has noticed since it was last asked, in words.
fn notices(driver: &mut FileDriver) -> impl Iterator<Item = String> + '_ {
    std::iter::from_fn(|| {
        driver
            .transport()
            .inner_mut()
            .notice()
            .map(|n| n.to_string())
    })
}

fn check(interrupt: &AtomicBool) -> Result<(), Error> {
    match interrupt.load(Ordering::Relaxed) {
        true => Err(Error::Interrupted),
        false => Ok(()),
    }
}

/// Waits for the network, the bell, the node's next deadline or the next tick.
fn rest(driver: &mut FileDriver, wake: Option<Time>, now: Time) -> Result<(), Error> {
    let timeout = wake.map_or(TICK, |at| at.since(now).min(TICK));
    driver
        .transport()
        .wait(Some(timeout))
        .map_err(|e| Error::io("waiting for the network", e))
}
