//! What a context is made from: its choices, and what already connects the job's processes.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::config::NetOptions;

/// Choices of a context; every one has a default that works.
#[derive(Clone, Debug)]
pub struct Options {
    /// The network.
    pub net: NetOptions,
    /// How multicast is made reliable: a name that [`fabricast_proto::Scheme`] reads.
    pub scheme: String,
    /// On which host this process is: those that say the same share its memory, if they can. By
    /// default the system's name of it, when it started, and its network.
    pub host: Option<String>,
    /// A descriptor that can be read while the runtime above has something to do. A blocked caller
    /// then calls `meanwhile` at once, and goes on calling it without sleeping until there is no
    /// more to do. Nothing here reads it.
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

/// What already connects the processes of a job: it makes them known to each other.
pub trait Bootstrap {
    /// Which of them this is, from 0.
    fn rank(&self) -> u32;

    /// How many there are.
    fn size(&self) -> u32;

    /// Gives `mine` to all, and returns what each gave, in the order of their ranks. All give
    /// equally many bytes. Called by all at once.
    fn allgather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, BootstrapError>;
}
