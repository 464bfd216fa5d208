//! What a context is made from: its options, and the job's existing connection between its
//! processes.

use std::fmt;
use std::os::fd::OwnedFd;
use std::str::FromStr;
use std::sync::Arc;

use fabricast_proto::group::Strategy;

use crate::config::{NetOptions, NetworkKind};
use crate::subnet::kind::SubnetKind;

/// Options of a context. Each option has a default that works.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which network carries the datagrams between hosts.
    pub network: NetworkKind,
    /// Options of the network.
    pub net: NetOptions,
    /// How multicast is made reliable: a name that [`fabricast_proto::Scheme`] parses.
    pub scheme: String,
    /// How broadcasts go to a group, the same at all processes.
    pub broadcast: BroadcastAlgorithm,
    /// When groups get multicast addresses of their own (P5), the same at all processes; by default
    /// from a pool. `None`: never; they share the context's few addresses.
    pub groups: Option<Strategy>,
    /// Which subnet grants these addresses.
    pub subnet: SubnetKind,
    /// Most addresses that groups get of their own at the same time, if that is fewer than the
    /// library has. The context's few shared addresses do not count. `None`: no further limit.
    pub addresses: Option<u32>,
    /// The name of the host on which this process runs. Processes that give the same name share
    /// memory, if they can. The default combines the system's node name, its boot identifier and
    /// the process's network namespace.
    pub host: Option<String>,
    /// A descriptor that is readable while the runtime above has something to do. A blocked caller
    /// then calls `meanwhile` at once, and calls it again without sleeping until the runtime has no
    /// more to do. Fabricast never reads the descriptor.
    pub runtime: Option<Arc<OwnedFd>>,
}

impl Options {
    /// The name of [`Options::groups`]; `shared` for none.
    pub(crate) fn groups_name(&self) -> String {
        let strategy = self.groups.map(|strategy| strategy.to_string());
        strategy.unwrap_or_else(|| "shared".into())
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            network: NetworkKind::Udp,
            net: NetOptions::default(),
            scheme: "auto".into(),
            broadcast: BroadcastAlgorithm::Multicast,
            groups: Some(Strategy::default()),
            subnet: SubnetKind::Auto,
            addresses: None,
            host: None,
            runtime: None,
        }
    }
}

/// How broadcasts go to the members of a group of three or more. All but the first consist of
/// messages between two members over UDP, for networks without multicast and for comparison. With
/// them the processes of one host share no memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum BroadcastAlgorithm {
    /// `multicast`: one multicast to all hosts, and through memory to the processes of each.
    #[default]
    Multicast,
    /// `tree`: along a binomial tree, segment by segment.
    Tree,
    /// `chain`: from each member to the next one, segment by segment.
    Chain,
    /// `scatter-allgather`: in one block for each member along a binomial tree, then round a ring.
    ScatterAllgather,
    /// `cover`: by multicasts to the sets of members that [`super::Context::cover`] names (P4.7),
    /// and by messages to other members. Without sets, along a binomial tree.
    Cover,
}

impl BroadcastAlgorithm {
    /// All algorithms.
    pub const ALL: [BroadcastAlgorithm; 5] = [
        BroadcastAlgorithm::Multicast,
        BroadcastAlgorithm::Tree,
        BroadcastAlgorithm::Chain,
        BroadcastAlgorithm::ScatterAllgather,
        BroadcastAlgorithm::Cover,
    ];

    /// The name.
    pub fn name(&self) -> &'static str {
        match self {
            BroadcastAlgorithm::Multicast => "multicast",
            BroadcastAlgorithm::Tree => "tree",
            BroadcastAlgorithm::Chain => "chain",
            BroadcastAlgorithm::ScatterAllgather => "scatter-allgather",
            BroadcastAlgorithm::Cover => "cover",
        }
    }
}

impl fmt::Display for BroadcastAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for BroadcastAlgorithm {
    type Err = UnknownBroadcast;

    fn from_str(name: &str) -> Result<BroadcastAlgorithm, UnknownBroadcast> {
        let mut all = BroadcastAlgorithm::ALL.into_iter();
        let found = all.find(|algorithm| algorithm.name() == name);
        found.ok_or_else(|| UnknownBroadcast(name.into()))
    }
}

/// No algorithm of broadcasts has this name.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "unknown algorithm of broadcasts '{0}'; known: multicast, tree, chain, scatter-allgather, cover"
)]
pub struct UnknownBroadcast(String);

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
