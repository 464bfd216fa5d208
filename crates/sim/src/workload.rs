//! What the hosts do: groups, streams of broadcasts, and how eagerly they are sent and posted.

use std::time::Duration;

use fabricast::proto::Barrier;

use crate::object::{Disk, packets_of};

/// Hosts that receive each other's multicasts.
#[derive(Clone, PartialEq, Debug)]
pub struct GroupPlan {
    /// Its members, in the order in which every node is told.
    pub members: Vec<usize>,
    /// Payload of a data packet in bytes.
    pub payload_size: u32,
    /// Number of the first packet of each of its streams.
    pub start: u32,
}

/// When a root sends its next broadcast.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Sending {
    /// As soon as fewer than this many are under way.
    Ahead(usize),
    /// One after another, this long apart, complete or not.
    Every(Duration),
}

/// When a receiver posts the next object.
#[derive(Clone, PartialEq, Debug)]
pub struct Posting {
    /// As soon as fewer than this many are posted and not complete.
    pub ahead: usize,
    /// It thinks up to so long between a completion and its next post.
    pub think_max: Duration,
    /// Hosts that post their first object only at this time.
    pub late: Vec<(usize, Duration)>,
    /// Hosts that post their first object only when all others have received theirs.
    pub last: Vec<usize>,
}

/// A root takes turns with the root of another stream: it sends number `i` when it has received
/// number `i - lag` of the other stream.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct After {
    /// Which stream, by its place in the scenario.
    pub stream: usize,
    /// How far that one may be behind.
    pub lag: usize,
}

/// Broadcasts of one root to one group.
#[derive(Clone, PartialEq, Debug)]
pub struct StreamPlan {
    /// Which group, by its place in the scenario.
    pub group: usize,
    /// The host that sends.
    pub root: usize,
    /// Length of each object.
    pub lens: Vec<u64>,
    /// When the root begins.
    pub start: Duration,
    /// How eagerly it sends.
    pub sending: Sending,
    /// What it waits for before each broadcast.
    pub after: Option<After>,
    /// How eagerly the others post.
    pub posting: Posting,
}

impl StreamPlan {
    /// A stream that starts at once and whose receivers have posted everything.
    pub fn new(group: usize, root: usize, lens: Vec<u64>) -> StreamPlan {
        StreamPlan {
            group,
            root,
            lens,
            start: Duration::ZERO,
            sending: Sending::Ahead(usize::MAX),
            after: None,
            posting: Posting {
                ahead: usize::MAX,
                think_max: Duration::ZERO,
                late: Vec::new(),
                last: Vec::new(),
            },
        }
    }

    /// Data packets of all objects together.
    pub fn packets(&self, payload_size: u32) -> u64 {
        self.lens
            .iter()
            .map(|&len| packets_of(len, payload_size))
            .sum()
    }
}

/// Barriers of a group, one after another.
#[derive(Clone, PartialEq, Debug)]
pub struct BarrierPlan {
    /// Which group, by its place in the scenario; at most one plan for each.
    pub group: usize,
    /// How each is made.
    pub algorithms: Vec<Barrier>,
    /// When all members enter the first barrier, except those of `late`.
    pub start: Duration,
    /// Hosts that enter the first barrier later, and when.
    pub late: Vec<(usize, Duration)>,
    /// A host thinks up to so long between leaving one and asking for the next.
    pub think_max: Duration,
    /// A host asks for the next as soon as fewer than this many are under way.
    pub ahead: usize,
}

impl BarrierPlan {
    /// Back to back from the start.
    pub fn new(group: usize, algorithms: Vec<Barrier>) -> BarrierPlan {
        BarrierPlan {
            group,
            algorithms,
            start: Duration::ZERO,
            late: Vec::new(),
            think_max: Duration::ZERO,
            ahead: 1,
        }
    }
}

/// What datagrams cost the hosts, by their kind: networks have different means for them.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Costs {
    /// With a payload, to one host.
    pub message: Cost,
    /// The same, of `long_from` bytes or more: many networks have a way of their own for them.
    pub long: Cost,
    /// Shortest payload that is long, in bytes.
    pub long_from: u64,
    /// To a group.
    pub group: Cost,
    /// Without a payload, to one host: feedback and questions, which on InfiniBand are one-sided
    /// writes of a word (P1.11).
    pub word: Cost,
    /// Datagrams that leave together, once (LoP's: P2.5).
    pub start: Duration,
}

/// What one datagram costs.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Cost {
    /// The sender's processor (LogGP's o).
    pub send: Duration,
    /// On its way, beyond what cables take; no processor is busy.
    pub way: Duration,
    /// The receiver's processor (LogGP's o).
    pub receive: Duration,
    /// A byte, in picoseconds, at each of the two processors (LogGP's G, where it is the host's and
    /// not the link's).
    pub byte_ps: u64,
}

/// The kind of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// See [`Costs::message`].
    Message,
    /// See [`Costs::long`].
    Long,
    /// See [`Costs::group`].
    Group,
    /// See [`Costs::word`].
    Word,
}

impl Costs {
    /// The same for all kinds.
    pub fn all(cost: Cost) -> Costs {
        Costs {
            message: cost,
            long: cost,
            long_from: u64::MAX,
            group: cost,
            word: cost,
            start: Duration::ZERO,
        }
    }

    /// What a datagram of this kind costs.
    pub fn of(&self, kind: Kind) -> &Cost {
        match kind {
            Kind::Message => &self.message,
            Kind::Long => &self.long,
            Kind::Group => &self.group,
            Kind::Word => &self.word,
        }
    }
}

impl Cost {
    /// What a datagram of so many bytes takes of the sender's processor, in nanoseconds.
    pub fn send_ns(&self, bytes: u64) -> u64 {
        self.send.as_nanos() as u64 + bytes * self.byte_ps / 1000
    }

    /// What a datagram of so many bytes takes of the receiver's processor, in nanoseconds.
    pub fn receive_ns(&self, bytes: u64) -> u64 {
        self.receive.as_nanos() as u64 + bytes * self.byte_ps / 1000
    }
}

/// What a host is like, beyond what all are like.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct HostPlan {
    /// Which host.
    pub host: usize,
    /// Its disk.
    pub disk: Disk,
}
