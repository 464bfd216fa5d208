//! Broadcasts made of messages between two nodes: what MPI libraries do where there is no
//! multicast, as the baseline to compare with.
//!
//! What each rank does is a value, the steps of its [`Schedule`]; a [`Runner`] executes them over
//! one driver, live or under virtual time. A message travels in a group of two, which is a channel
//! of reliable messages (spec 2.9): to send is to broadcast there, to receive is to post.
//!
//! ```text
//!   Schedule::steps(rank) ──→ Runner ── post, bcast ──→ Driver ──→ Transport
//!                               ↕ parts of the message
//!                             Buffer
//! ```

mod buffer;
mod runner;
mod schedule;
#[cfg(test)]
mod tests;

pub use buffer::{Buffer, MessageBuffer};
pub use runner::{AHEAD, Channel, Runner};
pub use schedule::{Algorithm, Part, Schedule, Step, Way};
