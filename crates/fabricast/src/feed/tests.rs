//! Feeds and followers on the loopback, and others that lie.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::catalogue::{Catalogue, Entry};
use super::follower::{Follower, Heard};
use super::line::framed;
use super::server::{Event, FeedServer};
use crate::bootstrap::frame::HEAD;
use crate::bootstrap::message::VERSION;
use crate::bootstrap::pending_max;
use crate::config::NetOptions;
use crate::error::Error;
use crate::interface::Interface;
use crate::waker::Waker;

/// Longest time that a test waits for anything.
const BOUND: Duration = Duration::from_secs(20);

fn entry(name: &str) -> Entry {
    Entry {
        name: name.into(),
        len: 7,
        digest: blake3::hash(name.as_bytes()).to_hex().to_string(),
    }
}

fn catalogue(number: u64, names: &[&str]) -> Catalogue {
    Catalogue {
        number,
        entries: names.iter().map(|name| entry(name)).collect(),
    }
}

fn server(per_host: usize) -> FeedServer {
    let net = NetOptions {
        interface: Interface::Address(Ipv4Addr::LOCALHOST.into()),
        ..NetOptions::default()
    };
    FeedServer::open(&net, 0, "feed", per_host, Waker::new().unwrap()).unwrap()
}

/// Serves until something is so.
fn serve_until(server: &mut FeedServer, mut is_so: impl FnMut(&FeedServer, &[Event]) -> bool) {
    let until = Instant::now() + BOUND;
    loop {
        let events = server.turn(Duration::from_millis(10));
        if is_so(server, &events) {
            return;
        }
        assert!(Instant::now() < until, "waited too long");
    }
}

/// In place of a message of a client: it waits for a frame of the feed.
const HEARS: Vec<u8> = Vec::new();

fn next_frame(stream: &mut TcpStream) -> std::io::Result<()> {
    let mut head = [0; HEAD];
    stream.read_exact(&mut head)?;
    let len = u32::from_be_bytes([0, head[1], head[2], head[3]]);
    stream.read_exact(&mut vec![0; len as usize])
}

/// A client that says these messages, and what it hears until the feed closes the connection.
fn client(server: &FeedServer, say: Vec<Vec<u8>>) -> thread::JoinHandle<Vec<u8>> {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(BOUND)).unwrap();
    thread::spawn(move || {
        for message in say {
            // It may be closed already.
            let _ = match message == HEARS {
                true => next_frame(&mut stream),
                false => stream.write_all(&message),
            };
        }
        let mut heard = Vec::new();
        let _ = stream.read_to_end(&mut heard);
        heard
    })
}

fn message(value: Value) -> Vec<u8> {
    framed(&value).to_vec()
}

fn follow() -> Vec<u8> {
    message(json!({"say": "follow", "version": VERSION, "name": "liar"}))
}

fn wants(catalogue: u64, answers: u64, runs: Value) -> Vec<u8> {
    message(json!({
        "say": "wants", "catalogue": catalogue, "answers": answers, "places": 2, "runs": runs,
    }))
}

/// What a follower wants, without an end.
fn part(catalogue: u64, answers: u64) -> Vec<u8> {
    message(json!({
        "say": "wants", "catalogue": catalogue, "answers": answers, "places": 2, "runs": [],
        "more": true,
    }))
}

/// A follower that knows the catalogue says this next.
fn knowing(runs: Value) -> Vec<Vec<u8>> {
    let none = json!([]);
    // It hears the feed's name and the catalogue.
    vec![follow(), wants(0, 0, none), HEARS, HEARS, wants(1, 1, runs)]
}

/// The next thing that a follower hears.
fn hear(follower: &mut Follower) -> Heard {
    let until = Instant::now() + BOUND;
    loop {
        if let Some(heard) = follower.hear(Duration::from_millis(10)).unwrap() {
            return heard;
        }
        assert!(Instant::now() < until, "waited too long");
    }
}

fn connect(from: &str) -> Result<Follower, Error> {
    Follower::connect(from, "f", &Waker::new().unwrap(), &|| false)
}

#[test]
fn a_follower_that_is_interrupted_does_not_wait_for_a_feed_that_is_silent() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let from = silent.local_addr().unwrap().to_string();
    let asked = std::cell::Cell::new(0);
    let is_over = || asked.replace(asked.get() + 1) >= 3;
    let followed = Follower::connect(&from, "f", &Waker::new().unwrap(), &is_over);
    assert!(matches!(followed.err(), Some(Error::Interrupted)));
}

/// A follower learns the catalogue, and each later one, and is told of a publication.
#[test]
fn a_follower_is_told_what_there_is_and_what_comes() {
    let mut server = server(4);
    let from = server.address().to_string();
    let many: Vec<String> = (0..5000).map(|n| format!("entry {n}")).collect();
    let names: Vec<&str> = many.iter().map(|name| &**name).collect();
    let all = catalogue(2, &names);
    let expected = all.clone();
    let follower = thread::spawn(move || {
        let mut follower = connect(&from).unwrap();
        assert_eq!(follower.feed(), "feed");
        follower.want(&BTreeSet::new(), &[], 2).unwrap();
        assert_eq!(hear(&mut follower), Heard::Catalogue(catalogue(1, &["a"])));
        follower.want(&BTreeSet::from([0]), &[], 2).unwrap();
        // The catalogue is longer than a message, and so is what is wanted.
        assert_eq!(hear(&mut follower), Heard::Catalogue(expected));
        let odd: BTreeSet<u32> = (0..5000).filter(|n| n % 2 == 1).collect();
        follower.want(&odd, &[], 2).unwrap();
        let publication = hear(&mut follower);
        let Heard::Publication {
            transfer,
            sender,
            entries,
        } = publication
        else {
            panic!("{publication:?}");
        };
        assert_eq!((transfer, sender.port(), entries), (7, 4321, odd));
    });
    server.publish(catalogue(1, &["a"]));
    serve_until(
        &mut server,
        |server, _| matches!(&server.waiting()[..], [(_, wants)] if wants.len() == 1),
    );
    server.publish(all);
    serve_until(
        &mut server,
        |server, _| matches!(&server.waiting()[..], [(_, wants)] if wants.len() == 2500),
    );
    let (key, wants) = server.waiting().remove(0);
    let wants = wants.clone();
    server.invite(key, 7, &wants, 4321);
    assert_eq!((server.waiting().len(), server.receiving(7).len()), (0, 1));
    serve_until(
        &mut server,
        |_, events| matches!(events, [Event::Gone { name, .. }] if name == "f"),
    );
    follower.join().unwrap();
    assert_eq!(server.followers(), 0);
}

/// A follower takes part in a transfer, and says what else it wants, and that in turn in place of
/// what it has said before. What crosses with an answer counts for nothing.
#[test]
fn a_follower_takes_part_in_several_transfers_at_once() {
    let mut server = server(4);
    server.publish(catalogue(1, &["a", "b", "c"]));
    let from = server.address().to_string();
    let (tell, told) = channel::<()>();
    let (say, said) = channel::<()>();
    let follower = thread::spawn(move || {
        let mut follower = connect(&from).unwrap();
        follower.want(&BTreeSet::new(), &[], 2).unwrap();
        assert!(matches!(hear(&mut follower), Heard::Catalogue(_)));
        follower.want(&BTreeSet::from([0, 1, 2]), &[], 2).unwrap();
        // The feed has answered. This does not know of that yet.
        told.recv().unwrap();
        follower.want(&BTreeSet::from([0]), &[], 2).unwrap();
        say.send(()).unwrap();
        for (number, entry, others) in [(7, 0, &[1, 2][..]), (8, 1, &[2])] {
            let heard = hear(&mut follower);
            assert!(
                matches!(&heard, Heard::Publication { transfer, entries, .. }
                    if *transfer == number && entries.iter().eq(&[entry])),
                "{heard:?}"
            );
            let receiving: Vec<u64> = (7..=number).collect();
            let others = others.iter().copied().collect();
            follower.want(&others, &receiving, 2).unwrap();
        }
        // The first transfer has ended.
        follower.want(&BTreeSet::from([0, 2]), &[8], 2).unwrap();
        told.recv().unwrap();
    });
    let wanted = |server: &FeedServer| {
        let waiting = server.waiting();
        waiting
            .first()
            .map(|(_, wants)| Vec::from_iter((*wants).clone()))
    };
    let receiving = |server: &FeedServer| [7, 8].map(|n| server.receiving(n).len());
    for (n, before, after) in [(7, vec![0, 1, 2], vec![1, 2]), (8, vec![1, 2], vec![0, 2])] {
        serve_until(&mut server, |server, _| {
            wanted(server).as_ref() == Some(&before)
        });
        let (key, _) = server.waiting()[0];
        server.invite(key, n, &BTreeSet::from([n as u32 - 7]), 9);
        let counts = server.counts(usize::MAX);
        assert_eq!(
            (counts.receiving, counts.waiting, counts.current),
            (1, 0, 0)
        );
        if n == 7 {
            tell.send(()).unwrap();
            said.recv().unwrap();
        }
        serve_until(&mut server, |server, _| {
            assert!(n == 8 || receiving(server) == [1, 0] && wanted(server) != Some(vec![0]));
            let is_so = wanted(server).as_ref() == Some(&after);
            is_so && receiving(server) == [usize::from(n == 7), usize::from(n == 8)]
        });
    }
    tell.send(()).unwrap();
    serve_until(&mut server, |_, events| {
        matches!(events, [Event::Gone { .. }])
    });
    follower.join().unwrap();
    assert_eq!(receiving(&server), [0, 0]);
}

/// Whatever a client says, the feed closes its connection, and serves the others.
#[test]
fn clients_that_make_no_sense_are_closed() {
    let mut server = server(1);
    server.publish(catalogue(1, &["a", "b"]));
    let none = json!([]);
    let cases: Vec<Vec<Vec<u8>>> = vec![
        vec![b"GET / HTTP/1.1\r\n\r\n".to_vec()],
        vec![vec![b'M', 0xff, 0xff, 0xff]],
        vec![vec![b'B', 0, 0, 0]],
        vec![message(json!({"say": "follow"}))],
        vec![message(json!(7))],
        vec![wants(0, 0, none.clone())],
        vec![follow(), follow()],
        knowing(json!([[0, 3]])),
        knowing(json!([[1, 1]])),
        knowing(json!([[1, 2], [0, 1]])),
        knowing(json!([[0, 4_294_967_295_u32]])),
        // It has heard more than was said, or does not know what it was told.
        vec![follow(), wants(1, 1, none.clone())],
        vec![follow(), wants(1, 0, none.clone())],
        [knowing(none.clone()), vec![wants(0, 1, none.clone())]].concat(),
        // It takes part in more transfers than there can be.
        vec![
            follow(),
            message(json!({
                "say": "wants", "catalogue": 0, "answers": 0, "runs": none,
                "receiving": (0..17).collect::<Vec<u64>>(),
            })),
        ],
        // It asks for the catalogue again and again, and reads nothing.
        vec![follow(), wants(0, 0, none.clone()).repeat(100_000)],
        (0..100_000).fold(vec![follow()], |mut said, n| {
            said.push(wants(0, n, none.clone()));
            said
        }),
        // It says again and again what it wants.
        [
            knowing(none.clone()),
            vec![wants(1, 1, json!([[0, 2]])).repeat(100)],
        ]
        .concat(),
        // It says what it wants, and never ends: of this catalogue, or of none.
        [knowing(none.clone()), vec![part(1, 1).repeat(300)]].concat(),
        [knowing(none.clone()), vec![part(0, 0).repeat(300)]].concat(),
    ];
    for say in cases {
        let shown = String::from_utf8_lossy(&say[say.len() - 1]).into_owned();
        let shown: String = shown.chars().take(80).collect();
        let client = client(&server, say);
        serve_until(&mut server, |_, _| client.is_finished());
        assert_eq!(server.followers(), 0, "{shown}");
    }
    // Those that are refused are told why.
    let hello = json!({"say": "hello", "version": 1, "name": "r"});
    let old = json!({"say": "follow", "version": VERSION + 1, "name": "r"});
    for (say, reason) in [(hello, "this is a feed"), (old, "same version")] {
        let client = client(&server, vec![message(say)]);
        serve_until(&mut server, |_, _| client.is_finished());
        let heard = client.join().unwrap();
        assert!(String::from_utf8_lossy(&heard).contains(reason));
    }
    // A host that comes again and again is told of once for each reason.
    let old = message(json!({"say": "follow", "version": VERSION + 2, "name": "r"}));
    let (mut told, mut refused) = (0, 0);
    for _ in 0..3 {
        let client = client(&server, vec![old.clone()]);
        serve_until(&mut server, |_, events| {
            told += events.len();
            client.is_finished()
        });
        let heard = client.join().unwrap();
        refused += usize::from(String::from_utf8_lossy(&heard).contains("same version"));
    }
    assert_eq!((told, refused), (1, 3));
    // One follower of this address is admitted, and no more.
    let stays = TcpStream::connect(server.address()).unwrap();
    (&stays).write_all(&follow()).unwrap();
    serve_until(&mut server, |server, _| server.followers() == 1);
    let client = client(&server, vec![follow()]);
    let is_full = |event: &Event| match event {
        Event::Refused { reason, .. } => reason.contains("of its address"),
        _ => false,
    };
    serve_until(&mut server, |_, events| events.iter().any(is_full));
    serve_until(&mut server, |_, _| client.is_finished());
    assert_eq!(server.followers(), 1);
}

/// A follower that takes many publications in a short time, and says after the end of each what it
/// wants, is no liar.
#[test]
fn publications_in_quick_succession_close_no_follower() {
    const COUNT: usize = 200;
    let mut server = server(4);
    server.publish(catalogue(1, &["a", "b"]));
    let from = server.address().to_string();
    let follower = thread::spawn(move || {
        let mut follower = connect(&from).unwrap();
        follower.want(&BTreeSet::new(), &[], 2).unwrap();
        assert!(matches!(hear(&mut follower), Heard::Catalogue(_)));
        let all = BTreeSet::from([0, 1]);
        follower.want(&all, &[], 2).unwrap();
        for _ in 0..COUNT {
            let Heard::Publication { transfer, .. } = hear(&mut follower) else {
                panic!("no publication");
            };
            follower.want(&BTreeSet::from([1]), &[transfer], 2).unwrap();
            // It has ended.
            follower.want(&all, &[], 2).unwrap();
        }
    });
    for _ in 0..COUNT {
        let mut both = None;
        serve_until(&mut server, |server, events| {
            assert_eq!(
                events.iter().find(|e| matches!(e, Event::Gone { .. })),
                None
            );
            let waiting = server.waiting();
            both = waiting
                .iter()
                .find(|(_, w)| w.len() == 2)
                .map(|(key, _)| *key);
            both.is_some()
        });
        let transfer = server.next_transfer();
        server.invite(both.unwrap(), transfer, &BTreeSet::from([0]), 9);
    }
    serve_until(&mut server, |_, _| follower.is_finished());
    follower.join().unwrap();
}

/// A client that reads nothing cannot have heard the catalogue, and is given no other one.
#[test]
fn what_was_not_sent_was_not_heard() {
    let mut server = server(4);
    // More than the network takes of it.
    let many: Vec<String> = (0..60_000).map(|n| format!("entry {n:0200}")).collect();
    let names: Vec<&str> = many.iter().map(|name| &**name).collect();
    server.publish(catalogue(1, &names));
    let mut stream = TcpStream::connect(server.address()).unwrap();
    for message in [
        follow(),
        wants(0, 0, json!([])),
        wants(1, 1, json!([[0, 1]])),
    ] {
        stream.write_all(&message).unwrap();
    }
    serve_until(&mut server, |_, events| {
        events.iter().any(|event| {
            matches!(event, Event::Gone { reason, .. }
            if reason.contains("not sent yet"))
        })
    });
}

/// What a follower says of transfers that it was not told of counts for none of them. Numbers of
/// one run of a feed mean nothing to another one.
#[test]
fn a_follower_takes_part_only_in_what_it_was_told_of() {
    let mut server = server(4);
    server.publish(catalogue(1, &["a"]));
    let from = server.address().to_string();
    let transfer = server.next_transfer();
    assert_eq!(super::shown_number(transfer), 1);
    assert_ne!(transfer, self::server(4).next_transfer());
    let (tell, told) = channel::<()>();
    let follower = thread::spawn(move || {
        let mut follower = connect(&from).unwrap();
        follower.want(&BTreeSet::new(), &[transfer], 2).unwrap();
        assert!(matches!(hear(&mut follower), Heard::Catalogue(_)));
        follower.want(&BTreeSet::from([0]), &[transfer], 2).unwrap();
        told.recv().unwrap();
    });
    serve_until(&mut server, |server, _| !server.waiting().is_empty());
    assert!(server.receiving(transfer).is_empty());
    // It says that it takes part: that counts only if somebody does.
    for (receivers, receiving, waiting) in [(0, 0, 1), (1, 1, 0), (2, 1, 0)] {
        let counts = server.counts(receivers);
        assert_eq!((counts.receiving, counts.waiting), (receiving, waiting));
    }
    tell.send(()).unwrap();
    follower.join().unwrap();
}

/// Silent connections do not grow beyond a bound, and a follower still gets in.
#[test]
fn silent_connections_are_bounded() {
    let mut server = server(4);
    let address = server.address();
    let silent: Vec<TcpStream> = (0..100)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    let from = address.to_string();
    let follower = thread::spawn(move || connect(&from).map(drop));
    serve_until(&mut server, |_, _| follower.is_finished());
    assert!(server.connections() <= pending_max() + 1);
    follower.join().unwrap().unwrap();
    drop(silent);
}

/// A follower does not take from a feed what would lead it elsewhere.
#[test]
fn feeds_that_make_no_sense_are_not_followed() {
    let feed = |name: &str| message(json!({"say": "feed", "version": VERSION, "name": name}));
    let digest = blake3::hash(b"").to_hex().to_string();
    let entries = |names: &[&str]| {
        let entry = |name: &&str| json!({"name": name, "len": 1, "digest": digest});
        let entries: Vec<Value> = names.iter().map(entry).collect();
        message(json!({"say": "catalogue", "number": 1, "entries": entries}))
    };
    let publication = |runs: Value| {
        message(json!({"say": "publication", "transfer": 1, "port": 1, "runs": runs}))
    };
    let cases: Vec<(Vec<Vec<u8>>, &str)> = vec![
        (vec![feed("..")], "no name for a directory"),
        (vec![feed("/etc")], "no name for a directory"),
        (vec![feed("")], "no name for a directory"),
        (
            vec![message(json!({"say": "feed", "version": 0, "name": "f"}))],
            "no feed",
        ),
        (vec![entries(&["a"])], "no feed"),
        (vec![b"SSH-2.0-OpenSSH".to_vec()], "no message of a feed"),
        (vec![], "was closed"),
        (vec![feed("f"), entries(&["../a"])], "makes no sense"),
        (vec![feed("f"), entries(&[".bashrc"])], "makes no sense"),
        (vec![feed("f"), entries(&["a", "a"])], "twice"),
        (
            vec![feed("f"), entries(&["a"]), publication(json!([[0, 2]]))],
            "no feed",
        ),
        (
            vec![feed("f"), entries(&["a"]), publication(json!([]))],
            "no feed",
        ),
        (
            vec![feed("f"), entries(&["a"]), publication(json!([[0, 1]]))],
            "does not want",
        ),
        (vec![feed("f"), entries(&["a"]), entries(&["a"])], "no feed"),
        (
            vec![
                feed("f"),
                message(json!({"say": "refused", "reason": "full"})),
            ],
            "says: full",
        ),
    ];
    for (say, why) in cases {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let from = listener.local_addr().unwrap().to_string();
        let liar = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            for message in say {
                stream.write_all(&message).unwrap();
            }
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let error = followed(&from).unwrap_err();
        assert!(error.to_string().contains(why), "{why}: {error}");
        liar.join().unwrap();
    }
}

/// Follows until there is an error.
fn followed(from: &str) -> Result<(), Error> {
    let mut follower = connect(from)?;
    let until = Instant::now() + BOUND;
    while Instant::now() < until {
        follower.hear(Duration::from_millis(10))?;
    }
    Ok(())
}
