//! Broadcasts that consist of several operations. Some consist of messages between two nodes, as in
//! MPI libraries where there is no multicast (the baseline to compare with). A broadcast to a set
//! that is no group consists of broadcasts to groups that together are that set ([`Cover`], P4.7).
//!
//! What each rank does is a value: the steps of its [`Schedule`]. A [`Runner`] executes them over
//! one driver, live or under virtual time. A message travels in a group of two, which is a channel
//! of reliable messages (spec 2.9): a rank sends by a broadcast there, and receives by a post. The
//! core sees one operation for each message and each group (and segment), and knows of nothing
//! else.
//!
//! ```text
//!   Schedule::steps(rank) ──→ Runner ── post, bcast ──→ Driver ──→ Transport
//!                               ↕ parts of the message
//!                             Buffer
//! ```

mod buffer;
mod cover;
mod runner;
mod schedule;
mod step;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use buffer::{Buffer, MessageBuffer};
pub use cover::{Cover, Hop};
pub use runner::{AHEAD, Channel, Runner};
pub use schedule::{Algorithm, Schedule};
pub use step::{Direction, Part, Peer, Step};
