//! Hand-made ends of P3's protocol: a receiver against the real sender, and the reverse.

use std::io::Write;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU16, Ordering};

use fabricast::ibrmp::Fingerprint;
use fabricast::proto::NodeId;
use fabricast::proto::ibrmp::{Body, Fd, FileId, Frame, Message, Name, decode};
use serde_json::{Value, json};

use super::control::{Peer, ip, port};
use super::{Run, Scratch, receiver};

/// A receiver in a directory of its own.
pub fn into(dir: &Scratch, name: &str, from: &str, args: &[&str]) -> Run {
    let dest = dir.path(name);
    std::fs::create_dir(&dest).unwrap();
    receiver(from, name, &dest, args)
}

/// What comes by a control connection.
#[derive(Debug)]
pub enum Came {
    /// A message in JSON.
    Said(Value),
    /// A frame of the reliable channel, with the bytes of its file.
    Frame(Frame, Vec<u8>),
}

impl Came {
    /// The message of P3's protocol.
    #[track_caller]
    pub fn body(self) -> Body {
        match self {
            Came::Frame(Frame::Message(message), _) => message.body,
            other => panic!("{other:?}"),
        }
    }
}

/// A message about the file `file`, which is in the slot `fd`.
pub fn of(fd: u16, file: u64, body: Body) -> Frame {
    Frame::Message(Message {
        fd: Fd(fd),
        file: FileId(file),
        body,
    })
}

/// A BOF of this name and length.
pub fn bof(name: &str, len: u64) -> Body {
    let name = Name::new(name.as_bytes()).unwrap();
    Body::Bof { len, name }
}

/// The bytes of a frame.
pub fn bytes(frame: &Frame, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    frame.encode(&mut out);
    out.extend_from_slice(payload);
    out
}

impl Peer {
    /// Sends raw bytes as a frame of the reliable channel.
    pub fn send_raw(&mut self, bytes: &[u8]) {
        let [_, a, b, c] = (bytes.len() as u32).to_be_bytes();
        self.0.write_all(&[b'I', a, b, c]).unwrap();
        self.0.write_all(bytes).unwrap();
    }

    /// Sends a frame of the reliable channel.
    pub fn send_frame(&mut self, frame: &Frame, payload: &[u8]) {
        self.send_raw(&bytes(frame, payload));
    }

    /// Receives what comes next.
    pub fn come(&mut self) -> Came {
        let (kind, bytes) = self.raw();
        match kind {
            b'I' => {
                let (frame, payload) = decode(&bytes).unwrap();
                Came::Frame(frame, payload.to_vec())
            }
            _ => Came::Said(serde_json::from_slice(&bytes).unwrap()),
        }
    }

    /// Receives the next frame, whatever is said before it.
    pub fn frame(&mut self) -> (Frame, Vec<u8>) {
        loop {
            if let Came::Frame(frame, payload) = self.come() {
                return (frame, payload);
            }
        }
    }

    /// Receives until the message with this name. Returns it, and the frames that came before.
    pub fn until_said(&mut self, say: &str) -> (Value, Vec<Frame>) {
        let mut frames = Vec::new();
        loop {
            match self.come() {
                Came::Said(message) if message["say"] == say => return (message, frames),
                Came::Said(_) => {}
                Came::Frame(frame, _) => frames.push(frame),
            }
        }
    }

    /// A receiver that is admitted and ready, and gets nothing by multicast.
    pub fn admitted(address: &str, name: &str) -> Peer {
        static PORT: AtomicU16 = AtomicU16::new(4000);
        let port = port(PORT.fetch_add(1, Ordering::Relaxed));
        let mut peer = Peer::hello(address, name, port);
        peer.until("welcome");
        peer.say(json!({"say": "prepared"}));
        peer
    }

    /// Waits for the start and for the channel, and is ready.
    pub fn ready(&mut self) {
        self.until("start");
        self.until("channel");
        self.say(json!({"say": "ready"}));
    }
}

/// A hand-made sender on the loopback, whose multicasts go to the receiver alone.
pub struct Sending {
    pub peer: Peer,
    root: UdpSocket,
    to: SocketAddr,
}

impl Sending {
    /// Offers files of `len` bytes together, and starts.
    pub fn start(mut peer: Peer, files: u32, len: u64) -> Sending {
        let hello = peer.until("hello");
        peer.say(json!({
            "say": "welcome", "version": 11, "session": 7, "node": 1, "name": "x", "len": len,
            "tops": files, "entries": files, "block": 1 << 20,
        }));
        peer.until("prepared");
        let own: SocketAddr = hello["address"]["ip"].as_str().unwrap().parse().unwrap();
        let root = UdpSocket::bind("127.0.0.1:0").unwrap();
        peer.say(json!({
            "say": "start", "group": null, "root": ip(root.local_addr().unwrap()), "chunk": 1000,
            "window": 64, "members": [0, 1], "scheme": "ibrmp", "addresses": [],
        }));
        peer.say(json!({
            "say": "channel", "open": [], "next": 1, "slots": 4, "messages": 32, "batch": 16,
        }));
        peer.until("ready");
        let to = SocketAddr::new([127, 0, 0, 1].into(), own.port());
        Sending { peer, root, to }
    }

    /// Sends a message as if by multicast.
    pub fn multicast(&self, frame: &Frame, payload: &[u8]) {
        self.root.send_to(&bytes(frame, payload), self.to).unwrap();
    }

    /// Receives up to the next TRANSFER_DONE, whatever comes before it.
    pub fn until_done(&mut self) {
        let done = Body::TransferDone;
        while !matches!(self.peer.frame().0, Frame::Message(message) if message.body == done) {}
    }

    /// Answers TRANSFER_DONE for a file of this name and these bytes.
    pub fn digest(&mut self, file: u64, name: &str, bytes: &[u8]) {
        let hash = Fingerprint::of(bytes).digest().to_hex().to_string();
        self.peer.say(json!({
            "say": "digest", "file": file, "hash": hash, "name": name, "mode": 0o640,
            "mtime": 1_000_000_000, "mtime_ns": 7, "owner": [0, 0],
        }));
    }

    /// Answers TRANSFER_DONE for a file of this name and these bytes, and checks the proof that
    /// follows.
    pub fn confirm(&mut self, file: u64, name: &str, bytes: &[u8]) {
        self.digest(file, name, bytes);
        let (stored, _) = self.peer.until_said("stored");
        assert_eq!(stored["file"], file);
        let proof = Fingerprint::of(bytes).proof(NodeId(1)).to_hex().to_string();
        assert_eq!(stored["proof"], proof);
    }

    /// Sends bytes that the receiver has asked for.
    pub fn bulk(&mut self, bytes: &[u8]) {
        let [_, a, b, c] = (bytes.len() as u32).to_be_bytes();
        self.peer.0.write_all(&[b'B', a, b, c]).unwrap();
        self.peer.0.write_all(bytes).unwrap();
    }

    /// Sends a whole file, which the receiver has heard nothing of, by the channel.
    pub fn by_channel(&mut self, fd: u16, file: u64, bytes: &[u8]) {
        let len = bytes.len() as u64;
        self.peer.send_frame(&of(fd, file, Body::Eof { len }), &[]);
        self.peer.send_frame(&of(fd, file, bof("x", len)), &[]);
        let data = Body::Data {
            offset: 0,
            len: len as u32,
        };
        self.peer.send_frame(&of(fd, file, data), bytes);
    }

    /// Ends the transfer.
    pub fn end(mut self, last: u64) {
        self.peer.say(json!({"say": "last", "file": last}));
        self.peer.until_said("finished");
        self.peer.say(json!({"say": "bye"}));
    }
}
