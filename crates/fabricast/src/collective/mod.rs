//! Collectives that consist of several operations: broadcasts by messages between two nodes, as in
//! MPI libraries where there is no multicast; broadcasts to a set that is no group, by groups that
//! together are that set ([`Cover`], P4.7); and what the processes of several hosts do together,
//! by the network and by the memory that they share.
//!
//! What each rank does is a value: a list of steps. A [`Schedule`] computes it for broadcasts. An
//! [`Executor`] runs the steps of many collectives over the drivers of one or more networks, live
//! or under virtual time. A message between two ranks travels in a group of two, which is a channel
//! of reliable messages (spec 2.9): a rank sends by a broadcast there, and receives by a post. The
//! core sees one operation for each step, and knows of nothing else.
//!
//! ```text
//!   Schedule::steps(rank) ──→ Executor ── post, bcast, barrier ──→ Drivers ──→ Transport
//!                                ↕ parts of the message
//!                              Buffer
//! ```

mod buffer;
mod cover;
mod drivers;
mod executor;
mod schedule;
mod segments;
mod step;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

pub use buffer::{Buffer, MessageBuffer};
pub use cover::{Cover, Hop};
pub use drivers::{Channel, Drivers, Stuck};
pub use executor::{AHEAD, Begun, CollectiveId, Ended, Executor, News, Pace};
pub use schedule::{Algorithm, Schedule, pass_on};
pub use segments::Segments;
pub use step::{Action, Part, Peer, Step};
