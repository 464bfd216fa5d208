//! Hand-made control connections, with messages that no real sender or receiver sends.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, TryRecvError, channel};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use serde_json::{Value, json};

use fabricast::object::manifest::{Entry, Kind, Manifest, TOP};
use fabricast::object::pack::{Content, Pack};
use fabricast::proto::{GroupId, NodeId, Seq, Session, wire};

use super::BOUND;

/// An IP address and a port, as nodes tell it.
pub fn ip(address: impl ToString) -> Value {
    json!({"ip": address.to_string()})
}

/// The member of a hello that says that datagrams go to this port of the host that connects.
pub fn port(port: u16) -> Value {
    json!({"address": ip(format!("0.0.0.0:{port}"))})
}

/// The members of a hello of a receiver that can take part in any transfer.
pub fn able() -> Value {
    let mut able = port(4000);
    (able["datagram"], able["window_bytes"]) = (json!(65_507), json!(58 << 20));
    able
}

/// One end of a control connection.
pub struct Peer(pub TcpStream);

impl Peer {
    /// Connects to the sender at `address`.
    pub fn connect(address: &str) -> Peer {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(BOUND)).unwrap();
        Peer(stream)
    }

    /// Accepts the next receiver.
    #[track_caller]
    pub fn accept(listener: &TcpListener) -> Peer {
        let mut comes = [PollFd::new(listener, PollFlags::IN)];
        let bound = BOUND.try_into().unwrap();
        assert_eq!(poll(&mut comes, Some(&bound)).unwrap(), 1, "nobody comes");
        let (stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(BOUND)).unwrap();
        Peer(stream)
    }

    /// A receiver that has sent its hello to the sender at `address`, with `members` replacing the
    /// usual fields. Its window is 16 MiB.
    pub fn hello(address: &str, name: &str, others: Value) -> Peer {
        Peer::connect(address).greets(name, others)
    }

    /// Like [`Peer::hello`], on a connection that is there already.
    pub fn greets(mut self, name: &str, others: Value) -> Peer {
        let mut hello = json!({
            "say": "hello", "version": 11, "name": name, "address": ip("0.0.0.0:4000"),
            "datagram": 1472, "window_bytes": 1u64 << 24,
        });
        for (key, value) in others.as_object().unwrap() {
            hello[key] = value.clone();
        }
        self.say(hello);
        self
    }

    /// The other end's address.
    pub fn other(&self) -> String {
        self.0.peer_addr().unwrap().to_string()
    }

    /// Sends a message.
    pub fn say(&mut self, message: Value) {
        self.put(b'M', message.to_string().as_bytes()).unwrap();
    }

    /// Sends a frame of this kind.
    pub fn put(&mut self, kind: u8, bytes: &[u8]) -> io::Result<()> {
        let [_, a, b, c] = (bytes.len() as u32).to_be_bytes();
        self.0.write_all(&[kind, a, b, c])?;
        self.0.write_all(bytes)
    }

    /// Receives the next frame: its kind, and its bytes.
    pub fn try_raw(&mut self) -> io::Result<(u8, Vec<u8>)> {
        let mut head = [0; 4];
        self.0.read_exact(&mut head)?;
        let len = u32::from_be_bytes([0, head[1], head[2], head[3]]);
        let mut bytes = vec![0; len as usize];
        self.0.read_exact(&mut bytes)?;
        Ok((head[0], bytes))
    }

    /// Receives the next frame, which comes.
    pub fn raw(&mut self) -> (u8, Vec<u8>) {
        self.try_raw().unwrap()
    }

    /// Receives the next message.
    pub fn hear(&mut self) -> Value {
        serde_json::from_slice(&self.raw().1).unwrap()
    }

    /// Receives bytes that were requested.
    pub fn bulk(&mut self) -> Vec<u8> {
        let (kind, bytes) = self.raw();
        assert_eq!(kind, b'B');
        bytes
    }

    /// Receives bytes that were requested, whatever is said before them.
    pub fn until_bulk(&mut self) -> Vec<u8> {
        loop {
            if let (b'B', bytes) = self.raw() {
                return bytes;
            }
        }
    }

    /// Sends bytes, as if they had been requested.
    pub fn give(&mut self, bytes: &[u8]) {
        self.put(b'B', bytes).unwrap();
    }

    /// Whether the other end closes, and says nothing before.
    pub fn is_closed(&mut self) -> bool {
        // What was sent and not read makes the end a reset.
        !matches!(self.0.read(&mut [0]), Ok(1))
    }

    /// Receives messages until one with this name.
    pub fn until(&mut self, say: &str) -> Value {
        loop {
            let message = self.hear();
            if message["say"] == say {
                return message;
            }
        }
    }

    /// Expects to be refused, for a reason that contains these words.
    #[track_caller]
    pub fn refused(&mut self, why: &str) {
        let message = self.hear();
        assert_eq!(message["say"], "refused", "{message}");
        let reason = message["reason"].as_str().unwrap();
        assert!(reason.contains(why), "{reason}");
    }

    /// As a sender: offers a file without bytes.
    pub fn offer(&mut self) {
        self.welcome("x", 0);
        self.until("prepared");
    }

    /// As a sender: offers a file of this name and length.
    pub fn welcome(&mut self, name: &str, len: u64) {
        self.until("hello");
        self.say_welcome(name, len);
    }

    /// Like [`Peer::welcome`], after the hello has been received.
    pub fn say_welcome(&mut self, name: &str, len: u64) {
        self.say_set(name, 1, len);
    }

    /// As a sender: offers a set of one file or directory at the top.
    fn say_set(&mut self, name: &str, entries: u32, len: u64) {
        self.say(json!({
            "say": "welcome", "version": 11, "session": 7, "node": 1, "name": name, "len": len,
            "tops": 1, "entries": entries, "block": 1 << 20,
        }));
    }

    /// As a sender on the loopback: offers a set of this name, and starts the transfer.
    pub fn start_set(&mut self, name: &str, entries: u32, len: u64) -> Stream {
        self.start_set_with(name, entries, len, json!({}))
    }

    /// Like [`Peer::start_set`], with `members` of the start that replace the usual ones.
    pub fn start_set_with(&mut self, name: &str, entries: u32, len: u64, members: Value) -> Stream {
        let hello = self.until("hello");
        self.say_set(name, entries, len);
        self.until("prepared");
        let own: SocketAddr = hello["address"]["ip"].as_str().unwrap().parse().unwrap();
        let root = UdpSocket::bind("127.0.0.1:0").unwrap();
        self.start_with(&root.local_addr().unwrap().to_string(), members);
        self.until("ready");
        let to = SocketAddr::new([127, 0, 0, 1].into(), own.port());
        Stream::start(root, to)
    }

    /// As a sender: starts the transfer, with datagrams from `root`.
    pub fn start(&mut self, root: &str) {
        self.start_with(root, json!({}));
    }

    fn start_with(&mut self, root: &str, members: Value) {
        let mut start = json!({
            "say": "start", "group": null, "root": ip(root), "chunk": 1000, "window": 64,
            "members": [0, 1], "scheme": "auto", "addresses": [],
        });
        for (key, value) in members.as_object().unwrap() {
            start[key] = value.clone();
        }
        self.say(start);
    }
}

/// The datagrams of a hand-made sender. Each is sent again and again, because a receiver drops what
/// comes before it has posted the pack.
pub struct Stream {
    datagrams: Sender<Vec<u8>>,
    next: u32,
    is_quiet: Arc<AtomicBool>,
}

impl Stream {
    fn start(root: UdpSocket, to: SocketAddr) -> Stream {
        let (datagrams, told) = channel::<Vec<u8>>();
        let is_quiet = Arc::<AtomicBool>::default();
        let quiet = is_quiet.clone();
        root.set_read_timeout(Some(Duration::from_millis(20)))
            .unwrap();
        thread::spawn(move || {
            let mut sent = Vec::new();
            loop {
                match told.try_recv() {
                    Ok(datagram) => sent.push(datagram),
                    Err(TryRecvError::Empty) => {}
                    Err(TryRecvError::Disconnected) => return,
                }
                for datagram in sent.iter().filter(|_| !quiet.load(Ordering::Relaxed)) {
                    let _ = root.send_to(datagram, to);
                }
                let _ = root.recv_from(&mut [0; 2000]); // at most for a moment
            }
        });
        Stream {
            datagrams,
            next: 7,
            is_quiet,
        }
    }

    /// Sends nothing more, or goes on.
    pub fn set_quiet(&self, quiet: bool) {
        self.is_quiet.store(quiet, Ordering::Relaxed);
    }

    /// Announces a pack of `len` bytes, at most 1000. Returns the number of its only packet.
    pub fn announce(&mut self, peer: &mut Peer, pack: &Pack, len: usize) -> Seq {
        self.announce_as(json!({"say": "pack"}), peer, pack, len)
    }

    /// Announces the pack with this number once more.
    pub fn announce_again(&mut self, peer: &mut Peer, pack: &Pack, number: u32) -> Seq {
        let message = json!({"say": "pack", "again": number});
        self.announce_as(message, peer, pack, pack.bytes.len())
    }

    fn announce_as(&mut self, message: Value, peer: &mut Peer, pack: &Pack, len: usize) -> Seq {
        let mut message = message;
        message["len"] = len.into();
        message["header"] = pack.header.into();
        message["hash"] = pack.hash().to_hex().as_str().into();
        peer.say(message);
        self.next += 1;
        Seq(self.next - 1)
    }

    /// Announces a pack and sends these bytes for it, at most 1000.
    pub fn send(&mut self, peer: &mut Peer, pack: &Pack, bytes: &[u8]) {
        let op = self.announce(peer, pack, bytes.len());
        self.send_bytes(op, bytes);
    }

    /// Announces a pack whose files are compared.
    pub fn announce_to_compare(&mut self, peer: &mut Peer, pack: &Pack) -> Seq {
        self.announce_as(json!({"say": "compare"}), peer, pack, pack.bytes.len())
    }

    /// Sends these bytes, at most 1000, as the only packet of what was announced.
    pub fn send_bytes(&mut self, op: Seq, bytes: &[u8]) {
        let header = wire::Header {
            burst: 0,
            source: NodeId(0),
            session: Session(7),
        };
        let origin = wire::Origin::Source(op);
        let (last, len) = (wire::flag::LAST, bytes.len() as u32);
        let mut datagram = wire::head(|out| {
            wire::put_header(out, &header);
            wire::put_data(out, GroupId(0), origin, op, last, len);
        });
        datagram.extend_from_slice(bytes);
        self.datagrams.send(datagram).unwrap();
    }
}

/// An entry of a manifest.
pub fn entry(parent: u32, name: &[u8], kind: Kind, mode: u16) -> Entry {
    Entry {
        parent,
        name: name.into(),
        kind,
        mode,
        mtime: 1_000_000_000,
        mtime_ns: 0,
        owner: (0, 0),
        attributes: Default::default(),
    }
}

/// The page of a manifest with one file "x" without bytes.
pub fn empty_file(mode: u16) -> Pack {
    let mut manifest = Manifest::default();
    manifest.add(entry(TOP, b"x", Kind::File(0), mode)).unwrap();
    let mut page = Vec::new();
    manifest.put_page(0, &mut page);
    Pack::new(Content::Page, &page)
}
