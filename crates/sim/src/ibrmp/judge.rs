//! What no run may show (spec 7), beside bytes that differ and ends that wait for ever.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fabricast::proto::Time;
use fabricast::proto::ibrmp::{Body, FileId, Frame, Message, Sender};

/// Watches the messages of a run.
#[derive(Default)]
pub struct Judge {
    /// Receivers and files of which the sender has said FILE_TIMEOUT.
    timeouts: BTreeSet<(u32, FileId)>,
    /// Receivers and files of which they have the EOF.
    ended: BTreeSet<(u32, FileId)>,
    /// Receivers and files that they have complete.
    complete: BTreeSet<(u32, FileId)>,
    /// When the multicast of each file ended, and how many receivers were there.
    multicast: BTreeMap<FileId, (Time, usize)>,
}

impl Judge {
    /// The sender sends a frame by the channel of `host`.
    pub fn sent(&mut self, sender: &Sender, host: u32, frame: &Frame) -> Result<(), String> {
        let Frame::Message(message) = frame else {
            return Ok(());
        };
        if message.body != Body::FileTimeout {
            return Ok(());
        }
        let file = message.file;
        if !self.timeouts.insert((host, file)) {
            return Err(format!("host {host} gets FILE_TIMEOUT twice for {file:?}"));
        }
        match sender.tuple(message.fd).0 {
            Some(open) if open > file => Err(format!(
                "host {host} gets FILE_TIMEOUT for {file:?}, whose slot has {open:?}"
            )),
            _ => Ok(()),
        }
    }

    /// A frame has come to `host` by its channel.
    pub fn received(&mut self, host: u32, frame: &Frame) {
        if let Frame::Message(Message { file, body, .. }) = frame
            && let Body::Eof { .. } = body
        {
            self.ended.insert((host, *file));
        }
    }

    /// `host` has a whole file.
    pub fn complete(&mut self, host: u32, file: FileId) {
        self.complete.insert((host, file));
    }

    /// `host` sends a frame, with at least `batch` messages for an ACK.
    pub fn requested(&self, host: u32, frame: &Frame, batch: u32) -> Result<(), String> {
        match frame {
            Frame::Ack(messages) if *messages < batch => {
                Err(format!("host {host}: an ACK for {messages} messages"))
            }
            Frame::Message(Message {
                file,
                body: Body::TransferDone,
                ..
            }) if !self.ended.contains(&(host, *file))
                || !self.complete.contains(&(host, *file)) =>
            {
                Err(format!("host {host}: TRANSFER_DONE too early for {file:?}"))
            }
            _ => Ok(()),
        }
    }

    /// The multicast of a file has ended, when so many receivers were there.
    pub fn multicast_ended(&mut self, now: Time, file: FileId, receivers: usize) {
        self.multicast.entry(file).or_insert((now, receivers));
    }

    /// A file is closed, for which the sender had noted so many receivers.
    pub fn closed(
        &self,
        now: Time,
        file: FileId,
        noted: usize,
        timeout: Duration,
    ) -> Result<(), String> {
        let Some((ended, receivers)) = self.multicast.get(&file) else {
            return Err(format!("{file:?} is closed before its multicast has ended"));
        };
        if noted != *receivers {
            return Err(format!(
                "{file:?} waits for {noted} receivers, and {receivers} were there at its EOF"
            ));
        }
        match now.since(*ended) > timeout {
            true => Err(format!("{file:?} is open for {:?}", now.since(*ended))),
            false => Ok(()),
        }
    }
}
