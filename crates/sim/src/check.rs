//! The judge: looks only at what crosses the border of a node (datagrams, events, bytes written)
//! and complains about what must not be.
//!
//! The judge knows what the scenario has asked of each host (streams, operations, posts, removals)
//! and how far each object has come, and checks every datagram and event against that. It reports
//! what it finds to [`World::complain`], which keeps the first complaint.

mod declines;

use std::collections::BTreeMap;
use std::rc::Rc;

use fabricast::proto::limits::{BLOCK_PACKETS, FIRST_PACKETS, XOR_RECEIVERS_MAX};
use fabricast::proto::scheme::{Checksum, FeedbackTopology, How};
use fabricast::proto::wire::{self, Data, Feedback, Frame, Origin, Parity, XorRepair, flag};
use fabricast::proto::{Admission, Dest, Event, GroupId, NodeId, OpId, Seq, Session, Slot};

use crate::object::{Progress, World, content_of, packets_of, shift, window};
use crate::scenario::{Scenario, SendsBy};
use crate::transport::Numbering;

/// A receiver of a stream.
#[derive(Debug)]
struct Receiver {
    host: u32,
    /// The receiver's slot, if it has joined later.
    slot: Option<Slot>,
    /// The first operation that the receiver gets.
    from: usize,
    /// Objects that the receiver has posted, in order, from that one on.
    posted: Vec<Rc<Progress>>,
    /// Operations that the receiver declines, and how many of their packets have been sent for it
    /// alone since its root heard that.
    declined: BTreeMap<usize, Option<u32>>,
    /// Packets of the stream that the receiver has acknowledged.
    told: u64,
    /// The first operation that the receiver has not acknowledged completely.
    told_op: usize,
    /// The largest right edge of the advertised window. Before the first feedback it is what the
    /// sender may send unheard.
    limit: u64,
    /// Nobody waits for the receiver any more.
    excused: bool,
}

/// Broadcasts of one root to one group.
#[derive(Debug)]
struct Stream {
    root: u32,
    lens: Vec<u64>,
    /// Payload of the packets of each operation.
    payload_sizes: Vec<u32>,
    /// Where the content of each operation begins in the table of all content; empty if the stream
    /// is part of a baseline, whose content is the message's.
    contents: Vec<usize>,
    /// Packets before each operation; the last entry is the number of all packets.
    starts: Rc<[u64]>,
    /// Operations that the root has been told to send.
    begun: usize,
    /// Sequence number of the stream's first packet.
    first: Seq,
    receivers: Vec<Receiver>,
    /// When a packet was last retransmitted, and to which node (`None`: to the group).
    repaired: BTreeMap<(u64, Option<NodeId>), u64>,
    /// Retransmissions.
    repairs: u64,
    /// Retransmissions that repeat another so soon that nobody can have asked for them.
    idle_repairs: u64,
    /// Retransmissions to the group when no receiver was left that could take them.
    late_repairs: u32,
    /// Packets to receivers that have left.
    late_data: u32,
    /// Per host: its index among the receivers.
    place: Vec<Option<u32>>,
}

impl Receiver {
    /// A receiver that gets the operations from `from` on, whose first packet is `first`. The
    /// sender may send it the packets before `limit` unheard.
    fn new(host: u32, from: usize, first: u64, limit: u64) -> Receiver {
        Receiver {
            host,
            slot: None,
            from,
            posted: Vec::new(),
            declined: BTreeMap::new(),
            told: first,
            told_op: from,
            limit,
            excused: false,
        }
    }

    /// How far the receiver is with an operation, if it has posted it.
    fn progress(&self, number: usize) -> Option<&Rc<Progress>> {
        self.posted.get(number.checked_sub(self.from)?)
    }

    /// The number of operations that are posted, with those before the first.
    fn posted_end(&self) -> usize {
        self.from + self.posted.len()
    }
}

impl Stream {
    fn total(&self) -> u64 {
        self.starts[self.lens.len()]
    }

    /// The operation that a packet belongs to.
    fn op_of(&self, index: u64) -> usize {
        self.starts.partition_point(|&at| at <= index) - 1
    }

    /// Index in the stream of the packet with this sequence number; a number before the stream's
    /// start yields an index beyond its end.
    fn index(&self, seq: Seq) -> u64 {
        u64::from(seq.0.wrapping_sub(self.first.0))
    }
}

/// The judge of one run.
#[derive(Debug)]
pub(crate) struct Judge {
    world: Rc<World>,
    numbering: Numbering,
    session: Session,
    datagram_max: usize,
    unexpected_max: u64,
    /// The root repairs for whole sub-trees and cannot know which receivers are ready.
    trees: bool,
    how: How,
    /// Shortest time after which an answer can come back, in nanoseconds.
    round_trip_ns: u64,
    streams: Vec<Stream>,
    /// Per group: its streams.
    of_group: Vec<Vec<usize>>,
    /// Per group: whether it has just two members.
    pairs: Vec<bool>,
    /// Nodes may send what is for a group to each member, ready or not.
    copies: bool,
    /// Per host: peers that it was told are gone, and datagrams sent to each since.
    removed: Vec<Vec<(NodeId, u32)>>,
    /// One of the receivers makes up its feedback.
    lied_to: bool,
    checksum: Checksum,
}

impl Judge {
    pub(crate) fn new(
        scenario: &Scenario,
        numbering: Numbering,
        session: Session,
        world: Rc<World>,
    ) -> Judge {
        let changes = scenario.groups_that_change();
        let mut of_group = vec![Vec::new(); scenario.groups.len()];
        let mut streams = Vec::new();
        for (number, plan) in scenario.streams.iter().enumerate() {
            let group = &scenario.groups[plan.group];
            of_group[plan.group].push(streams.len());
            let (mut starts, mut payload_sizes) = (vec![0], Vec::new());
            for &len in &plan.lens {
                let payload_size = scenario.payload_size(plan.group, len);
                starts.push(starts[starts.len() - 1] + packets_of(len, payload_size));
                payload_sizes.push(payload_size);
            }
            let content = |op| shift(content_of(scenario.seed, number, op));
            let contents = match scenario.baseline {
                None => (0..plan.lens.len()).map(content).collect(),
                Some(_) => Vec::new(),
            };
            // Where receivers report for others, the sender must have heard the receivers.
            let unheard = match scenario.scheme.topology {
                FeedbackTopology::Direct => scenario.unexpected_max.min(FIRST_PACKETS),
                FeedbackTopology::Coroots(_) | FeedbackTopology::Tree(_) => 0,
            };
            let mut receivers = Vec::new();
            let mut place = vec![None; scenario.hosts];
            for &host in group.members.iter().filter(|m| **m != plan.root) {
                place[host] = Some(receivers.len() as u32);
                receivers.push(Receiver::new(host as u32, 0, 0, unheard.into()));
            }
            streams.push(Stream {
                root: plan.root as u32,
                payload_sizes,
                lens: plan.lens.clone(),
                contents,
                starts: starts.into(),
                begun: 0,
                first: Seq(group.start),
                receivers,
                repaired: BTreeMap::new(),
                repairs: 0,
                idle_repairs: 0,
                late_repairs: 0,
                late_data: 0,
                place,
            });
        }
        Judge {
            world,
            numbering,
            session,
            datagram_max: scenario.datagram_max(),
            unexpected_max: u64::from(scenario.unexpected_max),
            trees: matches!(scenario.scheme.topology, FeedbackTopology::Tree(_)),
            how: scenario.scheme.repair.how,
            round_trip_ns: 4 * scenario.topology.host.delay.as_nanos() as u64,
            streams,
            of_group,
            pairs: scenario
                .groups
                .iter()
                .enumerate()
                .map(|(g, plan)| plan.members.len() == 2 && !changes.contains(&g))
                .collect(),
            copies: scenario
                .readdressed
                .iter()
                .any(|r| r.by == SendsBy::Nothing),
            removed: vec![Vec::new(); scenario.hosts],
            lied_to: false,
            checksum: scenario.scheme.checksum,
        }
    }

    /// Notes that the root of `stream` has been told to send its next object.
    pub(crate) fn begun(&mut self, stream: usize) {
        self.streams[stream].begun += 1;
    }

    /// Notes that `host` lies from now on, so that the judge ignores what others send for it.
    pub(crate) fn lies(&mut self, host: u32) {
        self.lied_to = true;
        for s in &mut self.streams {
            let mut receivers = s.receivers.iter_mut();
            if let Some(r) = receivers.find(|r| r.host == host) {
                r.excused = true;
            }
        }
    }

    /// Notes that the root has admitted a host, which gets the operations from `from` on.
    pub(crate) fn admitted(
        &mut self,
        (stream, host, from): (usize, u32, usize),
        admission: Admission,
    ) {
        let s = &mut self.streams[stream];
        let first = s.starts[from];
        s.place[host as usize] = Some(s.receivers.len() as u32);
        s.receivers.push(Receiver {
            slot: Some(admission.slot),
            ..Receiver::new(host, from, first, first)
        });
        if s.index(admission.first) != first {
            let root = s.root;
            self.wrong(root, || {
                format!("host {host} is to begin with {:?}", admission.first)
            });
        }
    }

    /// Notes that the root has removed a host.
    pub(crate) fn left(&mut self, stream: usize, host: u32) {
        if let Some(r) = self.receiver(stream, host) {
            r.excused = true;
        }
    }

    /// Notes that a receiver has posted its next object.
    pub(crate) fn posted(&mut self, stream: usize, host: u32, progress: Rc<Progress>) {
        if let Some(r) = self.receiver(stream, host) {
            r.posted.push(progress);
        }
    }

    /// Notes that `host` has been told that `peer` is gone.
    pub(crate) fn removed(&mut self, host: u32, peer: u32) {
        let node = self.numbering.node(peer);
        self.removed[host as usize].push((node, 0));
        for s in &mut self.streams {
            if s.root == host {
                for r in s.receivers.iter_mut().filter(|r| r.host == peer) {
                    r.excused = true;
                }
            }
        }
    }

    fn is_removed(&self, host: u32, node: NodeId) -> bool {
        self.removed[host as usize].iter().any(|r| r.0 == node)
    }

    fn receiver(&mut self, stream: usize, host: u32) -> Option<&mut Receiver> {
        let s = &mut self.streams[stream];
        let place = s.place[host as usize]?;
        s.receivers.get_mut(place as usize)
    }

    fn stream_of(&self, group: GroupId, root: NodeId) -> Option<usize> {
        let host = self.numbering.host(root)?;
        self.of_group
            .get((group.0 as usize).checked_sub(GROUP_FIRST)?)?
            .iter()
            .copied()
            .find(|&s| self.streams[s].root == host)
    }

    fn wrong(&self, host: u32, what: impl FnOnce() -> String) {
        let node = self.numbering.node(host);
        self.world
            .complain(|| format!("n{} (host {host}): {}", node.0, what()));
    }

    /// Checks a datagram that a node sends.
    pub(crate) fn departs(&mut self, host: u32, dest: Dest, bytes: &[u8]) {
        if bytes.len() > self.datagram_max {
            self.wrong(host, || format!("a datagram of {} bytes", bytes.len()));
        }
        let datagram = match wire::decode(bytes) {
            Ok(d) => d,
            Err(e) => return self.wrong(host, || format!("sends what nobody can read: {e}")),
        };
        if datagram.header.session != self.session
            || datagram.header.source != self.numbering.node(host)
        {
            self.wrong(host, || "sends under another name".into());
        }
        if let Dest::Node(n) = dest
            && let Some(gone) = self.removed[host as usize].iter_mut().find(|r| r.0 == n)
        {
            // A batch may have been on its way to the transport, which drops the datagram.
            gone.1 += 1;
            if gone.1 > BATCH_MAX {
                self.wrong(host, || {
                    format!("goes on sending to n{}, which is gone", n.0)
                });
            }
            return;
        }
        if let Dest::Address(g) = dest
            && self.pairs.get(g.0 as usize - GROUP_FIRST) == Some(&true)
        {
            self.wrong(host, || "multicasts in a group of two".into());
        }
        for frame in datagram.frames() {
            match frame {
                Frame::Data(d) => self.data(host, dest, &d),
                Frame::Xor(c) => self.coded(host, dest, &c),
                Frame::Parity(p) => self.parity(host, dest, &p),
                Frame::Feedback(f) => self.feedback(host, &f),
                Frame::Sync(s) => {
                    let Some(i) = self.stream_of(s.group, s.sender) else {
                        self.wrong(host, || "a sync of a stream that is not".into());
                        continue;
                    };
                    let next = self.streams[i].index(s.next);
                    if next > self.streams[i].starts[self.streams[i].begun] {
                        self.wrong(host, || format!("a sync of packet {next}, never sent"));
                    }
                }
                Frame::Probe(_)
                | Frame::ProbeAck(_)
                | Frame::Word(_)
                | Frame::Query(_)
                | Frame::Reply(_) => {}
            }
        }
    }

    fn data(&mut self, host: u32, dest: Dest, d: &Data<'_>) {
        let node = match d.origin {
            Origin::Source(_) => self.numbering.node(host),
            Origin::Relayed(root) => root,
        };
        let Some(i) = self.stream_of(d.group, node) else {
            return self.wrong(host, || "data of a stream that is not".into());
        };
        let s = &self.streams[i];
        let index = s.index(d.seq);
        let op = s.op_of(index);
        let start = match d.origin {
            Origin::Source(op) => s.index(op),
            Origin::Relayed(_) => s.starts[op],
        };
        if op >= s.begun || s.starts[op] != start {
            return self.wrong(host, || {
                format!("data of packet {index} under an operation at {start}")
            });
        }
        let payload_size = u64::from(s.payload_sizes[op]);
        let offset = (index - start) * payload_size;
        let len = (s.lens[op] - offset).min(payload_size);
        if (d.flags & flag::LAST != 0) != (index + 1 == s.starts[op + 1]) {
            return self.wrong(host, || {
                format!("packet {index} is wrongly said to be the last")
            });
        }
        if d.payload.len() as u64 != len {
            let n = d.payload.len();
            return self.wrong(host, || {
                format!("packet {index} carries {n} bytes, not {len}")
            });
        }
        if let Some(&content) = s.contents.get(op)
            && d.payload != window(content, offset, d.payload.len())
        {
            return self.wrong(host, || format!("packet {index} carries other bytes"));
        }
        let repair = d.flags & flag::REPAIR != 0;
        self.packet(host, dest, i, index, repair);
        self.unwanted(host, dest, i, op);
        if repair {
            self.repaired(host, dest, i, index);
        }
    }

    /// Checks an XOR repair packet: it repairs each of its sources, which belong to one operation.
    fn coded(&mut self, host: u32, dest: Dest, c: &XorRepair<'_>) {
        let node = self.numbering.node(host);
        let Some(i) = self.stream_of(c.group, node) else {
            return self.wrong(host, || {
                "an XOR repair packet of a stream that is not".into()
            });
        };
        let s = &self.streams[i];
        let (first, last) = (s.index(c.sources.first()), s.index(c.sources.last()));
        let op = s.op_of(first);
        let payload_size = s.payload_sizes[op];
        if op >= s.begun || op != s.op_of(last) || c.payload.len() as u32 != payload_size {
            return self.wrong(host, || {
                format!("an impossible XOR repair packet of {first} to {last}")
            });
        }
        for seq in c.sources.iter() {
            let index = self.streams[i].index(seq);
            self.packet(host, dest, i, index, true);
        }
    }

    /// Checks a parity packet: it repairs its code block, which belongs to one operation and has
    /// been sent completely.
    fn parity(&mut self, host: u32, dest: Dest, p: &Parity<'_>) {
        let Some(i) = self.stream_of(p.group, self.numbering.node(host)) else {
            return self.wrong(host, || "a parity packet of a stream that is not".into());
        };
        let s = &self.streams[i];
        let (first, packets) = (s.index(p.first), u64::from(p.packets));
        let (last, op) = (first + packets - 1, s.op_of(first));
        let begins = (first - s.starts[op]).is_multiple_of(u64::from(BLOCK_PACKETS));
        let ends = packets == u64::from(BLOCK_PACKETS) || last + 1 == s.starts[op + 1];
        let payload_size = s.payload_sizes[op];
        let end = match last + 1 == s.starts[op + 1] {
            true => s.lens[op] - (last - s.starts[op]) * u64::from(payload_size),
            false => 0,
        };
        let same = u64::from(p.end) == end && p.payload.len() as u32 == payload_size;
        let fits = begins && ends && same;
        let to_all = self.copies || matches!(dest, Dest::Address(_));
        if op >= s.begun || op != s.op_of(last) || !fits || !to_all {
            return self.wrong(host, || format!("impossible parity of {first} to {last}"));
        }
        self.packet(host, dest, i, first, true);
    }

    /// Checks packet `index` of stream `i`, sent alone or in an XOR repair packet.
    fn packet(&mut self, host: u32, dest: Dest, i: usize, index: u64, repair: bool) {
        if self.lied_to {
            return; // the packet may be for the liar
        }
        let s = &self.streams[i];
        let open = |r: &Receiver| index < r.limit;
        match dest {
            Dest::Node(n) => {
                let to = self.numbering.host(n);
                let place = to.and_then(|h| s.place[h as usize]);
                match place.map(|p| &s.receivers[p as usize]) {
                    None => self.wrong(host, || format!("data for n{}, no receiver", n.0)),
                    Some(r) if !open(r) && !self.trees && !self.copies => self.wrong(host, || {
                        format!("packet {index} for n{}, whose window is closed", n.0)
                    }),
                    Some(r) if r.excused => {
                        // A batch may have been on its way when the receiver was removed.
                        let s = &mut self.streams[i];
                        s.late_data += 1;
                        if s.late_data > BATCH_MAX {
                            self.wrong(host, || format!("goes on sending to n{}, which left", n.0));
                        }
                    }
                    Some(_) => {}
                }
            }
            Dest::Address(_) if repair => {
                if !s.receivers.iter().any(|r| !r.excused && open(r)) {
                    // A batch may have been on its way when the last such receiver was removed.
                    let s = &mut self.streams[i];
                    s.late_repairs += 1;
                    if s.late_repairs > BATCH_MAX || !s.receivers.iter().any(|r| r.excused) {
                        self.wrong(host, || format!("packet {index} repaired for nobody"));
                    }
                }
            }
            Dest::Address(_) => {}
        }
    }

    /// Counts a retransmission. (An XOR repair packet that repeats a packet may do so for another
    /// receiver, so it is not counted.)
    fn repaired(&mut self, host: u32, dest: Dest, i: usize, index: u64) {
        let to = match dest {
            Dest::Node(n) => Some(n),
            Dest::Address(_) => None,
        };
        let now = self.world.now_ns.get();
        let s = &mut self.streams[i];
        let before = s.repaired.insert((index, to), now);
        s.repairs += 1;
        s.idle_repairs += u64::from(before.is_some_and(|t| now < t + self.round_trip_ns));
        // When the sender counts losses by code blocks, it remembers only to whom it last sent a
        // packet.
        let blocks = match self.how {
            How::Coded => s.receivers.len() > XOR_RECEIVERS_MAX,
            how => how == How::Parity,
        };
        // A member that changes paths may be sent again what is still on its way.
        if !blocks && s.idle_repairs > 100 && s.idle_repairs * 3 > s.repairs {
            let (n, of) = (s.idle_repairs, s.repairs);
            self.wrong(host, || {
                format!("{n} of {of} repairs repeated before anybody can have asked again")
            });
        }
    }

    fn feedback(&mut self, host: u32, f: &Feedback<'_>) {
        let Some(i) = self.stream_of(f.group, f.sender) else {
            // A receiver may send feedback about a stream that its root has not begun, but not
            // about a stream that cannot exist.
            return self.wrong(host, || "feedback about a stream that is not".into());
        };
        let s = &self.streams[i];
        let (cum, limit, high) = (s.index(f.cum), s.index(f.limit), s.index(f.high));
        let (starts, total, begun) = (Rc::clone(&s.starts), s.total(), s.starts[s.begun]);
        let (hold, trees) = (self.unexpected_max, self.trees);
        let Some(r) = self.receiver(i, host) else {
            return self.wrong(host, || "feedback from a host that receives nothing".into());
        };
        if f.slot != r.slot {
            return; // the host wrote it before it left and came back
        }
        if cum < r.told && f.flags & flag::PIGGYBACKED != 0 {
            return; // the data packet that carried the feedback was late
        }
        let posted_end = starts[r.posted_end()];
        let mut problem = None;
        if cum < r.told || cum > total {
            problem = Some(format!("says {cum} after {}", r.told));
        } else if high > begun.max(cum) {
            problem = Some(format!("has heard of packet {high}, and {begun} exist"));
        } else if limit > posted_end.max(cum) + hold && !trees {
            problem = Some(format!(
                "would take up to {limit}, with {posted_end} posted and {hold} to hold"
            ));
        } else {
            r.told = cum;
            while let Some(p) = r.progress(r.told_op)
                && starts[r.told_op + 1] <= cum
            {
                if !p.whole() && !p.failed.get() {
                    problem = Some(format!("acknowledges operation {} early", r.told_op));
                }
                r.told_op += 1;
            }
            let rest = cum - starts[r.told_op].min(cum);
            let placed = r.progress(r.told_op).map_or(0, |p| {
                if p.failed.get() {
                    p.packets.get()
                } else {
                    p.prefix.get()
                }
            });
            if rest > placed {
                problem = Some(format!(
                    "acknowledges {rest} packets of operation {}, {placed} are placed",
                    r.told_op
                ));
            }
        }
        r.limit = r.limit.max(limit);
        if let Some(what) = problem {
            self.wrong(host, || what);
        }
    }

    /// Checks an event that a node reports. `what` is the operation that the event is about, if
    /// any.
    pub(crate) fn event(&mut self, host: u32, event: Event, what: Option<(usize, usize, bool)>) {
        match event {
            Event::Complete(op) => match what {
                Some((stream, number, true)) => self.root_complete(host, stream, number),
                Some((stream, number, false)) => {
                    let whole = self
                        .receiver(stream, host)
                        .and_then(|r| r.progress(number).cloned())
                        .is_some_and(|p| p.whole());
                    if !whole {
                        self.wrong(host, || {
                            format!("operation {number} of stream {stream} complete too early")
                        });
                    }
                }
                None => self.unknown(host, op),
            },
            Event::Failed(op) | Event::Mismatch(op) => {
                let Some((stream, number, root)) = what else {
                    return self.unknown(host, op);
                };
                let sender = self.numbering.node(self.streams[stream].root);
                let abandoned = self.is_removed(host, sender);
                let failed = !root
                    && self
                        .receiver(stream, host)
                        .and_then(|r| r.progress(number).cloned())
                        .is_some_and(|p| p.failed.get());
                if !failed && !abandoned {
                    self.wrong(host, || format!("{event:?} without a reason"));
                }
            }
            Event::Path { node, .. } | Event::Slow { node, .. } | Event::Outpaced { node, .. } => {
                if self.is_removed(host, node) {
                    self.wrong(host, || format!("{event:?} about a peer that is gone"));
                }
            }
            // What is said of addresses, only runs with a manager hear.
            Event::Proven(_)
            | Event::Arrived(_)
            | Event::AddressSilent { .. }
            | Event::AddressProven { .. } => {}
        }
    }

    fn unknown(&self, host: u32, op: OpId) {
        self.wrong(host, || {
            format!("an event of operation {}, unknown or over", op.0)
        });
    }

    fn root_complete(&mut self, host: u32, stream: usize, number: usize) {
        let late = self.streams[stream]
            .receivers
            .iter()
            .find(|r| {
                !r.excused
                    && r.from <= number
                    && !r
                        .progress(number)
                        .is_some_and(|p| p.whole() || p.failed.get())
            })
            .map(|r| r.host);
        if let Some(late) = late {
            self.wrong(host, || {
                format!("operation {number} of stream {stream} complete, host {late} lacks bytes")
            });
        }
    }
}

/// Datagrams that a driver may have taken from its node and not yet sent.
const BATCH_MAX: u32 = 64;

/// Number of the first group: not zero, so that no code takes a default value for a group.
pub(crate) const GROUP_FIRST: usize = 10;
