//! Transfers that succeed, between real processes on the loopback.

use std::path::Path;
use std::process::Command;

use crate::common::{self, FABRICAST, Run, Scratch, Terminal, receiver, same, sender, set_mode};

const QUIET: &str = "--no-announce";

/// Sends `source` to `n` receivers. Checks that all have it and that no other file is left.
fn transfer(
    dir: &Scratch,
    source: &Path,
    n: usize,
    send: &[&str],
    recv: &[&str],
) -> (common::End, Vec<common::End>) {
    let count = n.to_string();
    let mut args = vec![QUIET, "--min-receivers", &count];
    args.extend(send);
    let (run, address) = sender(source, &args);
    let copies: Vec<_> = (0..n).map(|i| dir.path(&format!("copy-{i}"))).collect();
    let runs: Vec<Run> = copies
        .iter()
        .enumerate()
        .map(|(i, copy)| receiver(&address, &format!("r{i}"), copy, recv))
        .collect();
    let sent = run.end().expect(0);
    let received: Vec<_> = runs.into_iter().map(|r| r.end().expect(0)).collect();
    for copy in &copies {
        same(source, copy);
        std::fs::remove_file(copy).unwrap();
    }
    assert_eq!(
        dir.names().len(),
        1,
        "only the source is left: {:?}",
        dir.names()
    );
    (sent, received)
}

#[test]
fn one_file_to_three() {
    let dir = Scratch::new();
    let source = dir.file("source", 20_000_000);
    let (sent, received) = transfer(&dir, &source, 3, &[], &[]);
    let summary = sent.one("summary");
    assert_eq!(summary["verified"], 3);
    assert_eq!(summary["code"], 0);
    assert_eq!(summary["len"], 20_000_000);
    for i in 0..3 {
        let result = sent.result(&format!("r{i}"));
        assert_eq!(result["state"], "verified");
        assert_eq!(result["reach"], "multicast");
    }
    for end in &received {
        assert_eq!(end.one("done")["root"], summary["root"]);
    }
    for event in sent
        .events
        .iter()
        .chain(received.iter().flat_map(|r| &r.events))
    {
        assert!(event["event"].is_string(), "{event}");
    }
}

#[test]
fn odd_lengths() {
    const MIB: usize = 1 << 20;
    const PAYLOAD: usize = 1440; // of a datagram of 1472 bytes
    let dir = Scratch::new();
    for len in [
        0,
        1,
        PAYLOAD - 1,
        PAYLOAD,
        PAYLOAD + 1,
        MIB - 1,
        MIB,
        MIB + 1,
        2 * MIB + PAYLOAD + 7,
    ] {
        let source = dir.file("source", len);
        transfer(&dir, &source, 2, &["--datagram", "1472"], &[]);
    }
}

#[test]
fn loss_on_both_sides() {
    let dir = Scratch::new();
    let source = dir.file("source", 12_000_000);
    let loss = ["--inject-loss", "5", "--datagram", "1472"];
    let (sent, _) = transfer(&dir, &source, 4, &loss, &loss);
    let traffic = &sent.one("summary")["traffic"];
    assert!(traffic["injected"].as_u64() > Some(100), "{traffic}");
    let mended = |key: &str| traffic[key].as_u64().unwrap();
    assert!(
        mended("repairs_multicast") + mended("repairs_unicast") > 100,
        "{traffic}"
    );
}

/// Memory is read late and given back late, as by a device, while packets are lost: a file of
/// several blocks, and co-roots that repair from what they have received.
#[test]
fn what_is_read_late_arrives() {
    let dir = Scratch::new();
    let source = dir.file("source", 5_000_000);
    let late = ["--inject-delay", "1ms", "--inject-loss", "1"];
    for scheme in ["auto", "coroot(2)+crc32c"] {
        transfer(
            &dir,
            &source,
            3,
            &[&late[..], &["--scheme", scheme]].concat(),
            &late,
        );
    }
}

#[test]
fn verbose_tells_of_paths_and_retransmissions() {
    let dir = Scratch::new();
    let source = dir.file("source", 3_000_000);
    let told = |level: &[&str]| {
        let loss = ["--inject-loss", "5", "--datagram", "1472"];
        let args = [&loss[..], &["--reach", "unicast"], level].concat();
        let (sent, _) = transfer(&dir, &source, 2, &args, &loss);
        // Nothing is told per packet: there are 2084 of them.
        assert!(sent.stderr.lines().count() < 100, "{}", sent.stderr);
        let retransmissions = sent.stderr.lines().find(|l| l.contains("retransmissions"));
        let counts_all = retransmissions.is_some_and(|l| !l.contains(" data=0"));
        let has = |word| sent.stderr.contains(word);
        [
            has("path: unicast"),
            has("joined"),
            has("member removed"),
            counts_all,
        ]
    };
    assert_eq!(told(&[]), [false; 4]);
    assert_eq!(told(&["-v"]), [true, true, true, false]);
    assert_eq!(told(&["-vv"]), [true; 4]);
}

#[test]
fn everybody_by_unicast() {
    let dir = Scratch::new();
    let source = dir.file("source", 3_000_000);
    // The copies for all take longer than it takes until paths are probed again.
    let args = ["--reach", "unicast", "--rate", "6MB/s"];
    let (sent, _) = transfer(&dir, &source, 3, &args, &[]);
    for receiver in ["r0", "r1", "r2"] {
        assert_eq!(sent.result(receiver)["reach"], "unicast");
    }
    assert_eq!(sent.one("summary")["traffic"]["data"], 0);
}

#[test]
fn damaged_blocks_come_again() {
    let dir = Scratch::new();
    let source = dir.file("source", 10_500_000);
    let (sent, received) = transfer(&dir, &source, 2, &[], &["--inject-damage", "3"]);
    assert_eq!(sent.result("r0")["tally"]["mended"], 4); // blocks 0, 3, 6 and 9 of 11
    let statistics = &received[1].one("done")["tally"];
    assert_eq!(statistics["mended"], 4);
    // For each block, the hashes of its 64 pieces, and the piece that is wrong.
    let bytes = 4 * (64 * 32 + 16384);
    assert_eq!(statistics["mended_bytes"], bytes);
}

#[test]
fn over_ipv6() {
    let dir = Scratch::new();
    let source = dir.file("source", 3_000_000);
    let path = source.to_str().unwrap();
    let common = ["--json", "--port", "0", "--interface", "::1", QUIET];
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        println!("skipped: this machine has no IPv6 loopback");
        return;
    }
    let mut send = Run::start(["send", path].iter().chain(&common));
    let listening = send.until("listening", |_| true);
    let address = listening["address"].as_str().unwrap();
    assert!(address.starts_with("[::1]:"), "{address}");
    let copy = dir.path("copy");
    let recv = receiver(address, "r0", &copy, &[]);
    send.end().expect(0);
    recv.end().expect(0);
    same(&source, &copy);
}

/// A sender on the loopback interface, given by name, and its port.
fn by_name(source: &Path, args: &[&str]) -> (Run, u64) {
    let path = source.to_str().unwrap();
    let fixed = ["send", path, "--json", "--port", "0", "--interface", "lo"];
    let mut run = Run::start(fixed.iter().chain(args));
    let listening = run.until("listening", |_| true);
    let address = listening["address"].as_str().unwrap();
    let port = address.parse::<std::net::SocketAddr>().unwrap().port();
    (run, port.into())
}

#[test]
fn a_named_interface_is_listened_at_by_both_families() {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        println!("skipped: this machine has no IPv6 loopback");
        return;
    }
    let dir = Scratch::new();
    let source = dir.file("source", 300_000);
    for (host, group) in [
        ("[::1]", None),
        ("127.0.0.1", None),
        ("[::1]", Some("ff15::7")),
    ] {
        let mut args = vec![QUIET];
        args.extend(group.iter().flat_map(|g| ["--group", g]));
        let (send, port) = by_name(&source, &args);
        let copy = dir.path("copy");
        if group.is_some() {
            // A receiver of the other family does not reach the sender, and prints what to check.
            let from = format!("127.0.0.1:{port}");
            let end = receiver(&from, "r1", &copy, &["--start-timeout", "300ms"]).end();
            let end = end.expect(5);
            assert!(end.stderr.contains("does it listen"), "{}", end.stderr);
        }
        let recv = receiver(&format!("{host}:{port}"), "r0", &copy, &[]);
        send.end().expect(0);
        recv.end().expect(0);
        same(&source, &copy);
        std::fs::remove_file(&copy).unwrap();
    }
    // Both families at once would need two groups. The sender does not count receivers of the
    // family with fewer hosts, and refuses them at the start.
    let (mut send, port) = by_name(&source, &[QUIET, "--min-receivers", "2"]);
    let from = |host: &str| format!("{host}:{port}");
    let first = receiver(&from("127.0.0.1"), "r0", &dir.path("a"), &[]);
    send.until("connected", |_| true);
    let other = receiver(&from("[::1]"), "r1", &dir.path("b"), &[]);
    send.until("connected", |e| e["receiver"] == "r1");
    let second = receiver(&from("127.0.0.1"), "r2", &dir.path("c"), &[]);
    let end = other.end().expect(9);
    send.end().expect(0);
    first.end().expect(0);
    second.end().expect(0);
    assert!(
        end.stderr.contains("IPv4 address with --from"),
        "{}",
        end.stderr
    );
}

#[test]
fn where_nothing_can_be_announced_that_is_said() {
    let dir = Scratch::new();
    let source = dir.file("source", 1000);
    let path = source.to_str().unwrap();
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        println!("skipped: this machine has no IPv6 loopback");
        return;
    }
    let args = ["send", path, "--json", "--port", "0", "--interface", "::1"];
    let mut send = Run::start(args);
    let listening = send.until("listening", |_| true);
    assert_eq!(listening["announced"], false);
    let notice = send.until("notice", |_| true);
    assert!(
        notice["text"].as_str().unwrap().contains("--from"),
        "{notice}"
    );
    let copy = dir.path("copy");
    let end = Run::start([
        "recv",
        copy.to_str().unwrap(),
        "--any",
        "--interface",
        "::1",
    ])
    .end();
    let end = end.expect(2);
    assert!(end.stderr.contains("--from"), "{}", end.stderr);
}

#[test]
fn what_is_tried_in_vain_is_told() {
    let dir = Scratch::new();
    let mut recv = receiver("127.0.0.1:9", "r0", &dir.path("copy"), &[]);
    let trying = recv.until("trying", |_| true);
    assert_eq!(trying["from"], "127.0.0.1:9");
    let reason = trying["reason"].as_str().unwrap();
    assert!(reason.contains("fabricast send"), "{reason}");
}

#[test]
fn into_a_directory_under_the_senders_name() {
    let dir = Scratch::new();
    let source = dir.file("some name.bin", 100_000);
    std::fs::create_dir(dir.path("to")).unwrap();
    let (send, address) = sender(&source, &[QUIET]);
    let recv = receiver(&address, "r0", &dir.path("to"), &[]);
    send.end().expect(0);
    recv.end().expect(0);
    same(&source, &dir.path("to/some name.bin"));
}

#[test]
fn permissions_travel() {
    use std::os::unix::fs::PermissionsExt;
    let dir = Scratch::new();
    let source = dir.file("source", 1000);
    set_mode(&source, 0o500);
    let (send, address) = sender(&source, &[QUIET]);
    let copy = dir.path("copy");
    let recv = receiver(&address, "r0", &copy, &[]);
    send.end().expect(0);
    recv.end().expect(0);
    assert_eq!(copy.metadata().unwrap().permissions().mode() & 0o777, 0o500);
}

#[test]
fn an_existing_file_is_replaced_only_by_force() {
    let dir = Scratch::new();
    let source = dir.file("source", 100_000);
    let copy = dir.path("copy");
    std::fs::write(&copy, "mine").unwrap();
    // Without --force the receiver does not even connect.
    let end = receiver("127.0.0.1:9", "r0", &copy, &[]).end().expect(1);
    assert!(end.stderr.contains("--force"), "{}", end.stderr);
    assert_eq!(std::fs::read(&copy).unwrap(), b"mine");

    let (send, address) = sender(&source, &[QUIET]);
    let recv = receiver(&address, "r0", &copy, &["--force"]);
    send.end().expect(0);
    recv.end().expect(0);
    same(&source, &copy);
}

/// A receiver that finds its sender by the name of the file: other tests may announce something on
/// this loopback too.
fn finder(pattern: &str, dest: &Path, args: &[&str]) -> Run {
    let dest = dest.to_str().unwrap();
    let fixed = ["recv", dest, "--json", "--interface", "127.0.0.1", "--name"];
    Run::start(fixed.iter().chain(&[pattern]).chain(args))
}

#[test]
fn the_sender_is_found_without_its_address() {
    use std::os::unix::fs::PermissionsExt;
    let dir = Scratch::new();
    let name = format!("found-{}", std::process::id());
    let source = dir.file(&name, 100_000);
    set_mode(&source, 0o777);
    let (send, _) = sender(&source, &[]);
    std::fs::create_dir(dir.path("to")).unwrap();
    let pattern = format!("f[a-o]?nd-{}*", std::process::id());
    let recv = finder(&pattern, &dir.path("to"), &[]);
    send.end().expect(0);
    recv.end().expect(0);
    let copy = dir.path("to").join(name);
    same(&source, &copy);
    // Any host can announce a file, so a file found that way must not be executable.
    let mode = copy.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o733, 0o600, "{mode:o}");
}

/// Finding 12: a second announcement ended every receiver with exit code 2.
#[test]
fn of_several_senders_none_is_taken_until_one_remains() {
    let dir = Scratch::new();
    let [a, b] = ["a", "b"].map(|s| format!("several-{}-{s}", std::process::id()));
    let source = dir.file(&a, 100_000);
    let (send, _) = sender(&source, &[]);
    let (other, _) = sender(&dir.file(&b, 1000), &[]);
    let copy = dir.path("copy");
    let both = format!("several-{}-*", std::process::id());
    let late = finder(&both, &dir.path("late"), &["--start-timeout", "500ms"]);
    let mut recv = finder(&both, &copy, &[]);
    let trying = recv.until("trying", |_| true);
    let reason = trying["reason"].as_str().unwrap();
    for word in ["several", "--from", "--name", &a, &b] {
        assert!(reason.contains(word), "{word}: {reason}");
    }
    let end = late.end().expect(5);
    assert!(
        end.stderr.contains(&a) && end.stderr.contains(&b),
        "{}",
        end.stderr
    );
    other.signal(rustix::process::Signal::KILL);
    send.end().expect(0);
    recv.end().expect(0);
    same(&source, &copy);
}

#[test]
fn a_receiver_may_be_there_first() {
    let dir = Scratch::new();
    let source = dir.file("source", 100_000);
    // A port that is free now, and most likely still in a moment.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = port.local_addr().unwrap().to_string();
    let number = port.local_addr().unwrap().port().to_string();
    drop(port);
    let copy = dir.path("copy");
    let mut recv = receiver(&address, "r0", &copy, &[]);
    recv.until("searching", |_| true);
    let path = source.to_str().unwrap();
    let options = [
        "--json",
        "--interface",
        "127.0.0.1",
        "--port",
        &number,
        QUIET,
    ];
    let send = Run::start(["send", path].iter().chain(&options));
    send.end().expect(0);
    recv.end().expect(0);
    same(&source, &copy);
}

#[test]
fn it_starts_without_those_who_do_not_come() {
    let dir = Scratch::new();
    let source = dir.file("source", 100_000);
    let args = [QUIET, "--min-receivers", "3", "--max-wait", "300ms"];
    let (mut send, address) = sender(&source, &args);
    let copy = dir.path("copy");
    let recv = receiver(&address, "r0", &copy, &[]);
    let starting = send.until("starting", |_| true);
    assert_eq!(starting["receivers"], 1);
    send.end().expect(0);
    recv.end().expect(0);
}

#[test]
fn one_too_many_is_turned_away() {
    let dir = Scratch::new();
    let source = dir.file("source", 30_000_000);
    let args = [
        QUIET,
        "--min-receivers",
        "1",
        "--min-wait",
        "5s",
        "--max-receivers",
        "2",
    ];
    let (mut send, address) = sender(&source, &args);
    let first = receiver(&address, "r0", &dir.path("copy-0"), &[]);
    send.until("connected", |_| true);
    // The second receiver makes it start at once, although five seconds have not passed.
    let second = receiver(&address, "r1", &dir.path("copy-1"), &["--inject-loss", "1"]);
    send.until("starting", |_| true);
    let third = receiver(&address, "r2", &dir.path("copy-2"), &[]);
    third.end().expect(9);
    send.end().expect(0);
    first.end().expect(0);
    second.end().expect(0);
    assert_eq!(dir.names(), ["copy-0", "copy-1", "source"]);
}

#[test]
fn a_checksum_finds_what_was_damaged_on_the_way() {
    let dir = Scratch::new();
    let source = dir.file("source", 12_000_000);
    let loss = ["--inject-loss", "1", "--datagram", "1472"];
    let recv = [&loss[..], &["--inject-corruption", "2"]].concat();
    for checksum in ["additive", "crc32c"] {
        // The sender receives only feedback, so few datagrams that more of them must be damaged.
        let send = ["--inject-corruption", "20", "--checksum", checksum];
        let send = [&loss[..], &send].concat();
        let (sent, received) = transfer(&dir, &source, 3, &send, &recv);
        let traffic = &sent.one("summary")["traffic"];
        assert!(traffic["corrupt"].as_u64() > Some(0), "{traffic}");
        for i in 0..received.len() {
            // No wrong byte was written: no block had to be sent again because of its hash.
            assert_eq!(sent.result(&format!("r{i}"))["tally"]["mended"], 0);
        }
    }
}

/// One in a hundred questions and answers arrives, and TCP replaces none of them (P3.9).
#[test]
fn nine_of_ten_datagrams_may_be_lost_both_ways() {
    let dir = Scratch::new();
    let source = dir.file("source", 1_000_000);
    let (send, address) = sender(&source, &["--no-announce", "--min-receivers", "2"]);
    let run = |name: &str| {
        let lossy = ["--inject-loss", "90"];
        receiver(&address, name, &dir.path(name), &lossy)
    };
    let (a, b) = (run("a"), run("b"));
    let sent = send.end().expect(0);
    for (name, recv) in [("a", a), ("b", b)] {
        recv.end().expect(0);
        same(&source, &dir.path(name));
        assert_eq!(sent.result(name)["tally"]["mended"], 0, "{sent:#?}");
    }
}

/// A receiver into this directory, at a terminal. Other tests may announce something on this
/// loopback too.
fn asks(dir: &Scratch, args: &[&str]) -> Command {
    let mut command = Command::new(FABRICAST);
    command.arg("recv").arg(dir.path("to"));
    command.args(["--interface", "127.0.0.1"]).args(args);
    command
}

#[test]
fn the_question_escapes_the_name_and_is_asked_again_after_a_slip() {
    let dir = Scratch::new();
    let source = dir.file("rtl\u{202e}gpj.exe", 1);
    std::fs::create_dir(dir.path("to")).unwrap();
    let (_send, _) = sender(&source, &[]);
    let mut recv = Terminal::start(asks(&dir, &[]));
    let said = recv.until("rtl\\u{202e}gpj.exe (1 B)");
    let warned = said.contains("rtl\\u{202e}gpj.exe is not used as a file name in a directory");
    assert!(warned && !said.contains('\u{202e}'), "{said}");
    recv.input("maybe\n");
    recv.until("Please answer");
    recv.input("\n");
    assert_eq!(recv.end(), Some(9));
    // An error message escapes the name in the same way.
    let run = finder("rtl?gpj.exe", &dir.path("to"), &["--start-timeout", "2s"]);
    let end = run.end().expect(5);
    assert!(end.stderr.contains("u{202e}"), "{}", end.stderr);
}

/// Enter pressed before any receiver is connected starts nothing later.
#[test]
fn enter_counts_when_somebody_is_there() {
    let dir = Scratch::new();
    let source = dir.file("source", 1000);
    let mut command = Command::new(FABRICAST);
    command.arg("send").arg(&source);
    command.args(["--port", "0", "--interface", "127.0.0.1", "--no-announce"]);
    let mut send = Terminal::start(command);
    let said = send.until("Press Enter").to_owned();
    send.input("\n");
    send.until("nobody is connected yet");
    let (_, from) = said.split_once("--from ").unwrap();
    let from = from.split_whitespace().next().unwrap();
    let recv = receiver(from, "r0", &dir.path("copy"), &[]);
    let said = send.until("1 connected");
    assert!(!said.contains("Starting"), "{said}");
    send.input("\n");
    recv.end().expect(0);
    assert_eq!(send.end(), Some(0));
    same(&source, &dir.path("copy"));
}

#[test]
fn nothing_is_asked_quietly_or_in_the_background() {
    let dir = Scratch::new();
    std::fs::create_dir(dir.path("to")).unwrap();
    let mut quiet = Terminal::start(asks(&dir, &["--quiet"]));
    quiet.until("with --quiet or --json nothing is asked");
    assert_eq!(quiet.end(), Some(2));
    // The terminal belongs to a shell with job control; the receiver is its background job.
    let mut shell = Command::new("setsid");
    shell.args(["-c", "sh", "-c", "set -m; \"$@\" & wait $!", "sh"]);
    let recv = asks(&dir, &[]);
    shell.arg(recv.get_program()).args(recv.get_args());
    let mut behind = Terminal::start(shell);
    behind.until("in the background nothing can be asked");
    assert_eq!(behind.end(), Some(2));
}

#[test]
fn a_port_that_is_none_is_called_so() {
    let dir = Scratch::new();
    let end = receiver("127.0.0.1:99999", "r0", &dir.path("copy"), &[])
        .end()
        .expect(2);
    assert!(end.stderr.contains("its port"), "{}", end.stderr);
}
