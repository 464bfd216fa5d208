//! Feeds and followers that meet what should not be: liars, files in the way, what was left.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::common::feed::{
    HandMade, contents, described_entry, ends, feed_in, follow, publish, serve, serve_by,
    until_all, until_entry,
};
use crate::common::tree::send;
use crate::common::{Run, Scratch, bound_by_permissions, set_mode};
use fabricast::feed::Entry;
use rustix::process::Signal;
use serde_json::{Value, json};

/// A follower records what has come, whatever the catalogue names. So it does not believe that it
/// has the other version, and does not want again what it has.
#[test]
fn what_has_come_is_recorded_and_not_what_the_catalogue_names() {
    let dir = Scratch::new();
    let sent = dir.file("a", 1000);
    let comes = described_entry(&sent);
    let named = Entry {
        digest: blake3::hash(b"another version").to_hex().to_string(),
        ..comes.clone()
    };
    let mut feed = HandMade::new();
    feed.offer(1, std::slice::from_ref(&named));
    let mut run = follow(&feed.address(), &dir.path("to"), &[]);
    let (sender, address) = send(&[&sent], &["--min-receivers", "1"]);
    feed.invite(&address);
    sender.end().expect(0);
    let told = until_entry(&mut run, "a");
    assert_eq!(told["digest"], comes.digest);
    let failed = run.until("publication_failed", |_| true);
    let reason = failed["reason"].as_str().unwrap();
    assert!(reason.contains("another version"), "{reason}");
    // The catalogue learns what has come: nothing is wanted any more.
    feed.offer(2, std::slice::from_ref(&comes));
    feed.until_content();
    run.until("catalogue", |e| e["number"] == 2 && e["wanted"] == 0);
    // The version that was named first has never come.
    feed.offer(3, &[named]);
    let (sender, address) = send(&[&sent], &["--min-receivers", "1"]);
    feed.invite(&address);
    sender.end().expect(0);
    assert_eq!(
        fs::read(dir.path("to/feed/a")).unwrap(),
        fs::read(&sent).unwrap()
    );
    ends(run);
}

/// A short transfer may have ended before a follower that was told of it connects.
#[test]
fn a_transfer_that_has_ended_is_not_waited_for() {
    let dir = Scratch::new();
    let source = dir.file("a", 1000);
    let entry = described_entry(&source);
    let mut feed = HandMade::new();
    feed.offer(1, &[entry]);
    let mut run = follow(&feed.address(), &dir.path("to"), &[]);
    let (sender, address) = send(&[&source], &[]);
    sender.signal(Signal::TERM);
    sender.end();
    feed.invite(&address);
    let failed = run.until("publication_failed", |_| true);
    let reason = failed["reason"].as_str().unwrap();
    assert!(reason.contains("does not listen any more"), "{reason}");
    // It says what it wants again, and is told of another transfer.
    let (sender, address) = send(&[&source], &[]);
    feed.invite(&address);
    until_entry(&mut run, "a");
    sender.end().expect(0);
    ends(run);
}

/// An entry that was a directory and becomes a file, or the other way round, takes the place of
/// what came before. A file that its user has put into the directory is named, and stays.
#[test]
fn an_entry_may_become_a_file_or_a_directory() {
    let dir = Scratch::new();
    let feed = feed_in(&dir);
    let to = dir.path("to");
    let (sender, address) = serve(&feed, "0", &[]);
    let mut run = follow(&address, &to, &[]);
    for name in ["a", "b"] {
        fs::create_dir(dir.path(name)).unwrap();
        fs::write(dir.path(name).join("old"), "old").unwrap();
        fs::rename(dir.path(name), feed.join(name)).unwrap();
    }
    publish(&feed, "c", b"file");
    until_all(&mut run, 3);
    // What earlier versions have brought is the feed's, too.
    fs::rename(feed.join("a/old"), feed.join("a/new")).unwrap();
    until_entry(&mut run, "a");
    until_all(&mut run, 3);
    assert!(to.join("feed/a/old").exists());
    fs::write(to.join("feed/b/mine"), "mine").unwrap();
    for name in ["a", "b"] {
        fs::rename(feed.join(name), dir.path(name)).unwrap();
        publish(&feed, name, b"now a file");
    }
    fs::remove_file(feed.join("c")).unwrap();
    fs::create_dir(feed.join(".c")).unwrap();
    fs::write(feed.join(".c/deep"), "now a directory").unwrap();
    fs::rename(feed.join(".c"), feed.join("c")).unwrap();
    run.until("publication_failed", |e| {
        let reason = e["reason"].as_str().unwrap();
        reason.contains("feed/b/mine did not come from there")
    });
    run.until("catalogue", |e| e["wanted"] == 1 && e["entries"] == 3);
    assert_eq!(fs::read(to.join("feed/b/mine")).unwrap(), b"mine");
    assert!(to.join("feed/b/old").exists());
    fs::rename(to.join("feed/b/mine"), dir.path("mine")).unwrap();
    until_all(&mut run, 3);
    assert_eq!(contents(&to.join("feed")), contents(&feed));
    ends(run);
    ends(sender);
}

/// A dry run lists what would be published, and names what cannot be.
#[test]
fn a_dry_run_lists_what_would_be_published() {
    let dir = Scratch::new();
    let feed = feed_in(&dir);
    fs::create_dir(feed.join("d")).unwrap();
    for name in [
        "d/a",
        "d/.hidden",
        "d/b.part",
        ".new",
        "c.partial",
        "e",
        "left.o",
    ] {
        fs::write(feed.join(name), "text").unwrap();
    }
    symlink("nowhere", feed.join("dangling")).unwrap();
    fs::write(feed.join(OsStr::from_bytes(b"odd\xff")), "").unwrap();
    let run = Run::start([
        "serve",
        "--dry-run",
        "--json",
        "--exclude",
        "*.o",
        feed.to_str().unwrap(),
    ]);
    let end = run.end().expect(0);
    let below = |e: &Value| {
        let path = Path::new(e["path"].as_str().unwrap());
        path.strip_prefix(&feed)
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned()
    };
    let listed: Vec<String> = end.all("entry").map(below).collect();
    assert_eq!(listed, ["d", "d/a", "e"]);
    let named: Vec<&str> = end
        .all("notice")
        .filter_map(|e| e["text"].as_str())
        .collect();
    assert_eq!(named.len(), 2, "{named:?}");
    assert!(
        named
            .iter()
            .any(|text| text.contains("dangling is not sent: ")),
        "{named:?}"
    );
    assert!(
        named.iter().any(|text| text.contains("is not UTF-8")),
        "{named:?}"
    );
}

/// An entry with a file that the feed may not read is left out and named, and goes when it may be
/// read. The others are not held back.
#[test]
fn an_entry_that_cannot_be_read_is_named_and_goes_later() {
    let dir = Scratch::new();
    let feed = feed_in(&dir);
    fs::create_dir(feed.join("d")).unwrap();
    for name in ["a", "secret"] {
        fs::write(feed.join("d").join(name), name).unwrap();
    }
    let mode = |mode| set_mode(&feed.join("d/secret"), mode);
    mode(0o000);
    let (mut sender, address) = serve_by(bound_by_permissions(), &feed, "0", &[]);
    let mut run = follow(&address, &dir.path("to"), &[]);
    sender.until("notice", |e| {
        let text = e["text"].as_str().unwrap();
        text.contains("feed/d is not sent") && text.contains("feed/d/secret cannot be read")
    });
    publish(&feed, "good", b"good");
    until_entry(&mut run, "good");
    until_all(&mut run, 1);
    assert!(!dir.path("to/feed/d").exists());
    mode(0o600);
    until_all(&mut run, 2);
    assert_eq!(contents(&dir.path("to/feed")), contents(&feed));
    let end = ends(run);
    assert!(end.all("publication_failed").next().is_none(), "{end:#?}");
    let end = ends(sender);
    let about = |e: &&Value| e["text"].as_str().unwrap().contains("secret");
    assert_eq!(
        end.all("notice").filter(about).count(),
        1,
        "it is told once"
    );
}

/// A directory that the feed may not read is named, and goes when it may be read. The kernel tells
/// of changes in the others all the same, also in one that has taken another one's place.
#[test]
fn a_directory_that_cannot_be_read_hides_no_changes_of_others() {
    let dir = Scratch::new();
    let feed = feed_in(&dir);
    let names = ["a/deep", "closed", "z/deep"].map(|name| feed.join(name));
    names.iter().for_each(|d| fs::create_dir_all(d).unwrap());
    let [first, closed, last] = names;
    let mode = |mode| set_mode(&closed, mode);
    mode(0o000);
    let slow = ["--rescan", "1h"];
    let (mut sender, address) = serve_by(bound_by_permissions(), &feed, "0", &slow);
    sender.until("notice", |e| {
        let text = e["text"].as_str().unwrap();
        text.contains("does not tell of changes in") && text.contains("feed/closed")
    });
    let mut run = follow(&address, &dir.path("to"), &[]);
    until_all(&mut run, 2);
    for changed in [&first, &last] {
        publish(changed, "new", b"one");
        run.until("entry", |e| e["len"] == 3);
    }
    let other = dir.path("other");
    fs::create_dir_all(other.join("deep")).unwrap();
    fs::rename(feed.join("z"), dir.path("away")).unwrap();
    fs::rename(&other, feed.join("z")).unwrap();
    run.until("entry", |e| e["name"] == "z" && e["len"] == 0);
    publish(&last, "new", b"three");
    run.until("entry", |e| e["name"] == "z" && e["len"] == 5);
    mode(0o700);
    until_entry(&mut run, "closed");
    publish(&closed, "new", b"seventh");
    run.until("entry", |e| e["len"] == 7);
    ends(run);
    ends(sender);
}

/// What an interrupted transfer has left goes when nothing is lacking, and not before.
#[test]
fn what_was_left_goes_when_nothing_is_lacking() {
    let dir = Scratch::new();
    let feed = feed_in(&dir);
    let to = dir.path("to/feed");
    fs::create_dir_all(&to).unwrap();
    let left = ["journal", "7.partial"].map(|end| to.join(format!(".fabricast-0123.{end}")));
    for path in &left {
        fs::write(path, "").unwrap();
        set_mode(path, 0o600);
    }
    fs::create_dir(to.join("in the way")).unwrap();
    fs::write(to.join("in the way/mine"), "").unwrap();
    publish(&feed, "in the way", b"1");
    let (sender, address) = serve(&feed, "0", &[]);
    let mut run = follow(&address, &dir.path("to"), &[]);
    run.until("publication_failed", |_| true);
    assert!(left.iter().all(|path| path.exists()));
    fs::remove_dir_all(to.join("in the way")).unwrap();
    until_all(&mut run, 1);
    ends(run);
    assert!(!left.iter().any(|path| path.exists()));
    ends(sender);
}

/// A follower looks now and then whether what it has received is still there, and wants again what
/// somebody has removed.
#[test]
fn what_somebody_removes_comes_again() {
    let dir = Scratch::new();
    let feed = feed_in(&dir);
    let to = dir.path("to/feed");
    for name in ["a", "b"] {
        publish(&feed, name, name.as_bytes());
    }
    let (sender, address) = serve(&feed, "0", &[]);
    let mut run = follow(&address, &dir.path("to"), &["--look", "100ms"]);
    until_all(&mut run, 2);
    fs::remove_file(to.join("a")).unwrap();
    run.until("catalogue", |e| e["wanted"] == 1);
    until_entry(&mut run, "a");
    until_all(&mut run, 2);
    assert_eq!(contents(&to), contents(&feed));
    let end = ends(run);
    let again = end.all("entry").filter(|e| e["name"] == "b");
    assert_eq!(again.count(), 1, "{end:#?}");
    ends(sender);
}

/// A link that leads nowhere is named, and published when it leads somewhere.
#[test]
fn a_link_that_leads_nowhere_goes_later() {
    let dir = Scratch::new();
    let feed = feed_in(&dir);
    symlink(dir.path("target"), feed.join("link")).unwrap();
    let (mut sender, address) = serve(&feed, "0", &["--rescan", "200ms"]);
    let mut run = follow(&address, &dir.path("to"), &[]);
    sender.until("notice", |e| {
        e["text"]
            .as_str()
            .unwrap()
            .contains("it is not published until it is")
    });
    publish(&feed, "beside", b"1");
    until_entry(&mut run, "beside");
    fs::write(dir.path("target"), "here").unwrap();
    until_entry(&mut run, "link");
    assert_eq!(fs::read(dir.path("to/feed/link")).unwrap(), b"here");
    ends(run);
    let end = ends(sender);
    let notices = end.all("notice");
    let about = notices.filter(|e| e["text"].as_str().unwrap().contains("link"));
    assert_eq!(about.count(), 1, "it is told once: {end:#?}");
}

/// What somebody else has put in the place of an entry, or of a file in it, is named and stays,
/// until its user moves it away or wants it replaced. What was received is replaced.
#[test]
fn what_was_not_received_is_replaced_only_if_its_user_wants_that() {
    let dir = Scratch::new();
    let feed = feed_in(&dir);
    publish(&feed, "conf", b"the feed's");
    publish(&feed, "other", b"1");
    fs::create_dir(feed.join("dir")).unwrap();
    publish(&feed, "dir/x", b"the feed's");
    let to = dir.path("to");
    let folder = to.join("feed");
    fs::create_dir_all(folder.join("dir")).unwrap();
    let (conf, x) = (folder.join("conf"), folder.join("dir/x"));
    for path in [&conf, &x] {
        fs::write(path, "mine").unwrap();
    }
    // Publications without a receiver that can take them are errors there.
    let stop = |sender: Run| {
        sender.signal(Signal::TERM);
        sender.end().expect(0);
    };
    let (sender, address) = serve(&feed, "0", &[]);
    let mut run = follow(&address, &to, &[]);
    for (name, path) in [("conf", &conf), ("dir", &x)] {
        let failed = run.until("publication_failed", |e| e["entries"] == json!([name]));
        let reason = failed["reason"].as_str().unwrap();
        assert!(
            reason.contains(path.to_str().unwrap()) && reason.contains("with --force"),
            "{reason}"
        );
    }
    run.until("catalogue", |e| e["entries"] == 3 && e["wanted"] == 2);
    assert_eq!(
        [&conf, &x].map(|path| fs::read(path).unwrap()),
        [b"mine"; 2]
    );
    // One is moved away, the other one is to be replaced.
    fs::rename(&conf, dir.path("moved")).unwrap();
    until_entry(&mut run, "conf");
    ends(run);
    let mut run = follow(&address, &to, &["--force"]);
    until_all(&mut run, 3);
    ends(run);
    // From now on both are the feed's.
    let mut run = follow(&address, &to, &[]);
    for (name, entry) in [("conf", "conf"), ("dir/x", "dir")] {
        publish(&feed, name, b"a newer one");
        until_entry(&mut run, entry);
    }
    until_all(&mut run, 3);
    assert_eq!(contents(&folder), contents(&feed));
    ends(run);
    // Without the record everything comes again, but nobody knows whose a file is that differs.
    fs::remove_file(folder.join(".fabricast-feed.json")).unwrap();
    stop(sender);
    publish(&feed, "conf", b"the newest");
    let (sender, address) = serve(&feed, "0", &[]);
    let mut run = follow(&address, &to, &[]);
    run.until("publication_failed", |e| e["entries"] == json!(["conf"]));
    run.until("catalogue", |e| e["entries"] == 3 && e["wanted"] == 1);
    ends(run);
    let mut run = follow(&address, &to, &["--force"]);
    until_all(&mut run, 3);
    assert_eq!(contents(&folder), contents(&feed));
    ends(run);
    stop(sender);
}
