//! Feeds that send several publications at the same time.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Command;

use crate::common::feed::{
    HandMade, contents, described_entry, ends, feed_in, follow, publish, serve, until_all,
    until_entry,
};
use crate::common::tree::send;
use crate::common::{End, FABRICAST, Run, Scratch, may_mount, set_mode};
use rustix::process::Signal;
use serde_json::Value;

/// Bytes of a long entry, and a rate at which it takes seconds.
const LONG: usize = 20_000_000;
const SLOW: [&str; 2] = ["--rate", "2500kB/s"];

/// Publishes a long entry, and waits until it is under way.
fn begin_long(dir: &Scratch, feed: &Path, run: &mut Run) {
    fs::rename(dir.file("long", LONG), feed.join("long")).unwrap();
    run.until("publication", |e| e["entries"][0] == "long");
    run.until_share_of("placed", 10);
}

/// The names of the entries that have come, in their order.
fn came(end: &End) -> Vec<&str> {
    let names = end.all("entry").map(|e| e["name"].as_str().unwrap());
    names.collect()
}

/// A short entry arrives, and its hook runs, while a long one is under way. What is said of the two
/// has their numbers. Nothing of the other one is deleted.
#[test]
fn a_short_entry_overtakes_a_long_one() {
    let dir = Scratch::new();
    let feed = feed_in(&dir);
    let to = dir.path("to");
    let (mut sender, address) = serve(&feed, "0", &SLOW);
    let mut run = follow(&address, &to, &["--hook", "true", "--delete"]);
    begin_long(&dir, &feed, &mut run);
    fs::write(to.join("feed/beside"), "mine").unwrap();
    publish(&feed, "short", b"first");
    let first = run.until("hook", |e| e["name"] == "short");
    assert_eq!(first["result"], "success");
    // It changes, and comes again.
    publish(&feed, "short", b"second");
    until_entry(&mut run, "short");
    until_all(&mut run, 2);
    fs::remove_file(to.join("feed/beside")).unwrap();
    assert_eq!(contents(&to.join("feed")), contents(&feed));
    run.until_ever("hook", |e| e["name"] == "long");
    let end = ends(run);
    assert_eq!(came(&end), ["short", "short", "long"], "{end:#?}");
    let transfers = |kind: &str| -> Vec<u64> {
        let told = end.all(kind).map(|e| e["transfer"].as_u64().unwrap());
        told.collect()
    };
    assert_eq!(transfers("publication"), [1, 2, 3]);
    assert_eq!(transfers("entry"), [2, 3, 1]);
    assert_eq!(transfers("done"), [2, 3, 1]);
    sender.until("summary", |e| e["transfer"] == 1 && e["verified"] == 1);
    ends(sender);
}

/// A transfer alone has the whole rate. Two share it by their weights: the second is of an entry
/// that goes first, has four times as much, and is complete before the first, which began earlier.
#[test]
fn transfers_share_the_rate_by_their_weights() {
    let dir = Scratch::new();
    let feed = feed_in(&dir);
    let rate = 5_000_000;
    let args = ["--rate", "5MB/s", "--at-once", "3", "--first", "vip"];
    let (mut sender, address) = serve(&feed, "0", &args);
    let mut run = follow(&address, &dir.path("to"), &["--at-once", "2"]);
    fs::rename(dir.file("long", LONG), feed.join("long")).unwrap();
    let has = |transfer: u64, part: [u64; 2]| {
        move |e: &Value| e["transfer"] == transfer && e["rate"] == rate * part[0] / part[1]
    };
    sender.until("progress", has(1, [1, 1]));
    fs::rename(dir.file("vip", LONG / 2), feed.join("vip")).unwrap();
    sender.until("progress", has(2, [4, 5]));
    sender.until("progress", has(1, [1, 5]));
    // From here until the end of the one, the other gets a quarter of what the one gets.
    let placed = |sender: &mut Run, transfer: u64| {
        let told = sender.until("progress", |e| e["transfer"] == transfer);
        told["slowest"].as_u64().unwrap()
    };
    let [long, vip] = [1, 2].map(|transfer| placed(&mut sender, transfer));
    sender.until("summary", |e| e["transfer"] == 2 && e["verified"] == 1);
    let behind = placed(&mut sender, 1) - long;
    let ahead = LONG as u64 / 2 - vip;
    assert!(behind * 2 < ahead, "{behind} beside {ahead}");
    // Then it has all again.
    sender.until("progress", has(1, [1, 1]));
    until_all(&mut run, 2);
    assert_eq!(came(&ends(run)), ["vip", "long"]);
    ends(sender);
}

/// With one place a short entry waits for the long one before it, whichever end has only one.
#[test]
fn with_one_place_entries_go_one_after_the_other() {
    let one = ["--at-once", "1"];
    for (of_feed, of_follower) in [(&one[..], &[][..]), (&[][..], &one[..])] {
        let dir = Scratch::new();
        let feed = feed_in(&dir);
        let args = [of_feed, &["--rate", "10MB/s"]].concat();
        let (sender, address) = serve(&feed, "0", &args);
        let mut run = follow(&address, &dir.path("to"), of_follower);
        begin_long(&dir, &feed, &mut run);
        publish(&feed, "short", b"short");
        until_all(&mut run, 2);
        let end = ends(run);
        assert_eq!(came(&end), ["long", "short"], "{end:#?}");
        ends(sender);
    }
}

/// The feed begins nothing that a follower has no place for.
#[test]
fn a_follower_with_one_place_is_sent_one_thing_at_a_time() {
    let dir = Scratch::new();
    let feed = feed_in(&dir);
    // The feed waits 1 s for a follower that it was chosen for, and the short one takes longer.
    for (name, len) in [("short", 3_000_000), ("long", 5_000_000)] {
        fs::rename(dir.file(name, len), feed.join(name)).unwrap();
    }
    let (mut sender, address) = serve(&feed, "0", &["--rate", "2MB/s"]);
    sender.until("catalogue", |e| e["entries"] == 2);
    let mut run = follow(&address, &dir.path("to"), &["--at-once", "1"]);
    until_all(&mut run, 2);
    ends(run);
    let end = ends(sender);
    let begun = end.all("publishing").count();
    assert_eq!(begun, 2, "{end:#?}");
}

/// A follower that is killed while one of two transfers has ended gets exactly what it lacks, and
/// goes on with that.
#[test]
fn a_follower_that_is_killed_in_between_gets_what_it_lacks() {
    let dir = Scratch::new();
    let feed = feed_in(&dir);
    let to = dir.path("to");
    let (sender, address) = serve(&feed, "0", &SLOW);
    let mut run = follow(&address, &to, &[]);
    begin_long(&dir, &feed, &mut run);
    publish(&feed, "short", b"short");
    until_entry(&mut run, "short");
    run.until_share_of("placed", 40);
    run.signal(Signal::KILL);
    assert_eq!(came(&run.end()), ["short"]);
    let mut run = follow(&address, &to, &[]);
    run.until("resumed", |e| e["bytes"].as_u64() > Some(0));
    until_all(&mut run, 2);
    assert_eq!(contents(&to.join("feed")), contents(&feed));
    assert_eq!(came(&ends(run)), ["long"]);
    ends(sender);
}

/// A short entry that cannot be stored is wanted again while a long one comes, and holds up no
/// other.
#[test]
fn what_fails_beside_a_long_one_does_not_wait_for_that() {
    let dir = Scratch::new();
    let feed = feed_in(&dir);
    let to = dir.path("to");
    let (sender, address) = serve(&feed, "0", &["--rate", "1500kB/s"]);
    let mut run = follow(&address, &to, &[]);
    begin_long(&dir, &feed, &mut run);
    fs::create_dir_all(to.join("feed/short/in the way")).unwrap();
    publish(&feed, "short", b"short");
    run.until("publication_failed", |e| e["entries"][0] == "short");
    publish(&feed, "other", b"other");
    until_entry(&mut run, "other");
    fs::remove_dir_all(to.join("feed/short")).unwrap();
    until_entry(&mut run, "short");
    until_all(&mut run, 3);
    let end = ends(run);
    assert_eq!(came(&end), ["other", "short", "long"], "{end:#?}");
    ends(sender);
}

/// The catalogue changes while a long entry comes, and so do the numbers of its entries. What comes
/// is recorded as what it is, and one that comes late takes part in the same transfer.
#[test]
fn a_catalogue_that_changes_in_the_midst_confuses_nobody() {
    let dir = Scratch::new();
    let feed = feed_in(&dir);
    publish(&feed, "a", b"a");
    let [one, two] = ["one", "two"].map(|name| dir.path(name));
    let (mut sender, address) = serve(&feed, "0", &SLOW);
    let mut run = follow(&address, &one, &[]);
    until_all(&mut run, 1);
    begin_long(&dir, &feed, &mut run);
    fs::remove_file(feed.join("a")).unwrap();
    run.until("catalogue", |e| e["entries"] == 1);
    publish(&feed, "b", b"b");
    until_entry(&mut run, "b");
    let mut late = follow(&address, &two, &[]);
    late.until("publication", |e| e["entries"][0] == "long");
    for run in [&mut run, &mut late] {
        until_all(run, 2);
    }
    let long = sender.until("summary", |e| e["name"] == "long");
    assert_eq!(long["verified"], 2, "{long}");
    assert_eq!(contents(&two.join("feed")), contents(&feed));
    assert_eq!(came(&ends(run)), ["a", "b", "long"]);
    let end = ends(sender);
    let long = |e: &&Value| e["entries"][0] == "long";
    assert_eq!(end.all("publishing").filter(long).count(), 1);
    ends(late);
}

/// Two long entries share the network, each at a port of its own. Both ends can be stopped
/// meanwhile, and both transfers go on where they were.
#[test]
fn two_long_entries_go_at_once() {
    let dir = Scratch::new();
    let feed = feed_in(&dir);
    let to = dir.path("to");
    for name in ["one", "two"] {
        fs::rename(dir.file(name, LONG), feed.join(name)).unwrap();
    }
    let ports = free_ports();
    let first = ports.to_string();
    let args = [&SLOW[..], &["--at-once", "3", "--data-port", &first]].concat();
    let (mut sender, address) = serve(&feed, "0", &args);
    let mut run = follow(&address, &to, &[]);
    for transfer in [1, 2] {
        run.until_ever("progress", |e| {
            e["transfer"] == transfer && e["placed"].as_u64() > Some(LONG as u64 / 4)
        });
        let listens = sender.until_ever("listening", |e| e["transfer"] == transfer);
        let at = listens["address"].as_str().unwrap();
        let port = ports + transfer as u16 - 1;
        assert!(at.ends_with(&format!(":{port}")), "{at} {port}");
    }
    let end = ends(run);
    assert_eq!(came(&end), [""; 0], "{end:#?}");
    let end = ends(sender);
    assert_eq!(end.all("publishing").count(), 2);
    let (sender, address) = serve(&feed, "0", &["--at-once", "3"]);
    let mut run = follow(&address, &to, &[]);
    until_all(&mut run, 2);
    assert_eq!(contents(&to.join("feed")), contents(&feed));
    let end = ends(run);
    assert_eq!(end.all("resumed").count(), 2, "{end:#?}");
    ends(sender);
}

/// The first of two ports that are free.
fn free_ports() -> u16 {
    let bind = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok();
    loop {
        let first = bind(0).unwrap().local_addr().unwrap().port();
        if first < u16::MAX && bind(first + 1).is_some() {
            return first;
        }
    }
}

/// Of two transfers at once the one that began later is the newer one for retention, whichever ends
/// first. The one that comes is not removed meanwhile.
#[test]
fn retention_goes_by_the_begin() {
    let dir = Scratch::new();
    let feed = feed_in(&dir);
    let to = dir.path("to/feed");
    publish(&feed, "old", b"old");
    let (sender, address) = serve(&feed, "0", &SLOW);
    let mut run = follow(&address, &dir.path("to"), &["--keep", "1"]);
    until_all(&mut run, 1);
    begin_long(&dir, &feed, &mut run);
    publish(&feed, "short", b"short");
    let removes = |name: &'static str| {
        move |e: &Value| {
            e["path"]
                .as_str()
                .unwrap()
                .ends_with(&format!("feed/{name}"))
        }
    };
    run.until("removed", removes("old"));
    run.until_ever("removed", removes("long"));
    until_all(&mut run, 3);
    let end = ends(run);
    assert_eq!(came(&end), ["old", "short", "long"], "{end:#?}");
    assert_eq!(end.all("removed").count(), 2);
    assert!(to.join("short").exists() && !to.join("long").exists());
    ends(sender);
}

/// What interrupted transfers have left is not looked at while a transfer runs, also if the feed
/// has nothing more that the follower wants.
#[test]
fn what_was_left_stays_while_a_transfer_runs() {
    let dir = Scratch::new();
    let to = dir.path("to/feed");
    fs::create_dir_all(&to).unwrap();
    let left = to.join(".fabricast-0123.journal");
    fs::write(&left, "").unwrap();
    set_mode(&left, 0o600);
    let long = dir.file("long", LONG);
    let mut feed = HandMade::new();
    feed.offer(1, &[described_entry(&long)]);
    let mut run = follow(&feed.address(), &dir.path("to"), &[]);
    let args = [&SLOW[..], &["--min-receivers", "1"]].concat();
    let (sender, address) = send(&[&long], &args);
    feed.invite(&address);
    feed.until_content();
    run.until_share_of("placed", 10);
    feed.offer(2, &[]);
    feed.until_content();
    run.until("catalogue", |e| e["entries"] == 0 && e["wanted"] == 0);
    assert!(left.exists());
    sender.end().expect(0);
    until_entry(&mut run, "long");
    run.until("catalogue", |e| e["wanted"] == 0);
    ends(run);
    assert!(!left.exists());
    assert_eq!(fs::read(to.join("long")).unwrap(), fs::read(&long).unwrap());
}

/// A transfer that fits alone does not begin if another one, which has not written yet, needs the
/// space. It begins when that has ended.
#[test]
fn what_another_transfer_will_take_counts_as_taken() {
    if !may_mount() {
        return;
    }
    let dir = Scratch::new();
    let [long, other] = [("long", 60_000_000), ("other", 50_000_000)].map(|(n, l)| dir.file(n, l));
    let [first, second] = [&long, &other].map(|path| described_entry(path));
    let to = dir.path("to");
    fs::create_dir(&to).unwrap();
    let mut feed = HandMade::new();
    feed.offer(1, std::slice::from_ref(&first));
    let mut command = Command::new("unshare");
    let script = "mount -t tmpfs -o size=100m none \"$1\" && exec \"$0\" recv --json --follow \
                  --reserve 0 --from \"$2\" --dir \"$1\"";
    command.args(["-m", "sh", "-c", script, FABRICAST]);
    command.arg(&to).arg(feed.address());
    let mut run = Run::spawn(command);
    // It waits for another receiver, and sends nothing.
    let (waits, address) = send(&[&long], &["--min-receivers", "2"]);
    feed.invite(&address);
    run.until("connected", |_| true);
    feed.until_content();
    feed.offer(2, &[first, second.clone()]);
    let (sender, address) = send(&[&other], &["--min-receivers", "1"]);
    feed.invite(&address);
    let failed = run.until("publication_failed", |_| true);
    assert_eq!(failed["entries"][0], "other");
    let reason = failed["reason"].as_str().unwrap();
    assert!(reason.contains("and 58 MiB are to stay free"), "{reason}");
    feed.offer(3, &[second]);
    waits.signal(Signal::TERM);
    waits.end();
    feed.invite(&address);
    until_entry(&mut run, "other");
    sender.end().expect(0);
    run.signal(Signal::TERM);
    run.end().expect(0);
}

/// What a late follower lacks comes at the rate, although it comes in pieces.
#[test]
fn a_late_follower_gets_the_whole_rate() {
    let dir = Scratch::new();
    let feed = feed_in(&dir);
    let (sender, address) = serve(&feed, "0", &["--rate", "4MB/s"]);
    let mut first = follow(&address, &dir.path("first"), &[]);
    first.until("catalogue", |_| true);
    fs::rename(dir.file("big", 20_000_000), feed.join("big")).unwrap();
    first.until_share_of("placed", 60);
    let mut late = follow(&address, &dir.path("late"), &[]);
    // At a thirtieth of the rate it would take more than a minute and a half.
    for run in [&mut first, &mut late] {
        until_entry(run, "big");
    }
    ends(first);
    ends(late);
    ends(sender);
}
