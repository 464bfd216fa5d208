//! The streams that a node receives in a group, each at a place of its own.
//!
//! A member's rank leads to its stream's place in one step, and so does an operation. Every change
//! of a stream goes through [`Streams::change`], which records when the stream has something to do.
//! So the node polls only streams that are due, in the order in which they began, and the price of
//! a packet does not depend on the number of streams.

use core::ops::{Deref, DerefMut};
use std::collections::VecDeque;

use super::deadlines::Deadlines;
use super::{Piggyback, Receiver};
use crate::border::{Config, Counters, Output};
use crate::id::NodeId;
use crate::mutant::{self, Mutant};
use crate::nonce::Nonces;
use crate::path::Transmission;
use crate::scheme::Scheme;
use crate::sender::Shares;
use crate::time::Time;
use crate::wire::{self, Query, Writer};

/// The place of a member whose stream does not exist.
const NOWHERE: u32 = u32::MAX;

/// Deadline of a stream: it has a query for its sender.
const QUERY: usize = 0;
/// Deadline of a stream: it has something to send for its sender.
const RELAY: usize = 1;
/// Deadline of a stream: it sends feedback or looks for losses. A stream whose feedback is
/// scheduled has this deadline.
const FEEDBACK: usize = 2;

/// When a stream has something to do, by [`QUERY`], [`RELAY`] and [`FEEDBACK`].
fn deadlines(stream: Option<&Receiver>, scheme: &Scheme) -> [Option<Time>; 3] {
    stream.map_or([None; 3], |s| {
        [s.query_due(), s.relay_due(scheme), s.feedback_due()]
    })
}

/// A stream that is being changed. In the end this records when the stream has something to do.
pub struct Changing<'a> {
    stream: &'a mut Receiver,
    place: usize,
    deadlines: &'a mut Deadlines<3>,
    scheme: &'a Scheme,
}

impl Deref for Changing<'_> {
    type Target = Receiver;

    fn deref(&self) -> &Receiver {
        self.stream
    }
}

impl DerefMut for Changing<'_> {
    fn deref_mut(&mut self) -> &mut Receiver {
        self.stream
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        if !mutant::active(Mutant::ChangesUnnoticed) {
            self.deadlines
                .set(self.place, deadlines(Some(self.stream), self.scheme));
        }
    }
}

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
    /// When each stream has something to do, by [`QUERY`], [`RELAY`] and [`FEEDBACK`].
    deadlines: Deadlines<3>,
}

impl Streams {
    /// There are no streams yet.
    pub fn new() -> Streams {
        Streams {
            places: Vec::new(),
            by_rank: Vec::new(),
            count: 0,
            deadlines: Deadlines::new(),
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
        self.deadlines.grow(place + 1);
        self.divide(scheme);
        place
    }

    /// Removes the stream of the member with this rank, which is gone.
    pub fn remove(&mut self, scheme: &Scheme, rank: usize) -> Option<Receiver> {
        let place = self.place_of(rank)?;
        let stream = self.places[place].take()?;
        self.by_rank[rank] = NOWHERE;
        self.count -= 1;
        self.deadlines.set(place, [None; 3]);
        self.divide(scheme);
        Some(stream)
    }

    /// Divides the node's buffers among the streams.
    fn divide(&mut self, scheme: &Scheme) {
        if scheme.credits {
            let count = self.count;
            self.change_all(scheme, |stream| stream.divide(count));
        }
    }

    /// The stream at a place, for a change. `None`: the stream's sender is gone.
    pub fn change<'a>(&'a mut self, scheme: &'a Scheme, place: usize) -> Option<Changing<'a>> {
        Some(Changing {
            stream: self.places.get_mut(place)?.as_mut()?,
            place,
            deadlines: &mut self.deadlines,
            scheme,
        })
    }

    /// Changes all streams.
    pub fn change_all(&mut self, scheme: &Scheme, mut change: impl FnMut(&mut Receiver)) {
        for place in 0..self.places.len() {
            if let Some(mut stream) = self.change(scheme, place) {
                change(&mut stream);
            }
        }
    }

    /// When a stream has something to do, if any has.
    pub fn wake(&self) -> Option<Time> {
        self.deadlines.first()
    }

    /// A query that is due to the sender of a stream, because a datagram has contradicted what this
    /// node expects.
    #[inline]
    pub fn query(
        &mut self,
        now: Time,
        scheme: &Scheme,
        nonces: &mut Nonces,
    ) -> Option<(NodeId, Query)> {
        let mut from = 0;
        while let Some(place) = self.deadlines.due(QUERY, from, now) {
            let mut stream = self.change(scheme, place)?;
            if let Some(query) = stream.query(now, nonces) {
                return Some((stream.sender(), query));
            }
            from = place + 1;
        }
        None
    }

    /// The next transmission that this node makes for the sender of a stream. `shares`: the node's
    /// fixed rate, if it has one.
    #[inline]
    pub fn relay(
        &mut self,
        now: Time,
        config: &Config,
        mut shares: Option<&mut Shares>,
        counters: &mut Counters,
        out: &mut VecDeque<Output>,
    ) -> Option<Transmission> {
        let mut from = 0;
        while let Some(place) = self.deadlines.due(RELAY, from, now) {
            let mut stream = self.change(&config.scheme, place)?;
            if let Some(send) = stream.relay(now, config, shares.as_deref_mut(), counters, out) {
                return Some(send);
            }
            from = place + 1;
        }
        None
    }

    /// Writes a feedback frame that is due to `head`, after `header` has written what comes before
    /// it. Returns the node that the feedback is for.
    #[inline]
    pub fn poll(
        &mut self,
        now: Time,
        scheme: &Scheme,
        head: &mut Writer<'_>,
        header: impl Fn(&mut Writer<'_>),
    ) -> Option<NodeId> {
        let mut from = 0;
        while let Some(place) = self.deadlines.due(FEEDBACK, from, now) {
            let mut stream = self.change(scheme, place)?;
            if stream.poll(now, scheme, head, &header) {
                return Some(stream.collector());
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
        head: &mut Writer<'_>,
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
            && let Some(place) = self
                .deadlines
                .due(FEEDBACK, from, Time::NEVER)
                .filter(|&p| p < end)
        {
            from = place + 1;
            if self.get(place).is_some_and(|s| on.takes(s))
                && let Some(mut stream) = self.change(scheme, place)
                && let Some(len) = stream.piggyback(now, scheme, on.room, head)
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
        let places = self.places.iter();
        let due = places.map(|stream| deadlines(stream.as_ref(), scheme));
        self.deadlines.invariants(due);
        self.iter().for_each(Receiver::invariants);
    }
}
