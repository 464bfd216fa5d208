//! Compares the window with a queue and sets of members.

use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug)]
enum Act {
    Send,
    /// A packet, a member that lacks it, and the burst as of which the member says so.
    Lacks(u32, u32, Option<u32>),
    Repair(bool),
    Release(u32),
    Forget(u32),
    Grow(u32),
}

fn acts(members: Range<u32>) -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        6 => Just(Act::Send),
        4 => (0u32..80, members.clone(), proptest::option::of(0u32..400))
            .prop_map(|(n, who, as_of)| Act::Lacks(n, who, as_of)),
        3 => any::<bool>().prop_map(Act::Repair),
        1 => (0u32..20).prop_map(Act::Release),
        1 => members.prop_map(Act::Forget),
        1 => (0u32..70).prop_map(Act::Grow),
    ];
    proptest::collection::vec(act, 0..400)
}

/// Some members, and what happens to them.
fn groups() -> impl Strategy<Value = (Range<u32>, Vec<Act>)> {
    let members = prop_oneof![
        Just(0..5),
        Just(0..64),
        Just(0..65),
        Just(70..270),
        Just(9..10)
    ];
    members.prop_flat_map(|members| (Just(members.clone()), acts(members)))
}

fn who(packet: &BTreeMap<u32, BTreeSet<u32>>, n: u32) -> usize {
    packet.get(&n).map_or(0, BTreeSet::len)
}

proptest! {
    /// Compares the window with a queue and a set of members for each packet, across the wrap.
    #[test]
    fn agrees_with_sets(
        start in prop_oneof![Just(0u32), Just(u32::MAX - 70), any::<u32>()],
        (members, acts) in groups(),
    ) {
        let (size, rto) = (64u32, Duration::from_nanos(40));
        let mut w = Window::new(Seq(start), size, Some(members.clone()));
        let (mut base, mut next, mut members) = (0u32, 0u32, members);
        let mut queue: Vec<u32> = Vec::new();
        let mut lacks: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        // Per packet: when it was last sent, and the members that it was sent to again.
        let mut last: BTreeMap<u32, (usize, BTreeSet<u32>)> = BTreeMap::new();
        for (i, act) in acts.into_iter().enumerate() {
            let now = Time(i as u64 + 1);
            prop_assert_eq!(w.has_room(), next - base < size);
            match act {
                Act::Send if w.has_room() => {
                    w.send(now, i as u32);
                    last.insert(next, (i, BTreeSet::new()));
                    next += 1;
                }
                Act::Send => {}
                Act::Lacks(n, m, as_of) => {
                    let n = base + n;
                    // The packet was sent again to this member just now, in a burst that the member
                    // cannot know.
                    let stale = last.get(&n).is_some_and(|(at, served)| {
                        let later = as_of.is_some_and(|f| f > *at as u32);
                        served.contains(&m) && !later && i - at < 40
                    });
                    let taken = n < next && !stale;
                    let news = taken && lacks.entry(n).or_default().insert(m);
                    if taken && !queue.contains(&n) {
                        queue.push(n);
                    }
                    prop_assert_eq!(w.lacks(now, Seq(start) + n, m, as_of, rto), news);
                }
                Act::Repair(alone) => {
                    let got = w.peek_repair();
                    let want = queue.first().map(|n| Seq(start) + *n);
                    prop_assert_eq!(got.map(|g| g.0), want);
                    if let (Some((_, lacking)), Some(&n)) = (got, queue.first()) {
                        let first = lacks.get(&n).and_then(|l| l.first()).copied();
                        match lacking {
                            Lacking::One(m) => {
                                prop_assert_eq!((Some(m), who(&lacks, n)), (first, 1));
                            }
                            Lacking::Several(m) => {
                                prop_assert_eq!(m, first);
                                prop_assert!(who(&lacks, n) > 1);
                            }
                            Lacking::Stubborn(m) => prop_assert!(lacks[&n].contains(&m)),
                        }
                        let chosen = match lacking {
                            Lacking::Stubborn(m) => Some(m),
                            _ => first,
                        };
                        let to = chosen.filter(|_| alone);
                        w.repair(now, i as u32, to);
                        if let Some((at, served)) = last.get_mut(&n) {
                            *at = i;
                            served.extend(to.map_or(members.clone(), |m| m..m + 1));
                        }
                        if let (Some(m), Some(l)) = (to, lacks.get_mut(&n)) {
                            l.remove(&m);
                        } else {
                            lacks.remove(&n);
                        }
                    }
                }
                Act::Release(n) => {
                    base = (base + n).min(next);
                    w.release(Seq(start) + base);
                }
                Act::Forget(m) => {
                    w.forget(m);
                    lacks.values_mut().for_each(|l| {
                        l.remove(&m);
                    });
                }
                Act::Grow(more) => {
                    members.end += more;
                    w.grow(Some(members.end));
                }
            }
            queue.retain(|n| *n >= base && who(&lacks, *n) > 0);
            lacks.retain(|n, l| *n >= base && !l.is_empty());
            w.invariants();
            for (at, slot) in (0..w.slots.len()).map(|at| (at, w.slots[at])) {
                prop_assert!(slot.repairs > 0 || w.served.nth(at, 0).is_none(), "slot {}", at);
                prop_assert!(slot.lacking > 0 || w.lacks.nth(at, 0).is_none(), "slot {}", at);
            }
            prop_assert_eq!((w.base(), w.next()), (Seq(start) + base, Seq(start) + next));
        }
    }

    /// In a group too large to tell members apart, a packet that a member lacks stays queued until
    /// it is repaired, for the group or for a member.
    #[test]
    fn a_large_group_forgets_nobody(acts in acts(0..100)) {
        let mut w = Window::new(Seq(0), 64, None);
        let mut lacks: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        let mut next = 0;
        for (i, act) in acts.into_iter().enumerate() {
            let now = Time(i as u64 + 1);
            match act {
                Act::Send if w.has_room() => {
                    w.send(now, i as u32);
                    next += 1;
                }
                Act::Lacks(n, m, _) if n < next => {
                    w.lacks(now, Seq(n), m, Some(u32::MAX / 2), Duration::ZERO);
                    lacks.entry(n).or_default().insert(m);
                }
                Act::Repair(_) => {
                    if let Some((seq, Lacking::One(m) | Lacking::Stubborn(m))) = w.peek_repair() {
                        w.repair(now, i as u32, Some(m));
                        // The others ask again.
                        lacks.remove(&seq.0);
                    } else if let Some((seq, _)) = w.peek_repair() {
                        w.repair(now, i as u32, None);
                        lacks.remove(&seq.0);
                    }
                }
                Act::Forget(m) => {
                    w.forget(m);
                    lacks.values_mut().for_each(|l| { l.remove(&m); });
                }
                _ => {}
            }
            w.invariants();
            let queued: BTreeSet<u32> = w.repairs.iter().map(|r| r.0.0).collect();
            for (n, l) in &lacks {
                prop_assert!(l.is_empty() || queued.contains(n), "packet {n}, {l:?}");
            }
        }
    }
}

/// A member that has been sent no repair is believed at once, in a large group too.
#[test]
fn a_repair_to_one_is_no_repair_to_another() {
    for members in [Some(0..2), Some(0..100), None] {
        let (rto, now) = (Duration::from_secs(1), Time(1));
        let mut w = Window::new(Seq(0), 64, members.clone());
        w.send(now, 1);
        assert!(w.lacks(now, Seq(0), 0, None, rto));
        w.repair(now, 2, Some(0));
        assert!(
            !w.lacks(now, Seq(0), 0, Some(1), rto),
            "old news, members: {members:?}"
        );
        assert!(
            w.lacks(now, Seq(0), 1, Some(1), rto),
            "news, members: {members:?}"
        );
        assert_eq!(w.peek_repair(), Some((Seq(0), Lacking::One(1))));
        w.repair(now, 3, None);
        assert!(!w.lacks(now, Seq(0), 0, Some(2), rto) && !w.lacks(now, Seq(0), 1, Some(2), rto));
    }
}
/// A window whose packet 0 these members lack, though it has been sent to the group in vain.
fn stubborn(members: Option<Range<u32>>, lack: impl Iterator<Item = u32>) -> Window {
    let mut w = Window::new(Seq(0), 64, members);
    w.send(Time(0), 0);
    w.slots[0].repairs = MULTICASTS_MAX;
    lack.for_each(|who| {
        w.lacks(Time(0), Seq(0), who, None, Duration::ZERO);
    });
    w
}

/// All members that multicast does not help have their turn, and the last is not always the same.
#[test]
fn the_stubborn_take_turns() {
    for lack in [(3..6).chain(0..0), (3..4).chain(998..1000)] {
        let mut w = stubborn(Some(0..1000), lack.clone());
        let mut last = BTreeSet::new();
        for _ in 0..20 {
            let mut served = Vec::new();
            while let Some((_, Lacking::Stubborn(who))) = w.peek_repair() {
                w.repair(Time(1), 1, Some(who));
                served.push(who);
            }
            last.extend(served.last().copied());
            served.sort();
            assert!(served.iter().copied().eq(lack.clone()));
            lack.clone().for_each(|who| {
                w.lacks(Time(2), Seq(0), who, Some(2), Duration::ZERO);
            });
        }
        assert!(last.into_iter().eq(lack));
    }
}

/// Sets of members that are not told apart take no room, and the others no more than they may.
#[test]
fn sets_are_bounded() {
    let told_apart = |size, members| {
        let w = Window::new(Seq(0), size, Some(0..members));
        w.members.is_some()
    };
    assert!(told_apart(limits::WINDOW_MAX, 1024));
    assert!(!told_apart(limits::WINDOW_MAX, 1025));
    assert!(told_apart(512, limits::MEMBERS_MAX as u32));
}

/// An XOR repair packet combines no two packets that one member lacks, in a group of any size.
#[test]
fn a_sum_is_of_what_different_members_lack() {
    for members in [8, 64, 65, 300] {
        let mut w = Window::new(Seq(0), 64, Some(0..members));
        let last = members - 1;
        for (n, who) in [0, last, 0, members / 2, last].into_iter().enumerate() {
            w.send(Time(0), 0);
            w.lacks(Time(0), Seq(n as u32), who, None, Duration::ZERO);
        }
        let sources = w.combine(Seq(0), Seq(5)).unwrap();
        assert!(sources.iter().eq([0, 1, 3].map(Seq)), "{members} members");
        w.repair_all(Time(1), 1, &sources);
        w.invariants();
        assert_eq!(w.peek_repair(), Some((Seq(2), Lacking::One(0))));
        assert!(w.is_mended(Time(1), Seq(3), members / 2, Some(0), Duration::MAX));
        assert!(!w.is_mended(Time(1), Seq(3), 0, Some(0), Duration::MAX));
    }
}

/// When a group becomes so large that members are not told apart any more, the window forgets what
/// is queued, and takes it again when the members ask again.
#[test]
fn a_window_that_grows_too_large_is_asked_again() {
    for end in [Some(limits::MEMBERS_MAX as u32), None] {
        let mut w = Window::new(Seq(0), 1024, Some(0..3));
        w.send(Time(0), 0);
        assert!(w.lacks(Time(0), Seq(0), 2, None, Duration::ZERO));
        w.grow(end);
        w.invariants();
        assert_eq!((w.peek_repair(), w.oldest_report()), (None, None));
        assert!(w.lacks(Time(1), Seq(0), 60_000, None, Duration::ZERO));
        assert_eq!(w.peek_repair(), Some((Seq(0), Lacking::One(60_000))));
        w.repair(Time(2), 1, None);
        w.invariants();
    }
}
