//! What a transfer tells while it runs and when it is over. The command line writes
//! the same as lines of JSON.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Serialize;

use crate::bootstrap::message::ReceiverStatistics;
use crate::error::{Error, exit};
use crate::text;

/// What happens at a sender.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum SendEvent {
    /// Receivers can connect now.
    Listening {
        /// Where; the address part may be "everywhere".
        address: SocketAddr,
        /// Name of the file.
        name: String,
        /// Its length in bytes.
        len: u64,
        /// Whether it is announced, so that receivers need no address.
        announced: bool,
    },
    /// A receiver is there.
    Connected {
        /// What it is called.
        receiver: String,
        /// Its address.
        address: SocketAddr,
        /// How many are there now.
        receivers: usize,
    },
    /// A receiver that came was refused, or found that it could not take part.
    Refused {
        /// What it is called.
        receiver: String,
        /// Its address.
        address: SocketAddr,
        /// Who says so.
        by: By,
        /// Why.
        reason: String,
    },
    /// A receiver has left before the start.
    Left {
        /// What it was called.
        receiver: String,
        /// How many are there now.
        receivers: usize,
    },
    /// No more receivers are admitted.
    Starting {
        /// How many there are.
        receivers: usize,
        /// Where multicasts go.
        group: Option<SocketAddr>,
        /// Where the sender's datagrams come from.
        root: SocketAddr,
        /// The interface in use.
        interface: String,
        /// Payload of a data packet in bytes.
        #[serde(rename = "chunk")]
        payload_size: u32,
        /// Packets that may be under way.
        window: u32,
    },
    /// It is known how a receiver is reached, or that has changed.
    Path {
        /// Which receiver.
        receiver: String,
        /// `multicast` or `unicast`.
        reach: &'static str,
    },
    /// All paths are known; the data flow.
    Streaming {
        /// How many receivers by multicast.
        multicast: usize,
        /// How many by unicast.
        unicast: usize,
    },
    /// How far it has come, about ten times a second.
    Progress {
        /// Seconds since the start.
        seconds: f64,
        /// Bytes that the slowest receiver has.
        slowest: u64,
        /// Bytes that the receiver in the middle has.
        median: u64,
        /// Bytes that the fastest receiver has.
        fastest: u64,
        /// Bytes that there are.
        len: u64,
        /// The pace in bytes per second, if the core says.
        rate: Option<u64>,
        /// Data packets sent again so far, each counted once.
        repairs: u64,
        /// Receivers that have verified the file.
        verified: usize,
        /// Receivers that have failed.
        failed: usize,
    },
    /// A receiver keeps the others waiting.
    Slow {
        /// Which one.
        receiver: String,
    },
    /// A receiver has the file, proven and stored.
    Verified {
        /// Which one.
        receiver: String,
        /// Seconds since the start.
        seconds: f64,
    },
    /// A receiver will not have the file.
    Failed {
        /// Which one.
        receiver: String,
        /// Why, as an exit code.
        code: u8,
        /// Why, in words.
        reason: String,
    },
    /// Something worth knowing.
    Notice {
        /// What.
        text: String,
    },
}

/// Who says that a receiver does not take part.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// The sender refused it.
    Sender,
    /// It found itself that it could not.
    Receiver,
}

/// How it ended for a receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// The file is there, proven and stored.
    Verified,
    /// It said that it could not, or the sender gave up before the receiver had the file.
    Failed,
    /// Its connection closed or broke.
    Lost,
    /// It was too slow, or no datagram reached it.
    Dropped,
    /// It came, and never took part.
    Refused,
}

/// One line of the sender's table.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ReceiverReport {
    /// What it is called.
    pub receiver: String,
    /// Its address.
    pub address: SocketAddr,
    /// How it ended.
    pub state: State,
    /// Why it failed, if it did.
    pub reason: Option<String>,
    /// `multicast` or `unicast`.
    pub reach: &'static str,
    /// Seconds from the start until it ended.
    pub seconds: f64,
    /// Data packets sent again that it had asked for, by unicast or because it asked first: each
    /// repair counts for one receiver, whoever else needed it.
    pub repairs: u64,
    /// What it counted itself.
    #[serde(rename = "tally")]
    pub statistics: ReceiverStatistics,
}

/// What a sender has put on the wire.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Traffic {
    /// Data packets sent once for all.
    pub data: u64,
    /// Data packets sent to single receivers that multicast does not reach.
    pub data_unicast: u64,
    /// Data packets sent again to all.
    pub repairs_multicast: u64,
    /// Those of them that were sums of several.
    pub repairs_coded: u64,
    /// Data packets sent again to one.
    pub repairs_unicast: u64,
    /// Feedback frames that came.
    pub feedback: u64,
    /// Datagrams sent, of every kind.
    pub datagrams: u64,
    /// Bytes on the wire, with Ethernet, IP and UDP headers.
    pub wire_bytes: u64,
    /// Datagrams dropped because they belonged to nothing.
    pub foreign: u64,
    /// Datagrams dropped because their checksum was wrong.
    pub corrupt: u64,
    /// Datagrams dropped on purpose.
    pub injected: u64,
}

/// How a transfer ended.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct SendReport {
    /// Name of the file.
    pub name: String,
    /// Its length in bytes.
    pub len: u64,
    /// BLAKE3 of the hash list, in hexadecimal; `None` if the file was not read to its end.
    pub root: Option<String>,
    /// How the source was changed after its bytes had been read, if it was: what the receivers have
    /// is the file as it was before that.
    pub changed: Option<String>,
    /// Seconds from the start to the last verified receiver.
    pub seconds: f64,
    /// What was put on the wire.
    pub traffic: Traffic,
    /// Connections that made no sense.
    #[serde(rename = "strangers")]
    pub pending: u64,
    /// The receivers that were admitted.
    pub receivers: Vec<ReceiverReport>,
    /// Receivers that came and were refused, or found that they could not take part.
    pub refused: Vec<ReceiverReport>,
    /// Number of further refused receivers, which are only counted.
    pub refused_more: u64,
}

/// A transfer that ended with an error for all receivers at once.
#[derive(Debug)]
pub struct SendFailure {
    /// Why.
    pub error: Error,
    /// What had become of the receivers by then; `None` if nobody could connect yet.
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
    /// Receivers that have the file.
    pub fn verified(&self) -> usize {
        let verified = |r: &&ReceiverReport| r.state == State::Verified;
        self.receivers.iter().filter(verified).count()
    }

    /// The exit code that says how it ended.
    pub fn exit_code(&self) -> u8 {
        match self.verified() == self.receivers.len() {
            _ if self.changed.is_some() => exit::SOURCE_CHANGED,
            true => exit::OK,
            false => exit::PARTIAL,
        }
    }
}

/// What happens at a receiver.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum RecvEvent {
    /// It looks for the sender.
    Searching {
        /// Where; `None`: it listens for announcements.
        from: Option<String>,
    },
    /// It has not found the sender yet; every few seconds.
    Trying {
        /// Where; `None`: it listens for announcements.
        from: Option<String>,
        /// Seconds since it began.
        seconds: f64,
        /// What is the matter, and what may help.
        reason: String,
    },
    /// It has found the sender and waits for the start.
    Connected {
        /// The sender.
        sender: SocketAddr,
        /// Name of the file.
        name: String,
        /// Its length in bytes.
        len: u64,
        /// Where it goes.
        #[serde(serialize_with = "text::told")]
        path: PathBuf,
    },
    /// The transfer has begun.
    Started {
        /// Where multicasts come from.
        group: Option<SocketAddr>,
    },
    /// How far it has come, about ten times a second.
    Progress {
        /// Seconds since the start.
        seconds: f64,
        /// Bytes that are in the file.
        placed: u64,
        /// Bytes that there are.
        len: u64,
    },
    /// All bytes are there; they are being proven and stored.
    Storing,
    /// Something worth knowing.
    Notice {
        /// What.
        text: String,
    },
}

/// What a receiver has.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct RecvReport {
    /// The file.
    #[serde(serialize_with = "text::told")]
    pub path: PathBuf,
    /// Its length in bytes.
    pub len: u64,
    /// BLAKE3 of the hash list, in hexadecimal.
    pub root: String,
    /// Seconds from the start to the end.
    pub seconds: f64,
    /// What was counted.
    #[serde(rename = "tally")]
    pub statistics: ReceiverStatistics,
}
