//! What goes wrong: each case is an error that says so, in time, with no half file anywhere.

mod common;

use std::io::Write;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use common::attacks;
use common::place::Loopback;
use common::{Flush, Run, Scratch, Terminal, receiver, same, sender};
use fabricast::proto::rng::Rng;
use fabricast::proto::{GroupId, NodeId, Seq, Session, wire};
use rustix::fs::OFlags;
use rustix::process::{Resource, Rlimit, Signal, prlimit};

/// About 1.6 s for 32 MB: time to meddle.
const STEADY: [&str; 3] = ["--no-announce", "--rate", "20MB/s"];
const SIZE: usize = 32_000_000;
/// What is noticed through a closed connection is noticed at once; a machine may be busy.
const AT_ONCE: Duration = Duration::from_secs(10);

fn steady(count: &'static str) -> Vec<&'static str> {
    let mut args = STEADY.to_vec();
    args.extend(["--min-receivers", count]);
    args
}

#[test]
fn a_killed_receiver_does_not_stop_the_others() {
    let dir = Scratch::new();
    let source = dir.file("source", SIZE);
    let (mut send, address) = sender(&source, &steady("3"));
    let run = |i: usize| {
        receiver(
            &address,
            &format!("r{i}"),
            &dir.path(&format!("copy-{i}")),
            &[],
        )
    };
    let (a, b, c) = (run(0), run(1), run(2));
    send.until_share(30);
    b.signal(Signal::KILL);
    let sent = send.end().expect(4);
    assert_eq!(sent.result("r1")["state"], "lost");
    assert_eq!(sent.result("r0")["state"], "verified");
    assert_eq!(sent.one("summary")["verified"], 2);
    a.end().expect(0);
    c.end().expect(0);
    assert_eq!(b.end().code, None);
    same(&source, &dir.path("copy-0"));
    same(&source, &dir.path("copy-2"));
    // Killed outright it cannot clean up, and need not: the file had no name.
    let mut nameless = std::fs::File::options();
    nameless
        .write(true)
        .custom_flags(OFlags::TMPFILE.bits() as i32);
    match nameless.open(dir.path("")) {
        Ok(_) => assert_eq!(dir.names(), ["copy-0", "copy-2", "source"]),
        Err(e) => println!("skipped: what it leaves; no file without a name here: {e}"),
    }
    assert!(!dir.path("copy-1").exists());
}

#[test]
fn when_all_receivers_are_gone_the_sender_ends() {
    let dir = Scratch::new();
    let source = dir.file("source", SIZE);
    let (mut send, address) = sender(&source, &steady("1"));
    let recv = receiver(&address, "r0", &dir.path("copy"), &[]);
    send.until_share(10);
    recv.signal(Signal::KILL);
    send.end_within(AT_ONCE).expect(4);
}

#[test]
fn when_the_sender_is_killed_the_receivers_end() {
    let dir = Scratch::new();
    let source = dir.file("source", SIZE);
    let (mut send, address) = sender(&source, &steady("2"));
    let a = receiver(&address, "r0", &dir.path("copy-0"), &[]);
    let b = receiver(&address, "r1", &dir.path("copy-1"), &[]);
    send.until_share(30);
    send.signal(Signal::KILL);
    for recv in [a, b] {
        let end = recv.end_within(AT_ONCE).expect(8);
        assert!(end.stderr.contains("the sender is gone"), "{}", end.stderr);
    }
    assert_eq!(dir.names(), ["source"]);
}

#[test]
fn a_source_that_shrinks_or_changes_is_an_error_for_all() {
    attacks::files::changed_while_sent(&Loopback);
}

#[test]
fn a_source_that_changes_when_all_is_proven_is_told_of() {
    attacks::files::changed_when_proven(&Loopback);
}

#[test]
fn a_receiver_that_has_proven_all_needs_no_sender() {
    attacks::files::sender_gone(&Loopback);
}

#[test]
fn a_directory_that_cannot_be_flushed_is_told_of_and_the_file_stands() {
    let dir = Scratch::new();
    let flush = Flush::new(&dir);
    let source = dir.file("source", 100_000);
    let (send, address) = sender(&source, &["--no-announce"]);
    let recv = flush.failing(&address, "r0", &dir.path("copy"));
    let end = recv.end().expect(1);
    let sent = send.end().expect(4);
    let reason = sent.result("r0")["reason"].as_str().unwrap();
    for said in [end.stderr.as_str(), reason] {
        assert!(said.contains("copy is complete"), "{said}");
        assert!(said.contains("under its name"), "{said}");
    }
    assert_eq!(sent.result("r0")["state"], "failed");
    same(&source, &dir.path("copy"));
}

#[test]
fn what_is_no_file_is_refused_at_once() {
    let dir = Scratch::new();
    let fifo = dir.path("fifo");
    let made = Command::new("mkfifo").arg(&fifo).status();
    assert!(made.unwrap().success());
    for (path, word) in [(fifo.to_str().unwrap(), "FIFO"), ("/dev/zero", "device")] {
        let end = Run::start(["send", path, "--json"]).end_within(AT_ONCE);
        let end = end.expect(2);
        assert!(end.stderr.contains(word), "{}", end.stderr);
        assert_eq!(end.one("error")["code"], 2);
    }
}

fn limit_file_size(run: &Run, bytes: u64) {
    let limit = Rlimit {
        current: Some(bytes),
        maximum: Some(bytes),
    };
    prlimit(Some(run.pid()), Resource::Fsize, limit).unwrap();
}

#[test]
fn no_space_is_said_before_anything_is_sent() {
    let dir = Scratch::new();
    let source = dir.file("source", SIZE);
    let (mut send, address) = sender(&source, &["--no-announce", "--min-receivers", "2"]);
    let good = receiver(&address, "r0", &dir.path("copy-0"), &[]);
    send.until("connected", |_| true);
    // This one meets a limit when it asks for the space.
    let shell = format!(
        "ulimit -f 100; exec {} recv {} --json --from {address} --as r1",
        env!("CARGO_BIN_EXE_fabricast"),
        dir.path("copy-1").display()
    );
    let poor = common::shell(&shell).end().expect(7);
    assert!(poor.stderr.contains("too long"), "{}", poor.stderr);
    // It never counted: the sender still waits for a second one.
    let other = receiver(&address, "r2", &dir.path("copy-2"), &[]);
    send.end().expect(0);
    good.end().expect(0);
    other.end().expect(0);
    assert_eq!(dir.names(), ["copy-0", "copy-2", "source"]);
}

#[test]
fn a_disk_that_fills_up_fails_that_receiver_alone() {
    let dir = Scratch::new();
    let source = dir.file("source", SIZE);
    let (mut send, address) = sender(&source, &steady("2"));
    let good = receiver(&address, "r0", &dir.path("copy-0"), &[]);
    let mut full = receiver(&address, "r1", &dir.path("copy-1"), &[]);
    full.until("connected", |_| true); // it has its space, and loses it now
    limit_file_size(&full, SIZE as u64 / 2);
    let end = full.end().expect(7);
    assert!(end.stderr.contains("too long"), "{}", end.stderr);
    let failed = send.until("failed", |_| true);
    assert_eq!(failed["code"], 7);
    let sent = send.end().expect(4);
    assert_eq!(sent.result("r1")["state"], "failed");
    good.end().expect(0);
    assert_eq!(dir.names(), ["copy-0", "source"]);
}

#[test]
fn strangers_on_every_port_do_no_harm() {
    let dir = Scratch::new();
    let source = dir.file("source", SIZE);
    let (mut send, address) = sender(&source, &steady("2"));
    let control: SocketAddr = address.parse().unwrap();
    // Before the start: noise, silence, a message too long, one out of turn, an old version.
    let mut strangers: Vec<TcpStream> = Vec::new();
    let hello = br#"{"say":"hello","version":99,"name":"x","udp_port":1,"udp_address":null,"datagram":9000,"window_bytes":99999999}"#;
    let framed = |json: &[u8]| [&[b'M', 0, 0, json.len() as u8], json].concat();
    for bytes in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"",
        b"M\xff\xff\xff",
        &framed(br#"{"say":"ready"}"#),
        &framed(br#"{"say":"verified","received":1}"#),
        &framed(b"{\"say\":"),
        &framed(hello),
    ] {
        let mut stream = TcpStream::connect(control).unwrap();
        stream.write_all(bytes).unwrap();
        strangers.push(stream);
    }
    let a = receiver(&address, "r0", &dir.path("copy-0"), &[]);
    let b = receiver(&address, "r1", &dir.path("copy-1"), &[]);
    let starting = send.until("starting", |_| true);
    let group: SocketAddr = starting["group"].as_str().unwrap().parse().unwrap();
    let root: SocketAddr = starting["root"].as_str().unwrap().parse().unwrap();

    // While it flows: noise, and well-formed packets of other sessions, groups and members.
    send.until_share(5);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket2::SockRef::from(&socket)
        .set_multicast_if_v4(&"127.0.0.1".parse().unwrap())
        .unwrap();
    let mut rng = Rng::new(7);
    for round in 0..2000u32 {
        let mut bytes = Vec::new();
        if round % 2 == 0 {
            bytes.resize(1 + rng.below(1400) as usize, 0);
            bytes.iter_mut().for_each(|b| *b = rng.bits() as u8);
        } else {
            let header = wire::Header {
                flight: 1,
                source: NodeId(round % 3),
                session: Session(rng.bits()),
            };
            wire::put_header(&mut bytes, &header);
            let group = GroupId(round % 2);
            let origin = wire::Origin::Source(Seq(round));
            wire::put_data(&mut bytes, group, origin, Seq(round), 0, 100);
            bytes.extend([0; 100]);
        }
        socket.send_to(&bytes, group).unwrap();
        socket.send_to(&bytes, root).unwrap();
    }
    let mut late = TcpStream::connect(control).unwrap();
    late.write_all(b"\0\0\0\0").unwrap();

    let sent = send.end().expect(0);
    a.end().expect(0);
    b.end().expect(0);
    same(&source, &dir.path("copy-0"));
    same(&source, &dir.path("copy-1"));
    let summary = sent.one("summary");
    assert!(
        summary["traffic"]["foreign"].as_u64() >= Some(100),
        "{summary}"
    );
    assert!(summary["strangers"].as_u64() >= Some(5), "{summary}");
}

#[test]
fn bad_usage_says_so() {
    let dir = Scratch::new();
    let source = dir.file("source", 10);
    let source = source.to_str().unwrap();
    let place = dir.path("");
    let place = place.to_str().unwrap();
    let cases: &[(&[&str], i32, &str)] = &[
        (&[], 2, "Usage"),
        (&["frobnicate"], 2, "frobnicate"),
        (&["send"], 2, "SOURCE"),
        (&["send", "-"], 2, "not supported yet"),
        (&["send", place], 2, "not supported yet"),
        (&["send", "/no/such/file"], 1, "/no/such/file"),
        (&["send", source, "--rate", "fast"], 2, "number"),
        (
            &["send", source, "--group", "10.0.0.1"],
            2,
            "not a multicast address",
        ),
        (
            &["send", source, "--min-receivers", "0"],
            2,
            "min-receivers",
        ),
        (&["send", source, "--interface", "nosuch0"], 2, "lo"),
        (&["send", source, "--slow", "maybe"], 2, "drop"),
        (&["send", source, "--inject-loss", "100"], 2, "90"),
        (&["send", source, "--datagram", "31"], 2, "512 to 65507"),
        (&["send", source, "--datagram", "100k"], 2, "512 to 65507"),
        (
            &["recv", "x", "--any", "--datagram", "511"],
            2,
            "512 to 65507",
        ),
        (&["recv"], 2, "DEST"),
        (&["recv", "-"], 2, "not supported yet"),
        (
            &["recv", "x"],
            2,
            "--from HOST, or take a file by its name with --name",
        ),
        (
            &["recv", "x", "--any", "--from", "h"],
            2,
            "cannot be used with",
        ),
        (&["recv", "x", "--name", "[a"], 2, "no ] for a ["),
        (&["recv", "/no/such/place/x", "--any"], 2, "/no/such/place"),
        (
            &["recv", "/dev/null", "--any"],
            2,
            "neither a file nor a directory",
        ),
        (&["recv", "x", "--from", "no such host"], 2, "no such host"),
    ];
    for (args, code, words) in cases {
        let end = Run::start(*args).end();
        assert_eq!(end.code, Some(*code), "{args:?}: {end:?}");
        assert!(end.stderr.contains(words), "{args:?}: {}", end.stderr);
    }
}

#[test]
fn a_port_in_use_is_named() {
    let dir = Scratch::new();
    let source = dir.file("source", 10);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let path = source.to_str().unwrap();
    let end = Run::start(["send", path, "--interface", "127.0.0.1", "--port", &port]).end();
    assert_eq!(end.code, Some(1));
    assert!(end.stderr.contains("--port"), "{}", end.stderr);
}

#[test]
fn nobody_comes() {
    let dir = Scratch::new();
    let source = dir.file("source", 10);
    let (send, _) = sender(&source, &["--no-announce", "--start-timeout", "200ms"]);
    let end = send.end().expect(3);
    assert_eq!(end.one("error")["code"], 3);
}

#[test]
fn too_few_come() {
    let dir = Scratch::new();
    let source = dir.file("source", 10);
    let args = [
        "--no-announce",
        "--min-receivers",
        "2",
        "--start-timeout",
        "1s",
    ];
    let (send, address) = sender(&source, &args);
    let recv = receiver(&address, "r0", &dir.path("copy"), &[]);
    let end = send.end().expect(3);
    assert!(end.stderr.contains("only 1 of 2"), "{}", end.stderr);
    let end = recv.end_within(AT_ONCE).expect(8);
    assert!(end.stderr.contains("only 1 of 2"), "{}", end.stderr);
    assert_eq!(dir.names(), ["source"]);
}

#[test]
fn no_sender() {
    let dir = Scratch::new();
    let end = receiver(
        "127.0.0.1:9",
        "r0",
        &dir.path("copy"),
        &["--start-timeout", "300ms"],
    )
    .end();
    let end = end.expect(5);
    assert!(end.stderr.contains("127.0.0.1:9"), "{}", end.stderr);
    assert!(dir.names().is_empty());
}

#[test]
fn a_sender_that_never_starts() {
    let dir = Scratch::new();
    let source = dir.file("source", 10);
    let (mut send, address) = sender(&source, &["--no-announce", "--min-receivers", "2"]);
    let end = receiver(
        &address,
        "r0",
        &dir.path("copy"),
        &["--start-timeout", "500ms"],
    )
    .end();
    end.expect(5);
    send.until("left", |_| true);
    assert_eq!(dir.names(), ["source"]);
}

#[test]
fn an_interrupted_sender_tells_everybody() {
    let dir = Scratch::new();
    let source = dir.file("source", SIZE);
    for at in ["connected", "progress"] {
        let (mut send, address) =
            sender(&source, &steady(if at == "connected" { "3" } else { "2" }));
        let a = receiver(&address, "r0", &dir.path("copy-0"), &[]);
        let b = receiver(&address, "r1", &dir.path("copy-1"), &[]);
        send.until("connected", |e| e["receivers"] == 2);
        if at == "progress" {
            send.until_share(20);
        }
        send.signal(Signal::INT);
        send.end_within(AT_ONCE).expect(130);
        for recv in [a, b] {
            let end = recv.end_within(AT_ONCE).expect(8);
            assert!(end.stderr.contains("interrupted"), "{}", end.stderr);
        }
        assert_eq!(dir.names(), ["source"]);
    }
}

#[test]
fn an_interrupted_receiver_cleans_up() {
    let dir = Scratch::new();
    let source = dir.file("source", SIZE);
    let (mut send, address) = sender(&source, &steady("2"));
    let a = receiver(&address, "r0", &dir.path("copy-0"), &[]);
    let b = receiver(&address, "r1", &dir.path("copy-1"), &[]);
    send.until_share(20);
    a.signal(Signal::TERM);
    a.end_within(AT_ONCE).expect(130);
    let sent = send.end().expect(4);
    assert_eq!(sent.result("r0")["state"], "failed");
    assert_eq!(sent.result("r0")["reason"], "interrupted");
    b.end().expect(0);
    assert_eq!(dir.names(), ["copy-1", "source"]);
}

#[test]
fn a_stopped_receiver_is_dropped_if_that_is_the_rule() {
    let dir = Scratch::new();
    let source = dir.file("source", SIZE);
    // Stopped before the start, and in the middle.
    for early in [true, false] {
        let mut args = steady("2");
        args.extend(["--slow", "drop", "--patience", "1s"]);
        let (mut send, address) = sender(&source, &args);
        let mut stopped = receiver(&address, "r0", &dir.path("copy-0"), &[]);
        stopped.until("connected", |_| true);
        if early {
            stopped.signal(Signal::STOP);
        }
        let good = receiver(&address, "r1", &dir.path("copy-1"), &[]);
        if !early {
            send.until_share(20);
            stopped.signal(Signal::STOP);
        }
        let sent = send.end().expect(4);
        assert_eq!(sent.result("r0")["state"], "dropped");
        assert_eq!(sent.result("r1")["state"], "verified");
        good.end().expect(0);
        stopped.signal(Signal::CONT);
        let end = stopped.end_within(AT_ONCE).expect(9);
        assert!(end.stderr.contains("too slow"), "{}", end.stderr);
        assert_eq!(dir.names(), ["copy-1", "source"]);
        std::fs::remove_file(dir.path("copy-1")).unwrap();
    }
}

#[test]
fn a_stopped_receiver_is_waited_for_otherwise() {
    let dir = Scratch::new();
    let source = dir.file("source", SIZE);
    let mut args = steady("2");
    args.extend(["--patience", "500ms", "--slow", "wait"]);
    let (mut send, address) = sender(&source, &args);
    let a = receiver(&address, "r0", &dir.path("copy-0"), &[]);
    let b = receiver(&address, "r1", &dir.path("copy-1"), &[]);
    send.until_share(20);
    a.signal(Signal::STOP);
    let slow = send.until("slow", |_| true);
    assert_eq!(slow["receiver"], "r0");
    a.signal(Signal::CONT);
    send.end().expect(0);
    a.end().expect(0);
    b.end().expect(0);
    same(&source, &dir.path("copy-0"));
}

#[test]
fn a_stopped_sender_is_given_up_in_time() {
    let dir = Scratch::new();
    let source = dir.file("source", SIZE);
    let (mut send, address) = sender(&source, &steady("1"));
    let recv = receiver(
        &address,
        "r0",
        &dir.path("copy"),
        &["--receive-timeout", "1s"],
    );
    send.until_share(20);
    send.signal(Signal::STOP);
    let end = recv.end().expect(5);
    assert!(end.stderr.contains("--receive-timeout"), "{}", end.stderr);
    assert_eq!(dir.names(), ["source"]);
    send.signal(Signal::CONT);
    send.end().expect(4);
}

#[test]
fn who_comes_late_is_told() {
    let dir = Scratch::new();
    let source = dir.file("source", SIZE);
    let (mut send, address) = sender(&source, &steady("1"));
    let recv = receiver(&address, "r0", &dir.path("copy-0"), &[]);
    send.until_share(5);
    let late = receiver(&address, "r1", &dir.path("copy-1"), &[]);
    let end = late.end().expect(9);
    assert!(end.stderr.contains("has begun"), "{}", end.stderr);
    send.end().expect(0);
    recv.end().expect(0);
}

#[test]
fn results_that_cannot_be_written_are_a_failure() {
    let dir = Scratch::new();
    let source = dir.file("source", 100_000);
    let (send, address) = sender(&source, &["--no-announce", "--min-receivers", "1"]);
    let copy = dir.path("copy");
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let recv = Command::new(env!("CARGO_BIN_EXE_fabricast"))
        .args(["recv", "--json", "--interface", "lo", "--from", &address])
        .arg(&copy)
        .stdout(full)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&recv.stderr);
    assert_eq!(recv.status.code(), Some(1), "{said}");
    assert!(said.contains("standard output"), "{said}");
    send.end().expect(0);
    same(&source, &copy);
}

#[test]
fn the_longest_file_name_can_be_received() {
    let dir = Scratch::new();
    let source = dir.file("source", 100_000);
    let (send, address) = sender(&source, &["--no-announce", "--min-receivers", "1"]);
    let copy = dir.path(&"\u{e9}".repeat(127));
    receiver(&address, "r0", &copy, &[]).end().expect(0);
    send.end().expect(0);
    same(&source, &copy);
}

/// A receiver that came and cannot take part is in the table, also if nobody else came.
#[test]
fn refused_receivers_are_told_of_when_none_is_left() {
    let dir = Scratch::new();
    let source = dir.file("source", 1000);
    for there in [false, true] {
        let args = ["--no-announce", "--min-receivers", "2", "--start-timeout"];
        let (mut send, address) = sender(&source, &[&args[..], &["3s"]].concat());
        let (copy, other) = (dir.path("copy"), dir.path("other"));
        let waits = there.then(|| receiver(&address, "waits", &copy, &[]));
        if there {
            send.until("connected", |_| true);
        }
        let unable = receiver(&address, "unable", &other, &["--max-size", "1"]);
        assert_eq!(send.until("refused", |_| true)["by"], "receiver");
        unable.end().expect(7);
        let end = send.end().expect(3);
        let result = end.result("unable");
        assert_eq!(result["state"], "refused");
        assert!(result["reason"].to_string().contains("--max-size"));
        let summary = end.one("summary");
        assert_eq!(
            (&summary["code"], &summary["refused"]),
            (&3.into(), &1.into())
        );
        let text = end.one("error")["text"].to_string();
        assert!(text.contains("1 came and was refused"), "{text}");
        assert_eq!(text.contains("only 1 of 2"), there, "{text}");
        if let Some(waits) = waits {
            assert_eq!(end.result("waits")["state"], "failed");
            waits.end().expect(8);
        }
    }
}

#[test]
fn an_interrupted_receiver_was_not_refused_and_an_interrupted_sender_tells_who_has_what() {
    let dir = Scratch::new();
    let source = dir.file("source", 1000);
    let (mut send, address) = sender(&source, &["--no-announce", "--min-receivers", "3"]);
    let [gone, stays] = ["gone", "stays"].map(|name| {
        let run = receiver(&address, name, &dir.path(name), &[]);
        send.until("connected", |e| e["receiver"] == name);
        run
    });
    gone.signal(Signal::INT);
    gone.end().expect(130);
    send.until("left", |e| e["receiver"] == "gone");
    send.signal(Signal::INT);
    let end = send.end().expect(130);
    stays.end().expect(8);
    assert_eq!(end.all("refused").count(), 0, "{end:#?}");
    let summary = end.one("summary");
    assert_eq!(
        (&summary["code"], &summary["refused"]),
        (&130.into(), &0.into())
    );
    assert_eq!(end.all("result").count(), 1);
    assert_eq!(end.result("stays")["state"], "failed");
}

/// Who was refused does not count in the exit code, and is in the last line.
#[test]
fn the_last_line_counts_who_was_refused() {
    let dir = Scratch::new();
    let source = dir.file("source", 1000);
    let mut command = Command::new(env!("CARGO_BIN_EXE_fabricast"));
    command.arg("send").arg(&source);
    command.args(["--port", "0", "--interface", "127.0.0.1", "--no-announce"]);
    command.args(["--min-receivers", "1"]);
    let mut send = Terminal::start(command);
    let said = send.until("is the destination");
    let (_, rest) = said.split_once("--from ").unwrap();
    let address = rest.split_whitespace().next().unwrap().to_owned();
    let unable = receiver(&address, "unable", &dir.path("a"), &["--max-size", "1"]);
    unable.end().expect(7);
    let said = send.until("unable (127.0.0.1) cannot take part: ");
    assert!(!said.contains("was refused"), "{said}");
    let good = receiver(&address, "good", &dir.path("b"), &[]);
    send.until("1000 B to 1 of 1; 1 refused; in ");
    good.end().expect(0);
    assert_eq!(send.end(), Some(0));
}

#[test]
fn a_name_that_is_no_utf_8_is_told_of() {
    use std::os::unix::ffi::OsStrExt;
    let dir = Scratch::new();
    let path = dir
        .path("x")
        .with_file_name(std::ffi::OsStr::from_bytes(b"a\xff"));
    std::fs::write(&path, "bytes").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_fabricast"));
    command.arg("send").arg(&path);
    command.args([
        "--json",
        "--port",
        "0",
        "--interface",
        "127.0.0.1",
        "--no-announce",
    ]);
    command.args(["--start-timeout", "1ms"]);
    let end = Run::spawn(command).end().expect(3);
    assert_eq!(end.one("listening")["name"], "file");
    let text = end.one("notice")["text"].to_string();
    assert!(text.contains("not UTF-8"), "{text}");

    // Nor does a destination of such a name keep anything from programs.
    let source = dir.file("source", 1000);
    let (send, address) = sender(&source, &["--no-announce"]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_fabricast"));
    let dest = path.with_file_name(std::ffi::OsStr::from_bytes(b"b\xff"));
    command.arg("recv").arg(&dest);
    command.args(["--json", "--from", &address]);
    let end = Run::spawn(command).end().expect(0);
    for event in ["connected", "done"] {
        let path = end.one(event)["path"].as_str().unwrap();
        assert!(path.ends_with("b\u{fffd}"), "{path}");
    }
    send.end().expect(0);
    same(&source, &dest);
}

/// The loopback has no link; without the emulated one multicast would be the slower way.
#[test]
fn the_demo_charges_each_copy_to_its_link() {
    let args = ["demo", "--size", "2M", "--receivers", "3"];
    let link = ["--link", "50Mbit", "--loss", "0"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_fabricast"));
    let output = command.args(args).args(link).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let row = |way: &str| {
        let mut lines = text.lines().filter(|l| l.starts_with(way));
        let line = lines.find(|l| l.contains("x the file")).unwrap();
        let (seconds, rest) = line[way.len()..].trim().split_once(" s ").unwrap();
        let (_, multiple) = rest.split_once('(').unwrap();
        let multiple = multiple.split(' ').next().unwrap();
        (seconds.parse::<f64>().unwrap(), multiple.parse().unwrap())
    };
    let (_, once): (_, f64) = row("multicast");
    let (seconds, each): (_, f64) = row("unicast");
    assert!(once < 1.5 && each > 2.9, "{text}");
    // No faster than the link: three copies of 2 MiB at 50 Mbit/s.
    assert!(seconds > 0.95, "{text}");
}

/// Ctrl-C is told once, and a reader that has gone away is no panic.
#[test]
fn the_demo_ends_quietly() {
    let fabricast = env!("CARGO_BIN_EXE_fabricast");
    let end = common::shell(&format!(
        "{fabricast} demo --receivers 1 --size 64K | head -1"
    ))
    .end();
    assert_eq!((end.code, end.stderr.as_str()), (Some(0), ""));
    // A group of its own, as a terminal would make for it; the last word is the whole group's.
    let dir = Scratch::new();
    let mut command = Command::new(fabricast);
    command.args(["demo", "--link", "1Mbit", "--size", "8M", "--dir"]);
    command.arg(dir.path(""));
    command.process_group(0);
    let mut demo = Terminal::start(command);
    demo.until("slowest 0%");
    demo.signal_group(Signal::INT);
    let said = demo.until("interrupted").to_owned();
    assert!(!said.contains("null"), "{said}");
    assert_eq!(said.matches("interrupted").count(), 1, "{said}");
    assert_eq!(demo.end(), Some(130));
    assert!(dir.names().is_empty());
}
