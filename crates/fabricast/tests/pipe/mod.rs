//! A third network beside UDP and shared memory: datagrams go from thread to thread.
//!
//! It does what sockets do not. A node has joined a group only some time after it began to. A
//! datagram that was sent is complete only when the sender next looks. Each datagram arrives in a
//! buffer of its own, which the receiver may keep. The network loses some datagrams, and its ports
//! can go down.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use fabricast::proto::rng::Rng;
use fabricast::proto::{AddressId, Dest, NodeId, Time};
use fabricast::transport::{
    Arrival, Caps, DatagramId, GroupAddress, News, NodeAddress, Outgoing, Sleeper, Slots,
    Transport, Watch,
};
use fabricast::waker::Waker;

/// Largest datagram, in bytes.
const DATAGRAM_MAX: usize = 2000;
/// Share of the datagrams that the network loses.
const LOSS: f64 = 0.03;
/// Largest number of datagrams that wait for a node. More are lost.
const WAITING: usize = 1000;
/// How long a node takes to join a group.
const JOINING: Duration = Duration::from_millis(3);

/// What waits for one node.
struct Inbox {
    /// Each datagram, with the number of the node that sent it.
    datagrams: Mutex<VecDeque<(u32, Vec<u8>)>>,
    rings: Waker,
    /// Its port went down, and the node has not noticed yet.
    unplugged: AtomicBool,
}

/// The network: all inboxes, and the members of each group.
pub struct Hub {
    inboxes: Vec<Inbox>,
    groups: Mutex<BTreeMap<u32, Vec<u32>>>,
}

impl Hub {
    /// A network of this many nodes.
    pub fn new(nodes: u32) -> Arc<Hub> {
        let inbox = |_| Inbox {
            datagrams: Mutex::default(),
            rings: Waker::new().unwrap(),
            unplugged: AtomicBool::new(false),
        };
        Arc::new(Hub {
            inboxes: (0..nodes).map(inbox).collect(),
            groups: Mutex::default(),
        })
    }

    /// Takes down the port of a node.
    pub fn pull_the_plug(&self, node: u32) {
        let inbox = &self.inboxes[node as usize];
        inbox.unplugged.store(true, Ordering::SeqCst);
        inbox.rings.wake();
    }

    fn members(&self, group: u32) -> Vec<u32> {
        let groups = self.groups.lock().unwrap();
        groups.get(&group).cloned().unwrap_or_default()
    }
}

/// One node's end of the network.
pub struct Pipe {
    hub: Arc<Hub>,
    me: u32,
    nodes: BTreeMap<NodeId, u32>,
    sources: BTreeMap<u32, NodeId>,
    groups: BTreeMap<AddressId, u32>,
    /// Groups that the node is joining, and when it will have joined.
    joining: Vec<(Time, AddressId, u32)>,
    news: VecDeque<News>,
    slots: Slots,
    /// Datagrams that the network still reads, and that it has read.
    posted: Vec<DatagramId>,
    read: Vec<DatagramId>,
    rng: Rng,
    now: Time,
}

impl Pipe {
    /// The end of node `me`.
    pub fn new(hub: &Arc<Hub>, me: u32) -> Pipe {
        Pipe {
            hub: Arc::clone(hub),
            me,
            nodes: BTreeMap::new(),
            sources: BTreeMap::new(),
            groups: BTreeMap::new(),
            joining: Vec::new(),
            news: VecDeque::new(),
            slots: Slots::new(DATAGRAM_MAX),
            posted: Vec::new(),
            read: Vec::new(),
            rng: Rng::new(u64::from(me)),
            now: Time::ZERO,
        }
    }

    fn inbox(&self) -> MutexGuard<'_, VecDeque<(u32, Vec<u8>)>> {
        let inbox = &self.hub.inboxes[self.me as usize];
        inbox.datagrams.lock().unwrap()
    }

    /// Ends the joins whose time has come.
    fn join_on(&mut self, now: Time) {
        self.now = now;
        let (hub, me, news) = (&self.hub, self.me, &mut self.news);
        self.joining.retain(|&(at, group, address)| {
            if at > now {
                return true;
            }
            let mut groups = hub.groups.lock().unwrap();
            groups.entry(address).or_default().push(me);
            news.push_back(News::Joined(group));
            false
        });
    }
}

impl Transport for Pipe {
    fn caps(&self) -> Caps {
        Caps {
            zero_copy: true,
            ..Caps::datagrams(DATAGRAM_MAX)
        }
    }

    fn backlog(&self, _payload_size: u32) -> u32 {
        WAITING as u32
    }

    fn address(&self) -> NodeAddress {
        NodeAddress::Number(self.me)
    }

    fn port(&self) -> &str {
        "pipe0"
    }

    fn peer(&mut self, node: NodeId, address: &NodeAddress) {
        if let Some(number) = address.number() {
            self.nodes.insert(node, number);
            self.sources.insert(number, node);
        }
    }

    fn forget(&mut self, node: NodeId) {
        if let Some(number) = self.nodes.remove(&node) {
            self.sources.remove(&number);
        }
    }

    fn join(&mut self, id: AddressId, address: &GroupAddress, receive: bool) {
        let GroupAddress::Number(number) = *address else {
            let error = io::Error::from(io::ErrorKind::InvalidInput);
            return self.news.push_back(News::JoinFailed(id, error));
        };
        self.groups.insert(id, number);
        if receive {
            self.joining.push((self.now + JOINING, id, number));
        }
    }

    fn leave(&mut self, id: AddressId) {
        self.groups.remove(&id);
    }

    fn slots(&mut self) -> &mut Slots {
        &mut self.slots
    }

    fn send(&mut self, _now: Time, batch: &[Outgoing<'_>]) -> io::Result<usize> {
        for datagram in batch {
            self.posted.push(datagram.id);
            let to = match datagram.to {
                Dest::Address(group) => self.groups.get(&group).map(|&g| self.hub.members(g)),
                Dest::Node(node) => self.nodes.get(&node).map(|&n| vec![n]),
            };
            for node in to.into_iter().flatten().filter(|&node| node != self.me) {
                let inbox = &self.hub.inboxes[node as usize];
                let mut waiting = inbox.datagrams.lock().unwrap();
                if waiting.len() < WAITING && !self.rng.chance(LOSS) {
                    waiting.push_back((self.me, self.slots.pieces(datagram).concat()));
                    inbox.rings.wake();
                }
            }
        }
        Ok(batch.len())
    }

    fn completions(&mut self, _now: Time, done: &mut dyn FnMut(DatagramId)) {
        self.read.drain(..).for_each(done);
        // The next look finds these.
        self.read.append(&mut self.posted);
    }

    fn cancel(&mut self) {
        self.read.append(&mut self.posted);
    }

    fn recv(&mut self, now: Time, sink: &mut dyn FnMut(&mut Arrival<'_>)) -> io::Result<usize> {
        self.join_on(now);
        let some: Vec<_> = {
            let mut inbox = self.inbox();
            let count = inbox.len().min(64);
            inbox.drain(..count).collect()
        };
        let count = some.len();
        for (number, mut bytes) in some {
            let from = self.sources.get(&number).copied();
            sink(&mut Arrival::lent(from, now, &mut bytes));
        }
        Ok(count)
    }

    fn is_drained(&self) -> bool {
        self.inbox().is_empty()
    }

    fn news(&mut self) -> Option<News> {
        let inbox = &self.hub.inboxes[self.me as usize];
        if inbox.unplugged.swap(false, Ordering::SeqCst) {
            let port = self.port().to_owned();
            self.news.push_back(News::PortDown { port });
        }
        self.news.pop_front()
    }

    fn due(&self) -> Option<Time> {
        let joins = self.joining.iter().map(|j| j.0).min();
        let read = (!self.read.is_empty()).then(|| self.now + Duration::from_micros(100));
        joins.into_iter().chain(read).min()
    }

    fn attach(&mut self, sleeper: &Sleeper) -> io::Result<Box<dyn Watch>> {
        struct Nothing;
        impl Watch for Nothing {}
        let rings = &self.hub.inboxes[self.me as usize].rings;
        sleeper.descriptors().read(rings.as_fd())?;
        Ok(Box::new(Nothing))
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let rings = &self.hub.inboxes[self.me as usize].rings;
        if self.inbox().is_empty() {
            rings.wait(timeout)?;
        }
        Ok(())
    }
}
