//! The packs of a sender that wait for receivers which look at what they have (spec 5.16).

use std::time::Instant;

use crate::object::Memory;
use crate::object::pack::Pack;

/// The packs that wait for receivers which look at what they have.
#[derive(Default)]
pub struct Ahead {
    /// The first pack of files, while receivers have still to say whether they have candidates.
    pub first: Option<Pack>,
    /// When all pages had been delivered.
    pub delivered: Option<Instant>,
    /// Whether the first pack of files has left.
    pub is_over: bool,
    /// A pack that is announced, and that the driver gets with the next one.
    pub announced: Option<Memory>,
}
