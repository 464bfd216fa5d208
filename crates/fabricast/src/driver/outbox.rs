//! Queue of datagrams that the node wants sent and that have not gone, because the transport did
//! not take them or an object does not have their bytes; and the datagrams that were posted and
//! that the transport may still read.
//!
//! Datagrams keep their order, except that a datagram whose bytes are *late* (still being read)
//! lets the others pass. While more than [`LATE_MAX`] are late, the driver does not ask the node
//! for more: a source that is slower than the network holds the node back, and nothing is lost. A
//! source that stands still must not silence traffic that does not depend on it, so late datagrams
//! hold the others back for at most [`GRACE`]. Then the newest late datagrams of that operation
//! count as lost, and the protocol repairs them when the bytes are available again.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use arrayvec::ArrayVec;
use fabricast_proto::mutant::{self, Mutant};
use fabricast_proto::scheme::Checksum;
use fabricast_proto::wire::Writer;
use fabricast_proto::{OpId, Payload, Time, Token, Transmit, XorExtents};
use rustc_hash::FxHashMap;

use super::check;
use super::code::Code;
use crate::object::{Fetch, Object};
use crate::transport::{DatagramId, Part, SLOTS, Slots, Transport};

/// Largest number of datagrams that the transport gets at once. An object must keep bytes ready
/// that it has reported as ready for this many calls of `fetch`.
pub(super) const BATCH: usize = 64;
/// Number of late datagrams up to which the driver still asks the node for more.
pub(super) const LATE_MAX: usize = 48;
/// How long late datagrams may hold back all others: longer than a working disk takes for a block,
/// and far less than any timeout of the protocol.
pub(super) const GRACE: Duration = Duration::from_secs(1);

const _: () = assert!(LATE_MAX < BATCH);

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// The datagram can be sent.
    Ready,
    /// The datagram's bytes have not been available since this time.
    Late(Time),
    /// The datagram is given up.
    Lost,
}

struct Queued {
    transmit: Transmit,
    /// The slot that holds the datagram's head.
    id: DatagramId,
    /// The slot holds the payload, too: it was computed, or it is a copy of bytes that do not stay
    /// where they are.
    inside: bool,
    /// The head contains its checksum.
    sealed: bool,
    state: State,
}

impl Queued {
    fn late(&self) -> Option<Time> {
        match self.state {
            State::Late(since) => Some(since),
            _ => None,
        }
    }

    fn is_coded(&self) -> bool {
        matches!(
            self.transmit.payload,
            Some(Payload::Xor(_) | Payload::Parity(_))
        )
    }

    fn op(&self) -> Option<OpId> {
        self.transmit.payload.map(|p| p.op())
    }

    /// The payload that is read from the object, which must be ready.
    fn payload<'a, O: Object>(&self, objects: &'a FxHashMap<OpId, O>) -> &'a [u8] {
        match self.transmit.payload {
            Some(Payload::Extent(e)) if !self.inside => objects
                .get(&e.op)
                .map_or(&[][..], |object| object.bytes(e.offset, e.len)),
            _ => &[],
        }
    }
}

/// The queue of datagrams that have not gone, and those that are posted.
pub(super) struct Outbox {
    queue: Vec<Queued>,
    /// The slot into which the next head is written.
    next: Option<DatagramId>,
    late: usize,
    refused: bool,
    /// Number of datagrams that were posted and not completed: the transport may still read them.
    posted: usize,
    /// The tokens of their payloads, each at the index of the datagram's slot.
    tokens: [Option<Token>; SLOTS],
    /// Datagrams that were just completed; empty between calls.
    done: Vec<DatagramId>,
    /// Operations with a failure that was reported.
    failed: BTreeSet<OpId>,
}

impl Outbox {
    pub fn new() -> Outbox {
        Outbox {
            queue: Vec::with_capacity(BATCH),
            next: None,
            late: 0,
            refused: false,
            posted: 0,
            tokens: [None; SLOTS],
            done: Vec::with_capacity(SLOTS),
            failed: BTreeSet::new(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether the transport did not take all datagrams that could go.
    pub fn refused(&self) -> bool {
        self.refused
    }

    /// Whether the driver may ask the node for more.
    pub fn has_room(&self, slots: &Slots) -> bool {
        self.queue.len() < BATCH && self.late <= LATE_MAX && self.has_slot(slots)
    }

    /// Whether there is a slot for one more datagram. If not, completions come first.
    pub fn has_slot(&self, slots: &Slots) -> bool {
        self.next.is_some() || slots.free() > 0
    }

    /// Latest time until which late datagrams hold the others back, if they do.
    pub fn held_until(&self) -> Option<Time> {
        let since = self.queue.iter().filter_map(Queued::late).min()?;
        (self.late > LATE_MAX).then_some(since + GRACE)
    }

    /// Writes the head of the next datagram, before [`Outbox::push`]. A head that is not pushed is
    /// forgotten.
    #[inline]
    pub fn head<'a>(&mut self, slots: &'a mut Slots) -> Part<'a> {
        let id = *self
            .next
            .get_or_insert_with(|| slots.take().expect("there is room"));
        slots.head(id)
    }

    /// Queues the datagram whose head was written.
    pub fn push(&mut self, transmit: Transmit) {
        let id = self.next.take().expect("its head was written");
        self.queue.push(Queued {
            transmit,
            id,
            inside: false,
            sealed: false,
            state: State::Ready,
        });
    }

    /// Forgets an operation that is over.
    pub fn released(&mut self, op: OpId) {
        self.failed.remove(&op);
    }

    /// Finds out which datagrams can go. With `zero_copy` the transport reads payloads late, so
    /// those that do not stay where they are get copied. Calls `failed` once for each operation
    /// whose object has failed.
    pub fn look<O: Object>(
        &mut self,
        now: Time,
        objects: &mut FxHashMap<OpId, O>,
        code: &mut Code,
        (slots, zero_copy): (&mut Slots, bool),
        failed: &mut dyn FnMut(OpId),
    ) {
        self.late = 0;
        // Coded packets come first and are computed at once. So the other packets' bytes are
        // fetched last, and stay ready until they are sent.
        for coded in [true, false] {
            for q in self.queue.iter_mut().filter(|q| q.is_coded() == coded) {
                let Some(payload) = q.transmit.payload else {
                    continue;
                };
                let op = payload.op();
                let fetch = match (objects.get_mut(&op), payload) {
                    // The operation is over, so no receiver needs the datagram.
                    (None, _) => {
                        q.state = State::Lost;
                        continue;
                    }
                    (Some(_), _) if self.failed.contains(&op) => Fetch::Failed,
                    (Some(_), _) if q.inside => Fetch::Ready,
                    (Some(object), Payload::Extent(e)) => {
                        let fetch = object.fetch(e.offset, e.len);
                        if fetch == Fetch::Ready && zero_copy && !object.is_stable() {
                            let bytes = object.bytes(e.offset, e.len);
                            slots.payload(q.id).put(bytes);
                            q.inside = true;
                        }
                        fetch
                    }
                    (Some(object), coded) => {
                        let fetch = compute(object, &coded, code, &mut slots.payload(q.id));
                        q.inside = fetch == Fetch::Ready;
                        fetch
                    }
                };
                q.state = match fetch {
                    Fetch::Ready => State::Ready,
                    Fetch::Later => State::Late(q.late().unwrap_or(now)),
                    Fetch::Failed => {
                        if self.failed.insert(op) {
                            failed(op);
                        }
                        State::Lost
                    }
                };
                self.late += usize::from(q.late().is_some());
            }
        }
        if self.late > LATE_MAX {
            self.shed(now);
        }
    }

    /// Gives up the newest late datagrams of operations that have waited for longer than [`GRACE`].
    fn shed(&mut self, now: Time) {
        let overdue = |q: &&Queued| q.late().is_some_and(|since| now.since(since) >= GRACE);
        let stuck: BTreeSet<_> = self.queue.iter().filter(overdue).map(Queued::op).collect();
        for q in self.queue.iter_mut().rev() {
            if self.late <= LATE_MAX {
                break;
            }
            if q.late().is_some() && stuck.contains(&q.op()) {
                q.state = State::Lost;
                self.late -= 1;
            }
        }
    }

    /// Computes the checksums of the datagrams that can go.
    pub fn seal<O: Object>(
        &mut self,
        checksum: Checksum,
        objects: &FxHashMap<OpId, O>,
        slots: &mut Slots,
    ) {
        if checksum == Checksum::None {
            return;
        }
        let ready = |q: &&mut Queued| q.state == State::Ready && !q.sealed;
        for q in self.queue.iter_mut().filter(ready) {
            let [head, inside, _] = slots.parts(q.id);
            let payload = match q.inside {
                true => inside,
                false => q.payload(objects),
            };
            check::seal(checksum, head, payload);
            q.sealed = true;
        }
    }

    /// Offers the transport the datagrams that can go. Returns how many it took, from the front.
    pub fn send<O: Object, T: Transport>(
        &mut self,
        now: Time,
        objects: &FxHashMap<OpId, O>,
        transport: &mut T,
    ) -> io::Result<usize> {
        let slots = transport.slots();
        let ready = self.queue.iter().filter(|q| q.state == State::Ready);
        // SAFETY: `look` has copied the payloads of objects that are not stable into slots, if the
        // transport reads late. The driver keeps any other object until the node releases it, which
        // it does after it was told that all its datagrams are complete (`complete`). The driver
        // drops and gives back objects before only after it has cancelled the transport. It lets
        // nobody change an object meanwhile (`Driver::object`), and writes only bytes that were
        // not here, which nobody has sent.
        #[allow(unsafe_code)]
        let outgoing = ready
            .take(BATCH)
            .map(|q| unsafe { slots.lending(q.id, q.transmit.to, q.payload(objects)) });
        // Filled in place, because `collect` would move the whole array.
        let mut batch = ArrayVec::<_, BATCH>::new();
        batch.extend(outgoing);
        let sent = match batch.is_empty() {
            true => 0,
            false => transport.send(now, &batch)?,
        };
        self.refused = sent < batch.len();
        Ok(sent)
    }

    /// Number of datagrams that are given up and will be cleared out.
    pub fn lost(&self) -> usize {
        let lost = |q: &&Queued| q.state == State::Lost;
        self.queue.iter().filter(lost).count()
    }

    /// Takes the first `sent` datagrams that could go for posted, and drops those that are lost.
    /// Calls `gone` for each payload that is dropped.
    pub fn clear_out(&mut self, mut sent: usize, slots: &mut Slots, gone: &mut dyn FnMut(Token)) {
        let (posted, tokens) = (&mut self.posted, &mut self.tokens);
        self.queue.retain(|q| {
            let token = q.transmit.payload.map(|_| q.transmit.token);
            match q.state {
                State::Ready if sent > 0 => {
                    sent -= 1;
                    let mut token = token;
                    if mutant::active(Mutant::SentWhenPosted) {
                        token.take().into_iter().for_each(&mut *gone);
                    }
                    tokens[q.id.index()] = token;
                    *posted += 1;
                    false
                }
                State::Ready | State::Late(_) => true,
                State::Lost => {
                    slots.release(q.id);
                    token.into_iter().for_each(&mut *gone);
                    false
                }
            }
        });
    }

    /// Whether datagrams are posted that the transport has not completed.
    pub fn is_awaiting(&self) -> bool {
        self.posted > 0
    }

    /// Frees the slots of the datagrams that the transport reads no more. Calls `gone` for each of
    /// their payloads.
    pub fn complete<T: Transport>(
        &mut self,
        now: Time,
        transport: &mut T,
        gone: &mut dyn FnMut(Token),
    ) {
        let done = &mut self.done;
        transport.completions(now, &mut |id| done.push(id));
        let slots = transport.slots();
        for id in done.drain(..) {
            debug_assert!(self.posted > 0, "{id:?} was not posted");
            self.posted -= 1;
            slots.release(id);
            let token = self.tokens[id.index()].take();
            token.into_iter().for_each(&mut *gone);
        }
    }

    /// Gives up all datagrams that are queued. Calls `gone` for each of their payloads.
    pub fn give_up(&mut self, slots: &mut Slots, gone: &mut dyn FnMut(Token)) {
        self.queue.iter_mut().for_each(|q| q.state = State::Lost);
        self.clear_out(0, slots, gone);
        (self.late, self.refused) = (0, false);
    }
}

/// Writes a coded payload, if all bytes that it needs are available.
fn compute<O: Object>(
    object: &mut O,
    coded: &Payload,
    code: &mut Code,
    out: &mut Writer<'_>,
) -> Fetch {
    match coded {
        Payload::Xor(sum) => {
            let fetch = fetch_all(object, sum);
            if fetch == Fetch::Ready {
                let into = out.zeros(sum.len() as usize);
                sum.extents()
                    .for_each(|e| _ = object.add(e.offset, e.len, into));
            }
            fetch
        }
        Payload::Parity(parity) => code.encode(object, parity, out),
        Payload::Extent(_) => Fetch::Ready,
    }
}

/// Makes all bytes ready that an XOR packet needs.
fn fetch_all<O: Object>(object: &mut O, sum: &XorExtents) -> Fetch {
    let mut all = Fetch::Ready;
    for e in sum.extents() {
        match object.fetch(e.offset, e.len) {
            Fetch::Ready => {}
            Fetch::Later => all = Fetch::Later,
            Fetch::Failed => return Fetch::Failed,
        }
    }
    all
}
