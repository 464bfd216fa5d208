//! Finding a sender without its address: it announces itself by multicast while it waits, and
//! answers receivers that ask.
//!
//! ```text
//!   receiver                                        sender
//!            ←─ announcement, to GROUP, every 500 ms ─
//!            ── query, to ASKED ────────────────────→
//!            ←─ answer: the announcement, unicast ───
//! ```
//!
//! An announcement names where the rendezvous is and what is offered; it proves nothing, and the
//! receiver then talks to that address over TCP as it would to one typed in. Queries spare a
//! receiver the wait for the next announcement, and show it soon whether there are several
//! senders. They go to a group that only senders join, so that receivers do not hear each other.
//!
//! The source address of a query may be forged. So an answer is no longer than its query, answers
//! are limited per second, and none leaves the link or goes to a privileged port.
//!
//! Another process of the host can keep UDP port 7642 for itself (bound without `SO_REUSEADDR`).
//! The sender then announces itself and answers no queries; the receiver then goes on asking and
//! finds the senders that answer. Both say so.

mod announcement;
mod announcer;
mod asker;
mod listener;
mod senders;
mod sockets;

pub use announcement::{Announcement, Offer};
pub use announcer::Announcer;
pub use listener::Listener;
pub use senders::Found;
