//! Tests of how much of its rate a sender spends on repairs.

use std::time::Duration;

use fabricast_proto::wire::{self, Frame, flag};
use fabricast_proto::{Command, Dest, GroupId, Node, Output, PathState, Scheme, Time};

use crate::common::{PAYLOAD, add, answer, bcast, config, drain, tell};

/// Numbers of new packets and of repairs that the node sends now.
fn leave(n: &mut Node, now: Time) -> (u32, u32) {
    let (mut new, mut repairs) = (0, 0);
    for (output, head) in drain(n, now) {
        let Output::Transmit(t) = output else {
            continue;
        };
        n.sent(now, t.token);
        let len = t.payload.map_or(0, |p| p.len() as usize);
        let whole = [&head[..], &vec![0; len]].concat();
        let datagram = wire::decode(&whole).expect("what a node writes can be read");
        match datagram.frames().next() {
            Some(Frame::Data(d)) if d.flags & flag::REPAIR == 0 => new += 1,
            Some(Frame::Data(_) | Frame::Xor(_)) => repairs += 1,
            _ => {}
        }
    }
    (new, repairs)
}

/// Repairs beyond those that a receiver's progress earns take at most a fifth of the rate.
#[test]
fn who_lacks_everything_again_and_again_is_sent_a_fifth() {
    let mut config = config(0, 0, Scheme::auto());
    config.scheme.window = 1024;
    config.rate = Some(1_000_000);
    let mut n = Node::new(config, 1);
    add(&mut n, 1);
    bcast(&mut n, 1, 100_000 * u64::from(PAYLOAD));
    let at = |ms| Time::ZERO + Duration::from_millis(ms);
    let (mut sent, mut again) = (0u32, 0u32);
    for ms in 1..1_000 {
        // The first receiver places whatever comes; the second lags behind and lacks all of it.
        let placed = sent.saturating_sub(10);
        tell(&mut n, 1, at(ms), (placed, placed + 1024, sent), None);
        let lags = placed.saturating_sub(900);
        tell(&mut n, 2, at(ms), (lags, lags + 1024, sent), Some(lags));
        let (new, repairs) = leave(&mut n, at(ms));
        (sent, again) = (sent + new, again + repairs);
    }
    // The receiver earns one repair for each packet that it reports as placed, and had 128 in
    // advance.
    let most = 128 + sent + (sent + again) / 5;
    assert!(sent > 3_000 && again > 1_000, "{sent} {again}");
    assert!(again <= most + 50, "{again} repairs, {sent} packets");
}

/// Members that lack everything and make progress get repairs at the full rate, by multicast and by
/// unicast.
#[test]
fn who_lacks_everything_at_the_end_is_sent_it_at_the_full_pace() {
    let at = |ms| Time::ZERO + Duration::from_millis(ms);
    for path_state in [PathState::Multicast, PathState::Unicast] {
        let mut config = config(0, 0, Scheme::auto());
        config.scheme.window = 1024;
        config.rate = Some(1_000_000);
        let mut n = Node::new(config, 1);
        add(&mut n, 1);
        if path_state == PathState::Unicast {
            let prove = Command::Prove {
                group: GroupId(1),
                multicast: Duration::ZERO,
                unicast: Duration::from_secs(1),
            };
            assert_eq!(n.command(Time(1), prove), Ok(None));
            for ms in 1..100 {
                for (output, probe) in drain(&mut n, at(ms)) {
                    if let Output::Transmit(t) = output {
                        let Dest::Node(to) = t.to else {
                            panic!("multicast is not tried: {t:?}")
                        };
                        answer(&mut n, to.0, at(ms), &probe);
                    }
                }
            }
        }
        let packets = 900;
        bcast(&mut n, 1, u64::from(packets) * u64::from(PAYLOAD));
        assert!(n.members(GroupId(1)).all(|m| m.path_state == path_state));
        let (mut first, mut again) = (0u32, 0u32);
        let mut all_sent = None;
        let ways = if path_state == PathState::Unicast {
            2
        } else {
            1
        };
        for ms in 100..4_000 {
            let cum = again / ways;
            for m in [1, 2] {
                let lacks = all_sent.map(|_| cum);
                tell(
                    &mut n,
                    m,
                    at(ms),
                    (cum, cum + 1024, packets.min(first)),
                    lacks,
                );
            }
            let (new, repairs) = leave(&mut n, at(ms));
            (first, again) = (first + new, again + repairs);
            if first == ways * packets && all_sent.is_none() {
                all_sent = Some(ms);
            }
            if all_sent.is_some_and(|then| ms > then + 100) {
                break;
            }
        }
        assert!(all_sent.is_some(), "{path_state:?}: {first} of {packets}");
        // A packet with its head has 109 bytes at most: the rate allows 900 of them in 100 ms.
        assert!(again > 600, "{path_state:?}: {again} repairs in 100 ms");
    }
}

/// Repairs for a receiver without progress take a fifth of the rate even when everything has been
/// sent: other receivers may still lack packets.
#[test]
fn who_gets_nowhere_is_sent_a_fifth_to_the_end() {
    const FILE: u32 = 500;
    let mut config = config(0, 0, Scheme::auto());
    config.scheme.window = 1024;
    let overhead = config.scheme.data_overhead() as u32;
    config.rate = Some(1_000_000);
    let mut n = Node::new(config, 1);
    add(&mut n, 1);
    bcast(&mut n, 1, u64::from(FILE * PAYLOAD));
    let at = |ms| Time::ZERO + Duration::from_millis(ms);
    let (mut sent, mut again) = (0u32, 0u32);
    for ms in 1..1_000 {
        tell(&mut n, 1, at(ms), (sent, sent + 1024, sent), None);
        // The second receiver lacks again packets that it had, and earns nothing more.
        let had = if ms % 2 == 0 { 0 } else { sent.min(50) };
        tell(&mut n, 2, at(ms), (0, 1024, sent), Some(had));
        let (new, repairs) = leave(&mut n, at(ms));
        (sent, again) = (sent + new, again + repairs);
    }
    assert_eq!(sent, FILE);
    let pace = 1_000_000 / (PAYLOAD + overhead);
    let most = 128 + 50 + pace / 5;
    assert!(again > pace / 10, "{again} repairs");
    assert!(
        again <= most + 50,
        "{again} repairs of {pace} packets a second"
    );
}

/// Over shared memory the rate has no limit, and a fifth of it has none either.
#[test]
fn a_share_of_a_boundless_pace_is_boundless() {
    let mut config = config(0, 0, Scheme::auto());
    config.rate = Some(u64::MAX);
    let mut n = Node::new(config, 1);
    add(&mut n, 1);
    bcast(&mut n, 1, 90 * u64::from(PAYLOAD));
    let at = |ms| Time::ZERO + Duration::from_millis(ms);
    let mut again = 0;
    for ms in 1..100 {
        tell(&mut n, 1, at(ms), (0, 100, 90), Some(0));
        for (output, _) in drain(&mut n, at(ms)) {
            if let Output::Transmit(t) = output {
                n.sent(at(ms), t.token);
                again += u32::from(t.payload.is_some());
            }
        }
    }
    assert!(again > 90, "{again}");
}
