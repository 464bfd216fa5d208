//! What the hosts do: groups, streams of broadcasts, and how eagerly they are sent and posted.

use std::time::Duration;

use crate::object::{Disk, packets_of};

/// Hosts that receive each other's multicasts.
#[derive(Clone, PartialEq, Debug)]
pub struct GroupPlan {
    /// Who is in it, in the order in which every node is told.
    pub members: Vec<usize>,
    /// Payload of a data packet in bytes.
    pub chunk: u32,
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

/// Broadcasts of one root to one group.
#[derive(Clone, PartialEq, Debug)]
pub struct StreamPlan {
    /// Which group, by its place in the scenario.
    pub group: usize,
    /// Who sends.
    pub root: usize,
    /// Length of each object.
    pub lens: Vec<u64>,
    /// When the root begins.
    pub start: Duration,
    /// How eagerly it sends.
    pub sending: Sending,
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
            posting: Posting {
                ahead: usize::MAX,
                think_max: Duration::ZERO,
                late: Vec::new(),
                last: Vec::new(),
            },
        }
    }

    /// Data packets of all objects together.
    pub fn packets(&self, chunk: u32) -> u64 {
        self.lens.iter().map(|&len| packets_of(len, chunk)).sum()
    }
}

/// What a host's processor and disk cost.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Costs {
    /// To send a datagram (LogGP's o at the sender).
    pub send: Duration,
    /// To receive one (o at the receiver).
    pub receive: Duration,
    /// To find one that is feedback and nothing else, if that is written into memory that the receiver looks at
    /// (P1.11); else it costs what others do.
    pub word: Option<Duration>,
    /// To touch a byte, in picoseconds (LogGP's G, where it is the host's and not the link's).
    pub byte_ps: u64,
}

/// What a host is like, beyond what all are like.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct HostPlan {
    /// Which host.
    pub host: usize,
    /// Its disk.
    pub disk: Disk,
}
