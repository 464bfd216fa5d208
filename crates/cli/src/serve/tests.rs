//! What a feed sends to whom, with transfers that the tests make up.

use std::sync::mpsc::{Sender, channel};
use std::thread;

use clap::Parser;
use fabricast::config::Late;
use fabricast::feed::{Catalogue, Follower, Heard, SHORT_MAX};

use super::*;
use crate::background::Background;

/// Longest time that the test waits for anything.
const BOUND: Duration = Duration::from_secs(20);

fn catalogue(number: u64, names: &[&str]) -> Catalogue {
    let entry = |name: &&str| Entry {
        name: name.to_string(),
        len: 1,
        digest: blake3::hash(name.as_bytes()).to_hex().to_string(),
    };
    let entries = names.iter().map(entry).collect();
    Catalogue { number, entries }
}

/// A feed of an empty directory, with two entries in its catalogue, and followers that the test
/// moves.
struct World<'a> {
    feed: Feed<'a>,
    out: Output,
    until: Instant,
    followers: Vec<Follower>,
}

impl<'a> World<'a> {
    fn new(args: &'a args::Serve, followers: usize) -> World<'a> {
        let mut out = Output::new(&args.how.net);
        let feed = Feed::open(args, "feed", &mut out).unwrap();
        let mut world = World {
            feed,
            out,
            until: Instant::now() + BOUND,
            followers: Vec::new(),
        };
        for _ in 0..followers {
            let from = world.feed.server.address().to_string();
            let connect =
                move || Follower::connect(&from, "f", &Waker::new().unwrap(), &|| false).unwrap();
            let thread = thread::spawn(connect);
            while !thread.is_finished() {
                world.turn();
            }
            let mut follower = thread.join().unwrap();
            follower.want(&BTreeSet::new(), &[], 2).unwrap();
            world.followers.push(follower);
        }
        world.publish(catalogue(1, &["a", "b"]));
        world
    }

    /// The feed has another catalogue, and tells it to all followers.
    fn publish(&mut self, catalogue: Catalogue) {
        let number = catalogue.number;
        self.feed.found(Found::Catalogue(catalogue), &mut self.out);
        for follower in 0..self.followers.len() {
            let heard = self.hear(follower);
            assert!(
                matches!(&heard, Heard::Catalogue(c) if c.number == number),
                "{heard:?}"
            );
            self.followers[follower]
                .want(&BTreeSet::new(), &[], 2)
                .unwrap();
        }
    }

    /// A follower says what it wants. Returns its key.
    fn want(&mut self, follower: usize, wants: &[u32], receiving: &[u64]) -> FollowerKey {
        self.want_with(2, follower, wants, receiving)
    }

    /// Like [`World::want`], with places for so many more transfers.
    fn want_with(
        &mut self,
        places: usize,
        follower: usize,
        wants: &[u32],
        receiving: &[u64],
    ) -> FollowerKey {
        let wants = wants.iter().copied().collect();
        let said = self.followers[follower].want(&wants, receiving, places);
        said.unwrap();
        loop {
            self.turn();
            let server = &self.feed.server;
            let has_said = |(key, w): &(FollowerKey, &BTreeSet<u32>)| {
                **w == wants && server.places(*key) == places
            };
            if let Some((key, _)) = server.waiting().into_iter().find(has_said) {
                return key;
            }
        }
    }

    /// What a follower hears next.
    fn hear(&mut self, follower: usize) -> Heard {
        loop {
            self.turn();
            if let Some(heard) = self.followers[follower].hear(Duration::ZERO).unwrap() {
                return heard;
            }
        }
    }

    fn turn(&mut self) {
        self.feed.server.turn(Duration::from_millis(1));
        assert!(Instant::now() < self.until, "waited too long");
    }

    /// Puts a transfer of an entry under way, which tells what the test says, at a place of a
    /// class.
    fn sends(&mut self, class: usize, entry: u32) -> Sender<Told<SendEvent, Ended>> {
        let (tell, told) = channel();
        let mut running = Running::of(7 + class as u64, Background::made_up(told));
        let entries = &self.feed.server.catalogue().entries;
        running.entries = vec![entries[entry as usize].clone()];
        running.numbers = Some([entry].into());
        self.feed.classes[class].running.push(running);
        tell
    }

    /// What is sent of short entries.
    fn short(&mut self) -> &mut Class {
        &mut self.feed.classes[0]
    }

    /// What would be sent next of each class.
    fn next(&self) -> Vec<Option<Vec<u32>>> {
        let classes = &self.feed.classes;
        let under_way: Vec<&Running> = classes.iter().flat_map(|c| &c.running).collect();
        let next = classes
            .iter()
            .map(|class| self.feed.next(class, &under_way));
        let entries = next.map(|choice| choice.map(|c| c.entries.into_iter().collect()));
        entries.collect()
    }
}

/// The command line of a feed of an empty directory.
fn parsed(name: &str) -> args::Serve {
    let name = format!("fabricast-serve-{}-{name}", std::process::id());
    let dir = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&dir).unwrap();
    let line = [
        "fabricast",
        "serve",
        "--port",
        "0",
        "--interface",
        "127.0.0.1",
        "-q",
    ];
    let line = line.iter().map(|word| (*word).into());
    let line = line.chain([dir.into_os_string()]);
    match args::Args::try_parse_from(line).unwrap().command {
        args::Command::Serve(args) => args,
        _ => panic!("another command"),
    }
}

/// What the sender of a transfer tells when it listens.
fn listening() -> Told<SendEvent, Ended> {
    Told::Event(SendEvent::Listening {
        address: ([127, 0, 0, 1], 9).into(),
        name: "b".into(),
        tops: 1,
        len: Some(1),
        announced: false,
    })
}

/// While a transfer is being listed the catalogue may become another one, whose numbers mean
/// other entries. Those that want what is sent are told of it, by the numbers that they know.
#[test]
fn a_catalogue_that_changes_while_a_transfer_is_listed() {
    let args = parsed("changes");
    for (names, is_told) in [
        (None, true),
        (Some(["c", "b"]), true),
        // It wants the second entry, which is another one now.
        (Some(["b", "c"]), false),
        (Some(["c", "d"]), false),
    ] {
        let mut world = World::new(&args, 1);
        world.want(0, &[1], &[]);
        let tell = world.sends(0, 1);
        if let Some(names) = names {
            world.publish(catalogue(2, &names));
            world.want(0, &[1], &[]);
        }
        tell.send(listening()).unwrap();
        world.feed.hear(&mut world.out);
        world.feed.call_receivers();
        assert_eq!(
            world.feed.server.receiving(7).len(),
            usize::from(is_told),
            "{names:?}"
        );
        if is_told {
            let heard = world.hear(0);
            assert!(
                matches!(&heard, Heard::Publication { transfer: 7, entries, .. }
                    if *entries == [1].into()),
                "{heard:?}"
            );
        }
    }
    std::fs::remove_dir_all(&args.dir).unwrap();
}

/// Nothing is sent for the sake of a host that was told of transfers and did not come, until
/// its pause is over. That of the feed is shorter, and is for entries of that class alone.
#[test]
fn a_host_that_does_not_come_has_to_wait() {
    let args = parsed("pauses");
    let mut world = World::new(&args, 1);
    let key = world.want(0, &[1], &[]);
    for _ in 0..7 {
        let tell = world.sends(0, 1);
        let host = world.feed.server.address_and_host(key).unwrap();
        world.short().running[0].hosts = [host].into();
        let error = Error::NoReceivers("nobody came".into());
        let failure = SendFailure {
            error,
            report: None,
        };
        tell.send(Told::End(Box::new(Err(failure)))).unwrap();
        world.feed.hear(&mut world.out);
        assert!(world.short().running.is_empty() && world.short().pauses.is_pause());
        assert!(!world.feed.classes[1].pauses.is_pause());
    }
    while world.short().pauses.is_pause() {
        world.turn();
    }
    world.feed.choose(&mut world.out);
    assert!(world.short().running.is_empty(), "its host is paused");
    // It has completed one: it is as good as any other.
    let (_, host) = world.feed.server.address_and_host(key).unwrap();
    world.short().pauses.after(&[host].into(), &BTreeSet::new());
    world.feed.choose(&mut world.out);
    assert_eq!(world.short().running.len(), 1);
    std::fs::remove_dir_all(&args.dir).unwrap();
}

/// What has a place goes beside what is under way, and what is sent already does not go again.
#[test]
fn short_and_long_entries_have_places_of_their_own() {
    let args = parsed("classes");
    let mut world = World::new(&args, 1);
    let long = |number, names: &[&str], long: &[usize]| {
        let mut catalogue = catalogue(number, names);
        long.iter()
            .for_each(|n| catalogue.entries[*n].len = SHORT_MAX + 1);
        catalogue
    };
    world.publish(long(2, &["long", "b", "other"], &[0, 2]));
    world.want(0, &[0, 1, 2], &[]);
    assert_eq!(world.next(), [Some(vec![1]), Some(vec![0])]);
    let _first = world.sends(1, 0);
    assert_eq!(world.next(), [Some(vec![1]), None]);
    world.feed.classes[1].places = 2;
    assert_eq!(world.next(), [Some(vec![1]), Some(vec![2])]);
    // A new version of what is sent waits for the end of that, also if it is short now.
    world.publish(long(3, &["long", "b", "other"], &[2]));
    world.want(0, &[0, 2], &[7]);
    assert_eq!(world.next(), [None, Some(vec![2])]);
    world.feed.classes[1].running.clear();
    assert_eq!(world.next(), [Some(vec![0]), Some(vec![2])]);
    let _second = world.sends(0, 1);
    assert_eq!(world.next(), [None, Some(vec![2])]);
    std::fs::remove_dir_all(&args.dir).unwrap();
}

/// The feed chooses no more transfers for a follower than the follower has places. A transfer that
/// the feed has not told it of takes a place, too, until the follower had the time to take part.
#[test]
fn a_follower_with_one_place_is_chosen_for_one_transfer() {
    let args = parsed("places");
    let mut world = World::new(&args, 1);
    let mut entries = catalogue(2, &["long", "short"]);
    entries.entries[0].len = SHORT_MAX + 1;
    world.publish(entries);
    let key = world.want_with(1, 0, &[0, 1], &[]);
    assert_eq!(world.next(), [Some(vec![1]), Some(vec![0])]);
    let tell = world.sends(0, 1);
    let now = Instant::now();
    let (early, late) = (now + BOUND, now.checked_sub(GATHER).unwrap());
    world.short().running[0].chosen = vec![key];
    world.short().running[0].began = early;
    assert_eq!(world.next(), [None, None]);
    // It lists a large directory, and nobody can take part in it before its end.
    world.short().running[0].began = late;
    assert_eq!(world.next(), [None, Some(vec![0])]);
    world.short().running[0].listens = Some((9, early));
    assert_eq!(world.next(), [None, None]);
    world.short().running[0].listens = None;
    world.short().running[0].began = early;
    world.want_with(2, 0, &[0, 1], &[]);
    assert_eq!(world.next(), [None, Some(vec![0])]);
    // A transfer that it was not chosen for does not take the place, either.
    world.want_with(1, 0, &[0, 1], &[]);
    let other = world.sends(1, 0);
    other.send(listening()).unwrap();
    world.feed.hear(&mut world.out);
    world.feed.call_receivers();
    assert!(world.feed.server.receiving(8).is_empty());
    tell.send(listening()).unwrap();
    world.feed.hear(&mut world.out);
    assert_eq!(world.feed.server.receiving(7), [key].into());
    world.hear(0);
    world.want_with(1, 0, &[0], &[7]);
    world.feed.call_receivers();
    assert_eq!(world.feed.server.receiving(8), [key].into());
    std::fs::remove_dir_all(&args.dir).unwrap();
}

/// What the user prefers goes before what more followers want, in its class, and alone.
#[test]
fn what_is_preferred_goes_first() {
    let mut args = parsed("first");
    args.first = vec!["*.conf".parse().unwrap()];
    let mut world = World::new(&args, 2);
    let mut entries = catalogue(2, &["a", "b.conf", "long", "long.conf", "c.conf"]);
    (2..4).for_each(|n| entries.entries[n].len = SHORT_MAX + 1);
    world.publish(entries);
    world.want(0, &[0, 2], &[]);
    world.want(1, &[0, 1, 2, 3, 4], &[]);
    assert_eq!(world.next(), [Some(vec![1, 4]), Some(vec![3])]);
    world.want(1, &[0, 2], &[]);
    world.turn();
    assert_eq!(world.next(), [Some(vec![0]), Some(vec![2])]);
    std::fs::remove_dir_all(&args.dir).unwrap();
}

/// A transfer to which nobody comes is given up when followers wait for another one of its class.
/// It is not for those that wait for another class, or that were told of it and want more.
#[test]
fn a_transfer_waits_for_those_that_may_come() {
    let args = parsed("expected");
    let mut world = World::new(&args, 2);
    let mut long = catalogue(2, &["a", "b", "long"]);
    long.entries[2].len = SHORT_MAX + 1;
    world.publish(long);
    world.want(0, &[1], &[]);
    let tell = world.sends(0, 1);
    tell.send(listening()).unwrap();
    world.feed.hear(&mut world.out);
    assert!(matches!(world.hear(0), Heard::Publication { .. }));
    world.short().running[0].began = Instant::now().checked_sub(2 * NOBODY).unwrap();
    for (follower, wants, receiving, count) in [
        (0, 0, &[7][..], 1),
        (1, 2, &[], 1),
        (1, 0, &[], 0),
        (1, 2, &[], 1),
        // It has not come, and does not take part any more.
        (0, 2, &[], 0),
    ] {
        world.want(follower, &[wants], receiving);
        // The other one may want the same.
        world.turn();
        world.feed.call_receivers();
        let expected = world.short().running[0].expected.load(Ordering::Relaxed);
        assert_eq!(expected, count, "{follower} wants {wants}");
    }
    std::fs::remove_dir_all(&args.dir).unwrap();
}

/// Of two transfers that were chosen for a follower at the same time it is told of one after the
/// other. The second one waits for it, although nobody takes part in that yet.
#[test]
fn a_transfer_waits_for_those_that_it_was_chosen_for() {
    let args = parsed("chosen");
    let mut world = World::new(&args, 1);
    let mut long = catalogue(2, &["a", "b", "long"]);
    long.entries[2].len = SHORT_MAX + 1;
    world.publish(long);
    let key = world.want(0, &[1, 2], &[]);
    let tell = [world.sends(0, 1), world.sends(1, 2)];
    for (class, tell) in tell.iter().enumerate() {
        world.feed.classes[class].running[0].chosen = vec![key];
        tell.send(listening()).unwrap();
    }
    // Late receivers are not admitted.
    world.feed.options.late = Late::Refuse;
    let counts = |world: &mut World| {
        world.feed.call_receivers();
        let running = world.feed.classes.iter().flat_map(|class| &class.running);
        let count = |running: &Running| {
            let told = world.feed.server.receiving(running.number).len();
            (told, running.expected.load(Ordering::Relaxed))
        };
        running.map(count).collect::<Vec<_>>()
    };
    let now = Instant::now();
    let (early, late) = (now + BOUND, now.checked_sub(GATHER));
    world.feed.hear(&mut world.out);
    world.feed.classes[1].running[0].listens = late.map(|since| (9, since));
    assert_eq!(counts(&mut world), [(1, 1), (0, 0)]);
    world.feed.classes[1].running[0].listens = Some((9, early));
    assert_eq!(counts(&mut world), [(1, 1), (0, 1)]);
    // Its host is paused.
    let (none, host) = (BTreeSet::new(), world.feed.server.address_and_host(key));
    let host = BTreeSet::from([host.unwrap().1]);
    world.feed.classes[1].pauses.after(&none, &host);
    assert_eq!(counts(&mut world), [(1, 1), (0, 0)]);
    world.feed.classes[1].pauses.after(&host, &none);
    // It says what else it wants.
    assert!(matches!(world.hear(0), Heard::Publication { .. }));
    world.want(0, &[2], &[7]);
    assert_eq!(counts(&mut world), [(1, 1), (1, 1)]);
    assert_eq!(world.feed.classes[1].running[0].hosts.len(), 1);
    std::fs::remove_dir_all(&args.dir).unwrap();
}

/// All transfers that can run at the same time have the user's rate together.
#[test]
fn transfers_share_the_rate() {
    let mut args = parsed("rate");
    args.at_once = 16;
    for rate in [Some(60_000_001), None] {
        args.how.rate = rate;
        let options = options(&args);
        // No transfer has it by itself.
        assert_eq!(options.rate, None);
        assert_eq!(options.shared_rate.map(|shared| shared.rate()), rate);
    }
    std::fs::remove_dir_all(&args.dir).unwrap();
}

/// Each transfer listens at the lowest port of the feed's range that is free.
#[test]
fn transfers_have_ports_of_their_own() {
    let mut args = parsed("ports");
    let mut world = World::new(&args, 0);
    let port = |world: &World| {
        let classes = world.feed.classes.iter();
        let under_way: Vec<&Running> = classes.flat_map(|class| &class.running).collect();
        world.feed.free_port(&under_way)
    };
    assert_eq!(port(&world), 0);
    drop(world);
    args.data_port = 4000;
    world = World::new(&args, 0);
    assert_eq!(port(&world), 4000);
    let _long = world.sends(1, 0);
    world.feed.classes[1].running[0].asked_port = 4000;
    assert_eq!(port(&world), 4001);
    let _short = world.sends(0, 1);
    world.short().running[0].asked_port = 4001;
    world.feed.classes[1].running.clear();
    assert_eq!(port(&world), 4000);
    drop(world);
    for (port, data_port, at_once, is_refused) in [
        (4001, 4000, 2, true),
        (4002, 4000, 2, false),
        (4000, 4000, 1, true),
        (1, 65_535, 1, false),
        (1, 65_535, 2, true),
        (0, 4000, 2, false),
    ] {
        (args.port, args.data_port, args.at_once) = (port, data_port, at_once);
        assert_eq!(feed_name(&args).is_err(), is_refused, "{port} {data_port}");
    }
    std::fs::remove_dir_all(&args.dir).unwrap();
}
