//! Receivers and senders that are killed in the midst and started again, as processes on the
//! loopback.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::common::tree::{check, described, long_tree, send};
use crate::common::{self, End, Run, Scratch};
use rustix::process::Signal;

/// At this rate the set takes about 4 s, and a receiver on a busy machine keeps up with it.
const RATE: [&str; 2] = ["--rate", "45MB/s"];

/// A receiver that does not wait for the disk: these tests write much, and all wait for the same.
fn recv(address: &str, name: &str, dest: &Path) -> Run {
    common::tree::recv(address, name, dest, &["--no-sync"])
}

/// Bytes of the set that a process has received when it has come this far.
fn placed(run: &mut Run, percent: u64) -> u64 {
    run.until_share(percent);
    run.last("progress")["placed"].as_u64().unwrap()
}

/// Bytes of data packets that a receiver has received in all, after its end.
fn received(end: &End, sent: &End) -> u64 {
    let size = &sent.one("starting")["chunk"];
    end.one("done")["tally"]["received"].as_u64().unwrap() * size.as_u64().unwrap()
}

/// A receiver is killed, its sender ends, and both are started again: what the receiver has does
/// not come again.
#[test]
fn one_that_was_killed_goes_on_with_another_sender() {
    let dir = Scratch::new();
    let top = long_tree(&dir);
    for percent in [30, 60, 90] {
        let dest = dir.path(&format!("to-{percent}"));
        let (sender, address) = send(&[&top], &RATE);
        let mut run = recv(&address, "r", &dest);
        let before = placed(&mut run, percent);
        run.signal(Signal::KILL);
        sender.end().expect(4);
        assert_eq!(run.end().code, None);
        let (sender, address) = send(&[&top], &RATE);
        let end = recv(&address, "r", &dest).end().expect(0);
        let sent = sender.end().expect(0);
        assert_eq!(end.one("done")["root"], sent.one("summary")["root"]);
        let len = end.one("done")["len"].as_u64().unwrap();
        let all = before + received(&end, &sent);
        assert!(all <= len * 11 / 10, "{percent} %: {all} of {len}");
        let kept = &end.one("resumed")["bytes"];
        assert!(kept.as_u64() > Some(0));
        assert_eq!(&sent.result("r")["tally"]["kept_bytes"], kept);
        check(&top, &dest);
    }
}

/// Receivers are killed, and come back together. None takes the seat of another one.
#[test]
fn those_that_come_back_together_have_their_seats() {
    let dir = Scratch::new();
    let top = long_tree(&dir);
    let seats = ["--min-receivers", "4", "--max-receivers", "4"];
    let (mut sender, address) = send(&[&top], &[&RATE[..], &seats].concat());
    let start = |name: &str| recv(&address, name, &dir.path(name));
    let stays = start("stays");
    let killed = ["a", "b", "c"].map(start);
    sender.until_share_of("fastest", 30);
    killed.iter().for_each(|run| run.signal(Signal::KILL));
    for name in ["a", "b", "c"] {
        sender.until_ever("failed", |e| e["receiver"] == name);
    }
    for run in ["a", "b", "c"].map(start).into_iter().chain([stays]) {
        run.end().expect(0);
    }
    sender.end().expect(0);
    for name in ["stays", "a", "b", "c"] {
        check(&top, &dir.path(name));
    }
}

/// A receiver is killed and comes back while the sender goes on with another one.
#[test]
fn one_that_was_killed_comes_back_late() {
    let dir = Scratch::new();
    let top = long_tree(&dir);
    for percent in [30, 60, 90] {
        let [dest, other] = ["to", "other"].map(|name| dir.path(&format!("{name}-{percent}")));
        let args = [&RATE[..], &["--min-receivers", "2"]].concat();
        let (mut sender, address) = send(&[&top], &args);
        let stays = recv(&address, "stays", &other);
        let mut run = recv(&address, "r", &dest);
        let before = placed(&mut run, percent);
        run.signal(Signal::KILL);
        sender.until("failed", |e| e["receiver"] == "r");
        let end = recv(&address, "r", &dest).end().expect(0);
        stays.end().expect(0);
        let sent = sender.end().expect(0);
        assert_eq!(sent.one("summary")["receivers"], 2);
        assert_eq!(sent.result("r")["part"], "late");
        let len = end.one("done")["len"].as_u64().unwrap();
        let all = before + received(&end, &sent);
        assert!(all <= len * 11 / 10, "{percent} %: {all} of {len}");
        check(&top, &dest);
        check(&top, &other);
    }
}

/// Packets of the set that a sender has sent for the first time.
fn data(sent: &End) -> u64 {
    let traffic = &sent.one("summary")["traffic"];
    let count = |key: &str| traffic[key].as_u64().unwrap();
    count("data") + count("data_unicast")
}

/// What all receivers keep is not sent at all, not even until they have declined it. What one of
/// them lacks is sent, and not to those that keep it.
#[test]
fn what_receivers_keep_is_not_sent_to_them() {
    const PAYLOAD: u64 = 1440; // of a datagram of 1472 bytes
    const LEN: u64 = 20_000_000;
    let dir = Scratch::new();
    let source = dir.file("source", LEN as usize);
    let runs: [&[&str]; 3] = [&["a"], &["b", "c"], &["d", "fresh"]];
    for names in runs {
        let to = |name: &str| dir.path(&format!("to-{name}"));
        let keep: Vec<_> = names.iter().filter(|name| **name != "fresh").collect();
        keep.iter().for_each(|name| killed(&source, &to(name)));
        let count = names.len().to_string();
        let args = ["--datagram", "1472", "--min-receivers", &count];
        let (sender, address) = send(&[&source], &args);
        let runs: Vec<Run> = names
            .iter()
            .map(|name| recv(&address, name, &to(name)))
            .collect();
        let ends: Vec<End> = runs.into_iter().map(|run| run.end().expect(0)).collect();
        let sent = sender.end().expect(0);
        for end in &ends {
            let resumed = end.all("resumed").next();
            let kept = resumed.map_or(0, |e| e["bytes"].as_u64().unwrap());
            let got =
                received(end, &sent) + end.one("done")["tally"]["duplicates"].as_u64().unwrap();
            assert!(got < LEN - kept + 100_000, "{names:?}: {got} beside {kept}");
        }
        let sent = data(&sent);
        let kept = ends.iter().map(|end| {
            let resumed = end.all("resumed").next();
            resumed.map_or(0, |e| e["bytes"].as_u64().unwrap())
        });
        let kept = kept.min().unwrap();
        assert_eq!(kept == 0, keep.len() < names.len(), "{names:?}");
        // Each of some five packs has a header, and ends with a packet that is not full.
        let lacking = (LEN - kept) / PAYLOAD;
        let told = format!("{names:?}: {sent} packets, {lacking} at least");
        assert!((lacking..lacking + 20).contains(&sent), "{told}");
        names
            .iter()
            .for_each(|name| common::same(&source, &to(name).join("source")));
    }
}

/// The sender is killed: its receivers end with an error, and go on with the next sender.
#[test]
fn a_sender_that_was_killed_is_started_again() {
    let dir = Scratch::new();
    let top = long_tree(&dir);
    let args = [&RATE[..], &["--min-receivers", "2"]].concat();
    let names = ["a", "b"];
    let (sender, address) = send(&[&top], &args);
    let mut runs = names.map(|name| recv(&address, name, &dir.path(name)));
    let before = runs.each_mut().map(|run| placed(run, 50));
    sender.signal(Signal::KILL);
    assert_eq!(sender.end().code, None);
    for (run, name) in runs.into_iter().zip(names) {
        let end = run.end().expect(8);
        let dest = dir.path(name);
        let told = format!("what has come is kept in {}", dest.display());
        assert!(has_notice(&end, &told), "{end:#?}");
    }
    let (sender, address) = send(&[&top], &args);
    let runs = names.map(|name| recv(&address, name, &dir.path(name)));
    let ends = runs.map(|run| run.end().expect(0));
    let sent = sender.end().expect(0);
    for ((name, end), before) in names.iter().zip(&ends).zip(before) {
        let len = end.one("done")["len"].as_u64().unwrap();
        let all = before + received(end, &sent);
        assert!(all <= len * 11 / 10, "{name}: {all} of {len}");
        check(&top, &dir.path(name));
    }
}

fn has_notice(end: &End, text: &str) -> bool {
    let mut notices = end.all("notice");
    notices.any(|e| e["text"].as_str().unwrap().contains(text))
}

/// Another version of a set is complete: what a killed receiver had of the one before is gone. What
/// is left of another set stays.
#[test]
fn a_newer_version_leaves_nothing_of_the_one_before() {
    let dir = Scratch::new();
    let [one, other] = ["one", "other"].map(|name| dir.file(name, 20_000_000));
    let to = dir.path("to");
    killed(&one, &to);
    killed(&other, &to);
    let left = || [".journal", ".partial"].map(|kind| hidden(&to, kind).len());
    assert_eq!(left(), [2, 2]);
    let file = std::fs::File::options().write(true).open(&one).unwrap();
    file.set_modified(std::time::SystemTime::now()).unwrap();
    for (source, before) in [(&one, [1, 1]), (&other, [0, 0])] {
        let (sender, address) = send(&[source], &[]);
        let end = recv(&address, "r", &to).end().expect(0);
        sender.end().expect(0);
        assert_eq!(left(), before);
        assert_eq!(end.all("resumed").next().is_some(), source == &other);
    }
}

/// A receiver is killed in the midst of a short set.
fn killed(top: &Path, dest: &Path) {
    let (sender, address) = send(&[top], &["--rate", "20MB/s"]);
    let mut run = recv(&address, "r", dest);
    run.until_share(60);
    run.signal(Signal::KILL);
    sender.end().expect(4);
    run.end();
}

/// Hidden files in a directory whose names end so.
fn hidden(dir: &Path, end: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap();
    let paths = entries.map(|e| e.unwrap().path());
    paths
        .filter(|path| path.to_string_lossy().ends_with(end))
        .collect()
}

/// The directory in which a set is staged that has one directory at the top.
fn staged(dest: &Path) -> PathBuf {
    let [staged] = &hidden(dest, ".partial")[..] else {
        panic!("not one staged directory");
    };
    staged.clone()
}

/// Somebody changes what was kept: every byte is proven again, so the set is right in the end, and
/// nothing outside is touched.
#[test]
fn what_was_kept_is_believed_only_by_its_hashes() {
    type Change<'a> = &'a dyn Fn(&Path, &Path, &Path);
    let bend = |path: &Path, at: usize| {
        let mut bytes = std::fs::read(path).unwrap();
        let at = at.min(bytes.len() - 1);
        bytes[at] ^= 1;
        std::fs::write(path, bytes).unwrap();
    };
    let elsewhere = |path: &Path, outside: &Path| {
        std::fs::rename(path, outside).unwrap();
        symlink(outside, path).unwrap();
    };
    let longer = |path: &Path| {
        let file = std::fs::File::options().write(true).open(path).unwrap();
        file.set_len(60_000_000).unwrap();
    };
    let changes: [Change; 9] = [
        &|_, partial, _| longer(partial),
        &|_, partial, _| bend(partial, 3_000_000),
        &|_, partial, _| std::fs::write(partial, "short").unwrap(),
        &|_, partial, _| std::fs::remove_file(partial).unwrap(),
        &|_, partial, outside| elsewhere(partial, outside),
        &|journal, _, _| bend(journal, 16),
        &|journal, _, _| bend(journal, 30),
        &|journal, _, _| bend(journal, usize::MAX),
        &|journal, _, outside| elsewhere(journal, outside),
    ];
    let dir = Scratch::new();
    let top = dir.path("tree");
    std::fs::create_dir(&top).unwrap();
    std::fs::rename(dir.file("long", 30_000_000), top.join("long")).unwrap();
    for (i, change) in changes.iter().enumerate() {
        let [dest, outside] = ["to", "out"].map(|name| dir.path(&format!("{name}-{i}")));
        killed(&top, &dest);
        let [journal] = &hidden(&dest, ".journal")[..] else {
            panic!("not one journal");
        };
        let [partial] = &hidden(&staged(&dest), ".partial")[..] else {
            panic!("not one partial file");
        };
        change(journal, partial, &outside);
        let before = outside.exists().then(|| std::fs::read(&outside).unwrap());
        let (sender, address) = send(&[&top], &[]);
        recv(&address, "r", &dest).end().expect(0);
        sender.end().expect(0);
        assert_eq!(described(&dest.join("tree")), described(&top), "{i}");
        let after = outside.exists().then(|| std::fs::read(&outside).unwrap());
        assert!(before == after, "{i}");
    }
}

/// A set that differs from the one that was kept is received from the beginning, and a directory of
/// the user's that stands in the way stays.
#[test]
fn what_was_kept_of_another_set_is_not_used() {
    let dir = Scratch::new();
    let (top, dest) = (dir.path("tree"), dir.path("to"));
    std::fs::create_dir(&top).unwrap();
    std::fs::rename(dir.file("long", 30_000_000), top.join("long")).unwrap();
    killed(&top, &dest);
    std::fs::create_dir(dest.join("tree")).unwrap();
    std::fs::write(dest.join("tree/long"), "mine").unwrap();
    let (mut sender, address) = send(&[&top], &[]);
    let end = recv(&address, "r", &dest).end().expect(2);
    let is_told = end.stderr.contains("move one of them away");
    assert!(is_told, "{}", end.stderr);
    sender.until("refused", |_| true);
    drop(sender);
    assert_eq!(std::fs::read(dest.join("tree/long")).unwrap(), b"mine");
    std::fs::remove_dir_all(dest.join("tree")).unwrap();
    assert!(staged(&dest).is_dir(), "what was kept stays");
    // Another file is in the set now.
    std::fs::write(top.join("another"), "one").unwrap();
    let (sender, address) = send(&[&top], &[]);
    let end = recv(&address, "r", &dest).end().expect(0);
    sender.end().expect(0);
    assert_eq!(end.all("resumed").count(), 0);
    common::same(&top.join("long"), &dest.join("tree/long"));
}
