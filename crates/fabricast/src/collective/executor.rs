//! Executes one rank's steps of many collectives at once.
//!
//! The collectives of a group stand in *lines*: one for what the rank receives, one for what it
//! sends, one for barriers, in the order in which the collectives were added. The first collective
//! of a line begins its next step there as soon as the step that it waits for is over and few
//! enough operations are under way. The next collective follows when the first has begun all its
//! steps in that line, so all members of a group begin the same operations in the same order.
//!
//! The owner calls [`Executor::next`] until it has nothing to begin, lets the drivers step, and
//! gives their events to the executor ([`Executor::event`]). What becomes of a collective is in
//! [`Executor::news`]. After the end of its own collectives, a rank continues to step until its
//! peers are done, too: they may not have learned yet that everything has arrived.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use fabricast_proto::{Event, GroupId, OpId, Refused, Time, limits};

use super::buffer::Buffer;
use super::drivers::{Channel, Drivers, Stuck};
use super::step::{Action, Peer, Step};

/// Default for the number of bytes that one rank has under way in [`Pace::Listed`]. These are some
/// segments of a usual size: the rank sends the next ones while it waits for the acknowledgements
/// of the first, or repairs it.
pub const AHEAD: u64 = 512 << 10;
/// Bytes under way up to which a message may follow another one to the same peer in
/// [`Pace::Listed`]. Messages in one channel keep their order anyway, so a channel stays full, with
/// or without losses.
const FOLLOW: u64 = 4 << 20;
/// Largest number of sends that are under way at once in [`Pace::Listed`].
const SENDING_MAX: usize = 1024;
/// Largest number of receives that are posted at once in [`Pace::Listed`]. More are posted when
/// half of them have completed, because a node that posts tells the sender.
const POSTED_MAX: usize = 128;
/// Largest number of operations that a group may have under way in a line of [`Pace::Channels`].
const SEGMENTS_MAX: usize = 64;

const _: () = assert!(POSTED_MAX < limits::OPS_MAX);
const _: () = assert!(SENDING_MAX < limits::OPS_MAX);

/// Name of a collective in its executor.
pub type CollectiveId = u64;

/// When a collective begins its steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pace {
    /// Each channel has lines of its own. A part leaves by a channel as soon as it is here.
    Channels,
    /// The sends to all peers form one line, and so do the receives, as in a library with blocking
    /// calls. Small messages leave all at once. Large messages leave hardly more than one at a
    /// time, because the first one to arrive is the first one to be passed on.
    Listed {
        /// Number of bytes that may be under way (or one message) when the rank begins a message to
        /// another peer.
        ahead: u64,
    },
}

/// How a collective has ended, or one of its operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// It is complete.
    Complete,
    /// It will never be complete: its group has ended, or a member is gone.
    Failed,
    /// Another member does not call the same, or means another length.
    Mismatch,
}

/// What has become of a collective.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum News {
    /// This rank has everything, and nothing reads or writes its caller's memory any more. Steps
    /// are left that pass parts on from copies of `copied` bytes.
    Back {
        /// The collective.
        id: CollectiveId,
        /// Bytes of all copies.
        copied: u64,
    },
    /// All steps are over, or the drivers have returned what they had of a collective that failed.
    Over {
        /// The collective.
        id: CollectiveId,
        /// How it has ended.
        how: Ended,
    },
}

/// A step that has begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Begun<N> {
    /// The collective.
    pub id: CollectiveId,
    /// Index of the step in the collective's list.
    pub step: usize,
    /// The operation that carries the step out; `None` for [`Action::Release`], which is part of
    /// an earlier one.
    pub op: Option<(N, OpId)>,
}

/// The steps that a rank begins one after the other: those of one group and one kind, by one
/// network or by all.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Line<N> {
    of: GroupId,
    kind: Kind,
    /// The channel's network and group; `None`: all channels.
    by: Option<(N, GroupId)>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Kind {
    Receive,
    Send,
    Barrier,
}

/// What stands in a line, and what it has under way.
#[derive(Debug)]
struct Queue<N> {
    waiting: VecDeque<CollectiveId>,
    /// Operations under way, and their bytes.
    ops: usize,
    bytes: u64,
    /// False from when a [`Pace::Listed`] line has posted all that it may, until half is over.
    posting: bool,
    /// The channel of the last send.
    last: Option<Channel<N>>,
}

#[derive(Debug)]
struct Task<N> {
    step: Step,
    channel: Channel<N>,
    line: Line<N>,
    /// A driver sends a copy, and has returned the object.
    is_copied: bool,
    over: bool,
}

impl<N> Task<N> {
    /// Whether a driver holds an object of the step until it is over.
    fn has_object(&self) -> bool {
        !self.is_copied && !self.step.action.is_barrier()
    }
}

/// One rank's part in one collective.
#[derive(Debug)]
struct Collective<N, B> {
    of: GroupId,
    pace: Pace,
    buffer: B,
    tasks: Vec<Task<N>>,
    /// The lines in which it has steps, and the first step that may be the next one there.
    lines: Vec<(Line<N>, usize)>,
    /// The operation of the barrier in which this rank holds others.
    held: Option<(N, OpId)>,
    /// Steps that are not over.
    left: usize,
    /// Operations that drivers have not ended, or whose objects they hold.
    out: usize,
    /// [`News::Back`] was reported.
    back: bool,
    /// [`News::Over`] was reported.
    over: bool,
    copied: u64,
    /// How it failed, if it cannot be completed.
    failed: Option<Ended>,
}

/// An operation that has ended, and whose object a driver may still hold.
#[derive(Debug)]
struct Returning<N> {
    op: (N, OpId),
    id: CollectiveId,
    step: usize,
    how: Ended,
}

/// Runs one rank's parts in many collectives over the drivers of networks `N`.
#[derive(Debug)]
pub struct Executor<N, B> {
    next: CollectiveId,
    all: BTreeMap<CollectiveId, Collective<N, B>>,
    lines: BTreeMap<Line<N>, Queue<N>>,
    /// Lines in which a step may be able to begin.
    ready: BTreeSet<Line<N>>,
    /// Lines whose next step a driver has refused because it is busy.
    refused: Vec<Line<N>>,
    /// The collective and the step that an operation carries out.
    under_way: BTreeMap<(N, OpId), (CollectiveId, usize)>,
    /// Operations that have ended, and how, but whose objects a driver may still hold.
    returning: Vec<Returning<N>>,
    /// Number of collectives of each group that are not over.
    counts: BTreeMap<GroupId, usize>,
    /// Bytes in copies from which parts are passed on, and their bound.
    copied: u64,
    copies_max: u64,
    news: VecDeque<News>,
}

impl<N: Copy + Ord, B: Buffer> Executor<N, B> {
    /// An executor without collectives, whose buffers may have `copies_max` bytes in copies from
    /// which they pass parts on.
    pub fn new(copies_max: u64) -> Executor<N, B> {
        Executor {
            next: 0,
            all: BTreeMap::new(),
            lines: BTreeMap::new(),
            ready: BTreeSet::new(),
            refused: Vec::new(),
            under_way: BTreeMap::new(),
            returning: Vec::new(),
            counts: BTreeMap::new(),
            copied: 0,
            copies_max,
            news: VecDeque::new(),
        }
    }

    /// Adds this rank's part in a collective of group `of`, after all that were added before.
    /// `channel` says where a peer is; the group there exists already.
    pub fn add(
        &mut self,
        of: GroupId,
        pace: Pace,
        steps: impl IntoIterator<Item = Step>,
        buffer: B,
        channel: impl Fn(Peer) -> Channel<N>,
    ) -> CollectiveId {
        let id = self.next;
        self.next += 1;
        let mut lines: Vec<(Line<N>, usize)> = Vec::new();
        let task = |(at, step): (usize, Step)| {
            let channel = channel(step.peer);
            let line = Line::new(of, step.action, pace, &channel);
            if lines.iter().all(|(known, _)| *known != line) {
                lines.push((line, at));
            }
            Task {
                step,
                channel,
                line,
                is_copied: false,
                over: false,
            }
        };
        let tasks: Vec<Task<N>> = steps.into_iter().enumerate().map(task).collect();
        for (line, _) in &lines {
            let queue = self.lines.entry(*line).or_default();
            queue.waiting.push_back(id);
            self.ready.insert(*line);
        }
        let collective = Collective {
            of,
            pace,
            buffer,
            left: tasks.len(),
            tasks,
            lines,
            held: None,
            out: 0,
            back: false,
            over: false,
            copied: 0,
            failed: None,
        };
        self.all.insert(id, collective);
        *self.counts.entry(of).or_default() += 1;
        self.settle(id);
        id
    }

    /// Whether there is no collective.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Number of collectives of a group that are not over.
    pub fn count(&self, of: GroupId) -> usize {
        self.counts.get(&of).copied().unwrap_or(0)
    }

    /// Whether no step of this kind waits to begin in a group's own line on this channel, so that
    /// an operation that begins now keeps the order of the calls.
    pub fn is_clear(&self, of: GroupId, action: Action, channel: &Channel<N>) -> bool {
        let line = Line::new(of, action, Pace::Channels, channel);
        let queue = self.lines.get(&line);
        queue.is_none_or(|queue| queue.waiting.is_empty())
    }

    /// The buffer of a collective.
    pub fn buffer(&mut self, id: CollectiveId) -> Option<&mut B> {
        self.all.get_mut(&id).map(|c| &mut c.buffer)
    }

    /// All buffers, in the order in which their collectives were added.
    pub fn buffers(&self) -> impl Iterator<Item = &B> {
        self.all.values().map(|c| &c.buffer)
    }

    /// A step of a collective.
    pub fn step(&self, id: CollectiveId, step: usize) -> Option<&Step> {
        self.all.get(&id)?.tasks.get(step).map(|task| &task.step)
    }

    /// Removes a collective that is over. Returns its buffer.
    pub fn remove(&mut self, id: CollectiveId) -> Option<B> {
        self.all.get(&id).filter(|c| c.over)?;
        self.all.remove(&id).map(|c| c.buffer)
    }

    /// The next thing that has happened to a collective and was not reported yet.
    pub fn news(&mut self) -> Option<News> {
        self.news.pop_front()
    }

    /// Whether all steps of all collectives are over: what this rank has sent has been received,
    /// too.
    pub fn is_done(&self) -> bool {
        self.all.values().all(|c| c.left == 0)
    }

    /// Whether a step cannot be completed: its peer is gone, or expects something else.
    pub fn has_failed(&self) -> bool {
        self.all.values().any(|c| c.failed.is_some())
    }

    /// Begins a step that may begin, if there is one.
    ///
    /// # Errors
    /// A driver refuses a step for another reason than [`Refused::Busy`]. Its line stands still.
    pub fn next<D>(&mut self, now: Time, drivers: &mut D) -> Result<Option<Begun<N>>, Stuck>
    where
        D: Drivers<Network = N, Object = B::Object>,
    {
        self.take_back(drivers);
        self.ready.extend(self.refused.drain(..));
        while let Some(&line) = self.ready.first() {
            match self.begin(now, drivers, line) {
                Ok(Some(begun)) => return Ok(Some(begun)),
                Ok(None) => {}
                Err(Refused::Busy) => self.refused.push(line),
                Err(refused) => {
                    self.ready.remove(&line);
                    let group = line.of;
                    return Err(Stuck { group, refused });
                }
            }
            self.ready.remove(&line);
        }
        Ok(None)
    }

    /// Begins the next step of a line, if it may begin.
    fn begin<D>(
        &mut self,
        now: Time,
        drivers: &mut D,
        line: Line<N>,
    ) -> Result<Option<Begun<N>>, Refused>
    where
        D: Drivers<Network = N, Object = B::Object>,
    {
        let Some(queue) = self.lines.get_mut(&line) else {
            return Ok(None);
        };
        let Some(&id) = queue.waiting.front() else {
            return Ok(None);
        };
        // A collective that has failed holds its line until the group ends.
        let Some(collective) = self.all.get_mut(&id).filter(|c| c.failed.is_none()) else {
            return Ok(None);
        };
        let Some(at) = collective.cursor(line) else {
            return Ok(None);
        };
        let Task { step, channel, .. } = &collective.tasks[at];
        let (part, peer) = (step.part, step.peer);
        let waits = step.after.is_some_and(|i| !collective.tasks[i].over);
        if waits || !queue.has_room(collective.pace, step, channel) {
            return Ok(None);
        }
        let op = match step.action {
            Action::Receive => {
                let Some(object) = collective.buffer.room(part, peer) else {
                    return Ok(None);
                };
                Some(drivers.post(now, channel, object).map(|op| (op, None)))
            }
            Action::Send => {
                let Some(object) = collective.buffer.source(part, peer) else {
                    return Ok(None);
                };
                Some(drivers.send(now, channel, object))
            }
            Action::Hold(by) => Some(Ok((drivers.barrier(now, channel, by, true)?, None))),
            Action::Meet(by) => Some(Ok((drivers.barrier(now, channel, by, false)?, None))),
            Action::Release => {
                drivers.release(now, channel)?;
                None
            }
        };
        let op = match op.transpose() {
            Ok(Some((op, copied))) => {
                let op = (channel.network, op);
                if let Some(object) = copied {
                    collective.buffer.sent(part, object);
                    collective.tasks[at].is_copied = true;
                }
                Some(op)
            }
            Ok(None) => None,
            Err((refused, object)) => {
                collective.buffer.put_back(part, object);
                return Err(refused);
            }
        };
        match (op, collective.held) {
            (Some(op), _) => {
                self.under_way.insert(op, (id, at));
                collective.out += 1;
                queue.begun(collective.pace, &collective.tasks[at]);
            }
            // From now on, the end of the barrier in which it held the others ends this step.
            (None, Some(held)) => _ = self.under_way.insert(held, (id, at)),
            (None, None) => {}
        }
        if !collective.advance(line, at) {
            queue.waiting.pop_front();
        }
        Ok(Some(Begun { id, step: at, op }))
    }

    /// Takes an event of a network's driver. Returns the collective that it is about, if any.
    pub fn event(&mut self, network: N, event: Event) -> Option<CollectiveId> {
        match event {
            Event::Complete(op) => self.ended((network, op), Ended::Complete),
            Event::Failed(op) => self.ended((network, op), Ended::Failed),
            // The operation ends later, with its group.
            Event::Mismatch(op) => {
                let &(id, at) = self.under_way.get(&(network, op))?;
                let collective = self.all.get_mut(&id)?;
                if !collective.tasks[at].step.action.is_barrier() {
                    collective.failed.get_or_insert(Ended::Mismatch);
                }
                Some(id)
            }
            Event::Arrived(op) => self.arrived((network, op)),
            _ => None,
        }
    }

    /// Takes note that all peers have entered a barrier in which this rank holds them.
    fn arrived(&mut self, op: (N, OpId)) -> Option<CollectiveId> {
        let &(id, at) = self.under_way.get(&op)?;
        let collective = self.all.get_mut(&id)?;
        collective.held = Some(op);
        if !collective.tasks[at].over {
            collective.step_over(at);
            self.ready.extend(collective.lines());
        }
        Some(id)
    }

    /// Takes note that a driver has ended an operation.
    fn ended(&mut self, op: (N, OpId), how: Ended) -> Option<CollectiveId> {
        let (id, at) = self.under_way.remove(&op)?;
        let collective = self.all.get_mut(&id)?;
        let task = &collective.tasks[at];
        let has_object = task.has_object();
        if let Some(queue) = self.lines.get_mut(&task.line) {
            queue.over(collective.pace, task);
            self.ready.insert(task.line);
        }
        if how != Ended::Complete {
            collective.failed.get_or_insert(how);
        }
        if !has_object {
            collective.out -= 1;
            if how == Ended::Complete && !collective.tasks[at].over {
                collective.step_over(at);
            }
            self.ready.extend(collective.lines());
            self.settle(id);
        } else {
            let step = at;
            self.returning.push(Returning { op, id, step, how });
        }
        Some(id)
    }

    /// Ends all collectives of a group. Their owners learn of it once the drivers have returned
    /// the callers' memory.
    pub fn end(&mut self, of: GroupId) {
        self.lines.retain(|line, _| line.of != of);
        self.ready.retain(|line| line.of != of);
        self.refused.retain(|line| line.of != of);
        let mut hit = Vec::new();
        for (&id, collective) in &mut self.all {
            if collective.of == of && !collective.over {
                collective.failed.get_or_insert(Ended::Failed);
                hit.push(id);
            }
        }
        let all = &mut self.all;
        let returning = &mut self.returning;
        self.under_way.retain(|&op, &mut (id, at)| {
            let Some(collective) = all.get_mut(&id).filter(|c| c.of == of) else {
                return true;
            };
            match collective.tasks[at].has_object() {
                false => collective.out -= 1,
                true => returning.push(Returning {
                    op,
                    id,
                    step: at,
                    how: Ended::Failed,
                }),
            }
            false
        });
        hit.into_iter().for_each(|id| self.settle(id));
    }

    /// Takes the objects of ended operations back. Returns whether there were any.
    /// [`Executor::next`] does it, too.
    pub fn take_back<D>(&mut self, drivers: &mut D) -> bool
    where
        D: Drivers<Network = N, Object = B::Object>,
    {
        if self.returning.is_empty() {
            return false;
        }
        let mut returning = std::mem::take(&mut self.returning);
        let before = returning.len();
        returning.retain(|r| {
            let Some(object) = drivers.take(r.op.0, r.op.1) else {
                return true;
            };
            self.returned(r.id, r.step, r.how, object);
            false
        });
        let some = returning.len() < before;
        returning.append(&mut self.returning);
        self.returning = returning;
        some
    }

    fn returned(&mut self, id: CollectiveId, at: usize, how: Ended, object: B::Object) {
        let Some(collective) = self.all.get_mut(&id) else {
            return;
        };
        let Step { action, part, .. } = collective.tasks[at].step;
        collective.out -= 1;
        match (how, action) {
            (Ended::Complete, Action::Receive) => {
                let room = self.copies_max.saturating_sub(self.copied);
                collective.buffer.received(part, object, room);
                let copied = collective.buffer.copied();
                self.copied += copied - collective.copied;
                collective.copied = copied;
                collective.step_over(at);
            }
            (Ended::Complete, _) => {
                collective.buffer.sent(part, object);
                collective.step_over(at);
            }
            _ => collective.buffer.put_back(part, object),
        }
        if self.lines.contains_key(&collective.tasks[at].line) {
            self.ready.extend(collective.lines());
        }
        self.settle(id);
    }

    /// Reports what a collective has reached.
    fn settle(&mut self, id: CollectiveId) {
        let Some(collective) = self.all.get_mut(&id).filter(|c| !c.over) else {
            return;
        };
        let over = match collective.failed {
            Some(_) => collective.out == 0,
            None => collective.left == 0,
        };
        if over {
            collective.over = true;
            self.copied -= std::mem::take(&mut collective.copied);
            if let Some(count) = self.counts.get_mut(&collective.of) {
                *count -= 1;
                if *count == 0 {
                    self.counts.remove(&collective.of);
                }
            }
            let how = collective.failed.unwrap_or(Ended::Complete);
            self.news.push_back(News::Over { id, how });
        } else if !collective.back && collective.failed.is_none() && collective.buffer.is_back() {
            collective.back = true;
            let copied = collective.copied;
            self.news.push_back(News::Back { id, copied });
        }
    }
}

impl<N: Copy + Ord> Line<N> {
    fn new(of: GroupId, action: Action, pace: Pace, channel: &Channel<N>) -> Line<N> {
        let kind = match action {
            Action::Receive => Kind::Receive,
            Action::Send => Kind::Send,
            Action::Hold(_) | Action::Meet(_) | Action::Release => Kind::Barrier,
        };
        let by = match (kind, pace) {
            (Kind::Barrier, _) | (_, Pace::Channels) => Some((channel.network, channel.group)),
            (_, Pace::Listed { .. }) => None,
        };
        Line { of, kind, by }
    }
}

impl<N> Default for Queue<N> {
    fn default() -> Queue<N> {
        Queue {
            waiting: VecDeque::new(),
            ops: 0,
            bytes: 0,
            posting: true,
            last: None,
        }
    }
}

impl<N: Copy + Ord> Queue<N> {
    /// Whether few enough operations are under way for this step to begin.
    fn has_room(&self, pace: Pace, step: &Step, channel: &Channel<N>) -> bool {
        let Pace::Listed { ahead } = pace else {
            return self.ops < SEGMENTS_MAX;
        };
        match step.action {
            Action::Receive => self.posting,
            Action::Send => {
                let most = match self.last == Some(*channel) {
                    true => ahead.max(FOLLOW),
                    false => ahead,
                };
                let fits = self.ops == 0 || self.bytes + step.part.len <= most;
                fits && self.ops < SENDING_MAX
            }
            _ => true,
        }
    }

    fn begun(&mut self, pace: Pace, task: &Task<N>) {
        self.ops += 1;
        self.bytes += task.step.part.len;
        self.last = Some(task.channel);
        self.posting = pace == Pace::Channels || self.ops < POSTED_MAX;
    }

    fn over(&mut self, pace: Pace, task: &Task<N>) {
        self.ops = self.ops.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(task.step.part.len);
        self.posting |= pace == Pace::Channels || self.ops <= POSTED_MAX / 2;
    }
}

impl<N: Copy + Ord, B> Collective<N, B> {
    /// The lines in which it has steps.
    fn lines(&self) -> impl Iterator<Item = Line<N>> {
        self.lines.iter().map(|(line, _)| *line)
    }

    /// The next step in a line.
    fn cursor(&self, line: Line<N>) -> Option<usize> {
        let of = self.lines.iter().find(|(l, _)| *l == line);
        of.map(|&(_, at)| at).filter(|&at| at < self.tasks.len())
    }

    /// Takes note that a step of the line has begun. Returns whether another one follows.
    fn advance(&mut self, line: Line<N>, begun: usize) -> bool {
        let rest = self.tasks[begun + 1..].iter();
        let next = rest.take_while(|task| task.line != line).count() + begun + 1;
        if let Some((_, at)) = self.lines.iter_mut().find(|(l, _)| *l == line) {
            *at = next;
        }
        next < self.tasks.len()
    }

    fn step_over(&mut self, at: usize) {
        self.tasks[at].over = true;
        self.left -= 1;
    }
}
