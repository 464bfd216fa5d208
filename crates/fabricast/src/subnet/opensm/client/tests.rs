//! The client beside a manager that is a few lines long.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use super::*;

const MS: Duration = Duration::from_millis(1);

fn address(n: u8) -> GroupAddress {
    SocketAddr::from(([239, 0, 0, n], 7000)).into()
}

fn gid(n: u8) -> Gid {
    let mut gid = [0; 16];
    gid[15] = n;
    Gid(gid)
}

/// The membership of port 1 in group `n`.
fn one(n: u8) -> Membership {
    Membership {
        port: gid(1),
        group: gid(n),
    }
}

/// How the manager behaves.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Mood {
    Well,
    Busy,
    /// Requests get lost.
    Dead,
    /// Requests cannot even be sent.
    Unreachable,
    /// Answers get lost.
    Mute,
}

struct Manager {
    groups: BTreeMap<Gid, BTreeSet<Gid>>,
    /// Groups that exist without members.
    permanent: BTreeSet<Gid>,
    groups_max: usize,
    mood: Mood,
    /// Requests that have come.
    requests: Vec<Request>,
}

struct World {
    client: Client,
    manager: Manager,
    now: Time,
}

impl Manager {
    fn answer(&mut self, request: &Request) -> Answer {
        let Membership { port, group } = request.membership;
        let exists = self.groups.contains_key(&group) || self.permanent.contains(&group);
        let is_member = self.groups.get(&group).is_some_and(|g| g.contains(&port));
        let status = match request.method {
            _ if self.mood == Mood::Busy => 1,
            Method::Get if is_member => 0,
            Method::Get => 0x300,
            Method::Delete if is_member => {
                self.groups.get_mut(&group).unwrap().remove(&port);
                self.groups.retain(|_, members| !members.is_empty());
                0
            }
            Method::Delete => 0x200,
            Method::Set if !exists && !request.create => INSUFFICIENT_COMPONENTS,
            Method::Set if !exists && self.groups.len() == self.groups_max => NO_RESOURCES,
            Method::Set => {
                self.groups.entry(group).or_default().insert(port);
                0
            }
        };
        Answer {
            transaction: request.transaction,
            status,
            mlid: 0xc000 + u16::from(group.0[15]),
        }
    }
}

impl World {
    fn new() -> World {
        World {
            client: Client::new(),
            manager: Manager {
                groups: BTreeMap::new(),
                permanent: BTreeSet::new(),
                groups_max: 8,
                mood: Mood::Well,
                requests: Vec::new(),
            },
            now: Time(1),
        }
    }

    /// Lets requests and answers travel until nothing is to be done at this time. Returns the news.
    fn step(&mut self) -> Vec<News> {
        while let Some(request) = self.client.poll(self.now) {
            assert!(self.client.outstanding.len() <= OUTSTANDING_MAX);
            self.manager.requests.push(request);
            match self.manager.mood {
                Mood::Dead => {}
                Mood::Unreachable => self.client.not_answered(request.transaction),
                Mood::Mute => {
                    self.manager.answer(&request);
                }
                Mood::Well | Mood::Busy => {
                    let answer = self.manager.answer(&request);
                    self.client.answered(self.now, &answer);
                }
            }
            self.invariants();
        }
        std::iter::from_fn(|| self.client.news())
            .map(|(_, news)| news)
            .collect()
    }

    /// Runs for a time, from one due time to the next.
    fn run(&mut self, time: Duration) -> Vec<News> {
        let end = self.now + time;
        let mut news = self.step();
        while let Some(due) = self.client.due().filter(|due| *due <= end) {
            assert!(due > self.now, "poll has left something undone");
            self.now = due;
            news.extend(self.step());
        }
        self.now = end;
        news
    }

    fn invariants(&self) {
        let client = &self.client;
        for (membership, state) in &client.memberships {
            if let Some(transaction) = state.transaction {
                assert_eq!(client.outstanding[&transaction].membership, *membership);
            }
            assert!(state.late.len() <= TRIES_MAX as usize);
            for transaction in &state.late {
                assert_eq!(client.late[transaction].membership, *membership);
            }
            if let Some(timer) = state.timer {
                assert!(client.timers.contains(&(timer, *membership)));
            }
            assert!(state.phase == Phase::In || state.is_queued || state.timer.is_some());
            assert!(!state.users.is_empty() || state.phase == Phase::Leave);
        }
        let timers = client.memberships.values().filter(|s| s.timer.is_some());
        assert_eq!(timers.count(), client.timers.len());
        let sent = client
            .memberships
            .values()
            .filter(|s| s.transaction.is_some());
        assert_eq!(sent.count(), client.outstanding.len());
        let late = client.memberships.values().map(|s| s.late.len());
        assert_eq!(late.sum::<usize>(), client.late.len());
    }

    fn members(&self, group: u8) -> usize {
        self.manager
            .groups
            .get(&gid(group))
            .map_or(0, BTreeSet::len)
    }
}

fn joined(n: u8) -> News {
    News::Joined(address(n))
}

fn left(n: u8) -> News {
    News::Left(address(n))
}

fn refused(n: u8, refusal: Refusal) -> News {
    News::Refused(address(n), refusal)
}

#[test]
fn joins_of_one_address_are_one_membership() {
    let mut world = World::new();
    world.client.join(one(1), &address(1), true);
    world.client.join(one(1), &address(1), false);
    assert_eq!(world.step(), [joined(1), joined(1)]);
    world.client.join(one(1), &address(1), false);
    assert_eq!(world.step(), [joined(1)]);
    assert_eq!(world.manager.requests.len(), 1);
    assert_eq!(world.client.mlid(one(1)), Some(0xc001));
    world.client.leave(one(1), &address(1));
    world.client.leave(one(1), &address(1));
    assert_eq!(world.step(), [left(1), left(1)]);
    assert_eq!(world.members(1), 1);
    world.client.leave(one(1), &address(1));
    assert_eq!(world.step(), [left(1)]);
    assert_eq!(world.members(1), 0);
    assert!(world.client.memberships.is_empty());
    // The port is watched no longer.
    assert_eq!(world.run(5000 * MS), []);
    assert_eq!(world.client.due(), None);
}

#[test]
fn two_addresses_of_one_group_are_one_membership() {
    let mut world = World::new();
    let other = GroupAddress::from(SocketAddr::from(([239, 0, 0, 1], 8000)));
    world.client.join(one(1), &address(1), true);
    world.client.join(one(1), &other, true);
    assert_eq!(world.step(), [joined(1), News::Joined(other.clone())]);
    world.client.leave(one(1), &address(1));
    assert_eq!(world.step(), [left(1)]);
    assert_eq!(world.members(1), 1);
    world.client.leave(one(1), &other);
    assert_eq!(world.step(), [News::Left(other)]);
    assert_eq!(world.members(1), 0);
}

#[test]
fn refusals_have_reasons() {
    let mut world = World::new();
    world.manager.groups_max = 2;
    world.client.join(one(9), &address(9), false);
    let missing = Refusal::Invalid(INSUFFICIENT_COMPONENTS);
    assert_eq!(world.step(), [refused(9, missing)]);
    for n in 1..=3 {
        world.client.join(one(n), &address(n), true);
    }
    let news = [joined(1), joined(2), refused(3, Refusal::NoAddresses)];
    assert_eq!(world.step(), news);
    // One is returned, and then there is one.
    world.client.leave(one(1), &address(1));
    world.client.join(one(3), &address(3), true);
    assert_eq!(world.step(), [left(1), joined(3)]);
}

#[test]
fn a_permanent_group_needs_nothing_to_be_created() {
    let mut world = World::new();
    world.manager.permanent.insert(gid(1));
    world.client.join(one(1), &address(1), false);
    assert_eq!(world.step(), [joined(1)]);
    assert!(!world.manager.requests[0].create);
}

#[test]
fn a_busy_manager_and_a_silent_one_are_asked_again() {
    for (mood, refusal) in [
        (Mood::Busy, Refusal::Busy),
        (Mood::Dead, Refusal::TimedOut),
        (Mood::Unreachable, Refusal::TimedOut),
    ] {
        let mut world = World::new();
        world.manager.mood = mood;
        world.client.join(one(1), &address(1), true);
        assert_eq!(world.run(1000 * MS), []);
        world.manager.mood = Mood::Well;
        assert_eq!(world.run(1000 * MS), [joined(1)], "{mood:?}");
        world.manager.mood = mood;
        world.client.join(one(2), &address(2), true);
        assert_eq!(world.run(40_000 * MS), [refused(2, refusal)]);
        let requests = world.manager.requests.iter();
        let tries = requests.filter(|r| (r.membership, r.method) == (one(2), Method::Set));
        let tries = tries.count();
        assert_eq!(tries as u32, TRIES_MAX);
        // A leave is never given up.
        world.client.leave(one(1), &address(1));
        assert_eq!(world.run(60_000 * MS), []);
        world.manager.mood = Mood::Well;
        assert_eq!(world.run(PATIENCE_MAX), [left(1)]);
    }
}

/// A manager that takes longer than the first requests wait.
#[test]
fn a_slow_manager_is_waited_for() {
    for took in [400, 1500, 3000, 20_000] {
        let mut world = World::new();
        world.manager.mood = Mood::Dead;
        let took = took * MS;
        let mut answered = 0;
        let mut answer = |world: &mut World, time: Duration| {
            let mut news = Vec::new();
            let mut waiting = VecDeque::new();
            for _ in 0..time.as_millis() / 10 {
                news.extend(world.run(10 * MS));
                for request in &world.manager.requests[answered..] {
                    waiting.push_back((world.now + took, *request));
                }
                answered = world.manager.requests.len();
                while let Some((_, request)) = waiting.pop_front_if(|(at, _)| *at <= world.now) {
                    let answer = world.manager.answer(&request);
                    world.client.answered(world.now, &answer);
                    world.invariants();
                }
            }
            news
        };
        world.client.join(one(1), &address(1), true);
        assert_eq!(answer(&mut world, took + 2 * CHECK_EVERY), [joined(1)]);
        // Soon the client expects what the manager takes, and repeats nothing before.
        if took < PATIENCE_SLOW {
            answer(&mut world, 20 * took + 40 * CHECK_EVERY);
            assert!(world.client.answer_time.patience(0) >= took);
        }
        world.client.leave(one(1), &address(1));
        assert_eq!(answer(&mut world, took + 2 * CHECK_EVERY), [left(1)]);
        assert_eq!(world.members(1), 0);
    }
}

#[test]
fn a_leave_before_the_answer_withdraws_the_join() {
    // Nothing was sent.
    let mut world = World::new();
    world.client.join(one(1), &address(1), true);
    world.client.leave(one(1), &address(1));
    assert_eq!(world.step(), [left(1)]);
    assert_eq!(world.manager.requests, []);
    // The join is under way, and its answer lost: the manager may count a member.
    world.manager.mood = Mood::Mute;
    world.client.join(one(1), &address(1), true);
    assert_eq!(world.step(), []);
    world.client.leave(one(1), &address(1));
    assert_eq!(world.members(1), 1);
    world.manager.mood = Mood::Well;
    assert_eq!(world.run(1000 * MS), [left(1)]);
    assert_eq!(world.members(1), 0);
    assert!(world.client.memberships.is_empty());
}

#[test]
fn a_join_during_a_leave_joins_again() {
    let mut world = World::new();
    world.client.join(one(1), &address(1), true);
    world.step();
    world.manager.mood = Mood::Dead;
    world.client.leave(one(1), &address(1));
    world.step();
    world.client.join(one(1), &address(1), true);
    world.manager.mood = Mood::Well;
    assert_eq!(world.run(1000 * MS), [left(1), joined(1)]);
    assert_eq!(world.members(1), 1);
}

#[test]
fn what_a_restarted_manager_has_forgotten_is_joined_again() {
    let mut world = World::new();
    // Group 1 was created, group 2 by another host, group 3 always exists.
    world.manager.permanent.extend([gid(2), gid(3)]);
    world.client.join(one(1), &address(1), true);
    world.client.join(one(2), &address(2), false);
    world.client.join(one(3), &address(3), false);
    world.client.join(one(3), &address(3), false);
    world.step();
    world.manager.mood = Mood::Dead;
    assert_eq!(world.run(10_000 * MS), []);
    world.manager.groups.clear();
    world.manager.permanent.remove(&gid(2));
    world.manager.mood = Mood::Well;
    let news = world.run(PATIENCE_MAX + CHECK_EVERY);
    for n in 1..=3 {
        let of = |what: News| news.iter().filter(|news| **news == what).count();
        assert_eq!(
            (of(News::Lost(address(n))), of(joined(n))),
            (1, 1),
            "{news:?}"
        );
        assert_eq!(world.members(n), 1);
    }
    assert_eq!(news.len(), 6);
    assert_eq!(world.run(10_000 * MS), []);
}

#[test]
fn every_membership_is_checked_in_its_turn() {
    let mut world = World::new();
    for n in 1..=4 {
        world.client.join(one(n), &address(n), true);
    }
    world.step();
    world.manager.groups.remove(&gid(3));
    let news = world.run(4 * CHECK_EVERY);
    assert_eq!(news, [News::Lost(address(3)), joined(3)]);
    // A port that has changed has all of them checked at once.
    world.manager.groups.remove(&gid(2));
    world.client.check_all();
    assert_eq!(world.step(), [News::Lost(address(2)), joined(2)]);
}

#[test]
fn a_lost_membership_may_be_left() {
    let mut world = World::new();
    world.client.join(one(1), &address(1), true);
    world.step();
    world.manager.groups.clear();
    world.manager.groups_max = 0;
    assert_eq!(world.run(2 * CHECK_EVERY), [News::Lost(address(1))]);
    world.client.leave(one(1), &address(1));
    assert_eq!(world.run(2 * CHECK_EVERY), [left(1)]);
    assert!(world.client.memberships.is_empty());
}

#[test]
fn few_requests_are_under_way_at_once() {
    let mut world = World::new();
    world.manager.mood = Mood::Dead;
    for n in 0..200 {
        world.client.join(one(n), &address(n), true);
    }
    world.step();
    assert_eq!(world.manager.requests.len(), OUTSTANDING_MAX);
    world.manager.mood = Mood::Well;
    world.manager.groups_max = 200;
    assert_eq!(world.run(2000 * MS).len(), 200);
}

#[test]
fn a_process_has_a_limited_number_of_memberships() {
    let mut client = Client::new();
    for n in 0..=MEMBERSHIPS_MAX as u32 {
        let mut group = gid(0);
        group.0[..4].copy_from_slice(&n.to_be_bytes());
        let membership = Membership {
            port: gid(1),
            group,
        };
        client.join(membership, &address(1), true);
    }
    let refused = refused(1, Refusal::TooMany);
    assert_eq!(client.news(), Some((gid(1), refused)));
}

#[test]
fn answers_lead_nowhere_that_nobody_waits_for() {
    let mut world = World::new();
    world.manager.mood = Mood::Dead;
    world.client.join(one(1), &address(1), true);
    world.run(300 * MS);
    let [first, second] = world.manager.requests[..] else {
        panic!("{:?}", world.manager.requests);
    };
    let answer = world.manager.answer(&first);
    world.client.answered(world.now, &answer);
    assert_eq!(world.step(), [joined(1)]);
    // The answer to the repetition, and one again.
    for request in [second, first] {
        let answer = world.manager.answer(&request);
        world.client.answered(world.now, &answer);
        world.invariants();
        assert_eq!(world.step(), []);
    }
}

/// Random calls beside a manager of random moods. In the end everything is as the caller wants it,
/// and each call has had its answer.
#[test]
fn in_the_end_the_manager_knows_what_the_caller_wants() {
    for seed in 0..300 {
        let mut rng = fabricast_proto::rng::Rng::new(seed);
        let mut world = World::new();
        world.manager.groups_max = 3;
        let mut wanted = [0u32; 4];
        let count = |news: &[News], wanted: &mut [u32; 4]| {
            for news in news {
                if let News::Refused(address, _) = news {
                    let IpAddr::V4(ip) = address.ip().unwrap().ip() else {
                        unreachable!()
                    };
                    wanted[usize::from(ip.octets()[3])] -= 1;
                }
            }
        };
        for _ in 0..100 {
            let n = rng.below(4) as u8;
            match rng.below(8) {
                0..=2 => {
                    wanted[usize::from(n)] += 1;
                    world.client.join(one(n), &address(n), rng.chance(0.8));
                }
                3..=5 if wanted[usize::from(n)] > 0 => {
                    wanted[usize::from(n)] -= 1;
                    world.client.leave(one(n), &address(n));
                }
                6 => {
                    world.manager.mood = match rng.below(8) {
                        0 => Mood::Dead,
                        1 => Mood::Busy,
                        2 => Mood::Mute,
                        3 => Mood::Unreachable,
                        _ => Mood::Well,
                    }
                }
                7 if rng.chance(0.2) => world.manager.groups.clear(),
                _ => {}
            }
            let news = world.run(rng.below(400) as u32 * MS);
            count(&news, &mut wanted);
        }
        world.manager.mood = Mood::Well;
        world.manager.groups_max = 8;
        let news = world.run(60_000 * MS);
        count(&news, &mut wanted);
        for n in 0..4 {
            let expected = usize::from(wanted[usize::from(n)] > 0);
            assert_eq!(world.members(n), expected, "seed {seed}, group {n}");
        }
        for n in 0..4 {
            for _ in 0..wanted[usize::from(n)] {
                world.client.leave(one(n), &address(n));
            }
        }
        world.run(60_000 * MS);
        assert!(world.manager.groups.is_empty(), "seed {seed}");
        assert!(world.client.memberships.is_empty(), "seed {seed}");
    }
}
