//! `fabricast copy` on the loopback: each host is a folder, and a script stands for the launcher.

use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::common::FABRICAST;
use crate::common::control::{Peer, able, port};
use crate::common::hosts::{Hosts, host, is_ended, words};
use crate::common::{self, Run, Scratch, same, set_mode, shell};
use fabricast::bootstrap::PreSharedKey;
use fabricast::bootstrap::psk::Exchange;
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use serde_json::{Value, json};

#[test]
fn hosts_get_a_tree() {
    let hosts = Hosts::new(&["n01", "n02", "n03"]);
    let tree = hosts.dir.path("tree");
    fs::create_dir_all(tree.join("sub")).unwrap();
    fs::write(tree.join("sub/file"), "bytes").unwrap();
    set_mode(&tree.join("sub/file"), 0o751);
    let end = hosts.copy(&tree, "n[01-03]:out", &[]).end().expect(0);
    let summary = end.one("summary");
    assert_eq!(
        (&summary["verified"], &summary["hosts"]),
        (&json!(3), &json!(3))
    );
    for name in &hosts.names {
        assert_eq!(end.result(name)["state"], "verified");
        assert_eq!(host(&end, name)["code"], 0);
        let file = hosts.dir.path(name).join("out/tree/sub/file");
        same(&tree.join("sub/file"), &file);
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o751);
    }
    // A second copy refuses to replace it, but for --force.
    let end = hosts.copy(&tree, "n[01-03]:out", &[]).end().expect(4);
    assert!(end.stderr.contains("3 of 3 receivers"), "{}", end.stderr);
    hosts
        .copy(&tree, "n[01-03]:out", &["--force"])
        .end()
        .expect(0);
}

#[test]
fn hosts_get_standard_input() {
    let hosts = Hosts::new(&["a", "b"]);
    let source = hosts.dir.file("source", 3_000_000);
    let args = ["--json", "--name", "x"];
    let mut command = hosts.command(Path::new("-"), "a,b:out", &args);
    command.stdin(fs::File::open(&source).unwrap());
    let end = Run::fed(command).end().expect(0);
    assert_eq!(end.one("summary")["verified"], 2);
    for name in &hosts.names {
        same(&source, &hosts.dir.path(name).join("out/x"));
    }
}

#[test]
fn a_copy_says_how_long_its_receivers_wait_for_data() {
    let hosts = Hosts::new(&["a"]);
    let args = ["--json", "--name", "x", "--receive-timeout", "300ms"];
    let mut command = hosts.command(Path::new("-"), "a:out", &args);
    // Nothing ever comes by this pipe.
    let (read, _write) = std::io::pipe().unwrap();
    command.stdin(read);
    let end = Run::fed(command).end().expect(4);
    let lines = host(&end, "a")["lines"].to_string();
    assert!(lines.contains("--receive-timeout"), "{lines}");
}

/// The options for what is deleted and set go to the receivers.
#[test]
fn hosts_become_equal_to_the_source() {
    let hosts = Hosts::new(&["a"]);
    let tree = hosts.dir.path("tree");
    fs::create_dir(&tree).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        tree.join("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    let there = hosts.dir.path("a").join("out/tree");
    fs::create_dir_all(&there).unwrap();
    fs::write(there.join("old"), "bytes").unwrap();
    let args = ["--force", "--delete", "--privileged", "--xattrs"];
    hosts.copy(&tree, "a:out", &args).end().expect(0);
    assert!(!there.join("old").exists() && there.join("fifo").exists());
}

#[test]
fn a_host_that_cannot_be_reached_is_told_and_the_others_go_on() {
    let hosts = Hosts::new(&["a", "b"]);
    let source = hosts.dir.file("source", 100_000);
    let fails = "echo 'first line' >&2; printf 'no \\033[2Jroute\\n' >&2; exit 255";
    hosts.behave("b", fails);
    let end = hosts.copy(&source, "a,b:", &[]).end().expect(4);
    hosts.has("a", ".", &source);
    let absent = host(&end, "b");
    assert_eq!(
        (&absent["absent"], &absent["code"]),
        (&json!(true), &json!(255))
    );
    assert_eq!(absent["lines"], json!(["first line", "no \\u{1b}[2Jroute"]));
    assert_eq!(end.one("summary")["absent"], 1);

    // The same for people.
    let mut command = hosts.command(&source, "a,b:", &["--force"]);
    let said = command.output().unwrap();
    let table = String::from_utf8(said.stdout).unwrap();
    let told = String::from_utf8(said.stderr).unwrap();
    let early = "! b: its launcher ended with exit code 255: no \\u{1b}[2Jroute\n";
    assert!(told.contains(early), "{told}");
    assert!(told.contains("! no receiver came from b\n"), "{told}");
    assert_eq!(said.status.code(), Some(4), "{table}");
    for line in [
        "b         ABSENT",
        "b: its launcher ended with exit code 255",
        "    | no \\u{1b}[2Jroute",
        " to 1 of 2 in ",
    ] {
        assert!(table.contains(line), "{table}");
    }

    // Too few: nothing is sent.
    let few = ["--min-receivers", "2", "--force"];
    let end = hosts.copy(&source, "a,b:", &few).end().expect(3);
    assert!(end.stderr.contains("--min-receivers"), "{}", end.stderr);
    assert_eq!(host(&end, "b")["code"], 255);

    // The sender does not wait for others either, and does not say that they took too long.
    hosts.behave("a", "exec cat >/dev/null");
    let end = hosts.copy(&source, "a,b:", &few).end().expect(3);
    let reason = host(&end, "a")["reason"].to_string();
    assert!(reason.contains("too few hosts were left"), "{reason}");
    hosts.behave("b", "exec cat >/dev/null");
    let soon = [&few[..], &["--start-timeout", "1s"]].concat();
    let end = hosts.copy(&source, "a,b:", &soon).end().expect(3);
    let reason = host(&end, "a")["reason"].to_string();
    assert!(reason.contains("in time (--start-timeout)"), "{reason}");
    hosts.expect_none_left();
}

#[test]
fn a_launcher_that_hangs_is_waited_for_and_ended() {
    let hosts = Hosts::new(&["a", "b", "c"]);
    let source = hosts.dir.file("source", 100_000);
    hosts.behave("b", "trap '' TERM; sleep 1000 & wait; sleep 1000");
    let enough = ["--start-timeout", "3s", "--min-receivers", "2"];
    let end = hosts.copy(&source, "a,b,c:", &enough).end().expect(4);
    let hung = host(&end, "b");
    assert_eq!(
        (&hung["absent"], &hung["signal"]),
        (&json!(true), &json!(9))
    );
    for name in ["a", "c"] {
        hosts.has(name, ".", &source);
    }
    hosts.expect_none_left();

    let few = ["--start-timeout", "1s", "--min-receivers", "3", "--force"];
    let end = hosts.copy(&source, "a,b,c:", &few).end().expect(3);
    assert!(
        end.stderr
            .contains("receivers came, and at least 3 are needed"),
        "{}",
        end.stderr
    );
    hosts.expect_none_left();
}

#[test]
fn ctrl_c_leaves_nothing_running() {
    let hosts = Hosts::new(&["a", "b"]);
    let source = hosts.dir.file("source", common::SIZE);
    let steady = ["--rate", "20MB/s"];
    let mut run = hosts.copy(&source, "a,b:", &steady);
    run.until_share(10);
    assert!(hosts.processes(Some(run.pid())).len() >= 2);
    run.signal(Signal::INT);
    let end = run.end().expect(130);
    hosts.expect_none_left();
    assert_eq!(end.result("a")["state"], "failed");
    hosts.has_only_what_is_kept("a", ".");
    hosts.copy(&source, "a,b:", &[]).end().expect(0);
    hosts.has("a", ".", &source);
}

#[test]
fn a_second_ctrl_c_kills_launchers_that_hang() {
    let hosts = Hosts::new(&["a", "b"]);
    let source = hosts.dir.file("source", 100);
    hosts.behave("b", "trap '' TERM; sleep 1000; sleep 1000");
    let mut run = hosts.copy(&source, "a,b:", &[]);
    run.until("connected", |e| e["receiver"] == "a");
    let open = |pid: &Pid| pidfd_open(*pid, PidfdFlags::empty()).ok();
    let all = hosts.processes(Some(run.pid()));
    let ends: Vec<_> = all.iter().filter_map(open).collect();
    let receiver = all.iter().find(|pid| words(**pid).contains("--as=a"));
    let receiver = open(receiver.unwrap()).unwrap();
    run.signal(Signal::INT);
    // The end of the receiver shows that the first signal is being obeyed.
    assert!(is_ended(&receiver));
    run.signal(Signal::INT);
    run.end().expect(130);
    assert!(ends.iter().all(is_ended));
    hosts.expect_none_left();
}

/// A receiver that has no connection to lose learns by the end of its standard input that the copy
/// is gone.
#[test]
fn a_killed_copy_leaves_nothing_running() {
    let hosts = Hosts::new(&["a", "b"]);
    let source = hosts.dir.file("source", 100);
    // This receiver looks for a sender where none is.
    hosts.behave(
        "b",
        "for word; do\n  shift\n  case $word in --from=*) word=--from=127.0.0.1:1 ;; esac\n  \
         set -- \"$@\" \"$word\"\ndone\nexec \"$@\"",
    );
    let mut run = hosts.copy(&source, "a,b:", &[]);
    run.until("connected", |e| e["receiver"] == "a");
    let open = |pid: &Pid| pidfd_open(*pid, PidfdFlags::empty()).ok();
    let all = hosts.processes(Some(run.pid()));
    let ends: Vec<_> = all.iter().filter_map(open).collect();
    assert!(ends.len() >= 2);
    run.signal(Signal::KILL);
    assert!(ends.iter().all(is_ended));
    hosts.expect_none_left();
}

#[test]
fn a_launcher_that_is_killed_ends_its_receiver_and_no_other() {
    let hosts = Hosts::new(&["a", "b"]);
    let source = hosts.dir.file("source", common::SIZE);
    // The receiver is a child of this launcher.
    hosts.behave("b", "echo $$ >pid; \"$@\"; exit $?");
    let mut run = hosts.copy(&source, "a,b:", &["--rate", "20MB/s"]);
    run.until_share(10);
    let pid = fs::read_to_string(hosts.dir.path("b/pid")).unwrap();
    let pid = Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
    rustix::process::kill_process(pid, Signal::KILL).unwrap();
    let end = run.end().expect(4);
    assert_eq!(host(&end, "b")["signal"], 9);
    assert_ne!(end.result("b")["state"], "verified");
    hosts.has("a", ".", &source);
    hosts.expect_none_left();
}

/// A receiver that waits until the test lets it go on.
struct Gate(fs::File);

impl Gate {
    /// Holds the receiver of this host back.
    fn new(hosts: &Hosts, host: &str) -> Gate {
        let path = hosts.dir.path(&format!("{host}.gate"));
        let file = fs::File::create(&path).unwrap();
        flock(&file, FlockOperation::LockExclusive).unwrap();
        hosts.behave(
            host,
            &format!("flock -s '{}' true; exec \"$@\"", path.display()),
        );
        Gate(file)
    }

    fn open(self) {
        flock(&self.0, FlockOperation::Unlock).unwrap();
    }
}

/// Why a client is refused that shows no key, or a wrong one.
const NO_KEY: &str = "did not show that it knows its key";

/// The members of a hello with a nonce: the sender asks for the key.
fn with_nonce(mut members: Value) -> Value {
    members["nonce"] = json!("00112233445566778899aabbccddeeff");
    members
}

/// A client that says hello with a nonce under this name, and shows this key.
fn shows(to: &str, name: &str, members: Value, key: &PreSharedKey) -> Peer {
    let nonce = members["nonce"].clone();
    let mut peer = Peer::hello(to, name, members);
    let challenge = peer.until("authenticate");
    let mac = key.receiver_mac(&Exchange {
        session: challenge["session"].as_u64().unwrap(),
        receiver: serde_json::from_value(nonce).unwrap(),
        sender: serde_json::from_value(challenge["nonce"].clone()).unwrap(),
    });
    peer.say(json!({"say": "response", "mac": mac}));
    peer
}

/// Where the receivers connect to.
fn address(run: &mut Run) -> String {
    let listening = run.until("listening", |_| true);
    listening["address"].as_str().unwrap().to_owned()
}

#[test]
fn only_receivers_that_know_their_keys_are_admitted() {
    let hosts = Hosts::new(&["a", "b", "c"]);
    let source = hosts.dir.file("source", 100_000);
    // These launchers end with their receivers, as ssh does.
    let with_key =
        |key: &str| format!("mkfifo in; exec 3<&0; ({key}; exec cat <&3) >in & exec \"$@\" <in");
    hosts.behave("a", &with_key("head -n 1 <&3 >key; cat key"));
    // This host's receiver has another key.
    hosts.behave("b", &with_key("head -n 1 <&3 | tr 0-9a-f 1-9a-f0"));
    let gate = Gate::new(&hosts, "c");
    let mut run = hosts.copy(&source, "a,b,c:", &[]);
    let to = address(&mut run);
    // They come in whatever order.
    let events = [(); 2].map(|()| {
        let both = run.until_any(&["connected", "refused"]);
        (both["event"].clone(), both["receiver"].clone())
    });
    assert!(
        events.contains(&(json!("connected"), json!("a"))),
        "{events:?}"
    );
    assert!(
        events.contains(&(json!("refused"), json!("b@127.0.0.1"))),
        "{events:?}"
    );

    // A client without a key, one with a wrong one, and one with a key that was used.
    Peer::hello(&to, "c", json!({})).refused(NO_KEY);
    let key = fs::read_to_string(hosts.dir.path("a/key")).unwrap();
    let used = PreSharedKey::from_hex(key.trim()).unwrap();
    for (n, (name, key)) in [
        ("c", PreSharedKey::random().unwrap()),
        ("a", used.clone()),
        // Each key is good for its own name alone.
        ("c", used),
        ("nobody", PreSharedKey::random().unwrap()),
    ]
    .into_iter()
    .enumerate()
    {
        let members = with_nonce(port(5000 + n as u16));
        shows(&to, name, members, &key).refused(NO_KEY);
    }
    // A client that says something else, and one that repeats itself.
    let members = with_nonce(port(5004));
    for say in ["prepared", "hello"] {
        let mut peer = Peer::hello(&to, "c", members.clone());
        peer.until("authenticate");
        peer.say(match say {
            "hello" => json!({
                "say": "hello", "version": 11, "name": "c", "address": members["address"],
                "datagram": 1472, "window_bytes": 1u64 << 24,
            }),
            say => json!({"say": say}),
        });
        peer.refused("out of turn");
    }

    gate.open();
    let end = run.end().expect(4);
    for name in ["a", "c"] {
        assert_eq!(end.result(name)["state"], "verified");
        hosts.has(name, ".", &source);
    }
    let wrong = host(&end, "b");
    assert_eq!(
        (&wrong["absent"], &wrong["code"]),
        (&json!(true), &json!(9))
    );
    assert!(wrong["lines"].to_string().contains(NO_KEY), "{wrong}");
    // Nothing that is told holds a key.
    let told = format!("{end:?}");
    assert!(!told.contains(key.trim()), "{told}");
}

/// A host whose receiver is there only when the transfer runs gets everything. It has to show its
/// key like the others.
#[test]
fn a_host_that_is_slow_to_start_comes_late() {
    let hosts = Hosts::new(&["a", "b"]);
    let source = hosts.dir.file("source", common::SIZE);
    let gate = Gate::new(&hosts, "b");
    let options = ["--rate", "20MB/s", "--start-timeout", "1s"];
    let mut run = hosts.copy(&source, "a,b:", &options);
    let to = address(&mut run);
    run.until_share(10);
    Peer::hello(&to, "b", able()).refused(NO_KEY);
    shows(
        &to,
        "b",
        with_nonce(able()),
        &PreSharedKey::random().unwrap(),
    )
    .refused(NO_KEY);
    gate.open();
    let end = run.end().expect(0);
    for name in ["a", "b"] {
        assert_eq!(end.result(name)["state"], "verified");
        hosts.has(name, ".", &source);
    }
    assert_eq!(end.result("b")["part"], "late");
}

/// Without late receivers no client is asked for its key when the transfer runs.
#[test]
fn nobody_comes_late_to_a_copy_that_wants_none() {
    let hosts = Hosts::new(&["a"]);
    let source = hosts.dir.file("source", common::SIZE);
    let mut run = hosts.copy(&source, "a:", &["--rate", "20MB/s", "--late", "refuse"]);
    let to = address(&mut run);
    run.until_share(10);
    Peer::hello(&to, "late", with_nonce(able())).refused("has begun already");
    run.end().expect(0);
}

/// A receiver that gets this first line by its standard input, which the caller holds.
fn launched(line: &str, from: &str, dest: &Path) -> (Child, ChildStdin) {
    let mut child = Command::new(FABRICAST)
        .args(["recv", "--launched", "--as", "n", "--from", from, "--dir"])
        .arg(dest)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    writeln!(input, "{line}").unwrap();
    (child, input)
}

/// The exit code of a process that ends in time, and what it said.
fn end_of(mut child: Child) -> (Option<i32>, String) {
    let end = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
    let in_time = is_ended(&end);
    let _ = child.kill();
    let said = child.wait_with_output().unwrap();
    let text = String::from_utf8(said.stderr).unwrap();
    assert!(in_time, "{text}");
    (said.status.code(), text)
}

#[test]
fn a_receiver_takes_nothing_from_another_sender() {
    let dir = Scratch::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap().to_string();
    let key = PreSharedKey::random().unwrap().to_hex();
    let answers: [fn(&mut Peer); 2] = [
        // It shows nothing.
        |peer| peer.welcome("x", 0),
        // It shows what it has heard.
        |peer| {
            peer.until("hello");
            let nonce = "0".repeat(32);
            peer.say(json!({"say": "authenticate", "session": 7, "nonce": nonce}));
            let response = peer.until("response");
            peer.say(json!({
                "say": "welcome", "version": 11, "session": 7, "node": 1, "name": "x", "len": 0,
                "tops": 1, "entries": 1, "block": 1 << 20, "mac": response["mac"],
            }));
        },
    ];
    for answer in answers {
        let (child, _input) = launched(&key, &to, &dir.path("out"));
        answer(&mut Peer::accept(&listener));
        let (code, text) = end_of(child);
        assert_eq!(code, Some(9), "{text}");
        assert!(text.contains("does not know the key"), "{text}");
        assert!(!text.contains(&key), "{text}");
    }
    let (child, _input) = launched("no key", &to, &dir.path("out"));
    let (code, text) = end_of(child);
    assert_eq!(code, Some(2), "{text}");
}

#[test]
fn a_launched_receiver_ends_with_its_standard_input() {
    let dir = Scratch::new();
    let key = PreSharedKey::random().unwrap().to_hex();
    let (child, input) = launched(&key, "127.0.0.1:1", &dir.path("out"));
    drop(input);
    let (code, text) = end_of(child);
    assert_eq!(code, Some(8), "{text}");
    assert!(text.contains("has ended it"), "{text}");
}

/// As sshd does, this `ssh` joins its arguments and gives them to a shell in the home directory.
const SSH: &str = r#"
while [ "${1#-}" != "$1" ]; do
  case $1 in -o | -p) shift ;; esac
  shift
done
host=$1; shift
case $host in
  down) echo "ssh: connect to host down port 22: No route to host" >&2; exit 255 ;;
esac
cd "${0%/*}/$host" && exec sh -c "$*"
"#;

#[test]
fn ssh_gets_arguments_that_the_remote_shell_reads_as_they_are() {
    let hosts = Hosts::new(&["a", "root@b"]);
    let source = hosts.dir.file("source", 10_000);
    hosts.script("ssh", SSH);
    let path = hosts.search_path();
    let copy = |to: &str, remote: &str, args: &[&str]| {
        let mut command = Command::new(FABRICAST);
        command.arg("copy").arg(&source).arg(to).args(args);
        command.args(["--json", "--interface", "127.0.0.1"]);
        command.args(["--remote-fabricast", remote]);
        command.env("PATH", &path).env_remove("SLURM_JOB_ID");
        Run::spawn(command).end()
    };
    for dest in [
        "plain",
        "two words",
        "it's $(touch oops) `touch oops` \"$HOME\" ; & | > < * ? \\ ! #",
        "-n",
        "ünï\ncode",
    ] {
        copy(&format!("a,root@b:{dest}"), FABRICAST, &[]).expect(0);
        for host in &hosts.names {
            hosts.has(host, dest, &source);
            assert!(!hosts.dir.path(host).join("oops").exists());
        }
    }
    // Another launcher of this name gets them quoted, too.
    let launch = format!("'{}' -p 2222 {{host}}", hosts.dir.path("ssh").display());
    copy("a:own ssh", FABRICAST, &["--launch", &launch]).expect(0);
    hosts.has("a", "own ssh", &source);

    let end = copy("a,down:err", FABRICAST, &[]).expect(4);
    let down = host(&end, "down");
    assert_eq!(down["code"], 255);
    assert!(
        down["lines"].to_string().contains("No route to host"),
        "{down}"
    );
    // The command is not installed there.
    let end = copy("a:x", "/no/such/fabricast", &[]).expect(3);
    let lacks = host(&end, "a");
    assert_eq!(lacks["code"], 127);
    assert!(
        lacks["reason"].to_string().contains("--remote-fabricast"),
        "{lacks}"
    );
}

#[test]
fn within_a_slurm_job_srun_reaches_its_hosts() {
    let hosts = Hosts::new(&["n1", "n2"]);
    let source = hosts.dir.file("source", 10_000);
    let srun = r#"
host=
while [ "${1#--}" != "$1" ]; do
  case $1 in --nodelist=*) host=${1#*=} ;; esac
  shift
done
# The receiver must not give up before the copy does, which waits for 120 s.
case "$*" in *--start-timeout=180s*) ;; *) exit 3 ;; esac
cd "${0%/*}/$host" && exec "$@"
"#;
    hosts.script("srun", srun);
    let path = hosts.search_path();
    let mut command = Command::new(FABRICAST);
    command.arg("copy").arg(&source).arg(":a b");
    command.args([
        "--json",
        "--interface",
        "127.0.0.1",
        "--remote-fabricast",
        FABRICAST,
    ]);
    command.args(["--start-timeout", "2m"]);
    command.env("PATH", path).env("SLURM_JOB_ID", "7");
    command.env("SLURM_JOB_NODELIST", "n[1-2]");
    Run::spawn(command).end().expect(0);
    for host in &hosts.names {
        hosts.has(host, "a b", &source);
    }
}

#[test]
fn what_cannot_be_copied_is_told_before_anything_starts() {
    let hosts = Hosts::new(&["a"]);
    let source = hosts.dir.file("source", 10);
    let list = hosts.dir.path("list");
    fs::write(&list, "# the hosts\na\nb, a # again\n").unwrap();
    let list = format!("@{}:", list.display());
    let empty = hosts.dir.path("empty");
    fs::write(&empty, "# none\n").unwrap();
    let empty = format!("@{}:", empty.display());
    let cases: &[(&str, &[&str], i32, &str)] = &[
        ("a", &[], 2, "HOSTS:DEST"),
        ("n[3-1]:", &[], 2, "n[→3-1←]"),
        ("a,a:", &[], 2, "a is named twice"),
        (&list, &[], 2, "list line 3, character 4: a is named twice"),
        (&empty, &[], 2, "empty"),
        ("@/no/such/file:", &[], 1, "/no/such/file"),
        (":", &[], 2, "$SLURM_JOB_NODELIST"),
        ("a:~/x", &[], 2, "'~'"),
        ("a:", &["--min-receivers", "2"], 2, "names 1 hosts"),
        (
            "a:",
            &["--delete", "--dry-run"],
            2,
            "`fabricast recv --delete --dry-run`",
        ),
        ("a:", &["--launch", "run"], 2, "{host}"),
        ("a:", &["--launch", "'run {host}"], 2, "not closed"),
        (
            "a:",
            &["--launch", "/no/such/launcher {host}"],
            1,
            "/no/such/launcher",
        ),
    ];
    for (to, args, code, why) in cases {
        let mut command = Command::new(FABRICAST);
        command.arg("copy").arg(&source).arg(to).args(*args);
        command.args(["--json", "--interface", "127.0.0.1"]);
        command
            .env_remove("SLURM_JOB_NODELIST")
            .env_remove("SLURM_JOB_ID");
        let end = Run::spawn(command).end().expect(*code);
        assert!(end.stderr.contains(why), "{}", end.stderr);
    }
}

#[test]
fn a_dry_run_lists_hosts_and_files_and_starts_nothing() {
    let hosts = Hosts::new(&["n1", "n2"]);
    let source = hosts.dir.file("source", 10);
    for host in &hosts.names {
        hosts.behave(host, "touch started");
    }
    let said = hosts.command(&source, "n[1-2]:", &["--dry-run"]).output();
    let said = said.unwrap();
    assert!(said.status.success(), "{said:?}");
    let list = String::from_utf8(said.stdout).unwrap();
    assert!(
        list.starts_with("n1\nn2\n") && list.ends_with("source\n"),
        "{list}"
    );
    assert!(!hosts.dir.path("n1/started").exists());
}

#[test]
fn more_hosts_than_there_are_descriptors_for_are_refused() {
    let dir = Scratch::new();
    let source = dir.file("source", 10);
    let limited = format!(
        "ulimit -n 256; exec {FABRICAST} copy {} n[1-99]: --json --interface 127.0.0.1",
        source.display()
    );
    let end = shell(&limited).end().expect(2);
    assert!(end.stderr.contains("ulimit -n"), "{}", end.stderr);
}

/// A port that is taken by then, and nothing listens for the others.
#[test]
fn a_copy_that_cannot_listen_starts_nothing() {
    let hosts = Hosts::new(&["a"]);
    let source = hosts.dir.file("source", 10);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let SocketAddr::V4(at) = taken.local_addr().unwrap() else {
        panic!("it is an IPv4 address");
    };
    let port = at.port().to_string();
    let end = hosts
        .copy(&source, "a:", &["--port", &port])
        .end()
        .expect(1);
    assert_eq!(end.all("host").count(), 0);
}
