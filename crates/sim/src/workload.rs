//! The hosts' work: groups, streams of broadcasts, and how eagerly they are sent and posted.

use std::time::Duration;

use fabricast::proto::Barrier;

use crate::object::{Disk, packets_of};

/// Hosts that receive each other's multicasts.
#[derive(Clone, PartialEq, Debug)]
pub struct GroupPlan {
    /// Members, in the order in which every node is told of them.
    pub members: Vec<usize>,
    /// Payload of a data packet in bytes.
    pub payload_size: u32,
    /// Number of the first packet of each of the group's streams.
    pub start: u32,
}

/// When a root sends its next broadcast.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Sending {
    /// As soon as fewer than this many broadcasts are under way.
    Ahead(usize),
    /// One broadcast after another, this long apart, whether they are complete or not.
    Every(Duration),
}

/// When a receiver posts the next object.
#[derive(Clone, PartialEq, Debug)]
pub struct Posting {
    /// Posts as soon as fewer than this many objects are posted and not complete.
    pub ahead: usize,
    /// Longest time that a receiver thinks between a completion and its next post.
    pub think_max: Duration,
    /// Hosts that post their first object only at this time.
    pub late: Vec<(usize, Duration)>,
    /// Hosts that post their first object only when all others have received theirs.
    pub last: Vec<usize>,
}

/// A root takes turns with the root of another stream. It sends broadcast `i` when it has received
/// broadcast `i - lag` of the other stream.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct After {
    /// Index of the other stream in the scenario.
    pub stream: usize,
    /// How many broadcasts the other stream may be behind.
    pub lag: usize,
}

/// Broadcasts of one root to one group.
#[derive(Clone, PartialEq, Debug)]
pub struct StreamPlan {
    /// Index of the group in the scenario.
    pub group: usize,
    /// The root.
    pub root: usize,
    /// Length of each object.
    pub lens: Vec<u64>,
    /// When the root begins.
    pub start: Duration,
    /// How eagerly the root sends.
    pub sending: Sending,
    /// The stream that the root waits for before each broadcast.
    pub after: Option<After>,
    /// How eagerly the receivers post.
    pub posting: Posting,
    /// The weight by which the stream shares its root's fixed rate.
    pub weight: u32,
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
            weight: 1,
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
    /// Index of the group in the scenario; there is at most one plan for each group.
    pub group: usize,
    /// Algorithm of each barrier.
    pub algorithms: Vec<Barrier>,
    /// When all members enter the first barrier, except those of `late`.
    pub start: Duration,
    /// Hosts that enter the first barrier later, and when.
    pub late: Vec<(usize, Duration)>,
    /// Longest time that a host thinks between leaving a barrier and entering the next.
    pub think_max: Duration,
    /// A host enters the next barrier as soon as fewer than this many are under way.
    pub ahead: usize,
}

impl BarrierPlan {
    /// A plan of barriers back to back from the start.
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

/// Costs of datagrams at hosts, by kind: networks have different means for each kind.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Costs {
    /// Cost of a datagram with a payload, to one host.
    pub message: Cost,
    /// Cost of a datagram with a payload of `long_from` bytes or more, to one host: many networks
    /// have a way of their own for them.
    pub long: Cost,
    /// Shortest payload that is long, in bytes.
    pub long_from: u64,
    /// Cost of a datagram to a group.
    pub group: Cost,
    /// Cost of a datagram without a payload, to one host: feedback and probes, which on InfiniBand
    /// are one-sided writes of a word (P1.11).
    pub word: Cost,
    /// Cost of datagrams that leave together, paid once for all of them (LoP's start-up: P2.5).
    pub start: Duration,
}

/// Costs of one datagram.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Cost {
    /// Time of the sender's processor (LogGP's o).
    pub send: Duration,
    /// Time on the way beyond what cables take; no processor is busy meanwhile.
    pub way: Duration,
    /// Time of the receiver's processor (LogGP's o).
    pub receive: Duration,
    /// Time per byte at each of the two processors, in picoseconds (LogGP's G, where the host
    /// limits it and not the link).
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
    /// The same costs for all kinds.
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

    /// The costs of a datagram of this kind.
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
    /// Time that a datagram of `bytes` bytes takes at the sender's processor, in nanoseconds.
    pub fn send_ns(&self, bytes: u64) -> u64 {
        self.send.as_nanos() as u64 + bytes * self.byte_ps / 1000
    }

    /// Time that a datagram of `bytes` bytes takes at the receiver's processor, in nanoseconds.
    pub fn receive_ns(&self, bytes: u64) -> u64 {
        self.receive.as_nanos() as u64 + bytes * self.byte_ps / 1000
    }
}

/// Properties of one host that differ from those of all others.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct HostPlan {
    /// The host.
    pub host: usize,
    /// The host's disk.
    pub disk: Disk,
}
