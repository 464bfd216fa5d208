//! What the two ends say to each other, as JSON: small, rare, and readable in a packet dump.
//!
//! ```text
//!   receiver                            sender
//!   Hello ─────────────────────────────→
//!         ←───────────────────────────── Welcome (or Refused)
//!   Prepared ──────────────────────────→             there is space for the file
//!         ←───────────────────────────── Start       when the start rule says so
//!   Ready ─────────────────────────────→             joined and posted
//!         ←───────────────────────────── Root        when every block has been read: its proof
//!   Need ──────────────────────────────→             only if a block arrived damaged: hashes of
//!         ←───────────────────────────── (bulk)      its pieces, then those that are wrong
//!   Working ───────────────────────────→             once a second after the last byte
//!   Verified ──────────────────────────→             on the disk, under its name
//!         ←───────────────────────────── Bye
//! ```
//!
//! Unknown fields are ignored, unknown messages close the connection. Words for people lose, when
//! they are decoded, whatever could make a terminal do something; nobody cleans them again. Names
//! of files come as they are, and are escaped where they are shown.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Deserializer, Serialize};

pub use crate::text::harmless;

/// The version of these messages.
pub const VERSION: u32 = 2;

/// Characters of a text that are taken.
const TEXT_MAX: usize = 2048;

/// A text from the network, made [`harmless`].
pub(super) fn text<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let raw = String::deserialize(from)?;
    Ok(raw
        .chars()
        .filter(|c| harmless(*c))
        .take(TEXT_MAX)
        .collect())
}

/// A receiver presents itself.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// [`VERSION`]; first, and readable in every version.
    pub version: u32,
    /// What to call it in tables: its host name, and where the file goes.
    #[serde(deserialize_with = "text")]
    pub name: String,
    /// UDP port at which the receiver takes datagrams.
    pub udp_port: u16,
    /// Address at which the receiver takes datagrams, if it is not the one that it connects from.
    pub udp_address: Option<IpAddr>,
    /// Largest datagram that its interface takes, in bytes.
    pub datagram: u32,
    /// Bytes that it can have under way.
    pub window_bytes: u64,
}

/// The sender presents itself and what it sends.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Welcome {
    /// [`VERSION`].
    pub version: u32,
    /// 64 random bits that name this transfer.
    pub session: u64,
    /// Number of this receiver; the sender is 0.
    pub node: u32,
    /// Name of the file, without a directory. As it came: it is compared with what a name may be
    /// ([`crate::object::safe_name`]), and must not become another one on the way there.
    pub name: String,
    /// Its length in bytes.
    pub len: u64,
    /// Its permissions.
    pub mode: u32,
    /// Bytes of a block, each of which has a hash in the list.
    pub block: u32,
}

/// It begins: everybody joins, posts the file and the hash list, and says `Ready`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Start {
    /// Where multicasts go; none: everybody is served by unicast.
    pub group: Option<SocketAddr>,
    /// Where the sender's datagrams come from and answers go to.
    pub root: SocketAddr,
    /// Payload of a data packet in bytes.
    #[serde(rename = "chunk")]
    pub payload_size: u32,
    /// Packets that may be under way.
    pub window: u32,
    /// Nodes in the group, the sender included, in the order of their turns.
    pub members: Vec<u32>,
    /// How the multicast is made reliable; a name that [`fabricast_proto::Scheme`] reads.
    pub scheme: String,
    /// Where the members' datagrams come from, if members repair for each other; else empty.
    pub addresses: Vec<SocketAddr>,
}

/// A receiver needs something again: the hash list (no `block`), the hashes of a block's pieces
/// (`hashes`), some pieces (`pieces`), or all of a block (neither).
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Need {
    /// Number of the block.
    pub block: Option<u64>,
    /// Whether the hashes of its pieces are wanted, and not its bytes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hashes: bool,
    /// Numbers of the pieces that are wanted, each larger than the one before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pieces: Vec<u32>,
}

/// What a receiver has done, for the sender's table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ReceiverStatistics {
    /// Data packets that arrived.
    pub received: u64,
    /// Those that were here already.
    pub duplicates: u64,
    /// Blocks that were damaged, of which pieces came again over TCP.
    pub mended: u64,
    /// Bytes that came over TCP for that: the pieces, and what says which ones are wrong.
    pub mended_bytes: u64,
    /// Packets that its kernel dropped for want of buffers.
    pub dropped: u64,
}

/// From a receiver to the sender.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub enum ToSender {
    /// See [`Hello`].
    Hello(Hello),
    /// It has space for the file and waits for the start; only now does it count.
    Prepared,
    /// It has joined and posted.
    Ready,
    /// See [`Need`].
    Need(Need),
    /// Another receiver, which it is to report to or to repair for, does not answer: it asks for
    /// [`ToReceiver::Ask`].
    Unanswered {
        /// Its number.
        node: u32,
    },
    /// It has all bytes and is proving and storing them.
    Working {
        /// Bytes of the hash list and of the file that are proven so far, the list's first; once
        /// it is all of them, the file is being flushed.
        done: u64,
    },
    /// The file is proven and has its name.
    Verified {
        /// What it has counted.
        #[serde(flatten)]
        statistics: ReceiverStatistics,
        /// What only those can say who have the file, in hexadecimal
        /// ([`crate::object::Challenge`]).
        #[serde(deserialize_with = "text")]
        proof: String,
    },
    /// It gives up.
    Failed {
        /// The exit code that says why.
        code: u8,
        /// Why, in words.
        #[serde(deserialize_with = "text")]
        reason: String,
    },
}

impl ToSender {
    /// The words for one that is said when it cannot be.
    pub fn out_of_turn(&self) -> String {
        let what = match self {
            ToSender::Hello(_) => "hello",
            ToSender::Prepared => "prepared",
            ToSender::Ready => "ready",
            ToSender::Need(_) => "need",
            ToSender::Unanswered { .. } => "unanswered",
            ToSender::Working { .. } => "working",
            ToSender::Verified { .. } => "verified",
            ToSender::Failed { .. } => "failed",
        };
        format!("it said \"{what}\" out of turn")
    }
}

/// From the sender to a receiver.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub enum ToReceiver {
    /// See [`Welcome`].
    Welcome(Welcome),
    /// It cannot take part.
    Refused {
        /// Why, in words.
        #[serde(deserialize_with = "text")]
        reason: String,
    },
    /// See [`Start`].
    Start(Start),
    /// The BLAKE3 hash of the hash list, in hexadecimal.
    Root {
        /// 64 digits.
        #[serde(deserialize_with = "text")]
        hash: String,
        /// What chooses the samples of the file by which a receiver proves that it has it, and keys
        /// their hash: 64 digits.
        #[serde(deserialize_with = "text")]
        key: String,
    },
    /// It is no longer waited for.
    Removed {
        /// Why, in words.
        #[serde(deserialize_with = "text")]
        reason: String,
    },
    /// Another receiver is done or gone: nobody reports to it or waits for its reports any more.
    /// Said only where receivers report to each other.
    Gone {
        /// Its number.
        node: u32,
    },
    /// Another receiver may be asked once more whether it is at its address.
    Ask {
        /// Its number.
        node: u32,
    },
    /// The transfer has failed for everybody.
    Aborted {
        /// The exit code that says why.
        code: u8,
        /// Why, in words.
        #[serde(deserialize_with = "text")]
        reason: String,
    },
    /// All is well; the connection may close.
    Bye,
}

#[cfg(test)]
mod tests {
    use super::super::frame::message;
    use super::*;

    #[test]
    fn no_text_reaches_a_terminal_as_it_came() {
        const RAW: &str = r#""\u001b[2Ja\u009b31m\nb\u202ec \u00fc\u2026""#;
        const CLEAN: &str = "[2Ja31mbc ü…";
        for say in ["refused", "removed", "aborted"] {
            let json = format!(r#"{{"say": "{say}", "code": 1, "reason": {RAW}}}"#);
            let reason = match message(json.as_bytes()).unwrap() {
                ToReceiver::Refused { reason }
                | ToReceiver::Removed { reason }
                | ToReceiver::Aborted { reason, .. } => reason,
                other => panic!("{other:?}"),
            };
            assert_eq!(reason, CLEAN);
        }
        let json = format!(r#"{{"say": "failed", "code": 1, "reason": {RAW}}}"#);
        let reason = CLEAN.to_owned();
        let failed = ToSender::Failed { code: 1, reason };
        assert_eq!(message(json.as_bytes()), Some(failed));
        let json = format!(
            r#"{{"say": "hello", "version": 2, "name": {RAW}, "udp_port": 1, "udp_address": null,
                 "datagram": 1472, "window_bytes": 1}}"#
        );
        let hello = message(json.as_bytes());
        assert!(matches!(hello, Some(ToSender::Hello(h)) if h.name == CLEAN));
    }

    #[test]
    fn no_text_is_endless() {
        let json = format!(
            r#"{{"say": "removed", "reason": "{}"}}"#,
            "x".repeat(100_000)
        );
        let removed = message(json.as_bytes());
        assert!(
            matches!(removed, Some(ToReceiver::Removed { reason }) if reason.len() == TEXT_MAX)
        );
    }
}
