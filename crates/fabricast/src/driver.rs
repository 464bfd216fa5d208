//! Joins one [`Node`] to one [`Transport`] and moves bytes where the node says.
//!
//! A driver never blocks and never reads a clock. Its owner calls [`Driver::step`] with the time,
//! and then waits (in [`Transport::wait`], or in the simulator's event queue) until [`Step::wake`].
//! The driver owns the objects of the operations under way, and gives each back when the node
//! releases it.

mod check;
mod code;
mod log;
mod outbox;
mod placing;
mod stored;
#[cfg(test)]
mod tests;
mod told;

use std::collections::{BTreeSet, VecDeque};
use std::io;

use fabricast_proto::wire::{self, Frame};
use fabricast_proto::{
    AddressId, Barrier, Command, Event, Extent, GroupId, Node, NodeId, OpId, Outcome, Output,
    Placement, Refused, Time, Token, XorExtents,
};
use rustc_hash::FxHashMap;

use self::code::Code;
use self::log::Log;
use self::outbox::Outbox;
use self::placing::{rebuild, tell_placed, write};
use self::stored::Stored;
pub use self::told::Join;
use self::told::Told;
use crate::object::Object;
use crate::transport::delayed::Delayed;
use crate::transport::{GroupAddress, Kept, News, Transport};

/// Largest number of batches that one step sends, so that it does not put receiving off for long.
const BATCHES_MAX: usize = 4;

/// Number of extents to which the payloads of one receive call belong, as a rule, at most, with any
/// losses and reordering.
const PLACED: usize = 64;

/// Largest number of bytes in the buffers of copies that are kept for the next copies. To free and
/// allocate memory for each copy costs more than the copying.
const SPARE_BYTES: usize = 4 << 20;
/// Largest number of buffers that are kept for the next copies.
const SPARES_MAX: usize = 64;

/// The result of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// Latest time for the next step; `None`: step only when something arrives or the waker is
    /// rung. If the time is not in the future, step again at once: there is more to do.
    pub wake: Option<Time>,
}

impl Step {
    /// Whether nothing is left to be done now. A receiver that gathers datagrams may pause only
    /// then: while more datagrams wait in the socket than one call hands up, each pause would limit
    /// the receiver to what one call does.
    pub fn is_idle(&self, now: Time) -> bool {
        self.wake.is_none_or(|at| at > now)
    }
}

/// Counters of a driver, since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Datagrams that could not be decoded.
    pub malformed: u64,
    /// Datagrams dropped because their checksum was wrong, or not the one agreed.
    pub corrupt: u64,
    /// Datagrams dropped because they do not come from the node that they name, or come from no
    /// node that is known here.
    pub foreign: u64,
    /// Bytes of payload copied into objects.
    pub written: u64,
    /// Datagrams counted as sent whose payload was not available: the object has failed or is gone,
    /// or did not have the payload for so long that other traffic needed the room.
    pub unread: u64,
}

/// A node, its transport and its objects.
pub struct Driver<T: Transport, O: Object> {
    node: Node,
    transport: T,
    // A small broadcast changes each of these tables once. Their keys are numbers that this node
    // has given away, so nobody can choose numbers that collide.
    objects: FxHashMap<OpId, Stored<O>>,
    done: FxHashMap<OpId, O>,
    held: FxHashMap<Token, Kept>,
    /// Operations whose objects have put bytes off. Only these have progress to report.
    later: BTreeSet<OpId>,
    events: VecDeque<Event>,
    told: Told,
    outbox: Outbox,
    /// Buffers of copies that are over, kept for the next copies.
    spare: Vec<Vec<u8>>,
    /// Extents whose outcome is known and that the node must still be told of.
    placed: Vec<(Extent, Outcome)>,
    /// Buffer for a packet that is being computed.
    sum: Vec<u8>,
    code: Code,
    log: Log,
    counters: Counters,
}

impl<T: Transport, O: Object> Drop for Driver<T, O> {
    /// Reports the retransmissions of the last second. The transport reads no object any more.
    fn drop(&mut self) {
        self.log.retransmissions(&self.node);
        self.transport.cancel();
    }
}

impl<T: Transport, O: Object> Driver<Delayed<T>, O> {
    /// The transport that delays wrap ([`Delayed::inner_mut`]): for simulators and tests.
    pub fn inner_mut(&mut self) -> &mut T {
        self.transport.inner_mut()
    }
}

impl<T: Transport, O: Object> Driver<T, O> {
    /// Drives `node` over `transport`. The packets of groups that `node` has already must fit in
    /// the transport's datagrams.
    pub fn new(node: Node, transport: T) -> Driver<T, O> {
        Driver {
            node,
            transport,
            objects: FxHashMap::default(),
            done: FxHashMap::default(),
            later: BTreeSet::new(),
            held: FxHashMap::default(),
            events: VecDeque::new(),
            told: Told::default(),
            outbox: Outbox::new(),
            spare: Vec::new(),
            placed: Vec::with_capacity(PLACED),
            sum: Vec::new(),
            code: Code::default(),
            log: Log::default(),
            counters: Counters::default(),
        }
    }

    /// The transport, to tell it of peers and groups and to wait in it. The type hides which one it
    /// is, so that nobody can put another one in its place: it may still read objects.
    pub fn transport(&mut self) -> &mut (dyn Transport + '_) {
        &mut self.transport
    }

    /// The transport, to make it fail.
    #[cfg(test)]
    pub fn net_mut(&mut self) -> &mut T {
        &mut self.transport
    }

    /// The transport, to read its counters.
    pub fn net(&self) -> &T {
        &self.transport
    }

    /// The node, to read its counters and members.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Counters since the start.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Begins to send to a multicast address, and with `receive` to receive what is sent there
    /// ([`Transport::join`]). Returns an error if the transport has refused at once. A later end is
    /// news ([`Driver::news`]).
    pub fn join(
        &mut self,
        id: AddressId,
        address: &GroupAddress,
        receive: bool,
    ) -> io::Result<Join> {
        self.transport.join(id, address, receive);
        self.told.hear(&mut self.transport);
        self.told.joined(id)
    }

    /// The next of what the transport has told, beside datagrams. What the owner does not read in
    /// time is forgotten.
    pub fn news(&mut self) -> Option<News> {
        self.told.next()
    }

    /// Gives up everything that is queued or posted. From now on nobody reads the objects, and the
    /// driver must not be stepped again.
    pub fn cancel(&mut self, now: Time) {
        self.transport.cancel();
        let node = &mut self.node;
        let gone = &mut |token| node.sent(now, token);
        self.outbox.give_up(self.transport.slots(), gone);
        self.outbox.complete(now, &mut self.transport, gone);
    }

    /// Gives the node a command that has no object. Refuses a group whose packets are longer than
    /// the datagrams of the transport ([`Refused::PayloadSize`]).
    pub fn command(&mut self, now: Time, command: Command) -> Result<(), Refused> {
        if let Command::GroupAdd { payload_size, .. } | Command::GroupJoin { payload_size, .. } =
            command
            && payload_size as usize + self.node.scheme().data_overhead()
                > self.transport.caps().datagram_max
        {
            return Err(Refused::PayloadSize);
        }
        let reported = Log::is_on().then(|| command.clone());
        self.node.command(now, command)?;
        reported.iter().for_each(Log::command);
        Ok(())
    }

    /// Sends `object` to all other members of `group`. The driver copies an object if the scheme
    /// says so ([`fabricast_proto::Scheme::copies`]), and returns it at once. The caller can take
    /// any other object back once all members have it ([`Driver::take`]). Refuses an object
    /// ([`Refused::Busy`]) while the window has no slots for its copy.
    pub fn bcast(
        &mut self,
        now: Time,
        group: GroupId,
        object: O,
    ) -> Result<(OpId, Option<O>), (Refused, O)> {
        let len = object.len();
        if !self.node.copies(group, len) {
            let op = self.lend(now, group, object, true)?;
            return Ok((op, None));
        }
        if !self.node.has_slots(group, len) {
            return Err((Refused::Busy, object));
        }
        self.copy(now, group, object)
    }

    /// Like [`Driver::bcast`], but copies the object whatever the scheme says, unless its bytes are
    /// not available at once.
    pub fn copy(
        &mut self,
        now: Time,
        group: GroupId,
        mut object: O,
    ) -> Result<(OpId, Option<O>), (Refused, O)> {
        let Some(copy) = Stored::copy(&mut object, &mut self.spare) else {
            let op = self.lend(now, group, object, true)?;
            return Ok((op, None));
        };
        // An empty object counts as awaited: its only packet requests ACKs.
        let len = object.len();
        let command = self.bcast_command(group, len, len == 0);
        match self.start(now, command, copy) {
            Ok(op) => Ok((op, Some(object))),
            Err((refused, copy)) => {
                if let Stored::Copy(copy) = copy {
                    keep(&mut self.spare, copy.into_bytes());
                }
                Err((refused, object))
            }
        }
    }

    /// Like [`Driver::bcast`], but never copies: the driver reads the object where it is until all
    /// members have it. `awaited` says whether a caller waits for that.
    pub fn lend(
        &mut self,
        now: Time,
        group: GroupId,
        object: O,
        awaited: bool,
    ) -> Result<OpId, (Refused, O)> {
        let command = self.bcast_command(group, object.len(), awaited);
        self.lends(now, command, object)
    }

    fn bcast_command(&self, group: GroupId, len: u64, awaited: bool) -> Command {
        // Where a packet takes a slot of the window, the next caller waits for it.
        let awaited = awaited || self.node.scheme().is_awaited(len);
        Command::Bcast {
            group,
            len,
            awaited,
        }
    }

    /// Receives the next object of `root` into `object`, which must have its length.
    pub fn post(
        &mut self,
        now: Time,
        group: GroupId,
        root: NodeId,
        object: O,
    ) -> Result<OpId, (Refused, O)> {
        let len = object.len();
        self.lends(
            now,
            Command::Post {
                group,
                sender: root,
                len,
            },
            object,
        )
    }

    /// Enters the next barrier of a group. [`Event::Complete`] reports that all members have
    /// entered.
    pub fn barrier(
        &mut self,
        now: Time,
        group: GroupId,
        algorithm: Barrier,
    ) -> Result<OpId, Refused> {
        self.enter(
            now,
            Command::Barrier {
                group,
                algorithm,
                held: false,
                awaited: true,
            },
        )
    }

    /// Like [`Driver::barrier`], but no caller waits for the end of the barrier. The node probes
    /// later when words do not arrive.
    pub fn barrier_unawaited(
        &mut self,
        now: Time,
        group: GroupId,
        algorithm: Barrier,
    ) -> Result<OpId, Refused> {
        self.enter(
            now,
            Command::Barrier {
                group,
                algorithm,
                held: false,
                awaited: false,
            },
        )
    }

    /// Like [`Driver::barrier`], but stops before the last round, which [`Event::Arrived`] reports,
    /// until [`Command::Release`].
    pub fn hold(&mut self, now: Time, group: GroupId, algorithm: Barrier) -> Result<OpId, Refused> {
        self.enter(
            now,
            Command::Barrier {
                group,
                algorithm,
                held: true,
                awaited: true,
            },
        )
    }

    fn enter(&mut self, now: Time, command: Command) -> Result<OpId, Refused> {
        match self.node.command(now, command)? {
            Some(op) => Ok(op),
            None => unreachable!("barriers are numbered"),
        }
    }

    /// Starts an operation on the caller's own object.
    fn lends(&mut self, now: Time, command: Command, object: O) -> Result<OpId, (Refused, O)> {
        self.start(now, command, Stored::Lent(object))
            .map_err(|(refused, stored)| match stored {
                Stored::Lent(object) => (refused, object),
                Stored::Copy(_) => unreachable!("it is what was given"),
            })
    }

    fn start(
        &mut self,
        now: Time,
        command: Command,
        object: Stored<O>,
    ) -> Result<OpId, (Refused, Stored<O>)> {
        match self.node.command(now, command) {
            Ok(Some(op)) => {
                self.objects.insert(op, object);
                Ok(op)
            }
            Ok(None) => unreachable!("bcast and post are numbered"),
            Err(refused) => Err((refused, object)),
        }
    }

    /// The next event of the last steps.
    pub fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The object of an operation that is over and that the node has released. The driver returns
    /// it once and keeps it until then, so a caller without use for it must take it, too.
    pub fn take(&mut self, op: OpId) -> Option<O> {
        self.done.remove(&op)
    }

    /// The object of an operation under way, unless it was copied.
    pub fn object(&self, op: OpId) -> Option<&O> {
        match self.objects.get(&op)? {
            Stored::Lent(object) => Some(object),
            Stored::Copy(_) => None,
        }
    }

    /// Receives, lets the node work, and sends. Never blocks.
    pub fn step(&mut self, now: Time) -> io::Result<Step> {
        let received = self.receive(now)?;
        self.advance(now, received > 0)
    }

    /// Like [`Driver::step`], but does not receive. Pass `received = true` if the caller has
    /// received and more datagrams may be queued.
    pub fn advance(&mut self, now: Time, received: bool) -> io::Result<Step> {
        self.told.hear(&mut self.transport);
        self.told.failure()?;
        self.progress(now);
        self.log.summary(now, &self.node);
        self.complete(now);
        for _ in 0..BATCHES_MAX {
            // What the transport refused goes first; until then the driver does not ask the node.
            let wait = match self.outbox.refused() {
                true => None,
                false => self.fill(now),
            };
            let freed = self.send(now)?;
            let wake = match wait {
                _ if self.outbox.refused() => None,
                // All slots are posted. The driver goes on when the transport has completed some.
                _ if !self.outbox.has_slot(self.transport.slots()) => None,
                // More may wait in the socket than one call hands up.
                Some(_) if received && !self.transport.is_drained() => Some(now),
                // An operation may have waited for the last of what has gone: ask the node again.
                Some(wake) if !freed => wake,
                _ => continue,
            };
            let wake = wake.into_iter().chain(self.transport.due()).min();
            return Ok(Step { wake });
        }
        let wake = Some(now);
        Ok(Step { wake })
    }

    /// Tells the node which payloads the transport reads no more. Returns whether there were any.
    fn complete(&mut self, now: Time) -> bool {
        if !self.outbox.is_awaiting() {
            return false;
        }
        let (node, mut freed) = (&mut self.node, false);
        self.outbox
            .complete(now, &mut self.transport, &mut |token| {
                node.sent(now, token);
                freed = true;
            });
        freed
    }

    fn receive(&mut self, now: Time) -> io::Result<usize> {
        let Driver {
            node,
            transport,
            objects,
            later,
            held,
            placed,
            sum,
            code,
            counters,
            ..
        } = self;
        let checksum = node.scheme().checksum;
        let received = transport.recv(now, &mut |arrival| {
            let Some(from) = arrival.from else {
                counters.foreign += 1;
                return;
            };
            let (arrived, bytes) = (arrival.at, arrival.bytes());
            let Ok(datagram) = wire::decode(bytes) else {
                counters.malformed += 1;
                return;
            };
            if !check::is_sound(checksum, bytes, &datagram) {
                counters.corrupt += 1;
                return;
            }
            if datagram.header.source != from {
                counters.foreign += 1;
                return;
            }
            let mut unexpected = None;
            for frame in datagram.frames() {
                let placement = node.packet(now, arrived, &datagram.header, &frame);
                let payload = match frame {
                    Frame::Data(data) => data.payload,
                    Frame::Xor(coded) => coded.payload,
                    Frame::Parity(parity) => parity.payload,
                    _ => continue,
                };
                let mut write = |objects: &mut _, extent, bytes: &[u8]| {
                    counters.written += bytes.len() as u64;
                    write(objects, extent, bytes, later, placed);
                };
                match placement {
                    Placement::Write(extent) => write(objects, extent, payload),
                    Placement::DecodeXor(extent, others) => {
                        match solve(objects, &others, payload, sum) {
                            true => write(objects, extent, &sum[..extent.len as usize]),
                            // At once, because this extent must not be used to decode the next
                            // packet.
                            false => node.placed(now, extent, Outcome::Corrupt),
                        }
                    }
                    Placement::CacheParity(parity) => code.keep(&parity, payload),
                    // As a rule a datagram has one payload at most.
                    Placement::Unexpected(token) if unexpected.is_some() => {
                        held.insert(token, Kept::copy(payload));
                    }
                    Placement::Unexpected(token) => {
                        let start = payload.as_ptr().addr() - bytes.as_ptr().addr();
                        unexpected = Some((token, start..start + payload.len()));
                    }
                    Placement::Discard => {}
                }
            }
            if let Some((token, part)) = unexpected {
                held.insert(token, arrival.keep(part));
            }
        })?;
        tell_placed(&mut self.node, &mut self.placed, now);
        Ok(received)
    }

    /// Tells the node what has become of bytes that objects had put off.
    fn progress(&mut self, now: Time) {
        let placed = &mut self.placed;
        for &op in &self.later {
            let Some(object) = self.objects.get_mut(&op) else {
                continue;
            };
            object.progress(&mut |offset, len, outcome| {
                placed.push((Extent { op, offset, len }, outcome));
            });
        }
        tell_placed(&mut self.node, &mut self.placed, now);
    }

    /// Asks the node what to do until a batch is full (`None`) or the node waits.
    fn fill(&mut self, now: Time) -> Option<Option<Time>> {
        while self.outbox.has_room(self.transport.slots()) {
            let mut head = self.outbox.head(self.transport.slots());
            // Many outputs are no datagram, and the head serves for the next one.
            let transmit = loop {
                match self.node.poll(now, &mut head) {
                    Output::Transmit(transmit) => break transmit,
                    Output::Place(token, extent) => {
                        if let Some(bytes) = self.held.remove(&token) {
                            let (objects, placed) = (&mut self.objects, &mut self.placed);
                            self.counters.written += bytes.len() as u64;
                            write(objects, extent, &bytes, &mut self.later, placed);
                            tell_placed(&mut self.node, placed, now);
                        }
                    }
                    Output::Discard(token) => _ = self.held.remove(&token),
                    Output::DecodeParity(block, lacking) => {
                        let placed = &mut self.placed;
                        let to = (&mut self.objects, &mut self.later, &mut *placed);
                        self.counters.written += rebuild(&mut self.code, &block, lacking, to);
                        tell_placed(&mut self.node, placed, now);
                    }
                    Output::DropParity(block) => self.code.forget(&block),
                    Output::Release(op) => {
                        self.outbox.released(op);
                        self.code.released(op);
                        self.later.remove(&op);
                        match self.objects.remove(&op) {
                            Some(Stored::Lent(object)) => _ = self.done.insert(op, object),
                            Some(Stored::Copy(copy)) => keep(&mut self.spare, copy.into_bytes()),
                            None => {}
                        }
                    }
                    Output::Event(event) => {
                        Log::event(&event);
                        self.events.push_back(event);
                    }
                    Output::Wait(until) => return Some(until),
                }
            };
            drop(head);
            self.outbox.push(transmit);
        }
        self.outbox.held_until().map(Some)
    }

    /// Sends what is queued, in its order, as far as the transport takes it and objects have its
    /// bytes. Returns whether payloads have gone; the node was told of them.
    fn send(&mut self, now: Time) -> io::Result<bool> {
        if self.outbox.is_empty() {
            return Ok(false);
        }
        let Driver {
            node,
            transport,
            objects,
            events,
            outbox,
            code,
            counters,
            ..
        } = self;
        let zero_copy = transport.caps().zero_copy;
        let slots = transport.slots();
        outbox.look(now, objects, code, (slots, zero_copy), &mut |op| {
            // The owner of the object knows why it failed; the operation cannot go on.
            events.push_back(Event::Failed(op));
        });
        outbox.seal(node.scheme().checksum, objects, transport.slots());
        let sent = outbox.send(now, objects, transport)?;
        counters.unread += outbox.lost() as u64;
        let mut freed = false;
        outbox.clear_out(sent, transport.slots(), &mut |token| {
            node.sent(now, token);
            freed = true;
        });
        Ok(self.complete(now) | freed)
    }
}

/// Keeps the buffer of a copy for the next one.
fn keep(spare: &mut Vec<Vec<u8>>, buffer: Vec<u8>) {
    let kept: usize = spare.iter().map(Vec::capacity).sum();
    if kept + buffer.capacity() <= SPARE_BYTES && spare.len() < SPARES_MAX {
        spare.push(buffer);
    }
}

/// Decodes into `sum` what is left of an XOR repair packet without `others`. Returns false if the
/// bytes of `others` are not here.
fn solve<O: Object>(
    objects: &mut FxHashMap<OpId, O>,
    others: &XorExtents,
    payload: &[u8],
    sum: &mut Vec<u8>,
) -> bool {
    sum.clear();
    sum.extend_from_slice(payload);
    objects.get_mut(&others.op).is_some_and(|object| {
        let mut extents = others.extents();
        extents.all(|e| object.add(e.offset, e.len, sum))
    })
}
