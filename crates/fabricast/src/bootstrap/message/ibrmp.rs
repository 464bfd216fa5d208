//! Messages of P3's protocol for files (spec 7.8).

use serde::{Deserialize, Serialize};

/// Opens a reliable channel to a receiver, for P3's protocol. The receiver takes part from now on,
/// and says `Ready`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Channel {
    /// Numbers of the files that are multicast now. The receiver takes part in them, and in all
    /// files from `next` on. It lacks no others.
    pub open: Vec<u64>,
    /// Number of the file that opens next.
    pub next: u64,
    /// Number of the sender's slots for files.
    pub slots: u16,
    /// Messages that each end may have under way.
    pub messages: u32,
    /// Messages that one ACK acknowledges.
    pub batch: u32,
}

/// What proves a file of P3's protocol, and what the file is beside its bytes. Multicast can be
/// forged, so the receiver takes the file's name from here.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Digest {
    /// Number of the file.
    pub file: u64,
    /// What proves the file, in hexadecimal ([`crate::ibrmp::Fingerprint::digest`]). `None`: the
    /// sender could not read the file as it was, and what came of it is void.
    #[serde(default)]
    pub hash: Option<String>,
    /// Name of the file, exactly as it came.
    pub name: String,
    /// Permissions of the file, with the set-id and sticky bits.
    pub mode: u16,
    /// When the file's bytes were changed, in seconds since 1970.
    pub mtime: i64,
    /// Nanoseconds of `mtime`.
    pub mtime_ns: u32,
    /// Owner of the file: user and group.
    pub owner: (u32, u32),
}

/// A file of P3's protocol that a receiver does not have.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Lacking {
    /// Number of the file; `None`: it was not opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<u64>,
    /// Name of the file, exactly as it came.
    pub name: String,
}

/// All files of P3's protocol have been sent and closed. The lists name at most
/// [`Last::NAMES_MAX`] files each.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Last {
    /// Number of the last file; 0 if there was none.
    pub file: u64,
    /// Files that the sender could not read as they were. Nobody gets them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<Lacking>,
    /// Number of such files that `failed` does not name and that were never opened. Of those that
    /// were, the receiver knows by their numbers.
    #[serde(default)]
    pub failed_more: u64,
    /// Files that were closed before this receiver had them, as far as the sender knows. The
    /// receiver counts itself which files it lacks, and takes their names from here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lacking: Vec<Lacking>,
}

impl Last {
    /// Most files of a list, with which the message is not too long.
    pub const NAMES_MAX: usize = 100;
}
