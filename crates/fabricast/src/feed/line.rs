//! One end of a connection between a feed and a follower: messages in frames, without waiting.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use serde::Serialize;

use crate::bootstrap::frame::{self, HEAD, Kind, Longest};
use crate::bootstrap::plain;

/// Bytes that are read at a time.
const READ: usize = 16 << 10;

/// A connection that never blocks.
pub(super) struct Line {
    pub(super) stream: TcpStream,
    /// The longest messages that the other end may send.
    longest: Longest,
    input: Vec<u8>,
    output: VecDeque<Arc<[u8]>>,
    /// Bytes of the first of `output` that have been written.
    written: usize,
}

/// A message as a frame.
pub(super) fn framed(message: &impl Serialize) -> Arc<[u8]> {
    let mut frame = Vec::new();
    frame::put_message(&mut frame, message);
    frame.into()
}

impl Line {
    /// A connection that is set up to never block ([`crate::bootstrap::set_up`]).
    pub(super) fn new(stream: TcpStream, longest: Longest) -> Line {
        Line {
            stream,
            longest,
            input: Vec::new(),
            output: VecDeque::new(),
            written: 0,
        }
    }

    /// The address of the other end.
    pub(super) fn peer(&self) -> io::Result<SocketAddr> {
        self.stream.peer_addr().map(plain)
    }

    /// The bytes of the next message, if one is there. An error means that the connection is over.
    pub(super) fn take(&mut self) -> Result<Option<Vec<u8>>, String> {
        loop {
            if let Some(head) = self.input.first_chunk::<HEAD>() {
                let strange = || "what came is no message of a feed".to_string();
                let (kind, len) = frame::head(*head, self.longest).ok_or_else(strange)?;
                if kind != Kind::Message {
                    return Err(strange());
                }
                if self.input.len() >= HEAD + len {
                    let rest = self.input.split_off(HEAD + len);
                    let mut message = std::mem::replace(&mut self.input, rest);
                    message.drain(..HEAD);
                    return Ok(Some(message));
                }
            }
            let mut some = [0; READ];
            match self.stream.read(&mut some) {
                Ok(0) => return Err("the connection was closed".into()),
                Ok(count) => self.input.extend_from_slice(&some[..count]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e.to_string()),
            }
        }
    }

    /// Whether something waits to be written.
    pub(super) fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    /// Adds a frame to what is written.
    pub(super) fn put(&mut self, frame: Arc<[u8]>) {
        self.output.push_back(frame);
    }

    /// Writes what the network takes.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        while let Some(frame) = self.output.front() {
            match self.stream.write(&frame[self.written..]) {
                Ok(count) => self.written += count,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
            if self.written == frame.len() {
                self.written = 0;
                self.output.pop_front();
            }
        }
        Ok(())
    }
}
