//! What waits to be written to one control connection. One thread alone has it and writes: the
//! control thread at first, and a worker as soon as the receiver may request bytes.
//!
//! Bytes of a source are read when everything before them has been written, so that little waits in
//! memory for a receiver that does not read.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fabricast_proto::ibrmp::{self, Body, HEADER_LEN};

use super::blocks::{Blocks, Payload};
use super::frame;
use super::message::Need;

/// Reads and writes of one connection in one turn.
pub const CALLS: usize = 8;
/// Bytes that may wait for one receiver that does not read.
const BACKLOG: usize = 4 << 20;
/// Items that may wait for one receiver. Each may hold a file open. A receiver that reads has few,
/// by the credits of its channel.
const ITEMS: usize = 1024;
/// Frames of a reliable channel are read and written together up to this number of bytes, and one
/// frame more.
const BATCH: usize = 64 << 10;

/// Why a connection ends.
#[derive(Debug)]
pub enum Gone {
    /// The connection is closed or broken.
    Broken(String),
    /// The peer says what it must not say, or must not say now; it is told so.
    Wrong(String),
    /// The peer has said hello in a way that this version cannot read; it is told so.
    Unreadable {
        /// Name of the receiver; empty if it is unreadable, too.
        name: String,
        /// Why it is refused.
        reason: String,
    },
}

/// The end of a connection that gives this error.
pub fn broken(e: io::Error) -> Gone {
    Gone::Broken(format!("its connection broke: {e}"))
}

/// Something to write.
pub enum Item {
    /// A frame, which several receivers may share.
    Frame(Arc<[u8]>),
    /// A frame of the reliable channel. A DATA message has its bytes from the payload.
    Channel(ibrmp::Frame, Option<Arc<dyn Payload>>),
}

/// Length in bytes of the payload that follows a frame of the reliable channel.
fn payload_len(frame: &ibrmp::Frame) -> usize {
    match frame {
        ibrmp::Frame::Message(message) => message.data_len() as usize,
        ibrmp::Frame::Ack(_) => 0,
    }
}

impl Item {
    /// Bytes that it takes when it is written, about.
    fn len(&self) -> usize {
        match self {
            Item::Frame(frame) => frame.len(),
            Item::Channel(frame, _) => frame::HEAD + HEADER_LEN + payload_len(frame),
        }
    }
}

/// What waits to be written to one connection.
pub struct Output {
    stream: Arc<TcpStream>,
    queue: VecDeque<Item>,
    /// Bytes of the items in `queue`.
    waiting: usize,
    /// Requests that are answered when nothing else waits.
    needs: VecDeque<Need>,
    /// The number of requests whose answers have been begun, for the thread that counts requests.
    begun: Arc<AtomicU64>,
    /// The frame that is being written, if several receivers share it; else what is being written
    /// is in `bytes`.
    shared: Option<Arc<[u8]>>,
    bytes: Vec<u8>,
    /// Bytes of `shared` or `bytes` that are written.
    written: usize,
    /// Whether the socket took no more bytes.
    is_blocked: bool,
    /// Whether the connection closes when everything is written.
    is_closing: bool,
    /// The number of frames of reliable channels that the thread which writes has sent.
    sent: Arc<AtomicU64>,
}

impl Output {
    /// Nothing waits for this connection yet.
    pub fn new(stream: Arc<TcpStream>) -> Output {
        Output {
            stream,
            queue: VecDeque::new(),
            waiting: 0,
            needs: VecDeque::new(),
            begun: Arc::default(),
            shared: None,
            bytes: Vec::new(),
            written: 0,
            is_blocked: false,
            is_closing: false,
            sent: Arc::default(),
        }
    }

    /// The connection.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// The number of requests whose answers have been begun.
    pub fn begun(&self) -> Arc<AtomicU64> {
        self.begun.clone()
    }

    /// Queues an item behind what waits to be written.
    ///
    /// # Errors
    /// Too much waits already, because the receiver does not read.
    pub fn put(&mut self, item: Item) -> Result<(), Gone> {
        let unwritten = self.front().len() - self.written;
        self.waiting += item.len();
        if unwritten + self.waiting > BACKLOG || self.queue.len() >= ITEMS {
            return Err(Gone::Broken("it reads nothing of what it is told".into()));
        }
        self.queue.push_back(item);
        Ok(())
    }

    /// Queues a request, which is answered when nothing else waits.
    pub fn need(&mut self, need: Need) {
        if !self.is_closing {
            self.needs.push_back(need);
        }
    }

    /// Answers no more requests.
    pub fn drop_needs(&mut self) {
        self.needs = VecDeque::new();
    }

    /// Closes the connection when everything is written. Requests are not answered any more.
    pub fn close(&mut self) {
        self.is_closing = true;
        self.drop_needs();
    }

    /// Whether something waits to be written.
    pub fn has_output(&self) -> bool {
        self.written < self.front().len() || !self.queue.is_empty() || !self.needs.is_empty()
    }

    /// Whether the socket took no more bytes when they were last written.
    pub fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// The socket takes bytes again.
    pub fn unblock(&mut self) {
        self.is_blocked = false;
    }

    /// Whether everything has been written before the connection closes.
    pub fn is_done(&self) -> bool {
        self.is_closing && !self.has_output()
    }

    /// Counts the frames of the reliable channel here from now on.
    pub fn count_in(&mut self, sent: &Arc<AtomicU64>) {
        self.sent = sent.clone();
    }

    fn front(&self) -> &[u8] {
        self.shared.as_deref().unwrap_or(&self.bytes)
    }

    /// Reads what is due, and writes what the socket takes, a bounded amount: one block at most, so
    /// that what comes meanwhile goes before the next one.
    ///
    /// # Errors
    /// The connection is broken, or `blocks` cannot be read.
    pub fn flush(&mut self, blocks: &dyn Blocks) -> Result<(), Gone> {
        let needs = self.needs.len();
        for _ in 0..CALLS {
            let is_written = self.written == self.front().len();
            if is_written && (self.needs.len() < needs || !self.prepare(blocks)?) {
                break;
            }
            match (&*self.stream).write(&self.front()[self.written..]) {
                Ok(n) => self.written += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.is_blocked = true;
                    break;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(broken(e)),
            }
        }
        if !self.has_output() {
            // Idle connections keep no memory.
            (self.shared, self.bytes, self.written) = (None, Vec::new(), 0);
        }
        if self.is_done() {
            // The peer sees the end, reads what it has, and closes; then the sender closes.
            let _ = self.stream.shutdown(Shutdown::Write);
        }
        Ok(())
    }

    /// Reads or takes what is written next; false if nothing waits.
    fn prepare(&mut self, blocks: &dyn Blocks) -> Result<bool, Gone> {
        self.written = 0;
        self.shared = None;
        self.bytes.clear();
        self.bytes.shrink_to(2 * BATCH);
        while let Some(Item::Channel(..)) = self.queue.front()
            && self.bytes.len() < BATCH
            && let Some(Item::Channel(frame, payload)) = self.take()
        {
            self.sent.fetch_add(1, Ordering::Relaxed);
            let len = payload_len(&frame);
            frame::put_ibrmp(&mut self.bytes, &frame, len);
            let at = self.bytes.len();
            self.bytes.resize(at + len, 0);
            if let ibrmp::Frame::Message(message) = frame
                && let Body::Data { offset, .. } = message.body
                && let Some(payload) = payload
            {
                payload.read(offset, &mut self.bytes[at..]);
            }
        }
        if !self.bytes.is_empty() {
            return Ok(true);
        }
        if let Some(Item::Frame(frame)) = self.take() {
            self.shared = Some(frame);
            return Ok(true);
        }
        let Some(need) = self.needs.pop_front() else {
            return Ok(false);
        };
        self.begun.fetch_add(1, Ordering::Relaxed);
        if need.page {
            self.shared = blocks.page(need.pack);
            return Ok(self.shared.is_some());
        }
        let mut bytes = Vec::new();
        blocks.answer(&need, &mut bytes).map_err(Gone::Wrong)?;
        frame::put_bulk(&mut self.bytes, &bytes);
        Ok(true)
    }

    fn take(&mut self) -> Option<Item> {
        let item = self.queue.pop_front()?;
        self.waiting -= item.len();
        Some(item)
    }
}
