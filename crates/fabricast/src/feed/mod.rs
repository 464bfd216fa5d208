//! A feed: files and directories that one host offers for as long as it runs, and hosts that follow
//! it (spec 5.14).
//!
//! Each follower keeps a connection to the feed. The feed tells it the catalogue, and the follower
//! answers which entries it wants: those that it does not have. [`next_publication`] chooses what
//! to send to which followers, and [`crate::transfer`] sends it. So each entry is sent once to all
//! that want it, and nothing is sent to those that do not.
//!
//! ```text
//!   follower                       feed
//!      │ follow ──────────────────▶ │
//!      │ ◀─────────────────── feed  │
//!      │ wants (catalogue 0: none)▶ │
//!      │ ◀───────────── catalogue 1 │    whenever it is another one than the follower knows
//!      │ wants 0, 2 ──────────────▶ │
//!      │ ◀── publication: 0, port P │    a transfer at that port, as any other
//! ```
//! The feed speaks only when it is asked: for each `wants` the follower gets one answer.

mod catalogue;
mod follower;
mod line;
mod message;
mod publication;
mod server;
#[cfg(test)]
mod tests;

pub use catalogue::{Catalogue, Entry, is_name};
pub use follower::{Follower, Heard};
pub use message::Publication;
pub use publication::{Choice, SMALL, next_publication};
pub use server::{Event, FeedServer, FollowerKey};
