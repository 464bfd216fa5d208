//! Feeds: `fabricast serve` and receivers that follow it, as processes on the loopback.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::common::control::Peer;
use crate::common::feed::{
    contents, ends, feed_in, follow, publish, serve, until_all, until_entry, wait_until,
};
use crate::common::tree::tree;
use crate::common::{self, Run, Scratch};
use rustix::process::Signal;
use serde_json::{Value, json};

/// Three publications reach two followers. One of them is killed in the midst of the second and
/// started again; another one comes after everything.
#[test]
fn all_followers_have_the_same_in_the_end() {
    let dir = Scratch::new();
    let feed = feed_in(&dir);
    let [a, b, late] = ["one", "two", "late"].map(|name| dir.path(name));
    let (sender, address) = serve(&feed, "0", &["--rate", "10MB/s"]);
    let mut runs = [&a, &b].map(|dest| follow(&address, dest, &[]));
    fs::rename(tree(&dir), feed.join("tree")).unwrap();
    runs.iter_mut()
        .for_each(|run| drop(until_entry(run, "tree")));
    fs::rename(dir.file("big", 20_000_000), feed.join("big")).unwrap();
    let [mut stays, mut killed] = runs;
    killed.until("publication", |_| true);
    killed.until_share_of("placed", 40);
    killed.signal(Signal::KILL);
    assert_eq!(killed.end().code, None);
    let mut again = follow(&address, &b, &[]);
    publish(&feed, "last", b"of three");
    let mut after = follow(&address, &late, &[]);
    for run in [&mut stays, &mut again, &mut after] {
        until_all(run, 3);
    }
    for dest in [&a, &b, &late] {
        assert_eq!(contents(&dest.join("feed")), contents(&feed));
    }
    let end = ends(stays);
    assert_eq!(end.all("entry").count(), 3, "{end:#?}");
    let end = ends(again);
    assert!(end.all("resumed").next().is_some(), "{end:#?}");
    ends(after);
    ends(sender);
}

/// The feed is killed while it sends, and started again: its followers wait, and get the rest.
#[test]
fn a_feed_that_was_killed_is_started_again() {
    let dir = Scratch::new();
    let feed = feed_in(&dir);
    publish(&feed, "first", b"1");
    let (sender, address) = serve(&feed, "0", &["--rate", "10MB/s"]);
    let mut run = follow(&address, &dir.path("to"), &[]);
    until_all(&mut run, 1);
    fs::rename(dir.file("big", 20_000_000), feed.join("big")).unwrap();
    run.until("publication", |_| true);
    run.until_share_of("placed", 40);
    sender.signal(Signal::KILL);
    run.until("waiting", |_| true);
    sender.end();
    let (_, port) = address.rsplit_once(':').unwrap();
    let (sender, _) = serve(&feed, port, &[]);
    run.until("resumed", |e| e["bytes"].as_u64() > Some(0));
    until_all(&mut run, 2);
    assert_eq!(contents(&dir.path("to/feed")), contents(&feed));
    let end = ends(run);
    // What it had did not come again, and it has said once that it waits.
    let names: Vec<&Value> = end.all("entry").map(|e| &e["name"]).collect();
    assert_eq!(names, ["first", "big"]);
    end.one("waiting");
    ends(sender);
}

/// A follower that starts before the feed waits for it.
#[test]
fn a_follower_waits_for_a_feed_that_is_not_there_yet() {
    let dir = Scratch::new();
    let feed = feed_in(&dir);
    let (sender, address) = serve(&feed, "0", &[]);
    ends(sender);
    let mut run = follow(&address, &dir.path("to"), &[]);
    run.until("waiting", |_| true);
    publish(&feed, "a", b"a");
    let (_, port) = address.rsplit_once(':').unwrap();
    let (sender, _) = serve(&feed, port, &["--name", "other"]);
    until_entry(&mut run, "a");
    assert_eq!(fs::read(dir.path("to/other/a")).unwrap(), b"a");
    ends(run);
    ends(sender);
}

/// What is changed comes again, what is not complete does not come, and what followers have does
/// not come again.
#[test]
fn only_what_is_new_or_changed_is_sent() {
    let dir = Scratch::new();
    let feed = feed_in(&dir);
    for name in [".hidden", "a.part", "a.partial", ".a.x7Gq2k"] {
        fs::write(feed.join(name), "not complete").unwrap();
    }
    fs::create_dir(feed.join("d")).unwrap();
    fs::write(feed.join("d/.b.x7Gq2k"), "not complete").unwrap();
    publish(&feed, "d/b", b"b");
    publish(&feed, "excluded.o", b"");
    let (sender, address) = serve(&feed, "0", &["--exclude", "*.o"]);
    let mut run = follow(&address, &dir.path("to"), &["--delete"]);
    until_all(&mut run, 1);
    fs::write(dir.path("to/feed/beside"), "mine").unwrap();
    publish(&feed, "d/e", b"e");
    until_entry(&mut run, "d");
    fs::remove_file(feed.join("d/e")).unwrap();
    until_entry(&mut run, "d");
    publish(&feed, "c", b"c");
    until_entry(&mut run, "c");
    publish(&feed, "c", b"another one");
    until_entry(&mut run, "c");
    until_all(&mut run, 2);
    fs::remove_file(feed.join("c")).unwrap();
    until_all(&mut run, 1);
    let names = |path: &str| {
        let entries = fs::read_dir(dir.path(path)).unwrap();
        let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name()).collect();
        names.retain(|name| !name.as_encoded_bytes().starts_with(b".fabricast-feed."));
        names.sort();
        names
    };
    assert_eq!(names("to/feed"), ["beside", "c", "d"]);
    assert_eq!(names("to/feed/d"), ["b"]);
    assert_eq!(fs::read(dir.path("to/feed/c")).unwrap(), b"another one");
    let end = ends(run);
    let names: Vec<&Value> = end.all("entry").map(|e| &e["name"]).collect();
    assert_eq!(names, ["d", "d", "d", "c", "c"]);
    ends(sender);
}

/// A file that is written while it is sent fails, and comes when it is quiet. A follower that
/// cannot store it, or does not want it, holds nobody back.
#[test]
fn a_publication_that_fails_ends_nothing() {
    let dir = Scratch::new();
    let feed = feed_in(&dir);
    let (mut sender, address) = serve(&feed, "0", &["--rate", "30MB/s"]);
    let [to, small, blocked] = ["to", "small", "blocked"].map(|name| dir.path(name));
    fs::create_dir_all(blocked.join("feed/big/in the way")).unwrap();
    let mut run = follow(&address, &to, &[]);
    let mut limited = follow(&address, &small, &["--max-size", "1M"]);
    let mut other = follow(&address, &blocked, &[]);
    // Longer than what the sender reads ahead.
    fs::rename(dir.file("big", 120_000_000), feed.join("big")).unwrap();
    run.until_share_of("placed", 10);
    let changed = fs::read(dir.file("changed", 5_000_000)).unwrap();
    fs::write(feed.join("big"), changed).unwrap();
    sender.until("error", |e| e["code"] == 10);
    other.until("publication_failed", |e| {
        e["reason"]
            .as_str()
            .unwrap()
            .contains("is a directory here")
    });
    publish(&feed, "little", b"!");
    for run in [&mut limited, &mut other] {
        until_entry(run, "little");
    }
    until_all(&mut run, 2);
    until_all(&mut limited, 2);
    assert_eq!(contents(&to.join("feed")), contents(&feed));
    let end = ends(limited);
    assert!(end.all("publication_failed").next().is_none(), "{end:#?}");
    assert!(other.last("catalogue")["wanted"] != 0);
    for run in [run, other] {
        ends(run);
    }
    sender.signal(Signal::TERM);
    sender.end().expect(0);
}

/// Short entries share a transfer. One of them that cannot be stored does not hold the others back.
#[test]
fn one_short_entry_in_the_way_holds_no_others_back() {
    let dir = Scratch::new();
    let feed = feed_in(&dir);
    for n in 0..6 {
        publish(&feed, &format!("f{n:02}"), &[n]);
    }
    let to = dir.path("to");
    fs::create_dir_all(to.join("feed/f03/in the way")).unwrap();
    let (sender, address) = serve(&feed, "0", &[]);
    let mut run = follow(&address, &to, &[]);
    run.until("publication_failed", |e| {
        e["entries"].as_array().unwrap().len() == 6
    });
    run.until("catalogue", |e| e["entries"] == 6 && e["wanted"] == 1);
    // It comes when nothing is in its way.
    fs::remove_dir_all(to.join("feed/f03")).unwrap();
    until_all(&mut run, 6);
    assert_eq!(contents(&to.join("feed")), contents(&feed));
    ends(run);
    ends(sender);
}

/// A program that notes its arguments, one a line of `out`, in hexadecimal.
fn noting(dir: &Scratch, more: &str) -> String {
    let script = dir.path("hook script.sh");
    let text = format!(
        "#!/bin/sh\nfor word; do printf %s \"$word\" | od -An -v -tx1 | tr -d ' \\n'; echo; done \
         >>'{}'\n{more}\n",
        dir.path("out").display()
    );
    fs::write(&script, text).unwrap();
    format!("sh '{}' 'a b'", script.display())
}

/// The arguments that hooks have noted.
fn noted(dir: &Scratch) -> Vec<Vec<u8>> {
    let text = fs::read_to_string(dir.path("out")).unwrap();
    let byte = |two: &[u8]| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap();
    let line = |line: &str| line.as_bytes().chunks(2).map(byte).collect();
    text.lines().map(line).collect()
}

/// Whatever a file is called, a hook gets its path as one argument, and nothing is run by it.
#[test]
fn hooks_get_odd_names_as_one_argument() {
    let dir = Scratch::new();
    let feed = feed_in(&dir);
    let (sender, address) = serve(&feed, "0", &[]);
    let command = noting(&dir, "");
    let mut run = follow(&address, &dir.path("to"), &["--hook", &command]);
    let names = ["-rf", "a\nb", "$(touch run)", "'\"`;& |", "plain"];
    for name in names {
        publish(&feed, name, name.as_bytes());
    }
    for _ in names {
        let hook = run.until("hook", |_| true);
        assert_eq!(hook["result"], "success");
    }
    let folder = dir.path("to").canonicalize().unwrap().join("feed");
    let mut expected = Vec::new();
    for name in names {
        let path = folder.join(name);
        assert_eq!(fs::read(&path).unwrap(), name.as_bytes());
        expected.push(path.into_os_string().into_encoded_bytes());
    }
    let mut got = noted(&dir);
    assert_eq!(
        got.iter().filter(|word| *word == b"a b").count(),
        names.len()
    );
    got.retain(|word| word != b"a b");
    got.sort();
    expected.sort();
    assert_eq!(got, expected);
    ends(run);
    ends(sender);
}

/// Whether a process is gone, or only waits to be reaped.
fn has_ended(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.map_or(true, |stat| stat.contains(") Z "))
}

/// A hook that fails is told, one that hangs is killed with its children, and the feed goes on. One
/// that runs at the end is ended, and runs again at the next start.
#[test]
fn hooks_that_fail_or_hang_stop_nothing() {
    let dir = Scratch::new();
    let feed = feed_in(&dir);
    let (sender, address) = serve(&feed, "0", &[]);
    let to = dir.path("to");
    let command = noting(
        &dir,
        "case $FABRICAST_NAME in fails) exit 7;; hangs*) sleep 1000 & echo $! >>\"$0.pid\"; wait;; \
         esac\n[ \"$FABRICAST_FEED $FABRICAST_LEN\" = 'feed 1' ]",
    );
    let mut run = follow(
        &address,
        &to,
        &["--hook", &command, "--hook-timeout", "500ms"],
    );
    for name in ["fails", "hangs", "works"] {
        publish(&feed, name, b"1");
        let hook = run.until("hook", |e| e["name"] == name);
        let (result, reason) = match name {
            "fails" => ("failure", "exit code 7"),
            "hangs" => ("timeout", "too long"),
            _ => ("success", ""),
        };
        assert_eq!(hook["result"], result, "{hook}");
        assert!(
            hook["reason"].as_str().unwrap_or_default().contains(reason),
            "{hook}"
        );
    }
    ends(run);
    let args = ["--hook", &command];
    let mut run = follow(&address, &to, &args);
    publish(&feed, "hangs again", b"1");
    until_entry(&mut run, "hangs again");
    let pids = || fs::read_to_string(dir.path("hook script.sh.pid")).unwrap();
    wait_until(|| pids().lines().count() == 2);
    ends(run);
    for pid in pids().lines() {
        wait_until(|| has_ended(pid));
    }
    let mut run = follow(
        &address,
        &to,
        &[&args[..], &["--hook-timeout", "100ms"]].concat(),
    );
    let hook = run.until("hook", |_| true);
    assert_eq!(
        (&hook["name"], &hook["result"]),
        (&"hangs again".into(), &"timeout".into())
    );
    ends(run);
    ends(sender);
}

/// A hook that ends while a transfer runs is told at once, and does not run again if that transfer
/// is interrupted.
#[test]
fn a_hook_that_has_ended_does_not_run_again() {
    let dir = Scratch::new();
    let feed = feed_in(&dir);
    let (sender, address) = serve(&feed, "0", &["--rate", "10MB/s"]);
    let command = noting(&dir, "until [ -e \"$0.go\" ]; do sleep 0.01; done");
    let args = ["--hook", &command];
    let mut run = follow(&address, &dir.path("to"), &args);
    publish(&feed, "a", b"1");
    until_entry(&mut run, "a");
    fs::rename(dir.file("big", 60_000_000), feed.join("big")).unwrap();
    run.until_share_of("placed", 5);
    fs::write(dir.path("hook script.sh.go"), "").unwrap();
    assert_eq!(run.until("hook", |_| true)["name"], "a");
    let end = ends(run);
    assert_eq!(end.all("entry").count(), 1, "the transfer runs: {end:#?}");
    let mut run = follow(&address, &dir.path("to"), &args);
    assert_eq!(run.until("hook", |_| true)["name"], "big");
    ends(run);
    ends(sender);
}

/// A hook that stops the receiver is told as it has ended: it runs again only if it was cut short.
#[test]
fn a_hook_that_ends_with_the_receiver_is_noted() {
    let dir = Scratch::new();
    let feed = feed_in(&dir);
    let (sender, address) = serve(&feed, "0", &[]);
    let command = noting(&dir, "exec kill -TERM $PPID");
    let mut run = follow(&address, &dir.path("to"), &["--hook", &command]);
    publish(&feed, "a", b"1");
    until_entry(&mut run, "a");
    let end = run.end().expect(0);
    let result = &end.one("hook")["result"];
    let next = match result.as_str() {
        Some("stopped") => "a",
        _ => "b",
    };
    publish(&feed, "b", b"1");
    let mut run = follow(&address, &dir.path("to"), &["--hook", "true"]);
    assert_eq!(run.until("hook", |_| true)["name"], next, "{result}");
    ends(run);
    ends(sender);
}

/// Only what was received is removed, the oldest first, and it does not come again. A follower that
/// comes later gets the newest alone.
#[test]
fn retention_removes_only_what_was_received() {
    let dir = Scratch::new();
    let feed = feed_in(&dir);
    let (sender, address) = serve(&feed, "0", &[]);
    let [to, late, other] = ["to", "late", "other"].map(|name| dir.path(name));
    fs::create_dir_all(to.join("feed/own")).unwrap();
    fs::write(to.join("feed/own/file"), "mine").unwrap();
    fs::write(to.join("beside"), "mine").unwrap();
    let keep = ["--keep", "2"];
    let mut run = follow(&address, &to, &keep);
    let mut short = follow(&address, &other, &["--keep-for", "1ms"]);
    for (i, name) in ["a", "b", "c", "d"].iter().enumerate() {
        fs::create_dir(feed.join(".new")).unwrap();
        fs::write(feed.join(".new/file"), name).unwrap();
        std::os::unix::fs::symlink(to.join("beside"), feed.join(".new/link")).unwrap();
        fs::rename(feed.join(".new"), feed.join(name)).unwrap();
        until_entry(&mut run, name);
        if i >= 2 {
            run.until("removed", |_| true);
        }
        let removed = short.until("removed", |_| true);
        assert!(
            removed["path"].as_str().unwrap().ends_with(name),
            "{removed}"
        );
    }
    let names = |folder: &Path| {
        let entries = fs::read_dir(folder.join("feed")).unwrap();
        let names = entries.map(|e| e.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| !name.starts_with('.')).collect();
        names.sort();
        names
    };
    assert_eq!(names(&to), ["c", "d", "own"]);
    assert_eq!(names(&other), [""; 0]);
    // What takes the place of something that was received is not ours.
    ends(run);
    fs::remove_dir_all(to.join("feed/c")).unwrap();
    fs::create_dir(to.join("feed/.c")).unwrap();
    fs::write(to.join("feed/.c/file"), "mine").unwrap();
    fs::rename(to.join("feed/.c"), to.join("feed/c")).unwrap();
    let mut run = follow(&address, &to, &["--keep", "1"]);
    run.until("notice", |e| {
        e["text"]
            .as_str()
            .unwrap()
            .contains("is not what was received")
    });
    until_all(&mut run, 4);
    assert_eq!(names(&to), ["c", "d", "own"]);
    assert_eq!(fs::read(to.join("feed/c/file")).unwrap(), b"mine");
    for path in ["beside", "feed/own/file"] {
        assert_eq!(fs::read(to.join(path)).unwrap(), b"mine");
    }
    let mut after = follow(&address, &late, &keep);
    until_all(&mut after, 4);
    assert_eq!(names(&late), ["c", "d"]);
    for run in [run, short, after, sender] {
        ends(run);
    }
}

/// What Prometheus would read: the value of each metric by its name and labels.
fn scrape(address: &Value) -> BTreeMap<String, f64> {
    let mut stream = TcpStream::connect(address.as_str().unwrap()).unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, text) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(head.contains("openmetrics-text"), "{head}");
    assert!(text.ends_with("# EOF\n"), "{text}");
    let mut types = BTreeMap::new();
    let mut values = BTreeMap::new();
    for line in text.lines() {
        match line.strip_prefix("# TYPE ") {
            Some(typed) => {
                _ = typed
                    .split_once(' ')
                    .map(|(name, kind)| types.insert(name, kind))
            }
            None if line.starts_with('#') => {}
            None => {
                let (name, value) = line.rsplit_once(' ').unwrap();
                let base = name.split('{').next().unwrap();
                let base = base.strip_suffix("_total").unwrap_or(base);
                assert!(
                    types.contains_key(base) && base.starts_with("fabricast_"),
                    "{line}"
                );
                values.insert(name.to_owned(), value.parse().unwrap());
            }
        }
    }
    values
}

#[test]
fn metrics_say_what_has_come() {
    let dir = Scratch::new();
    let feed = feed_in(&dir);
    let (mut sender, address) = serve(&feed, "0", &["--metrics", "0"]);
    let sender_metrics = sender.last("serving")["metrics"].clone();
    assert!(sender_metrics.as_str().unwrap().starts_with("127.0.0.1:"));
    let args = ["--metrics", "0.0.0.0:0", "--hook", "false", "--keep", "1"];
    let mut run = follow(&address, &dir.path("to"), &args);
    let metrics = run.until("metrics", |_| true)["address"].clone();
    run.until("notice", |e| {
        e["text"].as_str().unwrap().contains("can read the metrics")
    });
    // Counters are there before anything has happened.
    for (metrics, names) in [
        (
            &metrics,
            [
                "publications_total{result=\"partial\"}",
                "hooks_total{result=\"timeout\"}",
            ],
        ),
        (
            &sender_metrics,
            [
                "publications_total{result=\"failure\"}",
                "receivers_total{state=\"lost\"}",
            ],
        ),
    ] {
        let values = scrape(metrics);
        for name in names {
            assert_eq!(values[&format!("fabricast_{name}")], 0.0);
        }
    }
    for name in ["a", "b"] {
        publish(&feed, name, b"12345");
        until_entry(&mut run, name);
    }
    wait_until(|| {
        let values = scrape(&metrics);
        let hooks = values.get("fabricast_hooks_total{result=\"failure\"}");
        hooks == Some(&2.0) && values["fabricast_wanted_entries"] == 0.0
    });
    sender.until("summary", |_| true);
    sender.until("summary", |_| true);
    let is = |values: &BTreeMap<String, f64>, name: &str, value: f64| {
        assert_eq!(
            values.get(&format!("fabricast_{name}")),
            Some(&value),
            "{name}: {values:#?}"
        );
    };
    let values = scrape(&metrics);
    for (name, value) in [
        ("publications_total{result=\"success\"}", 2.0),
        ("received_entries_total", 2.0),
        ("received_bytes_total", 10.0),
        ("hooks_total{result=\"failure\"}", 2.0),
        ("removed_entries_total", 1.0),
        ("connected", 1.0),
        ("wanted_entries", 0.0),
        ("feed_entries", 2.0),
        ("feed_bytes", 10.0),
    ] {
        is(&values, name, value);
    }
    assert!(values["fabricast_last_success_timestamp_seconds"] > 1.7e9);
    let values = scrape(&sender_metrics);
    for (name, value) in [
        ("publications_total{result=\"success\"}", 2.0),
        ("published_entries_total", 2.0),
        ("published_bytes_total", 10.0),
        ("receivers_total{state=\"verified\"}", 2.0),
        ("feed_entries", 2.0),
    ] {
        is(&values, name, value);
    }
    assert!(values["fabricast_wire_bytes_total"] > 0.0);
    ends(run);
    ends(sender);
}

/// A receiver that does not follow is told what it has found, and so is one that follows something
/// else.
#[test]
fn those_who_come_to_the_wrong_port_are_told() {
    let dir = Scratch::new();
    let feed = feed_in(&dir);
    let (sender, address) = serve(&feed, "0", &[]);
    let end = common::tree::recv(&address, "r", &dir.path("to"), &[])
        .end()
        .expect(9);
    let told = "has to follow it (--follow)";
    assert!(end.stderr.contains(told), "{}", end.stderr);
    let end = ends(sender);
    assert!(
        end.one("refused")["reason"]
            .as_str()
            .unwrap()
            .contains("this is a feed")
    );
    let (sender, address) = common::tree::send(&[&dir.file("f", 5)], &[]);
    let mut run = follow(&address, &dir.path("to"), &[]);
    let waiting = run.until("waiting", |_| true);
    assert!(
        waiting["reason"]
            .as_str()
            .unwrap()
            .contains("is there a feed"),
        "{waiting}"
    );
    ends(run);
    drop(sender);
}

/// A follower that wants everything and never comes holds the others up for a moment alone.
#[test]
fn a_follower_that_does_not_come_is_not_waited_for() {
    let dir = Scratch::new();
    let feed = feed_in(&dir);
    let (mut sender, address) = serve(&feed, "0", &[]);
    publish(&feed, "a", b"a");
    sender.until("catalogue", |e| e["entries"] == 1);
    let number = sender.last("catalogue")["number"].clone();
    let mut liar = Peer::connect(&address);
    let version = fabricast::bootstrap::message::VERSION;
    liar.say(json!({"say": "follow", "version": version, "name": "liar"}));
    liar.say(json!({"say": "wants", "catalogue": 0, "answers": 0, "places": 1, "runs": []}));
    liar.until("catalogue");
    liar.say(json!({
        "say": "wants", "catalogue": number, "answers": 1, "places": 1, "runs": [[0, 1]],
    }));
    sender.until("publishing", |e| e["followers"] == 1);
    sender.until("listening", |_| true);
    // It comes while the feed waits for the other one.
    let mut run = follow(&address, &dir.path("to"), &[]);
    until_entry(&mut run, "a");
    publish(&feed, "b", b"b");
    until_all(&mut run, 2);
    ends(run);
    ends(sender);
}

/// Directories that a process has the kernel watch.
fn watched(run: &Run) -> usize {
    let infos = format!("/proc/{}/fdinfo", run.pid().as_raw_nonzero());
    let infos = fs::read_dir(infos).unwrap().flatten();
    let texts = infos.filter_map(|info| fs::read_to_string(info.path()).ok());
    texts.map(|text| text.matches("inotify wd:").count()).sum()
}

/// What a link within an entry leads to is neither sent nor watched. What a link directly in the
/// feed's directory leads to is both.
#[test]
fn links_are_watched_where_they_are_followed() {
    let dir = Scratch::new();
    let feed = feed_in(&dir);
    let (outside, linked) = (dir.path("outside"), dir.path("linked"));
    for n in 0..50 {
        fs::create_dir_all(outside.join(n.to_string())).unwrap();
    }
    fs::create_dir_all(linked.join("deep")).unwrap();
    fs::create_dir(feed.join("entry")).unwrap();
    symlink(&outside, feed.join("entry/out")).unwrap();
    symlink(&linked, feed.join("image")).unwrap();
    let (sender, address) = serve(&feed, "0", &["--rescan", "1h"]);
    let mut run = follow(&address, &dir.path("to"), &[]);
    until_all(&mut run, 2);
    assert!(watched(&sender) < 10, "{}", watched(&sender));
    publish(&linked.join("deep"), "new", b"one");
    run.until("entry", |e| e["name"] == "image" && e["len"] == 3);
    publish(&linked.join("deep"), "new", b"three");
    run.until("entry", |e| e["name"] == "image" && e["len"] == 5);
    ends(run);
    ends(sender);
}

/// A follower without space for its record goes on, and has everything when there is space again.
/// A hook whose program is not there is an error at the start.
#[test]
fn a_record_that_cannot_be_written_ends_nothing() {
    let dir = Scratch::new();
    let feed = feed_in(&dir);
    let (sender, address) = serve(&feed, "0", &[]);
    let dest = dir.path("to");
    let mut run = follow(&address, &dest, &[]);
    publish(&feed, "first", b"1");
    // From then on it is not saved again before something has come.
    until_all(&mut run, 1);
    // A directory in the place of the file that is written.
    let partial = dest.join("feed/.fabricast-feed.json.partial");
    fs::create_dir(&partial).unwrap();
    publish(&feed, "second", b"2");
    run.until("notice", |e| {
        e["text"].as_str().unwrap().contains("writing")
    });
    until_all(&mut run, 2);
    fs::remove_dir(&partial).unwrap();
    let record = dest.join("feed/.fabricast-feed.json");
    wait_until(|| fs::read_to_string(&record).unwrap().contains("second"));
    // The directory goes, and everything comes again.
    fs::remove_dir_all(dest.join("feed")).unwrap();
    until_entry(&mut run, "first");
    until_all(&mut run, 2);
    ends(run);
    ends(sender);
    let end = follow(&address, &dest, &["--hook", "no-such-program-here x"]);
    let end = end.end().expect(2);
    let error = end.one("error")["text"].to_string();
    assert!(error.contains("no-such-program-here"), "{error}");
}
