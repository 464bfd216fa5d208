//! The streams that a node receives in a group, each at a place of its own.
//!
//! A member's rank leads to its stream's place in one step, and so does an operation. Every change
//! of a stream goes through [`Streams::change`], which records when the stream has something to do.
//! So the node polls only streams that are due, in the order in which they began, and the price of
//! a packet does not depend on the number of streams.

use std::collections::VecDeque;

use super::deadlines::Deadlines;
use super::{Piggyback, Receiver};
use crate::border::{Config, Counters, Output};
use crate::id::NodeId;
use crate::mutant::{self, Mutant};
use crate::nonce::Nonces;
use crate::path::Transmission;
use crate::scheme::Scheme;
use crate::time::Time;
use crate::wire::{self, Query};

/// The place of a member whose stream does not exist.
const NOWHERE: u32 = u32::MAX;

/// The receiving sides of a group's streams. There is at most one for each member.
pub struct Streams {
    /// The streams in the order in which they began; `None`: the sender is gone. It never returns
    /// to the group, so its place stays empty.
    places: Vec<Option<Receiver>>,
    /// The place of each member's stream, by rank; [`NOWHERE`] if there is none. Empty before the
    /// first stream begins.
    by_rank: Vec<u32>,
    /// Number of streams.
    count: u32,
    /// When each stream has a query for its sender.
    queries: Deadlines,
    /// When each stream has something to send for its sender.
    relays: Deadlines,
    /// When each stream sends feedback or looks for losses. A stream whose feedback is scheduled
    /// has a deadline here.
    feedback: Deadlines,
}

impl Streams {
    /// There are no streams yet.
    pub fn new() -> Streams {
        Streams {
            places: Vec::new(),
            by_rank: Vec::new(),
            count: 0,
            queries: Deadlines::new(),
            relays: Deadlines::new(),
            feedback: Deadlines::new(),
        }
    }

    /// All streams, in the order in which they began.
    pub fn iter(&self) -> impl Iterator<Item = &Receiver> {
        self.places.iter().flatten()
    }

    /// The place of the stream of the member with this rank.
    pub fn place_of(&self, rank: usize) -> Option<usize> {
        let place = self.by_rank.get(rank).copied();
        place.filter(|&p| p != NOWHERE).map(|p| p as usize)
    }

    /// The stream at a place.
    pub fn get(&self, place: usize) -> Option<&Receiver> {
        self.places.get(place)?.as_ref()
    }

    /// Adds the stream of the member with this rank, which has none, in a group of `members`
    /// members. Returns its place.
    pub fn add(
        &mut self,
        scheme: &Scheme,
        (rank, members): (usize, usize),
        stream: Receiver,
    ) -> usize {
        let place = self.places.len();
        self.by_rank.resize(members, NOWHERE);
        self.by_rank[rank] = place as u32;
        self.places.push(Some(stream));
        self.count += 1;
        for deadlines in [&mut self.queries, &mut self.relays, &mut self.feedback] {
            deadlines.grow(place + 1);
        }
        self.divide(scheme);
        place
    }

    /// Removes the stream of the member with this rank, which is gone.
    pub fn remove(&mut self, scheme: &Scheme, rank: usize) -> Option<Receiver> {
        let place = self.place_of(rank)?;
        let stream = self.places[place].take()?;
        self.by_rank[rank] = NOWHERE;
        self.count -= 1;
        self.note(scheme, place);
        self.divide(scheme);
        Some(stream)
    }

    /// Divides the node's buffers among the streams.
    fn divide(&mut self, scheme: &Scheme) {
        let count = self.count;
        self.change_all(scheme, |stream| stream.divide(count));
    }

    /// Changes the stream at a place, and records when it has something to do from now on. `None`:
    /// the stream's sender is gone.
    pub fn change<T>(
        &mut self,
        scheme: &Scheme,
        place: usize,
        change: impl FnOnce(&mut Receiver) -> T,
    ) -> Option<T> {
        let done = change(self.places.get_mut(place)?.as_mut()?);
        self.note(scheme, place);
        Some(done)
    }

    /// Changes all streams.
    pub fn change_all(&mut self, scheme: &Scheme, mut change: impl FnMut(&mut Receiver)) {
        for place in 0..self.places.len() {
            self.change(scheme, place, &mut change);
        }
    }

    /// Records when the stream at a place has something to do.
    fn note(&mut self, scheme: &Scheme, place: usize) {
        if mutant::active(Mutant::ChangesUnnoticed) {
            return;
        }
        let stream = self.places[place].as_ref();
        self.queries
            .set(place, stream.and_then(Receiver::query_due));
        self.relays
            .set(place, stream.and_then(|s| s.relay_due(scheme)));
        self.feedback
            .set(place, stream.and_then(Receiver::feedback_due));
    }

    /// When a stream has something to do, if any has.
    pub fn wake(&self) -> Option<Time> {
        let all = [&self.queries, &self.relays, &self.feedback];
        all.into_iter().filter_map(Deadlines::first).min()
    }

    /// A query that is due to the sender of a stream, because a datagram has contradicted what this
    /// node expects.
    pub fn query(
        &mut self,
        now: Time,
        scheme: &Scheme,
        nonces: &mut Nonces,
    ) -> Option<(NodeId, Query)> {
        let mut from = 0;
        while let Some(place) = self.queries.due(from, now) {
            let ask = |s: &mut Receiver| Some((s.sender(), s.query(now, nonces)?));
            if let Some(asked) = self.change(scheme, place, ask).flatten() {
                return Some(asked);
            }
            from = place + 1;
        }
        None
    }

    /// The next transmission that this node makes for the sender of a stream.
    pub fn relay(
        &mut self,
        now: Time,
        config: &Config,
        counters: &mut Counters,
        out: &mut VecDeque<Output>,
    ) -> Option<Transmission> {
        let mut from = 0;
        while let Some(place) = self.relays.due(from, now) {
            let relay = |s: &mut Receiver| s.relay(now, config, counters, out);
            if let Some(send) = self.change(&config.scheme, place, relay).flatten() {
                return Some(send);
            }
            from = place + 1;
        }
        None
    }

    /// Writes a feedback frame that is due to `head`, after `header` has written what comes before
    /// it. Returns the node that the feedback is for.
    pub fn poll(
        &mut self,
        now: Time,
        scheme: &Scheme,
        head: &mut Vec<u8>,
        header: impl Fn(&mut Vec<u8>),
    ) -> Option<NodeId> {
        let mut from = 0;
        while let Some(place) = self.feedback.due(from, now) {
            let poll = |s: &mut Receiver| s.poll(now, scheme, head, &header).then(|| s.collector());
            if let Some(to) = self.change(scheme, place, poll).flatten() {
                return Some(to);
            }
            from = place + 1;
        }
        None
    }

    /// Appends to a datagram all scheduled feedback that goes the same way and fits. Returns the
    /// number of frames appended.
    pub fn piggyback(
        &mut self,
        now: Time,
        scheme: &Scheme,
        mut on: Piggyback<'_>,
        head: &mut Vec<u8>,
    ) -> u64 {
        let mut appended = 0;
        if scheme.feedback.piggyback.is_zero() {
            return appended;
        }
        let (mut from, end) = match on.only {
            Some(place) => (place, place + 1),
            None => (0, self.places.len()),
        };
        while on.room >= wire::FEEDBACK_LEN
            && let Some(place) = self.feedback.due(from, Time::NEVER).filter(|&p| p < end)
        {
            from = place + 1;
            if self.get(place).is_some_and(|s| on.takes(s))
                && let Some(len) = self
                    .change(scheme, place, |s| s.piggyback(now, scheme, on.room, head))
                    .flatten()
            {
                on.room -= len;
                appended += 1;
            }
        }
        appended
    }

    /// Panics if the state contradicts itself, or if a stream has something to do at another time
    /// than is recorded.
    pub fn invariants(&self, scheme: &Scheme) {
        assert_eq!(self.iter().count(), self.count as usize);
        assert!(self.places.len() <= self.by_rank.len());
        let known = self.by_rank.iter().filter(|&&p| p != NOWHERE);
        assert_eq!(known.clone().count(), self.count as usize);
        assert!(known.clone().all(|&p| self.get(p as usize).is_some()));
        let due = |when: &dyn Fn(&Receiver) -> Option<Time>| -> Vec<_> {
            let places = self.places.iter();
            places.map(|s| s.as_ref().and_then(when)).collect()
        };
        let (queries, relays) = (due(&Receiver::query_due), due(&|s| s.relay_due(scheme)));
        let feedback = due(&Receiver::feedback_due);
        let all = [&queries, &relays, &feedback].into_iter().flatten();
        assert_eq!(self.wake(), all.flatten().min().copied());
        self.queries.invariants(queries.into_iter());
        self.relays.invariants(relays.into_iter());
        self.feedback.invariants(feedback.into_iter());
        self.iter().for_each(Receiver::invariants);
    }
}
