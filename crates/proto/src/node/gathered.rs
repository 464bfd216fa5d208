//! Words of several groups that go to the same node, in one datagram.
//!
//! A node that leaves many groups at a time is in the last barriers of all of them. It would
//! otherwise send a datagram for each word.

use std::collections::VecDeque;

use crate::id::NodeId;
use crate::limits::FRAMES_MAX;
use crate::wire::{WORD_LEN, Word};

/// Datagrams of words that are gathered before the first of them is sent. Each word is compared
/// with all of them.
const WAITING_MAX: usize = 64;

/// Words that wait to be sent, by the node to which they go.
#[derive(Default)]
pub struct Gathered {
    waiting: VecDeque<Waiting>,
    /// Groups at the front of the ready ones whose words have been gathered.
    looked: usize,
}

/// The words of one datagram.
struct Waiting {
    to: NodeId,
    /// Bytes that the datagram's words may have: the least that any of their groups allows.
    room: usize,
    words: Vec<Word>,
}

impl Waiting {
    /// Whether the datagram takes one more word, of a group that allows `room` bytes of frames.
    fn takes_one_more(&self, room: usize) -> bool {
        (self.words.len() + 1) * WORD_LEN <= self.room.min(room)
    }
}

impl Gathered {
    /// Takes note that the first of the ready groups is ready no more.
    pub fn first_is_done(&mut self) {
        self.looked = self.looked.saturating_sub(1);
    }

    /// Takes note that any of the ready groups may be ready no more.
    pub fn looks_anew(&mut self) {
        self.looked = 0;
    }

    /// The position of the group, among the ready ones, whose words are gathered next; `None`: as
    /// many words are gathered as are compared.
    pub fn looks_at(&self) -> Option<usize> {
        (self.waiting.len() < WAITING_MAX).then_some(self.looked)
    }

    /// Takes note that the group looked at has no more words.
    pub fn looks_further(&mut self) {
        self.looked += 1;
    }

    /// Gathers a word to a node, of a group that allows its datagrams `room` bytes of frames.
    pub fn add(&mut self, to: NodeId, room: usize, word: &Word) {
        let room = room.min(FRAMES_MAX * WORD_LEN);
        let fits = |w: &Waiting| w.to == to && w.takes_one_more(room);
        let at = self.waiting.iter().position(fits).unwrap_or_else(|| {
            self.waiting.push_back(Waiting {
                to,
                room,
                words: Vec::new(),
            });
            self.waiting.len() - 1
        });
        let waiting = &mut self.waiting[at];
        waiting.room = waiting.room.min(room);
        waiting.words.push(*word);
    }

    /// The words of the next datagram, and the node to which it goes.
    pub fn take(&mut self) -> Option<(NodeId, Vec<Word>)> {
        let first = self.waiting.pop_front()?;
        Some((first.to, first.words))
    }
}
