//! Executes one rank's steps over a driver.
//!
//! It posts receives as early as possible. It begins sends strictly in their order, as a library
//! with blocking calls does. Each send begins as soon as its bytes are here and few enough bytes
//! are under way. Small messages leave all at once. Large messages leave hardly more than one at a
//! time, because the first one to arrive is the first one to be passed on.
//!
//! The owner calls [`Runner::next`] until it has nothing to begin, lets the driver step, and gives
//! the driver's events to the runner. After its own end, the owner continues to step until its
//! peers are done, too: they may not have learned yet that everything has arrived.

use std::collections::BTreeMap;

use fabricast_proto::{Event, GroupId, NodeId, OpId, Refused, Seq, Time};

use super::buffer::Buffer;
use super::step::{Direction, Peer, Step};
use crate::driver::Driver;
use crate::proto::Command;
use crate::proto::limits;
use crate::transport::Transport;

/// Default for the number of bytes that one rank has under way: some segments of a usual size, so
/// that the next ones leave while the first is being acknowledged or repaired.
pub const AHEAD: u64 = 512 << 10;
/// Bytes under way up to which a message may follow another one to the same peer. Messages in one
/// channel keep their order anyway, so a channel stays full, with or without losses.
const FOLLOW: u64 = 4 << 20;
/// Largest number of sends that are under way at once.
const SENDING_MAX: usize = 1024;
/// Largest number of receives that are posted at once. More are posted when half of them have
/// completed, because a node that posts tells the sender.
const POSTED_MAX: usize = 128;

const _: () = assert!(POSTED_MAX < limits::OPS_MAX);
const _: () = assert!(SENDING_MAX < limits::OPS_MAX);

/// The way to or from a peer: a group of two with a rank, or the peer group itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Channel {
    /// The group's number, the same at all of its members.
    pub group: GroupId,
    /// The rank at the other end. For a group it is the member that broadcasts.
    pub node: NodeId,
}

/// A step, and the message to which it belongs.
#[derive(Clone, Copy, Debug)]
struct Task {
    message: usize,
    step: Step,
    /// The step is over, and what it received is in the buffer.
    over: bool,
}

/// One rank's part in broadcasts of one or more messages, one after the other.
#[derive(Debug)]
pub struct Runner<B: Buffer> {
    buffer: B,
    channels: BTreeMap<Peer, Channel>,
    ahead: u64,
    tasks: Vec<Task>,
    messages: usize,
    /// The first task that may be a receive to post.
    receive: usize,
    /// The first task that may be a send to begin.
    send: usize,
    under_way: BTreeMap<OpId, usize>,
    /// Operations that are complete and whose objects have not come back.
    returning: Vec<(OpId, usize)>,
    posted: usize,
    posting: bool,
    /// Number of sends under way, and the peer of the last one.
    sends: (usize, Option<Peer>),
    /// Bytes of all sends under way.
    bytes: u64,
    left: usize,
    failed: bool,
}

impl<B: Buffer> Runner<B> {
    /// A runner without messages. `ahead`: number of bytes that may be under way (or one message)
    /// when it begins a message to another peer.
    pub fn new(buffer: B, ahead: u64) -> Runner<B> {
        Runner {
            buffer,
            channels: BTreeMap::new(),
            ahead,
            tasks: Vec::new(),
            messages: 0,
            receive: 0,
            send: 0,
            under_way: BTreeMap::new(),
            returning: Vec::new(),
            posted: 0,
            posting: true,
            sends: (0, None),
            bytes: 0,
            left: 0,
            failed: false,
        }
    }

    /// Adds what this rank does for the next message.
    pub fn add(&mut self, steps: &[Step]) {
        let first = self.tasks.len();
        self.tasks.extend(steps.iter().map(|step| Task {
            message: self.messages,
            step: Step {
                after: step.after.map(|i| i + first),
                ..*step
            },
            over: false,
        }));
        self.messages += 1;
        self.left += steps.len();
    }

    /// Adds the channels that the steps need and that this rank, node `me`, has not opened yet.
    /// Groups of several members must exist already: each of their members has added them, and only
    /// the runners use them meanwhile.
    pub fn open<T: Transport>(
        &mut self,
        now: Time,
        driver: &mut Driver<T, B::Object>,
        (me, payload_size, start): (NodeId, u32, Seq),
        channel: impl Fn(Peer) -> Channel,
    ) -> Result<(), Refused> {
        for task in &self.tasks {
            let peer = task.step.peer;
            if self.channels.contains_key(&peer) {
                continue;
            }
            let channel = channel(peer);
            if let Peer::Rank(_) = peer {
                let command = Command::GroupAdd {
                    group: channel.group,
                    members: vec![me, channel.node],
                    payload_size,
                    start,
                };
                driver.command(now, command)?;
            }
            self.channels.insert(peer, channel);
        }
        Ok(())
    }

    /// The buffer that holds the messages.
    pub fn buffer(&self) -> &B {
        &self.buffer
    }

    /// The message to which a task belongs, and its step.
    pub fn step(&self, task: usize) -> (usize, &Step) {
        let task = &self.tasks[task];
        (task.message, &task.step)
    }

    /// Begins a task that may begin, if there is one. Returns the driver's operation and the task.
    pub fn next<T: Transport>(
        &mut self,
        now: Time,
        driver: &mut Driver<T, B::Object>,
    ) -> Result<Option<(OpId, usize)>, Refused> {
        self.take_back(driver);
        let begun = match self.post(now, driver)? {
            None => self.bcast(now, driver)?,
            some => some,
        };
        if let Some((op, task)) = begun {
            self.under_way.insert(op, task);
        }
        Ok(begun)
    }

    /// Takes the objects of complete operations back. Returns whether there were any.
    /// [`Runner::next`] does it, too.
    pub fn take_back<T: Transport>(&mut self, driver: &mut Driver<T, B::Object>) -> bool {
        let before = self.returning.len();
        let Runner {
            buffer,
            tasks,
            left,
            ..
        } = self;
        self.returning.retain(|&(op, at)| {
            let Some(object) = driver.take(op) else {
                return true;
            };
            let Task { message, step, .. } = tasks[at];
            if step.way == Direction::Receive {
                buffer.received(message, step.part, object);
            }
            tasks[at].over = true;
            *left -= 1;
            false
        });
        self.returning.len() < before
    }

    fn post<T: Transport>(
        &mut self,
        now: Time,
        driver: &mut Driver<T, B::Object>,
    ) -> Result<Option<(OpId, usize)>, Refused> {
        self.receive = self.find(self.receive, Direction::Receive);
        let at = self.receive;
        let Some(&Task { message, step, .. }) = self.tasks.get(at) else {
            return Ok(None);
        };
        if !self.posting {
            return Ok(None);
        }
        let Channel { group, node } = self.channel(step.peer)?;
        let room = self.buffer.room(message, step.part, step.peer);
        let op = driver.post(now, group, node, room).map_err(|e| e.0)?;
        self.posted += 1;
        self.posting = self.posted < POSTED_MAX;
        self.receive = at + 1;
        Ok(Some((op, at)))
    }

    fn bcast<T: Transport>(
        &mut self,
        now: Time,
        driver: &mut Driver<T, B::Object>,
    ) -> Result<Option<(OpId, usize)>, Refused> {
        self.send = self.find(self.send, Direction::Send);
        let at = self.send;
        let Some(&Task { message, step, .. }) = self.tasks.get(at) else {
            return Ok(None);
        };
        let here = step.after.is_none_or(|i| self.tasks[i].over);
        let most = match self.sends.1 == Some(step.peer) {
            true => self.ahead.max(FOLLOW),
            false => self.ahead,
        };
        let full = self.sends.0 > 0 && self.bytes + step.part.len > most;
        if !here || full || self.sends.0 >= SENDING_MAX {
            return Ok(None);
        }
        let group = self.channel(step.peer)?.group;
        let source = self.buffer.source(message, step.part, step.peer);
        let op = driver.bcast(now, group, source).map_err(|e| e.0)?;
        self.sends = (self.sends.0 + 1, Some(step.peer));
        self.bytes += step.part.len;
        self.send = at + 1;
        Ok(Some((op, at)))
    }

    /// The first task from `at` on that goes `way`, or the number of tasks.
    fn find(&self, at: usize, way: Direction) -> usize {
        let rest = &self.tasks[at..];
        at + rest
            .iter()
            .position(|t| t.step.way == way)
            .unwrap_or(rest.len())
    }

    fn channel(&self, peer: Peer) -> Result<Channel, Refused> {
        self.channels.get(&peer).copied().ok_or(Refused::NoGroup)
    }

    /// Takes an event of the driver. Returns the task that it is about, if any.
    pub fn heed(&mut self, event: Event) -> Option<usize> {
        let (op, failed) = match event {
            Event::Complete(op) => (op, false),
            Event::Failed(op) | Event::Mismatch(op) => (op, true),
            _ => return None,
        };
        let at = self.under_way.remove(&op)?;
        let step = &self.tasks[at].step;
        match step.way {
            Direction::Receive => {
                self.posted -= 1;
                self.posting |= self.posted <= POSTED_MAX / 2;
            }
            Direction::Send => {
                self.sends.0 -= 1;
                self.bytes -= step.part.len;
            }
        }
        match failed {
            true => self.failed = true,
            false => self.returning.push((op, at)),
        }
        Some(at)
    }

    /// Whether this rank has received every message completely.
    pub fn has_all(&self) -> bool {
        let lacks = |t: &Task| t.step.way == Direction::Receive && !t.over;
        !self.tasks.iter().any(lacks)
    }

    /// Whether all steps are over: what this rank has sent has been received, too.
    pub fn is_done(&self) -> bool {
        self.left == 0
    }

    /// Whether a step cannot be completed: its peer is gone, or expects something else.
    pub fn has_failed(&self) -> bool {
        self.failed
    }
}
