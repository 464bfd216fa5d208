//! Baselines: broadcasts by messages between two hosts, as MPI libraries do without multicast, and
//! broadcasts to sets of hosts by several groups. Simulated hosts run the same schedules and the
//! same executor as live ones.
//!
//! A scenario with a [`Baseline`] has its groups, one group for each two hosts that send to each
//! other, and one stream for each host that sends in a group. So the judge sees what it always
//! sees, but each host's [`Executor`] decides what is sent when. A host sends on only what it has
//! received.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use fabricast::collective::{
    AHEAD, Action, Algorithm, Buffer, Cover, Executor, Part, Peer, Schedule, Segments, Step,
};
use fabricast::proto::Event;
use rangemap::RangeSet;

use crate::object::{Disk, PatternObject, Place, Progress, World};
use crate::transport::HostDriver;

/// Messages from one host to others, one after the other.
#[derive(Clone, PartialEq, Debug)]
pub struct Baseline {
    /// Algorithm that delivers the messages.
    pub algorithm: Algorithm,
    /// Groups that exist, for a cover.
    pub groups: Vec<Vec<usize>>,
    /// Host that has the messages.
    pub root: usize,
    /// Lengths of the messages in bytes.
    pub lens: Vec<u64>,
    /// Payload of a data packet in bytes.
    pub payload_size: u32,
    /// Segment in bytes in which binomial tree, chain and cover pass messages on; zero: as a whole.
    pub segment: u64,
    /// Bytes that a host has under way at once.
    pub ahead: u64,
    /// When the root begins.
    pub start: Duration,
    /// Hosts that are not there from the beginning, and when they enter.
    pub enter: Vec<(usize, Duration)>,
}

impl Baseline {
    /// A baseline of one message of `len` bytes from host 0, passed on in segments of 64 KiB. The
    /// root begins a little after the others have posted the message.
    pub fn new(algorithm: Algorithm, len: u64, payload_size: u32) -> Baseline {
        Baseline {
            algorithm,
            groups: Vec::new(),
            root: 0,
            lens: vec![len],
            payload_size,
            segment: 64 << 10,
            ahead: AHEAD,
            start: Duration::from_millis(1),
            enter: Vec::new(),
        }
    }

    /// A baseline of one message from `root` to the hosts of `target`, by these groups.
    pub fn cover(
        target: &BTreeSet<usize>,
        root: usize,
        groups: Vec<Vec<usize>>,
        len: u64,
        payload_size: u32,
    ) -> Baseline {
        let cover = Cover::new(target, root, &groups);
        Baseline {
            root,
            groups,
            ..Baseline::new(Algorithm::Cover(cover), len, payload_size)
        }
    }

    /// The steps of a host for each message.
    pub(crate) fn steps(&self, hosts: usize, host: usize) -> impl Iterator<Item = Vec<Step>> + '_ {
        self.lens.iter().map(move |&len| {
            let schedule = Schedule {
                algorithm: self.algorithm.clone(),
                nodes: hosts,
                root: self.root,
                segments: Segments::equal(len, self.segment),
            };
            schedule.steps(host)
        })
    }
}

/// The two hosts in ascending order.
pub(crate) fn pair(a: usize, b: usize) -> (usize, usize) {
    (a.min(b), a.max(b))
}

/// One host's part in a baseline.
#[derive(Debug)]
pub(crate) struct Relay {
    pub(crate) executor: Executor<(), PatternBuffer>,
    /// When the host begins.
    pub(crate) enters: u64,
    /// The host's role that a step belongs to, by peer and whether the host sends.
    pub(crate) roles: BTreeMap<(Peer, bool), usize>,
}

impl Relay {
    /// The role that a step belongs to.
    pub(crate) fn role(&self, step: &Step) -> usize {
        self.roles[&(step.peer, step.action == Action::Send)]
    }

    pub(crate) fn event(&mut self, event: Event) {
        self.executor.event((), event);
    }

    pub(crate) fn take_back(&mut self, driver: &mut HostDriver) -> bool {
        self.executor.take_back(driver)
    }

    /// Number of things that are missing at the end: unfinished steps, and incomplete messages.
    pub(crate) fn rest(&self) -> usize {
        let lacks = |b: &&PatternBuffer| !b.here.covers(0, b.len);
        usize::from(!self.executor.is_done()) + self.executor.buffers().filter(lacks).count()
    }
}

/// A message at one host, whose bytes are a pattern.
#[derive(Debug)]
pub(crate) struct PatternBuffer {
    world: Rc<World>,
    bell: Rc<Cell<u64>>,
    host: usize,
    payload_size: u32,
    disk: Disk,
    /// Number of the message among those of its baseline.
    message: usize,
    content: u64,
    len: u64,
    /// The bytes of the message that are here.
    here: Covered,
    /// Progress of the object that was made last.
    pub(crate) made: Rc<Progress>,
}

impl PatternBuffer {
    /// The messages of a baseline at a host: the root has all of them, the others none.
    pub(crate) fn all(
        b: &Baseline,
        seed: u64,
        host: usize,
        disk: Disk,
        (world, bell): (&Rc<World>, &Rc<Cell<u64>>),
    ) -> Vec<PatternBuffer> {
        let message = |(i, &len): (usize, &u64)| PatternBuffer {
            world: Rc::clone(world),
            bell: Rc::clone(bell),
            host,
            payload_size: b.payload_size,
            disk,
            message: i,
            content: seed ^ (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15),
            len,
            here: match host == b.root {
                true => Covered::from(0, len),
                false => Covered::default(),
            },
            made: Rc::default(),
        };
        b.lens.iter().enumerate().map(message).collect()
    }

    fn place(&self, peer: Peer) -> Place {
        let (Peer::Rank(peer) | Peer::Group { root: peer, .. } | Peer::Local { root: peer }) = peer;
        Place {
            world: Rc::clone(&self.world),
            bell: Rc::clone(&self.bell),
            name: (self.host as u32, peer as u32, self.message as u32),
        }
    }

    fn complain(&self, what: &str, part: Part) {
        let (host, message, Part { offset, len }) = (self.host, self.message, part);
        self.world
            .complain(|| format!("host {host} {what} bytes {offset}+{len} of message {message}"));
    }
}

impl Buffer for PatternBuffer {
    type Object = Box<PatternObject>;

    fn source(&mut self, part: Part, to: Peer) -> Option<Box<PatternObject>> {
        let place = self.place(to);
        if !self.here.covers(part.offset, part.len) {
            self.complain("sends what it lacks:", part);
        }
        let object =
            PatternObject::source(place, self.content, part.len, self.payload_size, self.disk);
        Some(Box::new(object.at(part.offset)))
    }

    fn room(&mut self, part: Part, from: Peer) -> Option<Box<PatternObject>> {
        let place = self.place(from);
        self.made = Rc::default();
        let (content, made) = (self.content, Rc::clone(&self.made));
        let room =
            PatternObject::room(place, content, part.len, self.payload_size, self.disk, made);
        Some(Box::new(room.at(part.offset)))
    }

    fn received(&mut self, part: Part, object: Box<PatternObject>, _copies_max: u64) {
        if !object.whole() {
            self.complain("has received in part", part);
        }
        self.here.add(part.offset, part.len);
    }
}

/// Bytes that are here.
#[derive(Debug, Default)]
struct Covered(RangeSet<u64>);

impl Covered {
    fn from(offset: u64, len: u64) -> Covered {
        let mut covered = Covered::default();
        covered.add(offset, len);
        covered
    }

    fn covers(&self, offset: u64, len: u64) -> bool {
        let here = self.0.get(&offset);
        len == 0 || here.is_some_and(|here| offset + len <= here.end)
    }

    fn add(&mut self, offset: u64, len: u64) {
        if len > 0 {
            self.0.insert(offset..offset + len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn covered_ranges_grow_together() {
        let mut c = Covered::default();
        for (offset, len) in [(10, 5), (30, 5), (16, 2), (15, 1)] {
            assert!(!c.covers(offset, len));
            c.add(offset, len);
            assert!(c.covers(offset, len));
        }
        assert!(c.covers(10, 8) && !c.covers(10, 9) && !c.covers(9, 2));
        c.add(0, 40);
        assert!(c.covers(0, 40) && c.0.len() == 1);
    }

    #[test]
    fn who_sends_on_what_it_has_not_received_is_noticed() {
        let mut buffer = PatternBuffer {
            world: Rc::default(),
            bell: Rc::new(Cell::new(u64::MAX)),
            host: 1,
            payload_size: 100,
            disk: Disk::default(),
            message: 0,
            content: 1,
            len: 300,
            here: Covered::from(0, 100),
            made: Rc::default(),
        };
        let part = |offset, len| Part { offset, len };
        buffer.source(part(0, 100), Peer::Rank(2));
        assert!(!buffer.world.broken.get());
        buffer.source(part(0, 101), Peer::Rank(2));
        assert!(buffer.world.broken.get());
    }
}
