//! A late receiver's end of a connection to a receiver that serves: a thread that fetches packs and
//! proves them (spec 5.15).
//!
//! The other end may be anybody, and may lie, send too much, trickle or hang. So every step has a
//! time limit, each frame has to have the length that the sender's record of the pack implies, and
//! only a pack that is proven is passed on.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::connecting::{connect_within, socket_for};
use super::frame::{self, Kind, Longest};
use super::message::{Need, ToReceiver, ToSender};
use super::psk::Ticket;
use super::throttle::Throttle;
use super::{UNREACHABLE, tune};
use crate::error::Error;
use crate::job_thread::{Desk, JobThread};
use crate::object::pack::{Header, Pack};
use crate::object::{BLOCK, PackRecord, blocks};
use crate::waker::Waker;

/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(1);
/// How long the other end may take to give a block or a header, or to admit this one.
const ANSWER: Duration = Duration::from_secs(5);
/// Bytes that may be under way to this receiver. More would fill queues on the way, in which the
/// stream waits, too; on a local network so many are enough.
const WINDOW: usize = 128 << 10;
/// How often the thread checks whether it is still wanted.
const PAUSE: Duration = Duration::from_millis(100);

/// Why a connection has ended that the other end has closed.
const CLOSED: &str = "it closed the connection";

/// What is taken of the other end.
const LONGEST: Longest = Longest {
    message: frame::REQUEST_MAX,
    bulk: frame::BULK_MAX,
    ibrmp: 0,
};

/// What has become of a request.
#[derive(PartialEq, Debug)]
pub enum Fetched {
    /// The pack and its header, which are proven.
    Pack(Pack, Header),
    /// The other end does not have it.
    Lacks,
    /// The other end gave something else, or nothing. The connection is closed. The text says why.
    Gone(String),
}

/// A connection to a receiver that serves. Dropping it ends the thread: at once, or as soon as a
/// connection that is being made is there or has failed. It has nothing that anybody waits for.
pub struct Fetcher(JobThread<Request, Fetched>);

/// The number of a pack, and what was announced of it.
type Request = (u32, PackRecord);

impl Fetcher {
    /// Connects to the receiver at this address, and shows it the ticket, on a thread of its own.
    /// Fetches what is requested as `throttle` lets it. Wakes `waker` after each request.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(
        address: SocketAddr,
        ticket: Ticket,
        throttle: Arc<Throttle>,
        waker: Waker,
    ) -> Result<Fetcher, Error> {
        let body = move |desk: &Desk<Request, Fetched>| {
            let is_over = || desk.is_over();
            let mut line = Line::connect(address, ticket, &throttle, &is_over);
            while let Some((number, record)) = desk.next() {
                let fetched = match &mut line {
                    Ok(line) => line.fetch(number, &record),
                    Err(why) => Err(std::mem::take(why)),
                };
                let fetched = match fetched {
                    Ok(Some((pack, header))) => Fetched::Pack(pack, header),
                    Ok(None) => Fetched::Lacks,
                    Err(why) => Fetched::Gone(why),
                };
                let is_last = matches!(fetched, Fetched::Gone(_));
                desk.tell(fetched);
                if is_last {
                    return;
                }
            }
        };
        JobThread::start("fabricast-fetch", waker, body).map(Fetcher)
    }

    /// Requests the pack with this number and this record. The answer comes by [`Fetcher::next`].
    pub fn request(&self, number: u32, record: PackRecord) {
        self.0.give((number, record));
    }

    /// The answer to the oldest request, if it has come; does not block.
    pub fn next(&self) -> Option<Fetched> {
        let gone = |error: Error| Some(Fetched::Gone(error.to_string()));
        self.0.next().unwrap_or_else(gone)
    }
}

/// Connects with a small window.
fn connect(address: SocketAddr, is_over: &dyn Fn() -> bool) -> io::Result<TcpStream> {
    let socket = socket_for(address)?;
    socket.set_recv_buffer_size(WINDOW)?;
    connect_within(socket, address, CONNECT, is_over)
}

/// The connection, as its thread has it.
struct Line<'a> {
    stream: TcpStream,
    throttle: &'a Throttle,
    is_over: &'a dyn Fn() -> bool,
}

impl<'a> Line<'a> {
    fn connect(
        address: SocketAddr,
        ticket: Ticket,
        throttle: &'a Throttle,
        is_over: &'a dyn Fn() -> bool,
    ) -> Result<Line<'a>, String> {
        let connected = connect(address, is_over).and_then(|stream| {
            tune(&stream, UNREACHABLE)?;
            stream.set_read_timeout(Some(PAUSE))?;
            stream.set_write_timeout(Some(ANSWER))?;
            Ok(stream)
        });
        let stream = connected.map_err(|e| format!("it cannot be reached: {e}"))?;
        let mut line = Line {
            stream,
            throttle,
            is_over,
        };
        line.say(&ToSender::Ticket { ticket })?;
        match line.frame(Instant::now() + ANSWER)? {
            Frame::Message(ToReceiver::Admitted) => Ok(line),
            other => Err(other.unexpected()),
        }
    }

    /// Fetches a pack. `None`: the other end does not have it.
    fn fetch(
        &mut self,
        number: u32,
        record: &PackRecord,
    ) -> Result<Option<(Pack, Header)>, String> {
        let wrong = || "what it gave is not what the sender announced".to_owned();
        let (len, header_len) = (record.len as usize, record.header as usize);
        let hash = blake3::Hash::from(record.hash);
        let need = |block| Need {
            pack: number,
            hash: hash.to_hex().to_string(),
            block,
            ..Need::default()
        };
        let Some(mut bytes) = self.answer(need(None), header_len)? else {
            return Ok(None);
        };
        if blake3::hash(&bytes) != hash {
            return Err(wrong());
        }
        let header = Header::decode(&bytes, len - header_len).ok_or_else(wrong)?;
        bytes.reserve_exact(len - header_len);
        for block in 0..blocks((len - header_len) as u64) {
            let most = (len - header_len) - block as usize * BLOCK;
            match self.answer(need(Some(block)), most.min(BLOCK))? {
                Some(answer) if header.proves(block, &answer) => bytes.extend(answer),
                Some(_) => return Err(wrong()),
                None => return Ok(None),
            }
        }
        let pack = Pack {
            bytes,
            header: header_len,
        };
        Ok(Some((pack, header)))
    }

    fn say(&mut self, message: &ToSender) -> Result<(), String> {
        let mut out = Vec::new();
        frame::put_message(&mut out, message);
        let written = self.stream.write_all(&out);
        written.map_err(|e| format!("it takes nothing any more: {e}"))
    }

    /// Requests `len` bytes, when that is not in the way of the stream. `None`: the other end does
    /// not have them.
    fn answer(&mut self, need: Need, len: usize) -> Result<Option<Vec<u8>>, String> {
        while let Some(wait) = self.throttle.wait() {
            self.check()?;
            thread::sleep(wait.min(PAUSE));
        }
        self.say(&ToSender::Need(need))?;
        match self.frame(Instant::now() + ANSWER)? {
            Frame::Bulk(bytes) if bytes.is_empty() => Ok(None),
            Frame::Bulk(bytes) if bytes.len() == len => Ok(Some(bytes)),
            Frame::Bulk(bytes) => Err(format!("it gave {} bytes in place of {len}", bytes.len())),
            other => Err(other.unexpected()),
        }
    }

    /// Whether the thread is still wanted.
    fn check(&self) -> Result<(), String> {
        match (self.is_over)() {
            true => Err("nobody waits for it".into()),
            false => Ok(()),
        }
    }

    /// The next frame.
    fn frame(&mut self, by: Instant) -> Result<Frame, String> {
        let strange = || "it speaks another language".to_owned();
        let mut head = [0; frame::HEAD];
        self.read(&mut head, by)?;
        let (kind, len) = frame::head(head, LONGEST).ok_or_else(strange)?;
        let mut bytes = vec![0; len];
        self.read(&mut bytes, by)?;
        match kind {
            Kind::Bulk => Ok(Frame::Bulk(bytes)),
            Kind::Message => frame::message(&bytes)
                .map(Frame::Message)
                .ok_or_else(strange),
            Kind::Ibrmp => Err(strange()),
        }
    }

    fn read(&mut self, mut into: &mut [u8], by: Instant) -> Result<(), String> {
        while !into.is_empty() {
            self.check()?;
            if Instant::now() > by {
                return Err(format!("it took longer than {} s", ANSWER.as_secs()));
            }
            match self.stream.read(into) {
                Ok(0) => return Err(CLOSED.into()),
                Ok(n) => into = &mut into[n..],
                Err(e) => match e.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {}
                    ErrorKind::ConnectionReset => return Err(CLOSED.into()),
                    _ => return Err(e.to_string()),
                },
            }
        }
        Ok(())
    }
}

/// What has come.
enum Frame {
    Bulk(Vec<u8>),
    Message(ToReceiver),
}

impl Frame {
    /// Why the connection ends: this was not to come.
    fn unexpected(self) -> String {
        match self {
            Frame::Message(ToReceiver::Refused { reason }) => format!("it refused: {reason}"),
            Frame::Message(_) | Frame::Bulk(_) => "it answered what was not asked for".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;
    use crate::object::HASH;
    use crate::object::pack::{Content, Piece};
    use crate::object::testing::pattern;

    /// What the other end does at each step.
    #[derive(Clone, Copy, PartialEq, Debug)]
    enum Does {
        Right,
        ForgesHeader,
        ForgesAll,
        ForgesBlock,
        GivesTooMuch,
        GivesTooLittle,
        AnswersInWords,
        SpeaksStrangely,
        ClosesAtOnce,
        ClosesInTheMidst,
        Refuses,
        LacksAll,
        LacksABlock,
        Hangs,
        Trickles,
    }

    const LEN: usize = 2 * BLOCK + 5;

    fn piece() -> Piece {
        Piece::Bytes {
            file: 0,
            offset: 0,
            len: LEN as u32,
            last: true,
        }
    }

    /// A pack whose payload begins with this byte.
    fn beginning(first: u8) -> Pack {
        let mut payload = pattern(LEN);
        payload[0] = first;
        Pack::new(Content::Pieces(vec![piece()]), &payload)
    }

    fn pack() -> Pack {
        beginning(1)
    }

    fn bulk(stream: &mut TcpStream, bytes: &[u8]) {
        let mut out = Vec::new();
        frame::put_bulk(&mut out, bytes);
        let _ = stream.write_all(&out); // one that is told nonsense closes
    }

    /// The next request: its block.
    fn request(stream: &mut TcpStream) -> Option<Option<u64>> {
        let mut head = [0; frame::HEAD];
        stream.read_exact(&mut head).ok()?;
        let (_, len) = frame::head(head, frame::TO_SENDER)?;
        let mut bytes = vec![0; len];
        stream.read_exact(&mut bytes).ok()?;
        match frame::message(&bytes)? {
            ToSender::Need(need) => Some(need.block),
            ToSender::Ticket { .. } => Some(None),
            other => panic!("{other:?}"),
        }
    }

    fn serve(mut stream: TcpStream, does: Does) -> Option<()> {
        let sent = beginning(if does == Does::ForgesAll { 2 } else { 1 });
        request(&mut stream)?;
        let mut out = Vec::new();
        let answer = match does {
            Does::ClosesAtOnce => return None,
            Does::Refuses => ToReceiver::Refused {
                reason: "no \x1b[2J".into(),
            },
            _ => ToReceiver::Admitted,
        };
        frame::put_message(&mut out, &answer);
        stream.write_all(&out).ok()?;
        while let Some(block) = request(&mut stream) {
            let mut bytes = match block {
                None => sent.bytes[..sent.header].to_vec(),
                Some(block) => sent.block(block).to_vec(),
            };
            match does {
                Does::ForgesHeader if block.is_none() => bytes[3] ^= 1,
                Does::ForgesBlock if block == Some(2) => bytes[4] ^= 1,
                Does::GivesTooMuch => bytes.push(0),
                Does::GivesTooLittle => _ = bytes.pop(),
                Does::AnswersInWords => {
                    stream.write_all(&out).ok()?;
                    continue;
                }
                Does::SpeaksStrangely => {
                    stream.write_all(b"HTTP/1.1 200 OK\r\n").ok()?;
                    continue;
                }
                Does::ClosesInTheMidst if block == Some(1) => return None,
                Does::LacksAll => bytes.clear(),
                Does::LacksABlock if block == Some(1) => bytes.clear(),
                Does::Hangs => continue,
                Does::Trickles => {
                    let mut out = Vec::new();
                    frame::put_bulk(&mut out, &bytes);
                    for byte in out {
                        stream.write_all(&[byte]).ok()?;
                        thread::sleep(PAUSE);
                    }
                }
                _ => {}
            }
            bulk(&mut stream, &bytes);
        }
        None
    }

    fn fetcher(at: SocketAddr) -> Fetcher {
        let (ticket, waker) = (Ticket::random().unwrap(), Waker::new().unwrap());
        Fetcher::start(at, ticket, Arc::default(), waker).unwrap()
    }

    /// What becomes of a request, if the other end does this.
    fn fetched(does: Does) -> Fetched {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let at = listener.local_addr().unwrap();
        thread::spawn(move || serve(listener.accept().unwrap().0, does));
        let fetcher = fetcher(at);
        fetcher.request(7, PackRecord::of(&pack()));
        loop {
            if let Some(fetched) = fetcher.next() {
                return fetched;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn gone(does: Does) -> String {
        match fetched(does) {
            Fetched::Gone(why) => why,
            other => panic!("{does:?}: {other:?}"),
        }
    }

    #[test]
    fn a_pack_is_fetched_and_proven() {
        let (pack, content) = (pack(), Content::Pieces(vec![piece()]));
        let header = Header::decode(&pack.bytes[..pack.header], pack.payload().len()).unwrap();
        assert_eq!(header.content, content);
        assert_eq!(fetched(Does::Right), Fetched::Pack(pack, header));
        for lacks in [Does::LacksAll, Does::LacksABlock] {
            assert_eq!(fetched(lacks), Fetched::Lacks, "{lacks:?}");
        }
    }

    #[test]
    fn one_that_lies_is_left() {
        for (does, why) in [
            (Does::ForgesHeader, "not what the sender announced"),
            (Does::ForgesAll, "not what the sender announced"),
            (Does::ForgesBlock, "not what the sender announced"),
            (Does::GivesTooMuch, "bytes in place of"),
            (Does::GivesTooLittle, "bytes in place of"),
            (Does::AnswersInWords, "not asked for"),
            (Does::SpeaksStrangely, "another language"),
            (Does::ClosesAtOnce, "closed the connection"),
            (Does::ClosesInTheMidst, "closed the connection"),
            (Does::Refuses, "it refused: no [2J"),
        ] {
            let told = gone(does);
            assert!(told.contains(why), "{does:?}: {told}");
        }
    }

    #[test]
    fn one_that_gives_nothing_is_left() {
        let each = [Does::Hangs, Does::Trickles].map(|does| thread::spawn(move || gone(does)));
        for told in each {
            let told = told.join().unwrap();
            assert!(told.contains("longer than 5 s"), "{told}");
        }
        // Nobody listens there.
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let at = listener.local_addr().unwrap();
        drop(listener);
        let fetcher = fetcher(at);
        let (len, header) = (10, 5);
        let hash = [0; HASH];
        fetcher.request(0, PackRecord { len, header, hash });
        let gone = loop {
            match fetcher.next() {
                Some(Fetched::Gone(why)) => break why,
                Some(other) => panic!("{other:?}"),
                None => thread::sleep(Duration::from_millis(1)),
            }
        };
        assert!(gone.contains("cannot be reached"), "{gone}");
    }

    /// On a link that the stream fills, and on which what is fetched goes first, the stream still
    /// gets most of the turns.
    #[test]
    fn what_is_fetched_leaves_the_stream_its_link() {
        const TURNS: u64 = 2000;
        const TURN: Duration = Duration::from_millis(1);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let at = listener.local_addr().unwrap();
        let throttle = Arc::<Throttle>::default();
        let (ticket, waker) = (Ticket::random().unwrap(), Waker::new().unwrap());
        let fetcher = Fetcher::start(at, ticket, throttle.clone(), waker).unwrap();
        let mut stream = listener.accept().unwrap().0;
        request(&mut stream);
        let mut out = Vec::new();
        frame::put_message(&mut out, &ToReceiver::Admitted);
        stream.write_all(&out).unwrap();
        let record = PackRecord::of(&pack());
        (0..TURNS as u32).for_each(|number| fetcher.request(number, record));
        let (mut packets, mut given) = (0, 0);
        while packets < TURNS && given < TURNS {
            stream.set_read_timeout(Some(TURN)).unwrap();
            if stream.peek(&mut [0]).is_ok() {
                stream.set_read_timeout(None).unwrap();
                request(&mut stream);
                bulk(&mut stream, b""); // it lacks the pack
                thread::sleep(TURN);
                given += 1;
            } else {
                packets += 1;
                throttle.arrived(packets);
            }
        }
        assert!(0 < given && given < packets / 2, "{given}, {packets}");
    }
}
