//! Processes that share a host: who they are, the memory that they share, and the schedules of
//! broadcasts and barriers that go by the network and by that memory.
//!
//! Owns a host's identity and the place of every process. Imports from networks alone.

pub(crate) mod host;
pub(crate) mod intra_node;
pub(crate) mod schedule;
pub(crate) mod topology;
