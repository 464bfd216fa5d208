//! Members join and leave a group, over sockets.

use std::net::SocketAddr;
use std::time::Instant;

use super::*;

/// Longest time that the test waits for what is certain to happen.
const PATIENCE: Duration = Duration::from_secs(30);

/// Nodes on the loopback that know each other, and listen to one multicast address.
struct Net {
    clock: Instant,
    drivers: Vec<Driver<Udp, Memory>>,
    /// Operations that are complete, by node.
    complete: Vec<(usize, OpId)>,
}

impl Net {
    fn new(nodes: u32) -> Net {
        let config = UdpConfig {
            interface: Interface::Address(Ipv4Addr::LOCALHOST.into()),
            ..UdpConfig::default()
        };
        let mut ends: Vec<Udp> = (0..nodes).map(|_| Udp::new(&config).unwrap()).collect();
        let homes: Vec<SocketAddr> = ends.iter().map(Udp::local_addr).collect();
        // The test's own port, so that no other test uses it.
        let address = SocketAddr::from((Ipv4Addr::new(239, 255, 79, 1), homes[0].port()));
        for end in &mut ends {
            for (peer, home) in (0..).zip(&homes) {
                end.peer(NodeId(peer), &(*home).into());
            }
        }
        let drivers = (0..).zip(ends).map(|(me, end)| {
            let config = Config {
                node: NodeId(me),
                session: SESSION,
                scheme: Scheme::auto(),
                unexpected_max: 0,
                backlog: 64,
                rate: None,
                patience: PATIENCE,
            };
            let mut driver = Driver::new(Node::new(config, 1), end);
            driver.join(AddressId(G.0), &address.into(), true).unwrap();
            driver
        });
        Net {
            clock: Instant::now(),
            drivers: drivers.collect(),
            complete: Vec::new(),
        }
    }

    fn now(&self) -> Time {
        Time(1 + self.clock.elapsed().as_nanos() as u64)
    }

    fn command(&mut self, node: usize, command: Command) {
        let now = self.now();
        assert_eq!(self.drivers[node].command(now, command), Ok(()));
    }

    fn bcast(&mut self, bytes: &[u8]) -> OpId {
        let (now, object) = (self.now(), Memory::new(bytes.to_vec()));
        self.drivers[0].lend(now, G, object, true).unwrap()
    }

    fn post(&mut self, node: usize, len: usize) -> OpId {
        let (now, room) = (self.now(), Memory::room(len));
        self.drivers[node].post(now, G, NodeId(0), room).unwrap()
    }

    fn admit(&mut self, node: usize) -> fabricast_proto::Admission {
        let id = NodeId(node as u32);
        self.command(0, Command::MemberAdd { group: G, node: id });
        self.drivers[0].node().admission(G, id).unwrap()
    }

    fn join(&mut self, node: usize, admission: fabricast_proto::Admission) {
        let join = Command::GroupJoin {
            group: G,
            sender: NodeId(0),
            payload_size: PAYLOAD,
            admission,
        };
        self.command(node, join);
    }

    /// Steps all nodes until this node's operation is complete.
    fn until(&mut self, node: usize, op: OpId) {
        while !self.complete.contains(&(node, op)) {
            assert!(self.clock.elapsed() < PATIENCE, "node {node}: {op:?}");
            for (at, driver) in self.drivers.iter_mut().enumerate() {
                let now = Time(1 + self.clock.elapsed().as_nanos() as u64);
                driver.step(now).unwrap();
                while let Some(event) = driver.event() {
                    if let Event::Complete(op) = event {
                        self.complete.push((at, op));
                    }
                }
            }
        }
    }

    fn taken(&mut self, node: usize, op: OpId) -> Vec<u8> {
        self.until(node, op);
        self.drivers[node].take(op).unwrap().into_bytes()
    }
}

/// A group of two gets a third member in the midst of a broadcast, loses it, and gets it again.
#[test]
fn a_member_joins_leaves_and_comes_back_over_sockets() {
    let mut net = Net::new(3);
    for node in 0..2 {
        let add = Command::GroupAdd {
            group: G,
            address: Some(AddressId(G.0)),
            members: vec![NodeId(0), NodeId(1)],
            payload_size: PAYLOAD,
            start: Seq(u32::MAX - 9),
        };
        net.command(node, add);
    }
    let objects: Vec<Vec<u8>> = [500_000, 300_000, 7, 200_000]
        .map(crate::object::testing::pattern)
        .into();
    // The first broadcast does not wait for the newcomer, which has not even joined.
    let first = net.bcast(&objects[0]);
    let one = net.post(1, objects[0].len());
    let admission = net.admit(2);
    assert!(net.taken(1, one) == objects[0]);
    net.until(0, first);
    // The second does.
    let second = net.bcast(&objects[1]);
    let one = net.post(1, objects[1].len());
    net.until(1, one);
    assert!(!net.complete.contains(&(0, second)));
    net.join(2, admission);
    let two = net.post(2, objects[1].len());
    assert!(net.taken(2, two) == objects[1]);
    net.until(0, second);
    // The third does not wait for it, since it leaves.
    let third = net.bcast(&objects[2]);
    let one = net.post(1, objects[2].len());
    let node = NodeId(2);
    net.command(0, Command::MemberRemove { group: G, node });
    net.command(2, Command::GroupRemove(G));
    assert!(net.taken(1, one) == objects[2]);
    net.until(0, third);
    // It comes back for the fourth.
    let again = net.admit(2);
    assert!(again.slot.index == admission.slot.index && again.slot.epoch > admission.slot.epoch);
    net.join(2, again);
    let fourth = net.bcast(&objects[3]);
    let posts = [1, 2].map(|node| net.post(node, objects[3].len()));
    for (node, post) in (1..).zip(posts) {
        assert!(net.taken(node, post) == objects[3], "node {node}");
    }
    net.until(0, fourth);
}

/// Two receivers decline an object that the sender has not begun, and get the next one.
#[test]
fn a_declined_object_is_not_sent_over_sockets() {
    let mut net = Net::new(3);
    for node in 0..3 {
        let add = Command::GroupAdd {
            group: G,
            address: Some(AddressId(G.0)),
            members: (0..3).map(NodeId).collect(),
            payload_size: PAYLOAD,
            start: Seq(5),
        };
        net.command(node, add);
    }
    let objects = [700_000, 40_000].map(crate::object::testing::pattern);
    let [declined, wanted] = &objects;
    let mut posts = Vec::new();
    for node in 1..3 {
        let decline = Command::Decline {
            group: G,
            sender: NodeId(0),
            len: declined.len() as u64,
        };
        net.command(node, decline);
        posts.push(net.post(node, wanted.len()));
    }
    let first = net.bcast(declined);
    let second = net.bcast(wanted);
    for (node, post) in (1..).zip(posts) {
        assert!(net.taken(node, post) == *wanted, "node {node}");
    }
    for op in [first, second] {
        net.until(0, op);
    }
    // The first packet may have left before the sender heard the receivers.
    let sent = net.drivers[0].node().counters().data;
    assert!(sent <= 41, "{sent} packets");
}
