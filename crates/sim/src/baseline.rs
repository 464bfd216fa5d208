//! Broadcasts by messages between two, as MPI libraries do where there is no multicast, and to sets
//! of hosts by several groups: the same schedules and the same runner as live, on simulated hosts.
//!
//! A scenario that has a [`Baseline`] has its groups, a group for each two hosts that write to each
//! other, and a stream for each host that sends in one, so that the judge sees what it always sees;
//! but what is sent when is said by each host's [`Runner`]. What a host sends on, it must have
//! received.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use fabricast::collective::{
    AHEAD, Algorithm, Buffer, Channel, Cover, Part, Peer, Runner, Schedule, Step, Way,
};
use fabricast::driver::Driver;
use fabricast::proto::{Event, Seq, Time};

use crate::cluster::{Cluster, Failure, group_id};
use crate::object::{Disk, PatternObject, Place, Progress, World};
use crate::scenario::Scenario;
use crate::trace::Trace;
use crate::transport::SimTransport;
use crate::workload::{GroupPlan, StreamPlan};

/// Packets of a stream that may be under way: far more than a round trip, and little memory, for
/// there are as many streams as hosts.
const WINDOW: u32 = 1024;

/// Messages from one host to others, one after the other.
#[derive(Clone, PartialEq, Debug)]
pub struct Baseline {
    /// How.
    pub algorithm: Algorithm,
    /// Groups that there are, for a cover.
    pub groups: Vec<Vec<usize>>,
    /// Who has the messages.
    pub root: usize,
    /// Their lengths.
    pub lens: Vec<u64>,
    /// Payload of a data packet in bytes.
    pub chunk: u32,
    /// Binomial tree, chain and cover pass them on in segments of so many bytes; zero: as a whole.
    pub segment: u64,
    /// Bytes that a host has under way at once.
    pub ahead: u64,
    /// When the root begins.
    pub start: Duration,
    /// Hosts that are not there from the beginning, and when they begin.
    pub enter: Vec<(usize, Duration)>,
}

impl Baseline {
    /// One message of `len` bytes from host 0, passed on in segments of 64 KiB; a little after the
    /// others have posted it.
    pub fn new(algorithm: Algorithm, len: u64, chunk: u32) -> Baseline {
        Baseline {
            algorithm,
            groups: Vec::new(),
            root: 0,
            lens: vec![len],
            chunk,
            segment: 64 << 10,
            ahead: AHEAD,
            start: Duration::from_millis(1),
            enter: Vec::new(),
        }
    }

    /// The same from `root` to the hosts of `target`, by these groups.
    pub fn cover(
        target: &BTreeSet<usize>,
        root: usize,
        groups: Vec<Vec<usize>>,
        len: u64,
        chunk: u32,
    ) -> Baseline {
        let cover = Cover::new(target, root, &groups);
        Baseline {
            root,
            groups,
            ..Baseline::new(Algorithm::Cover(cover), len, chunk)
        }
    }

    /// What a host does for each message.
    fn steps(&self, hosts: usize, host: usize) -> impl Iterator<Item = Vec<Step>> + '_ {
        self.lens.iter().map(move |&len| {
            let schedule = Schedule {
                algorithm: self.algorithm.clone(),
                nodes: hosts,
                root: self.root,
                len,
                segment: self.segment,
            };
            schedule.steps(host)
        })
    }
}

impl Scenario {
    /// A healthy network on which `baseline` runs.
    pub fn baseline(hosts: usize, baseline: Baseline) -> Scenario {
        let mut s = Scenario::new(hosts);
        s.scheme.window = WINDOW;
        let mut add = |members| {
            s.groups.push(GroupPlan {
                members,
                chunk: baseline.chunk,
                start: 0,
            });
            s.groups.len() - 1
        };
        for members in &baseline.groups {
            add(members.clone());
        }
        let mut pairs = BTreeMap::new();
        for host in 0..hosts {
            let mut streams = BTreeMap::<Peer, Vec<u64>>::new();
            for step in baseline.steps(hosts, host).flatten() {
                if step.way == Way::Send {
                    streams.entry(step.peer).or_default().push(step.part.len);
                }
            }
            for (peer, lens) in streams {
                let group = match peer {
                    Peer::Group { group, .. } => group,
                    Peer::Rank(peer) => {
                        let (low, high) = pair(host, peer);
                        let new = || add(vec![low, high]);
                        *pairs.entry((low, high)).or_insert_with(new)
                    }
                };
                s.streams.push(StreamPlan::new(group, host, lens));
            }
        }
        s.baseline = Some(baseline);
        s
    }
}

/// Two hosts, in order.
fn pair(a: usize, b: usize) -> (usize, usize) {
    (a.min(b), a.max(b))
}

/// What a broadcast has cost, by whatever means.
#[derive(Clone, PartialEq, Debug)]
pub struct Timing {
    /// From the root's beginning until each host had all messages (zero: it was sent none); at the
    /// root, until it knew that those to whom it sent had what it sent.
    pub completed: Vec<Duration>,
    /// Until the last receiver had them.
    pub slowest: Duration,
    /// Bytes on the wire that the root sent.
    pub root_bytes: u64,
    /// Bytes on the wire that anybody sent.
    pub all_bytes: u64,
    /// Packets and wake-ups given to nodes.
    pub events: u64,
}

/// Runs a scenario in which one host sends to others, by a baseline or by multicast (its first
/// stream).
pub fn measure(scenario: &Scenario) -> Result<Timing, Failure> {
    let (root, start) = match (&scenario.baseline, scenario.streams.first()) {
        (Some(b), _) => (b.root, b.start),
        (None, Some(s)) => (s.root, s.start),
        (None, None) => (0, Duration::ZERO),
    };
    let o = Cluster::new(scenario, Trace::silent()).run()?;
    let since = |t: Time| t.since(Time(start.as_nanos() as u64));
    let mut completed: Vec<Duration> = o.received_at.iter().map(|&t| since(t)).collect();
    completed[root] = Duration::ZERO;
    let slowest = completed.iter().max().copied().unwrap_or_default();
    completed[root] = since(o.host_done_at[root]);
    Ok(Timing {
        completed,
        slowest,
        root_bytes: o.sent_bytes[root],
        all_bytes: o.sent_bytes.iter().sum(),
        events: o.events,
    })
}

/// One host's part.
#[derive(Debug)]
pub(crate) struct Relay {
    runner: Runner<PatternBuffer>,
    /// When it begins.
    enters: u64,
    /// Which of the host's roles a step belongs to, by peer and way.
    roles: BTreeMap<(Peer, Way), usize>,
}

impl Relay {
    pub(crate) fn heed(&mut self, event: Event) {
        self.runner.heed(event);
    }

    pub(crate) fn take_back(
        &mut self,
        driver: &mut Driver<SimTransport, Box<PatternObject>>,
    ) -> bool {
        self.runner.take_back(driver)
    }

    /// What ought to be over and here at the end, and is not.
    pub(crate) fn rest(&self) -> usize {
        let buffer = self.runner.buffer();
        let lacks = |m: &&Message| !m.here.covers(0, m.len);
        usize::from(!self.runner.is_done()) + buffer.messages.iter().filter(lacks).count()
    }
}

impl Cluster<'_> {
    /// Gives each host its part in the baseline, if there is one.
    pub(crate) fn start_baseline(&mut self) {
        let Some(b) = self.scenario.baseline.clone() else {
            return;
        };
        let several = b.groups.len();
        let pairs = self.scenario.groups.iter().enumerate().skip(several);
        let pairs = pairs.map(|(g, plan)| (pair(plan.members[0], plan.members[1]), g));
        let pairs: BTreeMap<_, _> = pairs.collect();
        for h in 0..self.hosts.len() {
            let mut roles = BTreeMap::new();
            for (r, role) in self.hosts[h].roles.iter().enumerate() {
                let &StreamPlan { group, root, .. } = &self.scenario.streams[role.stream];
                let members = &self.scenario.groups[group].members;
                let peer = match group < several {
                    true => Peer::Group { group, root },
                    false => Peer::Rank(members[0] + members[1] - h),
                };
                let way = if role.root { Way::Send } else { Way::Receive };
                roles.insert((peer, way), r);
            }
            if roles.is_empty() {
                continue; // it is sent nothing
            }
            let message = |(i, &len): (usize, &u64)| Message {
                content: self.scenario.seed ^ (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15),
                len,
                here: match h == b.root {
                    true => Covered::from(0, len),
                    false => Covered::default(),
                },
            };
            let buffer = PatternBuffer {
                world: Rc::clone(&self.world),
                bell: Rc::clone(&self.hosts[h].bell),
                host: h,
                chunk: b.chunk,
                disk: self.scenario.disk(h),
                messages: b.lens.iter().enumerate().map(message).collect(),
                made: Rc::default(),
            };
            let mut runner = Runner::new(buffer, b.ahead);
            for steps in b.steps(self.hosts.len(), h) {
                runner.add(&steps);
            }
            let numbering = self.numbering;
            let opened = runner.open(
                Time::ZERO,
                &mut self.hosts[h].driver,
                (numbering.node(h as u32), b.chunk, Seq(0)),
                |peer| {
                    let (group, other) = match peer {
                        Peer::Group { group, root } => (group, root),
                        Peer::Rank(peer) => (pairs[&pair(h, peer)], peer),
                    };
                    Channel {
                        group: group_id(group),
                        node: numbering.node(other as u32),
                    }
                },
            );
            if let Err(e) = opened {
                self.world
                    .complain(|| format!("host {h}: channel refused: {e}"));
            }
            let enters = match b.enter.iter().find(|e| e.0 == h) {
                Some(&(_, at)) => at,
                None if h == b.root => b.start,
                None => Duration::ZERO,
            };
            self.hosts[h].relay = Some(Box::new(Relay {
                runner,
                enters: enters.as_nanos() as u64,
                roles,
            }));
        }
    }

    /// Begins what a host's part may begin. Returns when it enters, if it has not.
    pub(crate) fn relay(&mut self, h: usize) -> u64 {
        let now = self.now();
        let Some(mut relay) = self.hosts[h].relay.take() else {
            return u64::MAX;
        };
        while relay.enters <= now {
            match relay.runner.next(Time(now), &mut self.hosts[h].driver) {
                Ok(Some((op, task))) => {
                    let (_, step) = relay.runner.step(task);
                    let (role, len) = (relay.roles[&(step.peer, step.way)], step.part.len);
                    let progress = Rc::clone(&relay.runner.buffer().made);
                    self.begun(h, role, op, progress, len);
                }
                Ok(None) => break,
                Err(e) => {
                    self.world.complain(|| format!("host {h}: refused: {e}"));
                    break;
                }
            }
        }
        let later = if relay.enters > now {
            relay.enters
        } else {
            u64::MAX
        };
        self.hosts[h].relay = Some(relay);
        later
    }
}

/// A message at one host.
#[derive(Debug)]
struct Message {
    content: u64,
    len: u64,
    /// What of it is here.
    here: Covered,
}

/// Messages whose bytes are patterns.
#[derive(Debug)]
struct PatternBuffer {
    world: Rc<World>,
    bell: Rc<Cell<u64>>,
    host: usize,
    chunk: u32,
    disk: Disk,
    messages: Vec<Message>,
    /// How far the object that was made last has come.
    made: Rc<Progress>,
}

impl PatternBuffer {
    fn place(&self, message: usize, peer: Peer) -> Place {
        let (Peer::Rank(peer) | Peer::Group { root: peer, .. }) = peer;
        Place {
            world: Rc::clone(&self.world),
            bell: Rc::clone(&self.bell),
            name: (self.host as u32, peer as u32, message as u32),
        }
    }

    fn complain(&self, what: &str, message: usize, part: Part) {
        let (host, Part { offset, len }) = (self.host, part);
        self.world
            .complain(|| format!("host {host} {what} bytes {offset}+{len} of message {message}"));
    }
}

impl Buffer for PatternBuffer {
    type Object = Box<PatternObject>;

    fn source(&mut self, message: usize, part: Part, to: Peer) -> Box<PatternObject> {
        let place = self.place(message, to);
        let m = &self.messages[message];
        if !m.here.covers(part.offset, part.len) {
            self.complain("sends what it lacks:", message, part);
        }
        let object = PatternObject::source(place, m.content, part.len, self.chunk, self.disk);
        Box::new(object.at(part.offset))
    }

    fn room(&mut self, message: usize, part: Part, from: Peer) -> Box<PatternObject> {
        let place = self.place(message, from);
        let m = &self.messages[message];
        self.made = Rc::default();
        let (content, made) = (m.content, Rc::clone(&self.made));
        let room = PatternObject::room(place, content, part.len, self.chunk, self.disk, made);
        Box::new(room.at(part.offset))
    }

    fn received(&mut self, message: usize, part: Part, object: Box<PatternObject>) {
        if !object.whole() {
            self.complain("has received in part", message, part);
        }
        self.messages[message].here.add(part.offset, part.len);
    }
}

/// Bytes that are here: disjoint ranges, start and end.
#[derive(Debug, Default)]
struct Covered(BTreeMap<u64, u64>);

impl Covered {
    fn from(offset: u64, len: u64) -> Covered {
        let mut covered = Covered::default();
        covered.add(offset, len);
        covered
    }

    fn covers(&self, offset: u64, len: u64) -> bool {
        let before = self.0.range(..=offset).next_back();
        len == 0 || before.is_some_and(|(_, &end)| offset + len <= end)
    }

    fn add(&mut self, offset: u64, len: u64) {
        let (mut start, mut end) = (offset, offset + len);
        while let Some((&s, &e)) = self.0.range(..=end).next_back() {
            if e < start {
                break;
            }
            (start, end) = (start.min(s), end.max(e));
            self.0.remove(&s);
        }
        self.0.insert(start, end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn covered_ranges_grow_together() {
        let mut c = Covered::default();
        for (offset, len) in [(10, 5), (30, 5), (16, 2), (15, 1)] {
            assert!(!c.covers(offset, len));
            c.add(offset, len);
            assert!(c.covers(offset, len));
        }
        assert!(c.covers(10, 8) && !c.covers(10, 9) && !c.covers(9, 2));
        c.add(0, 40);
        assert!(c.covers(0, 40) && c.0.len() == 1);
    }

    #[test]
    fn who_sends_on_what_it_has_not_received_is_noticed() {
        let message = Message {
            content: 1,
            len: 300,
            here: Covered::from(0, 100),
        };
        let mut buffer = PatternBuffer {
            world: Rc::default(),
            bell: Rc::new(Cell::new(u64::MAX)),
            host: 1,
            chunk: 100,
            disk: Disk::default(),
            messages: vec![message],
            made: Rc::default(),
        };
        let part = |offset, len| Part { offset, len };
        buffer.source(0, part(0, 100), Peer::Rank(2));
        assert!(!buffer.world.broken.get());
        buffer.source(0, part(0, 101), Peer::Rank(2));
        assert!(buffer.world.broken.get());
    }
}
