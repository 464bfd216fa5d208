//! What a feed sends to whom, with transfers that the tests make up.

use clap::Parser;
use fabricast::feed::{Catalogue, Entry, Follower, Heard};

use super::*;

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

/// A feed of an empty directory, with two entries in its catalogue, and a follower.
struct World<'a> {
    feed: Feed<'a>,
    until: Instant,
    /// Set to end the follower.
    ends: Arc<AtomicBool>,
    /// What the follower is told to receive, and by which catalogue.
    follower: JoinHandle<Option<(u64, BTreeSet<u32>)>>,
}

impl<'a> World<'a> {
    fn new(args: &'a args::Serve, out: &mut Output) -> World<'a> {
        let mut feed = Feed::open(args, "feed", out).unwrap();
        feed.server.publish(catalogue(1, &["a", "b"]));
        let from = feed.server.address().to_string();
        let ends = Arc::new(AtomicBool::new(false));
        let ended = ends.clone();
        let follower = thread::spawn(move || follow(&from, &ended));
        let until = Instant::now() + BOUND;
        World {
            feed,
            until,
            ends,
            follower,
        }
    }

    /// Serves until the follower wants something.
    fn waits(&mut self) -> FollowerKey {
        loop {
            let waiting = self.feed.server.waiting();
            if let Some((key, _)) = waiting.iter().find(|(_, wants)| !wants.is_empty()) {
                return *key;
            }
            self.turn();
        }
    }

    fn turn(&mut self) {
        self.feed.server.turn(TICK);
        assert!(Instant::now() < self.until, "waited too long");
    }

    /// Puts a transfer of the second entry under way, which tells what the test says.
    fn sends(&mut self, key: FollowerKey) -> std::sync::mpsc::Sender<Told> {
        let (tell, told) = channel();
        self.feed.running = Some(Running {
            told,
            thread: thread::spawn(|| {}),
            interrupt: Arc::default(),
            began: Instant::now(),
            entries: [1].into(),
            catalogue: 1,
            followers: [key].into(),
            hosts: self.feed.server.address_and_host(key).into_iter().collect(),
            port: None,
            first: None,
            expected: Arc::default(),
        });
        tell
    }

    fn end(self) -> Option<(u64, BTreeSet<u32>)> {
        self.ends.store(true, Ordering::Relaxed);
        self.follower.join().unwrap()
    }
}

/// Follows, and always wants the second entry. Returns the number of the catalogue, and the entries
/// that it is told to receive.
fn follow(from: &str, ends: &AtomicBool) -> Option<(u64, BTreeSet<u32>)> {
    let mut follower = Follower::connect(from, "f").unwrap();
    follower.want(&BTreeSet::new()).unwrap();
    let mut number = 0;
    while !ends.load(Ordering::Relaxed) {
        match follower.hear(Duration::from_millis(10)).unwrap() {
            None => {}
            Some(Heard::Catalogue(catalogue)) => {
                number = catalogue.number;
                follower.want(&[1].into()).unwrap();
            }
            Some(Heard::Publication { entries, .. }) => return Some((number, entries)),
        }
    }
    None
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

/// While a transfer is being listed the catalogue may become another one, whose numbers mean
/// other entries. Then nobody is told of that transfer.
#[test]
fn a_catalogue_that_changes_while_a_transfer_is_listed() {
    let args = parsed("changes");
    let mut out = Output::new(&args.how.net);
    for changes in [false, true] {
        let mut world = World::new(&args, &mut out);
        let key = world.waits();
        let tell = world.sends(key);
        if changes {
            world.feed.server.publish(catalogue(2, &["b", "c"]));
            world.waits();
        }
        let listening = SendEvent::Listening {
            address: ([127, 0, 0, 1], 9).into(),
            name: "b".into(),
            len: Some(1),
            announced: false,
        };
        tell.send(Told::Event(listening)).unwrap();
        world.feed.hear(&mut out);
        world.feed.attend();
        assert_eq!(world.feed.server.receiving().count() == 0, changes);
        let told = match changes {
            true => world.end(),
            false => {
                world.turn();
                world.follower.join().unwrap()
            }
        };
        assert_eq!(told, (!changes).then(|| (1, [1].into())));
    }
    std::fs::remove_dir_all(&args.dir).unwrap();
}

/// Nothing is sent for the sake of a host that was told of transfers and did not come, until
/// its pause is over. That of the feed is shorter.
#[test]
fn a_host_that_does_not_come_has_to_wait() {
    let args = parsed("pauses");
    let mut out = Output::new(&args.how.net);
    let mut world = World::new(&args, &mut out);
    let key = world.waits();
    for _ in 0..7 {
        let tell = world.sends(key);
        let error = Error::NoReceivers("nobody came".into());
        let failure = SendFailure {
            error,
            report: None,
        };
        tell.send(Told::End(Box::new(Err(failure)))).unwrap();
        world.feed.hear(&mut out);
        assert!(world.feed.running.is_none() && world.feed.pauses.is_pause());
    }
    while world.feed.pauses.is_pause() {
        world.turn();
    }
    world.feed.choose(&mut out);
    assert!(world.feed.running.is_none(), "its host is paused");
    // It has completed one: it is as good as any other.
    let (_, host) = world.feed.server.address_and_host(key).unwrap();
    world.feed.pauses.after(&[host].into(), true);
    world.feed.choose(&mut out);
    let running = world.feed.running.take().unwrap();
    running.thread.join().unwrap();
    assert_eq!(world.end(), None);
    std::fs::remove_dir_all(&args.dir).unwrap();
}
