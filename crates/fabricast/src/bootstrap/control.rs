//! A receiver's end of the control connection.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fabricast_proto::ibrmp::Frame;

use super::connecting::{connect_to, connect_within, socket_for};
use super::frame::{self, Kind};
use super::message::{ToReceiver, ToSender};
use super::{UNREACHABLE, plain, tune};
use crate::interface::stay_on_link;
use crate::waker::Waker;

/// The longest time for one attempt to connect.
const ATTEMPT: Duration = Duration::from_secs(3);
/// The longest time for one attempt to connect to an announced address. It is less than the second
/// after which the kernel would send a second SYN.
const ONE_SYN: Duration = Duration::from_millis(900);
/// How long a write to the sender may block. After that, the sender counts as gone.
const WRITE: Duration = Duration::from_secs(10);

/// What came from the sender.
pub enum Heard {
    /// A message.
    Message(ToReceiver),
    /// Bytes that this receiver has requested.
    Bulk(Vec<u8>),
    /// A frame of the reliable channel, as it came.
    Frame(Vec<u8>),
    /// The connection is closed, or what came makes no sense. The text says why.
    Closed(String),
}

/// The connection to the sender.
pub struct Control {
    stream: TcpStream,
    heard: Receiver<Heard>,
    reader: Option<JoinHandle<()>>,
}

/// Connects to the first of `addresses` that answers. Tries each address once, without pauses, and
/// not beyond `deadline`, nor once `is_over` says that nobody wants it.
pub fn connect(
    addresses: &[SocketAddr],
    deadline: Instant,
    is_over: &dyn Fn() -> bool,
    waker: Waker,
) -> io::Result<Control> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for &address in addresses {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || is_over() {
            break;
        }
        match connect_to(address, ATTEMPT.min(left), is_over) {
            Ok(stream) => return Control::new(stream, waker),
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// Connects to a sender that was found by an announcement. Anybody may announce anybody's address.
/// So an address that does not answer gets one packet, and that packet does not leave the link.
pub fn connect_found(
    address: SocketAddr,
    deadline: Instant,
    is_over: &dyn Fn() -> bool,
    waker: Waker,
) -> io::Result<Control> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let socket = socket_for(address)?;
    stay_on_link(socket.as_fd())?;
    let stream = connect_within(socket, address, ONE_SYN.min(left), is_over)?;
    Control::new(stream, waker)
}

impl Control {
    fn new(stream: TcpStream, waker: Waker) -> io::Result<Control> {
        tune(&stream, UNREACHABLE)?;
        stream.set_write_timeout(Some(WRITE))?;
        let mut input = stream.try_clone()?;
        // The channel is small: TCP holds back a sender that talks without being asked.
        let (tell, heard) = sync_channel(4);
        let reader = thread::Builder::new()
            .name("fabricast-control".into())
            .spawn(move || {
                loop {
                    let said = read(&mut input).unwrap_or_else(Heard::Closed);
                    let last = matches!(said, Heard::Closed(_));
                    if tell.send(said).is_err() {
                        return;
                    }
                    waker.wake();
                    if last {
                        return;
                    }
                }
            })?;
        Ok(Control {
            stream,
            heard,
            reader: Some(reader),
        })
    }

    /// The sender's address.
    pub fn peer(&self) -> io::Result<SocketAddr> {
        self.stream.peer_addr().map(plain)
    }

    /// This receiver's address, by which the sender reaches it.
    pub fn local(&self) -> io::Result<SocketAddr> {
        self.stream.local_addr().map(plain)
    }

    /// Sends a message. Messages are small, so this blocks only if the sender reads nothing at all.
    pub fn say(&mut self, message: &ToSender) -> io::Result<()> {
        let mut out = Vec::new();
        frame::put_message(&mut out, message);
        self.stream.write_all(&out)
    }

    /// Sends a frame by the reliable channel. Blocks only if the sender reads nothing at all.
    pub fn send(&mut self, frame: &Frame) -> io::Result<()> {
        let mut out = Vec::new();
        frame::put_ibrmp(&mut out, frame, 0);
        self.stream.write_all(&out)
    }

    /// What the sender has said, if anything; does not block.
    pub fn hear(&self) -> Option<Heard> {
        self.heard.try_recv().ok()
    }

    /// The message by which the sender has ended the transfer for this receiver, if it said one
    /// before it closed the connection. Whatever comes before is dropped. Waits at most until
    /// `deadline`.
    pub fn last_words(&self, deadline: Instant) -> Option<ToReceiver> {
        while let Some(heard) = self.hear_until(deadline) {
            match heard {
                Heard::Message(
                    said @ (ToReceiver::Removed { .. }
                    | ToReceiver::Aborted { .. }
                    | ToReceiver::Bye),
                ) => return Some(said),
                Heard::Closed(_) => return None,
                _ => {}
            }
        }
        None
    }

    /// Waits for the sender to say something, until `deadline`.
    pub fn hear_until(&self, deadline: Instant) -> Option<Heard> {
        let left = deadline.saturating_duration_since(Instant::now());
        match self.heard.recv_timeout(left) {
            Ok(heard) => Some(heard),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Heard::Closed("closed".into())),
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
        // The reader may wait for a place in the channel, so the channel is emptied until the
        // reader ends.
        while self.heard.recv().is_ok() {}
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

fn read(input: &mut impl Read) -> Result<Heard, String> {
    let words = |e: io::Error| match e.kind() {
        io::ErrorKind::UnexpectedEof => "the connection was closed".to_string(),
        _ => e.to_string(),
    };
    let mut head = [0; frame::HEAD];
    input.read_exact(&mut head).map_err(words)?;
    let strange = || "what answers there is not a fabricast sender".to_string();
    let (kind, len) = frame::head(head, frame::TO_RECEIVER).ok_or_else(strange)?;
    let mut bytes = vec![0; len];
    input.read_exact(&mut bytes).map_err(words)?;
    match kind {
        Kind::Bulk => Ok(Heard::Bulk(bytes)),
        Kind::Ibrmp => Ok(Heard::Frame(bytes)),
        Kind::Message => frame::message(&bytes)
            .map(Heard::Message)
            .ok_or_else(strange),
    }
}
