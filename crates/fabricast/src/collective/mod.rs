//! Broadcasts made of several operations: of messages between two nodes, as MPI libraries do where
//! there is no multicast (the baseline to compare with), and to a set that no group is, of
//! broadcasts to groups that together are ([`Cover`], P4.7).
//!
//! What each rank does is a value, the steps of its [`Schedule`]; a [`Runner`] executes them over
//! one driver, live or under virtual time. A message travels in a group of two, which is a channel
//! of reliable messages (spec 2.9): to send is to broadcast there, to receive is to post. So the
//! core sees one operation for each message and each group (and segment), and knows of no more.
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
