//! The barriers of one group at one node: the state machine that runs every schedule.
//!
//! No rank leaves a barrier before the last rank has entered it. Each word of a node states its
//! progress ([`Reached`]): the number of barriers entered and of rounds done. Progress only grows,
//! so that any later word stands for every earlier one, and consecutive barriers cannot be confused
//! (P2.2).
//!
//! For each peer a node keeps the peer's progress (`heard`), the last word that it sent the peer
//! (`owed`), and its own progress as the peer has heard it (`known`). A word is covered when the
//! peer says so, or when the peer's progress would be impossible without the word. A node that
//! leaves a barrier knows that all ranks have entered it, so that every word of earlier barriers is
//! covered. Barriers back to back therefore need no ACKs.
//!
//! Only when nothing has changed for a while does a node probe, with backoff: the peers whose words
//! it lacks, and the peers that have not covered its word. The same frame serves both: it repeats
//! the node's own word, and the peer answers with its word.

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

/// Time without progress after which the node probes its peers. Each probe in vain doubles it.
const PATIENCE: Duration = Duration::from_millis(2);
/// The same time for a node in a barrier that nobody waits for. Ranks enter such a barrier at
/// different times, because none of them hurries. A probe would only ask ranks that have not
/// entered yet.
const UNAWAITED_PATIENCE: Duration = Duration::from_millis(20);
/// Longest time between two passes of probes.
const PATIENCE_MAX: Duration = Duration::from_millis(512);
/// Doublings of [`PATIENCE`] that give [`PATIENCE_MAX`].
const DOUBLINGS: u32 = 8;
/// Number of peers that the node probes at once, before it pauses for [`PAUSE`].
const ASKED_AT_ONCE: u32 = 64;
/// Pause between two batches of [`ASKED_AT_ONCE`] probes.
const PAUSE: Duration = Duration::from_millis(1);
/// Schedules kept for each group. A caller that alternates between more algorithms has the node
/// compute them again.
const SCHEDULES_MAX: usize = 8;

/// The destination of a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum To {
    /// One member, by its rank.
    Rank(u32),
    /// The group.
    All,
}

/// Why the barriers of a group have come to an end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// A member is gone, or another node says that the group's barriers have ended.
    Failed,
    /// A member has entered the same barrier with another algorithm.
    Mismatch,
}

/// The barriers of one group.
pub struct Words {
    group: GroupId,
    me: u32,
    /// This node's progress.
    at: Reached,
    /// The last barrier that this node has left. Words of barriers before it are covered.
    left: Seq,
    /// The state of every member, by rank; this node's own entry is unused.
    peers: Vec<Peer>,
    /// Ranks to which this node sends by unicast what goes to the group.
    aside: Vec<u32>,
    schedules: VecDeque<(Barrier, Schedule)>,
    current: Option<Current>,
    /// Algorithm of the last barrier that this node entered.
    barrier: Option<Barrier>,
    /// Barriers that this node enters after the current one.
    queue: VecDeque<Queued>,
    ended: bool,
    /// Number of words that are not covered: of the barrier before, and of the current barrier.
    open: [u32; 2],
    /// Ranks that wait for an answer to their probe.
    answers: VecDeque<u32>,
    asking: Asking,
    /// Challenges to ranks whose words would end the group's barriers, until they answer or the
    /// challenge is over; at most one entry for a rank.
    challenges: Vec<(u32, Challenge)>,
}

/// A barrier that this node has yet to enter.
pub struct Queued {
    /// The operation.
    pub op: OpId,
    /// The algorithm.
    pub barrier: Barrier,
    /// Whether the node stops before the last round until [`Words::release`].
    pub held: bool,
    /// Whether a caller waits for the end of the barrier.
    pub awaited: bool,
}

/// The barrier that this node is in.
struct Current {
    op: OpId,
    barrier: Barrier,
    /// Words of this round that the node has sent.
    sent: usize,
    /// Waits of this round that are over.
    waited: usize,
    /// Whether the node stops before the last round until [`Words::release`].
    held: bool,
    /// Whether the node has done all rounds before the last, and has reported [`Event::Arrived`].
    stopped: bool,
}

/// What this node knows of another member.
#[derive(Clone, Copy)]
struct Peer {
    /// The peer's progress, as of its latest word.
    heard: Reached,
    /// Algorithm of the barrier in `heard`.
    barrier: Option<Barrier>,
    /// The last word that this node sent the peer.
    owed: Reached,
    /// This node's progress, as far as the peer is known to have heard it.
    known: Reached,
    /// Whether the peer waits in `answers`.
    answer: bool,
    /// The pass in which this node last probed the peer.
    asked: u32,
}

/// The state of probing: when to probe, and which peer is next.
struct Asking {
    /// Time without progress after which the first pass begins.
    patience: Duration,
    /// When the next probe is due.
    due: Time,
    /// Passes over all peers since the last progress.
    vain: u32,
    /// Number of the current pass over all peers.
    pass: u32,
    /// Position in the pass: first in the round's waits, then in all peers.
    cursor: usize,
    /// Probes sent since the last pause.
    at_once: u32,
}

impl Words {
    /// The state of rank `me` of `size` before the group's first barrier, which has the number
    /// after `start`. If the barriers have `ended`, none can complete.
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
                patience: PATIENCE,
                due: Time::ZERO,
                vain: 0,
                pass: 1,
                cursor: 0,
                at_once: 0,
            },
            challenges: Vec::new(),
        }
    }

    /// Queues a barrier, which the node enters when it has left all barriers before it. Returns
    /// [`Refused::Busy`] if [`limits::BARRIERS_MAX`] barriers are under way.
    pub fn begin(&mut self, next: Queued) -> Result<(), Refused> {
        if self.queue.len() + usize::from(self.current.is_some()) >= limits::BARRIERS_MAX {
            return Err(Refused::Busy);
        }
        let barrier = next.barrier.bounded();
        self.queue.push_back(Queued { barrier, ..next });
        Ok(())
    }

    /// Lets the current barrier go on, if it is held and has stopped before its last round.
    pub fn release(&mut self) {
        if let Some(current) = self.current.as_mut().filter(|c| c.stopped) {
            current.held = false;
        }
    }

    /// Sets whether this node sends by unicast to a rank what goes to the group.
    pub fn set_aside(&mut self, rank: u32, aside: bool) {
        match (self.aside.binary_search(&rank), aside) {
            (Err(at), true) => self.aside.insert(at, rank),
            (Ok(at), false) if self.peers.len() > 2 => _ = self.aside.remove(at),
            _ => {}
        }
    }

    /// Ends the group's barriers: the current barrier and all queued ones fail.
    pub fn end(&mut self, why: Ended, out: &mut VecDeque<Output>) {
        self.ended = true;
        if let Some(current) = self.current.take() {
            out.push_back(Output::Event(match why {
                Ended::Failed => Event::Failed(current.op),
                Ended::Mismatch => Event::Mismatch(current.op),
            }));
        }
        let waiting = self.queue.drain(..);
        out.extend(waiting.map(|next| Output::Event(Event::Failed(next.op))));
        // No word is owed any more. A peer that lacks one probes this node and gets an answer.
        self.left = self.at.count + 1;
        self.open = [0; 2];
        self.challenges.clear();
    }

    /// Takes a word of another member. Returns false if the word cannot be true or is outdated.
    pub fn word(&mut self, now: Time, from: u32, word: &Word) -> bool {
        // A rank that has entered a barrier has left the one before, and all ranks had entered
        // that. So the counts of two ranks differ by at most one.
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
            // The word may be forged: this node ignores it until the peer answers a challenge.
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
        // The peer is past the round of the owed word. It waited for the word in that round, so it
        // has heard it.
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

    /// Starts a challenge to a rank, in whose name a word arrived that would end the barriers.
    fn challenge(&mut self, now: Time, rank: u32) {
        if !self.challenges.iter().any(|d| d.0 == rank) {
            self.challenges.push((rank, Challenge::new(now)));
        }
    }

    /// The next query that is due: the rank to which it goes, and its nonce.
    pub fn query(&mut self, now: Time, nonces: &mut Nonces) -> Option<(u32, u64)> {
        // A rank that does not answer may have left. If it has not, its word comes again.
        self.challenges.retain(|d| !d.1.is_over(now));
        let mut challenges = self.challenges.iter_mut();
        challenges.find_map(|(rank, challenge)| Some((*rank, challenge.poll(now, nonces)?)))
    }

    /// Takes a rank's reply to a query. Returns false if the nonce matches no query to that rank.
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
            // Some words in this rank's name were forged. The reply replaces them; genuine later
            // words come again.
            let peer = &mut self.peers[from as usize];
            (peer.heard, peer.barrier) = (reply.at, reply.barrier);
        }
        true
    }

    /// The next word to send and its destination. Pushes events to `out`.
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

    /// When a probe or a query is due next, so that the caller polls again.
    pub fn wake(&self) -> Option<Time> {
        let asks = self.owes() && !mutant::active(Mutant::ForgetsToRepeat);
        let challenges = self.challenges.iter().map(|d| d.1.wake());
        challenges.chain(asks.then_some(self.asking.due)).min()
    }

    /// Whether this node is in a barrier, or a peer may lack one of its words.
    pub fn owes(&self) -> bool {
        self.current.is_some() || self.open != [0; 2]
    }

    /// This node's progress, the algorithm of its last barrier, and whether the barriers have
    /// ended.
    pub fn state(&self) -> (Reached, Option<Barrier>, bool) {
        (self.at, self.barrier, self.ended)
    }

    /// This node's present word.
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

    /// The index in `open` at which the last word to a rank counts, or `None` if it is covered.
    fn openness(&self, rank: u32) -> Option<usize> {
        let peer = &self.peers[rank as usize];
        let open = peer.known.before(peer.owed) && !peer.owed.count.before(self.left);
        open.then(|| usize::from(peer.owed.count == self.at.count))
    }

    /// Updates `open` after a change of a rank's state; `before` is its [`Words::openness`] before
    /// the change.
    fn count(&mut self, before: Option<usize>, rank: u32) {
        let after = self.openness(rank);
        if let Some(i) = before {
            self.open[i] -= 1;
        }
        if let Some(i) = after {
            self.open[i] += 1;
        }
    }

    /// The destination of this round's next word. The node owes the word from now on.
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
        // The multicast comes first, if it reaches any member.
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

    /// Enters the next barrier, goes on to the next round, or leaves the barrier, if the words that
    /// have arrived allow it. Returns whether it made progress.
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
            // The others leave soon and do not answer for long.
            self.asking.patience = PATIENCE;
            self.be_patient(now);
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

    /// Enters the next barrier, if one is queued.
    fn enter(&mut self, now: Time, out: &mut VecDeque<Output>) -> bool {
        let Some(next) = self.queue.pop_front() else {
            return false;
        };
        let Queued {
            op, barrier, held, ..
        } = next;
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
        self.asking.patience = match next.awaited {
            true => PATIENCE,
            false => UNAWAITED_PATIENCE,
        };
        self.be_patient(now);
        true
    }

    /// Puts off probes and starts a new pass, because something has changed.
    fn be_patient(&mut self, now: Time) {
        let Asking { patience, pass, .. } = self.asking;
        let pass = pass.wrapping_add(1);
        self.asking = Asking {
            patience,
            due: now + patience,
            vain: 0,
            pass,
            cursor: 0,
            at_once: 0,
        };
    }

    /// The next peer to probe now. Peers whose words this round lacks come first.
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
        let pause = self.asking.patience * (1 << vain.min(DOUBLINGS));
        self.asking.due = now + pause.min(PATIENCE_MAX);
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
