//! What callers start and what becomes of it: broadcasts and barriers, and their groups.
//!
//! Owns the engine, which is all that is behind a context's one lock: both drivers, the groups,
//! operations that are under way or have ended, and copies that others still lack. Short broadcasts
//! of one caller are coalesced (`coalesce`). Nothing here waits: the thread that holds the lock
//! steps the engine. Imports from networks, hierarchy and wire-up.

pub(crate) mod coalesce;
pub(crate) mod ending;
pub(crate) mod engine;
pub(crate) mod group;
pub(crate) mod left;
pub(crate) mod operation;
pub(crate) mod statistics;
