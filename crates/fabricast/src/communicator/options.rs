//! What a context is made from: its options, and the job's existing connection between its
//! processes.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::config::NetOptions;

/// Options of a context. Each option has a default that works.
#[derive(Clone, Debug)]
pub struct Options {
    /// Options of the network.
    pub net: NetOptions,
    /// How multicast is made reliable: a name that [`fabricast_proto::Scheme`] parses.
    pub scheme: String,
    /// The name of the host on which this process runs. Processes that give the same name share
    /// memory, if they can. The default combines the system's node name, its boot identifier and
    /// the process's network namespace.
    pub host: Option<String>,
    /// A descriptor that is readable while the runtime above has something to do. A blocked caller
    /// then calls `meanwhile` at once, and calls it again without sleeping until the runtime has no
    /// more to do. Fabricast never reads the descriptor.
    pub runtime: Option<Arc<OwnedFd>>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            net: NetOptions::default(),
            scheme: "auto".into(),
            host: None,
            runtime: None,
        }
    }
}

/// Why a [`Bootstrap`] failed, in its own words.
pub type BootstrapError = Box<dyn std::error::Error + Send + Sync>;

/// The job's existing connection between its processes. It makes the processes known to each other.
pub trait Bootstrap {
    /// The rank of this process, from 0.
    fn rank(&self) -> u32;

    /// The number of processes.
    fn size(&self) -> u32;

    /// Gives `mine` to all processes and returns what each process gave, in the order of their
    /// ranks. All processes call it at once, with equally many bytes.
    fn allgather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, BootstrapError>;
}
