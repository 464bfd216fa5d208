//! What an end has sent and received, message by message (the trace) and in numbers.

use fabricast_proto::ibrmp::{Body, Frame, Message, Type};
use serde::Serialize;
use tracing::trace;

/// Messages by P3's types.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub struct MessageCounts {
    /// Begin of file.
    pub bof: u64,
    /// Bytes of files.
    pub data: u64,
    /// End of file.
    pub eof: u64,
    /// The sender has closed a file.
    pub file_timeout: u64,
    /// Requests for a BOF.
    pub bof_request: u64,
    /// Requests for bytes.
    pub data_request: u64,
    /// A receiver has a whole file.
    pub transfer_done: u64,
    /// Accumulated ACKs.
    pub ack: u64,
}

impl MessageCounts {
    fn add(&mut self, kind: Type) {
        let count = match kind {
            Type::Ack => &mut self.ack,
            Type::Bof => &mut self.bof,
            Type::Data => &mut self.data,
            Type::Eof => &mut self.eof,
            Type::FileTimeout => &mut self.file_timeout,
            Type::BofRequest => &mut self.bof_request,
            Type::DataRequest => &mut self.data_request,
            Type::TransferDone => &mut self.transfer_done,
        };
        *count += 1;
    }
}

/// What an end of an IBRMP transfer has sent and received.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Messages {
    /// By multicast: sent by the sender, received by a receiver.
    pub multicast: MessageCounts,
    /// Sent by reliable channels.
    pub sent: MessageCounts,
    /// Received by reliable channels.
    pub received: MessageCounts,
    /// Bytes of files in the DATA messages by multicast.
    pub multicast_bytes: u64,
    /// Bytes of files in the DATA messages by reliable channels, in either direction.
    pub channel_bytes: u64,
}

/// The name of a type in the trace, as P3 writes it.
fn name(kind: Type) -> &'static str {
    match kind {
        Type::Ack => "ACK",
        Type::Bof => "BOF",
        Type::Data => "DATA",
        Type::Eof => "EOF",
        Type::FileTimeout => "FILE_TIMEOUT",
        Type::BofRequest => "BOF_REQUEST",
        Type::DataRequest => "DATA_REQUEST",
        Type::TransferDone => "TRANSFER_DONE",
    }
}

/// Sequence number and length of a message, as its header has them.
fn position(message: &Message) -> (u64, u64) {
    match message.body {
        Body::Bof { len, .. } | Body::Eof { len } => (0, len),
        Body::Data { offset, len } => (offset, len.into()),
        Body::DataRequest { offset, len } => (offset, len),
        Body::FileTimeout | Body::BofRequest | Body::TransferDone => (0, 0),
    }
}

/// Writes a message into the trace: `what` has happened to it, and `node` is the other end, or all.
fn write(what: &'static str, node: Option<u32>, message: &Message) {
    let (sequence, length) = position(message);
    let (fd, file) = (message.fd.0, message.file.0);
    let kind = name(message.kind());
    trace!(what, kind, fd, file, sequence, length, ?node);
}

impl Messages {
    /// Notes a message that goes, or has come, by multicast.
    pub(super) fn multicast(&mut self, message: &Message) {
        write("multicast", None, message);
        self.multicast.add(message.kind());
        self.multicast_bytes += u64::from(message.data_len());
    }

    /// Notes a frame that goes by the channel to this node.
    pub(super) fn sent(&mut self, node: u32, frame: &Frame) {
        self.by_channel("sent", node, frame);
        self.sent.add(kind(frame));
    }

    /// Notes a frame that has come by the channel from this node.
    pub(super) fn received(&mut self, node: u32, frame: &Frame) {
        self.by_channel("received", node, frame);
        self.received.add(kind(frame));
    }

    fn by_channel(&mut self, what: &'static str, node: u32, frame: &Frame) {
        match frame {
            Frame::Message(message) => {
                write(what, Some(node), message);
                self.channel_bytes += u64::from(message.data_len());
            }
            Frame::Ack(messages) => trace!(what, kind = "ACK", messages, node),
        }
    }
}

fn kind(frame: &Frame) -> Type {
    match frame {
        Frame::Ack(_) => Type::Ack,
        Frame::Message(message) => message.kind(),
    }
}
