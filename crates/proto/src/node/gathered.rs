//! Words of several groups that go to the same node, in one datagram.
//!
//! A node that leaves many groups at a time is in the last barriers of all of them. It would
//! otherwise send a datagram for each word.

use std::collections::VecDeque;

use super::Node;
use super::datagram;
use crate::barrier::To;
use crate::border::{Dest, Output};
use crate::id::NodeId;
use crate::limits::FRAMES_MAX;
use crate::path::Target;
use crate::time::Time;
use crate::wire::{self, WORD_LEN};

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
    frames: Vec<u8>,
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

    /// The words to which one of `room` bytes is added that goes to this node.
    fn to(&mut self, to: NodeId, room: usize) -> &mut Vec<u8> {
        let fits = |w: &Waiting| w.to == to && w.frames.len() + WORD_LEN <= w.room.min(room);
        let at = self.waiting.iter().position(fits).unwrap_or_else(|| {
            self.waiting.push_back(Waiting {
                to,
                room,
                frames: Vec::new(),
            });
            self.waiting.len() - 1
        });
        let waiting = &mut self.waiting[at];
        waiting.room = waiting.room.min(room);
        &mut waiting.frames
    }
}

impl Node {
    /// Gathers the words of all groups that are ready, if there are several. Returns the next
    /// datagram of words, whose head it has appended to `head`.
    pub(super) fn poll_gathered(&mut self, now: Time, head: &mut Vec<u8>) -> Option<Output> {
        let begin = self.start();
        while self.ready.len() > 1
            && self.gathered.waiting.len() < WAITING_MAX
            && let Some(&at) = self.ready.get(self.gathered.looked)
        {
            let group = self.groups[at].as_mut();
            let word = group.and_then(|group| {
                let words = group.words.as_mut()?;
                let (to, word) = words.poll(now, &mut self.counters, &mut self.out)?;
                Some((group, to, word))
            });
            match word {
                Some((group, To::Rank(rank), word)) => {
                    // A datagram of words is no longer than one with data.
                    let room = group.payload_size as usize + wire::DATA_LEN;
                    let room = room.min(FRAMES_MAX * WORD_LEN);
                    let to = group.members[rank as usize];
                    wire::put_word(self.gathered.to(to, room), &word);
                }
                Some((_, To::All, word)) => {
                    let start = head.len();
                    let datagram = datagram::put_word(Target::All, &word, begin, head);
                    return Some(self.send(at, datagram, &head[start..]));
                }
                None => self.gathered.looked += 1,
            }
        }
        let words = self.gathered.waiting.pop_front()?;
        begin.put(head, 0);
        head.extend_from_slice(&words.frames);
        Some(datagram::transmit(Dest::Node(words.to), None))
    }
}
