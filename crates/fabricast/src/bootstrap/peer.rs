//! One control connection at the sender: what the peer may say, how much of it is taken at once,
//! and which thread writes to the peer.
//!
//! Whatever the peer does, one call reads, takes and writes a bounded amount. What is left waits
//! for the next turn, after all other connections.

use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fabricast_proto::ibrmp;

use super::acceptor::Incoming;
use super::blocks::Blocks;
use super::event::{Event, PeerKey};
use super::frame::{self, Kind};
use super::message::{Greeting, Need, ToSender, VERSION};
use super::output::{CALLS, Gone, Output, broken};
use super::psk::Ticket;
use crate::object::{BLOCK, pieces};

/// Messages of one peer that are taken in one turn; an honest peer sends one or two.
pub const MESSAGES: usize = 16;
/// Requests of one receiver that may wait for their answers.
pub const NEEDS_MAX: usize = 16;
/// Requests of one receiver for each block and each header, on average at most. An honest receiver
/// sends three: for the hashes of the block's pieces, for some pieces, and for the whole block.
const NEEDS_PER_BLOCK: u64 = 4;

/// How long a guest may request nothing. One that lets the stream go first pauses for 10 s at most.
pub const GUEST_IDLE: Duration = Duration::from_secs(30);

/// What a peer has sent.
enum Input {
    Message(ToSender),
    Frame(ibrmp::Frame),
}

/// The thread that writes to a connection.
pub enum Writer {
    /// The control thread, which has what waits to be written.
    Control(Output),
    /// The worker with this number.
    Worker(usize),
}

/// A control connection.
pub struct Peer {
    pub stream: Arc<TcpStream>,
    /// The thread that writes to it.
    pub writer: Writer,
    /// Where it connects from.
    pub address: SocketAddr,
    local: SocketAddr,
    /// When it connected, or began to close. A pending connection must say hello soon.
    pub since: Instant,
    /// Whether the peer has said `Hello`.
    pub known: bool,
    /// Whether anything was said to the peer.
    pub answered: bool,
    /// Whether the connection closes once everything is written; nothing more is taken from it.
    pub closing: bool,
    /// Whether a pack has been announced to the peer, so that it may request damaged parts.
    pub proving: bool,
    /// Whether the peer has a reliable channel.
    pub has_channel: bool,
    /// What the peer has to show in place of a hello, where only guests are admitted.
    ticket: Option<Ticket>,
    ended: bool,
    /// Whether messages may be left in `input`.
    more: bool,
    input: Vec<u8>,
    /// Requests that the worker has not been told of yet.
    pub needs: Vec<Need>,
    /// Number of requests so far.
    needed: u64,
    /// When it last requested something. Until then: when it showed its ticket, or connected.
    asked: Instant,
    /// Number of requests that the worker has begun to answer.
    begun: Arc<AtomicU64>,
}

impl Peer {
    /// Creates a pending connection. `ticket`: what the peer has to show in place of a hello.
    pub fn new(incoming: Incoming, ticket: Option<Ticket>) -> Peer {
        let stream = Arc::new(incoming.stream);
        let output = Output::new(stream.clone());
        Peer {
            stream,
            begun: output.begun(),
            writer: Writer::Control(output),
            address: incoming.address,
            local: incoming.local,
            since: Instant::now(),
            known: false,
            answered: false,
            closing: false,
            proving: false,
            has_channel: false,
            ticket,
            ended: false,
            more: false,
            input: Vec::new(),
            needs: Vec::new(),
            needed: 0,
            asked: Instant::now(),
        }
    }

    /// Takes nothing more from the peer. The thread that writes closes the connection when
    /// everything is written.
    pub fn close(&mut self) {
        self.closing = true;
        self.since = Instant::now();
        self.needs = Vec::new();
        self.more = false;
        self.input = Vec::new();
        if let Writer::Control(output) = &mut self.writer {
            output.close();
        }
    }

    /// Whether the connection uses a descriptor without a place in the transfer: its peer has not
    /// said hello, or the connection is closing.
    pub fn has_no_place(&self) -> bool {
        !self.known || self.closing
    }

    /// Whether it is a guest that has requested nothing for [`GUEST_IDLE`], and so keeps a place
    /// from others.
    pub fn is_idle_guest(&self, now: Instant) -> bool {
        let is_guest = self.ticket.is_some() && self.known && !self.closing;
        is_guest && now.duration_since(self.asked) > GUEST_IDLE
    }

    /// Whether it must be served even if nothing arrives from the network.
    pub fn is_waiting(&self) -> bool {
        self.more
    }

    /// Whether the control thread has something to write to it.
    pub fn has_output(&self) -> bool {
        matches!(&self.writer, Writer::Control(output) if output.has_output())
    }

    /// Whether everything was written to it before it closes.
    pub fn is_told(&self) -> bool {
        matches!(&self.writer, Writer::Control(output) if output.is_done())
    }

    /// Reads, takes and writes bounded amounts; events go to `tell`.
    pub fn serve(
        &mut self,
        key: PeerKey,
        blocks: &dyn Blocks,
        tell: &mut dyn FnMut(Event),
    ) -> Result<(), Gone> {
        self.read()?;
        self.more = false;
        for taken in 0.. {
            if taken == MESSAGES {
                self.more = true;
                break;
            }
            let event = match self.next_input()? {
                None => break,
                Some(Input::Frame(frame)) => Some(Event::Frame { peer: key, frame }),
                Some(Input::Message(message)) => self.take(key, message, blocks)?,
            };
            event.map(&mut *tell);
        }
        self.flush(blocks)?;
        match self.ended && !self.more {
            true => Err(Gone::Broken("its connection was closed".into())),
            false => Ok(()),
        }
    }

    /// Reads what has arrived. TCP holds back a peer that floods: no more is read than one message
    /// and a bit.
    fn read(&mut self) -> Result<(), Gone> {
        let mut piece = [0; 4096];
        for _ in 0..CALLS {
            if self.input.len() >= frame::HEAD + frame::REQUEST_MAX {
                break;
            }
            match (&*self.stream).read(&mut piece) {
                Ok(0) => {
                    self.ended = true;
                    break;
                }
                Ok(n) if !self.closing => self.input.extend_from_slice(&piece[..n]),
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(broken(e)),
            }
        }
        Ok(())
    }

    fn next_input(&mut self) -> Result<Option<Input>, Gone> {
        let Some(head) = self.input.first_chunk() else {
            return Ok(None);
        };
        let strange = || Gone::Wrong("it does not speak our language".into());
        let (kind, len) = frame::head(*head, frame::TO_SENDER).ok_or_else(strange)?;
        let end = frame::HEAD + len;
        if self.input.len() < end {
            return Ok(None);
        }
        let bytes = &self.input[frame::HEAD..end];
        let input = match kind {
            // A client without a ticket is told nothing, not even which version this is.
            Kind::Message if self.known || self.ticket.is_some() => {
                frame::message(bytes).map(Input::Message)
            }
            Kind::Message => first_message(bytes)?.map(Input::Message),
            Kind::Ibrmp if self.has_channel => ibrmp::decode(bytes)
                .ok()
                .map(|(frame, _)| Input::Frame(frame)),
            Kind::Bulk | Kind::Ibrmp => None,
        };
        self.input.drain(..end);
        input.ok_or_else(strange).map(Some)
    }

    /// The event of a message for the transfer, if any. Messages out of turn are refused.
    fn take(
        &mut self,
        peer: PeerKey,
        message: ToSender,
        blocks: &dyn Blocks,
    ) -> Result<Option<Event>, Gone> {
        let wrong = |text: String| Err(Gone::Wrong(text));
        match (message, self.known) {
            (ToSender::Ticket { ticket }, false) if Some(ticket) == self.ticket => {
                (self.known, self.asked) = (true, Instant::now());
                let address = self.address;
                Ok(Some(Event::Guest { peer, address }))
            }
            (ToSender::Hello(hello), false) if self.ticket.is_none() => {
                self.known = true;
                Ok(Some(Event::Hello {
                    peer,
                    address: self.address,
                    local: self.local,
                    hello,
                }))
            }
            (message @ ToSender::Hello(_), true) | (message, false) => wrong(message.out_of_turn()),
            (message @ ToSender::Need(_), true) if !self.proving => wrong(message.out_of_turn()),
            (ToSender::Need(need), true) => {
                if !exists(&need, blocks) {
                    return wrong("it asked for what it cannot have".into());
                }
                let waiting = self.needed - self.begun.load(Ordering::Relaxed);
                self.needed += 1;
                if waiting >= NEEDS_MAX as u64 {
                    return wrong(format!("it asked for more than {NEEDS_MAX} things at once"));
                }
                if self.needed > NEEDS_PER_BLOCK * blocks.parts() {
                    return wrong("it asked for the same things again and again".into());
                }
                self.needs.push(need);
                self.asked = Instant::now();
                Ok(None)
            }
            (message, true) => Ok(Some(Event::Said { peer, message })),
        }
    }

    /// Writes what the socket takes, if the control thread writes to it.
    pub fn flush(&mut self, blocks: &dyn Blocks) -> Result<(), Gone> {
        match &mut self.writer {
            Writer::Control(output) => output.flush(blocks),
            Writer::Worker(_) => Ok(()),
        }
    }
}

/// The first message of a peer. Its version is read before all else, which another version may say
/// otherwise.
fn first_message(bytes: &[u8]) -> Result<Option<ToSender>, Gone> {
    let message = frame::message(bytes);
    let Some(Greeting::Hello { version, name }) = frame::message(bytes) else {
        return Ok(message);
    };
    let reason = match (version, &message) {
        (VERSION, Some(_)) => return Ok(message),
        (VERSION, None) => format!(
            "the sender cannot read its hello, though both speak version {VERSION} of the control \
             protocol"
        ),
        (other, _) => format!(
            "the sender speaks version {VERSION} of the control protocol, not {other}; install \
             the same version of fabricast on both"
        ),
    };
    Err(Gone::Unreadable { name, reason })
}

/// Whether what is requested exists.
fn exists(need: &Need, blocks: &dyn Blocks) -> bool {
    let Some(len) = blocks.payload_len(need) else {
        return false;
    };
    if need.list && (need.block.is_some() || need.hashes) {
        return false;
    }
    let Some(block) = need.block else {
        return !need.hashes && need.pieces.is_empty();
    };
    let start = block.checked_mul(BLOCK as u64);
    let whole = start.map_or(0, |start| len.saturating_sub(start));
    let count = pieces(whole.min(BLOCK as u64));
    let there = need.pieces.iter().all(|piece| *piece < count);
    let once = need.pieces.is_sorted_by(|a, b| a < b);
    let either = !need.hashes || need.pieces.is_empty();
    whole > 0 && there && once && either
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Otherwise it would keep a place from others for as long as the transfer lasts.
    #[test]
    fn a_guest_that_requests_nothing_is_idle() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let local = listener.local_addr().unwrap();
        let peer = |ticket| {
            let stream = TcpStream::connect(local).unwrap();
            let address = stream.local_addr().unwrap();
            let incoming = Incoming {
                stream,
                address,
                local,
            };
            let mut peer = Peer::new(incoming, ticket);
            peer.known = true;
            peer
        };
        let second = Duration::from_secs(1);
        let mut guest = peer(Some(Ticket::random().unwrap()));
        let late = guest.asked + GUEST_IDLE + second;
        assert!(!guest.is_idle_guest(late - second) && guest.is_idle_guest(late));
        guest.asked += 2 * second;
        assert!(!guest.is_idle_guest(late));
        assert!(!peer(None).is_idle_guest(late + GUEST_IDLE), "a receiver");
    }
}
