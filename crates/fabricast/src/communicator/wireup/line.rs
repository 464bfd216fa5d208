//! A connection between two processes: words of a fixed length, and messages after some of them.
//!
//! Messages wait here, not in the kernel, while the peer does not read: a process may be stopped
//! for an hour. The kernel would give up a connection whose peer takes nothing for so long.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::mem;
use std::net::TcpStream;
use std::sync::Arc;

use fabricast_proto::GroupId;
use rustix::event::{PollFd, PollFlags};

use crate::communicator::operations::group::BreakOff;

/// Bytes of a word on a connection: its kind (1), the rank or group that it is about (4), and of a
/// group that breaks off the index of the call (8) and the root's length (8).
pub(super) const WORD_LEN: usize = 21;
pub(super) const BYE: u8 = b'B';
pub(super) const LOST: u8 = b'L';
/// Kind of a word that names a group instead of a process.
const BREAK_OFF: u8 = b'E';
/// Kind of a word that a message follows; it names the message's length.
const MESSAGE: u8 = b'M';
/// Kind of a word that names how many bytes of messages the peer has read.
const RECEIPT: u8 = b'R';
/// A message leaves while at most this many bytes of messages before it have no receipt. The peer
/// sends one as soon as it has read more.
const UNREAD_MAX: u32 = 4 << 10;
/// Largest length of a message, in bytes.
const MESSAGE_MAX: u32 = 16 << 10;
/// Length that says that the root's length is not known.
const UNTOLD: u64 = u64::MAX;
/// Largest number of words on groups that break off. A peer that sends more talks nonsense.
const BREAK_OFFS_MAX: u32 = 1 << 16;

/// A connection to a peer.
pub(super) struct Line {
    pub rank: u32,
    pub stream: Arc<TcpStream>,
    /// The word that is arriving; `len` bytes of it are here.
    word: [u8; WORD_LEN],
    len: usize,
    /// The message that follows the word, as far as it is here; empty if none follows.
    message: Vec<u8>,
    /// What is still to be written.
    pub unsaid: VecDeque<u8>,
    /// Messages that wait for a receipt.
    waiting: VecDeque<Vec<u8>>,
    /// Bytes of messages to the peer that have no receipt.
    unread: u32,
    /// Bytes of messages from the peer that were read, since the last receipt.
    read: u32,
    /// Number of the peer's words on groups that break off.
    break_offs: u32,
}

/// What has arrived on a connection.
pub(super) enum Said {
    Nothing,
    Bye,
    Lost(u32),
    BreaksOff(BreakOff),
    Message(Vec<u8>),
    /// The connection is closed, for this reason.
    Closed(String),
}

pub(super) fn word(what: u8, whom: u32) -> [u8; WORD_LEN] {
    let mut word = [0; WORD_LEN];
    word[0] = what;
    word[1..5].copy_from_slice(&whom.to_be_bytes());
    word
}

pub(super) fn word_of(at: BreakOff) -> [u8; WORD_LEN] {
    let mut word = word(BREAK_OFF, at.group.0);
    let both = u128::from(at.call) << 64 | u128::from(at.len.unwrap_or(UNTOLD));
    word[5..].copy_from_slice(&both.to_be_bytes());
    word
}

impl Line {
    pub fn new(rank: u32, stream: TcpStream) -> Line {
        Line {
            rank,
            stream: Arc::new(stream),
            word: [0; WORD_LEN],
            len: 0,
            message: Vec::new(),
            unsaid: VecDeque::new(),
            waiting: VecDeque::new(),
            unread: 0,
            read: 0,
            break_offs: 0,
        }
    }

    /// For which events on the connection the thread waits; whether it `reads` is for the caller to
    /// say.
    pub fn poll_fd(&self, reads: bool) -> PollFd<'_> {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, reads);
        flags.set(PollFlags::OUT, !self.unsaid.is_empty());
        PollFd::new(&*self.stream, flags)
    }

    /// Writes what was to be written, then `bytes`, as far as the connection takes them; the rest
    /// later.
    pub fn say(&mut self, bytes: &[u8]) {
        self.unsaid.extend(bytes);
        while !self.unsaid.is_empty() {
            match (&*self.stream).write(self.unsaid.as_slices().0) {
                Ok(some) => drop(self.unsaid.drain(..some)),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                // Reading tells why.
                Err(_) => return self.unsaid.clear(),
            }
        }
    }

    /// Writes a message, as [`Line::say`] does, when the peer has read most of those before it.
    pub fn say_message(&mut self, bytes: Vec<u8>) {
        self.waiting.push_back(bytes);
        self.say_waiting();
    }

    fn say_waiting(&mut self) {
        while self.unread <= UNREAD_MAX
            && let Some(bytes) = self.waiting.pop_front()
        {
            self.unread += bytes.len() as u32;
            // It leaves with its word in one packet, which wakes the peer once.
            self.unsaid.extend(word(MESSAGE, bytes.len() as u32));
            self.say(&bytes);
        }
    }

    /// Reads what has arrived of one word, or of the message that follows it.
    pub fn hear(&mut self) -> Said {
        if !self.message.is_empty() {
            return self.hear_message();
        }
        match (&*self.stream).read(&mut self.word[self.len..]) {
            Ok(0) => Said::Closed("its connection was closed: the process has ended".into()),
            Ok(some) if self.len + some < WORD_LEN => {
                self.len += some;
                Said::Nothing
            }
            Ok(_) => {
                self.len = 0;
                let [what, a, b, c, d, call_and_len @ ..] = self.word;
                let whom = u32::from_be_bytes([a, b, c, d]);
                match what {
                    BYE => Said::Bye,
                    // Only rank 0 has connections to all, so only rank 0 knows which process is
                    // lost.
                    LOST if self.rank == 0 => Said::Lost(whom),
                    // Rank 0 passes on what others say.
                    BREAK_OFF if self.rank == 0 || self.break_offs < BREAK_OFFS_MAX => {
                        self.break_offs += 1;
                        let both = u128::from_be_bytes(call_and_len);
                        Said::BreaksOff(BreakOff {
                            group: GroupId(whom),
                            call: (both >> 64) as u64,
                            len: Some(both as u64).filter(|&len| len != UNTOLD),
                        })
                    }
                    RECEIPT if whom <= self.unread => {
                        self.unread -= whom;
                        self.say_waiting();
                        Said::Nothing
                    }
                    MESSAGE if (1..=MESSAGE_MAX).contains(&whom) => {
                        self.message = vec![0; whom as usize];
                        Said::Nothing
                    }
                    _ => Said::Closed("it talks nonsense".into()),
                }
            }
            Err(e) => unread(&e),
        }
    }

    fn hear_message(&mut self) -> Said {
        match (&*self.stream).read(&mut self.message[self.len..]) {
            Ok(0) => Said::Closed("its connection was closed: the process has ended".into()),
            Ok(some) => {
                self.len += some;
                if self.len < self.message.len() {
                    return Said::Nothing;
                }
                self.len = 0;
                let message = mem::take(&mut self.message);
                self.read += message.len() as u32;
                if self.read > UNREAD_MAX {
                    let read = mem::take(&mut self.read);
                    self.say(&word(RECEIPT, read));
                }
                Said::Message(message)
            }
            Err(e) => unread(&e),
        }
    }
}

/// What an error in reading says.
fn unread(e: &io::Error) -> Said {
    match e.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Said::Nothing,
        io::ErrorKind::TimedOut => {
            Said::Closed("its host does not answer: the host or its link is down".into())
        }
        _ => Said::Closed(e.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    fn pair() -> [Line; 2] {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = listener.accept().unwrap().0;
        [near, far].map(|stream| {
            stream.set_nonblocking(true).unwrap();
            Line::new(0, stream)
        })
    }

    /// What a process that is stopped has not read waits with the one that sends.
    #[test]
    fn messages_wait_for_a_peer_that_does_not_read() {
        let [mut near, mut far] = pair();
        let message = |i: u16| [&i.to_be_bytes()[..], &[7; 98]].concat();
        let count = 2000;
        for i in 0..count {
            near.say_message(message(i));
        }
        assert!(
            near.unsaid.is_empty(),
            "the kernel has taken what was written"
        );
        assert!(near.unread <= UNREAD_MAX + 100, "{}", near.unread);
        let mut heard = Vec::new();
        while heard.len() < count.into() {
            if let Said::Message(bytes) = far.hear() {
                heard.push(bytes);
            }
            assert!(matches!(near.hear(), Said::Nothing));
        }
        assert!(heard.iter().zip(0..).all(|(bytes, i)| *bytes == message(i)));
        assert!(near.waiting.is_empty());
    }
}
