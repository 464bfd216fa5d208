//! What becomes of a batch: segmented, refused, lost, held back.

use std::sync::mpsc::{RecvTimeoutError, channel};

use super::*;
use crate::transport::testing::lending;

/// Sends numbered datagrams of many lengths to three destinations, in runs and alone.
fn mixed(send: &UdpConfig, receive_with: &UdpConfig, spoil: impl FnOnce(&mut Udp)) -> Counters {
    let mut root = open_one(send);
    let mut ends: Vec<Udp> = (0..2).map(|_| open_one(receive_with)).collect();
    let g = group(&root, 1);
    root.joins(G, g, false);
    for (i, end) in ends.iter_mut().enumerate() {
        end.joins(G, g, true);
        root.peer(NodeId(i as u32), &end.local_addr().into());
    }
    spoil(&mut root);
    let max = root.caps().datagram_max;
    let (g, a, b) = (
        Dest::Address(G),
        Dest::Node(NodeId(0)),
        Dest::Node(NodeId(1)),
    );
    let mut plan: Vec<(Dest, usize)> = Vec::new();
    plan.extend([(g, 200); 140]); // more than one message may hold
    plan.extend([
        (g, 7),
        (g, 500),
        (g, 8),
        (a, 8),
        (a, 8),
        (a, 9),
        (b, 1),
        (g, max),
        (g, max),
    ]);
    plan.extend([
        (a, 5),
        (b, 5),
        (a, 5),
        (g, 0),
        (g, 0),
        (g, 1),
        (b, max),
        (b, 0),
        (b, 300),
    ]);
    plan.extend([
        (Dest::Node(NodeId(9)), 300),
        (b, 300),
        (b, 300),
        (b, 299),
        (b, 300),
    ]);
    plan.extend([(a, max); 8]); // more than 64 KiB
    let bodies: Vec<Vec<u8>> = (0..plan.len())
        .map(|i| (0..plan[i].1).map(|k| (i * 31 + k) as u8).collect())
        .collect();
    let batch: Vec<Plain<'_>> = plan
        .iter()
        .zip(&bodies)
        .enumerate()
        .map(|(i, ((to, len), bytes))| {
            let (head, body) = bytes.split_at([0, len / 2, *len][i % 3]);
            datagram(*to, head, body)
        })
        .collect();
    send_all(&mut root, &batch);
    for (end, own) in ends.iter_mut().zip([a, b]) {
        let of = |dest: Dest| {
            let mine = plan.iter().zip(&bodies).filter(move |(p, _)| p.0 == dest);
            mine.map(|(_, bytes)| bytes.clone()).collect::<Vec<_>>()
        };
        let mut expected: BTreeMap<Vec<u8>, i32> = BTreeMap::new();
        for bytes in of(g).into_iter().chain(of(own)) {
            *expected.entry(bytes).or_default() += 1;
        }
        let count = expected.values().sum::<i32>() as usize;
        let got = receive(end, count);
        assert_eq!(got.len(), count, "{:?}", end.counters());
        for bytes in &got {
            *expected.entry(bytes.clone()).or_default() -= 1;
        }
        assert!(
            expected.values().all(|n| *n == 0),
            "other bytes or boundaries"
        );
    }
    // Falling back would hide a message that the kernel cannot segment.
    assert!(root.script.cut.is_some() || root.notices.is_empty());
    let counters = root.counters();
    assert_eq!(counters.unknown, 1);
    assert_eq!(counters.datagrams_sent + 1, plan.len() as u64);
    let bytes: usize = plan.iter().map(|p| p.1).sum();
    assert_eq!(counters.bytes_sent + 300, bytes as u64);
    counters
}

#[test]
fn batches_arrive_whole_with_offload() {
    let with = mixed(&v4(), &v4(), |_| ());
    if !with.gso {
        eprintln!("skipped: no GSO here");
        return;
    }
    assert!(with.messages_sent < with.datagrams_sent / 2, "{with:?}");
    assert!(with.send_calls < 10, "{with:?}");
}

#[test]
fn batches_arrive_whole_without_offload() {
    let plain = UdpConfig {
        offload: false,
        ..v4()
    };
    let without = mixed(&plain, &plain, |_| ());
    assert_eq!(without.messages_sent, without.datagrams_sent);
    assert!(!without.gso && !without.gro);
    mixed(&v4(), &plain, |_| ());
    mixed(&plain, &v4(), |_| ());
}

/// Datagrams of three pieces arrive whole, in runs that the kernel cuts and alone.
#[test]
fn a_trailer_follows_the_payload() {
    let plain = UdpConfig {
        offload: false,
        ..v4()
    };
    for config in [v4(), plain] {
        let (mut root, mut end) = (open_one(&config), open_one(&config));
        root.peer(NodeId(1), &end.local_addr().into());
        let lens = [
            (30, 100, 16),
            (30, 100, 16),
            (30, 116, 0),
            (20, 110, 16),
            (5, 0, 9),
        ];
        let whole: Vec<Vec<u8>> = (0u8..)
            .zip(lens)
            .map(|(n, (a, b, c))| (0..a + b + c).map(|i| n ^ i as u8).collect())
            .collect();
        let slots = root.slots();
        let mut batch = Vec::new();
        for (bytes, (head, payload, _)) in whole.iter().zip(lens) {
            let id = slots.take().unwrap();
            slots.head(id).put(&bytes[..head]);
            slots.trailer(id).put(&bytes[head + payload..]);
            let payload = &bytes[head..head + payload];
            batch.push(lending(slots, id, Dest::Node(NodeId(1)), payload));
        }
        assert_eq!(root.send(NOW, &batch).unwrap(), batch.len());
        assert_eq!(receive(&mut end, whole.len()), whole);
    }
}

#[test]
fn batches_arrive_whole_when_the_kernel_will_not_cut() {
    for errno in [libc::EIO, libc::EINVAL, libc::EMSGSIZE] {
        let mut notices = 0;
        let refused = mixed(&v4(), &v4(), |udp| udp.script.cut = Some(errno));
        assert_eq!(refused.messages_sent, refused.datagrams_sent);
        let mut udp = open_one(&v4());
        let peer = outsider("127.0.0.1:0");
        udp.peer(NodeId(1), &peer.local_addr().unwrap().into());
        udp.script.cut = Some(errno);
        for _ in 0..3 {
            let batch = [datagram(Dest::Node(NodeId(1)), b"x", b"y"); 4];
            assert_eq!(send_plain(&mut udp, NOW, &batch).unwrap(), 4);
        }
        while let Some(notice) = udp.notice() {
            assert!(matches!(notice, Notice::GsoRefused { errno: e, .. } if e == errno));
            notices += 1;
        }
        assert_eq!(notices, 1, "told once");
        // The kernel refuses once, and then takes four datagrams in each call.
        assert_eq!(udp.counters().send_calls, 4);
    }
}

#[test]
fn a_route_with_a_smaller_mtu_loses_what_does_not_fit_and_no_more() {
    in_own_network(|| {
        ip("link add thin type veth peer name thin-far");
        ip("link set thin-far mtu 1300 up");
        ip("link set thin mtu 1300 up");
        ip("addr add 10.98.0.1/24 dev thin");
        let mut udp = open_one(&at("10.99.0.1".parse().unwrap()));
        assert_eq!(udp.caps().datagram_max, 1472);
        udp.peer(NodeId(1), &ip_address("10.98.0.2:9").into());
        let (small, large) = ([1; 1272], [2; 1273]);
        let to = Dest::Node(NodeId(1));
        let batch = [&large[..], &large, &small, &small, &large].map(|d| datagram(to, d, b""));
        assert_eq!(send_plain(&mut udp, NOW, &batch).unwrap(), 5);
        let counters = udp.counters();
        assert_eq!((counters.lost_at_send, counters.datagrams_sent), (3, 2));
        let told: Vec<Notice> = std::iter::from_fn(|| udp.notice()).collect();
        let refused = matches!(told[0], Notice::GsoRefused { .. });
        let large = matches!(told[1], Notice::TooLarge { len: 1273, .. });
        let text = told[1].to_string();
        assert!(text.contains("EMSGSIZE") && text.contains("NetOptions::datagram"));
        assert!(refused && large && told.len() == 2, "{told:?}");
        // A multicast of full size leaves by the interface that was chosen, and is not fragmented.
        udp.joins(G, ip_address("239.1.1.1:9"), false);
        let full = [3; 1472];
        let over = [3; 1473];
        let batch = [&full[..], &over].map(|d| datagram(Dest::Address(G), b"", d));
        assert_eq!(send_plain(&mut udp, NOW, &batch).unwrap(), 2);
        assert_eq!(udp.counters().lost_at_send, 4);
        assert!(matches!(
            udp.notice(),
            Some(Notice::TooLarge { len: 1473, .. })
        ));
    });
}

#[test]
fn a_link_further_on_with_a_smaller_mtu_loses_what_does_not_fit_untold() {
    in_own_network(|| {
        let (tell, told) = channel();
        let (moved, is_moved) = channel();
        // The far end of the wire, narrower than the near one, in a network of its own.
        let far_end = std::thread::spawn(move || {
            sys::own_network().unwrap();
            let task = std::fs::read_link("/proc/thread-self").unwrap();
            let task = task.file_name().unwrap().to_str().unwrap().to_owned();
            tell.send((task, None)).unwrap();
            is_moved.recv().unwrap();
            ip("addr add 10.99.0.2/24 dev far");
            ip("link set far mtu 1300 up");
            let mut end = open_one(&at("10.99.0.2".parse().unwrap()));
            end.joins(G, ip_address("239.1.1.1:9"), true);
            tell.send((String::new(), Some(end.local_addr()))).unwrap();
            assert!(!receive(&mut end, 1).is_empty());
            tell.send((String::new(), None)).unwrap();
            let mut got = Vec::new();
            while got.len() < 3 {
                let more = receive(&mut end, 1);
                if more.is_empty() {
                    break;
                }
                got.extend(more.into_iter().filter(|d| d != b"ready?"));
            }
            got
        });
        let (task, _) = told.recv().unwrap();
        ip(&format!("link set far netns {task}"));
        moved.send(()).unwrap();
        let (_, address) = told.recv().unwrap();
        // (The wire would carry a message that the kernel has still to segment, however long.)
        let mut udp = open_one(&UdpConfig {
            offload: false,
            ..at("10.99.0.1".parse().unwrap())
        });
        udp.peer(NodeId(1), &address.unwrap().into());
        udp.joins(G, ip_address("239.1.1.1:9"), false);
        let (large, small) = ([1; 1472], [2; 1272]);
        let (g, n) = (Dest::Address(G), Dest::Node(NodeId(1)));
        // A wire loses datagrams until both its ends have noticed that they are up.
        while told.recv_timeout(Duration::from_millis(10)) == Err(RecvTimeoutError::Timeout) {
            send_all(&mut udp, &[datagram(n, b"ready?", b"")]);
        }
        let batch = [(g, &large[..]), (n, &large), (g, &small), (n, &small)];
        let batch = batch.map(|(to, bytes)| datagram(to, bytes, b""));
        send_all(&mut udp, &batch);
        send_all(&mut udp, &[datagram(n, b"end", b"")]);
        let mut got = far_end.join().unwrap();
        got.sort();
        assert_eq!(got, [&small[..], &small, b"end"]);
        // Only a probe can find that out: the kernel took all datagrams, and reported nothing.
        assert_eq!(udp.counters().lost_at_send, 0);
        assert_eq!(udp.notice(), None);
    });
}

#[test]
fn an_interface_that_goes_down_is_an_error_that_names_it() {
    in_own_network(|| {
        for address in ["10.99.0.1", "fd99::1"] {
            ip("addr replace fd99::1/64 dev wire nodad"); // it goes when the interface goes down
            let mut udp = open_one(&at(address.parse().unwrap()));
            let g = group(&udp, 1);
            udp.joins(G, g, true);
            let closed = SocketAddr::new(udp.local.ip(), 9);
            udp.peer(NodeId(1), &closed.into());
            ip("link set wire down");
            let batch = [datagram(Dest::Address(G), b"x", b"y"); 3];
            let error = send_plain(&mut udp, NOW, &batch).unwrap_err().to_string();
            assert!(
                error.contains("interface wire") && error.contains("down"),
                "{error}"
            );
            ip("link set wire up");
            if address != "10.99.0.1" {
                break;
            }
            assert_eq!(
                send_plain(&mut udp, NOW, &batch).unwrap(),
                3,
                "and up again"
            );
        }
    });
}

#[test]
fn one_peer_without_a_way_there_does_not_stop_the_others() {
    in_own_network(|| {
        let mut udp = open_one(&at("10.99.0.1".parse().unwrap()));
        let peer = outsider("10.99.0.1:0");
        udp.peer(NodeId(1), &ip_address("172.30.0.1:9").into());
        udp.peer(NodeId(2), &peer.local_addr().unwrap().into());
        let batch = [NodeId(1), NodeId(2), NodeId(1)].map(|n| datagram(Dest::Node(n), b"x", b""));
        assert_eq!(send_plain(&mut udp, NOW, &batch).unwrap(), 3);
        assert_eq!(peer.recv(&mut [0; 9]).unwrap(), 1);
        let notice = udp.notice().unwrap().to_string();
        assert!(notice.contains("172.30.0.1"), "{notice}");
        assert_eq!(udp.notice(), None);
        // Listing the interfaces is slow, so it is not done for each datagram.
        assert_eq!(udp.counters().interface_checks, 1);
        for ms in 0..300 {
            let now = NOW + Duration::from_millis(ms);
            assert_eq!(send_plain(&mut udp, now, &batch).unwrap(), 3);
        }
        assert_eq!(udp.counters().interface_checks, 3);
        // Yet the next check is soon enough to find out that the interface is gone.
        ip("link set wire down");
        let later = NOW + Duration::from_millis(400);
        let error = send_plain(&mut udp, later, &batch).unwrap_err().to_string();
        assert!(error.contains("interface wire: the interface is down"));
    });
}

#[test]
fn a_closed_port_breaks_nothing() {
    let mut udp = open_one(&v4());
    let open = outsider("127.0.0.1:0");
    let closed = UdpSocket::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    udp.peer(NodeId(1), &closed.into());
    udp.peer(NodeId(2), &open.local_addr().unwrap().into());
    for _ in 0..20 {
        let batch = [NodeId(1), NodeId(2)].map(|n| datagram(Dest::Node(n), b"x", b""));
        send_all(&mut udp, &batch);
        assert_eq!(open.recv(&mut [0; 9]).unwrap(), 1);
        assert_eq!(udp.recv(NOW, &mut |_| panic!("from whom?")).unwrap(), 0);
    }
    // The same where the kernel does report the closed port.
    udp.script.next = [libc::ECONNREFUSED, libc::ECONNREFUSED].into();
    send_all(&mut udp, &[datagram(Dest::Node(NodeId(2)), b"x", b"")]);
    assert_eq!(open.recv(&mut [0; 9]).unwrap(), 1);
    // If the kernel reports it for ever, the datagram is lost, but there is no endless loop.
    udp.script.next = vec![libc::ECONNREFUSED; 9].into();
    send_all(&mut udp, &[datagram(Dest::Node(NodeId(2)), b"x", b"")]);
    let counters = udp.counters();
    assert_eq!((counters.lost_at_send, counters.errors_ignored), (1, 11));
}

#[test]
fn what_a_firewall_refuses_is_lost_and_told_once() {
    let mut udp = open_one(&v4());
    let g = group(&udp, 1);
    udp.joins(G, g, false);
    udp.script.next = [libc::EPERM, libc::EPERM, 0].into();
    let batch = [
        datagram(Dest::Address(G), b"x", b""),
        datagram(Dest::Address(G), b"xy", b""),
    ];
    for _ in 0..2 {
        assert_eq!(send_plain(&mut udp, NOW, &batch).unwrap(), 2);
    }
    assert_eq!(udp.counters().lost_at_send, 2);
    assert_eq!(udp.notice(), Some(Notice::Blocked { to: g }));
    assert_eq!(udp.notice(), None);
}

#[test]
fn back_pressure_is_told_and_waited_for() {
    let mut udp = open_one(&v4());
    let peer = outsider("127.0.0.1:0");
    udp.peer(NodeId(1), &peer.local_addr().unwrap().into());
    let batch = [b"ab", b"cd"].map(|d| datagram(Dest::Node(NodeId(1)), d, b""));
    udp.script.next = [libc::EAGAIN, 0, libc::ENOBUFS, 0].into();
    assert_eq!(send_plain(&mut udp, NOW, &batch).unwrap(), 0);
    wakes(&mut udp); // returns, because the socket can take more
    assert_eq!(send_plain(&mut udp, NOW, &batch).unwrap(), 2);
    assert_eq!(send_plain(&mut udp, NOW, &batch).unwrap(), 0);
    wakes(&mut udp); // returns after a while, because the kernel would not tell
    assert_eq!(send_plain(&mut udp, NOW, &batch).unwrap(), 2);
    // The datagrams that were taken are reported before the error that ended the call.
    udp.gso = false;
    let one = [datagram(Dest::Node(NodeId(1)), b"a", b"")];
    udp.script.next = [libc::ENODEV].into();
    let error = send_plain(&mut udp, NOW, &one).unwrap_err();
    assert!(error.to_string().contains("interface lo"), "{error}");
    let unknown = datagram(Dest::Node(NodeId(7)), b"a", b"");
    udp.script.next = [libc::ENODEV, libc::ENODEV].into();
    assert_eq!(send_plain(&mut udp, NOW, &[unknown, one[0]]).unwrap(), 1);
    wakes(&mut udp);
    send_plain(&mut udp, NOW, &one).unwrap_err();
}

#[test]
fn a_full_send_buffer_holds_back() {
    in_own_network(|| {
        // A token bucket that hardly lets anything through keeps datagrams in the send buffer.
        let bucket = "tc qdisc add dev wire root tbf rate 8kbit burst 2000 limit 10000000";
        let set = Command::new("sh").args(["-c", bucket]).status();
        if !set.is_ok_and(|s| s.success()) {
            return eprintln!("skipped: no token bucket here");
        }
        let config = UdpConfig {
            offload: false,
            ..at("10.99.0.1".parse().unwrap())
        };
        let mut udp = open_one(&config);
        let g = group(&udp, 1);
        udp.joins(G, g, false);
        let bytes = [1; 1400];
        let batch = vec![datagram(Dest::Address(G), &bytes, b""); 1000];
        let sent = send_plain(&mut udp, NOW, &batch).unwrap();
        assert!(sent > 10 && sent < 1000, "{sent}");
        let before = Instant::now();
        udp.wait(Some(Duration::from_millis(20))).unwrap();
        assert!(
            before.elapsed() >= Duration::from_millis(20),
            "it is still full"
        );
        ip("link set wire down"); // empties the bucket
        ip("link set wire up");
        assert_eq!(send_plain(&mut udp, NOW, &batch[..10]).unwrap(), 10);
    });
}
