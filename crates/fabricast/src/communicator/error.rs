//! Why a context, a group or an operation of one failed.

use std::error::Error as StdError;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use fabricast_proto::Refused;
use fabricast_proto::scheme::UnknownScheme;

use super::limits::COVER_SETS_MAX;
use crate::error::NetworkError;
use crate::text::spoken;

/// Why [`super::Context::cover`] refuses the sets of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CoverError {
    /// The group's sets have been named before.
    #[error("the sets of the group's cover are named already")]
    Named,
    /// Something was started in the group before its sets were named.
    #[error("the sets of a cover are named before anything is started in the group")]
    Started,
    /// There are more sets than [`super::COVER_SETS_MAX`].
    #[error("a cover has at most {most} sets, not {0}", most = COVER_SETS_MAX)]
    TooMany(usize),
    /// A set has a process that is no member of the group.
    #[error("rank {rank} in set {set} of the cover is no member of the group")]
    NoMember {
        /// Index of the set.
        set: usize,
        /// Rank of the process in the context.
        rank: u32,
    },
    /// A set has a process twice.
    #[error("rank {rank} is twice in set {set} of the cover")]
    Twice {
        /// Index of the set.
        set: usize,
        /// Rank of the process in the context.
        rank: u32,
    },
}

/// Why a call of [`super::Context`] failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The network cannot be opened with these options.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// No scheme has the name of [`super::Options::scheme`].
    #[error(transparent)]
    Scheme(#[from] UnknownScheme),
    /// The [`super::Bootstrap`] did not bring the processes' descriptors together.
    #[error("{0}")]
    Bootstrap(#[source] Box<dyn StdError + Send + Sync>),
    /// A process could not open its end, so no process of the job gets a context.
    #[error("rank {rank} cannot take part: {reason}")]
    CannotTakePart {
        /// Rank of the process.
        rank: u32,
        /// What failed there.
        reason: String,
    },
    /// The processes differ in what all must have in common: version, scheme or address family.
    #[error("{0}")]
    Disagreement(String),
    /// A process did not connect to rank 0 in time.
    #[error(
        "rank {rank} has not connected to rank 0 at {address} within {}: is TCP between the hosts \
         blocked?",
        spoken(*within)
    )]
    NotConnected {
        /// Lowest rank that is missing.
        rank: u32,
        /// Where rank 0 listens.
        address: SocketAddr,
        /// How long rank 0 has waited.
        within: Duration,
    },
    /// A group needs different processes of its context, the caller's process among them.
    #[error("a group has different processes of its context, this one among them")]
    GroupMembers,
    /// The number of a group is too high. [`super::Context::group`] says how high it may be.
    #[error(
        "group number {0} is too high: use smaller numbers, the more so where broadcasts go by \
         messages"
    )]
    GroupNumber(u32),
    /// A group cannot have these sets as its cover. Nothing has changed.
    #[error(transparent)]
    Cover(#[from] CoverError),
    /// A broadcast's root is an index into the members of its group.
    #[error("{root} is no member of a group of {size}")]
    NoMember {
        /// The index that the caller gave.
        root: u32,
        /// Members of the group.
        size: usize,
    },
    /// The protocol core refuses the operation or the group; nothing has changed.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The root broadcasts another number of bytes than this process receives. The group ends.
    #[error("the root broadcasts another number of bytes than this process receives")]
    LengthMismatch,
    /// The group has ended, because its members did not call the same operation.
    #[error("the group has ended: its members did not call the same operation, of one length")]
    GroupEnded,
    /// A process of the group is lost. The operation will not complete.
    #[error("rank {rank} is lost: {how}")]
    RankLost {
        /// Rank of the process in the context.
        rank: u32,
        /// How the loss was noticed.
        how: String,
    },
    /// An earlier call failed to use the network, so the context can do nothing any more.
    #[error("the network is used no more: {0}")]
    Broken(String),
    /// The operating system refused something.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What the system said.
        source: io::Error,
    },
}

impl Error {
    /// An error of the operating system, with what was tried.
    pub(crate) fn io(what: impl Into<String>, source: impl Into<io::Error>) -> Error {
        Error::Io {
            what: what.into(),
            source: source.into(),
        }
    }
}
