//! One sender, a few receivers, every pattern of early losses.

use fabricast_proto::wire::{self, Frame};
use fabricast_proto::{PathState, Seq, Time};

use crate::net::{GROUP, Net, bytes, is_data};
/// Two receivers get objects of lengths around the payload size, with numbers across the wrap. The
/// network loses every subset of the first eight copies of data packets.
#[test]
fn every_pattern_of_early_losses_is_repaired() {
    for len in [0usize, 1, 63, 64, 65, 128, 200] {
        for pattern in 0u32..1 << 8 {
            let mut count = 0;
            let mut net = Net::new(3, Seq(u32::MAX - 1), 0, move |_, _, b| {
                if !is_data(b) {
                    return false;
                }
                count += 1;
                count <= 8 && pattern >> (count - 1) & 1 == 1
            });
            let object = bytes(len, 5);
            let posts: Vec<_> = (1..3).map(|n| net.post(n, 0, len as u64)).collect();
            let op = net.bcast(0, object.clone());
            net.run(Time(3_000_000_000));
            for (n, post) in (1..3).zip(posts) {
                assert_eq!(
                    net.sinks[&(n, post)],
                    object,
                    "len {len} pattern {pattern:b}"
                );
                assert!(net.complete.contains(&(n, post)));
            }
            assert!(
                net.complete.contains(&(0, op)),
                "len {len} pattern {pattern:b}"
            );
            assert_eq!(net.complete.len(), 3);
        }
    }
}

/// The network loses every subset of the first ten datagrams of any kind, feedback and probes
/// included.
#[test]
fn lost_feedback_is_said_again() {
    for pattern in 0u32..1 << 10 {
        let mut net = Net::new(2, Seq(0), 0, move |i, _, _| i < 10 && pattern >> i & 1 == 1);
        let object = bytes(150, 1);
        let post = net.post(1, 0, 150);
        net.bcast(0, object.clone());
        net.run(Time(5_000_000_000));
        assert_eq!(net.sinks[&(1, post)], object, "pattern {pattern:b}");
        assert_eq!(net.complete.len(), 2, "pattern {pattern:b}");
    }
}

/// In a group of two, messages go both ways at once, and the network loses every subset of the
/// first ten datagrams. Messages arrive in order, and nothing is sent by multicast.
#[test]
fn a_group_of_two_is_a_channel_of_reliable_messages() {
    for pattern in 0u32..1 << 10 {
        let mut net = Net::new(2, Seq(u32::MAX - 1), 4, move |i, _, _| {
            i < 10 && pattern >> i & 1 == 1
        });
        let lens = [65usize, 0, 200];
        let message = |from: usize, i: usize| bytes(lens[i], (2 * i + from) as u8);
        let mut posts = Vec::new();
        for (i, &len) in lens.iter().enumerate() {
            for from in 0..2 {
                net.bcast(from, message(from, i));
                // The receiver posts the last message only when the others have arrived.
                if i < 2 {
                    posts.push((from, i, net.post(1 - from, from, len as u64)));
                }
            }
        }
        net.run(Time(1_000_000_000));
        assert_eq!(net.complete.len(), 8, "pattern {pattern:b}");
        for from in 0..2 {
            posts.push((from, 2, net.post(1 - from, from, lens[2] as u64)));
        }
        net.run(Time(6_000_000_000));
        assert_eq!(net.complete.len(), 12, "pattern {pattern:b}");
        for (from, i, post) in posts {
            assert_eq!(net.sinks[&(1 - from, post)], message(from, i));
        }
        for node in &net.nodes {
            let c = node.counters();
            assert_eq!((c.data, c.repairs_multicast, c.data_unicast), (0, 0, 7));
            assert!(
                node.members(GROUP)
                    .all(|m| m.path_state == PathState::Unicast)
            );
        }
    }
}

/// Two senders send several broadcasts at once, to receivers that can hold packets of operations
/// that they have not posted.
#[test]
fn streams_of_two_senders_do_not_mix() {
    let mut lost = 0;
    let mut net = Net::new(3, Seq(u32::MAX - 4), 16, move |_, _, b| {
        lost += u32::from(is_data(b));
        is_data(b) && lost % 5 == 0
    });
    let lens = [100usize, 0, 64, 1000, 1];
    let mut sent = Vec::new();
    for (i, &len) in lens.iter().enumerate() {
        for sender in [0usize, 1] {
            net.bcast(sender, bytes(len, (i * 2 + sender) as u8));
            sent.push((sender, len, (i * 2 + sender) as u8));
        }
    }
    net.run(Time(20_000_000));
    let mut posts = Vec::new();
    for &(sender, len, salt) in &sent {
        for at in (0..3).filter(|&n| n != sender) {
            posts.push((at, net.post(at, sender, len as u64), bytes(len, salt)));
        }
    }
    net.run(Time(5_000_000_000));
    for (at, post, want) in posts {
        assert_eq!(net.sinks[&(at, post)], want);
    }
    assert_eq!(net.complete.len(), 30);
}

/// A receiver posts late: before that the sender sends it nothing and does not wait for it, and
/// afterwards the receiver gets everything.
#[test]
fn late_is_not_lost() {
    let mut net = Net::new(4, Seq(0), 0, |_, _, _| false);
    let object = bytes(64 * 300, 3);
    let posts: Vec<_> = (1..3)
        .map(|n| net.post(n, 0, object.len() as u64))
        .collect();
    net.bcast(0, object.clone());
    net.run(Time(500_000_000));
    for (n, post) in (1..3).zip(&posts) {
        assert!(net.complete.contains(&(n, *post)), "{n} was held up");
    }
    let counters = net.nodes[0].counters();
    assert_eq!(counters.repairs_multicast + counters.repairs_unicast, 0);
    let late = net.post(3, 0, object.len() as u64);
    net.run(Time(5_000_000_000));
    assert_eq!(net.sinks[&(3, late)], object);
    assert_eq!(net.complete.len(), 4);
    assert_eq!(net.nodes[0].counters().repairs_multicast, 0);
}

/// Every receiver loses another packet: one XOR repair packet mends all losses but that of the last
/// packet, which shows where the operation ends. The sender does not combine packets that the same
/// receiver lacks. A second broadcast shows the loss at the end of the first.
#[test]
fn one_xor_repair_packet_mends_different_losses() {
    for shared in [false, true] {
        let mut net = Net::new(7, Seq(u32::MAX - 3), 0, move |_, to, b| {
            let Some(Frame::Data(d)) = wire::decode(b).unwrap().frames().next() else {
                return false;
            };
            let index = d.seq.from(Seq(u32::MAX - 3)) as usize;
            let lost = index == to + 5 || shared && index == 2 && to == 3;
            lost && d.flags & wire::flag::REPAIR == 0
        });
        let objects = [bytes(64 * 11 + 7, 5), bytes(100, 9)];
        let mut posts = Vec::new();
        for object in &objects {
            let len = object.len() as u64;
            posts.extend((1..7).map(|n| (n, net.post(n, 0, len), object)));
            net.bcast(0, object.clone());
        }
        net.run(Time(2_000_000_000));
        for (n, post, object) in posts {
            assert_eq!(&net.sinks[&(n, post)], object, "receiver {n}");
        }
        assert_eq!(net.complete.len(), 14);
        let c = net.nodes[0].counters();
        let repairs = (c.repairs_coded, c.repairs_multicast, c.repairs_unicast);
        assert_eq!(repairs, if shared { (1, 1, 2) } else { (1, 1, 1) });
    }
}

/// Many receivers lose different packets of two blocks. As many parity packets as the neediest
/// receiver lacks mend the losses, whichever of them a receiver gets. A receiver that alone lacks a
/// packet gets it by unicast.
#[test]
fn parity_packets_mend_any_losses_of_a_block() {
    for lost_parity in [false, true] {
        let start = Seq(u32::MAX - 3);
        let mut net = Net::new(21, start, 0, move |_, to, b| {
            match wire::decode(b).unwrap().frames().next() {
                Some(Frame::Data(d)) => {
                    let index = d.seq.from(start) as usize;
                    let other = index == to || index == 3 * to || index == 40 && to < 3;
                    other && d.flags & wire::flag::REPAIR == 0
                        || index == 199 && to == 9 && { d.flags & wire::flag::REPAIR == 0 }
                }
                Some(Frame::Parity(p)) => lost_parity && p.index == 1 && to == 2,
                _ => false,
            }
        });
        let object = bytes(64 * 199 + 7, 5);
        let posts: Vec<_> = (1..21)
            .map(|n| (n, net.post(n, 0, object.len() as u64)))
            .collect();
        net.bcast(0, object.clone());
        net.run(Time(2_000_000_000));
        for (n, post) in posts {
            assert_eq!(net.sinks[&(n, post)], object, "receiver {n}");
        }
        assert_eq!((net.complete.len(), net.kept.len()), (21, 0));
        let c = net.nodes[0].counters();
        // Receivers 1 and 2 lack three packets of the first block. Only receiver 9 lacks a packet
        // of the second block.
        let repairs = (c.repairs_coded, c.repairs_multicast, c.repairs_unicast);
        assert_eq!(repairs, (3, 3, if lost_parity { 2 } else { 1 }));
    }
}

/// A receiver posted more or less bytes than the sender sends, and loses exactly the last packet.
/// Others lose other packets, so that parity packets mend the losses. The odd receiver must not
/// take the others' bytes for its own: it reports the mismatch.
#[test]
fn a_parity_packet_shows_where_the_operation_ends() {
    for (packets, odd) in [(200, 8), (200, 6), (128, 7 + 64)] {
        let start = Seq(u32::MAX - 3);
        let mut net = Net::new(21, start, 0, move |_, to, b| {
            match wire::decode(b).unwrap().frames().next() {
                Some(Frame::Data(d)) => {
                    let lost = packets - 1 - to as i32 % 3;
                    d.seq.from(start) == lost && d.flags & wire::flag::REPAIR == 0
                }
                _ => false,
            }
        });
        let whole = 64 * (packets as u64 - 1);
        let object = bytes(whole as usize + 7, 5);
        let posts: Vec<_> = (1..21)
            .map(|n| (n, net.post(n, 0, whole + if n == 3 { odd } else { 7 })))
            .collect();
        net.bcast(0, object.clone());
        net.run(Time(2_000_000_000));
        for (n, post) in posts {
            let odd = n == 3;
            assert_eq!(net.mismatches.contains(&(n, post)), odd, "receiver {n}");
            assert_eq!(net.complete.contains(&(n, post)), !odd, "receiver {n}");
            if !odd {
                assert_eq!(net.sinks[&(n, post)], object, "receiver {n}");
            }
        }
        assert!(net.nodes[0].counters().repairs_coded > 0);
    }
}
