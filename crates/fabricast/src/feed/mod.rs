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
//!      │ wants 2 ─────────────────▶ │    while that transfer runs
//!      │ ◀── publication: 2, port Q │
//! ```
//! The feed speaks only when it is asked: it answers the last `wants` of a follower, once. So a
//! follower can take part in several transfers at once.

mod catalogue;
mod follower;
mod line;
mod message;
mod publication;
mod refusals;
mod server;
#[cfg(test)]
mod tests;

pub use catalogue::{Catalogue, Entry, is_name};
pub use follower::{Follower, Heard};
pub use message::{Publication, ToFeed, ToFollower, shown_number};
pub use publication::{AT_ONCE_MAX, Choice, SHORT_MAX, next_publication};
pub use server::{Counts, Event, FeedServer, FollowerKey};
