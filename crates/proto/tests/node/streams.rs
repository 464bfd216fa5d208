//! Tests of groups in which every member broadcasts: a node polls the streams that have something
//! to do, and no stream is forgotten. After every call [`Node::invariants`] goes through all
//! streams and compares when each has something to do with what the node has recorded.

use std::collections::BTreeMap;
use std::time::Duration;

use fabricast_proto::limits::HEAD_MAX;
use fabricast_proto::rng::Rng;
use fabricast_proto::wire::{self, Writer};
use fabricast_proto::{
    AddressId, Command, Counters, Dest, Event, Extent, GroupId, Node, NodeId, OpId, Outcome,
    Output, Placement, Seq, Time, Token,
};

use crate::common::{PAYLOAD, config};

const GROUP: GroupId = GroupId(1);
/// Broadcasts of each member.
const BROADCASTS: u32 = 3;
/// Time by which all broadcasts are complete.
const END: Time = Time(20_000_000_000);

/// A command that a node gets later.
#[derive(Clone, Copy, Debug)]
enum Act {
    Bcast(u64),
    Post(NodeId, u64),
    Remove(NodeId),
    Placed(Extent),
    Sent(Token),
}

/// A node, its driver, and what happens to it later.
struct End {
    node: Node,
    wake: Time,
    acts: BTreeMap<(Time, u64), Act>,
    inbox: BTreeMap<(Time, u64), Vec<u8>>,
    /// Operations that are not complete.
    incomplete: BTreeMap<OpId, NodeId>,
    mismatches: u32,
}

/// Members of one group and a network that loses, delays and reorders datagrams.
struct World {
    rng: Rng,
    now: Time,
    ends: Vec<End>,
    loss: f64,
    /// Numbers what happens, so that it has an order.
    count: u64,
    waits: u64,
}

impl World {
    fn new(seed: u64, scheme: &str, members: u32, loss: f64) -> World {
        let end = |i| {
            let scheme = scheme.parse().expect("a scheme");
            let mut node = Node::new(config(i * 3, 8, scheme), u64::from(i));
            let add = Command::GroupAdd {
                group: GROUP,
                address: Some(AddressId(GROUP.0)),
                // The numbers have holes, so that ranks have to be looked up.
                members: (0..members).map(|i| NodeId(i * 3)).collect(),
                payload_size: PAYLOAD,
                start: Seq(u32::MAX - 20),
            };
            assert_eq!(node.command(Time(1), add), Ok(None));
            End {
                node,
                wake: Time(1),
                acts: BTreeMap::new(),
                inbox: BTreeMap::new(),
                incomplete: BTreeMap::new(),
                mismatches: 0,
            }
        };
        World {
            rng: Rng::new(seed),
            now: Time(1),
            ends: (0..members).map(end).collect(),
            loss,
            count: 0,
            waits: 0,
        }
    }

    /// A time after now, at most `ms` milliseconds.
    fn soon(&mut self, ms: u64) -> (Time, u64) {
        self.count += 1;
        let delay = Duration::from_nanos(1 + self.rng.below(ms * 1_000_000));
        (self.now + delay, self.count)
    }

    fn act(&mut self, at: usize, ms: u64, act: Act) {
        let when = self.soon(ms);
        self.ends[at].acts.insert(when, act);
    }

    /// Has every member broadcast to all others, and post their broadcasts, at random times but in
    /// order. Where `differ`, a receiver sometimes posts another length.
    fn begin(&mut self, differ: bool) {
        let members = self.ends.len();
        for sender in 0..members {
            let lens: Vec<u64> = (0..BROADCASTS).map(|_| self.rng.below(1500)).collect();
            for at in 0..members {
                let mut times: Vec<_> = lens.iter().map(|_| self.soon(30)).collect();
                times.sort_unstable();
                for (when, &len) in times.into_iter().zip(&lens) {
                    let other = differ && at != sender && self.rng.below(40) == 0;
                    let act = match at == sender {
                        true => Act::Bcast(len),
                        false => Act::Post(NodeId(sender as u32 * 3), len + u64::from(other)),
                    };
                    self.ends[at].acts.insert(when, act);
                }
            }
        }
    }

    fn next(&self, at: usize) -> Time {
        let end = &self.ends[at];
        let act = end.acts.keys().next().map_or(Time::NEVER, |k| k.0);
        let arrival = end.inbox.keys().next().map_or(Time::NEVER, |k| k.0);
        end.wake.min(act).min(arrival)
    }

    /// Runs until all members wait for ever, or it is late.
    fn run(&mut self) {
        loop {
            let next = (0..self.ends.len()).min_by_key(|&at| self.next(at));
            let at = next.expect("there are members");
            if self.next(at) >= END {
                return;
            }
            self.now = self.next(at);
            self.step(at);
        }
    }

    fn step(&mut self, at: usize) {
        let now = self.now;
        while let Some(arrival) = self.ends[at]
            .inbox
            .first_entry()
            .filter(|e| e.key().0 <= now)
        {
            let bytes = arrival.remove();
            let datagram = wire::decode(&bytes).expect("nodes write what can be read");
            for frame in datagram.frames() {
                let placement = self.ends[at]
                    .node
                    .packet(now, now, &datagram.header, &frame);
                self.ends[at].node.invariants();
                if let Placement::Write(extent) | Placement::DecodeXor(extent, _) = placement {
                    self.act(at, 2, Act::Placed(extent));
                }
            }
        }
        while let Some(act) = self.ends[at]
            .acts
            .first_entry()
            .filter(|e| e.key().0 <= now)
        {
            let act = act.remove();
            self.carry_out(at, act);
            self.ends[at].node.invariants();
        }
        self.poll(at);
    }

    fn carry_out(&mut self, at: usize, act: Act) {
        let now = self.now;
        let (me, end) = (NodeId(at as u32 * 3), &mut self.ends[at]);
        let (sender, command) = match act {
            Act::Placed(extent) => return end.node.placed(now, extent, Outcome::Ok),
            Act::Sent(token) => return end.node.sent(now, token),
            Act::Bcast(len) => {
                let (group, awaited) = (GROUP, true);
                let bcast = Command::Bcast {
                    group,
                    len,
                    awaited,
                };
                (me, bcast)
            }
            Act::Post(sender, len) => {
                let group = GROUP;
                (sender, Command::Post { group, sender, len })
            }
            Act::Remove(node) => {
                end.incomplete.retain(|_, sender| *sender != node);
                (node, Command::PeerRemove(node))
            }
        };
        // A member that is gone is refused.
        if let Ok(Some(op)) = end.node.command(now, command) {
            end.incomplete.insert(op, sender);
        }
    }

    fn poll(&mut self, at: usize) {
        let now = self.now;
        loop {
            let mut space = [0; HEAD_MAX];
            let mut head = Writer::new(&mut space);
            let output = self.ends[at].node.poll(now, &mut head);
            self.ends[at].node.invariants();
            match output {
                Output::Transmit(t) => {
                    let mut datagram = head.to_vec();
                    if let Some(payload) = t.payload {
                        datagram.resize(datagram.len() + payload.len() as usize, 0);
                        self.act(at, 1, Act::Sent(t.token));
                    }
                    for to in 0..self.ends.len() {
                        let meant = match t.to {
                            Dest::Address(_) => to != at,
                            Dest::Node(n) => n.0 == to as u32 * 3,
                        };
                        if meant && !self.rng.chance(self.loss) {
                            let when = self.soon(1);
                            self.ends[to].inbox.insert(when, datagram.clone());
                        }
                    }
                }
                Output::Place(_, extent) => self.act(at, 2, Act::Placed(extent)),
                Output::DecodeParity(block, lacking) => {
                    for extent in block.extents(lacking) {
                        self.act(at, 2, Act::Placed(extent));
                    }
                }
                Output::Event(Event::Complete(op)) => {
                    self.ends[at].incomplete.remove(&op);
                }
                Output::Event(Event::Mismatch(_)) => self.ends[at].mismatches += 1,
                Output::Wait(until) => {
                    assert!(until.is_none_or(|t| t > now), "{until:?} at {now:?}");
                    self.ends[at].wake = until.unwrap_or(Time::NEVER);
                    self.waits += 1;
                    return;
                }
                _ => {}
            }
        }
    }

    fn counters(&self) -> impl Iterator<Item = Counters> {
        self.ends.iter().map(|e| e.node.counters())
    }
}

const SCHEMES: [&str; 6] = [
    "auto",
    "auto+piggyback",
    "tree(2)",
    "coroot(2)+piggyback",
    "skewed(4)",
    "auto+credits",
];

/// Everything completes with each kind of feedback topology, which is what forgotten streams would
/// prevent.
#[test]
fn no_stream_is_forgotten_where_every_member_sends() {
    for (i, scheme) in SCHEMES.into_iter().enumerate() {
        for seed in 0..4 {
            let mut world = World::new(seed, scheme, 4 + 3 * (seed as u32 % 3), 0.1);
            world.begin(false);
            world.run();
            for (at, end) in world.ends.iter().enumerate() {
                assert!(
                    end.incomplete.is_empty(),
                    "{scheme}, seed {seed}: {at} waits for {:?}",
                    end.incomplete
                );
                assert_eq!(end.wake, Time::NEVER, "{scheme}, seed {seed}: {at}");
            }
            let members = world.ends.len() as u64;
            assert!(world.waits > members * members, "{}", world.waits);
            let relayed: u64 = world.counters().map(|c| c.repairs_unicast).sum();
            assert!(i != 3 || relayed > 0, "co-roots repair");
            let piggybacked: u64 = world.counters().map(|c| c.feedback_piggybacked).sum();
            assert!(!scheme.contains("piggyback") || piggybacked > 0);
        }
    }
}

/// The others' broadcasts complete although a member goes in the midst.
#[test]
fn no_stream_is_forgotten_when_a_member_goes() {
    for scheme in SCHEMES {
        for seed in 10..13 {
            let mut world = World::new(seed, scheme, 7, 0.1);
            world.begin(false);
            let gone = world.rng.below(7) as u32 * 3;
            for at in (0..7).filter(|&at| at as u32 * 3 != gone) {
                world.act(at, 25, Act::Remove(NodeId(gone)));
            }
            world.run();
            for (at, end) in world.ends.iter().enumerate() {
                let waits = at as u32 * 3 != gone && !end.incomplete.is_empty();
                assert!(!waits, "{scheme}, seed {seed}: {at} waits");
            }
        }
    }
}

/// Queries are streams' business, too: a receiver whose operation has another length asks.
#[test]
fn no_query_is_forgotten() {
    let mut mismatches = 0;
    for scheme in SCHEMES {
        for seed in 20..22 {
            let mut world = World::new(seed, scheme, 6, 0.05);
            world.begin(true);
            let stop = Time::ZERO + Duration::from_millis(500);
            while let Some(at) = (0..6).min_by_key(|&at| world.next(at))
                && world.next(at) < stop
            {
                world.now = world.next(at);
                world.step(at);
            }
            mismatches += world.ends.iter().map(|e| e.mismatches).sum::<u32>();
        }
    }
    assert!(mismatches > 10, "{mismatches}");
}
