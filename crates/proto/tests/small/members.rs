//! Members join and leave in the midst of broadcasts.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use fabricast_proto::rng::Rng;
use fabricast_proto::{Admission, Command, NodeId, OpId, Refused, Seq, Time};

use crate::net::{GROUP, Net, PAYLOAD, bytes};

/// Number of random runs.
const SEEDS: u64 = 2000;
const MS: Duration = Duration::from_millis(1);

fn add(net: &mut Net, node: usize) -> Admission {
    let node = NodeId(node as u32);
    let command = Command::MemberAdd { group: GROUP, node };
    assert_eq!(net.nodes[0].command(net.now, command), Ok(None));
    net.nodes[0].admission(GROUP, node).expect("a member")
}

fn join(net: &mut Net, node: usize, admission: Admission) {
    let join = Command::GroupJoin {
        group: GROUP,
        sender: NodeId(0),
        payload_size: PAYLOAD,
        admission,
    };
    assert_eq!(net.nodes[node].command(net.now, join), Ok(None));
}

fn remove(net: &mut Net, node: usize) {
    let gone = Command::MemberRemove {
        group: GROUP,
        node: NodeId(node as u32),
    };
    assert_eq!(net.nodes[0].command(net.now, gone), Ok(None));
}

fn leave(net: &mut Net, node: usize) {
    let leave = Command::GroupRemove(GROUP);
    assert_eq!(net.nodes[node].command(net.now, leave), Ok(None));
}

/// A member joins after each number of packets of a broadcast that is under way, and the network
/// loses every subset of the next six datagrams. The broadcast completes without the newcomer,
/// which gets nothing of it. The next one waits for the newcomer and arrives there.
#[test]
fn a_member_joins_at_every_point_of_a_broadcast() {
    for (founders, unexpected) in [(2, 0), (3, 0), (3, 4)] {
        for at in 0..12 {
            for pattern in 0u32..1 << 6 {
                let first = Rc::new(RefCell::new(u32::MAX));
                let lost = Rc::clone(&first);
                let start = Seq(u32::MAX - 2);
                let mut net = Net::founded(4, founders, start, unexpected, move |i, _, _| {
                    let k = i.wrapping_sub(*lost.borrow());
                    *lost.borrow() <= i && k < 6 && pattern >> k & 1 == 1
                });
                let name = format!("{founders} founders, step {at}, pattern {pattern:b}");
                let objects = [bytes(300, 1), bytes(200, 2)];
                let founders = 1..founders as usize;
                let post = |net: &mut Net, n, i: usize| net.post(n, 0, objects[i].len() as u64);
                let mut posts: Vec<_> = founders
                    .clone()
                    .map(|n| (n, 0, post(&mut net, n, 0)))
                    .collect();
                let under_way = net.bcast(0, objects[0].clone());
                net.run(Time(1 + at * 25_000));
                let over = net.complete.contains(&(0, under_way));
                *first.borrow_mut() = net.sent();
                let admission = add(&mut net, 3);
                assert_eq!(admission.first, start + 5, "{name}");
                net.run(net.now + 2000 * MS);
                assert!(net.complete.contains(&(0, under_way)), "{name} {over}");
                let next = net.bcast(0, objects[1].clone());
                posts.extend(founders.map(|n| (n, 1, post(&mut net, n, 1))));
                net.run(net.now + 20 * MS);
                assert!(!net.complete.contains(&(0, next)), "{name}");
                join(&mut net, 3, admission);
                posts.push((3, 1, post(&mut net, 3, 1)));
                net.run(net.now + 3000 * MS);
                for &(n, i, op) in &posts {
                    assert!(net.complete.contains(&(n, op)), "{name}: node {n}");
                    assert_eq!(net.sinks[&(n, op)], objects[i], "{name}: node {n}");
                }
                assert_eq!(net.complete.len(), posts.len() + 2, "{name}");
            }
        }
    }
}

/// A receiver that leaves holds nobody up, wherever the broadcast stands.
#[test]
fn a_member_leaves_at_every_point_of_a_broadcast() {
    for at in 0..12 {
        for tells in [true, false] {
            let mut net = Net::new(3, Seq(7), 0, |_, to, _| to == 2);
            net.paths_change = true;
            let object = bytes(300, 1);
            let posts = [1, 2].map(|n| net.post(n, 0, 300));
            let op = net.bcast(0, object.clone());
            net.run(Time(1 + at * 25_000));
            if tells {
                leave(&mut net, 2);
            }
            remove(&mut net, 2);
            net.run(net.now + 2000 * MS);
            assert!(net.complete.contains(&(0, op)), "step {at}");
            assert!(net.complete.contains(&(1, posts[0])), "step {at}");
            assert_eq!(net.sinks[&(1, posts[0])], object);
        }
    }
}

/// A group that has lost all its members waits for nobody: what is broadcast then is complete, and
/// nothing of it is left to send. The next member gets what comes after it has joined.
#[test]
fn without_members_nothing_is_left_to_send() {
    for founders in [2, 3] {
        for at in 0..12 {
            let mut net = Net::founded(4, founders, Seq(u32::MAX - 2), 0, |_, _, _| false);
            for n in 1..founders as usize {
                net.post(n, 0, 300);
            }
            let under_way = net.bcast(0, bytes(300, 1));
            net.run(Time(1 + at * 25_000));
            for n in 1..founders as usize {
                leave(&mut net, n);
                remove(&mut net, n);
            }
            let alone = net.bcast(0, bytes(1000, 2));
            net.run(net.now + 100 * MS);
            for op in [under_way, alone] {
                assert!(net.complete.contains(&(0, op)), "step {at}");
            }
            assert_eq!(net.nodes[0].unsent(GROUP), 0, "step {at}");
            let admission = add(&mut net, 3);
            join(&mut net, 3, admission);
            let (object, post) = (bytes(200, 3), net.post(3, 0, 200));
            let next = net.bcast(0, object.clone());
            net.run(net.now + 2000 * MS);
            assert!(net.complete.contains(&(0, next)), "step {at}");
            assert_eq!(net.sinks[&(3, post)], object, "step {at}");
        }
    }
}

/// What a test expects of a receiver.
struct Expected {
    /// The first broadcast that the receiver gets.
    from: usize,
    /// Broadcasts that it has posted, from `from` on; `None`: it has declined it.
    posts: Vec<Option<OpId>>,
    /// What it was told, if it has not yet joined.
    admission: Option<Admission>,
}

#[test]
fn whoever_joins_gets_each_later_broadcast_once() {
    (0..SEEDS).for_each(run);
}

/// Receivers join, post, leave and come back at random, with losses, and old feedback is repeated.
/// Panics unless each receiver gets every broadcast from its join on, and each broadcast completes.
fn run(seed: u64) {
    let mut rng = Rng::new(seed);
    let old = Rc::new(RefCell::new(Vec::new()));
    let healed = Rc::new(RefCell::new(false));
    let mut losses = Rng::new(rng.bits());
    let loss = [0.0, 0.05, 0.3][rng.below(3) as usize];
    let (heard, well) = (Rc::clone(&old), Rc::clone(&healed));
    let start = Seq(0u32.wrapping_sub(rng.below(200) as u32));
    let (founders, unexpected) = (1 + rng.below(4) as u32, [0, 1, 64][rng.below(3) as usize]);
    let mut net = Net::founded(7, founders, start, unexpected, move |_, to, b| {
        if to == 0 {
            heard.borrow_mut().push(b.to_vec());
        }
        losses.chance(loss) && !*well.borrow()
    });
    net.paths_change = true;
    let mut objects: Vec<(Vec<u8>, OpId)> = Vec::new();
    let founder = |_| Expected {
        from: 0,
        posts: Vec::new(),
        admission: None,
    };
    let mut members: BTreeMap<usize, Expected> =
        (1..founders as usize).map(|n| (n, founder(n))).collect();
    for _ in 0..60 {
        let n = 1 + rng.below(6) as usize;
        match (rng.below(10), members.contains_key(&n)) {
            (0..4, _) if objects.len() < 40 => {
                let object = bytes(rng.below(500) as usize, objects.len() as u8);
                let op = net.bcast(0, object.clone());
                objects.push((object, op));
            }
            (4..7, true) => {
                let declines = rng.chance(0.3);
                let expected = members.get_mut(&n).unwrap();
                post_next(&mut net, n, expected, &objects, declines);
            }
            (7, true) => {
                let expected = members.remove(&n).unwrap();
                check(&net, n, &expected, &objects, false);
                // Either end learns first that the member leaves.
                let joined = expected.admission.is_none();
                let first = rng.chance(0.5);
                if joined && first {
                    leave(&mut net, n);
                }
                net.run(net.now + Duration::from_micros(rng.below(300)));
                remove(&mut net, n);
                if joined && !first {
                    leave(&mut net, n);
                }
                // It comes back at once, and what it has said before comes again.
                if rng.chance(0.5) {
                    members.insert(n, newcomer(&mut net, n, objects.len()));
                    let said: Vec<_> = old.borrow().iter().rev().take(9).cloned().collect();
                    said.iter().for_each(|datagram| net.deliver(0, datagram));
                }
            }
            (8, false) => {
                members.insert(n, newcomer(&mut net, n, objects.len()));
            }
            (9, _) if !old.borrow().is_empty() => {
                let which = rng.below(old.borrow().len() as u64) as usize;
                let datagram = old.borrow()[which].clone();
                net.deliver(0, &datagram);
            }
            _ => net.run(net.now + Duration::from_micros(rng.below(3000))),
        }
        // Nothing that a node has said before it joins counts.
        for status in net.nodes[0].members(GROUP).filter(|m| m.heard.is_some()) {
            let expected = members.get(&(status.node.0 as usize));
            assert!(
                expected.is_none_or(|e| e.admission.is_none()),
                "heard early"
            );
        }
    }
    *healed.borrow_mut() = true;
    for (&n, expected) in &mut members {
        while expected.from + expected.posts.len() < objects.len() {
            post_next(&mut net, n, expected, &objects, false);
        }
    }
    net.run(net.now + 20_000 * MS);
    for (&n, expected) in &members {
        check(&net, n, expected, &objects, true);
    }
    for (i, (_, op)) in objects.iter().enumerate() {
        let times = net.complete.iter().filter(|c| **c == (0, *op)).count();
        assert_eq!(times, 1, "seed {seed}: broadcast {i} of {}", objects.len());
    }
}

/// Admits a node after `from` broadcasts.
fn newcomer(net: &mut Net, n: usize, from: usize) -> Expected {
    Expected {
        from,
        posts: Vec::new(),
        admission: Some(add(net, n)),
    }
}

/// A receiver joins if it has not, and posts or declines the next broadcast.
fn post_next(
    net: &mut Net,
    n: usize,
    expected: &mut Expected,
    objects: &[(Vec<u8>, OpId)],
    declines: bool,
) {
    if let Some(admission) = expected.admission.take() {
        join(net, n, admission);
    }
    if let Some((object, _)) = objects.get(expected.from + expected.posts.len()) {
        let len = object.len() as u64;
        expected.posts.push(match declines {
            true => {
                net.decline(n, 0, len);
                None
            }
            false => Some(net.post(n, 0, len)),
        });
    }
}

/// Checks what a receiver has: `all` that it has posted, or what is complete.
fn check(net: &Net, n: usize, expected: &Expected, objects: &[(Vec<u8>, OpId)], all: bool) {
    for (i, op) in (expected.from..).zip(&expected.posts) {
        let Some(op) = *op else { continue };
        let times = net.complete.iter().filter(|c| **c == (n, op)).count();
        let name = format!("node {n}, broadcast {i}");
        assert!(times == 1 || times == 0 && !all, "{name}: {times} times");
        if times == 1 {
            assert_eq!(net.sinks[&(n, op)], objects[i].0, "{name}");
        }
    }
}

/// What cannot be is refused, and changes nothing.
#[test]
fn impossible_joins_are_refused() {
    let mut net = Net::founded(4, 3, Seq(0), 0, |_, _, _| false);
    let node = NodeId;
    let add_to = |group, n| Command::MemberAdd {
        group,
        node: node(n),
    };
    let gone_from = |group, n| Command::MemberRemove {
        group,
        node: node(n),
    };
    let other = fabricast_proto::GroupId(77);
    for (command, refused) in [
        (add_to(other, 3), Refused::NoGroup),
        (add_to(GROUP, 0), Refused::IsMember),
        (add_to(GROUP, 2), Refused::IsMember),
        (gone_from(other, 2), Refused::NoGroup),
        (gone_from(GROUP, 3), Refused::NotMember),
        (gone_from(GROUP, 0), Refused::NotMember),
    ] {
        let got = net.nodes[0].command(net.now, command.clone());
        assert_eq!(got, Err(refused), "{command:?}");
    }
    let dead = Command::PeerRemove(node(3));
    assert_eq!(net.nodes[0].command(net.now, dead), Ok(None));
    let got = net.nodes[0].command(net.now, add_to(GROUP, 3));
    assert_eq!(got, Err(Refused::Gone));
    let back = Command::PeerAdd(node(3));
    assert_eq!(net.nodes[0].command(net.now, back), Ok(None));
    let admission = add(&mut net, 3);
    join(&mut net, 3, admission);
    for command in [
        Command::Bcast {
            group: GROUP,
            len: 1,
            awaited: true,
        },
        add_to(GROUP, 1),
    ] {
        let got = net.nodes[3].command(net.now, command);
        assert_eq!(got, Err(Refused::ReceivesOnly));
    }
    let got = net.nodes[3].command(
        net.now,
        Command::Post {
            group: GROUP,
            sender: node(1),
            len: 1,
        },
    );
    assert_eq!(got, Err(Refused::NotMember));
}

/// A node leaves and comes back, in the same slot. Feedback of its first time there says nothing of
/// the second.
#[test]
fn feedback_of_an_earlier_holder_does_not_count() {
    let old = Rc::new(RefCell::new(Vec::new()));
    let heard = Rc::clone(&old);
    let mut net = Net::founded(4, 3, Seq(0), 0, move |_, to, b| {
        let from = u32::from_be_bytes([b[4], b[5], b[6], b[7]]);
        if (from, to) == (3, 0) {
            heard.borrow_mut().push(b.to_vec());
        }
        false
    });
    let first = add(&mut net, 3);
    join(&mut net, 3, first);
    // The node says that it can take packets, and goes before any comes.
    net.post(3, 0, 100);
    net.run(Time::ZERO + 10 * MS);
    assert!(!old.borrow().is_empty());
    leave(&mut net, 3);
    remove(&mut net, 3);
    let second = add(&mut net, 3);
    assert_eq!(second.slot.index, first.slot.index);
    assert!(second.slot.epoch > first.slot.epoch);
    let foreign = net.nodes[0].counters().foreign;
    for datagram in old.take() {
        net.deliver(0, &datagram);
    }
    assert!(net.nodes[0].counters().foreign > foreign);
    let mut members = net.nodes[0].members(GROUP);
    assert!(members.all(|m| m.node != NodeId(3) || m.heard.is_none()));
}

/// Tests of the tests: each defect must show.
#[cfg(feature = "mutants")]
#[test]
fn every_mutant_of_members_is_caught() {
    for mutant in fabricast_proto::mutant::Mutant::MEMBERS {
        let seed = (0..SEEDS).find(|&seed| crate::fails(mutant, || run(seed)));
        let seed = seed.unwrap_or_else(|| panic!("{mutant:?} is not caught"));
        println!("{mutant:?}: seed {seed}");
    }
}
