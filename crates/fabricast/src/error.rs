//! What can go wrong for a caller, and the exit code that says so to a shell.
//!
//! Each text names the cause and, where there is one, the next step. What comes from the network
//! is never an error here: it is counted and dropped.

use std::io;
use std::path::{Path, PathBuf};

use crate::setting::OVERWRITE;
use crate::text::{bytes, escaped, shown};

/// Why the network cannot be used with the given options.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetworkError {
    /// The options make no sense, or not on this network.
    #[error("{0}")]
    Options(String),
    /// The operating system refused something.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What the system said.
        source: io::Error,
    },
}

impl NetworkError {
    pub(crate) fn io(what: &str, source: impl Into<io::Error>) -> NetworkError {
        NetworkError::Io {
            what: what.into(),
            source: source.into(),
        }
    }
}

/// Why a transfer did not take place or did not end well. Its text is one line that does nothing to
/// a terminal, whatever a file or a host is called.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The options or arguments make no sense together.
    #[error("{}", escaped(.0))]
    Usage(String),
    /// The operating system refused something.
    #[error("{}: {source}", escaped(what))]
    Io {
        /// What was tried.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// No receiver, or too few, came in time.
    #[error("{}", escaped(.0))]
    NoReceivers(String),
    /// Something did not happen in time.
    #[error("{}", escaped(.0))]
    Timeout(String),
    /// The bytes are not those that the sender sent.
    #[error("{}", escaped(.0))]
    Integrity(String),
    /// The file does not fit.
    #[error("no space for {}: {detail}", shown(path))]
    NoSpace {
        /// Where it was to be written.
        path: PathBuf,
        /// What is known about the need and the room.
        detail: String,
    },
    /// The file would be longer than a limit allows.
    #[error("{} would be too long: {detail}", shown(path))]
    TooLong {
        /// Where it was to be written.
        path: PathBuf,
        /// How long it is and may be, as far as that is known, and what limits it.
        detail: String,
    },
    /// The source file changed while it was sent.
    #[error("{}", escaped(.0))]
    SourceChanged(String),
    /// The destination exists already.
    #[error(
        "{} exists already; name another destination, or overwrite it with {OVERWRITE}",
        shown(.0)
    )]
    Exists(PathBuf),
    /// The other end is gone.
    #[error("{}", escaped(.0))]
    PeerLost(String),
    /// The other end said no.
    #[error("{}", escaped(.0))]
    Refused(String),
    /// A signal stopped the transfer.
    #[error("interrupted")]
    Interrupted,
}

impl From<NetworkError> for Error {
    fn from(error: NetworkError) -> Error {
        match error {
            NetworkError::Options(why) => Error::Usage(why),
            NetworkError::Io { what, source } => Error::Io { what, source },
        }
    }
}

/// Exit codes of the `fabricast` command; part of its interface.
pub mod exit {
    /// Every required receiver has verified the data.
    pub const OK: u8 = 0;
    /// A local file or socket failed, or the destination exists.
    pub const IO: u8 = 1;
    /// Wrong arguments.
    pub const USAGE: u8 = 2;
    /// No receiver, or too few, came in time.
    pub const NO_RECEIVERS: u8 = 3;
    /// One receiver or more did not verify the data; the others did.
    pub const PARTIAL: u8 = 4;
    /// Something did not happen in time.
    pub const TIMEOUT: u8 = 5;
    /// The data are not those that were sent.
    pub const INTEGRITY: u8 = 6;
    /// No space for the file, or it would be too long.
    pub const NO_SPACE: u8 = 7;
    /// The other end is gone.
    pub const PEER_LOST: u8 = 8;
    /// The other end refused (another version, too late, dropped as too slow).
    pub const REFUSED: u8 = 9;
    /// The source changed while it was sent.
    pub const SOURCE_CHANGED: u8 = 10;
    /// Stopped by Ctrl-C or SIGTERM.
    pub const INTERRUPTED: u8 = 130;
}

impl Error {
    /// An operating-system error with what was tried.
    pub fn io(what: impl Into<String>, source: impl Into<io::Error>) -> Error {
        Error::Io {
            what: what.into(),
            source: source.into(),
        }
    }

    /// An error of writing to `path`: a full disk, a quota and a file-size limit are told apart
    /// from everything else, because the next step is another one.
    pub fn writing(path: &Path, source: impl Into<io::Error>) -> Error {
        let source = source.into();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::NoSpace {
                path: path.to_owned(),
                detail: source.to_string(),
            },
            io::ErrorKind::FileTooLarge => Error::TooLong {
                path: path.to_owned(),
                detail: source.to_string(),
            },
            _ => Error::io(format!("writing {}", path.display()), source),
        }
    }

    /// A file of `len` bytes where at most `most` are allowed, by `limit`.
    pub(crate) fn too_long(path: &Path, len: u64, most: u64, limit: &str) -> Error {
        let (mut is, mut may) = (bytes(len), bytes(most));
        if is == may {
            (is, may) = (format!("{len} bytes"), most.to_string());
        }
        Error::TooLong {
            path: path.to_owned(),
            detail: format!("{is}, at most {may} ({limit})"),
        }
    }

    /// The exit code of [`exit`] that belongs to it.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Usage(_) => exit::USAGE,
            Error::Io { .. } | Error::Exists(_) => exit::IO,
            Error::NoReceivers(_) => exit::NO_RECEIVERS,
            Error::Timeout(_) => exit::TIMEOUT,
            Error::Integrity(_) => exit::INTEGRITY,
            Error::NoSpace { .. } | Error::TooLong { .. } => exit::NO_SPACE,
            Error::SourceChanged(_) => exit::SOURCE_CHANGED,
            Error::PeerLost(_) => exit::PEER_LOST,
            Error::Refused(_) => exit::REFUSED,
            Error::Interrupted => exit::INTERRUPTED,
        }
    }
}
