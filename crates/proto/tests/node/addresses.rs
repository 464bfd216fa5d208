//! Tests of how a node proves a multicast address: by probes and answers that both go by it.

use std::time::Duration;

use fabricast_proto::wire::{self, Frame, flag};
use fabricast_proto::{
    AddressId, Command, Dest, Event, GroupId, Node, NodeId, Output, PathState, Scheme, Time,
};

use crate::common::{add, answer, drain, header, node};

const GROUP: GroupId = GroupId(1);
const ADDRESS: AddressId = AddressId(6);

fn at(ms: u64) -> Time {
    Time::ZERO + Duration::from_millis(ms)
}

fn prove(node: &mut Node, address: AddressId, members: &[u32]) {
    let prove = Command::ProveAddress {
        group: GROUP,
        address,
        members: members.iter().copied().map(NodeId).collect(),
        patience: Duration::from_millis(100),
    };
    assert_eq!(node.command(at(1), prove), Ok(None));
}

fn probe_in(head: &[u8]) -> Option<wire::Probe> {
    let datagram = wire::decode(head).ok()?;
    datagram.frames().find_map(|frame| match frame {
        Frame::Probe(probe) => Some(probe),
        _ => None,
    })
}

/// Lets the members in `answering` answer every probe, for `ms` milliseconds. Returns the events.
fn run(node: &mut Node, ms: u64, answering: impl Fn(AddressId) -> Vec<u32>) -> Vec<Event> {
    let mut events = Vec::new();
    for now in 1..ms {
        for (output, head) in drain(node, at(now)) {
            match output {
                Output::Event(event) => events.push(event),
                Output::Transmit(t) => {
                    let probe = probe_in(&head).expect("only probes are sent");
                    let by = probe.by.expect("the probe names the address");
                    assert_eq!(t.to, Dest::Address(by), "a probe goes by what it proves");
                    for member in answering(by) {
                        answer(node, member, at(now), &head);
                    }
                }
                _ => {}
            }
        }
    }
    events
}

#[test]
fn an_address_is_proven_by_those_who_answer() {
    let mut n = node(0, 0, Scheme::auto());
    add(&mut n, 1);
    prove(&mut n, ADDRESS, &[1, 2, 77]);
    let silent = Event::AddressSilent {
        group: GROUP,
        address: ADDRESS,
        node: NodeId(2),
    };
    let over = Event::AddressProven {
        group: GROUP,
        address: ADDRESS,
    };
    assert_eq!(run(&mut n, 2_000, |_| vec![1]), [silent, over]);
    // How the group itself reaches its members is another matter.
    assert!(
        n.members(GROUP)
            .all(|m| m.path_state == PathState::Multicast)
    );
}

#[test]
fn addresses_are_proven_at_once() {
    let mut n = node(0, 0, Scheme::auto());
    add(&mut n, 1);
    let other = AddressId(7);
    prove(&mut n, ADDRESS, &[1, 2]);
    prove(&mut n, other, &[1, 2]);
    let answering = |by| match by {
        ADDRESS => vec![],
        _ => vec![2, 1],
    };
    let events = run(&mut n, 2_000, answering);
    let over = |address| Event::AddressProven {
        group: GROUP,
        address,
    };
    assert_eq!(events[0], over(other), "the other one needs no patience");
    assert_eq!(events[3], over(ADDRESS));
    assert_eq!(events.len(), 4);
}

#[test]
fn who_is_gone_is_not_waited_for() {
    let mut n = node(0, 0, Scheme::auto());
    add(&mut n, 1);
    prove(&mut n, ADDRESS, &[1, 2]);
    let gone = Command::PeerRemove(NodeId(2));
    assert_eq!(n.command(at(1), gone), Ok(None));
    let events = run(&mut n, 20, |_| vec![1]);
    let over = Event::AddressProven {
        group: GROUP,
        address: ADDRESS,
    };
    assert_eq!(events.last(), Some(&over));
}

#[test]
fn a_member_answers_by_the_address_that_the_probe_names() {
    let mut n = node(1, 0, Scheme::auto());
    add(&mut n, 1);
    let probe = wire::Probe {
        group: GROUP,
        nonce: 7,
        flags: flag::MULTICAST | flag::BY_ADDRESS,
        only: None,
        by: Some(ADDRESS),
    };
    n.packet(at(2), at(2), &header(0), &Frame::Probe(probe));
    // A node that is no member gets no answer.
    n.packet(at(2), at(2), &header(9), &Frame::Probe(probe));
    let answers: Vec<_> = drain(&mut n, at(3)).into_iter().map(|o| o.0).collect();
    let [Output::Transmit(answer)] = answers[..] else {
        panic!("{answers:?}");
    };
    assert_eq!(answer.to, Dest::Address(ADDRESS));
}

/// Answers by an address go to all members, so that a member gives few, in however many names they
/// are asked for.
#[test]
fn forged_probes_get_few_answers_by_an_address() {
    let mut n = node(1, 0, Scheme::auto());
    add(&mut n, 1);
    let probe = |nonce| wire::Probe {
        group: GROUP,
        nonce,
        flags: flag::MULTICAST | flag::BY_ADDRESS,
        only: None,
        by: Some(ADDRESS),
    };
    let mut answers = 0;
    for ms in 1..=2_000 {
        for from in [0, 2] {
            let frame = Frame::Probe(probe(ms));
            n.packet(at(ms.into()), at(ms.into()), &header(from), &frame);
        }
        answers += drain(&mut n, at(ms.into())).len();
    }
    // One for each 2 ms, and 512 at once.
    assert!((1_400..=1_520).contains(&answers), "{answers}");
}

/// An answer of a member counts only if it answers a probe of this address.
#[test]
fn an_answer_to_something_else_proves_no_address() {
    for flags in [0, flag::MULTICAST, flag::BY_ADDRESS] {
        let mut n = node(0, 0, Scheme::auto());
        add(&mut n, 1);
        prove(&mut n, ADDRESS, &[1, 2]);
        let mut silent = Vec::new();
        for now in 1..2_000 {
            for (output, head) in drain(&mut n, at(now)) {
                if let Output::Event(Event::AddressSilent { node, .. }) = output {
                    silent.push(node);
                }
                let Some(probe) = probe_in(&head) else {
                    continue;
                };
                answer(&mut n, 1, at(now), &head);
                let stray = wire::Probe {
                    flags,
                    by: None,
                    ..probe
                };
                n.packet(at(now), at(now), &header(2), &Frame::ProbeAck(stray));
            }
        }
        assert_eq!(silent, [NodeId(2)], "{flags}");
    }
}
