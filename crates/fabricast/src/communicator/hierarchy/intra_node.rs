//! The memory that a host's processes share: how they come by it, and how it is used.

use std::time::Duration;

use fabricast_proto::scheme::How;
use fabricast_proto::{Config, Node, NodeId, Scheme};

use crate::communicator::limits::COPY_MAX;
use crate::communicator::networks::buffer::BufferView;
use crate::driver::Driver;
use crate::net;
use crate::object::Object;
use crate::transport::Transport;
use crate::transport::shm::{FdChannel, Meeting, Shm};

/// Payload of a data packet: enough for its costs not to count, and little enough for a cache.
pub(crate) const PAYLOAD: u32 = 16 << 10;
/// Packets of a stream that may be under way.
const WINDOW: u32 = 256;
/// Packets of each stream that are kept for a broadcast that has not been called here yet.
const HOLD: u32 = 256;
/// Nothing is lost but by who falls far behind: nobody is asked soon.
const TAIL: Duration = Duration::from_millis(2);

/// What a process tells those with which it may share memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalRank {
    /// The number of its host.
    pub host: u64,
    /// The name of its channel there.
    pub waker: u64,
    /// A number that only these processes know.
    pub key: u64,
}

/// What this process is to its host's memory.
pub(crate) struct LocalRanks {
    channel: FdChannel,
    wakers: Vec<u64>,
    me: usize,
    key: u64,
}

impl LocalRanks {
    /// Of the processes that say that they are on this process's host; `None` if there are no
    /// others, or this one has no channel. `said` is by rank, and `None` for a process that cannot
    /// share memory.
    pub fn new(
        channel: Option<FdChannel>,
        said: &[Option<LocalRank>],
        rank: u32,
    ) -> Option<LocalRanks> {
        let here = said.get(rank as usize)?.as_ref()?.host;
        let all = (0..).zip(said).filter_map(|(r, said)| Some((r, (*said)?)));
        let local_ranks: Vec<(u32, LocalRank)> = all.filter(|(_, n)| n.host == here).collect();
        let me = local_ranks.iter().position(|(r, _)| *r == rank)?;
        (local_ranks.len() > 1).then_some(LocalRanks {
            channel: channel?,
            wakers: local_ranks.iter().map(|(_, n)| n.waker).collect(),
            me,
            key: local_ranks[0].1.key,
        })
    }

    /// Makes the memory, or takes it. Only the process that makes it is waited for.
    pub fn meet(self) -> Result<Shm, String> {
        let meeting = Meeting {
            wakers: &self.wakers,
            me: self.me,
            key: self.key,
        };
        let met = match self.me {
            0 => meeting.create(self.channel),
            _ => meeting.join(self.channel),
        };
        met.map_err(|e| e.to_string())
    }
}

/// What drives it. `local_ranks` are the host's processes, in their order.
pub(crate) fn driver<O: Object>(
    mut shm: Shm,
    rank: NodeId,
    (session, seed): (u64, u64),
    local_ranks: &[NodeId],
) -> Driver<Shm, BufferView<O>> {
    for (place, &mate) in local_ranks.iter().enumerate() {
        shm.peer(mate, vec![place]);
    }
    let mut scheme = Scheme::auto().copied(COPY_MAX);
    scheme.feedback.turn = Duration::ZERO;
    scheme.feedback.spacing_min = Duration::ZERO;
    scheme.detect.tail_min = TAIL;
    scheme.repair.how = How::Cheaper;
    scheme.repair.nack_delay = Duration::ZERO;
    let config = Config {
        unexpected_max: HOLD,
        // Memory needs no pace: who is slow closes its window.
        rate: Some(u64::MAX),
        ..net::node_config(rank, session, (scheme, WINDOW), PAYLOAD, shm.caps())
    };
    Driver::new(Node::new(config, seed), shm)
}
