//! The messages of both ends, as JSON: small, rare, and readable in a packet dump.
//!
//! ```text
//!   receiver                            sender
//!   Hello ─────────────────────────────→
//!         ←───────────────────────────── Authenticate      only if receivers have keys
//!   Response ──────────────────────────→
//!         ←───────────────────────────── Welcome (or Refused)
//!   Prepared ──────────────────────────→             there is space for the file
//!         ←───────────────────────────── Start       when the start rule says so
//!   Keeps ─────────────────────────────→             only if an earlier run has left packs
//!   Ready ─────────────────────────────→             joined and posted
//!         ←───────────────────────────── Pack        before each pack: its length and its proof
//!   Need ──────────────────────────────→             only if a block arrived damaged: hashes of
//!         ←───────────────────────────── (bulk)      its pieces, then those that are wrong
//!         ←───────────────────────────── End         when every file has been read
//!   Working ───────────────────────────→             once a second after the last byte
//!   Verified ──────────────────────────→             on the disk, under its name (or Received: it
//!                                                    has gone to a stream)
//!         ←───────────────────────────── Bye
//! ```
//!
//! If all receivers may have something of the set, each says `Looked` when it has the manifest. Of
//! packs whose files all of them have, only the headers come (`Compare`), and each receiver says
//! `Compared` when it has compared one.
//!
//! To a receiver that comes late, `Join` follows its `Ready`. It asks for what was announced before
//! (`Need`), and says what it has of that (`Has`). `Peers` tells it of receivers that have said
//! `Serves`. To these it connects, too: it says `Ticket`, hears `Admitted`, and asks for packs by
//! `Need`.
//!
//! In a transfer by P3's protocol (spec 7), `Channel` follows `Start`, and after `Ready` come
//! frames of the channel in both directions. `Digest` answers TRANSFER_DONE; `Stored` or `Unstored`
//! follows. Between them, `Need` asks for what was damaged or forged on the way. `Working` comes
//! once a second while files are stored. After `Last` and the end of all files comes `Finished`,
//! then `Bye`.
//!
//! Unknown fields are ignored; unknown messages close the connection. Decoding removes from texts
//! for people whatever could control a terminal, so nothing needs to clean them again. Names of
//! files stay as they come, and are escaped where they are shown.

mod ibrmp;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

pub use self::ibrmp::{Channel, Digest, Lacking, Last};
use super::frame::{HEAD, MESSAGE_MAX, put_message};
use super::psk::{Mac, Nonce, Ticket};
use crate::object::PackRecord;
pub use crate::text::harmless;
use crate::transport::{GroupAddress, NodeAddress};

/// The version of these messages.
pub const VERSION: u32 = 11;

/// Longest text in characters; the rest is dropped.
const TEXT_MAX: usize = 2048;

/// A text from the network, made [`harmless`].
pub(crate) fn text<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    Ok(cleaned(&String::deserialize(from)?))
}

/// A text from the network, made [`harmless`]; empty if it is no text.
fn text_if_any<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let value = serde_json::Value::deserialize(from)?;
    Ok(cleaned(value.as_str().unwrap_or_default()))
}

/// Ranges of numbers in ascending order, none of them empty, at most [`ToSender::RUNS_MAX`].
fn ranges<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<(u32, u32)>, D::Error> {
    let ranges = Vec::<(u32, u32)>::deserialize(from)?;
    let is_sound = ranges.len() <= ToSender::RUNS_MAX
        && ranges.iter().all(|range| range.0 < range.1)
        && ranges.is_sorted_by(|one, next| one.1 <= next.0);
    match is_sound {
        true => Ok(ranges),
        false => Err(D::Error::custom("ranges that make no sense")),
    }
}

/// Whether a number is zero, and need not be written.
pub fn is_zero<N: Default + PartialEq>(number: &N) -> bool {
    *number == N::default()
}

fn cleaned(raw: &str) -> String {
    let harmless = raw.chars().filter(|c| harmless(*c));
    harmless.take(TEXT_MAX).collect()
}

/// The first message of a receiver, as far as it is readable in every version.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub enum Greeting {
    /// The beginning of a [`Hello`].
    Hello {
        /// Version of the control protocol that the receiver speaks.
        version: u32,
        /// Name of the receiver; empty if it gives none as this version does.
        #[serde(default, deserialize_with = "text_if_any")]
        name: String,
    },
}

/// Introduces a receiver to the sender.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// [`VERSION`]. Readable in every version ([`Greeting`]).
    pub version: u32,
    /// Name of the receiver in tables: its host name, and where the file goes.
    #[serde(deserialize_with = "text")]
    pub name: String,
    /// Address at which the receiver takes datagrams. The IP address 0.0.0.0 or :: stands for the
    /// one that the receiver connects from.
    pub address: NodeAddress,
    /// Largest datagram that the receiver's interface takes, in bytes.
    pub datagram: u32,
    /// Bytes that the receiver can have under way.
    pub window_bytes: u64,
    /// Whether the file goes to a stream, such as a pipe. Such a receiver has to be there from the
    /// start, since it takes packs in their order alone. At the end it says
    /// [`ToSender::Received`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stream: bool,
    /// Whether the receiver stores nothing. It says [`ToSender::Received`] at the end, too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub discard: bool,
    /// The receiver's nonce, if it shares a key with the sender.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nonce: Option<Nonce>,
}

impl Hello {
    /// Whether the receiver can prove at the end that it has the files: what it has written to a
    /// stream, or dropped, nobody can read back.
    pub fn verifies(&self) -> bool {
        !self.stream && !self.discard
    }
}

/// Introduces the sender and what it sends.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Welcome {
    /// [`VERSION`].
    pub version: u32,
    /// Random number of 64 bits that names this transfer.
    pub session: u64,
    /// Number of this receiver; the sender is 0.
    pub node: u32,
    /// Name of the first file or directory, without its directory, exactly as it came. The
    /// receiver compares it with what a name may be ([`crate::object::safe_name`]), so decoding
    /// must not change it.
    pub name: String,
    /// Bytes of all files together; `None`: one file whose length is known at its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub len: Option<u64>,
    /// Number of files and directories at the top of the set.
    pub tops: u32,
    /// Number of entries of the manifest.
    pub entries: u32,
    /// BLAKE3 hash of the entries, in hexadecimal ([`crate::object::manifest::Manifest::digest`]).
    /// Empty: the receiver keeps nothing for a later run.
    #[serde(default, deserialize_with = "text")]
    pub manifest: String,
    /// Bytes of a hash block; each block of a pack has one hash in the pack's header.
    pub block: u32,
    /// Shows that the sender knows the receiver's key, if the receiver has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<Mac>,
}

/// Starts the transfer: each receiver joins and says `Ready`. It posts each pack when it is
/// announced.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Start {
    /// The group's address. `None`: all receivers are served by unicast.
    pub group: Option<GroupAddress>,
    /// The address that the sender's datagrams come from and that answers go to.
    pub root: NodeAddress,
    /// Payload size of a data packet in bytes.
    #[serde(rename = "chunk")]
    pub payload_size: u32,
    /// Number of packets that may be under way.
    pub window: u32,
    /// Nodes in the group, the sender included, in the order of their turns.
    pub members: Vec<u32>,
    /// Name of the scheme that makes the multicast reliable; [`fabricast_proto::Scheme`] parses it.
    pub scheme: String,
    /// The members' addresses for datagrams if members repair for each other; otherwise empty.
    pub addresses: Vec<NodeAddress>,
    /// If all members may have something of the set: how long each may compare a pack, in
    /// milliseconds. Then each says [`ToSender::Looked`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compares: Option<u64>,
    /// Whether the transfer runs already. Then [`ToReceiver::Join`] follows when the receiver is
    /// ready.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub late: bool,
}

impl Start {
    /// Number of receivers whose addresses fit in the message, whatever their numbers and their
    /// IPv6 addresses are.
    pub const ADDRESSES_MAX: usize = {
        let address = r#"{"ip":"[1111:2222:3333:4444:5555:6666:7777:8888]:65535"},"#.len();
        let member = "4294967295,".len();
        // The other fields need less than 1024 bytes.
        (MESSAGE_MAX - 1024) / (address + member)
    };

    /// Whether receivers report to the sender alone, and not to each other.
    pub fn reports_to_sender(&self) -> bool {
        self.addresses.is_empty()
    }

    /// Bytes of data that may be under way.
    pub fn window_bytes(&self) -> u64 {
        u64::from(self.window) * u64::from(self.payload_size)
    }

    /// Whether the message is no longer than a receiver takes.
    pub fn fits(&self) -> bool {
        let mut frame = Vec::new();
        put_message(&mut frame, &ToReceiver::Start(self.clone()));
        frame.len() <= HEAD + MESSAGE_MAX
    }
}

/// Announces the next pack, before the sender broadcasts it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Announced {
    /// Bytes of the pack, its header included.
    pub len: u32,
    /// Bytes of its header.
    pub header: u32,
    /// BLAKE3 hash of its header, in hexadecimal: 64 digits.
    #[serde(deserialize_with = "text")]
    pub hash: String,
    /// Number of the pack, if it was sent before and is sent again. A receiver that has it declines
    /// it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub again: Option<u32>,
    /// Whether members of the group keep this pack ([`ToSender::Keeps`]). Then it is not broadcast.
    /// The other members get it `again` after the stream.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kept: bool,
}

impl Announced {
    /// Announces the pack with this record, which is sent for the first time or `again`.
    pub fn new(record: &PackRecord, again: Option<u32>) -> Announced {
        Announced {
            len: record.len,
            header: record.header,
            hash: blake3::Hash::from(record.hash).to_hex().to_string(),
            again,
            kept: false,
        }
    }

    /// The record that is announced; `None` if it makes no sense.
    pub fn record(&self) -> Option<PackRecord> {
        let hash = blake3::Hash::from_hex(&self.hash).ok()?;
        let record = PackRecord {
            len: self.len,
            header: self.header,
            hash: hash.into(),
        };
        record.is_sound().then_some(record)
    }
}

/// Admits a receiver to the group, from the next pack on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Join {
    /// Number of the receiver's slot.
    pub slot: u16,
    /// Epoch of the slot.
    pub epoch: u16,
    /// Number of the first packet that the receiver gets.
    pub first: u32,
    /// Number of slots.
    pub receivers: u32,
    /// Number of packs that were announced before, to others. The receiver says which of them it
    /// has ([`ToSender::Has`]), and gets the others again.
    pub packs: u32,
}

/// A receiver's request to send a part of a pack again: the header (no `block`), the hashes of a
/// block's pieces (`hashes`), some pieces (`pieces`), or a whole block (neither). Or for a list of
/// packs. By P3's protocol, `pack` is the number of a file, and the request is for the hashes of
/// its sections (no `block`) or for a block ([`crate::ibrmp::SentFiles`]).
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Need {
    /// Number of the pack.
    pub pack: u32,
    /// BLAKE3 hash of the pack's header, as it was announced: a pack that is sent again may differ.
    #[serde(
        default,
        skip_serializing_if = "String::is_empty",
        deserialize_with = "text"
    )]
    pub hash: String,
    /// Number of the block.
    pub block: Option<u64>,
    /// Whether the receiver wants the hashes of the block's pieces instead of its bytes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hashes: bool,
    /// Numbers of the wanted pieces, in increasing order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pieces: Vec<u32>,
    /// Whether the receiver wants the records of packs, from `pack` on
    /// ([`crate::object::PackRecord`]).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub list: bool,
}

/// Counters of a receiver, for the sender's table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ReceiverStatistics {
    /// Data packets that arrived.
    pub received: u64,
    /// How many of `received` the receiver had already.
    pub duplicates: u64,
    /// Damaged blocks, whose pieces came again over TCP.
    pub mended: u64,
    /// Bytes that came over TCP to repair blocks: pieces, and the hashes that show which pieces are
    /// wrong.
    pub mended_bytes: u64,
    /// Packets that the receiver's kernel dropped because a buffer was full.
    pub dropped: u64,
    /// Bytes of packs that other receivers gave to this one.
    #[serde(default)]
    pub peer_bytes: u64,
    /// Bytes of files that were present at the receiver, and were not sent to it.
    #[serde(default)]
    pub present_bytes: u64,
    /// Bytes of packs that an earlier run of the receiver had kept.
    #[serde(default)]
    pub kept_bytes: u64,
}

impl ReceiverStatistics {
    /// Bytes that were at the receiver before the transfer.
    pub fn bytes_before(&self) -> u64 {
        self.present_bytes.saturating_add(self.kept_bytes)
    }
}

/// A receiver that serves, as the sender tells it to a late receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Serving {
    /// Where it listens for TCP connections.
    pub address: NodeAddress,
    /// What it wants to be shown first.
    pub ticket: Ticket,
}

/// Message from a receiver to the sender.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub enum ToSender {
    /// See [`Hello`].
    Hello(Hello),
    /// The answer to [`ToReceiver::Authenticate`].
    Response {
        /// Shows that the receiver knows its key.
        mac: Mac,
    },
    /// The receiver proves what an earlier run has left, and is not prepared yet.
    Preparing,
    /// The receiver has space for the file and waits for the start. Only now does it count.
    Prepared {
        /// Whether something of the set may be in its place.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        may_have: bool,
    },
    /// The receiver has the manifest, and has looked at what is in the places of its files (spec
    /// 5.16). Only if the start said that files are compared, and once.
    Looked {
        /// Numbers of entries whose files it may have: where a range begins, and where it ends, in
        /// ascending order. At most [`ToSender::RUNS_MAX`].
        #[serde(deserialize_with = "ranges")]
        candidates: Vec<(u32, u32)>,
        /// Whether more such messages follow.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        more: bool,
    },
    /// The receiver has compared a pack with what it has. Whether that is the same, it says later
    /// by [`ToSender::Has`].
    Compared {
        /// Number of the pack.
        number: u32,
    },
    /// Before [`ToSender::Ready`]: packs that the receiver keeps from an earlier run (spec 5.11).
    Keeps {
        /// What they are called in this transfer: the first eight bytes of the BLAKE3 hash of the
        /// session and of the hash of the pack's header, as a big-endian number. At most
        /// [`ToSender::KEEPS_MAX`].
        packs: Vec<u64>,
    },
    /// The receiver has joined and posted.
    Ready,
    /// The receiver serves late receivers (spec 5.15).
    Serves {
        /// The TCP port at which it listens, at the address that it has connected from.
        port: u16,
        /// What late receivers have to show it.
        ticket: Ticket,
    },
    /// The first message to a receiver that serves, instead of [`ToSender::Hello`].
    Ticket {
        /// What that receiver wants to be shown.
        ticket: Ticket,
    },
    /// See [`Need`].
    Need(Need),
    /// Another receiver, which this one reports to or repairs for, does not answer. This receiver
    /// asks the sender for [`ToReceiver::Ask`].
    Unanswered {
        /// Node number of the other receiver.
        node: u32,
    },
    /// After [`ToReceiver::Join`]: which of the packs that were sent before the receiver has. It
    /// lacks the others.
    Has {
        /// Numbers of packs: where a run begins, and where it ends. At most
        /// [`ToSender::RUNS_MAX`].
        runs: Vec<(u32, u32)>,
        /// Whether more such messages follow.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        more: bool,
        /// Without `more`: how many [`ToReceiver::Peers`] the receiver has got. If the sender has
        /// sent another one, more such messages follow after all.
        #[serde(default, skip_serializing_if = "is_zero")]
        told: u32,
    },
    /// The receiver has proven all packs of a stream before this number. The sender keeps packs of
    /// a stream until all receivers have proven them.
    Proven {
        /// Number of packs.
        packs: u32,
    },
    /// The receiver has all bytes, and proves and stores them. By P3's protocol: it proves and
    /// stores files.
    Working {
        /// Bytes of packs that are proven and stored so far. Once all are, the receiver flushes. By
        /// P3's protocol: bytes of files that are stored.
        done: u64,
    },
    /// The file is proven and has its final name.
    Verified {
        /// What the receiver has counted.
        #[serde(flatten)]
        statistics: ReceiverStatistics,
        /// Proof that the receiver has the file, in hexadecimal. Only a node that has the file can
        /// compute it ([`crate::object::Challenge`]).
        #[serde(deserialize_with = "text")]
        proof: String,
    },
    /// The file is proven and has gone to the receiver's stream ([`Hello::stream`]).
    Received {
        /// What the receiver has counted.
        #[serde(flatten)]
        statistics: ReceiverStatistics,
    },
    /// P3's protocol: a file is proven and has its final name.
    Stored {
        /// Number of the file.
        file: u64,
        /// Proof that the receiver has the file, in hexadecimal
        /// ([`crate::ibrmp::Fingerprint::proof`]).
        #[serde(deserialize_with = "text")]
        proof: String,
    },
    /// P3's protocol: the receiver will not have a file.
    Unstored {
        /// Number of the file.
        file: u64,
        /// Exit code that says why.
        code: u8,
        /// Why, in words.
        #[serde(deserialize_with = "text")]
        reason: String,
    },
    /// P3's protocol: the receiver has said of every file what has become of it.
    Finished {
        /// What the receiver has counted.
        #[serde(flatten)]
        statistics: ReceiverStatistics,
    },
    /// The receiver gives up.
    Failed {
        /// Exit code that says why.
        code: u8,
        /// Why, in words.
        #[serde(deserialize_with = "text")]
        reason: String,
    },
}

impl ToSender {
    /// Most runs of one [`ToSender::Has`], which is then no longer than the sender takes.
    pub const RUNS_MAX: usize = 128;
    /// Most packs of one [`ToSender::Keeps`], which is then no longer than the sender takes.
    pub const KEEPS_MAX: usize = 190;

    /// The words for a message that came when it is not allowed.
    pub fn out_of_turn(&self) -> String {
        let what = match self {
            ToSender::Hello(_) => "hello",
            ToSender::Response { .. } => "response",
            ToSender::Preparing => "preparing",
            ToSender::Prepared { .. } => "prepared",
            ToSender::Looked { .. } => "looked",
            ToSender::Compared { .. } => "compared",
            ToSender::Keeps { .. } => "keeps",
            ToSender::Ready => "ready",
            ToSender::Serves { .. } => "serves",
            ToSender::Ticket { .. } => "ticket",
            ToSender::Need(_) => "need",
            ToSender::Unanswered { .. } => "unanswered",
            ToSender::Has { .. } => "has",
            ToSender::Proven { .. } => "proven",
            ToSender::Working { .. } => "working",
            ToSender::Received { .. } => "received",
            ToSender::Verified { .. } => "verified",
            ToSender::Stored { .. } => "stored",
            ToSender::Unstored { .. } => "unstored",
            ToSender::Finished { .. } => "finished",
            ToSender::Failed { .. } => "failed",
        };
        format!("it said \"{what}\" out of turn")
    }
}

/// Message from the sender to a receiver.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub enum ToReceiver {
    /// The receiver must show that it knows its key.
    Authenticate {
        /// Number of the transfer, as in [`Welcome`].
        session: u64,
        /// The sender's nonce.
        nonce: Nonce,
    },
    /// See [`Welcome`].
    Welcome(Welcome),
    /// The receiver cannot take part.
    Refused {
        /// Why, in words.
        #[serde(deserialize_with = "text")]
        reason: String,
    },
    /// See [`Start`].
    Start(Start),
    /// See [`Join`].
    Join(Join),
    /// After [`ToReceiver::Join`]: receivers that may have what was announced before, in place of
    /// those that were told before. At most [`ToReceiver::PEERS_TIMES`] times. The receiver says
    /// [`ToSender::Has`] again, also if it has done so without `more`.
    Peers {
        /// At most [`ToReceiver::PEERS_MAX`].
        peers: Vec<Serving>,
    },
    /// From a receiver that serves: the answer to [`ToSender::Ticket`]. Packs may be requested.
    Admitted,
    /// The receiver is too slow for the others, and no member of the group any more. [`Join`]
    /// follows when all packs have been announced.
    Demoted,
    /// The receiver has all packs and is no member of the group any more. Other members get packs
    /// again, so it leaves the group's address.
    Released,
    /// See [`Announced`].
    Pack(Announced),
    /// See [`Announced`]: the next pack, whose files all receivers may have. Only its header is
    /// broadcast (spec 5.16).
    Compare(Announced),
    /// All files have been read, and all packs announced.
    End {
        /// Number of packs.
        packs: u32,
        /// Key of 64 digits. It chooses the samples of the files by which a receiver proves that it
        /// has them, and it keys the hash of these samples.
        #[serde(deserialize_with = "text")]
        key: String,
    },
    /// See [`Channel`].
    Channel(Channel),
    /// See [`Digest`]: the answer to TRANSFER_DONE.
    Digest(Digest),
    /// See [`Last`].
    Last(Last),
    /// The sender no longer waits for this receiver.
    Removed {
        /// Exit code that says why.
        code: u8,
        /// Why, in words.
        #[serde(deserialize_with = "text")]
        reason: String,
    },
    /// Another receiver is done or gone: receivers no longer report to it or wait for its reports.
    /// Sent only where receivers report to each other.
    Gone {
        /// Node number of the other receiver.
        node: u32,
    },
    /// This receiver may ask another receiver once more whether it is at its address.
    Ask {
        /// Node number of the other receiver.
        node: u32,
    },
    /// The transfer has failed for all receivers.
    Aborted {
        /// Exit code that says why.
        code: u8,
        /// Why, in words.
        #[serde(deserialize_with = "text")]
        reason: String,
    },
    /// The transfer is complete for this receiver; the connection may close.
    Bye,
}

impl ToReceiver {
    /// Most receivers that serve whose addresses the sender tells a late one.
    pub const PEERS_MAX: usize = 4;
    /// How often the sender tells a late receiver of those that serve, at most.
    pub const PEERS_TIMES: u32 = 8;
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
                | ToReceiver::Removed { reason, .. }
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
            r#"{{"say": "hello", "version": 11, "name": {RAW}, "address": {{"ip": "0.0.0.0:1"}},
                 "datagram": 1472, "window_bytes": 1}}"#
        );
        let hello = message(json.as_bytes());
        assert!(matches!(hello, Some(ToSender::Hello(h)) if h.name == CLEAN));
    }

    #[test]
    fn no_text_is_endless() {
        let json = format!(
            r#"{{"say": "removed", "code": 1, "reason": "{}"}}"#,
            "x".repeat(100_000)
        );
        let removed = message(json.as_bytes());
        assert!(
            matches!(removed, Some(ToReceiver::Removed { reason, .. }) if reason.len() == TEXT_MAX)
        );
    }
}
