//! IBRMP, P3's protocol for files, as two machines without I/O (spec 7).
//!
//! A [`Sender`] multicasts each file once: BOF, then DATA. Each receiver has a reliable channel to
//! the sender. By it, every receiver gets the EOF, requests what it lacks (BOF_REQUEST,
//! DATA_REQUEST), and says TRANSFER_DONE. One timeout for each file closes it; FILE_TIMEOUT tells
//! receivers that need to know. Receivers do not know each other.
//!
//! Inputs are messages and times; outputs are messages to multicast, messages for the reliable
//! channel of one receiver, ranges of bytes to write, and events. The driver moves the bytes, sets
//! the pace of multicast, and keeps the channels. The files have operations of their own: they
//! share nothing with [`crate::Node`] and its streams.
//!
//! `message` is what travels, `sender` and `receiver` are the two machines, `slots` judges
//! requests, `holes` knows what a receiver lacks, `credits` is one end of a reliable channel.

mod credits;
mod holes;
mod message;
mod receiver;
mod sender;
mod slots;

pub use credits::{Channel, ChannelError, Credits, Cut};
pub use message::{
    Body, DATA_MAX, DecodeError, FILE_LEN_MAX, Fd, FileId, Frame, HEADER_LEN, Header, Message,
    NAME_MAX, Name, SLOTS_MAX, Type, decode,
};
pub use receiver::{Extent, Failure, Receiver, ReceiverConfig, ReceiverEvent, ReceiverOutput};
pub use sender::{Joined, ReceiverId, Refusal, Sender, SenderConfig, SenderEvent, SenderOutput};
pub use slots::{Judgement, Slots};
