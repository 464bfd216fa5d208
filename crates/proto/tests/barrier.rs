//! Tests of barriers between whole nodes, on a small simulated network: every datagram takes the
//! same time, and a test chooses the lost ones. The simulator does the same on a larger scale.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use fabricast_proto::limits::HEAD_MAX;
use fabricast_proto::wire::{self, Frame, Header, Word, Writer, flag};
use fabricast_proto::{
    AddressId, Barrier, Command, Config, Dest, Event, GroupId, Node, NodeId, OpId, Output, Reached,
    Refused, Scheme, Seq, Session, Time, limits,
};

const GROUP: GroupId = GroupId(5);
const SESSION: Session = Session(7);
const WAY: Duration = Duration::from_micros(20);
/// Start of the barriers' count: the number wraps early, so that the third barrier is beyond the
/// wrap.
const START: Seq = Seq(u32::MAX - 1);
const CENTRAL: Barrier = Barrier::Central;

/// A datagram under way: time of arrival, receiving node, bytes.
type Flying = (Time, usize, Vec<u8>);

/// Decides whether the network loses a word to this destination on its way to a node.
type Lose = Box<dyn FnMut(Dest, usize, &Word) -> bool>;

struct Net {
    nodes: Vec<Node>,
    now: Time,
    flying: VecDeque<Flying>,
    wakes: Vec<Option<Time>>,
    /// The events of each node, with their times.
    events: Vec<Vec<(Time, Event)>>,
    /// Chooses the words that are lost.
    lose: Lose,
    sent: usize,
    /// The node that holds barriers before their last round.
    held: Option<usize>,
    /// Whether callers wait for the end of barriers that nodes enter.
    awaited: bool,
}

impl Net {
    fn new(size: u32) -> Net {
        let nodes = (0..size).map(|i| {
            let config = Config {
                node: NodeId(10 * i),
                session: SESSION,
                scheme: Scheme::auto(),
                unexpected_max: 0,
                backlog: 64,
                rate: None,
                patience: Duration::from_secs(60),
            };
            let mut node = Node::new(config, 1);
            let add = Command::GroupAdd {
                group: GROUP,
                address: Some(AddressId(GROUP.0)),
                members: (0..size).map(|i| NodeId(10 * i)).collect(),
                payload_size: 64,
                start: START,
            };
            node.command(Time::ZERO, add).expect("a new node");
            node
        });
        Net {
            nodes: nodes.collect(),
            now: Time(1),
            flying: VecDeque::new(),
            wakes: vec![None; size as usize],
            events: vec![Vec::new(); size as usize],
            lose: Box::new(|_, _, _| false),
            sent: 0,
            held: None,
            awaited: true,
        }
    }

    fn enter(&mut self, i: usize, algorithm: Barrier) -> OpId {
        let command = Command::Barrier {
            group: GROUP,
            algorithm,
            held: self.held == Some(i),
            awaited: self.awaited,
        };
        let op = self.nodes[i].command(self.now, command);
        let op = op.expect("there is room").expect("barriers are numbered");
        self.drain(i);
        op
    }

    fn proceed(&mut self, i: usize) {
        let done = self.nodes[i].command(self.now, Command::Release(GROUP));
        assert_eq!(done, Ok(None));
        self.drain(i);
    }

    fn drain(&mut self, i: usize) {
        loop {
            let mut space = [0; HEAD_MAX];
            let mut head = Writer::new(&mut space);
            let output = self.nodes[i].poll(self.now, &mut head);
            self.nodes[i].invariants();
            match output {
                Output::Transmit(t) => self.send(i, t.to, &head),
                Output::Event(event) => self.events[i].push((self.now, event)),
                Output::Wait(wake) => {
                    assert!(wake.is_none_or(|t| t > self.now));
                    self.wakes[i] = wake;
                    return;
                }
                other => panic!("{other:?} in a barrier"),
            }
        }
    }

    fn send(&mut self, from: usize, to: Dest, head: &[u8]) {
        self.sent += 1;
        assert!(self.sent < 100_000, "they never stop");
        let datagram = wire::decode(head).expect("what a node writes can be read");
        let word = match datagram.frames().next() {
            Some(Frame::Word(word)) => Some(word),
            Some(Frame::Query(_) | Frame::Reply(_)) => None,
            other => panic!("{other:?} in a barrier"),
        };
        let all = 0..self.nodes.len();
        for i in all.filter(|&i| i != from) {
            let meant = match to {
                Dest::Address(_) => true,
                Dest::Node(n) => n == NodeId(10 * i as u32),
            };
            if meant && !word.is_some_and(|word| (self.lose)(to, i, &word)) {
                self.flying.push_back((self.now + WAY, i, head.to_vec()));
            }
        }
    }

    fn tell(&mut self, from: usize, to: usize, frame: Frame<'_>) {
        let header = Header {
            burst: 0,
            source: NodeId(10 * from as u32),
            session: SESSION,
        };
        self.nodes[to].packet(self.now, self.now, &header, &frame);
        self.drain(to);
    }

    fn hear(&mut self, to: usize, bytes: &[u8]) {
        let datagram = wire::decode(bytes).expect("what a node writes can be read");
        for frame in datagram.frames() {
            self.nodes[to].packet(self.now, self.now, &datagram.header, &frame);
        }
        self.drain(to);
    }

    /// Runs until this time, or until no datagram is under way and no node waits for a time.
    fn run(&mut self, until: Time) {
        loop {
            let arrival = self.flying.front().map(|f| f.0);
            let wake = self.wakes.iter().flatten().min().copied();
            let Some(next) = arrival
                .into_iter()
                .chain(wake)
                .min()
                .filter(|&t| t <= until)
            else {
                break;
            };
            self.now = next;
            while self.flying.front().is_some_and(|f| f.0 <= next) {
                if let Some((_, to, bytes)) = self.flying.pop_front() {
                    self.hear(to, &bytes);
                }
            }
            for i in 0..self.nodes.len() {
                if self.wakes[i].is_some_and(|t| t <= next) {
                    self.drain(i);
                }
            }
        }
        if until < Time::NEVER {
            self.now = until;
        }
    }

    fn silence(&mut self) {
        self.run(Time::NEVER);
        for node in &self.nodes {
            assert!(node.is_quiet(self.now, GROUP));
        }
    }

    fn count(&self, event: impl Fn(Event) -> bool) -> Vec<usize> {
        let events = self.events.iter();
        events
            .map(|e| e.iter().filter(|e| event(e.1)).count())
            .collect()
    }

    /// Number of words by which nodes have probed others.
    fn probes(&self) -> u64 {
        self.nodes.iter().map(|n| n.counters().words_again).sum()
    }

    fn completed(&self) -> Vec<usize> {
        self.count(|e| matches!(e, Event::Complete(_)))
    }
}

fn ms(n: u64) -> Time {
    Time::ZERO + Duration::from_millis(n)
}

const PRESETS: [Barrier; 9] = [
    Barrier::Dissemination { ways: 1 },
    Barrier::Dissemination { ways: 3 },
    CENTRAL,
    Barrier::CombiningTree { fanout: 2 },
    Barrier::Mcs,
    Barrier::Tournament,
    Barrier::Bst,
    Barrier::Butterfly,
    Barrier::Release { fanout: 3 },
];

#[test]
fn nobody_leaves_before_the_last_has_entered_and_then_there_is_silence() {
    for size in 1..=9 {
        for algorithm in PRESETS {
            let mut net = Net::new(size);
            for number in 1..=3 {
                for i in 0..size as usize {
                    assert!(net.completed().iter().all(|&c| c < number), "{algorithm}");
                    net.enter(i, algorithm);
                    let next = net.now + Duration::from_micros(30);
                    net.run(next);
                }
                net.silence();
                assert_eq!(net.completed(), vec![number; size as usize], "{algorithm}");
            }
            assert_eq!(net.nodes[0].counters().foreign, 0);
        }
    }
}

#[test]
fn barriers_back_to_back_need_no_acknowledgements() {
    for algorithm in PRESETS {
        let mut net = Net::new(8);
        for i in 0..8 {
            for _ in 0..50 {
                net.enter(i, algorithm);
            }
        }
        net.run(ms(50));
        assert_eq!(net.completed(), [50; 8], "{algorithm}");
        let again = net.probes();
        // Nodes send again only words of the last barrier, each once. After a word to the group, a
        // node probes each of the seven others separately.
        let last: u64 = net.nodes.iter().map(|n| n.counters().words / 50).sum();
        assert!(again <= last + 7, "{algorithm}: {again} of {last}");
    }
}

#[test]
fn every_first_word_may_be_lost() {
    for algorithm in PRESETS {
        let mut net = Net::new(8);
        let mut seen = BTreeSet::new();
        net.lose = Box::new(move |_, to, w| {
            let heard = w.heard.map(|h| (h.count.0, h.round));
            seen.insert((to, w.at.count.0, w.at.round, heard, w.flags))
        });
        for number in 1..=3 {
            (0..8).for_each(|i| _ = net.enter(i, algorithm));
            net.silence();
            assert_eq!(net.completed(), [number; 8], "{algorithm}");
        }
    }
}

#[test]
fn who_enters_late_is_waited_for_with_ever_more_patience() {
    for algorithm in PRESETS {
        let mut net = Net::new(4);
        (0..3).for_each(|i| _ = net.enter(i, algorithm));
        net.run(ms(20_000));
        assert_eq!(net.completed(), [0; 4]);
        assert!(net.sent < 1000, "{algorithm}: {} in 20 s", net.sent);
        net.enter(3, algorithm);
        // Nothing was lost, so that no node waits for a probe.
        net.run(ms(20_001));
        assert_eq!(net.completed(), [1; 4], "{algorithm}");
        net.silence();
    }
}

#[test]
fn nobody_probes_soon_in_a_barrier_that_no_caller_waits_for() {
    for lost in [false, true] {
        let mut net = Net::new(4);
        net.awaited = false;
        net.lose = Box::new(move |to, i, _| lost && matches!(to, Dest::Address(_)) && i == 2);
        for i in 0..4 {
            net.run(net.now + Duration::from_millis(5));
            assert_eq!(net.probes(), 0);
            net.enter(i, Barrier::Release { fanout: 4 });
        }
        net.silence();
        assert_eq!(net.completed(), [1; 4]);
        // Rank 0 soon asks whether the others have heard the last word.
        assert_eq!(net.probes(), 3);
        let ended = net.events.iter().flatten().map(|e| e.0).max();
        assert!(ended < Some(ms(30)), "{ended:?}");
    }
}

#[test]
fn who_hears_no_multicast_is_told_by_unicast() {
    for number in [1, 2] {
        let mut net = Net::new(5);
        net.lose = Box::new(|dest, to, _| matches!(dest, Dest::Address(_)) && to == 3);
        for _ in 0..number {
            (0..5).for_each(|i| _ = net.enter(i, Barrier::Release { fanout: 4 }));
            net.silence();
        }
        assert_eq!(net.completed(), [number; 5]);
    }
}

#[test]
fn of_two_nobody_multicasts() {
    let mut net = Net::new(2);
    net.lose = Box::new(|dest, _, _| matches!(dest, Dest::Address(_)));
    (0..2).for_each(|i| _ = net.enter(i, Barrier::Release { fanout: 2 }));
    net.run(ms(1));
    assert_eq!(net.completed(), [1; 2]);
}

#[test]
fn other_algorithms_are_noticed_by_all() {
    for (a, b) in [(0, 2), (2, 0), (5, 8), (8, 5), (0, 1)] {
        for odd in 0..5 {
            let mut net = Net::new(5);
            for i in 0..5 {
                net.enter(i, if i == odd { PRESETS[a] } else { PRESETS[b] });
                net.enter(i, PRESETS[b]);
            }
            net.silence();
            assert_eq!(net.completed(), [0; 5]);
            let over = |e| matches!(e, Event::Mismatch(_) | Event::Failed(_));
            assert_eq!(net.count(over), [2; 5], "{} {}", PRESETS[a], PRESETS[b]);
            assert!(
                net.count(|e| matches!(e, Event::Mismatch(_)))
                    .iter()
                    .sum::<usize>()
                    > 0
            );
            // All later barriers fail, too.
            net.enter(0, PRESETS[b]);
            assert_eq!(net.count(over)[0], 3);
        }
    }
}

#[test]
fn the_barriers_of_two_who_have_parted_fail_at_all_others_too() {
    for algorithm in PRESETS {
        let mut net = Net::new(5);
        (0..4).for_each(|i| _ = net.enter(i, algorithm));
        net.run(ms(5));
        for (me, other) in [(1, 4), (4, 1)] {
            let gone = Command::PeerRemove(NodeId(10 * other));
            net.nodes[me].command(net.now, gone).expect("always done");
            net.drain(me);
        }
        assert!(matches!(net.events[1][..], [(_, Event::Failed(_))]));
        net.silence();
        let failed = |net: &Net| net.count(|e| matches!(e, Event::Failed(_)));
        assert_eq!(failed(&net), [1, 1, 1, 1, 0], "{algorithm}");
        net.enter(4, algorithm);
        assert_eq!(failed(&net), [1; 5]);
    }
}

#[test]
fn who_holds_a_barrier_keeps_the_others_in_it() {
    let gathered = |net: &Net| net.count(|e| matches!(e, Event::Arrived(_)));
    for algorithm in [
        CENTRAL,
        Barrier::Release { fanout: 3 },
        Barrier::Release { fanout: 2 },
    ] {
        for size in 2..=5 {
            let mut net = Net::new(size);
            let n = size as usize;
            net.held = Some(0);
            for round in 1..=3 {
                net.enter(0, algorithm);
                (2..n).for_each(|i| _ = net.enter(i, algorithm));
                // This release is too early: node 0 has not stopped yet. It has no effect.
                net.proceed(0);
                net.run(net.now + Duration::from_millis(20));
                assert_eq!(gathered(&net)[0], round - 1);
                net.enter(1, algorithm);
                net.run(net.now + Duration::from_millis(20));
                assert_eq!(gathered(&net)[0], round);
                assert_eq!(net.completed(), vec![round - 1; n], "{algorithm} of {size}");
                net.proceed(0);
                net.silence();
                assert_eq!(net.completed(), vec![round; n], "{algorithm} of {size}");
            }
            assert_eq!(gathered(&net)[1..], vec![0; n - 1]);
        }
    }
}

#[test]
fn so_many_may_be_outstanding() {
    let mut net = Net::new(3);
    for _ in 0..limits::BARRIERS_MAX {
        net.enter(0, CENTRAL);
    }
    let command = Command::Barrier {
        group: GROUP,
        algorithm: CENTRAL,
        held: false,
        awaited: true,
    };
    assert_eq!(
        net.nodes[0].command(net.now, command.clone()),
        Err(Refused::Busy)
    );
    for i in [1, 2] {
        (0..limits::BARRIERS_MAX).for_each(|_| _ = net.enter(i, CENTRAL));
    }
    net.silence();
    assert_eq!(net.completed(), [limits::BARRIERS_MAX; 3]);
    assert!(net.nodes[0].command(net.now, command).is_ok());
}

#[test]
fn words_that_cannot_be_true_are_dropped() {
    let at = |count: u32, round| Reached {
        count: START + count,
        round,
    };
    let word = |at, heard| Word {
        group: GROUP,
        at,
        heard,
        barrier: Some(CENTRAL),
        flags: flag::ACK_REQUEST,
    };
    let mut net = Net::new(3);
    net.enter(0, CENTRAL);
    let foreign = |net: &Net| net.nodes[0].counters().foreign;
    // The words claim to be two barriers ahead of this node, or far behind, or to have heard a word
    // that this node never sent.
    for bad in [
        word(at(3, 0), None),
        word(at(1 << 31, 0), None),
        word(at(u32::MAX, 2), None),
        word(at(1, 0), Some(at(1, 1))),
        word(at(1, 0), Some(at(2, 0))),
    ] {
        let (before, sent) = (foreign(&net), net.sent);
        net.tell(1, 0, Frame::Word(bad));
        assert_eq!(foreign(&net), before + 1, "{bad:?}");
        assert_eq!(net.sent, sent, "answered: {bad:?}");
    }
    net.tell(1, 0, Frame::Word(word(at(1, 0), Some(at(1, 0)))));
    assert_eq!(foreign(&net), 5);
    assert_eq!(net.nodes[0].counters().words_answered, 1);
}

#[test]
fn who_forges_words_ends_no_barrier() {
    let forged = |count: u32, barrier, flags| Word {
        group: GROUP,
        at: Reached {
            count: START + count,
            round: 0,
        },
        heard: None,
        barrier: Some(barrier),
        flags,
    };
    let other = Barrier::Mcs;
    // The words claim that the barriers have ended, or name another algorithm, for the current
    // barrier and for the next.
    for (word, early) in [
        (forged(1, CENTRAL, flag::ENDED), false),
        (forged(0, CENTRAL, flag::ENDED | flag::ACK_REQUEST), true),
        (forged(1, other, 0), false),
        (forged(1, other, 0), true),
    ] {
        let mut net = Net::new(3);
        if early {
            net.tell(1, 0, Frame::Word(word));
        }
        net.enter(0, CENTRAL);
        net.enter(2, CENTRAL);
        let reply = wire::Reply {
            group: GROUP,
            nonce: 0,
            op: None,
            at: word.at,
            barrier: word.barrier,
            ended: true,
        };
        for at in [1, 50] {
            net.run(ms(at));
            net.tell(1, 0, Frame::Word(word));
            // The forger cannot see the nonce of the query that it has caused.
            net.tell(1, 0, Frame::Reply(reply));
        }
        net.run(ms(60));
        // The node does not believe the word's other fields either: it does not count as entered.
        assert_eq!(net.completed(), [0; 3], "{word:?}");
        net.enter(1, CENTRAL);
        net.silence();
        assert_eq!(net.completed(), [1; 3], "{word:?}");
        // A reply without a query has no effect either.
        net.tell(1, 0, Frame::Reply(reply));
        (0..3).for_each(|i| _ = net.enter(i, CENTRAL));
        net.silence();
        assert_eq!(net.completed(), [2; 3], "{word:?}");
        let ended = |e| !matches!(e, Event::Complete(_));
        assert_eq!(net.count(ended), [0; 3], "{word:?}");
    }
}
