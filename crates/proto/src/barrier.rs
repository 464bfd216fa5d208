//! The barriers of one group at one node: the machine that runs every schedule.
//!
//! Nobody leaves a barrier before the last rank has entered it. What a node sends is always the
//! same: how far it has come, as a number of barriers entered and of rounds done. That only ever
//! grows, so that any later word stands for every earlier one, and consecutive barriers cannot be
//! confused (P2.2).
//!
//! A node's word says how far it has come ([`Reached`]). Of each peer it knows how far that one has
//! come (`heard`), which word it owes to it (`owed`), and how far that one has heard this node to
//! be (`known`). A word is covered when the peer says so, or has come further than it could without
//! the word; and once a node has left a barrier everybody has entered it, so that every word of
//! earlier ones is covered. Barriers back to back therefore need no acknowledgements. Only when
//! nothing has moved for a while does a node ask, each more patiently than the last time: those
//! whose words it lacks and those who owe it a sign, with one and the same frame, which repeats its
//! own word and is answered by the peer's.

use core::time::Duration;
use std::collections::VecDeque;

use crate::border::{Counters, Event, Output, Refused};
use crate::challenge::Challenge;
use crate::id::{GroupId, OpId};
use crate::limits;
use crate::mutant::{self, Mutant};
use crate::nonce::Nonces;
use crate::schedule::{Barrier, Reached, Schedule};
use crate::seq::Seq;
use crate::time::Time;
use crate::wire::{Reply, Word, flag};

/// When nothing has moved for this long, the node probes its peers. Each probe in vain doubles it.
const PATIENCE: Duration = Duration::from_millis(2);
/// How often [`PATIENCE`] doubles at most: up to half a second.
const DOUBLINGS: u32 = 8;
/// Peers that are asked in one go, and the pause before the next ones.
const ASKED_AT_ONCE: u32 = 64;
const PAUSE: Duration = Duration::from_millis(1);
/// Schedules that the machine keeps for each group. It computes again what a caller uses beyond
/// these.
const SCHEDULES_MAX: usize = 8;

/// To whom a word goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum To {
    /// To one, by its rank.
    Rank(u32),
    /// To the group.
    All,
}

/// Why the barriers of a group have come to an end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// A member is gone, or another node says that they have ended.
    Failed,
    /// A member means another algorithm.
    Mismatch,
}

/// The barriers of one group.
pub struct Words {
    group: GroupId,
    me: u32,
    /// How far this node has come.
    at: Reached,
    /// Words of barriers before this one are covered: it is the last that this node has left.
    left: Seq,
    /// By rank.
    peers: Vec<Peer>,
    /// Ranks that are sent by unicast what goes to all.
    aside: Vec<u32>,
    schedules: VecDeque<(Barrier, Schedule)>,
    current: Option<Current>,
    /// What the last barrier that was entered was.
    barrier: Option<Barrier>,
    /// Barriers that are entered when the current one is left.
    queue: VecDeque<(OpId, Barrier, bool)>,
    ended: bool,
    /// Words of the barrier before, and of the current one, that are not covered.
    open: [u32; 2],
    /// Ranks that have asked.
    answers: VecDeque<u32>,
    asking: Asking,
    /// Ranks whose words would end the group's barriers, until they have been asked; at most one
    /// entry for a rank.
    challenges: Vec<(u32, Challenge)>,
}

/// The barrier that this node is in.
struct Current {
    op: OpId,
    barrier: Barrier,
    /// Words of this round that have gone out, and waits that are over.
    sent: usize,
    waited: usize,
    /// The node stops before the last round until it may go on.
    held: bool,
    /// The node has done all rounds before the last, and has reported that.
    stopped: bool,
}

/// What is known of another member.
#[derive(Clone, Copy)]
struct Peer {
    heard: Reached,
    /// Which barrier that is about.
    barrier: Option<Barrier>,
    owed: Reached,
    known: Reached,
    /// It has asked and waits in `answers`.
    answer: bool,
    /// In which pass it was last asked.
    asked: u32,
}

/// When to ask, and whom next.
struct Asking {
    due: Time,
    /// How often it was in vain.
    vain: u32,
    /// Tells one pass over all peers from the next.
    pass: u32,
    cursor: usize,
    at_once: u32,
}

impl Words {
    /// No barrier of a group has been entered; the first one has the number after `start`, if any
    /// can complete: if not, they have `ended`. This node is rank `me` of `size`.
    pub fn new(group: GroupId, (me, size): (u32, u32), start: Seq, ended: bool) -> Words {
        let at = Reached::none(start);
        let peer = Peer {
            heard: at,
            barrier: None,
            owed: at,
            known: at,
            answer: false,
            asked: 0,
        };
        Words {
            group,
            me,
            at,
            left: start,
            peers: vec![peer; size as usize],
            aside: match size {
                2 => vec![1 - me], // a group of two has no address
                _ => Vec::new(),
            },
            schedules: VecDeque::new(),
            current: None,
            barrier: None,
            queue: VecDeque::new(),
            ended,
            open: [0; 2],
            answers: VecDeque::new(),
            asking: Asking {
                due: Time::ZERO,
                vain: 0,
                pass: 1,
                cursor: 0,
                at_once: 0,
            },
            challenges: Vec::new(),
        }
    }

    /// The next barrier: it is entered when all before it have been left. If it is `held`, it stops
    /// before its last round until [`Words::release`].
    pub fn begin(&mut self, op: OpId, barrier: Barrier, held: bool) -> Result<(), Refused> {
        if self.queue.len() + usize::from(self.current.is_some()) >= limits::BARRIERS_MAX {
            return Err(Refused::Busy);
        }
        self.queue.push_back((op, barrier.bounded(), held));
        Ok(())
    }

    /// A barrier that has stopped goes on.
    pub fn release(&mut self) {
        if let Some(current) = self.current.as_mut().filter(|c| c.stopped) {
            current.held = false;
        }
    }

    /// Whether a rank is sent by unicast what goes to all.
    pub fn set_aside(&mut self, rank: u32, aside: bool) {
        match (self.aside.binary_search(&rank), aside) {
            (Err(at), true) => self.aside.insert(at, rank),
            (Ok(at), false) if self.peers.len() > 2 => _ = self.aside.remove(at),
            _ => {}
        }
    }

    /// No barrier of this group will complete any more: what is under way is over.
    pub fn end(&mut self, why: Ended, out: &mut VecDeque<Output>) {
        self.ended = true;
        if let Some(current) = self.current.take() {
            out.push_back(Output::Event(match why {
                Ended::Failed => Event::Failed(current.op),
                Ended::Mismatch => Event::Mismatch(current.op),
            }));
        }
        let waiting = self.queue.drain(..);
        out.extend(waiting.map(|(op, ..)| Output::Event(Event::Failed(op))));
        // A member that lacks a word asks, and gets it.
        self.left = self.at.count + 1;
        self.open = [0; 2];
        self.challenges.clear();
    }

    /// Takes a word of another member. False: it cannot be true, or is long outdated.
    pub fn word(&mut self, now: Time, from: u32, word: &Word) -> bool {
        // A member that has entered a barrier has left the one before, which all had entered.
        let ahead = word.at.count.from(self.at.count);
        let believed = word.heard.is_none_or(|heard| !self.at.before(heard));
        if !(-1..=1).contains(&ahead) || !believed || from == self.me {
            return false;
        }
        let peer = &mut self.peers[from as usize];
        if word.flags & flag::ACK_REQUEST != 0 && !peer.answer {
            peer.answer = true;
            self.answers.push_back(from);
        }
        let current = self.current.as_ref();
        let other = current.is_some_and(|c| ahead == 0 && word.barrier != Some(c.barrier));
        if (other || word.flags & flag::ENDED != 0) && !self.ended {
            // Nothing of it is believed before the peer has said so itself.
            self.challenge(now, from);
            return true;
        }
        let open = self.openness(from);
        let peer = &mut self.peers[from as usize];
        if peer.heard.before(word.at) {
            peer.heard = word.at;
            peer.barrier = word.barrier;
        }
        if let Some(heard) = word.heard.filter(|&heard| peer.known.before(heard)) {
            peer.known = heard;
        }
        // It waited for the word in the round in which it was sent.
        if peer.owed.before(peer.heard) {
            peer.known = if peer.known.before(peer.owed) {
                peer.owed
            } else {
                peer.known
            };
        }
        self.count(open, from);
        true
    }

    /// A word that bears this rank's name would end the barriers: is it the rank's?
    fn challenge(&mut self, now: Time, rank: u32) {
        if !self.challenges.iter().any(|d| d.0 == rank) {
            self.challenges.push((rank, Challenge::new(now)));
        }
    }

    /// A question that is due: to which rank, and its nonce.
    pub fn query(&mut self, now: Time, nonces: &mut Nonces) -> Option<(u32, u64)> {
        // A rank that does not answer may have left; what it says comes again if it has not.
        self.challenges.retain(|d| !d.1.is_over(now));
        let mut challenges = self.challenges.iter_mut();
        challenges.find_map(|(rank, challenge)| Some((*rank, challenge.poll(now, nonces)?)))
    }

    /// A rank says how far it has come. Says whether it was asked.
    pub fn reply(&mut self, from: u32, reply: &Reply, out: &mut VecDeque<Output>) -> bool {
        let asked = |d: &(u32, Challenge)| d.0 == from && d.1.is_answered(reply.nonce);
        let Some(i) = self.challenges.iter().position(asked) else {
            return false;
        };
        self.challenges.swap_remove(i);
        let ahead = reply.at.count.from(self.at.count);
        let current = self.current.as_ref();
        if reply.ended {
            self.end(Ended::Failed, out);
        } else if current.is_some_and(|c| ahead == 0 && reply.barrier != Some(c.barrier)) {
            self.end(Ended::Mismatch, out);
        } else if (-1..=1).contains(&ahead) {
            // What it was heard to say was not all its own. What it has said since comes again.
            let peer = &mut self.peers[from as usize];
            (peer.heard, peer.barrier) = (reply.at, reply.barrier);
        }
        true
    }

    /// What to send next; events go to `out`.
    pub fn poll(
        &mut self,
        now: Time,
        counters: &mut Counters,
        out: &mut VecDeque<Output>,
    ) -> Option<(To, Word)> {
        loop {
            if let Some(to) = self.next_send() {
                counters.words += 1;
                return Some((to, self.say(to, 0)));
            }
            if !self.advance(now, out) {
                break;
            }
        }
        if let Some(rank) = self.answers.pop_front() {
            self.peers[rank as usize].answer = false;
            counters.words_answered += 1;
            return Some((To::Rank(rank), self.say(To::Rank(rank), 0)));
        }
        let to = To::Rank(self.next_to_ask(now)?);
        counters.words_again += 1;
        Some((to, self.say(to, flag::ACK_REQUEST)))
    }

    /// When [`Words::poll`] has something to send that it had not when it was last asked.
    pub fn wake(&self) -> Option<Time> {
        let asks = self.owes() && !mutant::active(Mutant::ForgetsToRepeat);
        let challenges = self.challenges.iter().map(|d| d.1.wake());
        challenges.chain(asks.then_some(self.asking.due)).min()
    }

    /// Whether this node is in a barrier, or somebody may lack a word of it.
    pub fn owes(&self) -> bool {
        self.current.is_some() || self.open != [0; 2]
    }

    /// How far this node has come, with which barrier, and whether the barriers have ended.
    pub fn state(&self) -> (Reached, Option<Barrier>, bool) {
        (self.at, self.barrier, self.ended)
    }

    /// This node's word, as it is now.
    fn say(&self, to: To, flags: u8) -> Word {
        Word {
            group: self.group,
            at: self.at,
            heard: match to {
                To::Rank(rank) => Some(self.peers[rank as usize].heard),
                To::All => None,
            },
            barrier: self.barrier,
            flags: flags | if self.ended { flag::ENDED } else { 0 },
        }
    }

    /// Whether a word that was sent to a rank is not covered: in which part of `open` it counts.
    fn openness(&self, rank: u32) -> Option<usize> {
        let peer = &self.peers[rank as usize];
        let open = peer.known.before(peer.owed) && !peer.owed.count.before(self.left);
        open.then(|| usize::from(peer.owed.count == self.at.count))
    }

    /// What is known of a rank has changed; it counted as `before`.
    fn count(&mut self, before: Option<usize>, rank: u32) {
        let after = self.openness(rank);
        if let Some(i) = before {
            self.open[i] -= 1;
        }
        if let Some(i) = after {
            self.open[i] += 1;
        }
    }

    /// This round's next word, which from now on is owed.
    fn next_send(&mut self) -> Option<To> {
        let current = self.current.as_mut()?;
        let (_, schedule) = self.schedules.iter().find(|s| s.0 == current.barrier)?;
        if self.at.round == schedule.rounds() {
            return None;
        }
        let to_all = schedule.is_to_all(self.at.round);
        let others = self.peers.len() - 1;
        let ranks = match to_all {
            true => &self.aside[..],
            false => schedule.sends(self.at.round),
        };
        // The group comes first, if anybody hears it.
        let multicast = usize::from(to_all && ranks.len() < others);
        let i = current.sent;
        let to = match i.checked_sub(multicast) {
            None => To::All,
            Some(i) => To::Rank(*ranks.get(i)?),
        };
        current.sent += 1;
        match to {
            To::Rank(rank) => self.owe(rank),
            To::All => {
                let (me, size) = (self.me, self.peers.len() as u32);
                (0..me).chain(me + 1..size).for_each(|rank| self.owe(rank));
            }
        }
        Some(to)
    }

    fn owe(&mut self, rank: u32) {
        let open = self.openness(rank);
        self.peers[rank as usize].owed = self.at;
        self.count(open, rank);
    }

    /// Enters, goes on to the next round, or leaves, if that can be done now.
    fn advance(&mut self, now: Time, out: &mut VecDeque<Output>) -> bool {
        let Some(current) = self.current.as_mut() else {
            return self.enter(now, out);
        };
        let found = self.schedules.iter().find(|s| s.0 == current.barrier);
        let Some((_, schedule)) = found else {
            unreachable!("the schedule of the current barrier is kept");
        };
        let rounds = schedule.rounds();
        if self.at.round == rounds {
            out.push_back(Output::Event(Event::Complete(current.op)));
            self.current = None;
            self.left = self.at.count;
            self.open[0] = 0;
            return true;
        }
        let waits = schedule.waits(self.at.round);
        let last = self.at.round + 1 == rounds;
        while let Some(&rank) = waits.get(current.waited) {
            let peer = &self.peers[rank as usize];
            if peer.heard.before(self.at) && !(last && mutant::active(Mutant::LeavesEarly)) {
                return false;
            }
            if peer.heard.count == self.at.count && peer.barrier != Some(current.barrier) {
                self.challenge(now, rank);
                return false;
            }
            current.waited += 1;
        }
        if current.held && self.at.round + 2 == rounds {
            if !core::mem::replace(&mut current.stopped, true) {
                out.push_back(Output::Event(Event::Arrived(current.op)));
            }
            return false;
        }
        self.at.round += 1;
        (current.sent, current.waited) = (0, 0);
        self.be_patient(now);
        true
    }

    /// Enters the next barrier, if one waits.
    fn enter(&mut self, now: Time, out: &mut VecDeque<Output>) -> bool {
        let Some((op, barrier, held)) = self.queue.pop_front() else {
            return false;
        };
        if self.ended {
            out.push_back(Output::Event(Event::Failed(op)));
            return true;
        }
        if !self.schedules.iter().any(|s| s.0 == barrier) {
            self.schedules.truncate(SCHEDULES_MAX - 1);
            let schedule = Schedule::new(barrier, self.peers.len() as u32, self.me);
            self.schedules.push_front((barrier, schedule));
        }
        self.at = Reached {
            count: self.at.count + 1,
            round: 0,
        };
        self.open = [self.open[0] + self.open[1], 0];
        self.barrier = Some(barrier);
        self.current = Some(Current {
            op,
            barrier,
            sent: 0,
            waited: 0,
            held,
            stopped: false,
        });
        self.be_patient(now);
        true
    }

    /// Something has moved: nobody is asked for a while.
    fn be_patient(&mut self, now: Time) {
        let pass = self.asking.pass.wrapping_add(1);
        self.asking = Asking {
            due: now + PATIENCE,
            vain: 0,
            pass,
            cursor: 0,
            at_once: 0,
        };
    }

    /// The next peer that is to be asked now: first those whose words this round lacks.
    fn next_to_ask(&mut self, now: Time) -> Option<u32> {
        let asks = self.owes() && !mutant::active(Mutant::ForgetsToRepeat);
        if !asks || now < self.asking.due {
            return None;
        }
        let schedule = self.current.as_ref().and_then(|c| {
            let (_, schedule) = self.schedules.iter().find(|s| s.0 == c.barrier)?;
            Some(schedule)
        });
        let waits = schedule.map_or(&[][..], |s| s.waits(self.at.round));
        while self.asking.cursor < waits.len() + self.peers.len() {
            let i = self.asking.cursor;
            self.asking.cursor += 1;
            let (rank, asks) = match i.checked_sub(waits.len()) {
                None => (
                    waits[i],
                    self.peers[waits[i] as usize].heard.before(self.at),
                ),
                Some(i) => (i as u32, self.openness(i as u32).is_some()),
            };
            let peer = &mut self.peers[rank as usize];
            if !asks || peer.asked == self.asking.pass {
                continue;
            }
            peer.asked = self.asking.pass;
            self.asking.at_once += 1;
            if self.asking.at_once == ASKED_AT_ONCE {
                self.asking.at_once = 0;
                self.asking.due = now + PAUSE;
            }
            return Some(rank);
        }
        let vain = self.asking.vain + 1;
        self.be_patient(now);
        self.asking.vain = vain;
        self.asking.due = now + PATIENCE * (1 << vain.min(DOUBLINGS));
        None
    }

    /// Panics if the state contradicts itself.
    pub fn invariants(&self) {
        let mut open = [0; 2];
        for rank in (0..self.peers.len() as u32).filter(|&rank| rank != self.me) {
            if let Some(i) = self.openness(rank) {
                open[i] += 1;
            }
            let peer = &self.peers[rank as usize];
            assert!(!self.at.before(peer.owed) && !self.at.before(peer.known));
            assert!(peer.heard.count.from(self.at.count) <= 1);
            assert_eq!(peer.answer, self.answers.contains(&rank));
        }
        assert_eq!(open, self.open, "words that are not covered");
        assert!(self.queue.len() <= limits::BARRIERS_MAX);
        assert!(self.schedules.len() <= SCHEDULES_MAX);
        assert!(!self.ended || self.current.is_none() && self.challenges.is_empty());
        assert!(self.challenges.len() < self.peers.len());
    }
}
