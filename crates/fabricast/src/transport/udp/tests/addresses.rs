//! Many group addresses, several of which share a socket.

use std::fs;
use std::ops::RangeInclusive;

use super::super::input::SHARED_MAX;
use super::*;
use crate::transport::Sleeper;

/// How a test gets its `n`th group address.
type At = fn(&Udp, u8) -> SocketAddr;

impl Udp {
    /// Joins addresses of `root`, the `n`th as number `n`.
    fn join_all(&mut self, root: &Udp, at: At, all: RangeInclusive<u8>, receive: bool) {
        for n in all {
            self.joins(AddressId(n.into()), at(root, n), receive);
        }
    }
}

/// A transport that has joined `count` addresses, and one that sends to them. Each is the other's
/// peer.
fn joined(config: &UdpConfig, at: At, count: u8) -> (Udp, Udp) {
    let (mut udp, mut other) = (open_one(config), open_one(config));
    // The addresses' port depends on the transport that has it.
    let root = open_one(config);
    udp.join_all(&root, at, 1..=count, true);
    other.join_all(&root, at, 1..=count, false);
    udp.peer(NodeId(0), &other.local_addr().into());
    other.peer(NodeId(1), &udp.local_addr().into());
    KEPT.with_borrow_mut(|kept| kept.push(root));
    (udp, other)
}

thread_local! {
    /// Transports whose ports a test of this thread uses.
    static KEPT: RefCell<Vec<Udp>> = const { RefCell::new(Vec::new()) };
}

/// Sends a byte to each of `all`, and then a zero to the receiver alone.
fn send_to_each(other: &mut Udp, all: impl Iterator<Item = u8>) {
    for n in all {
        let to = Dest::Address(AddressId(n.into()));
        send_all(other, &[datagram(to, &[n], b"")]);
    }
    send_all(other, &[datagram(Dest::Node(NodeId(1)), &[0], b"")]);
}

/// Checks that the receiver gets the bytes `of` once each, in any order, and then the zero.
fn hears(udp: &mut Udp, of: impl Iterator<Item = u8>) {
    let expected: Vec<u8> = of.collect();
    let mut got = receive(udp, expected.len() + 1).concat();
    assert_eq!(got.pop(), Some(0), "{got:?}");
    got.sort_unstable();
    assert_eq!(got, expected);
    assert_eq!(udp.recv(NOW, &mut |_| ()).unwrap(), 0);
}

fn many(config: &UdpConfig, at: At, count: u8, sockets: usize) {
    let (mut udp, mut other) = joined(config, at, count);
    assert_eq!(udp.inputs.len(), sockets);
    send_to_each(&mut other, 1..=count);
    hears(&mut udp, 1..=count);
    // Every second address is left, and what is sent there no longer received.
    for n in (2..=count).step_by(2) {
        udp.leave(AddressId(n.into()));
    }
    send_to_each(&mut other, 1..=count);
    hears(&mut udp, (1..=count).step_by(2));
    // An address may be joined again.
    let again = other.groups[&AddressId(2)].to.address.as_socket().unwrap();
    udp.joins(AddressId(2), again, true);
    send_to_each(&mut other, 1..=3);
    hears(&mut udp, 1..=3);
    for n in 1..=count {
        udp.leave(AddressId(n.into()));
    }
    assert!(udp.inputs.is_empty());
    send_to_each(&mut other, 1..=count);
    hears(&mut udp, iter::empty());
    assert_eq!(udp.counters().dropped_by_kernel, 0);
}

#[test]
fn many_addresses_are_joined_and_left() {
    many(&v4(), group, 130, 7);
}

#[test]
fn many_addresses_are_joined_and_left_in_ipv6() {
    in_own_network(|| {
        for address in ["::1", "fd99::1"] {
            many(&at(address.parse().unwrap()), group, 45, 3);
        }
    });
}

#[test]
fn where_a_port_is_taken_each_address_has_a_socket() {
    many(&v4(), lonely_group, 70, 70);
}

#[test]
fn what_does_not_fit_a_socket_opens_another_one() {
    let root = open_one(&v4());
    let mut udp = open_one(&v4());
    let full = SHARED_MAX as u8;
    udp.join_all(&root, group, 1..=full, true);
    assert_eq!(udp.inputs.len(), 1);
    udp.joins(G, group(&root, 1), true);
    assert_eq!(udp.inputs.len(), 1, "joined already");
    udp.join_all(&root, group, full + 1..=full + 2, true);
    assert_eq!(udp.inputs.len(), 2);
    // The room of an address that was left is used again.
    udp.leave(AddressId(2));
    udp.join_all(&root, group, full + 3..=full + 3, true);
    for n in [1, 2] {
        udp.leave(AddressId(u32::from(full) + n));
    }
    assert_eq!(udp.inputs.len(), 1);
    // Another port needs another socket.
    let elsewhere = SocketAddr::new(group(&root, 3).ip(), group_port(&udp));
    udp.leave(AddressId(3));
    udp.joins(AddressId(3), elsewhere, true);
    assert_eq!(udp.inputs.len(), 2);
}

#[test]
fn transports_of_a_host_hear_their_own_addresses_alone() {
    let root = open_one(&v4());
    let (mut a, mut b, mut other) = (open_one(&v4()), open_one(&v4()), open_one(&v4()));
    other.join_all(&root, group, 1..=60, false);
    a.join_all(&root, group, 1..=30, true);
    b.join_all(&root, group, 31..=60, true);
    for udp in [&a, &b] {
        assert_eq!(udp.inputs.len(), 2);
    }
    other.peer(NodeId(1), &a.local_addr().into());
    send_to_each(&mut other, 1..=60);
    hears(&mut a, 1..=30);
    other.peer(NodeId(1), &b.local_addr().into());
    send_to_each(&mut other, iter::empty());
    hears(&mut b, 31..=60);
}

#[test]
fn the_kernels_limit_opens_more_sockets_or_is_an_error() {
    in_own_network(|| {
        let limit = |n: &str| fs::write("/proc/sys/net/ipv4/igmp_max_memberships", n).unwrap();
        limit("3");
        many(&v4(), group, 7, 3);
        let root = open_one(&v4());
        let mut udp = open_one(&v4());
        udp.joins(G, group(&root, 1), true);
        limit("0");
        for _ in 0..2 {
            udp.join(H, &group(&root, 2).into(), true);
            let Some(News::JoinFailed(H, error)) = udp.news() else {
                panic!("joined beyond the limit");
            };
            let (error, name) = (error.to_string(), group(&root, 2).to_string());
            assert!(error.contains("igmp_max_memberships"), "{error}");
            assert!(error.contains(&name) && error.contains("lo"), "{error}");
            assert_eq!(udp.inputs.len(), 1);
        }
        // The address that was joined before still is.
        let mut other = open_one(&v4());
        other.joins(G, group(&root, 1), false);
        send_all(&mut other, &[datagram(Dest::Address(G), b"still", b"")]);
        only(&mut udp, b"still");
    });
}

#[test]
fn unicasts_to_the_groups_port_are_not_received() {
    let test = |config: &UdpConfig| {
        let (mut udp, mut other) = joined(config, group, 1);
        let port = udp.inputs[0].socket.local_addr().unwrap().as_socket();
        let port = port.unwrap().port();
        let to = SocketAddr::new(udp.local.ip(), port);
        let stranger = outsider(&SocketAddr::new(udp.local.ip(), 0).to_string());
        stranger.send_to(&[66], to).unwrap();
        other.peer(NodeId(2), &to.into());
        send_all(&mut other, &[datagram(Dest::Node(NodeId(2)), &[67], b"")]);
        send_to_each(&mut other, 1..=1);
        hears(&mut udp, 1..=1);
        // They have reached the socket, and its filter.
        assert_eq!(udp.counters().dropped_by_kernel, 2);
        udp.leave(AddressId(1));
        assert_eq!(udp.counters().dropped_by_kernel, 2);
    };
    test(&v4());
    in_own_network(move || {
        test(&at("10.99.0.1".parse().unwrap()));
        test(&at("fd99::1".parse().unwrap()));
    });
}

/// A sleep reports a bounded number of descriptors. The others may have something to read, too.
#[test]
fn more_sockets_than_a_sleep_reports_are_read_in_order() {
    let (mut udp, mut other) = joined(&v4(), lonely_group, 40);
    let sleeper = Sleeper::new().unwrap();
    let _watch = udp.attach(&sleeper).unwrap();
    // The unicast socket is among those that the sleep reports.
    send_all(&mut other, &[datagram(Dest::Node(NodeId(1)), &[0], b"")]);
    send_to_each(&mut other, 1..=40);
    let ready = sleeper.sleep(Some(Duration::from_secs(5))).unwrap();
    udp.woken(&ready);
    let mut got = Vec::new();
    while got.len() < 42 {
        let some = udp.recv(NOW, &mut |d| got.extend_from_slice(d.bytes()));
        assert!(some.unwrap() > 0, "after {got:?}");
    }
    let (groups, own) = got.split_at(40);
    assert_eq!(own, [0, 0], "{groups:?}");
}
