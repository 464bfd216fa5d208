//! What a transfer tells while it runs and when it ends. The command line writes the same as lines
//! of JSON.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Serialize, Serializer};

use crate::bootstrap::message::{ReceiverStatistics, is_zero};
use crate::error::{Error, exit};
use crate::ibrmp::Messages;
use crate::object::manifest::Manifest;
use crate::text::{self, ToldPath};
use crate::transport::{GroupAddress, NodeAddress};

/// A node's address in words, not in the form in which nodes tell it.
fn node_text<S: Serializer>(address: &NodeAddress, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(address)
}

/// A group's address in words, not in the form in which nodes tell it.
fn group_text<S: Serializer>(address: &Option<GroupAddress>, to: S) -> Result<S::Ok, S::Error> {
    match address {
        Some(address) => to.collect_str(address),
        None => to.serialize_none(),
    }
}

/// A path in words, if there is one.
fn path_text<S: Serializer>(path: &Option<PathBuf>, to: S) -> Result<S::Ok, S::Error> {
    match path {
        Some(path) => text::told(path, to),
        None => to.serialize_none(),
    }
}

/// What happens at a sender.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum SendEvent {
    /// Receivers can connect now.
    Listening {
        /// The address that the sender listens at; it may be the unspecified address.
        address: SocketAddr,
        /// Name of the first file or directory at the top.
        name: String,
        /// How many files and directories are at the top.
        tops: u32,
        /// Bytes of all files; `None`: it is a stream.
        len: Option<u64>,
        /// Whether the sender announces itself, so that receivers need no address.
        announced: bool,
    },
    /// A receiver has connected and is prepared.
    Connected {
        /// Name of the receiver.
        receiver: String,
        /// Address of the receiver.
        address: SocketAddr,
        /// Number of receivers that are there now.
        receivers: usize,
    },
    /// A receiver that connected was refused, or found that it could not take part.
    Refused {
        /// Name of the receiver.
        receiver: String,
        /// Address of the receiver.
        address: SocketAddr,
        /// Which side decided that.
        by: By,
        /// Why.
        reason: String,
    },
    /// A receiver has left before the start.
    Left {
        /// Name of the receiver.
        receiver: String,
        /// Number of receivers that are there now.
        receivers: usize,
    },
    /// The transfer starts with the receivers that are there.
    Starting {
        /// Number of receivers.
        receivers: usize,
        /// The group's address and port; `None` without multicast.
        #[serde(serialize_with = "group_text")]
        group: Option<GroupAddress>,
        /// The address that the sender's datagrams come from.
        #[serde(serialize_with = "node_text")]
        root: NodeAddress,
        /// Name of the interface in use.
        interface: String,
        /// Payload size of a data packet in bytes.
        #[serde(rename = "chunk")]
        payload_size: u32,
        /// Number of packets that may be under way.
        window: u32,
    },
    /// The sender has found out how a receiver is reached, or that has changed.
    Path {
        /// Name of the receiver.
        receiver: String,
        /// `multicast` or `unicast`.
        reach: &'static str,
    },
    /// All paths are known, and the sender starts to send the file.
    Streaming {
        /// Number of receivers reached by multicast.
        multicast: usize,
        /// Number of receivers reached by unicast.
        unicast: usize,
    },
    /// Progress of the transfer, about ten times a second.
    Progress {
        /// Seconds since the start.
        seconds: f64,
        /// Bytes that the slowest receiver has.
        slowest: u64,
        /// Bytes that the median receiver has.
        median: u64,
        /// Bytes that the fastest receiver has.
        fastest: u64,
        /// Length of the file in bytes; `None`: a stream that has not ended.
        len: Option<u64>,
        /// The sender's rate in bytes per second, if the core tells one.
        rate: Option<u64>,
        /// Data packets sent again so far, each counted once.
        repairs: u64,
        /// Receivers that have verified the file.
        verified: usize,
        /// Receivers that have received the file to a stream.
        received: usize,
        /// Receivers that have failed.
        failed: usize,
    },
    /// A file cannot be read, or has changed since it was listed. Receivers that do not have it yet
    /// do not get it.
    FileFailed(FileFailure),
    /// P3's protocol: the time of a file has run out before all receivers had it.
    Expired {
        /// Path of the file at the sender.
        #[serde(flatten)]
        path: ToldPath,
        /// Number of receivers that do not have it.
        receivers: usize,
    },
    /// A receiver is too slow for the others, which go on without it. It catches up after them.
    Demoted {
        /// Name of the receiver.
        receiver: String,
        /// Bytes that it has.
        placed: u64,
        /// Length of the file in bytes.
        len: u64,
    },
    /// A receiver lacks packs, which it gets after the others. It came late or was demoted, and
    /// takes part from now on; or it has compared what it had, and has other files or could not
    /// read all in time; or others keep them from an earlier run, and it does not.
    CatchingUp {
        /// Name of the receiver.
        receiver: String,
        /// Since when it takes part. `whole`: from the start.
        part: Part,
        /// Bytes of the packs that it lacks.
        lacking: u64,
    },
    /// A receiver keeps the others waiting.
    Slow {
        /// Name of the receiver.
        receiver: String,
        /// Since when it takes part. One that was demoted is not demoted again.
        part: Part,
    },
    /// A receiver has proven and stored the file.
    Verified {
        /// Name of the receiver.
        receiver: String,
        /// Seconds since the start.
        seconds: f64,
    },
    /// A receiver has proven the file, which has gone to its stream.
    Received {
        /// Name of the receiver.
        receiver: String,
        /// Seconds since the start.
        seconds: f64,
    },
    /// A receiver will not have the file.
    Failed {
        /// Name of the receiver.
        receiver: String,
        /// The reason, as an exit code.
        code: u8,
        /// The reason, in words.
        reason: String,
    },
    /// A message that the user should see.
    Notice {
        /// The message.
        text: String,
    },
}

/// The side that decided that a receiver does not take part.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// The sender refused it.
    Sender,
    /// The receiver found that it could not take part.
    Receiver,
}

/// How the transfer ended for a receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// The receiver has proven and stored the file.
    Verified,
    /// The receiver has proven the file, which has gone to a stream: what has become of it there,
    /// nobody can verify.
    Received,
    /// The receiver said that it could not go on, or the sender gave up before the receiver had the
    /// file.
    Failed,
    /// The receiver's connection closed or broke.
    Lost,
    /// The receiver was too slow, or no datagram reached it.
    Dropped,
    /// The receiver connected and never took part.
    Refused,
}

impl State {
    /// Whether the receiver has got everything.
    pub fn is_complete(self) -> bool {
        matches!(self, State::Verified | State::Received)
    }
}

/// Since when a receiver takes part.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// From the start.
    Whole,
    /// It came when the transfer ran already.
    Late,
    /// It was too slow for the others, left them, and catches up after them.
    Demoted,
}

/// One line of the sender's table.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ReceiverReport {
    /// Name of the receiver.
    pub receiver: String,
    /// Address of the receiver.
    pub address: SocketAddr,
    /// How the transfer ended for it.
    pub state: State,
    /// Why the receiver failed, if it did.
    pub reason: Option<String>,
    /// `multicast`, `unicast` or `nothing`.
    pub reach: &'static str,
    /// Seconds from the start until the transfer ended for this receiver.
    pub seconds: f64,
    /// Data packets sent again for this receiver: by unicast, or because it was the first to
    /// request them. Each repair counts for one receiver, even if others needed it too.
    pub repairs: u64,
    /// Since when the receiver takes part.
    pub part: Part,
    /// Bytes that the receiver has, as far as the sender knows.
    pub placed: u64,
    /// What the receiver itself counted.
    #[serde(rename = "tally")]
    pub statistics: ReceiverStatistics,
}

/// What a sender has sent and received.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Traffic {
    /// Data packets sent for the first time, to all receivers at once.
    pub data: u64,
    /// Data packets sent for the first time to single receivers that multicast does not reach.
    pub data_unicast: u64,
    /// Data packets sent again to all receivers.
    pub repairs_multicast: u64,
    /// How many of `repairs_multicast` were XOR repair packets or parity packets.
    pub repairs_coded: u64,
    /// Data packets sent again to one receiver.
    pub repairs_unicast: u64,
    /// Feedback frames received.
    pub feedback: u64,
    /// Datagrams sent, of all kinds.
    pub datagrams: u64,
    /// Bytes on the wire, with Ethernet, IP and UDP headers.
    pub wire_bytes: u64,
    /// Received frames dropped because they fit nothing here, and malformed datagrams.
    pub foreign: u64,
    /// Received datagrams dropped because their checksum was wrong.
    pub corrupt: u64,
    /// Datagrams dropped on purpose, to inject faults.
    pub injected: u64,
}

/// A file that could not be sent.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct FileFailure {
    /// Path of the file at the sender.
    #[serde(flatten)]
    pub path: ToldPath,
    /// Why, in words.
    pub reason: String,
}

/// How a transfer ended.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct SendReport {
    /// Name of the file.
    pub name: String,
    /// Length of the file in bytes; `None`: a stream that has not ended.
    pub len: Option<u64>,
    /// BLAKE3 of the hashes of all packs, in hexadecimal; `None` if not all files were read.
    pub root: Option<String>,
    /// How the source was changed after its bytes had been read, if it was. The receivers have the
    /// file as it was before that change.
    pub changed: Option<String>,
    /// Files that could not be sent.
    pub failed: Vec<FileFailure>,
    /// Seconds from the start to the last verified receiver.
    pub seconds: f64,
    /// What was sent and received.
    pub traffic: Traffic,
    /// What was sent and received by P3's protocol, if that was chosen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub messages: Option<Messages>,
    /// Number of messages and ACKs of P3's protocol that each worker has sent, if that was chosen.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub workers: Vec<u64>,
    /// Connections that were given up while they were pending.
    #[serde(rename = "strangers")]
    pub pending: u64,
    /// Names of the receivers that must have the file; empty: all that were admitted.
    pub required: Vec<String>,
    /// The receivers that were admitted.
    pub receivers: Vec<ReceiverReport>,
    /// Receivers that came and were refused, or found that they could not take part.
    pub refused: Vec<ReceiverReport>,
    /// Number of further refused receivers, which are only counted.
    pub refused_more: u64,
}

/// A transfer that ended with an error for all receivers at once.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct SendFailure {
    /// The error that ended the transfer.
    #[source]
    pub error: Error,
    /// How far each receiver had come by then; `None` if no receiver could connect yet.
    pub report: Option<Box<SendReport>>,
}

impl<E: Into<Error>> From<E> for SendFailure {
    fn from(error: E) -> SendFailure {
        SendFailure {
            error: error.into(),
            report: None,
        }
    }
}

impl SendReport {
    /// Number of receivers that have the file.
    pub fn verified(&self) -> usize {
        let verified = |r: &&ReceiverReport| r.state == State::Verified;
        self.receivers.iter().filter(verified).count()
    }

    /// Number of receivers that have the file, or have received it to a stream.
    pub fn complete(&self) -> usize {
        let is_complete = |r: &&ReceiverReport| r.state.is_complete();
        self.receivers.iter().filter(is_complete).count()
    }

    /// Whether a receiver with this name has the file.
    fn has(&self, name: &str) -> bool {
        let mut receivers = self.receivers.iter();
        receivers.any(|r| r.receiver == name && r.state.is_complete())
    }

    /// The exit code for this result.
    pub fn exit_code(&self) -> u8 {
        let has_all = match self.required.is_empty() {
            true => self.complete() == self.receivers.len(),
            false => self.required.iter().all(|name| self.has(name)),
        };
        match has_all {
            _ if self.changed.is_some() || !self.failed.is_empty() => exit::SOURCE_CHANGED,
            true => exit::OK,
            false => exit::PARTIAL,
        }
    }
}

/// What happens at a receiver.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum RecvEvent {
    /// The receiver looks for the sender.
    Searching {
        /// The sender's address; `None` if the receiver listens for announcements.
        from: Option<String>,
    },
    /// The receiver has not found the sender yet; told every few seconds.
    Trying {
        /// The sender's address; `None` if the receiver listens for announcements.
        from: Option<String>,
        /// Seconds since the receiver began to look.
        seconds: f64,
        /// The present trouble, and what may help.
        reason: String,
    },
    /// The receiver has found the sender and waits for the start.
    Connected {
        /// Address of the sender.
        sender: SocketAddr,
        /// Name of the first file or directory at the top.
        name: String,
        /// How many files and directories are at the top.
        tops: u32,
        /// Bytes of all files; `None`: it is a stream.
        len: Option<u64>,
        /// Bytes that will be taken of the disk, as far as that is known before the manifest has
        /// come: what is here from an earlier run needs no more.
        to_take: u64,
        /// Path of the destination file; `-`: it goes to a stream.
        #[serde(serialize_with = "text::told")]
        path: PathBuf,
    },
    /// The transfer has begun.
    Started {
        /// The multicast group; `None` without multicast.
        #[serde(serialize_with = "group_text")]
        group: Option<GroupAddress>,
    },
    /// A part of the set is here from an earlier run, and need not come again.
    Resumed {
        /// Its bytes.
        bytes: u64,
    },
    /// The receiver was too slow for the others, which go on without it. It catches up after them.
    Demoted,
    /// The receiver has come late, or was demoted, and takes part from now on.
    Joined {
        /// Number of packs that were sent before.
        packs: u32,
        /// How many of these the receiver lacks: the sender sends them again.
        lacking: u32,
    },
    /// A receiver that serves is not asked any more, because of what it did.
    PeerLeft {
        /// Its address.
        peer: SocketAddr,
        /// Why, in words.
        reason: String,
    },
    /// Progress of the receiver, about ten times a second.
    Progress {
        /// Seconds since the start.
        seconds: f64,
        /// Bytes that have arrived.
        placed: u64,
        /// How many of `placed` were present, and were not sent. While files are compared, all that
        /// was compared counts.
        present: u64,
        /// Bytes that will yet be taken of the disk. A long file takes its space when it begins,
        /// where the file system can do that, and any other with its bytes. 0 for a stream.
        to_take: u64,
        /// Length of the file in bytes; `None`: a stream that has not ended.
        len: Option<u64>,
    },
    /// P3's protocol: a file is proven, and has its name.
    FileStored {
        /// Its path.
        #[serde(serialize_with = "text::told")]
        path: PathBuf,
        /// Its length in bytes.
        len: u64,
    },
    /// P3's protocol: a file will not be here.
    FileFailed {
        /// Its path; `None` if its name is not known.
        #[serde(serialize_with = "path_text")]
        path: Option<PathBuf>,
        /// Why, in words.
        reason: String,
    },
    /// The receiver compares what it has with the sender's hashes, and reads its files for that.
    Comparing,
    /// All bytes have arrived; the receiver proves and stores them.
    Storing,
    /// In a dry run: what would be deleted, with all that it holds.
    Surplus(ToldPath),
    /// A message that the user should see.
    Notice {
        /// The message.
        text: String,
    },
}

impl RecvReport {
    /// The exit code for this result.
    pub fn exit_code(&self) -> u8 {
        match self.is_whole() {
            true => exit::OK,
            false => exit::SOURCE_CHANGED,
        }
    }

    /// Whether all files are here as the sender has them.
    pub fn is_whole(&self) -> bool {
        self.failed.is_empty() && self.failed_unnamed == 0
    }
}

/// Result of a receiver.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct RecvReport {
    /// Path of the file; `-`: it has gone to a stream.
    #[serde(serialize_with = "text::told")]
    pub path: PathBuf,
    /// [`State::Verified`]; [`State::Received`] if the file has gone to a stream;
    /// [`State::Refused`] after a dry run; [`State::Failed`] if files were changed here.
    pub state: State,
    /// Bytes of the files that are here as the sender has them.
    pub len: u64,
    /// BLAKE3 of the hashes of all packs, in hexadecimal.
    pub root: String,
    /// Number of entries that were deleted, because they were in directories of the set and not in
    /// the set.
    pub deleted: u64,
    /// Number of devices and FIFOs that were not made.
    pub special: u64,
    /// Files that are not here as the sender has them: everything else is here. The sender could
    /// not read them, or they are among `changed`.
    pub failed: Vec<ToldPath>,
    /// Number of further such files, whose names this receiver does not know: by P3's protocol,
    /// those that were over before it came.
    #[serde(skip_serializing_if = "is_zero")]
    pub failed_unnamed: u64,
    /// Files that were here already, and were changed here while the set came, or refused owner,
    /// permissions or time; and what was to be made of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changed: Vec<ToldPath>,
    /// Whether nothing was deleted because of `changed`.
    #[serde(skip)]
    pub leaves_surplus: bool,
    /// The entries that were received, under the sender's names. Empty for what has gone to a
    /// stream, for what was not stored, and by P3's protocol, which has no manifest.
    #[serde(skip)]
    pub manifest: Manifest,
    /// Seconds from the start to the end.
    pub seconds: f64,
    /// What the receiver counted.
    #[serde(rename = "tally")]
    pub statistics: ReceiverStatistics,
    /// What was sent and received by P3's protocol, if the sender has chosen it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub messages: Option<Messages>,
}
