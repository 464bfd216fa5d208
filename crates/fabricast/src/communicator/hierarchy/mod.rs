//! Processes that share a host: who they are, the memory that they share, and broadcasts that are
//! composed of one over the network and one over that memory.
//!
//! Owns a host's identity, the place of every process, the segments of composed broadcasts, and the
//! copies from which a process passes them on. Imports from networks alone.

pub(crate) mod broadcast;
pub(crate) mod host;
pub(crate) mod intra_node;
pub(crate) mod topology;
