//! Only datagrams from a node's address count as that node's.

use fabricast_proto::wire::{self, Header, Sync};
use fabricast_proto::{GroupId, Seq, Session};

use super::*;

/// A datagram that claims to be from `source`; `next` distinguishes it from others.
fn says(source: u32, next: u32) -> Vec<u8> {
    let header = Header {
        burst: 0,
        source: NodeId(source),
        session: Session(7),
    };
    let sync = Sync {
        group: GroupId(1),
        sender: NodeId(1),
        next: Seq(next),
    };
    wire::head(|out| {
        wire::put_header(out, &header);
        wire::put_sync(out, &sync);
    })
}

/// A root and a receiver that know each other; the receiver listens to the group.
fn pair(root: &UdpConfig, end: &UdpConfig) -> (Udp, Udp, SocketAddr) {
    let (mut root, mut end) = (open_one(root), open_one(end));
    let g = group(&root, 1);
    root.joins(G, g, false);
    end.joins(G, g, true);
    root.peer(NodeId(1), &end.local_addr().into());
    end.peer(NodeId(0), &root.local_addr().into());
    (root, end, g)
}

/// Receives `count` datagrams, each with its source.
fn sources(udp: &mut Udp, count: usize) -> Vec<(Option<NodeId>, Vec<u8>)> {
    let mut got = Vec::new();
    while got.len() < count {
        wakes(udp);
        udp.recv(NOW, &mut |d| got.push((d.from, d.bytes().to_vec())))
            .unwrap();
    }
    got
}

/// Checks that the receiver gets the root's datagrams as the root's, by multicast and by unicast.
fn heard(root: &mut Udp, end: &mut Udp) {
    for (to, n) in [(Dest::Address(G), 1), (Dest::Node(NodeId(1)), 2)] {
        let bytes = says(0, n);
        send_all(root, &[datagram(to, &bytes, b"")]);
        assert_eq!(sources(end, 1), [(Some(NodeId(0)), bytes)]);
    }
}

#[test]
fn what_another_socket_says_in_a_peers_name_has_no_source() {
    let (mut root, mut end, g) = pair(&v4(), &v4());
    let liar = outsider("127.0.0.1:0");
    let elsewhere = outsider("127.0.0.2:0");
    for source in [0, 1, 9] {
        for socket in [&liar, &elsewhere] {
            socket.send_to(&says(source, 66), end.local_addr()).unwrap();
        }
        liar.send_to(&says(source, 66), g).unwrap();
    }
    let lies = sources(&mut end, 9);
    assert!(lies.iter().all(|(from, _)| from.is_none()), "{lies:?}");
    heard(&mut root, &mut end);
    // A forgotten node is unknown.
    end.forget(NodeId(0));
    let late = says(0, 4);
    send_all(&mut root, &[datagram(Dest::Address(G), &late, b"")]);
    assert_eq!(sources(&mut end, 1), [(None, late)]);
}

#[test]
fn two_nodes_are_not_at_one_address() {
    let (mut root, mut end, _) = pair(&v4(), &v4());
    end.peer(NodeId(7), &root.local_addr().into());
    heard(&mut root, &mut end);
    end.forget(NodeId(0));
    let bytes = says(0, 4);
    send_all(&mut root, &[datagram(Dest::Address(G), &bytes, b"")]);
    assert_eq!(sources(&mut end, 1), [(Some(NodeId(7)), bytes.clone())]);
    // A node that has moved is no longer known at its old address.
    let elsewhere = outsider("127.0.0.2:0");
    end.peer(NodeId(7), &elsewhere.local_addr().unwrap().into());
    send_all(&mut root, &[datagram(Dest::Address(G), &bytes, b"")]);
    assert_eq!(sources(&mut end, 1), [(None, bytes)]);
}

#[test]
fn a_host_with_several_addresses_is_known_by_the_one_it_was_given() {
    // On the loopback every address of 127.0.0.0/8 is one of the host's.
    for (root, end) in [("127.0.0.3", "127.0.0.1"), ("127.0.0.1", "127.0.0.3")] {
        let (root, end) = (at(root.parse().unwrap()), at(end.parse().unwrap()));
        let (mut root, mut end, _) = pair(&root, &end);
        heard(&mut root, &mut end);
    }
    in_own_network(|| {
        ip("addr add 10.99.0.7/24 dev wire");
        ip("addr add fd99::7/64 dev wire nodad");
        ip("addr add fe80::7/64 dev wire nodad");
        // As for the other addresses, the kernel takes time to make them reachable.
        let there = "for i in $(seq 1000); do \
                     [ $(ip -6 route show table local | grep -cE '(fd99|fe80)::7 ') = 2 ] && exit; \
                     done; exit 1";
        let there = Command::new("sh").args(["-c", there]).status().unwrap();
        assert!(there.success());
        for [first, second] in [
            ["10.99.0.1", "10.99.0.7"],
            ["10.99.0.7", "10.99.0.1"],
            ["fd99::1", "fd99::7"],
            ["fd99::7", "fd99::1"],
            ["fe80::7", "fe80::7"],
        ] {
            let (root, end) = (at(first.parse().unwrap()), at(second.parse().unwrap()));
            let (mut root, mut end, _) = pair(&root, &end);
            assert_eq!(root.local_addr().ip().to_string(), first);
            heard(&mut root, &mut end);
            let bytes = says(1, 3);
            send_all(&mut end, &[datagram(Dest::Node(NodeId(0)), &bytes, b"")]);
            only(&mut root, &bytes);
        }
    });
}

#[test]
fn an_address_from_hearsay_gets_nothing_before_it_has_answered() {
    let (mut a, mut b) = (open_one(&v4()), open_one(&v4()));
    // An address of no peer gets one question, whatever is to go there, and another one on demand.
    let third = outsider("127.0.0.1:0");
    a.hearsay(NodeId(9), &third.local_addr().unwrap().into());
    let bytes = says(0, 1);
    send_all(&mut a, &[datagram(Dest::Node(NodeId(9)), &bytes, b""); 40]);
    assert_eq!(a.unanswered(), [NodeId(9)]);
    a.ask_again(NodeId(9));
    let marker = outsider("127.0.0.1:0");
    let mut room = [0; 2000];
    let mut question = [0; 10];
    for _ in 0..2 {
        let (n, _) = third.recv_from(&mut room).unwrap();
        assert_eq!(n, 10);
        question.copy_from_slice(&room[..10]);
    }
    marker.send_to(b"end", third.local_addr().unwrap()).unwrap();
    assert_eq!(third.recv_from(&mut room).unwrap().0, 3);
    // A wrong answer, a right answer from elsewhere, and a question from an unknown node do
    // nothing.
    let mut answer = question;
    answer[1] = 2;
    marker.send_to(&answer, a.local_addr()).unwrap();
    marker.send_to(&question, a.local_addr()).unwrap();
    answer[9] ^= 1;
    third.send_to(&answer, a.local_addr()).unwrap();
    third.send_to(b"end", a.local_addr()).unwrap();
    only(&mut a, b"end");
    assert_eq!(a.unanswered().len(), 1);

    // Two nodes that have heard of each other: each asks once, and then all datagrams arrive.
    a.hearsay(NodeId(1), &b.local_addr().into());
    b.hearsay(NodeId(0), &a.local_addr().into());
    let question = |udp: &mut Udp| {
        wakes(udp);
        assert_eq!(udp.recv(NOW, &mut |_| panic!("a datagram")).unwrap(), 0);
    };
    send_all(&mut a, &[datagram(Dest::Node(NodeId(1)), &bytes, b"")]);
    question(&mut b); // and answers
    question(&mut a);
    send_all(&mut a, &[datagram(Dest::Node(NodeId(1)), &bytes, b"")]);
    only(&mut b, &bytes);
    assert_eq!(a.unanswered().len(), 1);
}

/// A false sender could say that all receivers are on one host.
#[test]
fn of_one_host_few_are_asked_before_one_answers() {
    const ALL: usize = 9;
    let mut a = open_one(&v4());
    let hosts: Vec<_> = (0..ALL).map(|_| outsider("127.0.0.99:0")).collect();
    let bytes = says(0, 1);
    let mut batch = Vec::new();
    for (n, host) in hosts.iter().enumerate() {
        let node = NodeId(n as u32 + 1);
        a.hearsay(node, &host.local_addr().unwrap().into());
        batch.push(datagram(Dest::Node(node), &bytes, b""));
    }
    let mut room = [0; 2000];
    let mut asked = |from: usize| -> Vec<Vec<u8>> {
        let pause = Some(std::time::Duration::from_millis(20));
        let mut questions = Vec::new();
        for host in &hosts[from..] {
            host.set_read_timeout(pause).unwrap();
            let mut all = Vec::new();
            while let Ok((n, _)) = host.recv_from(&mut room) {
                assert_eq!(n, 10);
                all.extend_from_slice(&room[..n]);
            }
            questions.push(all);
        }
        questions
    };
    let lens = |all: &[Vec<u8>]| all.iter().map(Vec::len).collect::<Vec<_>>();
    for _ in 0..3 {
        send_all(&mut a, &batch);
    }
    let questions = asked(0);
    assert_eq!(lens(&questions), [10, 10, 10, 10, 0, 0, 0, 0, 0]);
    // The other nodes wait to be asked. One of them is asked when the test demands it.
    assert_eq!(a.unanswered().len(), ALL);
    a.ask_again(NodeId(8));
    assert_eq!(lens(&asked(4)), [0, 0, 0, 10, 0]);
    // Each answer lets the transport ask one more node.
    let mut answer = questions[1].clone();
    answer[1] = 2;
    hosts[1].send_to(&answer, a.local_addr()).unwrap();
    wakes(&mut a);
    assert_eq!(a.recv(NOW, &mut |_| panic!("a datagram")).unwrap(), 0);
    assert_eq!(lens(&asked(4)), [10, 0, 0, 0, 0]);
    assert_eq!(a.unanswered().len(), ALL - 1);
}
