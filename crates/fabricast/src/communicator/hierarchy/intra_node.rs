//! The memory that a host's processes share: how they obtain it, and how the driver uses it.

use std::time::Duration;

use fabricast_proto::scheme::How;
use fabricast_proto::{Config, Node, NodeId, Scheme};

use crate::communicator::limits::COPY_MAX;
use crate::communicator::networks::buffer::BufferView;
use crate::config::NetOptions;
use crate::driver::Driver;
use crate::net::{self, MeetingPoint, SharedMemory};
use crate::object::Object;
use crate::transport::{NodeAddress, Transport};

/// Payload of a data packet, in bytes: large enough that the cost of a packet does not count, and
/// small enough for a cache.
pub(crate) const PAYLOAD: u32 = 16 << 10;
/// Window of a stream, in packets.
const WINDOW: u32 = 256;
/// Size of the unexpected-message buffer per stream, in packets.
const HOLD: u32 = 256;
/// Shortest wait before a tail-loss probe. Shared memory loses packets only of a receiver that
/// falls far behind, so the sender need not probe soon.
const TAIL: Duration = Duration::from_millis(2);

/// What a process tells the processes with which it may share memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalRank {
    /// The number of its host.
    pub host: u64,
    /// The name of its channel on that host.
    pub waker: u64,
    /// A secret number that only the job's processes know.
    pub key: u64,
}

/// This process's part in its host's shared memory.
pub(crate) struct LocalRanks {
    channel: MeetingPoint,
    wakers: Vec<u64>,
    me: usize,
    key: u64,
}

impl LocalRanks {
    /// The local ranks of process `rank`: the processes that gave its host. `said` is indexed by
    /// rank and is `None` for a process that cannot share memory. Returns `None` if no other
    /// process is on this host, or if this process has no channel.
    pub fn new(
        channel: Option<MeetingPoint>,
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

    /// Creates the shared memory, or takes it over. The others wait only for the process that
    /// creates it.
    pub fn meet(self, options: &NetOptions) -> Result<SharedMemory, String> {
        let shared = self
            .channel
            .share_memory(options, &self.wakers, self.me, self.key);
        shared.map_err(|e| e.to_string())
    }
}

/// The driver of the shared memory. `local_ranks` are the host's processes, in their order.
pub(crate) fn driver<O: Object>(
    mut shm: SharedMemory,
    rank: NodeId,
    (session, seed): (u64, u64),
    local_ranks: &[NodeId],
) -> Driver<SharedMemory, BufferView<O>> {
    for (place, &mate) in (0..).zip(local_ranks) {
        shm.peer(mate, &NodeAddress::Number(place));
    }
    let mut scheme = Scheme::auto().copied(COPY_MAX);
    scheme.window = WINDOW;
    scheme.feedback.turn = Duration::ZERO;
    scheme.feedback.spacing_min = Duration::ZERO;
    scheme.detect.tail_min = TAIL;
    scheme.repair.how = How::Cheaper;
    scheme.repair.nack_delay = Duration::ZERO;
    let config = Config {
        unexpected_max: HOLD,
        // Memory needs no pacing: the window of a slow receiver closes.
        rate: Some(u64::MAX),
        ..net::node_config(rank, session, scheme, PAYLOAD, &shm)
    };
    Driver::new(Node::new(config, seed), shm)
}
