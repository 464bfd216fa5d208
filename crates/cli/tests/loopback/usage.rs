//! Arguments, names and outputs that the command cannot use, and odd ones that it can.

use std::path::Path;
use std::process::Command;

use crate::common::hosts::Hosts;
use crate::common::tree::{described, recv, send_by};
use crate::common::{
    AT_ONCE, FABRICAST, Run, Scratch, bound_by_permissions, receiver, same, sender, set_mode,
};
use serde_json::Value;

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

/// Arguments, the exit code, and words of the message.
type Case<'a> = (&'a [&'a str], i32, &'a str);

fn say_so(cases: &[Case<'_>]) {
    for (args, code, words) in cases {
        let end = Run::start(*args).end();
        assert_eq!(end.code, Some(*code), "{args:?}: {end:?}");
        assert!(end.stderr.contains(words), "{args:?}: {}", end.stderr);
    }
}

#[test]
fn bad_usage_says_so() {
    let dir = Scratch::new();
    let source = dir.file("source", 10);
    let source = source.to_str().unwrap();
    say_so(&[
        (&[], 2, "Usage"),
        (&["frobnicate"], 2, "frobnicate"),
        (&["send"], 2, "SOURCE"),
        (&["send", "-", source], 2, "is sent alone"),
        (&["send", source, "--name", "x"], 2, "--name names standard"),
        (
            &["send", "-", "--slow", "demote"],
            2,
            "than demote (--slow)",
        ),
        (&["send", "-", "--name", "a/b"], 2, "no name for a file"),
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
        (&["send", source, "--slow", "=drop"], 2, "goes before '='"),
        (
            &["send", source, "--require", "a,,b"],
            2,
            "a value is required",
        ),
        (&["send", source, "--scheme", "ibrm"], 2, "or ibrmp alone"),
        (&["copy", source], 2, "goes before HOSTS:DEST"),
        (
            &["copy", source, "--late", "refuse", "h[1-2:/tmp"],
            2,
            "bracket is not closed",
        ),
        (&["send", source, "--inject-loss", "100"], 2, "90"),
        (&["send", source, "--datagram", "31"], 2, "512 to 65507"),
        (&["send", source, "--datagram", "100k"], 2, "512 to 65507"),
        (&["completions", "csh"], 2, "bash"),
        (&["manual", "/dev/null/man1"], 1, "/dev/null/man1"),
    ]);
}

#[test]
fn bad_usage_of_a_receiver_says_so() {
    let dir = Scratch::new();
    let source = dir.file("source", 10);
    let source = source.to_str().unwrap();
    let place = dir.path("");
    let place = place.to_str().unwrap();
    say_so(&[
        (&["recv", "--dir", source, "--from", "h"], 1, "making"),
        (&["recv", "x", "--dir", place], 2, "cannot be used with"),
        (
            &["recv", "x", "--any", "--datagram", "511"],
            2,
            "512 to 65507",
        ),
        (&["recv"], 2, "DEST"),
        (&["recv", "-"], 2, "--from HOST, or take a file"),
        (
            &["recv", "-", "--from", "h", "--delete"],
            2,
            "with --delete name a directory",
        ),
        (
            &["recv", "x", "--any", "--delete"],
            2,
            "cannot be used with",
        ),
        (
            &["recv", "x", "--name", "y", "--delete"],
            2,
            "cannot be used with",
        ),
        (&["recv", "x", "--delete"], 2, "--from"),
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
        (&["recv", "/dev/stdout", "--any", "--force"], 2, "or `-`"),
        (&["recv", "x", "--from", "no such host"], 2, "no such host"),
    ]);
}

#[test]
fn a_follower_needs_a_directory_and_a_program() {
    let dir = Scratch::new();
    let (file, place) = (dir.file("hook", 10), dir.path(""));
    let (file, place) = (file.to_str().unwrap(), place.to_str().unwrap());
    for (args, words) in [
        (&["-"][..], "name a directory"),
        (&[place, "--keep-for", "0"], "more than 0"),
        (
            &[place, "--hook", file],
            "hook is not executable (chmod +x)",
        ),
    ] {
        let end = Run::start([&["recv", "--from", "h", "--follow"], args].concat());
        let end = end.end().expect(2);
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
fn results_that_cannot_be_written_are_a_failure() {
    let dir = Scratch::new();
    let source = dir.file("source", 100_000);
    let (send, address) = sender(&source, &["--no-announce", "--min-receivers", "1"]);
    let copy = dir.path("copy");
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let recv = Command::new(FABRICAST)
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

/// No receiver takes a hidden name at the top, and the sender knows that before anybody comes.
#[test]
fn a_name_that_no_receiver_takes_is_refused_at_once() {
    let dir = Scratch::new();
    let [hidden, plain] = [".hidden", "plain"].map(|name| dir.file(name, 100));
    let [hidden, plain] = [&hidden, &plain].map(|path| path.to_str().unwrap());
    for args in [
        &["send", plain, hidden][..],
        &["copy", hidden, "node1:/tmp"],
    ] {
        let end = Run::start(args).end().expect(2);
        assert!(
            end.stderr.contains("the directory that it lies in"),
            "{}",
            end.stderr
        );
    }
}

/// A destination that its user may not write to is found before the receiver takes part.
#[test]
fn a_destination_that_cannot_be_written_is_refused_at_once() {
    let dir = Scratch::new();
    let to = dir.path("to");
    std::fs::create_dir(&to).unwrap();
    set_mode(&to, 0o555);
    let mut command = bound_by_permissions();
    command.args(["recv", to.to_str().unwrap(), "--from", "127.0.0.1:9"]);
    let end = Run::spawn(command).end().expect(1);
    assert!(
        end.stderr.contains("cannot make files in"),
        "{}",
        end.stderr
    );
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

#[test]
fn a_name_that_is_no_utf_8_is_told_of() {
    use std::os::unix::ffi::OsStrExt;
    let dir = Scratch::new();
    let path = dir
        .path("x")
        .with_file_name(std::ffi::OsStr::from_bytes(b"a\xff"));
    std::fs::write(&path, "bytes").unwrap();
    let mut command = Command::new(FABRICAST);
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

    // A destination whose name is not UTF-8 works too, and JSON lines show it.
    let source = dir.file("source", 1000);
    let (send, address) = sender(&source, &["--no-announce"]);
    let mut command = Command::new(FABRICAST);
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

/// A file that cannot be read is named before anybody has to wait for it, and nothing is offered if
/// none can be read.
#[test]
fn what_cannot_be_read_is_named_at_once() {
    let dir = Scratch::new();
    let set = dir.path("set");
    std::fs::create_dir(&set).unwrap();
    for name in ["open", "secret"] {
        std::fs::write(set.join(name), name).unwrap();
    }
    set_mode(&set.join("secret"), 0o000);
    let fabricast = |args: &[&str]| {
        let words = match rustix::process::geteuid().is_root() {
            true => &[
                "setpriv",
                "--reuid",
                "65534",
                "--clear-groups",
                "--",
                FABRICAST,
            ][..],
            false => &[FABRICAST][..],
        };
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).args(args).output()
    };
    if !fabricast(&["--version"]).is_ok_and(|end| end.status.success()) {
        println!("skipped: another user cannot run the command here");
        return;
    }
    let dry = fabricast(&["send", set.to_str().unwrap(), "--dry-run"]).unwrap();
    let told = String::from_utf8(dry.stderr).unwrap();
    assert!(
        dry.status.success() && told.contains("secret cannot be read"),
        "{told}"
    );
    let secret = set.join("secret");
    let args = [
        "send",
        secret.to_str().unwrap(),
        "--interface",
        "127.0.0.1",
        "--port",
        "0",
    ];
    let end = fabricast(&args).unwrap();
    let told = String::from_utf8(end.stderr).unwrap();
    assert_eq!(end.status.code(), Some(1), "{told}");
    assert!(told.contains("secret cannot be read"), "{told}");
}

/// A directory that the sender may not read is named, and the others go on. At a receiver that
/// deletes what is not sent, what it holds stays.
#[test]
fn a_directory_that_cannot_be_read_fails_by_name() {
    let dir = Scratch::new();
    let (set, to) = (dir.path("set"), dir.path("to"));
    // One whose names cannot be read, and one of whose entries nothing can be read.
    let closed = [("closed", 0o000), ("odd", 0o444)];
    for (name, _) in closed {
        std::fs::create_dir_all(set.join(name)).unwrap();
        std::fs::create_dir_all(to.join("set").join(name)).unwrap();
        std::fs::write(set.join(name).join("secret"), "secret").unwrap();
        std::fs::write(to.join("set").join(name).join("mine"), "mine").unwrap();
    }
    std::fs::write(set.join("file"), "file").unwrap();
    std::fs::write(to.join("set/gone"), "gone").unwrap();
    for (name, closed) in closed {
        set_mode(&set.join(name), closed);
    }
    let args = ["--min-receivers", "2"];
    let (sender, address) = send_by(bound_by_permissions(), &[&set], &args);
    let run = recv(&address, "r0", &to, &["--force", "--delete"]);
    let discards = ["recv", "--json", "--discard", "--from", &address];
    let end = Run::start(discards).end().expect(10);
    assert_eq!(end.one("done")["failed"].as_array().unwrap().len(), 2);
    run.end().expect(10);
    let end = sender.end().expect(10);
    // An ordinary user receives it again, though the directories are closed here, too, by now.
    let (sender, address) = send_by(bound_by_permissions(), &[&set], &[]);
    let mut again = bound_by_permissions();
    again.args(["recv", "--quiet", "--force", "--from", &address, "--dir"]);
    let again = again.arg(&to).output().unwrap();
    assert_eq!(again.status.code(), Some(10), "{again:?}");
    sender.end().expect(10);
    for (name, _) in closed {
        let text = format!("set/{name} cannot be read");
        let says = |e: &&Value| e["text"].as_str().unwrap().contains(&text);
        assert_eq!(end.all("notice").filter(says).count(), 1, "{end:?}");
        let failed = |e: &&Value| e["path"].as_str().unwrap().ends_with(name);
        assert_eq!(end.all("file_failed").filter(failed).count(), 1, "{end:?}");
        set_mode(&to.join("set").join(name), 0o700);
        assert!(to.join("set").join(name).join("mine").exists());
        assert!(!to.join("set").join(name).join("secret").exists());
    }
    assert_eq!(std::fs::read(to.join("set/file")).unwrap(), b"file");
    assert!(!to.join("set/gone").exists());

    // Alone it is an error, and beside another source it is not.
    for (others, code) in [(None, 1), (Some(set.join("file")), 0)] {
        let mut command = bound_by_permissions();
        command.arg("send").arg(set.join("closed")).args(others);
        let end = command.arg("--dry-run").output().unwrap();
        let told = String::from_utf8(end.stderr).unwrap();
        assert_eq!(end.status.code(), Some(code), "{told}");
        assert!(told.contains("closed cannot be read"), "{told}");
    }
    for (name, _) in closed {
        set_mode(&set.join(name), 0o700);
    }
}

/// An ordinary user receives a directory again that its mode closes for changes: what has changed
/// in it comes, and it has the set's mode in the end.
#[test]
fn a_directory_that_is_closed_for_changes_is_received_again() {
    let dir = Scratch::new();
    let (set, to) = (dir.path("set"), dir.path("to"));
    let inner = set.join("closed/inner");
    std::fs::create_dir_all(&inner).unwrap();
    std::fs::create_dir(&to).unwrap();
    std::fs::write(inner.join("gone"), "gone").unwrap();
    let close = |top: &Path, mode| {
        for directory in ["closed/inner", "closed"] {
            set_mode(&top.join(directory), mode);
        }
    };
    for text in ["old", "the new one"] {
        std::fs::write(inner.join("file"), text).unwrap();
        close(&set, 0o555);
        let (sender, address) = send_by(bound_by_permissions(), &[&set], &[]);
        let mut receiver = bound_by_permissions();
        receiver.args(["recv", "--quiet", "--force", "--delete", "--from", &address]);
        let end = receiver.arg("--dir").arg(&to).output().unwrap();
        assert_eq!(end.status.code(), Some(0), "{end:?}");
        sender.end().expect(0);
        assert_eq!(described(&to.join("set")), described(&set));
        close(&set, 0o755);
        let _ = std::fs::remove_file(inner.join("gone"));
    }
    close(&to.join("set"), 0o755);
}

/// With `--quiet` a copy that goes well prints nothing. One that does not prints which hosts lack
/// the files, and which files were not sent, and why.
#[test]
fn a_quiet_copy_prints_errors_alone() {
    let hosts = Hosts::new(&["a", "b"]);
    let source = hosts.dir.file("source", 100_000);
    let quietly = |args: &[&str]| {
        let args = [&["--quiet", "--force"], args].concat();
        hosts.command(&source, "a,b:", &args).output().unwrap()
    };
    let end = quietly(&[]);
    let told = String::from_utf8(end.stderr).unwrap();
    assert_eq!((end.status.code(), &*told), (Some(0), ""));
    assert!(end.stdout.is_empty());
    hosts.behave("b", "echo 'no route' >&2; exit 255");
    for (args, code) in [(&[][..], 4), (&["--min-receivers", "2"], 3)] {
        let end = quietly(args);
        let told = String::from_utf8(end.stderr).unwrap();
        assert_eq!(end.status.code(), Some(code), "{told}");
        assert!(end.stdout.is_empty());
        let lines: Vec<&str> = told.lines().collect();
        let all = lines.iter().all(|line| line.starts_with("fabricast: "));
        assert!(all, "{told}");
        let of_b = "fabricast: b: its launcher ended with exit code 255";
        let first = lines.iter().position(|line| *line == of_b).expect(&told);
        assert_eq!(lines[first + 1], "fabricast:     | no route", "{told}");
        // The sender gives up for want of receivers, and then the one that came fails, too.
        assert_eq!(told.contains("fabricast: a: "), code == 3, "{told}");
    }
    // What a receiver has told is not told again as its launcher's last line.
    let end = hosts.command(&source, "a:", &["--quiet"]).output().unwrap();
    let told = String::from_utf8(end.stderr).unwrap();
    assert_eq!(end.status.code(), Some(3), "{told}");
    assert_eq!(told.matches("exists already").count(), 1, "{told}");
    let mut command = bound_by_permissions();
    let secret = hosts.dir.file("secret", 1);
    set_mode(&secret, 0o000);
    command.arg("copy").args([&source, &secret]).arg("a:");
    let launch = format!("{} {{host}}", hosts.dir.path("launch").display());
    command.args(["--quiet", "--force", "--interface", "127.0.0.1"]);
    command.args(["--launch", &launch, "--remote-fabricast"]);
    let end = command.arg(FABRICAST).output().unwrap();
    let told = String::from_utf8(end.stderr).unwrap();
    assert_eq!(end.status.code(), Some(10), "{told}");
    assert!(
        told.contains("not sent: ") && told.contains("secret"),
        "{told}"
    );
    hosts.expect_none_left();
}
