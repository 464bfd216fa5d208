//! The memory that a host's processes share: who is on which host, how they come by it, and how it
//! is used.

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use fabricast_proto::scheme::How;
use fabricast_proto::{Config, Node, NodeId, Scheme};

use super::card::{COPY_MAX, Card};
use super::part::Part;
use crate::driver::Driver;
use crate::net;
use crate::object::Object;
use crate::transport::Transport;
use crate::transport::shm::{Doorbell, Meeting, Shm};

/// Payload of a data packet: enough for its costs not to count, and little enough for a cache.
pub(super) const CHUNK: u32 = 16 << 10;
/// Packets of a stream that may be under way.
const WINDOW: u32 = 256;
/// Packets of each stream that are kept for a broadcast that has not been called here yet.
const HOLD: u32 = 256;
/// Nothing is lost but by who falls far behind: nobody is asked soon.
const TAIL: Duration = Duration::from_millis(2);

/// A number for this host: processes with equal ones may share memory. It is of the system's name
/// and of when it started, for names are not always different; and of the network namespace, which
/// doorbells do not leave.
pub(super) fn host(chosen: Option<&str>) -> u64 {
    let mut told = Vec::new();
    match chosen {
        Some(name) => told.extend_from_slice(name.as_bytes()),
        None => {
            told.extend_from_slice(rustix::system::uname().nodename().to_bytes());
            let boot = fs::File::open("/proc/sys/kernel/random/boot_id");
            let _ = boot.and_then(|mut f| f.read_to_end(&mut told));
            let space = fs::metadata("/proc/thread-self/ns/net").map_or(0, |m| m.ino());
            told.extend_from_slice(&space.to_be_bytes());
        }
    }
    number(&told)
}

/// A number for these bytes, which others hardly have.
pub(super) fn number(bytes: &[u8]) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&blake3::hash(bytes).as_bytes()[..8]);
    u64::from_be_bytes(number)
}

/// What this process is to its host's memory.
pub(super) struct Mates {
    doorbell: Doorbell,
    doorbells: Vec<u64>,
    me: usize,
    key: u64,
}

impl Mates {
    /// With those whose cards say that they are on the same host; `None` if there are no others, or
    /// this one has no doorbell.
    pub fn new(doorbell: Option<Doorbell>, cards: &[Card], rank: u32) -> Option<Mates> {
        let (here, _) = cards.get(rank as usize)?.host?;
        let on = |card: &Card| card.host.filter(|host| host.0 == here);
        let mates = (0..)
            .zip(cards)
            .filter_map(|(r, card)| Some((r, card, on(card)?.1)));
        let mates: Vec<_> = mates.collect();
        let me = mates.iter().position(|m| m.0 == rank)?;
        (mates.len() > 1).then_some(Mates {
            doorbell: doorbell?,
            doorbells: mates.iter().map(|m| m.2).collect(),
            me,
            key: mates[0].1.key,
        })
    }

    /// Makes the memory, or takes it. Only the process that makes it is waited for.
    pub fn meet(self) -> Result<Shm, String> {
        let meeting = Meeting {
            doorbells: &self.doorbells,
            me: self.me,
            key: self.key,
        };
        let met = match self.me {
            0 => meeting.create(self.doorbell),
            _ => meeting.join(self.doorbell),
        };
        met.map_err(|e| e.to_string())
    }
}

/// What drives it. `mates` are the host's processes, in their order.
pub(super) fn driver<O: Object>(
    mut shm: Shm,
    rank: NodeId,
    (session, seed): (u64, u64),
    mates: &[NodeId],
) -> Driver<Shm, Part<O>> {
    for (place, &mate) in mates.iter().enumerate() {
        shm.peer(mate, vec![place]);
    }
    let mut scheme = Scheme::auto().copied(COPY_MAX);
    scheme.feedback.turn = Duration::ZERO;
    scheme.feedback.spacing_min = Duration::ZERO;
    scheme.detect.tail_min = TAIL;
    scheme.repair.how = How::Cheaper;
    scheme.repair.gather = Duration::ZERO;
    let config = Config {
        hold: HOLD,
        // Memory needs no pace: who is slow closes its window.
        rate: Some(u64::MAX),
        ..net::node_config(rank, session, (scheme, WINDOW), CHUNK, shm.caps())
    };
    Driver::new(Node::new(config, seed), shm)
}
