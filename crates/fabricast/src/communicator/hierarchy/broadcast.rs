//! Broadcasts to a group of which some members share a host and others do not. Each broadcast is
//! composed of one over the network, among the hosts' leaders, and one over shared memory on each
//! host (P4.9).
//!
//! ```text
//!   root ──near──► its host's leader ──far──► other leaders ──near──► their local ranks
//!        └──near──► its other local ranks
//! ```
//! A long broadcast is cut into segments, so that the network, the memory and the copies work at
//! the same time. Each segment is a broadcast of its own in either group. A process receives by one
//! network and sends by the other (a root that leads sends by both). Segments are posted and sent
//! in the order of the calls, each as soon as its bytes are here. Any thread that steps the engine
//! posts and sends them, so nothing stops while a leader computes. A leader passes the last
//! segments on from copies, so that its caller need not wait until its local ranks have them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use fabricast_proto::{GroupId, NodeId, OpId, Refused, Time};

use super::topology::{GroupTopology, Hosts};
use crate::communicator::limits::{COPIES_MAX, COPY_MAX};
use crate::communicator::networks::buffer::{BufferView, Segment};
use crate::communicator::networks::{Ended, Network, Networks};
use crate::object::{Divisible, Memory, Object};

/// Bytes of a segment. A message that its root copies has one segment only.
pub(crate) const SEGMENT: u64 = 128 << 10;
/// Shortest first segment, in bytes. The length of the first segment depends on the number of
/// segments. Otherwise members that pass different lengths would agree on all segments that both
/// have, and no member would notice. It works for differences of up to 1 GiB.
const FIRST_MIN: u64 = SEGMENT / 2;
const FIRST_STEP: u64 = 8;
/// Number of segments at the end of a broadcast that a process passes on from copies.
const TAIL: u32 = 4;
/// Largest number of segments that a group may have posted, and may be sending by each network.
const SEGMENTS_MAX: u32 = 64;
/// Largest number of broadcasts of a group that are not over.
const BROADCASTS_MAX: u32 = 1024;

/// What one process does in a broadcast: from where it receives, and by which networks it sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Route {
    /// The network and the node from which the bytes come; `None` at the root.
    input: Option<(Network, NodeId)>,
    near: bool,
    far: bool,
}

impl Route {
    pub fn new(hosts: &Hosts, topology: &GroupTopology, root: NodeId, me: NodeId) -> Route {
        let here = hosts.share(root, me);
        let leader = topology.leaders.iter().find(|&&l| hosts.share(l, root));
        let input = match (here, topology.leads) {
            _ if root == me => None,
            (true, _) => Some((Network::IntraNode, root)),
            (false, true) => leader.map(|&leader| (Network::InterNode, leader)),
            (false, false) => topology
                .local_ranks
                .first()
                .map(|&leader| (Network::IntraNode, leader)),
        };
        Route {
            input,
            near: topology.is_near() && (root == me || !here && topology.leads),
            far: topology.is_far() && here,
        }
    }

    fn goes(&self, network: Network) -> bool {
        match network {
            Network::IntraNode => self.near,
            Network::InterNode => self.far,
        }
    }

    fn outputs(&self) -> u32 {
        u32::from(self.near) + u32::from(self.far)
    }
}

/// What has become of a broadcast.
pub(crate) enum News<O> {
    /// The caller's part is over. `passes` is the number of bytes in copies that others still lack.
    Over {
        broadcast: u32,
        how: Ended,
        object: Option<O>,
        passes: Option<u64>,
    },
    /// All nodes to which the broadcast was sent have it, or will never get it.
    Gone(u32),
}

/// All composed broadcasts of a context.
pub(crate) struct HierarchicalBroadcasts<O> {
    next: u32,
    all: BTreeMap<u32, HierarchicalBroadcast<O>>,
    lines: BTreeMap<GroupId, Line>,
    /// Groups that may have a segment to post or to send.
    ready: BTreeSet<GroupId>,
    /// The broadcast and the segment that an operation carries.
    under_way: BTreeMap<(Network, OpId), (u32, u32)>,
    /// Operations that are over but whose parts a driver still holds.
    returning: Vec<((Network, OpId), (u32, u32))>,
    copied: u64,
    news: VecDeque<News<O>>,
}

/// The broadcasts that a group has still to begin, in the order of the calls.
#[derive(Default)]
struct Line {
    hierarchical: u32,
    receive: VecDeque<u32>,
    posted: u32,
    send: BTreeMap<Network, (VecDeque<u32>, u32)>,
}

struct HierarchicalBroadcast<O> {
    group: GroupId,
    route: Route,
    len: u64,
    segments: u32,
    bytes: Bytes<O>,
    posted: u32,
    sent: BTreeMap<Network, u32>,
    /// Segments that this process has still to receive or to send, counted for each network.
    left: u32,
    /// Operations that drivers hold.
    out: u32,
    /// Segments of the caller's object that are not back with all their bytes.
    lacking: u32,
    /// Bytes of the copies from which this process passes segments on.
    copied: u64,
    /// A caller waits for the broadcast.
    caller: bool,
    /// How the broadcast failed, if it cannot be completed.
    failed: Option<Ended>,
}

/// Where the bytes of a broadcast are.
enum Bytes<O> {
    /// At the root: one object for both networks.
    Shared(Arc<O>),
    /// At the root: a copy. The caller has its object back.
    Copy(Arc<Memory>),
    /// At a receiver: the segments of its object.
    Cut(Vec<Piece<O>>),
}

/// A segment of an object that this process receives.
struct Piece<O> {
    /// The caller's memory for the segment; `None` while a driver holds it.
    object: Option<O>,
    /// The segment's bytes have arrived.
    here: bool,
    /// A copy that is passed on instead of the segment.
    copy: Option<Arc<Memory>>,
}

impl<O: Divisible> HierarchicalBroadcast<O> {
    /// The view from which a segment is sent, if its bytes are here.
    fn source(&mut self, segment: u32) -> Option<BufferView<O>> {
        let offset = start_of(self.len, segment);
        let len = match segment + 1 == self.segments {
            true => self.len - offset,
            false => start_of(self.len, segment + 1) - offset,
        };
        match &mut self.bytes {
            Bytes::Shared(whole) => {
                Some(BufferView::Shared(whole.clone(), Segment { offset, len }))
            }
            Bytes::Copy(copy) => Some(BufferView::Copy(copy.clone(), Segment { offset, len })),
            Bytes::Cut(pieces) => {
                let piece = &mut pieces[segment as usize];
                match &piece.copy {
                    Some(copy) => Some(BufferView::Copy(copy.clone(), Segment { offset: 0, len })),
                    None if piece.here => piece.object.take().map(BufferView::Own),
                    None => None,
                }
            }
        }
    }

    /// The memory into which a segment is received.
    fn room(&mut self, segment: u32) -> Option<BufferView<O>> {
        match &mut self.bytes {
            Bytes::Cut(pieces) => pieces[segment as usize].object.take().map(BufferView::Own),
            Bytes::Shared(_) | Bytes::Copy(_) => None,
        }
    }

    /// Takes a part back that a driver refused.
    fn put(&mut self, segment: u32, part: BufferView<O>) {
        if let (Bytes::Cut(pieces), Some(object)) = (&mut self.bytes, part.own()) {
            pieces[segment as usize].object = Some(object);
        }
    }

    /// Takes a segment that was received. If it is one of the last and this process passes it on,
    /// it is copied, provided that the copy has at most `room` bytes.
    fn came(&mut self, segment: u32, part: BufferView<O>, room: u64) {
        let passes = self.route.outputs() > 0;
        let last = segment + TAIL >= self.segments;
        if let (Bytes::Cut(pieces), Some(object)) = (&mut self.bytes, part.own()) {
            let piece = &mut pieces[segment as usize];
            if passes && last && object.len() <= room {
                piece.copy = Some(Arc::new(copy_of(&object)));
                self.copied += object.len();
            }
            // A segment that is passed on without a copy comes back later.
            self.lacking -= u32::from(!passes || piece.copy.is_some());
            (piece.object, piece.here) = (Some(object), self.failed.is_none());
        }
    }

    /// Takes a segment back that was passed on.
    fn passed(&mut self, segment: u32, part: BufferView<O>) {
        if let (Bytes::Cut(pieces), Some(object)) = (&mut self.bytes, part.own()) {
            pieces[segment as usize].object = Some(object);
            self.lacking -= 1;
        }
    }

    /// The caller's object, if all of it is here.
    fn whole(&mut self) -> Option<O> {
        match &mut self.bytes {
            Bytes::Shared(_) => match std::mem::replace(&mut self.bytes, Bytes::Cut(Vec::new())) {
                Bytes::Shared(whole) => Arc::into_inner(whole),
                Bytes::Copy(_) | Bytes::Cut(_) => None,
            },
            Bytes::Copy(_) => None,
            Bytes::Cut(pieces) => {
                let mut objects = pieces.iter_mut().map(|piece| piece.object.take());
                let first = objects.next().flatten()?;
                objects.try_fold(first, |mut whole, object| {
                    whole.append(object?);
                    Some(whole)
                })
            }
        }
    }
}

impl<O: Divisible> HierarchicalBroadcasts<O> {
    pub fn new() -> HierarchicalBroadcasts<O> {
        HierarchicalBroadcasts {
            next: 0,
            all: BTreeMap::new(),
            lines: BTreeMap::new(),
            ready: BTreeSet::new(),
            under_way: BTreeMap::new(),
            returning: Vec::new(),
            copied: 0,
            news: VecDeque::new(),
        }
    }

    /// Whether the group accepts one more broadcast.
    pub fn has_room(&self, group: GroupId) -> bool {
        let line = self.lines.get(&group);
        line.is_none_or(|l| l.hierarchical < BROADCASTS_MAX)
    }

    /// Adds a broadcast, which [`HierarchicalBroadcasts::advance`] begins. With `copy` the root
    /// sends a copy: the object comes back at once, and there is no [`News::Over`].
    pub fn add(&mut self, group: GroupId, route: Route, object: O, copy: bool) -> (u32, Option<O>) {
        let id = self.next;
        self.next = self.next.wrapping_add(1);
        let len = object.len();
        let segments = match len <= u64::from(COPY_MAX) {
            true => 1,
            false => segments_of(len),
        };
        let (bytes, back) = match route.input {
            None if copy => (Bytes::Copy(Arc::new(copy_of(&object))), Some(object)),
            None => (Bytes::Shared(Arc::new(object)), None),
            Some(_) => (Bytes::Cut(cut(object, segments)), None),
        };
        let line = self.lines.entry(group).or_default();
        line.hierarchical += 1;
        if route.input.is_some() {
            line.receive.push_back(id);
        }
        for network in Network::BOTH
            .into_iter()
            .filter(|&network| route.goes(network))
        {
            line.send.entry(network).or_default().0.push_back(id);
        }
        let broadcast = HierarchicalBroadcast {
            group,
            route,
            len,
            segments,
            bytes,
            posted: 0,
            sent: BTreeMap::new(),
            left: segments * (u32::from(route.input.is_some()) + route.outputs()),
            out: 0,
            lacking: segments,
            copied: 0,
            caller: !copy,
            failed: None,
        };
        self.all.insert(id, broadcast);
        self.ready.insert(group);
        (id, back)
    }

    /// Takes note that a driver has ended an operation. Returns the composed broadcast to which the
    /// operation belongs, if it belongs to one.
    pub fn heed(&mut self, op: (Network, OpId), how: Ended) -> Option<u32> {
        let whose = self.under_way.remove(&op)?;
        self.returning.push((op, whose));
        if how != Ended::Complete {
            self.fail(whose.0, how);
        }
        Some(whose.0)
    }

    /// Ends all broadcasts of a group. Their callers learn of it once the drivers have returned the
    /// callers' memory.
    pub fn end(&mut self, group: GroupId, how: Ended) {
        self.lines.remove(&group);
        self.ready.remove(&group);
        let mut over = Vec::new();
        for (&id, broadcast) in self.all.iter_mut().filter(|(_, j)| j.group == group) {
            broadcast.failed.get_or_insert(how);
            if broadcast.out == 0 {
                over.push(id);
            }
        }
        let all = &self.all;
        let gone = |whose: &(u32, u32)| all.get(&whose.0).is_some_and(|j| j.failed.is_some());
        let ops: Vec<_> = self
            .under_way
            .iter()
            .filter(|(_, w)| gone(w))
            .map(|(&op, &w)| (op, w))
            .collect();
        for (op, whose) in ops {
            self.under_way.remove(&op);
            self.returning.push((op, whose));
        }
        over.into_iter().for_each(|id| self.finish(id));
    }

    /// Takes note that another member calls something else than this operation. Its broadcast,
    /// which the function returns, will not be completed.
    pub fn mismatch(&mut self, op: (Network, OpId)) -> Option<u32> {
        let broadcast = self.under_way.get(&op)?.0;
        self.fail(broadcast, Ended::Mismatch);
        Some(broadcast)
    }

    fn fail(&mut self, broadcast: u32, how: Ended) {
        if let Some(broadcast) = self.all.get_mut(&broadcast) {
            broadcast.failed.get_or_insert(how);
        }
    }

    /// The next thing that has happened to a broadcast and was not reported yet.
    pub fn news(&mut self) -> Option<News<O>> {
        self.news.pop_front()
    }

    /// Posts and sends all segments that can be; returns whether there were any.
    pub fn advance(&mut self, now: Time, networks: &mut Networks<O>) -> bool {
        if self.all.is_empty() {
            return false;
        }
        self.take_back(networks);
        let mut begun = false;
        for group in std::mem::take(&mut self.ready) {
            begun |= self.receive(now, networks, group) | self.send(now, networks, group);
        }
        begun
    }

    /// Posts the next segments of a group.
    fn receive(&mut self, now: Time, networks: &mut Networks<O>, group: GroupId) -> bool {
        let mut begun = false;
        while let Some(line) = self
            .lines
            .get_mut(&group)
            .filter(|l| l.posted < SEGMENTS_MAX)
            && let Some(&id) = line.receive.front()
            && let Some(broadcast) = self.all.get_mut(&id)
            && let Some(input) = broadcast.route.input
            && let Some(room) = broadcast.room(broadcast.posted)
        {
            match networks.post(input, now, group, room) {
                Ok(op) => {
                    self.under_way.insert((input.0, op), (id, broadcast.posted));
                    (broadcast.posted, broadcast.out) = (broadcast.posted + 1, broadcast.out + 1);
                    line.posted += 1;
                    if broadcast.posted == broadcast.segments {
                        line.receive.pop_front();
                    }
                    begun = true;
                }
                Err((refused, part)) => {
                    broadcast.put(broadcast.posted, part);
                    self.refused(group, refused);
                    break;
                }
            }
        }
        begun
    }

    /// Sends the next segments of a group whose bytes are here.
    fn send(&mut self, now: Time, networks: &mut Networks<O>, group: GroupId) -> bool {
        let mut begun = false;
        for network in Network::BOTH {
            while let Some(line) = self.lines.get_mut(&group)
                && let Some((queue, sending)) = line.send.get_mut(&network)
                && *sending < SEGMENTS_MAX
                && let Some(&id) = queue.front()
                && let Some(broadcast) = self.all.get_mut(&id)
                && let segment = broadcast.sent.get(&network).copied().unwrap_or(0)
                && let Some(part) = broadcast.source(segment)
            {
                match networks.lend(network, now, group, part) {
                    Ok(op) => {
                        self.under_way.insert((network, op), (id, segment));
                        broadcast.sent.insert(network, segment + 1);
                        broadcast.out += 1;
                        *sending += 1;
                        if segment + 1 == broadcast.segments {
                            queue.pop_front();
                        }
                        begun = true;
                    }
                    Err((refused, part)) => {
                        broadcast.put(segment, part);
                        self.refused(group, refused);
                        break;
                    }
                }
            }
        }
        begun
    }

    /// Takes note that a driver refused an operation. If the driver is busy, the group is tried
    /// again. Any other refusal means that the group is gone, and the broadcast's end follows.
    fn refused(&mut self, group: GroupId, refused: Refused) {
        if refused == Refused::Busy {
            self.ready.insert(group);
        }
    }

    /// Takes back the parts of operations that are over.
    fn take_back(&mut self, networks: &mut Networks<O>) {
        let mut waiting = std::mem::take(&mut self.returning);
        waiting.retain(|&(op, (id, segment))| {
            let Some(part) = networks.take(op) else {
                return true;
            };
            self.returned(op.0, id, segment, part);
            false
        });
        self.returning.append(&mut waiting);
    }

    fn returned(&mut self, network: Network, id: u32, segment: u32, part: BufferView<O>) {
        let Some(broadcast) = self.all.get_mut(&id) else {
            return;
        };
        let came = broadcast
            .route
            .input
            .is_some_and(|input| input.0 == network);
        broadcast.out -= 1;
        broadcast.left -= 1;
        if came {
            let before = broadcast.copied;
            broadcast.came(segment, part, COPIES_MAX - self.copied.min(COPIES_MAX));
            self.copied += broadcast.copied - before;
        } else {
            broadcast.passed(segment, part);
        }
        if broadcast.failed.is_some() {
            if broadcast.out == 0 {
                self.finish(id);
            }
            return;
        }
        if let Some(line) = self.lines.get_mut(&broadcast.group) {
            match line.send.get_mut(&network) {
                Some((_, sending)) if !came => *sending -= 1,
                _ => line.posted -= 1,
            }
            self.ready.insert(broadcast.group);
        }
        if broadcast.left == 0 {
            self.finish(id);
        } else if broadcast.lacking == 0 && broadcast.caller {
            broadcast.caller = false;
            let object = broadcast.whole();
            self.news.push_back(News::Over {
                broadcast: id,
                how: Ended::Complete,
                object,
                passes: Some(broadcast.copied),
            });
        }
    }

    fn finish(&mut self, id: u32) {
        let Some(mut broadcast) = self.all.remove(&id) else {
            return;
        };
        if let Some(line) = self.lines.get_mut(&broadcast.group) {
            line.hierarchical -= 1;
        }
        self.copied -= broadcast.copied;
        if !broadcast.caller {
            return self.news.push_back(News::Gone(id));
        }
        let how = broadcast.failed.unwrap_or(Ended::Complete);
        let object = match how {
            Ended::Complete => broadcast.whole(),
            Ended::Failed | Ended::Mismatch => None,
        };
        self.news.push_back(News::Over {
            broadcast: id,
            how,
            object,
            passes: None,
        });
    }
}

/// A copy of all bytes of an object that holds them in memory.
fn copy_of<O: Object>(object: &O) -> Memory {
    Memory::new(object.bytes(0, object.len() as u32).to_vec())
}

/// Length of the first of several segments, in bytes.
fn first_of(len: u64) -> u64 {
    let steps = (SEGMENT - FIRST_MIN) / FIRST_STEP;
    FIRST_MIN + FIRST_STEP * (len.div_ceil(SEGMENT) % steps)
}

/// Number of segments of an object that is too long to be copied.
fn segments_of(len: u64) -> u32 {
    match len <= SEGMENT {
        true => 1,
        false => 1 + (len - first_of(len)).div_ceil(SEGMENT) as u32,
    }
}

/// Offset at which a segment begins, in bytes.
fn start_of(len: u64, segment: u32) -> u64 {
    match segment.checked_sub(1) {
        None => 0,
        Some(before) => first_of(len) + u64::from(before) * SEGMENT,
    }
}

fn cut<O: Divisible>(mut object: O, segments: u32) -> Vec<Piece<O>> {
    let piece = |object| Piece {
        object: Some(object),
        here: false,
        copy: None,
    };
    let len = object.len();
    let starts = (1..segments).rev().map(|at| start_of(len, at));
    let mut pieces: Vec<_> = starts.map(|at| piece(object.split_off(at))).collect();
    pieces.push(piece(object));
    pieces.reverse();
    pieces
}
