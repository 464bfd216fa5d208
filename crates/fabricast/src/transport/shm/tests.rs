//! Processes of one host, as threads.

use std::thread;

use super::super::testing::{lending, send_in_tests};
use super::*;

/// The ends of `processes` processes.
fn host(processes: usize) -> Vec<Shm> {
    let random = || crate::net::random().unwrap();
    let wakers: Vec<FdChannel> = (0..processes)
        .map(|_| FdChannel::hang(random()).unwrap())
        .collect();
    let (names, key): (Vec<u64>, _) = (wakers.iter().map(FdChannel::name).collect(), random());
    let ends = wakers.into_iter().enumerate().map(|(me, waker)| {
        let meeting = Meeting {
            wakers: &names,
            me,
            key,
        };
        let mut end = match me {
            0 => meeting.create(waker),
            _ => meeting.join(waker),
        }
        .unwrap();
        for other in 0..processes {
            let other = other as u32;
            end.peer(NodeId(10 + other), &NodeAddress::Number(other));
        }
        end
    });
    ends.collect()
}

/// Joins a group of these processes, which succeeds.
fn joins(end: &mut Shm, group: AddressId, processes: &[u32], receive: bool) {
    end.join(group, &GroupAddress::Members(processes.to_vec()), receive);
    assert!(matches!(end.news(), Some(News::Joined(g)) if g == group));
}

const ALL: Dest = Dest::Address(AddressId(1));

fn put(end: &mut Shm, to: Dest, bytes: &[u8]) {
    let (head, body) = bytes.split_at(bytes.len() / 3);
    let sent = send_in_tests(end, Time::ZERO, &[(to, head, body)]);
    assert_eq!(sent.unwrap(), 1);
}

fn got(end: &mut Shm) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    while end
        .recv(Time::ZERO, &mut |d| all.push(d.bytes().to_vec()))
        .unwrap()
        > 0
    {}
    all
}

#[test]
fn everybody_takes_what_is_for_it() {
    let mut ends = host(3);
    for end in &mut ends {
        joins(end, AddressId(1), &[0, 1, 2], true);
    }
    joins(&mut ends[2], AddressId(2), &[1, 2], true);
    put(&mut ends[0], ALL, b"to all");
    put(&mut ends[0], Dest::Node(NodeId(12)), b"to one");
    put(&mut ends[0], Dest::Node(NodeId(99)), b"to nobody");
    put(
        &mut ends[1],
        Dest::Address(AddressId(2)),
        b"to no group of mine",
    );
    assert_eq!(ends[1].counters().datagrams_sent, 0);
    joins(&mut ends[1], AddressId(2), &[1, 2], false);
    put(&mut ends[1], Dest::Address(AddressId(2)), b"to a group");
    assert_eq!(got(&mut ends[0]), Vec::<Vec<u8>>::new());
    assert_eq!(got(&mut ends[1]), [b"to all"]);
    assert_eq!(
        got(&mut ends[2]),
        [&b"to all"[..], b"to one", b"to a group"]
    );
    ends[2].leave(AddressId(1));
    put(&mut ends[0], ALL, &[7; 10_000]);
    assert_eq!(got(&mut ends[1]), [[7; 10_000]]);
    assert_eq!(got(&mut ends[2]), Vec::<Vec<u8>>::new());
}

/// A datagram of three pieces arrives as one, whatever their lengths.
#[test]
fn a_trailer_follows_the_payload() {
    let mut ends = host(2);
    for (head, payload, trailer) in [(7, 21, 16), (8, 0, 3), (1, 8, 8), (0, 5, 2)] {
        let bytes: Vec<u8> = (0..head + payload + trailer).map(|i| i as u8).collect();
        let (front, last) = bytes.split_at(head + payload);
        let slots = ends[0].slots();
        let id = slots.take().unwrap();
        slots.head(id).put(&front[..head]);
        slots.trailer(id).put(last);
        let datagram = lending(slots, id, Dest::Node(NodeId(11)), &front[head..]);
        assert_eq!(datagram.len(), bytes.len());
        assert_eq!(ends[0].send(Time::ZERO, &[datagram]).unwrap(), 1);
        assert_eq!(got(&mut ends[1]), [bytes]);
    }
}

#[test]
fn the_largest_datagram_passes_and_who_falls_behind_has_lost() {
    let mut ends = host(2);
    for end in &mut ends {
        joins(end, AddressId(1), &[0, 1], true);
    }
    let largest = vec![1; ends[0].caps().datagram_max];
    for _ in 0..3 {
        put(&mut ends[0], ALL, &largest);
    }
    assert_eq!(got(&mut ends[1]), [&largest[..]; 3]);
    for _ in 0..9 {
        put(&mut ends[0], ALL, &largest);
    }
    assert_eq!(got(&mut ends[1]), Vec::<Vec<u8>>::new());
    assert_eq!(ends[1].counters().overruns, 1);
    put(&mut ends[0], ALL, b"again");
    assert_eq!(got(&mut ends[1]), [b"again"]);
}

/// Two processes answer each other and sleep in between. A lost wake-up would last for ever.
#[test]
fn who_sleeps_is_woken() {
    let mut ends = host(2);
    let mut second = ends.pop().unwrap();
    let mut first = ends.pop().unwrap();
    const TURNS: u32 = 20_000;
    let play = |end: &mut Shm, to: u32, begins: bool| {
        let mut next = u32::from(!begins);
        let mut say = begins;
        while next < TURNS || say {
            if say {
                put(end, Dest::Node(NodeId(10 + to)), &next.to_be_bytes());
                (next, say) = (next + 2, false);
                continue;
            }
            let come = got(end);
            if let Some(word) = come.first() {
                assert_eq!(come.len(), 1);
                let word = u32::from_be_bytes(word[..].try_into().unwrap());
                assert_eq!(word + 1, next);
                say = next < TURNS;
            } else {
                end.wait(None).unwrap();
            }
        }
        end.counters()
    };
    let rung = thread::scope(|scope| {
        let second = scope.spawn(|| play(&mut second, 0, false));
        let rung = play(&mut first, 1, true).wakes;
        rung + second.join().unwrap().wakes
    });
    assert!(rung > 0 && rung <= u64::from(TURNS), "{rung} wakers");
}

#[test]
fn a_bell_rings_only_for_who_sleeps() {
    let mut ends = host(2);
    let word = Dest::Node(NodeId(11));
    put(&mut ends[0], word, b"1");
    assert_eq!(ends[0].counters().wakes, 0);
    // A thread does not sleep if something was written before.
    ends[1].wait(None).unwrap();
    assert_eq!(got(&mut ends[1]), [b"1"]);
    let waiter = ends[1].waiter();
    assert!(waiter.begin(false).unwrap());
    put(&mut ends[0], word, b"2");
    put(&mut ends[0], word, b"3");
    assert_eq!(ends[0].counters().wakes, 1);
    waiter.end();
    assert_eq!(got(&mut ends[1]).len(), 2);
    put(&mut ends[0], word, b"4");
    assert_eq!(ends[0].counters().wakes, 1);
}

/// Of two sleeping threads one is woken and leaves without a look. The other one must not sleep on.
#[test]
fn a_bell_rings_until_somebody_looks() {
    let mut ends = host(2);
    let word = Dest::Node(NodeId(11));
    let waiter = ends[1].waiter();
    let rings = || {
        let mut set = [PollFd::new(&waiter, PollFlags::IN)];
        poll(&mut set, Some(&Timespec::default())).unwrap() > 0
    };
    for word_of in [b"1", b"2"] {
        assert!(waiter.begin(false).unwrap());
        assert!(!rings());
        put(&mut ends[0], word, word_of);
        waiter.end();
        assert!(rings());
        ends[1].rung = true;
        assert_eq!(got(&mut ends[1]), [word_of]);
    }
    assert!(!rings());
}

#[test]
fn nobody_else_is_let_in() {
    let (key, ring) = (7, 1024);
    let (_kept, fd) = Segment::create(key, 2, ring).unwrap();
    assert!(Segment::open(fd.as_fd(), key, 2, ring).is_ok());
    for (key, processes, ring) in [(8, 2, ring), (key, 3, ring), (key, 2, 2 * ring)] {
        assert!(Segment::open(fd.as_fd(), key, processes, ring).is_err());
    }
    assert!(
        rustix::fs::ftruncate(&fd, 0).is_err(),
        "its length is sealed"
    );
    // A descriptor from elsewhere is not taken for the memory, and does not prolong the wait.
    let wakers = [0, 1, 2].map(|_| FdChannel::hang(crate::net::random().unwrap()).unwrap());
    let [first, second, foreign] = &wakers;
    let file = std::fs::File::open("/dev/null").unwrap();
    let soon = || Instant::now() + Duration::from_millis(20);
    foreign
        .hand(second.name(), &[file.as_fd()], soon())
        .unwrap();
    let late = second.take(first.name(), 1, soon()).unwrap_err();
    assert_eq!(late.kind(), io::ErrorKind::TimedOut);
    foreign
        .hand(second.name(), &[file.as_fd()], soon())
        .unwrap();
    first.hand(second.name(), &[], soon()).unwrap();
    let refused = second.take(first.name(), 1, soon()).unwrap_err();
    assert!(refused.to_string().contains("cannot"), "{refused}");
}

/// More wakers than one datagram carries.
#[test]
fn many_descriptors_are_handed_over_in_their_order() {
    let wakers = [0, 1].map(|_| FdChannel::hang(crate::net::random().unwrap()).unwrap());
    let [first, second] = &wakers;
    let wakers = Wakers::new(PROCESSES_MAX).unwrap();
    let until = Instant::now() + PATIENCE;
    let all: Vec<_> = wakers.all().collect();
    let taken = thread::scope(|scope| {
        let taken = scope.spawn(|| second.take(first.name(), PROCESSES_MAX, until).unwrap());
        first.hand(second.name(), &all, until).unwrap();
        Wakers::taken(taken.join().unwrap())
    });
    let rings = |process| {
        let waker = wakers.of(process);
        poll(
            &mut [PollFd::new(&waker, PollFlags::IN)],
            Some(&Timespec::default()),
        )
        .unwrap()
            > 0
    };
    for process in [0, 127, 128, PROCESSES_MAX - 1] {
        assert!(!rings(process));
        taken.ring(process);
        taken.ring(process);
        assert!(rings(process));
        wakers.hush(process);
        assert!(!rings(process));
    }
}
