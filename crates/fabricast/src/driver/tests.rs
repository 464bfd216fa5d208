//! A node, its transport and its objects.

mod members;

use std::cell::{Cell, RefCell};
use std::net::{Ipv4Addr, UdpSocket};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use fabricast_proto::wire::{Declined, Feedback, Header, Probe, Ranges, Writer};
use fabricast_proto::{AddressId, Admission, Config, Scheme, Seq, Session, Slot};

use super::outbox::{GRACE, LATE_MAX};
use super::*;
use crate::interface::Interface;
use crate::object::{Fetch, Memory};
use crate::object::{Written, testing::overwrite};
use crate::transport::delayed::{Delayed, Delays};
use crate::transport::testing::Wire;
use crate::transport::udp::{Udp, UdpConfig};

const G: GroupId = GroupId(1);
const SESSION: Session = Session(7);
const PAYLOAD: u32 = 1000;

fn node(me: u32, others: &[u32]) -> Node {
    node_with(me, others, Scheme::auto())
}

fn node_with(me: u32, others: &[u32], scheme: Scheme) -> Node {
    let config = Config {
        node: NodeId(me),
        session: SESSION,
        scheme,
        unexpected_max: 0,
        backlog: 64,
        rate: Some(1 << 30),
        patience: Duration::from_secs(10),
    };
    let mut node = Node::new(config, 1);
    let add = Command::GroupAdd {
        group: G,
        address: Some(AddressId(G.0)),
        members: others.iter().copied().chain([me]).map(NodeId).collect(),
        payload_size: PAYLOAD,
        start: Seq(0),
    };
    node.command(Time::ZERO, add).unwrap();
    node
}

/// A datagram of node `source`, whose frame `put` writes.
fn said(source: u32, put: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
    let header = Header {
        burst: 0,
        source: NodeId(source),
        session: SESSION,
    };
    wire::head(|out| {
        wire::put_header(out, &header);
        put(out);
    })
}

fn probe(source: u32, nonce: u32) -> Vec<u8> {
    let probe = Probe {
        group: G,
        nonce,
        flags: 0,
        only: None,
        by: None,
    };
    said(source, |out| wire::put_probe(out, &probe, 100))
}

/// A datagram in which node 2 has posted what node 1 sends, has placed everything before packet
/// `end`, and has room for packets up to number 1000.
fn report(end: u32) -> Vec<u8> {
    let feedback = Feedback {
        group: G,
        sender: NodeId(1),
        cum: Seq(end),
        cum_subtree: Seq(end),
        limit: Seq(1000),
        high: Seq(end),
        received: end,
        arrived_us: 0,
        held_us: 0,
        burst: 0,
        flags: 0,
        slot: None,
        declined: Declined::NONE,
        missing: Ranges::NONE,
    };
    said(2, |out| wire::put_feedback(out, &feedback, [].into_iter()))
}

impl Wire {
    /// Numbers of the data packets sent since the last call, and nonces of the answers to probes.
    fn taken(&mut self) -> (Vec<u32>, Vec<u32>) {
        let (mut data, mut answers) = (Vec::new(), Vec::new());
        for bytes in self.sent.drain(..) {
            for frame in wire::decode(&bytes).unwrap().frames() {
                match frame {
                    Frame::Data(d) => {
                        assert_eq!(d.payload, [d.seq.0 as u8; PAYLOAD as usize]);
                        data.push(d.seq.0);
                    }
                    Frame::ProbeAck(p) => answers.push(p.nonce),
                    _ => {}
                }
            }
        }
        (data, answers)
    }
}

/// What a test says about the payloads of an object, also while the driver has it.
#[derive(Default)]
struct Source {
    late: RefCell<Range<u64>>,
    failed: Cell<bool>,
}

/// An object of payloads that consist of their own number. Some are late, or the object has failed.
struct Chunks {
    bytes: Vec<u8>,
    source: Rc<Source>,
}

impl Chunks {
    fn new(count: u32, late: Range<u64>) -> Chunks {
        let bytes = (0..count).flat_map(|n| [n as u8; PAYLOAD as usize]);
        Chunks {
            bytes: bytes.collect(),
            source: Rc::new(Source {
                late: RefCell::new(late),
                ..Source::default()
            }),
        }
    }
}

// SAFETY: it is not stable.
#[allow(unsafe_code)]
unsafe impl Object for Chunks {
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }
    fn fetch(&mut self, offset: u64, _: u32) -> Fetch {
        let late = self.source.late.borrow();
        match late.contains(&(offset / u64::from(PAYLOAD))) {
            _ if self.source.failed.get() => Fetch::Failed,
            true => Fetch::Later,
            false => Fetch::Ready,
        }
    }
    fn bytes(&self, offset: u64, len: u32) -> &[u8] {
        &self.bytes[offset as usize..][..len as usize]
    }
    fn write(&mut self, _: u64, _: &[u8]) -> Written {
        Written::Failed
    }
    fn progress(&mut self, _: &mut dyn FnMut(u64, u32, Outcome)) {}
}

/// From now on these payloads of the object are late.
fn is_late(driver: &Driver<Delayed<Wire>, Chunks>, op: OpId, late: Range<u64>) {
    driver.object(op).unwrap().source.late.replace(late);
}

const MS: Duration = Duration::from_millis(1);
const START: Time = Time(1);

/// A root that sends `count` payloads to node 2, which has room for them.
fn root(count: u32, late: Range<u64>) -> (Driver<Delayed<Wire>, Chunks>, OpId) {
    let mut driver = Driver::new(node(1, &[2, 3]), Delayed::in_tests(Wire::new(), 1));
    driver
        .command(START, Command::PeerRemove(NodeId(3)))
        .unwrap();
    let chunks = Chunks::new(count, late);
    let (op, _) = driver.bcast(START, G, chunks).map_err(|e| e.0).unwrap();
    driver.inner_mut().inbox.push_back(report(0));
    (driver, op)
}

/// Steps once, and again while the network has not read everything, if all tests are over networks
/// that read late.
fn step<T: Transport, O: Object>(driver: &mut Driver<Delayed<T>, O>, now: Time) {
    driver.step(now).unwrap();
    settle(driver);
}

/// Steps while the network has not read everything.
fn settle<T: Transport, O: Object>(driver: &mut Driver<Delayed<T>, O>) {
    while let Some(due) = driver.net().late_until() {
        driver.step(due).unwrap();
    }
}

/// What was sent since the last call ([`Wire::taken`]).
fn taken(driver: &mut Driver<Delayed<Wire>, Chunks>) -> (Vec<u32>, Vec<u32>) {
    driver.inner_mut().taken()
}

/// Steps once a millisecond, and at once while the driver asks for that.
fn run(driver: &mut Driver<Delayed<Wire>, Chunks>, from: Time, until: Time) {
    let mut now = from;
    while now < until {
        let mut steps = 0;
        while driver.step(now).unwrap().wake.is_some_and(|at| at <= now) {
            steps += 1;
            assert!(steps < 1000, "it never rests");
        }
        now = now + MS;
    }
    settle(driver);
}

/// Its packets would not fit in the transport's slots.
#[test]
fn a_group_whose_packets_exceed_the_datagrams_is_refused() {
    let net = Delayed::in_tests(Wire::new(), 1);
    let fits = net.caps().datagram_max - Scheme::auto().data_overhead();
    let mut driver: Driver<_, Memory> = Driver::new(node(1, &[2]), net);
    let add = |group, payload_size| Command::GroupAdd {
        group: GroupId(group),
        address: None,
        members: vec![NodeId(1), NodeId(2)],
        payload_size,
        start: Seq(0),
    };
    let fits = fits as u32;
    let refused = driver.command(Time::ZERO, add(8, fits + 1));
    assert_eq!(refused, Err(Refused::PayloadSize));
    assert_eq!(driver.command(Time::ZERO, add(8, fits)), Ok(()));
    let join = Command::GroupJoin {
        group: GroupId(9),
        sender: NodeId(2),
        payload_size: fits + 1,
        admission: Admission {
            slot: Slot { index: 0, epoch: 1 },
            first: Seq(0),
            receivers: 2,
        },
    };
    assert_eq!(driver.command(Time::ZERO, join), Err(Refused::PayloadSize));
}

#[test]
fn what_is_late_lets_the_others_pass() {
    let (mut driver, op) = root(20, 3..6);
    run(&mut driver, START, START + 5 * MS);
    let (data, _) = taken(&mut driver);
    let others: Vec<u32> = (0..3).chain(6..20).collect();
    assert_eq!(data, others);
    driver.inner_mut().inbox.push_back(probe(2, 7));
    step(&mut driver, START + 6 * MS);
    assert_eq!(taken(&mut driver), (vec![], vec![7]));
    // The datagrams go in order as soon as their bytes are available.
    is_late(&driver, op, 4..6);
    step(&mut driver, START + 7 * MS);
    assert_eq!(taken(&mut driver).0, [3]);
    is_late(&driver, op, 0..0);
    step(&mut driver, START + 8 * MS);
    assert_eq!(taken(&mut driver).0, [4, 5]);
    assert_eq!(driver.counters().unread, 0);
}

#[test]
fn a_slow_source_holds_back_and_loses_nothing() {
    let (mut driver, op) = root(500, 0..500);
    let (mut now, mut all) = (START, Vec::new());
    // The source provides ten payloads each 9 ms: it is always late, and always comes in time.
    for there in (0..=500).step_by(10) {
        is_late(&driver, op, there..500);
        run(&mut driver, now, now + 9 * MS);
        now = now + 9 * MS;
        all.extend(taken(&mut driver).0);
    }
    let want: Vec<u32> = (0..500).collect();
    assert_eq!(all, want);
    assert_eq!(driver.counters().unread, 0);
}

#[test]
fn a_source_that_stands_still_does_not_silence_the_node() {
    let (mut driver, op) = root(900, 0..900);
    run(&mut driver, START, START + 5 * MS);
    driver.inner_mut().inbox.push_back(probe(2, 7));
    let after = START + GRACE + 10 * MS;
    run(&mut driver, START + 5 * MS, after);
    assert_eq!(taken(&mut driver), (vec![], vec![7]), "in the end");
    assert!(driver.counters().unread > 0);
    // From now on no datagram waits for the source.
    driver.inner_mut().inbox.push_back(probe(2, 8));
    step(&mut driver, after);
    // The second probe is answered twice.
    assert_eq!(taken(&mut driver), (vec![], vec![8, 8]));
    // When the source continues, the datagrams that were kept come first.
    is_late(&driver, op, 0..0);
    step(&mut driver, after + MS);
    let (data, _) = taken(&mut driver);
    let kept: Vec<u32> = (0..LATE_MAX as u32).collect();
    assert_eq!(data[..LATE_MAX], kept);
}

#[test]
fn a_failed_source_is_told_once_and_stops_nobody() {
    let (mut driver, op) = root(500, 0..0);
    driver.object(op).unwrap().source.failed.set(true);
    run(&mut driver, START, START + 20 * MS);
    driver.inner_mut().inbox.push_back(probe(2, 7));
    step(&mut driver, START + 20 * MS);
    assert_eq!(taken(&mut driver), (vec![], vec![7]));
    let events: Vec<_> = std::iter::from_fn(|| driver.event()).collect();
    let failed = |e: &&Event| matches!(e, Event::Failed(o) if *o == op);
    assert_eq!(events.iter().filter(failed).count(), 1, "{events:?}");
    assert!(driver.counters().unread > 1);
}

#[test]
fn a_forged_datagram_does_not_reach_the_node() {
    let config = UdpConfig {
        interface: Interface::Address(Ipv4Addr::LOCALHOST.into()),
        ..UdpConfig::default()
    };
    let mut udp = Udp::new(&config).unwrap();
    let (peer, liar) = ("127.0.0.1:0", "127.0.0.1:0");
    let [peer, liar] = [peer, liar].map(|a| UdpSocket::bind(a).unwrap());
    udp.peer(NodeId(2), &peer.local_addr().unwrap().into());
    let home = udp.local_addr();
    let mut driver: Driver<_, Memory> = Driver::new(node(1, &[2]), Delayed::in_tests(udp, 1));
    liar.send_to(&probe(2, 1), home).unwrap();
    peer.send_to(&probe(2, 2), home).unwrap();
    // The node answers what the driver hands it: only the true probe.
    peer.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    step(&mut driver, Time(1));
    let mut bytes = [0; 2000];
    let len = peer.recv(&mut bytes).unwrap();
    let answer = wire::decode(&bytes[..len]).unwrap();
    let nonces: Vec<_> = answer.frames().collect();
    assert!(
        matches!(nonces[..], [Frame::ProbeAck(p)] if p.nonce == 2),
        "{nonces:?}"
    );
    assert_eq!(driver.counters().foreign, 1);
}

/// A receiver pauses between two reads only when it is idle, so that one read does not limit it.
#[test]
fn nobody_is_idle_while_datagrams_wait() {
    const WAITING: u64 = 150;
    let config = UdpConfig {
        interface: Interface::Address(Ipv4Addr::LOCALHOST.into()),
        ..UdpConfig::default()
    };
    let mut udp = Udp::new(&config).unwrap();
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    udp.peer(NodeId(2), &peer.local_addr().unwrap().into());
    let home = udp.local_addr();
    let mut driver: Driver<_, Memory> = Driver::new(node(1, &[2]), Delayed::in_tests(udp, 1));
    for nonce in 0..WAITING as u32 {
        peer.send_to(&probe(2, nonce), home).unwrap();
    }
    while !driver.step(Time(1)).unwrap().is_idle(Time(1)) {}
    assert_eq!(driver.net().inner().counters().datagrams_received, WAITING);
}

/// Small objects are copied. The sender may change its bytes at once, and receivers get the bytes
/// that were sent.
#[test]
fn a_small_object_comes_back_at_once_and_a_large_one_when_all_have_it() {
    for (bytes, back) in [(20 * PAYLOAD, true), (20 * PAYLOAD - 1, false)] {
        let scheme = Scheme::auto().copied(bytes);
        let mut driver = Driver::new(
            node_with(1, &[2], scheme),
            Delayed::in_tests(Wire::new(), 1),
        );
        let chunks = Chunks::new(20, 0..0);
        let (op, back_already) = driver.bcast(START, G, chunks).map_err(|e| e.0).unwrap();
        assert!(driver.take(op).is_none());
        assert_eq!(driver.object(op).is_some(), !back);
        let message = back_already.map(|chunks| overwrite(Memory::new(chunks.bytes)));
        assert_eq!(message.is_some(), back);
        driver.inner_mut().inbox.push_back(report(0));
        run(&mut driver, START, START + 5 * MS);
        let want: Vec<u32> = (0..20).collect();
        assert_eq!(taken(&mut driver).0, want);
    }
    // Bytes that are not available yet cannot be copied: the driver reads them where they are.
    let scheme = Scheme::auto().copied(u32::MAX);
    let mut driver = Driver::new(
        node_with(1, &[2], scheme),
        Delayed::in_tests(Wire::new(), 1),
    );
    let chunks = Chunks::new(2, 0..1);
    let (_, taken) = driver.bcast(START, G, chunks).map_err(|e| e.0).unwrap();
    assert!(taken.is_none());
}

/// A root over a network that reads late, with an object that it lends.
fn late_root(len: u32) -> (Driver<Delayed<Wire>, Memory>, OpId) {
    let delays = Delays {
        seed: 3,
        longest: Duration::from_secs(1),
    };
    let wire = Delayed::new(Wire::new(), Some(delays));
    let mut driver = Driver::new(node(1, &[2]), wire);
    let bytes = (0..len).map(|i| (i / PAYLOAD) as u8).collect();
    let begun = driver.lend(START, G, Memory::new(bytes), true);
    let op = begun.map_err(|e| e.0).unwrap();
    driver.inner_mut().inbox.push_back(report(0));
    (driver, op)
}

#[test]
fn an_object_comes_back_only_when_the_network_reads_it_no_more() {
    let (mut driver, op) = late_root(20 * PAYLOAD);
    let mut now = START;
    // The pacer spreads the packets over some milliseconds.
    while driver.node().counters().data + driver.node().counters().data_unicast < 20 {
        driver.step(now).unwrap();
        now = now + MS;
        assert!(now < START + 50 * MS, "not all packets are posted");
    }
    // The receiver has everything, by whatever way, before the network has read anything.
    let has = report(20);
    driver.inner_mut().inbox.push_back(has);
    let (mut complete, mut early) = (false, 0);
    let object = loop {
        let step = driver.step(now).unwrap();
        while let Some(event) = driver.event() {
            complete |= matches!(event, Event::Complete(o) if o == op);
        }
        if let Some(object) = driver.take(op) {
            break overwrite(object);
        }
        early += u32::from(complete);
        assert!(driver.object(op).is_some());
        let due = driver.net().due().expect("datagrams are under way");
        assert!(step.wake.is_some_and(|wake| wake <= due));
        now = due;
    };
    assert!(
        complete && early > 0,
        "complete before it came back: {early}"
    );
    assert_eq!(object.len(), 20 * PAYLOAD as usize);
    assert!(driver.net().due().is_none());
    let (data, _) = driver.inner_mut().taken();
    assert_eq!(data, (0..20).collect::<Vec<u32>>());
}

#[test]
fn after_a_cancel_nothing_is_read() {
    let (mut driver, op) = late_root(20 * PAYLOAD);
    driver.step(START).unwrap();
    driver.cancel(START);
    assert!(driver.net().due().is_none());
    assert!(driver.object(op).is_some() && driver.net().inner().sent.is_empty());
}
