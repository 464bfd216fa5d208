//! Finding a sender without its address: the sender announces itself by multicast while it waits,
//! and answers receivers that ask.
//!
//! ```text
//!   receiver                                        sender
//!            ←─ announcement, to GROUP, every 500 ms ─
//!            ── query, to ASKED ────────────────────→
//!            ←─ answer: the announcement, unicast ───
//! ```
//!
//! An announcement names the address of the rendezvous and the offer. It proves nothing: the
//! receiver then talks to that address over TCP as to one that its user typed in. Queries spare a
//! receiver the wait for the next announcement, and show it soon whether there are several senders.
//! Queries go to a group that only senders join, so that receivers do not hear each other.
//!
//! The source address of a query may be forged. So an answer is no longer than its query, answers
//! are limited per second, and no answer leaves the link or goes to a privileged port.
//!
//! Another process of the host can keep UDP port 7642 for itself (bound without `SO_REUSEADDR`). If
//! that happens at the sender, it announces itself but answers no queries. If it happens at the
//! receiver, it continues to ask and finds the senders that answer. Both say so.

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
