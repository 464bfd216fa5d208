//! Tests on the loopback, and in networks made for one test where that is allowed.

mod addresses;
mod foreign;
mod sending;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::process::Command;
use std::time::Instant;

use fabricast_proto::Dest;

use super::super::send_plain;
use super::super::testing::send_in_tests;
use super::*;
use crate::interface::Interface;

const G: AddressId = AddressId(1);
const H: AddressId = AddressId(2);
const NOW: Time = Time::ZERO;

fn at(address: IpAddr) -> UdpConfig {
    UdpConfig {
        interface: Interface::Address(address),
        receive_buffer: 212_992, // Linux allows this to every user unless configured otherwise.
        ..UdpConfig::default()
    }
}

fn v4() -> UdpConfig {
    at(Ipv4Addr::LOCALHOST.into())
}

fn open_one(config: &UdpConfig) -> Udp {
    Udp::new(config).unwrap()
}

/// A socket that does not belong to a `Udp`, with a read time-out.
fn outsider(address: &str) -> UdpSocket {
    let socket = UdpSocket::bind(address).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(2)))
        .unwrap();
    socket
}

thread_local! {
    /// Sockets that keep the ports of groups from everybody who does not share them, by the address
    /// of the transport whose test uses the port.
    static PORTS: RefCell<BTreeMap<SocketAddr, Socket>> = const { RefCell::new(BTreeMap::new()) };
}

/// A port that no other test uses, for `udp`'s groups. It is free on all of this host's addresses.
fn group_port(udp: &Udp) -> u16 {
    let reserve = || {
        let nowhere = match udp.family {
            Family::V4 => IpAddr::from(Ipv4Addr::UNSPECIFIED),
            Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = open(SocketAddr::new(nowhere, 0), "a port").unwrap();
        match udp.family {
            Family::V4 => socket.set_multicast_all_v4(false).unwrap(),
            Family::V6 => socket.set_multicast_all_v6(false).unwrap(),
        }
        // Set before, it would let the kernel choose a port that another test has.
        socket.set_reuse_address(true).unwrap();
        socket
    };
    PORTS.with_borrow_mut(|ports| {
        let socket = ports.entry(udp.local).or_insert_with(reserve);
        socket.local_addr().unwrap().as_socket().unwrap().port()
    })
}

/// A group address that no other test uses.
fn group(udp: &Udp, last: u8) -> SocketAddr {
    let ip: IpAddr = match udp.family {
        Family::V4 => Ipv4Addr::new(239, 255, 77, last).into(),
        Family::V6 => Ipv6Addr::new(0xff12, 0, 0, 0, 0, 0, 0x77, last.into()).into(),
    };
    SocketAddr::new(ip, group_port(udp))
}

/// Like [`group`], but `udp`'s own socket has the port, so no socket can serve several addresses.
fn lonely_group(udp: &Udp, last: u8) -> SocketAddr {
    SocketAddr::new(group(udp, last).ip(), udp.local.port())
}

fn ip_address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// A datagram: its destination, and two pieces.
type Plain<'a> = (Dest, &'a [u8], &'a [u8]);

fn datagram<'a>(to: Dest, head: &'a [u8], body: &'a [u8]) -> Plain<'a> {
    (to, head, body)
}

impl Udp {
    /// Joins a group, which succeeds.
    fn joins(&mut self, group: AddressId, address: SocketAddr, receive: bool) {
        self.join(group, &address.into(), receive);
        assert!(matches!(self.news(), Some(News::Joined(g)) if g == group));
    }
}

/// Sends all of `batch`, and waits while the network does not take more.
fn send_all(udp: &mut Udp, batch: &[Plain<'_>]) {
    let mut sent = 0;
    while sent < batch.len() {
        sent += send_in_tests(udp, NOW, &batch[sent..]).unwrap();
        if sent < batch.len() {
            udp.wait(Some(Duration::from_secs(1))).unwrap();
        }
    }
}

/// Waits for something that is certain to arrive.
fn wakes(udp: &mut Udp) {
    let (before, limit) = (Instant::now(), Duration::from_secs(5));
    udp.wait(Some(limit)).unwrap();
    assert!(before.elapsed() < limit, "nothing ended the wait");
}

/// Receives until there are `count` datagrams or none comes for two seconds.
fn receive(udp: &mut Udp, count: usize) -> Vec<Vec<u8>> {
    let mut got = Vec::new();
    while got.len() < count {
        if udp
            .recv(NOW, &mut |d| got.push(d.bytes().to_vec()))
            .unwrap()
            == 0
        {
            let before = Instant::now();
            udp.wait(Some(Duration::from_secs(2))).unwrap();
            if before.elapsed() >= Duration::from_secs(2) {
                break;
            }
        }
    }
    got
}

/// Checks that only `marker` arrives. It takes the same way, behind what must not arrive, so that
/// no time-out decides.
fn only(udp: &mut Udp, marker: &[u8]) {
    let got = receive(udp, 1);
    assert_eq!(got, [marker]);
    assert_eq!(udp.recv(NOW, &mut |_| ()).unwrap(), 0);
}

/// Runs `test` in a network that nothing else sees, with interface `wire` (MTU 1500, IPv4
/// 10.99.0.1, IPv6 fd99::1) and a loopback that multicasts. If that cannot be had, it says why.
fn in_own_network(test: impl FnOnce() + Send + 'static) {
    let body = move || {
        if let Err(e) = sys::own_network() {
            eprintln!("skipped: no network namespace to be had ({e})");
            return;
        }
        // The kernel makes an IPv6 address reachable a little after it was added.
        let setup = "ip link set lo up && ip link add wire type veth peer name far \
                     && ip link set far mtu 1500 up && ip link set wire mtu 1500 up \
                     && ip addr add 10.99.0.1/24 dev wire && ip addr add fd99::1/64 dev wire nodad \
                     && ip -6 route add local ff00::/8 dev lo \
                     && for i in $(seq 1000); do \
                            ip -6 route get fd99::1 | grep -q local && break; done";
        match Command::new("sh").args(["-c", setup]).output() {
            Ok(output) if output.status.success() => test(),
            other => eprintln!("skipped: cannot set a network up ({other:?})"),
        }
    };
    std::thread::spawn(body).join().unwrap();
}

fn ip(arguments: &str) {
    let done = Command::new("ip")
        .args(arguments.split(' '))
        .status()
        .unwrap();
    assert!(done.success(), "ip {arguments}");
}

/// Exchanges datagrams by receive sockets that can be shared, and by others.
fn exchange(config: &UdpConfig) {
    exchange_by(config, group);
    exchange_by(config, lonely_group);
}

/// Exchanges datagrams: two groups on one port, a sender that also listens, and unicast back.
fn exchange_by(config: &UdpConfig, group: fn(&Udp, u8) -> SocketAddr) {
    let mut root = open_one(config);
    let (mut a, mut b) = (open_one(config), open_one(config));
    let (g, h) = (group(&root, 1), group(&root, 2));
    root.joins(G, g, true);
    root.joins(H, h, false);
    a.joins(G, g, true);
    b.joins(H, h, true);
    let batch = [
        datagram(Dest::Address(G), b"to ", b"g"),
        datagram(Dest::Address(H), b"to ", b"h"),
    ];
    send_all(&mut root, &batch);
    only(&mut a, b"to g");
    only(&mut b, b"to h");

    a.peer(NodeId(0), &root.local_addr().into());
    root.peer(NodeId(1), &a.local_addr().into());
    send_all(&mut a, &[datagram(Dest::Node(NodeId(0)), b"up", b"")]);
    // The root has joined its own group: its multicast arrives, and is not handed up.
    only(&mut root, b"up");
    assert_eq!(root.counters().own, 1);
    send_all(&mut root, &[datagram(Dest::Node(NodeId(1)), b"", b"down")]);
    only(&mut a, b"down");

    // A receives another node's multicasts, and no longer does after it has left.
    a.joins(G, g, true);
    send_all(&mut a, &[datagram(Dest::Address(G), b"from a", b"")]);
    only(&mut root, b"from a");
    root.leave(G);
    let batch = [
        datagram(Dest::Address(G), b"unheard", b""),
        datagram(Dest::Node(NodeId(0)), b"heard", b""),
    ];
    send_all(&mut a, &batch);
    only(&mut root, b"heard");
    assert_eq!((root.counters().lost_at_send, root.notices.len()), (0, 0));
}

#[test]
fn multicast_and_unicast_v4() {
    exchange(&v4());
}

#[test]
fn multicast_and_unicast_v6_on_the_loopback() {
    in_own_network(|| exchange(&at(Ipv6Addr::LOCALHOST.into())));
}

#[test]
fn multicast_and_unicast_on_an_interface() {
    in_own_network(|| {
        exchange(&at("10.99.0.1".parse().unwrap()));
        exchange(&at("fd99::1".parse().unwrap()));
        let scoped = UdpConfig {
            interface: Interface::Name("wire".into()),
            family: Some(Family::V6),
            ..UdpConfig::default()
        };
        exchange(&scoped);
    });
}

#[test]
fn who_has_turned_loopback_off_does_not_hear_itself() {
    in_own_network(|| {
        for address in ["10.99.0.1", "fd99::1"] {
            let config = at(address.parse().unwrap());
            let (mut root, mut other) = (open_one(&config), open_one(&config));
            let g = group(&root, 1);
            for udp in [&mut root, &mut other] {
                udp.joins(G, g, true);
            }
            root.peer(NodeId(1), &other.local_addr().into());
            other.peer(NodeId(0), &root.local_addr().into());
            for (on, own) in [(true, 1), (false, 1), (true, 2)] {
                root.set_loopback(on).unwrap();
                send_all(&mut root, &[datagram(Dest::Address(G), b"all", b"")]);
                send_all(&mut other, &[datagram(Dest::Address(G), b"marker", b"")]);
                only(&mut root, b"marker");
                assert_eq!(root.counters().own, own, "{address}, {on}");
            }
        }
    });
}

#[test]
fn what_was_read_to_its_end_is_known_to_be_empty() {
    let (mut udp, mut other) = listener_and_sender();
    assert!(!udp.is_drained(), "nobody has looked");
    udp.wait(Some(Duration::ZERO)).unwrap();
    assert!(udp.is_drained());
    let some = [datagram(Dest::Address(G), b"some", b""); RECEIVE_MESSAGES];
    for (count, drained) in [(1, true), (RECEIVE_MESSAGES, false)] {
        send_all(&mut other, &some[..count]);
        wakes(&mut udp);
        assert!(!udp.is_drained());
        assert_eq!(receive(&mut udp, count).len(), count);
        assert_eq!(udp.is_drained(), drained, "{count}");
    }
}

#[test]
fn groups_may_share_an_address() {
    let (mut root, mut a) = (open_one(&v4()), open_one(&v4()));
    let g = group(&root, 1);
    for id in [G, H] {
        root.joins(id, g, false);
        a.joins(id, g, true);
    }
    assert_eq!(a.inputs.len(), 1);
    send_all(&mut root, &[datagram(Dest::Address(G), b"once", b"")]);
    only(&mut a, b"once");
    a.leave(G);
    send_all(&mut root, &[datagram(Dest::Address(H), b"still", b"")]);
    only(&mut a, b"still");
    a.leave(H);
    assert!(a.inputs.is_empty());
    // Two joins count as one.
    let h = group(&root, 2);
    for (address, receive) in [(g, true), (g, true), (h, true), (h, false)] {
        a.joins(G, address, receive);
        assert_eq!(a.inputs.len(), usize::from(receive));
    }
}

#[test]
fn wait_ends_by_waker_time_and_datagram() {
    let mut udp = open_one(&v4());
    let before = Instant::now();
    udp.wait(Some(Duration::from_micros(500))).unwrap();
    assert!(before.elapsed() >= Duration::from_micros(500));
    let waker = udp.waker.clone();
    let other = std::thread::spawn(move || waker.wake());
    wakes(&mut udp);
    other.join().unwrap();
    // One ring ends one wait, even if it came before the wait.
    udp.waker.wake();
    udp.waker.wake();
    wakes(&mut udp);
    let before = Instant::now();
    udp.wait(Some(Duration::from_millis(5))).unwrap();
    assert!(
        before.elapsed() >= Duration::from_millis(5),
        "rung once too often"
    );
    let peer = outsider("127.0.0.1:0");
    peer.send_to(b"x", udp.local_addr()).unwrap();
    wakes(&mut udp);
    only(&mut udp, b"x");
    let g = group(&udp, 1);
    udp.joins(G, g, true);
    let mut other = open_one(&v4());
    other.joins(G, g, false);
    send_all(&mut other, &[datagram(Dest::Address(G), b"y", b"")]);
    wakes(&mut udp);
    only(&mut udp, b"y");
}

#[test]
fn the_receive_buffer_is_read_back_and_its_losses_counted() {
    let config = UdpConfig {
        receive_buffer: 64 << 10,
        offload: false,
        ..v4()
    };
    let mut udp = open_one(&config);
    assert_eq!(udp.granted, 128 << 10, "the kernel doubles it");
    assert_eq!(udp.backlog(1000), 52);
    let peer = outsider("127.0.0.1:0");
    for _ in 0..300 {
        peer.send_to(&[0; 1000], udp.local_addr()).unwrap();
    }
    let full = udp.counters();
    assert!(full.queued > 32 << 10, "{full:?}");
    let got = receive(&mut udp, 300 - full.dropped_by_kernel as usize);
    assert_eq!(got.len() as u64 + full.dropped_by_kernel, 300);
    assert!(full.dropped_by_kernel > 0 && udp.counters().queued == 0);
    let greedy = UdpConfig {
        receive_buffer: 1 << 30,
        ..v4()
    };
    let mut udp = open_one(&greedy);
    let granted = udp.granted;
    match udp.notice() {
        Some(notice) => assert!(notice.to_string().contains("net.core.rmem_max"), "{notice}"),
        None => assert!(granted / 2 >= 1 << 30, "{granted}"),
    }
}

#[test]
fn no_socket_starves() {
    let mut udp = open_one(&v4());
    let g = group(&udp, 1);
    udp.joins(G, g, true);
    let mut other = open_one(&v4());
    other.joins(G, g, false);
    other.peer(NodeId(1), &udp.local_addr().into());
    send_all(&mut other, &[datagram(Dest::Address(G), b"group", b"")]);
    let flood = [datagram(Dest::Node(NodeId(1)), b"flood", b""); 200];
    let (mut calls, mut heard) = (0, false);
    while !heard {
        send_all(&mut other, &flood);
        udp.recv(NOW, &mut |d| heard |= d.bytes() == b"group")
            .unwrap();
        calls += 1;
        assert!(calls <= 20, "a flood of unicasts hides the group");
    }
}

/// A transport that listens to the group and one that only sends to it, one datagram per message.
fn listener_and_sender() -> (Udp, Udp) {
    let plain = UdpConfig {
        offload: false,
        ..v4()
    };
    let (mut udp, mut other) = (open_one(&plain), open_one(&plain));
    let g = group(&udp, 1);
    udp.joins(G, g, true);
    other.joins(G, g, false);
    (udp, other)
}

/// A question to this node alone comes after everything that the group was sent before it. But a
/// flood to the group does not hide it for ever.
#[test]
fn what_came_first_to_a_group_is_read_first() {
    let (mut udp, mut other) = listener_and_sender();
    other.peer(NodeId(1), &udp.local_addr().into());
    let flood = [datagram(Dest::Address(G), b"data", b""); 4 * RECEIVE_MESSAGES];
    send_all(&mut other, &flood);
    send_all(
        &mut other,
        &[datagram(Dest::Node(NodeId(1)), b"question", b"")],
    );
    let (mut before, mut asked) = (0, false);
    while !asked {
        let got = udp.recv(NOW, &mut |d| match d.bytes() {
            b"question" => asked = true,
            _ => before += usize::from(!asked),
        });
        assert!(got.unwrap() > 0, "after {before} of the group's");
    }
    assert_eq!(before, flood.len());

    send_all(
        &mut other,
        &[datagram(Dest::Node(NodeId(1)), b"question", b"")],
    );
    let (mut calls, mut heard) = (0, false);
    while !heard {
        send_all(&mut other, &flood);
        udp.recv(NOW, &mut |d| heard |= d.bytes() == b"question")
            .unwrap();
        calls += 1;
        assert!(
            calls <= 100,
            "a flood to the group hides what is for the node"
        );
    }
}

#[test]
fn own_datagrams_do_not_pass_for_silence() {
    let (mut udp, mut other) = listener_and_sender();
    send_all(
        &mut udp,
        &[datagram(Dest::Address(G), b"mine", b""); 2 * RECEIVE_MESSAGES],
    );
    send_all(&mut other, &[datagram(Dest::Address(G), b"other", b"")]);
    assert_eq!(
        udp.recv(NOW, &mut |d| assert_eq!(d.bytes(), b"other"))
            .unwrap(),
        1
    );
}

/// The same address of a wider scope, which no interface belongs to.
fn of_the_site(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(_) => address,
        IpAddr::V6(ip) => {
            let mut words = ip.segments();
            words[0] = 0xff15;
            SocketAddr::new(Ipv6Addr::from(words).into(), address.port())
        }
    }
}

#[test]
fn a_group_is_heard_on_its_own_interface_alone() {
    in_own_network(|| {
        for (home, wire) in [("127.0.0.1", "10.99.0.1"), ("::1", "fd99::1")] {
            let home = at(home.parse().unwrap());
            let wire = at(wire.parse().unwrap());
            let [mut a, mut root_a] = [open_one(&home), open_one(&home)];
            let [mut b, mut root_b] = [open_one(&wire), open_one(&wire)];
            let (shared, lonely) = (group(&a, 1), lonely_group(&a, 1));
            for g in [shared, lonely, of_the_site(shared), of_the_site(lonely)] {
                for udp in [&mut root_a, &mut root_b] {
                    udp.joins(G, g, false);
                }
                for udp in [&mut a, &mut b] {
                    udp.joins(G, g, true);
                }
                send_all(
                    &mut root_b,
                    &[datagram(Dest::Address(G), b"on the wire", b"")],
                );
                only(&mut b, b"on the wire");
                send_all(&mut root_a, &[datagram(Dest::Address(G), b"at home", b"")]);
                only(&mut a, b"at home");
            }
        }
    });
}

#[test]
fn what_is_wrong_is_said() {
    let error = |config: UdpConfig| Udp::new(&config).err().unwrap().to_string();
    let nowhere = error(UdpConfig {
        interface: "nowhere0".parse().unwrap(),
        ..v4()
    });
    assert!(
        nowhere.contains("nowhere0") && nowhere.contains("lo (127.0.0.1"),
        "{nowhere}"
    );
    let foreign = error(at("198.51.100.7".parse().unwrap()));
    assert!(
        foreign.contains("198.51.100.7") && foreign.contains("lo ("),
        "{foreign}"
    );
    let large = error(UdpConfig {
        datagram: Some(65_508),
        ..v4()
    });
    assert!(large.contains("65507") && large.contains("lo"), "{large}");
    // A datagram too small for a head would make the arithmetic of all nodes fail.
    for small in [0, 1, 31, 32, 443] {
        let small = error(UdpConfig {
            datagram: Some(small),
            ..v4()
        });
        assert!(
            small.contains("508 to 65507 (`NetOptions::datagram`)"),
            "{small}"
        );
    }
    let least = UdpConfig {
        datagram: Some(508),
        ..v4()
    };
    assert_eq!(open_one(&least).caps().datagram_max, 508);
    let mut udp = open_one(&v4());
    let taken = error(UdpConfig {
        port: udp.local_addr().port(),
        ..v4()
    });
    assert!(taken.contains("another program"), "{taken}");
    let mut join = |address: GroupAddress| {
        udp.join(G, &address, true);
        match udp.news() {
            Some(News::JoinFailed(G, error)) => error.to_string(),
            other => panic!("{address}: {other:?}"),
        }
    };
    let ip = |address: &str| GroupAddress::Ip(address.parse().unwrap());
    assert!(join(ip("10.0.0.1:5")).contains("not a multicast address"));
    assert!(join(ip("239.0.0.1:0")).contains("needs a port"));
    assert!(join(ip("[ff02::7]:5")).contains("not IPv4"));
    assert!(join(GroupAddress::Number(7)).contains("no IP address"));
    let six: SocketAddr = "[::1]:5".parse().unwrap();
    udp.peer(NodeId(1), &six.into());
    assert!(matches!(udp.notice(), Some(Notice::OtherFamily { .. })));
    udp.peer(NodeId(1), &NodeAddress::Number(7));
    assert!(matches!(udp.notice(), Some(Notice::NoIpAddress { .. })));
}

#[test]
fn interfaces_are_found() {
    let lo = |choice: Interface| {
        let (device, address) = choose(&choice, None).unwrap();
        (device.name, address)
    };
    let home: IpAddr = Ipv4Addr::LOCALHOST.into();
    let second: IpAddr = "127.0.0.2".parse().unwrap();
    assert_eq!(lo("lo".parse().unwrap()), ("lo".into(), home));
    assert_eq!(lo("127.0.0.2".parse().unwrap()), ("lo".into(), second));
    assert_eq!(lo(Interface::Toward(second)), ("lo".into(), home));
    let udp = open_one(&v4());
    assert_eq!(udp.caps().datagram_max, 9000 - 28);
    in_own_network(|| {
        let open = |choice: &str, family| {
            let config = UdpConfig {
                interface: choice.parse().unwrap(),
                family,
                ..UdpConfig::default()
            };
            let udp = open_one(&config);
            (udp.local_addr().ip().to_string(), udp.caps().datagram_max)
        };
        assert_eq!(open("wire", None), ("10.99.0.1".into(), 1472));
        assert_eq!(open("auto", None), ("10.99.0.1".into(), 1472));
        assert_eq!(open("wire", Some(Family::V6)), ("fd99::1".into(), 1452));
        assert_eq!(
            open("10.99.0.1", Some(Family::V6)),
            ("fd99::1".into(), 1452)
        );
        ip("link set far mtu 400");
        ip("link set wire mtu 400");
        let narrow = UdpConfig {
            interface: Interface::Address("10.99.0.1".parse().unwrap()),
            ..UdpConfig::default()
        };
        let narrow = Udp::new(&narrow).err().unwrap().to_string();
        assert!(narrow.contains("372 bytes at most"), "{narrow}");
        ip("link set wire down");
        let down = choose(&Interface::Name("wire".into()), None).unwrap_err();
        assert!(down.to_string().contains("ip link set wire up"), "{down}");
    });
}
