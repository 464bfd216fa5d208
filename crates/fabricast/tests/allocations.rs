//! A driver's steps do not allocate while data pass, once queues have grown. This includes losses,
//! feedback, and coded repairs that are encoded and decoded.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use fabricast::driver::Driver;
use fabricast::object::Memory;
use fabricast::proto::rng::Rng;
use fabricast::proto::{
    AddressId, Command, Config, Dest, Event, GroupId, Node, NodeId, Seq, Session, Time,
};
use fabricast::transport::{
    Arrival, Caps, DatagramId, GroupAddress, NodeAddress, Outgoing, SLOTS, Sleeper, Slots,
    Transport, Watch,
};

const GROUP: GroupId = GroupId(1);
const RECEIVERS: u32 = 3;
const PAYLOAD: u32 = 200;
/// Data packets before which allocations are not counted: more than the window has slots.
const WARM: u64 = 20_000;
/// All data packets of the object.
const PACKETS: u32 = 40_000;
const LOSS: f64 = 0.02;
const DELAY: Duration = Duration::from_micros(50);
/// Largest datagram, in bytes.
const DATAGRAM_MAX: usize = 1500;
/// Largest number of datagrams in transit to a node.
const ON_THE_WAY: usize = 4096;

/// The datagrams in transit to a node, and free buffers.
struct Inbox {
    coming: VecDeque<(Time, Vec<u8>)>,
    free: Vec<Vec<u8>>,
}

/// One node's end of a network that loses datagrams and allocates nothing.
struct Port {
    me: u32,
    inboxes: Rc<RefCell<Vec<Inbox>>>,
    rng: Rng,
    slots: Slots,
    sent: Vec<DatagramId>,
}

impl Transport for Port {
    fn caps(&self) -> Caps {
        Caps::datagrams(DATAGRAM_MAX)
    }
    fn backlog(&self, _: u32) -> u32 {
        ON_THE_WAY as u32
    }
    fn address(&self) -> NodeAddress {
        NodeAddress::Number(self.me)
    }
    fn peer(&mut self, _: NodeId, _: &NodeAddress) {}
    fn forget(&mut self, _: NodeId) {}
    fn join(&mut self, _: AddressId, _: &GroupAddress, _: bool) {}
    fn leave(&mut self, _: AddressId) {}
    fn slots(&mut self) -> &mut Slots {
        &mut self.slots
    }

    fn send(&mut self, now: Time, batch: &[Outgoing<'_>]) -> io::Result<usize> {
        for d in batch {
            for (i, inbox) in (0u32..).zip(self.inboxes.borrow_mut().iter_mut()) {
                let meant = match d.to {
                    Dest::Address(_) => i != self.me,
                    Dest::Node(n) => i == n.0,
                };
                if !meant || self.rng.chance(LOSS) {
                    continue;
                }
                let mut bytes = inbox.free.pop().expect("a free buffer");
                bytes.clear();
                for piece in self.slots.pieces(d) {
                    bytes.extend_from_slice(piece);
                }
                inbox.coming.push_back((now + DELAY, bytes));
            }
        }
        self.sent.extend(batch.iter().map(|d| d.id));
        Ok(batch.len())
    }

    fn completions(&mut self, _: Time, done: &mut dyn FnMut(DatagramId)) {
        self.sent.drain(..).for_each(done);
    }

    fn recv(&mut self, now: Time, sink: &mut dyn FnMut(&mut Arrival<'_>)) -> io::Result<usize> {
        let inbox = &mut self.inboxes.borrow_mut()[self.me as usize];
        let mut count = 0;
        while count < 64 && inbox.coming.front().is_some_and(|d| d.0 <= now) {
            let Some((at, mut bytes)) = inbox.coming.pop_front() else {
                break;
            };
            let from = fabricast::proto::wire::source(&bytes);
            sink(&mut Arrival::borrowed(from, at, &mut bytes));
            inbox.free.push(bytes);
            count += 1;
        }
        Ok(count)
    }

    fn attach(&mut self, _: &Sleeper) -> io::Result<Box<dyn Watch>> {
        unreachable!("no thread sleeps")
    }

    fn wait(&mut self, _: Option<Duration>) -> io::Result<()> {
        Ok(())
    }
}

fn driver(scheme: &str, me: u32, inboxes: &Rc<RefCell<Vec<Inbox>>>) -> Driver<Port, Memory> {
    let config = Config {
        node: NodeId(me),
        session: Session(7),
        scheme: scheme.parse().expect("a scheme"),
        unexpected_max: 0,
        backlog: 1000,
        rate: Some(20_000_000),
        patience: Duration::from_secs(60),
    };
    let port = Port {
        me,
        inboxes: Rc::clone(inboxes),
        rng: Rng::new(u64::from(me)),
        slots: Slots::new(DATAGRAM_MAX),
        sent: Vec::with_capacity(SLOTS),
    };
    let mut driver = Driver::new(Node::new(config, 1), port);
    let add = Command::GroupAdd {
        group: GROUP,
        address: Some(AddressId(GROUP.0)),
        members: (0..=RECEIVERS).map(NodeId).collect(),
        payload_size: PAYLOAD,
        start: Seq(0),
    };
    driver.command(Time::ZERO, add).expect("a new group");
    let len = (PACKETS * PAYLOAD) as usize;
    let begun = match me {
        0 => {
            let bytes = (0..len).map(|i| (i % 251) as u8).collect();
            let sent = driver.bcast(Time::ZERO, GROUP, Memory::new(bytes));
            sent.map(|(op, _)| op)
        }
        _ => driver.post(Time::ZERO, GROUP, NodeId(0), Memory::room(len)),
    };
    assert!(begun.is_ok());
    driver
}

#[test]
fn a_step_with_data_allocates_nothing() {
    no_step_allocates("auto", 0);
}

#[test]
fn steps_with_parity_packets_hardly_ever_allocate() {
    // A queue may still grow when more blocks than ever before are incomplete at once.
    no_step_allocates("auto+blocks", 3);
}

fn no_step_allocates(scheme: &str, peaks: u64) {
    let inbox = |_| Inbox {
        coming: VecDeque::with_capacity(ON_THE_WAY),
        free: (0..ON_THE_WAY).map(|_| Vec::with_capacity(1500)).collect(),
    };
    let inboxes = Rc::new(RefCell::new((0..=RECEIVERS).map(inbox).collect()));
    let mut drivers: Vec<_> = (0..=RECEIVERS)
        .map(|i| driver(scheme, i, &inboxes))
        .collect();
    let mut wakes = vec![Time(1); drivers.len()];
    let (mut complete, mut warm) = (0, false);
    // Number of steps, and of allocations in them, of the root and of the receivers.
    let mut counted = [(0u64, 0u64); 2];
    while complete < drivers.len() {
        let next = |i: usize| {
            let coming = inboxes.borrow()[i].coming.front().map(|d| d.0);
            coming.map_or(wakes[i], |at| at.min(wakes[i]))
        };
        let (now, i) = (0..drivers.len())
            .map(|i| (next(i), i))
            .min()
            .expect("nodes");
        assert!(now < Time::NEVER, "everybody waits for ever");
        let driver = &mut drivers[i];
        let counters = driver.node().counters();
        warm |= counters.data >= WARM;
        let mut step = None;
        let allocations = allocation_counter::measure(|| step = driver.step(now).ok());
        let wake = step.expect("no error").wake.unwrap_or(Time::NEVER);
        wakes[i] = wake.max(Time(now.0 + 1));
        while let Some(event) = driver.event() {
            complete += usize::from(matches!(event, Event::Complete(_)));
        }
        // What happens at the end of the object is not part of the data path.
        if warm && counters.data.max(counters.received) < u64::from(PACKETS) {
            let side = &mut counted[usize::from(i != 0)];
            side.0 += 1;
            side.1 += allocations.count_total;
        }
    }
    let root = drivers[0].node().counters();
    assert!(root.repairs_coded > 100, "{root:?}");
    let [(root, at_root), (receivers, at_receivers)] = counted;
    assert!(root > 500 && receivers > 1_000, "{counted:?}");
    assert!(
        at_root <= peaks,
        "{at_root} allocations in {root} steps of the root"
    );
    assert!(
        at_receivers <= peaks,
        "{at_receivers} allocations in {receivers} steps of receivers"
    );
}
