//! Queue of datagrams that the node wants sent and that have not gone, because the transport did
//! not take them or an object does not have their bytes.
//!
//! Datagrams keep their order, except that a datagram whose bytes are *late* (still being read)
//! lets the others pass. While more than [`LATE_MAX`] are late, the driver does not ask the node
//! for more: a source that is slower than the network holds the node back, and nothing is lost. A
//! source that stands still must not silence traffic that does not depend on it, so late datagrams
//! hold the others back for at most [`GRACE`]. Then the newest late datagrams of that operation
//! count as lost, and the protocol repairs them when the bytes are available again.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::time::Duration;

use arrayvec::ArrayVec;
use fabricast_proto::limits::HEAD_MAX;
use fabricast_proto::scheme::Checksum;
use fabricast_proto::wire::DATA_OVERHEAD;
use fabricast_proto::{OpId, Payload, Time, Token, Transmit, XorExtents};

use super::check;
use super::code::Code;
use crate::object::{Fetch, Object};
use crate::transport::{Outgoing, Transport};

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
    /// The range of `heads` that holds the datagram's head.
    head: Range<usize>,
    /// The payload, if it is an XOR or parity packet and has been computed.
    computed: Option<Vec<u8>>,
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

    /// The payload, which must be ready.
    fn body<'a, O: Object>(&'a self, objects: &'a BTreeMap<OpId, O>) -> &'a [u8] {
        let body = self.transmit.payload.and_then(|payload| match payload {
            Payload::Extent(e) => Some(objects.get(&e.op)?.bytes(e.offset, e.len)),
            Payload::Xor(_) | Payload::Parity(_) => self.computed.as_deref(),
        });
        body.unwrap_or(&[])
    }
}

/// The queue of datagrams that have not gone.
pub(super) struct Outbox {
    queue: Vec<Queued>,
    /// Heads of the queued datagrams, in the order of the queue.
    heads: Vec<u8>,
    /// Offset in `heads` at which the next head begins.
    next: usize,
    late: usize,
    refused: bool,
    /// Buffers for computed payloads, to be used again.
    spare: Vec<Vec<u8>>,
    /// Operations with a failure that was reported.
    failed: BTreeSet<OpId>,
}

impl Outbox {
    pub fn new() -> Outbox {
        Outbox {
            queue: Vec::new(),
            heads: Vec::with_capacity(BATCH * DATA_OVERHEAD + HEAD_MAX),
            next: 0,
            late: 0,
            refused: false,
            spare: Vec::new(),
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
    pub fn has_room(&self) -> bool {
        self.queue.len() < BATCH && self.late <= LATE_MAX
    }

    /// Latest time until which late datagrams hold the others back, if they do.
    pub fn held_until(&self) -> Option<Time> {
        let since = self.queue.iter().filter_map(Queued::late).min()?;
        (self.late > LATE_MAX).then_some(since + GRACE)
    }

    /// The buffer to whose end the next datagram's head is appended, before [`Outbox::push`].
    pub fn head(&mut self) -> &mut Vec<u8> {
        self.heads.truncate(self.next);
        &mut self.heads
    }

    pub fn push(&mut self, transmit: Transmit) {
        let head = self.next..self.heads.len();
        self.next = head.end;
        self.queue.push(Queued {
            transmit,
            head,
            computed: None,
            sealed: false,
            state: State::Ready,
        });
    }

    /// Forgets an operation that is over.
    pub fn released(&mut self, op: OpId) {
        self.failed.remove(&op);
    }

    /// Finds out which datagrams can go. Calls `failed` once for each operation whose object has
    /// failed.
    pub fn look<O: Object>(
        &mut self,
        now: Time,
        objects: &mut BTreeMap<OpId, O>,
        code: &mut Code,
        failed: &mut dyn FnMut(OpId),
    ) {
        self.late = 0;
        let spare = &mut self.spare;
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
                    (Some(object), Payload::Extent(e)) => object.fetch(e.offset, e.len),
                    (Some(_), _) if q.computed.is_some() => Fetch::Ready,
                    (Some(object), coded) => {
                        if spare.is_empty() {
                            // As many buffers as there can be, so that none is allocated later.
                            let len = coded.len() as usize;
                            spare.extend((0..BATCH).map(|_| Vec::with_capacity(len)));
                        }
                        let mut bytes = spare.pop().unwrap_or_default();
                        let fetch = compute(object, &coded, code, &mut bytes);
                        match fetch {
                            Fetch::Ready => q.computed = Some(bytes),
                            _ => spare.push(bytes),
                        }
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
    pub fn seal<O: Object>(&mut self, checksum: Checksum, objects: &BTreeMap<OpId, O>) {
        if checksum == Checksum::None {
            return;
        }
        let ready = |q: &&mut Queued| q.state == State::Ready && !q.sealed;
        for q in self.queue.iter_mut().filter(ready) {
            let head = &mut self.heads[q.head.clone()];
            check::seal(checksum, head, q.body(objects));
            q.sealed = true;
        }
    }

    /// Offers the transport the datagrams that can go. Returns how many it took, from the front.
    pub fn send<O: Object, T: Transport>(
        &mut self,
        now: Time,
        objects: &BTreeMap<OpId, O>,
        transport: &mut T,
    ) -> io::Result<usize> {
        let ready = self.queue.iter().filter(|q| q.state == State::Ready);
        let outgoing = ready.take(BATCH).map(|q| Outgoing {
            to: q.transmit.to,
            head: &self.heads[q.head.clone()],
            body: q.body(objects),
        });
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

    /// Removes the first `sent` datagrams that could go, and those that are lost. Calls `gone` for
    /// each whose payload is no longer read.
    pub fn clear_out(&mut self, mut sent: usize, gone: &mut dyn FnMut(Token)) {
        let spare = &mut self.spare;
        self.queue.retain_mut(|q| {
            let keep = match q.state {
                State::Ready if sent > 0 => {
                    sent -= 1;
                    false
                }
                State::Ready | State::Late(_) => true,
                State::Lost => false,
            };
            if !keep {
                if q.transmit.payload.is_some() {
                    gone(q.transmit.token);
                }
                if let Some(mut bytes) = q.computed.take() {
                    bytes.clear();
                    spare.push(bytes);
                }
            }
            keep
        });
        // The heads of the remaining datagrams move to the front.
        self.next = 0;
        for q in &mut self.queue {
            let len = q.head.len();
            self.heads.copy_within(q.head.clone(), self.next);
            q.head = self.next..self.next + len;
            self.next += len;
        }
        self.heads.truncate(self.next);
    }
}

/// Computes a coded payload into `into`, which is empty, if all bytes that it needs are available.
fn compute<O: Object>(
    object: &mut O,
    coded: &Payload,
    code: &mut Code,
    into: &mut Vec<u8>,
) -> Fetch {
    match coded {
        Payload::Xor(sum) => {
            let fetch = fetch_all(object, sum);
            if fetch == Fetch::Ready {
                into.resize(sum.len() as usize, 0);
                sum.extents()
                    .for_each(|e| _ = object.add(e.offset, e.len, into));
            }
            fetch
        }
        Payload::Parity(parity) => code.encode(object, parity, into),
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
