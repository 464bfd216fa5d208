//! What the node wants sent and has not gone yet, because the transport did not take it or an
//! object's bytes are not there.
//!
//! Datagrams keep their order, but one whose bytes are *late* (still being read) lets the others
//! pass. At most [`LATE_MAX`] may be late before the node is asked no further: a source that is
//! slower than the network holds the node back, and nothing is lost for it. But a source that
//! stands still must not silence what has nothing to do with it, so a datagram is held for its
//! sake only for [`GRACE`]; then the newest of that operation count as lost, and the protocol
//! repairs them when the bytes are there again.

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

/// Datagrams that are handed to the transport at once. An object keeps what it has said to be
/// ready for as many calls of `fetch`.
pub(super) const BATCH: usize = 64;
/// Datagrams that may be late while the node is still asked for more.
pub(super) const LATE_MAX: usize = 48;
/// How long late datagrams may hold back all others: longer than a disk that works takes for a
/// block, and far less than anybody's patience.
pub(super) const GRACE: Duration = Duration::from_secs(1);

const _: () = assert!(LATE_MAX < BATCH);

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// It can go.
    Ready,
    /// Its bytes have not been there since then.
    Late(Time),
    /// It is given up.
    Lost,
}

struct Queued {
    transmit: Transmit,
    /// Where its head lies in the arena.
    head: Range<usize>,
    /// Its payload, if that is a sum or a parity packet and has been computed.
    computed: Option<Vec<u8>>,
    /// Its checksum is in its head.
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

    /// Its payload, which is ready.
    fn body<'a, O: Object>(&'a self, objects: &'a BTreeMap<OpId, O>) -> &'a [u8] {
        let body = self.transmit.payload.and_then(|payload| match payload {
            Payload::Extent(e) => Some(objects.get(&e.op)?.bytes(e.offset, e.len)),
            Payload::Xor(_) | Payload::Parity(_) => self.computed.as_deref(),
        });
        body.unwrap_or(&[])
    }
}

/// See the module's doc.
pub(super) struct Outbox {
    queue: Vec<Queued>,
    /// Heads, in the order of the queue.
    heads: Vec<u8>,
    /// Where the next head begins.
    next: usize,
    late: usize,
    refused: bool,
    /// Buffers for what is computed, to be used again.
    spare: Vec<Vec<u8>>,
    /// Operations whose failure has been told.
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

    /// Whether the transport did not take all that could go.
    pub fn refused(&self) -> bool {
        self.refused
    }

    /// Whether the node may be asked for more.
    pub fn has_room(&self) -> bool {
        self.queue.len() < BATCH && self.late <= LATE_MAX
    }

    /// Until when, at the latest, late datagrams hold the others back, if they do.
    pub fn held_until(&self) -> Option<Time> {
        let since = self.queue.iter().filter_map(Queued::late).min()?;
        (self.late > LATE_MAX).then_some(since + GRACE)
    }

    /// Where the next datagram's head is to be appended, before [`Outbox::push`].
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

    /// An operation is over.
    pub fn released(&mut self, op: OpId) {
        self.failed.remove(&op);
    }

    /// Finds out what can go. `failed` is told, once, of an operation whose object has failed.
    pub fn look<O: Object>(
        &mut self,
        now: Time,
        objects: &mut BTreeMap<OpId, O>,
        code: &mut Code,
        failed: &mut dyn FnMut(OpId),
    ) {
        self.late = 0;
        let spare = &mut self.spare;
        // Coded ones first, and they are computed at once: so what the others need is fetched last,
        // and stays ready until they are sent.
        for coded in [true, false] {
            for q in self.queue.iter_mut().filter(|q| q.is_coded() == coded) {
                let Some(payload) = q.transmit.payload else {
                    continue;
                };
                let op = payload.op();
                let fetch = match (objects.get_mut(&op), payload) {
                    // The operation is over: nobody wants it any more.
                    (None, _) => {
                        q.state = State::Lost;
                        continue;
                    }
                    (Some(_), _) if self.failed.contains(&op) => Fetch::Failed,
                    (Some(object), Payload::Extent(e)) => object.fetch(e.offset, e.len),
                    (Some(_), _) if q.computed.is_some() => Fetch::Ready,
                    (Some(object), coded) => {
                        if spare.is_empty() {
                            // As many as there can be, so that none is made later.
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

    /// Gives up the newest late datagrams of operations that have waited for too long.
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

    /// Computes the checksums of what can go.
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

    /// Offers the transport what can go, and says how much of it, from the front, it took.
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
        // Filled where it is: collected, all of its room would be moved.
        let mut batch = ArrayVec::<_, BATCH>::new();
        batch.extend(outgoing);
        let sent = match batch.is_empty() {
            true => 0,
            false => transport.send(now, &batch)?,
        };
        self.refused = sent < batch.len();
        Ok(sent)
    }

    /// How many are given up and will be cleared out.
    pub fn lost(&self) -> usize {
        let lost = |q: &&Queued| q.state == State::Lost;
        self.queue.iter().filter(lost).count()
    }

    /// Forgets the first `sent` that could go, and those that are lost; `gone` is told of each
    /// whose payload is read no more.
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
        // The heads of those that stay move to the front.
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

/// Computes a coded payload into `into`, which is empty, if all that it needs can be read.
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

/// Makes everything ready that a sum needs.
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
