//! Receivers decline what they have already.

use std::time::Duration;

use fabricast_proto::{Command, NodeId, Refused, Seq, Time};

use crate::net::{GROUP, Net, PAYLOAD, bytes, is_data};

const MS: Duration = Duration::from_millis(1);
/// Lengths of the broadcasts. The second has more packets than two of the others.
const LENS: [usize; 4] = [130, 700, 64, 0];
/// Packets of each.
const PACKETS: [u64; 4] = [3, 11, 1, 1];

/// Each of two receivers declines every subset of four broadcasts, before or after the sender has
/// begun them. The network loses some of the first datagrams.
fn run(declined: [u32; 2], ahead: bool, pattern: u32) -> Net {
    let start = Seq(u32::MAX - 8);
    let mut net = Net::new(3, start, 2, move |i, _, _| i < 6 && pattern >> i & 1 == 1);
    let mut posts = Vec::new();
    let mut post = |net: &mut Net| {
        for (n, declined) in (1..).zip(declined) {
            for (i, len) in LENS.into_iter().enumerate() {
                match declined >> i & 1 == 1 {
                    true => net.decline(n, 0, len as u64),
                    false => posts.push((n, i, net.post(n, 0, len as u64))),
                }
            }
        }
        net.run(net.now + 1000 * MS);
    };
    if ahead {
        post(&mut net);
    }
    let ops = [0, 1, 2, 3].map(|i| net.bcast(0, bytes(LENS[i], i as u8)));
    if !ahead {
        net.run(net.now + MS);
        post(&mut net);
    }
    net.run(net.now + 20_000 * MS);
    let name = format!("{declined:?}, ahead: {ahead}, pattern {pattern:b}");
    for &(n, i, op) in &posts {
        assert!(
            net.complete.contains(&(n, op)),
            "{name}: node {n} lacks {i}"
        );
        assert_eq!(net.sinks[&(n, op)], bytes(LENS[i], i as u8), "{name}");
    }
    for op in ops {
        assert!(net.complete.contains(&(0, op)), "{name}: {op:?}");
    }
    assert_eq!(net.complete.len(), posts.len() + 4, "{name}");
    net
}

#[test]
fn every_pair_of_subsets_is_declined() {
    for declined in (0..16).flat_map(|a| (0..16).map(move |b| [a, b])) {
        for (ahead, pattern) in [(true, 0), (false, 0), (true, 0b101101), (false, 0b110)] {
            run(declined, ahead, pattern);
        }
    }
}

/// What all receivers decline in time is not sent, and what one of them wants is sent once.
#[test]
fn nothing_is_sent_that_all_decline() {
    for declined in (0..16).flat_map(|a| (0..16).map(move |b| [a, b])) {
        let net = run(declined, true, 0);
        let wanted = (0..4).filter(|i| declined.iter().any(|d| d >> i & 1 == 0));
        let wanted: u64 = wanted.map(|i| PACKETS[i]).sum();
        let c = net.nodes[0].counters();
        let sent = c.data + c.data_unicast + c.repairs_multicast + c.repairs_unicast;
        assert_eq!(sent, wanted, "{declined:?}");
    }
}

/// In a group of two, and to a receiver that multicast does not reach, nothing goes that it
/// declines.
#[test]
fn nothing_is_sent_for_a_receiver_alone_that_declines() {
    for (nodes, reached) in [(2, true), (3, false)] {
        let mut net = Net::new(nodes, Seq(0), 2, |_, _, _| false);
        if !reached {
            let unreached = Command::Unreached {
                group: GROUP,
                members: vec![NodeId(2)],
            };
            assert_eq!(net.nodes[0].command(net.now, unreached), Ok(None));
        }
        let last = nodes as usize - 1;
        let object = bytes(500, 3);
        net.decline(last, 0, 500);
        let posts: Vec<_> = (1..last).map(|n| net.post(n, 0, 500)).collect();
        net.run(net.now + 100 * MS);
        let op = net.bcast(0, object);
        net.run(net.now + 1000 * MS);
        assert!(net.complete.contains(&(0, op)));
        assert_eq!(net.complete.len(), posts.len() + 1);
        assert_eq!(net.nodes[0].counters().data_unicast, 0);
    }
}

/// An object that is far larger than the window is declined in the midst of others, which arrive.
#[test]
fn an_object_larger_than_the_window_is_declined() {
    let packets = 40_000u64;
    let len = packets * u64::from(PAYLOAD);
    let mut net = Net::new(3, Seq(u32::MAX - 20_000), 2, |i, _, b| {
        is_data(b) && i % 7 == 0
    });
    let small = bytes(400, 9);
    let mut posts = Vec::new();
    for n in 1..3 {
        posts.push((n, net.post(n, 0, 400)));
        net.decline(n, 0, len);
        posts.push((n, net.post(n, 0, 400)));
    }
    let ops = [small.clone(), vec![0; len as usize], small.clone()].map(|o| net.bcast(0, o));
    net.run(Time::ZERO + 20_000 * MS);
    for op in ops {
        assert!(net.complete.contains(&(0, op)));
    }
    for (n, post) in posts {
        assert!(net.complete.contains(&(n, post)));
        assert_eq!(net.sinks[&(n, post)], small);
    }
    assert!(net.nodes[0].counters().data < 1000);
}

#[test]
fn what_cannot_be_declined_is_refused() {
    let mut net = Net::new(3, Seq(0), 0, |_, _, _| false);
    let decline = |sender, len| Command::Decline {
        group: GROUP,
        sender: NodeId(sender),
        len,
    };
    for (command, refused) in [
        (decline(1, 10), Refused::NotMember),
        (decline(7, 10), Refused::NotMember),
        (decline(0, u64::MAX), Refused::TooLong),
    ] {
        let got = net.nodes[1].command(net.now, command.clone());
        assert_eq!(got, Err(refused), "{command:?}");
    }
}

/// Tests of the tests: each defect must show.
#[cfg(feature = "mutants")]
#[test]
fn every_mutant_of_declines_is_caught() {
    for mutant in fabricast_proto::mutant::Mutant::DECLINES {
        let caught = crate::fails(mutant, nothing_is_sent_that_all_decline);
        assert!(caught, "{mutant:?} is not caught");
    }
}
