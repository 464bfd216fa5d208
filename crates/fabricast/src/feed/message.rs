//! Messages between a feed and its followers, in the frames of spec 5.1.

use serde::{Deserialize, Serialize};

use super::catalogue::Entry;
use crate::bootstrap::message::text;

/// Most runs of a message.
pub(super) const RUNS_MAX: usize = 128;
/// Bytes of entries after which the catalogue goes on in another message.
pub(super) const PART: usize = 256 << 10;

/// A message to the feed.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub enum ToFeed {
    /// The first message: a host wants to follow the feed.
    Follow {
        /// Version of the messages of a transfer, which those of feeds share.
        version: u32,
        /// Name of the follower in messages.
        #[serde(deserialize_with = "text")]
        name: String,
    },
    /// What the follower wants now, in place of what it has said before. It waits for an answer.
    Wants {
        /// The number of the catalogue that it knows; 0: none.
        catalogue: u64,
        /// How many answers it has heard on this connection. The feed takes no notice of a message
        /// that has crossed with an answer: the follower speaks again when it hears that.
        answers: u64,
        /// Numbers of the transfers in which it takes part.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        receiving: Vec<u64>,
        /// In how many more transfers it may take part, at most
        /// [`AT_ONCE_MAX`](super::AT_ONCE_MAX).
        places: usize,
        /// Runs of entries of that catalogue.
        runs: Vec<(u32, u32)>,
        /// Whether the next message has more runs.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        more: bool,
    },
}

/// A message to a follower.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub enum ToFollower {
    /// The answer to [`ToFeed::Follow`].
    Feed {
        /// Version of the messages.
        version: u32,
        /// The feed's name, exactly as it came. The follower checks it.
        name: String,
    },
    /// The feed does not serve this follower.
    Refused {
        /// Why.
        #[serde(deserialize_with = "text")]
        reason: String,
    },
    /// A part of the catalogue, in answer to [`ToFeed::Wants`].
    Catalogue {
        /// Its number.
        number: u64,
        /// The next entries.
        entries: Vec<Entry>,
        /// Whether more of them follow.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        more: bool,
    },
    /// A transfer that the follower takes part in, in answer to [`ToFeed::Wants`].
    Publication(Publication),
}

/// The number of a transfer as people read it: 1 for the first one of a run of the feed. The upper
/// 32 bits are random for each run, so that those of two runs differ.
pub fn shown_number(transfer: u64) -> u32 {
    transfer as u32
}

/// A transfer of some entries of the catalogue that a follower wants.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Publication {
    /// The number of the transfer, which no other of this feed's has: see [`shown_number`].
    pub transfer: u64,
    /// TCP port of the transfer's sender, at the feed's address.
    pub port: u16,
    /// Runs of entries of the catalogue.
    pub(super) runs: Vec<(u32, u32)>,
}
