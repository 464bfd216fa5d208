//! The workers of a sender by P3's protocol: how many there are, where they run, and that no
//! receiver holds up the others of its worker (P3.7).

use std::net::SocketAddr;

use crate::common::control::{Peer, able};
use crate::common::ibrmp::{into, of};
use crate::common::{BOUND, FABRICAST, Run, Scratch, same, sender, shell};
use fabricast::proto::ibrmp::Body;
use rustix::process::Signal;
use rustix::thread::{CpuSet, sched_getaffinity};
use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};

const IBRMP: [&str; 4] = ["--scheme", "ibrmp", "--no-announce", "--min-receivers"];

/// Name and CPUs of each thread of a process, by what the kernel says.
fn threads(run: &Run) -> Vec<(String, String)> {
    let tasks = format!("/proc/{}/task", run.pid());
    let tasks = std::fs::read_dir(tasks).unwrap();
    let status = |task: std::io::Result<std::fs::DirEntry>| {
        // A thread may end meanwhile.
        let status = std::fs::read_to_string(task.ok()?.path().join("status")).ok()?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            Some(line.trim().to_owned())
        };
        Some((field("Name:")?, field("Cpus_allowed_list:")?))
    };
    tasks.filter_map(status).collect()
}

/// One receiver for each worker: three workers, bound to the CPUs in turn, and all of them serve.
#[test]
fn each_worker_has_its_receivers_and_its_cpu() {
    let dir = Scratch::new();
    let file = dir.file("f", 4_000_000);
    let usable = sched_getaffinity(None).unwrap();
    let usable: Vec<usize> = (0..CpuSet::MAX_CPU)
        .filter(|cpu| usable.is_set(*cpu))
        .collect();
    // The last CPU first, so that the order of the list counts where there are two.
    let cpus = [usable[usable.len() - 1], usable[0]].map(|cpu| cpu.to_string());
    let list = cpus.join(",");
    let workers = [
        "--receivers-per-worker",
        "1",
        "--workers",
        "3",
        "--worker-cpus",
        &list,
    ];
    let args = [&IBRMP[..], &["3", "--rate", "4MB/s"], &workers].concat();
    let (mut send, from) = sender(&file, &args);
    let names = ["a", "b", "c"];
    let receivers = names.map(|name| into(&dir, name, &from, &["--inject-loss", "50%"]));
    send.until_share_of("fastest", 20);
    let mut bound = threads(&send);
    bound.retain(|(name, _)| name.starts_with("fabricast-w"));
    bound.sort();
    let expected = [0, 1, 2].map(|n| (format!("fabricast-w{n}"), cpus[n % 2].clone()));
    assert_eq!(bound, expected);
    for (run, name) in receivers.into_iter().zip(names) {
        run.end().expect(0);
        same(&file, &dir.path(name).join("f"));
    }
    let sent = send.end().expect(0);
    let summary = sent.one("summary");
    let by_workers: Vec<u64> = serde_json::from_value(summary["workers"].clone()).unwrap();
    assert_eq!(by_workers.len(), 3, "{by_workers:?}");
    // About half of the file for each.
    assert!(by_workers.iter().all(|count| *count > 10), "{by_workers:?}");
    let messages = summary["messages"]["sent"].as_object().unwrap();
    let messages: u64 = messages.values().filter_map(Value::as_u64).sum();
    assert_eq!(by_workers.iter().sum::<u64>(), messages);
}

/// A connection with so small buffers that the answers which credits allow do not fit.
fn narrow(from: &str) -> Peer {
    let from: SocketAddr = from.parse().unwrap();
    let socket = Socket::new(Domain::for_address(from), Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.set_tcp_mss(536).unwrap();
    socket.set_read_timeout(Some(BOUND)).unwrap();
    socket.connect(&from.into()).unwrap();
    Peer(socket.into())
}

/// A receiver that is stopped in the midst of its answers, and one that requests much and reads
/// nothing, hold up no other receiver, although one worker serves all.
#[test]
fn a_receiver_that_does_not_read_holds_up_no_other_of_its_worker() {
    let dir = Scratch::new();
    let file = dir.file("f", 8_000_000);
    let workers = ["--workers", "1", "--per-host", "9"];
    let args = [&IBRMP[..], &["4", "--rate", "12MB/s"], &workers].concat();
    let (mut send, from) = sender(&file, &args);
    let lossy = |name| into(&dir, name, &from, &["--inject-loss", "50%"]);
    let (stops, others) = (lossy("stops"), ["a", "b"].map(|name| (name, lossy(name))));
    let mut narrow = narrow(&from).greets("narrow", able());
    narrow.until("welcome");
    narrow.say(json!({"say": "prepared"}));
    narrow.ready();
    send.until_share_of("fastest", 20);
    stops.signal(Signal::STOP);
    let (offset, len) = (0, 1_500_000);
    narrow.send_frame(&of(0, 1, Body::DataRequest { offset, len }), &[]);
    // They have the file while the other two stand still, and end when those are gone.
    let others = others.map(|(name, mut run)| {
        run.until("file_stored", |_| true);
        same(&file, &dir.path(name).join("f"));
        run
    });
    stops.signal(Signal::KILL);
    drop(narrow);
    for run in others {
        run.end().expect(0);
    }
    let sent = send.end().expect(4);
    for name in ["stops", "narrow"] {
        let result = sent.result(name);
        assert_eq!(result["state"], "lost");
        // The kernel has not given the connections up: the others did not wait for that.
        let reason = result["reason"].as_str().unwrap();
        assert!(!reason.contains("timed out"), "{name}: {reason}");
    }
    assert_eq!(sent.one("summary")["workers"].as_array().unwrap().len(), 1);
}

/// A sender that may have few open files sends many, some at a time.
#[test]
fn a_sender_with_few_descriptors_opens_files_later() {
    let dir = Scratch::new();
    let set = dir.path("set");
    std::fs::create_dir(&set).unwrap();
    for n in 0..200 {
        std::fs::write(set.join(n.to_string()), format!("file {n}")).unwrap();
    }
    let files = format!("{}/*", set.display());
    let script = format!(
        "ulimit -n 80 && exec {} send {files} --json --port 0 --interface 127.0.0.1 {}",
        FABRICAST,
        [&IBRMP[..], &["1"]].concat().join(" ")
    );
    let mut send = shell(&script);
    let listening = send.until("listening", |_| true);
    let from = listening["address"].as_str().unwrap().to_owned();
    let to = dir.path("to");
    let dest = to.to_str().unwrap();
    let args = ["recv", "--json", "--dir", dest, "--from", &from];
    Run::start(args).end().expect(0);
    let sent = send.end().expect(0);
    assert_eq!(sent.one("summary")["verified"], 1, "{sent:#?}");
    for n in 0..200 {
        same(&set.join(n.to_string()), &to.join(n.to_string()));
    }
}
