//! Sets of files and directories, between real processes on the loopback.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crate::common::control::{Peer, entry};
use crate::common::tree::{described, recv, send, tree};
use crate::common::{self, AT_ONCE, FABRICAST, Run, Scratch, may_mount, receiver};
use fabricast::object::manifest::{Kind, Manifest, TOP};
use fabricast::object::pack::{Content, Pack, Piece};
use serde_json::json;

#[test]
fn a_tree_and_a_file_to_three_with_modes_times_and_links() {
    let dir = Scratch::new();
    let top = tree(&dir);
    let file = dir.file("file", 100_000);
    let (sender, address) = send(&[&top, &file], &["--min-receivers", "3"]);
    let dest = |i: usize| dir.path(&format!("to{i}"));
    let runs: Vec<Run> = (0..3)
        .map(|i| {
            recv(
                &address,
                &format!("r{i}"),
                &dest(i),
                &["--inject-damage", "2"],
            )
        })
        .collect();
    let sent = sender.end().expect(0);
    assert_eq!(sent.one("summary")["verified"], 3);
    for (i, run) in runs.into_iter().enumerate() {
        let end = run.end().expect(0);
        assert_eq!(end.one("done")["root"], sent.one("summary")["root"]);
        assert!(end.one("done")["tally"]["mended"].as_u64() > Some(0));
        assert_eq!(described(&dest(i).join("tree")), described(&top));
        common::same(&file, &dest(i).join("file"));
        assert_eq!(std::fs::read_dir(dest(i)).unwrap().count(), 2);
    }
    // The only directory of a set may get another name.
    let (sender, address) = send(&[&top.join("deep")], &[]);
    let run = receiver(&address, "r0", &dir.path("renamed"), &[]);
    sender.end().expect(0);
    run.end().expect(0);
    assert!(dir.path("renamed/er/b").exists());
}

/// A receiver whose kernel knows no `openat2`, or whose service manager lets none pass, stores a
/// tree and deletes what is surplus.
#[test]
fn a_receiver_without_openat2_stores_a_tree() {
    let dir = Scratch::new();
    let top = tree(&dir);
    std::fs::create_dir_all(dir.path("to/tree/deep")).unwrap();
    std::fs::write(dir.path("to/tree/deep/surplus"), "x").unwrap();
    let (sender, address) = send(&[&top], &[]);
    let mut command = Command::new("python3");
    command.arg(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/common/refuse_openat2.py"
    ));
    command.args([FABRICAST, "recv", "--json", "--from"]);
    command.args([&address, "--force", "--delete", "--dir"]);
    command.arg(dir.path("to"));
    let run = Run::spawn(command);
    sender.end().expect(0);
    run.end().expect(0);
    assert_eq!(described(&dir.path("to/tree")), described(&top));
}

#[test]
fn many_small_files_go_in_few_packs() {
    let dir = Scratch::new();
    let top = dir.path("many");
    std::fs::create_dir(&top).unwrap();
    for i in 0..5000 {
        std::fs::write(top.join(i.to_string()), i.to_string().repeat(50)).unwrap();
    }
    let (sender, address) = send(&[&top], &[]);
    let run = recv(&address, "r0", &dir.path("to"), &[]);
    sender.end().expect(0);
    run.end().expect(0);
    assert_eq!(described(&dir.path("to/many")), described(&top));
}

/// Files with the same bytes are sent once. Space and --max-size count them all.
#[test]
fn identical_files_are_sent_once() {
    let dir = Scratch::new();
    let top = dir.path("top");
    std::fs::create_dir(&top).unwrap();
    let file = dir.file("top/a", 3_000_000);
    for name in ["b", "c"] {
        std::fs::copy(&file, top.join(name)).unwrap();
    }
    let (sender, address) = send(&[&top], &[]);
    let run = recv(&address, "r0", &dir.path("to"), &[]);
    let sent = sender.end().expect(0);
    assert_eq!(sent.one("summary")["len"], 3_000_000);
    assert_eq!(run.end().expect(0).one("done")["len"], 3_000_000);
    assert_eq!(described(&dir.path("to/top")), described(&top));
    let (sender, address) = send(&[&top], &[]);
    let run = recv(&address, "r0", &dir.path("small"), &["--max-size", "8M"]);
    sender.end().expect(4);
    let end = run.end().expect(7);
    assert!(end.stderr.contains("--max-size"), "{}", end.stderr);
}

/// Before the manifest is here, the receiver knows of no copies, and what is sent fits.
#[test]
fn copies_that_do_not_fit_are_found_with_the_manifest() {
    if !may_mount() {
        return;
    }
    let dir = Scratch::new();
    let (top, to) = (dir.path("top"), dir.path("to"));
    std::fs::create_dir(&top).unwrap();
    std::fs::create_dir(&to).unwrap();
    let file = dir.file("top/a", 3 << 20);
    for name in ["b", "c", "d"] {
        std::fs::copy(&file, top.join(name)).unwrap();
    }
    let (sender, address) = send(&[&top], &[]);
    let mut command = Command::new("unshare");
    let script = "mount -t tmpfs -o size=8m none \"$1\" && exec \"$0\" recv --json --reserve 0 \
                  --dir \"$1\" --from \"$2\"";
    command.args(["-m", "sh", "-c", script, FABRICAST]);
    command.arg(&to).arg(address);
    let end = Run::spawn(command).end().expect(7);
    assert!(end.stderr.contains("it has 12 MiB"), "{}", end.stderr);
    sender.end().expect(4);
}

/// A name that is taken while its file comes: the file does not come in its place, and nothing of
/// it stays.
#[test]
fn of_a_file_whose_name_is_taken_meanwhile_nothing_stays() {
    let dir = Scratch::new();
    let to = dir.path("to");
    std::fs::create_dir(&to).unwrap();
    let file = dir.file("file", 8_000_000);
    let (mut sender, address) = send(&[&file], &["--rate", "8MB/s"]);
    let run = recv(&address, "r0", &to, &[]);
    sender.until_share_of("fastest", 40);
    std::fs::write(to.join("file"), "mine").unwrap();
    let end = run.end().expect(1);
    assert!(end.stderr.contains("exists already"), "{}", end.stderr);
    sender.end().expect(4);
    let names = std::fs::read_dir(&to).unwrap();
    let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["file"]);
    assert_eq!(std::fs::read(to.join("file")).unwrap(), b"mine");
}

#[test]
fn what_is_there_is_kept_unless_forced() {
    let dir = Scratch::new();
    let top = tree(&dir);
    std::fs::create_dir_all(dir.path("to/tree/deep")).unwrap();
    std::fs::write(dir.path("to/tree/a"), "mine").unwrap();
    std::fs::write(dir.path("to/tree/mine"), "mine").unwrap();
    let (sender, address) = send(&[&top], &[]);
    let run = recv(&address, "r0", &dir.path("to"), &[]);
    let end = run.end().expect(1);
    assert!(
        end.stderr.contains("tree/a exists already"),
        "{}",
        end.stderr
    );
    assert!(end.stderr.contains("--force"), "{}", end.stderr);
    sender.end().expect(4);
    assert_eq!(std::fs::read(dir.path("to/tree/a")).unwrap(), b"mine");
    // Twice: the second time, everything is there.
    for _ in 0..2 {
        let (sender, address) = send(&[&top], &[]);
        let run = recv(&address, "r0", &dir.path("to"), &["--force"]);
        sender.end().expect(0);
        run.end().expect(0);
        assert_eq!(std::fs::read(dir.path("to/tree/mine")).unwrap(), b"mine");
        std::fs::remove_file(dir.path("to/tree/mine")).unwrap();
        // The directory's time is that of the source, up to the file that has just gone.
        let [got, sent] = [dir.path("to/tree"), top.clone()].map(|t| described(&t)[1..].to_vec());
        assert_eq!(got, sent);
        std::fs::write(dir.path("to/tree/mine"), "mine").unwrap();
    }
}

/// A file that changes or goes after it was listed fails by name; the others arrive.
#[test]
fn a_file_that_cannot_be_read_fails_alone() {
    let dir = Scratch::new();
    let top = dir.path("top");
    std::fs::create_dir(&top).unwrap();
    for name in ["a", "b", "c", "d"] {
        std::fs::rename(dir.file(name, 200_000), top.join(name)).unwrap();
    }
    let (mut sender, address) = send(&[&top], &["--min-receivers", "2"]);
    std::fs::remove_file(top.join("b")).unwrap();
    std::fs::write(top.join("c"), "shorter").unwrap();
    let runs = [0, 1].map(|i| {
        let to = dir.path(&format!("to{i}"));
        recv(&address, &format!("r{i}"), &to, &[])
    });
    for name in ["top/b", "top/c"] {
        let failed = sender.until("file_failed", |_| true);
        assert!(failed["path"].as_str().unwrap().ends_with(name), "{failed}");
    }
    let sent = sender.end().expect(10);
    assert_eq!(sent.one("summary")["failed"].as_array().unwrap().len(), 2);
    assert_eq!(sent.one("summary")["verified"], 2);
    for (i, run) in runs.into_iter().enumerate() {
        let end = run.end().expect(10);
        let failed = &end.one("done")["failed"];
        assert_eq!(failed.as_array().unwrap().len(), 2, "{failed}");
        assert_eq!(end.one("done")["len"], 400_000);
        assert_eq!(sent.result(&format!("r{i}"))["placed"], 400_000);
        let to = dir.path(&format!("to{i}/top"));
        let mut names: Vec<_> = std::fs::read_dir(&to)
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        names.sort();
        assert_eq!(names, ["a", "d"]);
        common::same(&top.join("a"), &to.join("a"));
        common::same(&top.join("d"), &to.join("d"));
    }
}

/// A copy of a file that fails is told of, too, at both ends.
#[test]
fn the_copies_of_a_file_that_cannot_be_read_fail_with_it() {
    let dir = Scratch::new();
    let top = dir.path("top");
    std::fs::create_dir(&top).unwrap();
    let file = dir.file("top/a", 200_000);
    std::fs::copy(&file, top.join("b")).unwrap();
    dir.file("top/c", 100);
    for (option, count) in [(None, 2), (Some("--no-compare"), 1)] {
        let options: Vec<&str> = option.into_iter().collect();
        let (sender, address) = send(&[&top], &options);
        std::fs::rename(&file, dir.path("away")).unwrap();
        let run = recv(&address, "r0", &dir.path(&format!("to{count}")), &[]);
        let sent = sender.end().expect(10);
        let done = run.end().expect(10).one("done").clone();
        for told in [&sent.one("summary")["failed"], &done["failed"]] {
            assert_eq!(told.as_array().unwrap().len(), count, "{told}");
        }
        // The length of a set does not count copies.
        let here = 100 + 200_000 * (2 - count);
        assert_eq!(
            (&done["len"], &sent.result("r0")["placed"]),
            (&json!(here), &json!(here))
        );
        std::fs::rename(dir.path("away"), &file).unwrap();
    }
}

/// Programs that read JSON can tell the files of a set apart, whatever their names are.
#[test]
fn a_name_that_is_no_utf_8_is_told_exactly() {
    let dir = Scratch::new();
    let top = dir.path("top");
    std::fs::create_dir(&top).unwrap();
    let odd = top.join(std::ffi::OsStr::from_bytes(b"odd\xff"));
    std::fs::write(&odd, "odd").unwrap();
    std::fs::write(top.join("b"), "b").unwrap();
    let mut listed = Command::new(FABRICAST);
    listed.args(["send", "--dry-run", "--json", top.to_str().unwrap()]);
    let lines = String::from_utf8(listed.output().unwrap().stdout).unwrap();
    let hex = |path: &Path| -> String {
        let bytes = path.as_os_str().as_bytes().iter();
        bytes.map(|b| format!("{b:02x}")).collect()
    };
    let hexed = format!("\"path_hex\":\"{}\"", hex(&odd));
    assert!(lines.contains(&hexed), "{lines}");
    assert_eq!(lines.matches("path_hex").count(), 1, "{lines}");

    let (mut sender, address) = send(&[&top], &[]);
    std::fs::remove_file(&odd).unwrap();
    let run = recv(&address, "r0", &dir.path("to"), &[]);
    let failed = sender.until("file_failed", |_| true);
    assert_eq!(failed["path_hex"], hex(&odd));
    assert!(failed["path"].as_str().unwrap().ends_with("odd\u{fffd}"));
    assert_eq!(sender.end().expect(10).one("summary")["failed"][0], {
        let mut same = failed.clone();
        same.as_object_mut().unwrap().remove("event");
        same
    });
    let end = run.end().expect(10);
    let left = dir.path("to").join("top").join(odd.file_name().unwrap());
    assert_eq!(end.one("done")["failed"][0]["path_hex"], hex(&left));
}

#[test]
fn what_is_excluded_or_only_listed_is_not_sent() {
    let dir = Scratch::new();
    let top = tree(&dir);
    let path = top.to_str().unwrap();
    let mut listed = Command::new(FABRICAST);
    listed.args(["send", "--dry-run", "--json", "--exclude", "d?ep", path]);
    let output = listed.output().unwrap();
    assert!(output.status.success());
    let lines = String::from_utf8(output.stdout).unwrap();
    let entries: Vec<serde_json::Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let has = |name: &str| {
        entries
            .iter()
            .any(|e| e["path"].as_str().unwrap().ends_with(name))
    };
    assert!(
        has("tree/a") && has("tree/empty") && !has("deep") && !has("er/b"),
        "{lines}"
    );

    let (sender, address) = send(&[&top], &["--exclude", "deep", "--exclude", "[Aa]"]);
    let run = recv(&address, "r0", &dir.path("to"), &[]);
    sender.end().expect(0);
    run.end().expect(0);
    let to = dir.path("to/tree");
    assert!(to.join("nothing").exists() && !to.join("deep").exists() && !to.join("a").exists());
}

/// A page with these entries, written without the checks of a manifest.
fn page(entries: &[(u32, &[u8], Kind)]) -> Pack {
    let mut page = Vec::new();
    for (parent, name, kind) in entries {
        let mut one = Manifest::default();
        let plain = entry(TOP, b"x", Kind::Directory, 0o755);
        one.add(plain).unwrap();
        let mut bytes = Vec::new();
        one.put_page(0, &mut bytes);
        bytes.truncate(bytes.len() - 4 - 2 - 1);
        bytes[0] = match kind {
            Kind::File(_) => 0,
            Kind::Directory => 1,
            Kind::Symlink(_) => 2,
            Kind::HardLink(_) => 3,
            Kind::Stream => 4,
            Kind::Special(_) => 5,
            Kind::Copy(_) => 8,
        };
        bytes.extend(parent.to_be_bytes());
        bytes.extend((name.len() as u16).to_be_bytes());
        bytes.extend(*name);
        match kind {
            Kind::File(len) => bytes.extend(len.to_be_bytes()),
            Kind::Directory | Kind::Stream | Kind::Special(_) => {}
            Kind::Symlink(target) => {
                bytes.extend((target.len() as u16).to_be_bytes());
                bytes.extend(&target[..]);
            }
            Kind::HardLink(to) | Kind::Copy(to) => bytes.extend(to.to_be_bytes()),
        }
        page.extend(bytes);
    }
    Pack::new(Content::Page, &page)
}

/// A hand-made sender: what it sends leads nowhere but into the destination, and ends in an error.
#[test]
fn a_manifest_that_lies_leads_nowhere() {
    let dir = Scratch::new();
    let to = dir.path("to");
    std::fs::create_dir(&to).unwrap();
    let outside = dir.path("outside");
    std::fs::create_dir(&outside).unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let out: Box<[u8]> = outside.as_os_str().as_bytes().into();
    let directory = |name: &'static [u8]| (TOP, name, Kind::Directory);
    let cases = [
        page(&[(TOP, b"/etc/x", Kind::File(0))]),
        page(&[(TOP, b"..", Kind::Directory)]),
        page(&[(TOP, b".profile", Kind::File(0))]),
        page(&[directory(b"d"), (0, b"../x", Kind::File(0))]),
        page(&[directory(b"d"), (0, b"a\0b", Kind::File(0))]),
        page(&[
            directory(b"d"),
            (0, b"f", Kind::File(0)),
            (0, b"f", Kind::File(0)),
        ]),
        page(&[directory(b"d"), (0, b"f", Kind::File(u64::MAX))]),
        page(&[directory(b"d"), (0, b"l", Kind::HardLink(7))]),
        page(&[directory(b"d"), (0, b"c", Kind::Copy(0))]),
        page(&[directory(b"d"), (0, b"s", Kind::Stream)]),
        page(&[(TOP, b"l", Kind::Symlink(out)), (0, b"f", Kind::File(0))]),
        page(&[directory(b"d"), (0, b"f", Kind::File(1 << 40))]),
        Pack::new(Content::Page, b"no manifest"),
        Pack::new(
            Content::Pieces(vec![Piece::Failed {
                file: 9,
                reason: "x".into(),
            }]),
            b"",
        ),
    ];
    for pack in cases {
        let run = recv(&address, "r0", &to, &[]);
        let mut peer = Peer::accept(&listener);
        let mut stream = peer.start_set("d", 3, 100);
        stream.send(&mut peer, &pack, &pack.bytes);
        let code = peer.until("failed")["code"].as_u64().unwrap();
        assert!([2, 6].contains(&code), "{code}");
        run.end().expect(code as i32);
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
        for left in std::fs::read_dir(&to).unwrap() {
            let left = left.unwrap().path();
            assert!(left.ends_with("d"), "{left:?}");
            assert_eq!(std::fs::read_dir(&left).unwrap().count(), 0);
            std::fs::remove_dir(left).unwrap();
        }
    }
    // A directory of the destination that is a link to another place is not entered.
    std::fs::create_dir(to.join("d")).unwrap();
    symlink(&outside, to.join("d/in")).unwrap();
    let run = recv(&address, "r0", &to, &["--force"]);
    let mut peer = Peer::accept(&listener);
    let mut stream = peer.start_set("d", 3, 0);
    let pack = page(&[
        directory(b"d"),
        (0, b"in", Kind::Directory),
        (1, b"f", Kind::File(0)),
    ]);
    stream.send(&mut peer, &pack, &pack.bytes);
    peer.until("failed");
    assert_ne!(run.end().code, Some(0));
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
}

/// The first pack never comes, and the second is there: the receiver has nothing to do, so it ends
/// when the sender goes on without it.
#[test]
fn a_pack_that_waits_for_another_does_not_keep_a_receiver() {
    let dir = Scratch::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut run = recv(&address, "r0", &dir.path("to"), &[]);
    let mut peer = Peer::accept(&listener);
    let mut stream = peer.start_set("f", 1, 100);
    let mut manifest = Manifest::default();
    let file = entry(TOP, b"f", Kind::File(100), 0o644);
    manifest.add(file).unwrap();
    let mut page = Vec::new();
    manifest.put_page(0, &mut page);
    let page = Pack::new(Content::Page, &page);
    stream.announce(&mut peer, &page, page.bytes.len());
    let piece = Piece::Bytes {
        file: 0,
        offset: 0,
        len: 100,
        last: true,
    };
    let pieces = Pack::new(Content::Pieces(vec![piece]), &[1; 100]);
    stream.send(&mut peer, &pieces, &pieces.bytes);
    run.until("progress", |e| e["placed"] == 100);
    drop(stream);
    peer.say(json!({"say": "end", "packs": 2, "key": "00".repeat(32)}));
    peer.say(json!({"say": "removed", "code": 9, "reason": "it is too slow"}));
    let end = run.end_within(AT_ONCE).expect(9);
    assert!(end.stderr.contains("too slow"), "{}", end.stderr);
    assert_eq!(std::fs::read_dir(dir.path("to")).unwrap().count(), 0);
}

/// What is in the directories of the set and not in it goes, whatever it is, and nothing else. A
/// dry run tells of it and changes nothing.
#[test]
fn what_is_not_sent_is_deleted_on_request_within_the_set_alone() {
    let dir = Scratch::new();
    let top = tree(&dir);
    let (to, outside) = (dir.path("to"), dir.path("outside"));
    std::fs::create_dir_all(to.join("tree/old/er")).unwrap();
    std::fs::create_dir_all(to.join("tree/deep/er")).unwrap();
    std::fs::create_dir(&outside).unwrap();
    let kept = [
        to.join("beside"),
        outside.join("kept"),
        to.join("tree/.fabricast-x.1.partial"),
    ];
    let gone = [
        to.join("tree/gone"),
        to.join("tree/old/er/gone"),
        to.join("tree/deep/er/gone"),
    ];
    for path in kept.iter().chain(&gone) {
        std::fs::write(path, "here").unwrap();
    }
    symlink(&outside, to.join("tree/old/out")).unwrap();
    symlink(&outside, to.join("tree/deep/out")).unwrap();
    let listed = [
        "tree/deep/er/gone",
        "tree/deep/out",
        "tree/gone",
        "tree/old",
    ];
    let (sender, address) = send(&[&top], &[]);
    let run = recv(&address, "r0", &to, &["--force", "--delete", "--dry-run"]);
    let end = run.end().expect(0);
    let mut told: Vec<&str> = end
        .all("surplus")
        .map(|e| e["path"].as_str().unwrap())
        .collect();
    told.sort_unstable();
    let expected: Vec<String> = listed
        .iter()
        .map(|p| to.join(p).display().to_string())
        .collect();
    assert_eq!(told, expected);
    sender.end().expect(4);
    assert!(gone.iter().all(|path| path.exists()) && !to.join("tree/a").exists());
    let (sender, address) = send(&[&top], &[]);
    let run = recv(&address, "r0", &to, &["--force", "--delete"]);
    let end = run.end().expect(0);
    sender.end().expect(0);
    // The links, three files, and two directories.
    assert_eq!(end.one("done")["deleted"], 7);
    assert!(kept.iter().all(|path| path.exists()));
    std::fs::remove_file(&kept[2]).unwrap();
    // The directory's time is that of the source, up to the file that has just gone.
    let [got, sent] = [to.join("tree"), top].map(|t| described(&t)[1..].to_vec());
    assert_eq!(got, sent);
}

/// A file system that is mounted within the set is not entered.
#[test]
fn nothing_is_deleted_on_another_file_system() {
    if !may_mount() {
        return;
    }
    // A directory that is not in the set, and one that is.
    for (at, why) in [
        ("mount", "another file system: unmount it"),
        ("empty", "another file system, in which nothing is deleted"),
    ] {
        stays_mounted(at, why);
    }
}

/// A receiver that deletes, to which another file system is mounted at this place of its tree.
fn stays_mounted(at: &str, why: &str) {
    let dir = Scratch::new();
    let top = tree(&dir);
    let mount = dir.path("to/tree").join(at);
    std::fs::create_dir_all(&mount).unwrap();
    let (sender, address) = send(&[&top], &[]);
    let script = format!(
        "mount -t tmpfs none {0} && touch {0}/kept && {1} recv --json --dir {2} --force --delete \
         --from {address}; code=$?; ls {0} >&2; exit $code",
        mount.display(),
        FABRICAST,
        dir.path("to").display(),
    );
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", &script]);
    let end = Run::spawn(command).end().expect(2);
    assert!(end.stderr.contains(why), "{}", end.stderr);
    assert!(end.stderr.ends_with("kept\n"), "{}", end.stderr);
    sender.end().expect(4);
}

fn set_attribute(path: &Path, name: &str, value: &[u8]) -> bool {
    rustix::fs::setxattr(path, name, value, rustix::fs::XattrFlags::empty()).is_ok()
}

fn attribute(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 100];
    let len = rustix::fs::lgetxattr(path, name, &mut value[..]).ok()?;
    value.truncate(len);
    Some(value)
}

/// Each end has to be asked; others than `user.*` are only for a privileged receiver.
#[test]
fn extended_attributes_are_set_on_request() {
    let dir = Scratch::new();
    let top = tree(&dir);
    let marked = ["a", "nothing", "deep/er"];
    for path in marked {
        if !set_attribute(&top.join(path), "user.mark", path.as_bytes()) {
            eprintln!("skipped: the file system has no extended attributes");
            return;
        }
    }
    let is_root = set_attribute(&top.join("a"), "trusted.mark", b"root");
    let options: [(&[&str], &[&str], bool, bool); 4] = [
        (&["--xattrs"], &["--xattrs"], true, false),
        (&["--xattrs"], &["--xattrs", "--privileged"], true, is_root),
        (&["--xattrs"], &[], false, false),
        (&[], &["--xattrs"], false, false),
    ];
    for (number, (at_sender, at_receiver, has_user, has_trusted)) in (0..).zip(options) {
        let to = dir.path(&format!("to{number}"));
        let (sender, address) = send(&[&top], at_sender);
        let run = recv(&address, "r0", &to, at_receiver);
        sender.end().expect(0);
        run.end().expect(0);
        assert_eq!(described(&to.join("tree")), described(&top));
        for path in marked {
            let value = has_user.then(|| path.as_bytes().to_vec());
            assert_eq!(attribute(&to.join("tree").join(path), "user.mark"), value);
        }
        let trusted = attribute(&to.join("tree/a"), "trusted.mark");
        assert_eq!(trusted.is_some(), has_trusted, "{number}");
    }
}

/// The receiver has to be asked, too, and devices need root.
#[test]
fn devices_and_fifos_are_made_on_request() {
    use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    let dir = Scratch::new();
    let top = tree(&dir);
    let mode = Mode::from_raw_mode(0o640);
    let make = |name: &str, kind, device| mknodat(CWD, top.join(name), kind, mode, device).is_ok();
    assert!(make("deep/fifo", FileType::Fifo, 0));
    let is_root = make("zero", FileType::CharacterDevice, makedev(1, 5));
    let count = 1 + u64::from(is_root);
    for (number, at_receiver) in [&["--privileged"][..], &[]].into_iter().enumerate() {
        let to = dir.path(&format!("to{number}"));
        let (sender, address) = send(&[&top], &["--privileged"]);
        let run = recv(&address, "r0", &to, at_receiver);
        sender.end().expect(0);
        let end = run.end().expect(0);
        let is_asked = !at_receiver.is_empty();
        let left = end.one("done")["special"].as_u64();
        assert_eq!(left, Some(if is_asked { 0 } else { count }));
        let fifo = to.join("tree/deep/fifo");
        assert_eq!(fifo.exists(), is_asked);
        if !is_asked {
            continue;
        }
        for name in ["deep/fifo", "zero"].iter().take(count as usize) {
            let [got, sent] = [to.join("tree"), top.clone()].map(|t| {
                let meta = t.join(name).metadata().unwrap();
                (meta.mode(), meta.mtime(), meta.rdev())
            });
            assert_eq!(got, sent, "{name}");
        }
        assert!(fifo.metadata().unwrap().file_type().is_fifo());
        // Again, over what is there.
        let (sender, address) = send(&[&top], &["--privileged"]);
        let run = recv(&address, "r0", &to, &["--privileged", "--force"]);
        sender.end().expect(0);
        run.end().expect(0);
    }
    let (sender, address) = send(&[&top], &[]);
    let run = recv(&address, "r0", &dir.path("none"), &["--privileged"]);
    sender.end().expect(0);
    run.end().expect(0);
    assert!(!dir.path("none/tree/deep/fifo").exists());
}
