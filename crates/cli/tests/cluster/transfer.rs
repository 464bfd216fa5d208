//! The command on a small cluster of network namespaces: real links, real losses, real cuts. Needs
//! root. The tests do not judge times, except that everything ends.

use std::net::{IpAddr, Ipv4Addr, TcpListener, UdpSocket};
use std::path::Path;
use std::time::Duration;

use crate::common::attacks;
use crate::common::{Announcing, Run, Scratch, Terminal, same};
use crate::net::{Cluster, Done, Transfer};
use rustix::process::Signal;
use socket2::SockRef;

const MB: usize = 1_000_000;
const SLOW: [&str; 2] = ["--rate", "200mbit"];
/// Time limit for what a process notices by a closed connection: at once, but the machine may be
/// busy.
const AT_ONCE: Duration = Duration::from_secs(20);

macro_rules! cluster {
    ($receivers:expr, $options:expr) => {
        match Cluster::up($receivers, $options) {
            Some(cluster) => cluster,
            None => return,
        }
    };
}

/// Repeats a transfer until it sends at most `multiple` times the file's bytes, up to three times;
/// none may send 1.3 times them. On a busy machine a receiver can be silent for so long that the
/// sender sends things twice.
fn frugal(multiple: f64, transfer: impl Fn() -> Done) -> Done {
    let mut tries = 0;
    loop {
        let done = transfer();
        tries += 1;
        assert_eq!(done.reached_by("unicast"), [""; 0]);
        if done.multiple <= multiple {
            return done;
        }
        assert!(tries < 3 && done.multiple < 1.3, "{}", done.describe());
    }
}

#[test]
fn eight_receivers_in_one_pass() {
    let cluster = cluster!(8, &SLOW);
    frugal(1.08, || Transfer::start(&cluster, 8, 40 * MB, &[]).end(&[]));
}

#[test]
fn eight_receivers_that_lose_five_percent() {
    let cluster = cluster!(8, &SLOW);
    cluster.run(&["loss", "5", "--what", "udp"]);
    let done = Transfer::start(&cluster, 8, 30 * MB, &[]).end(&[]);
    assert_eq!(done.reached_by("multicast").len(), 8);
    assert!(done.multiple <= 1.6, "{}", done.describe());
    // With less, no packet would have been lost.
    assert!(done.multiple > 1.1, "{}", done.describe());
}

/// Every scheme of the papers, and combinations: all receivers get a file despite losses.
#[test]
fn every_scheme_brings_the_file() {
    let cluster = cluster!(5, &SLOW);
    cluster.run(&["loss", "1", "--what", "udp"]);
    for scheme in [
        "basic",
        "window",
        "coroot(2)",
        "coroot(3)+aggregate(10)",
        "tree(2)",
        "tree(2)+multicast",
        "channels(4)",
        "skewed(8)",
        "nack",
        "window+piggyback+credits",
        "coroot(2)+piggyback+crc32c",
        "auto+additive+credits",
    ] {
        let options = ["--scheme", scheme];
        let done = Transfer::start(&cluster, 5, 4 * MB, &options).end(&[]);
        assert!(done.multiple > 1.06, "{scheme}: {}", done.describe());
    }
}

/// Receivers repair and answer for others. If one of them is killed, the others still finish.
#[test]
fn a_collector_that_is_killed_is_replaced() {
    let cluster = cluster!(5, &SLOW);
    cluster.run(&["loss", "1", "--what", "udp"]);
    for (scheme, host) in [("coroot(2)", "h4"), ("coroot(2)", "h6"), ("tree(2)", "h2")] {
        let options = ["--scheme", scheme];
        let mut transfer = Transfer::start(&cluster, 5, 20 * MB, &options);
        // The receiver's own events, because not all receivers report to the sender.
        transfer.receiver(host).until_share(20);
        transfer.receiver(host).signal(Signal::KILL);
        transfer.end(&[host]);
    }
}

#[test]
fn over_ipv6() {
    let cluster = cluster!(3, &SLOW);
    // The sender gets the interface's name, and the receivers its IPv6 address.
    let done = frugal(1.1, || {
        Transfer::over(6, &cluster, 3, 20 * MB, &[]).end(&[])
    });
    let group = done.sent.one("starting")["group"].as_str().unwrap();
    assert!(group.starts_with("[ff15:"), "{group}");
}

#[test]
fn multicast_blocked_for_one() {
    let cluster = cluster!(3, &SLOW);
    cluster.run(&["block", "h3"]);
    let done = Transfer::start(&cluster, 3, 15 * MB, &[]).end(&[]);
    assert_eq!(done.told_unicast(), ["h3"]);
    assert_eq!(done.reached_by("unicast"), ["h3"]);
    assert_eq!(done.reached_by("multicast"), ["h2", "h4"]);
    assert!(done.multiple <= 2.3, "{}", done.describe());
}

#[test]
fn multicast_blocked_for_all() {
    let cluster = cluster!(3, &SLOW);
    cluster.run(&["block", "all"]);
    let done = Transfer::start(&cluster, 3, 15 * MB, &[]).end(&[]);
    assert_eq!(done.told_unicast(), ["h2", "h3", "h4"]);
    assert_eq!(done.reached_by("unicast"), ["h2", "h3", "h4"]);
}

#[test]
fn multicast_blocked_in_the_middle_for_one() {
    let cluster = cluster!(3, &SLOW);
    let mut transfer = Transfer::start(&cluster, 3, 40 * MB, &[]);
    transfer.send.until_share(20);
    cluster.run(&["block", "h3"]);
    let done = transfer.end(&[]);
    assert_eq!(done.told_unicast(), ["h3"]);
    assert_eq!(done.reached_by("unicast"), ["h3"]);
}

#[test]
fn multicast_blocked_in_the_middle_for_all() {
    let cluster = cluster!(3, &SLOW);
    let mut transfer = Transfer::start(&cluster, 3, 40 * MB, &[]);
    transfer.send.until_share(20);
    cluster.run(&["block", "all"]);
    let done = transfer.end(&[]);
    assert_eq!(done.told_unicast(), ["h2", "h3", "h4"]);
    assert_eq!(done.reached_by("unicast"), ["h2", "h3", "h4"]);
}

/// A receiver falls back to unicast while multicast is blocked, and returns to multicast
/// afterwards.
#[test]
fn multicast_blocked_for_a_while() {
    let cluster = cluster!(3, &SLOW);
    let mut transfer = Transfer::start(&cluster, 3, 60 * MB, &["--inject-loss", "1"]);
    transfer.send.until_share(15);
    cluster.run(&["block", "h3"]);
    transfer.send.until("path", |e| e["reach"] == "unicast");
    cluster.run(&["unblock", "h3"]);
    transfer.send.until("path", |e| e["reach"] == "multicast");
    let done = transfer.end(&[]);
    assert_eq!(done.told_unicast(), ["h3"]);
    assert_eq!(done.reached_by("multicast"), ["h2", "h3", "h4"]);
    assert!(done.multiple <= 1.6, "{}", done.describe());
}

#[test]
fn a_killed_receiver_does_not_stop_the_others() {
    let cluster = cluster!(3, &SLOW);
    let mut transfer = Transfer::start(&cluster, 3, 30 * MB, &[]);
    transfer.send.until_share(30);
    transfer.receiver("h3").signal(Signal::KILL);
    let done = transfer.end(&["h3"]);
    assert_eq!(done.sent.result("h3")["state"], "lost");
    let failed = done.sent.one("failed");
    assert_eq!(failed["receiver"], "h3");
}

#[test]
fn a_receiver_whose_cable_is_pulled_is_given_up() {
    let cluster = cluster!(3, &SLOW);
    let mut transfer = Transfer::start(&cluster, 3, 30 * MB, &[]);
    transfer.send.until_share(30);
    cluster.run(&["link", "h3", "down"]);
    let mut done = transfer.end(&["h3"]);
    assert_eq!(done.sent.result("h3")["state"], "lost");
    // The receiver notices too, and leaves no file.
    done.others.remove(0).end_within(AT_ONCE).expect(8);
    assert_eq!(done.dir.names(), ["h2", "h4", "source"]);
}

#[test]
fn a_stopped_receiver_is_dropped_if_so_wanted() {
    let cluster = cluster!(3, &SLOW);
    let options = ["--slow", "drop", "--patience", "1s"];
    let mut transfer = Transfer::start(&cluster, 3, 30 * MB, &options);
    transfer.send.until("streaming", |_| true);
    transfer.receiver("h3").signal(Signal::STOP);
    let mut done = transfer.end(&["h3"]);
    assert_eq!(done.sent.result("h3")["state"], "dropped");
    let stopped = done.others.remove(0);
    stopped.signal(Signal::CONT);
    stopped.end_within(AT_ONCE).expect(9);
    assert_eq!(done.dir.names(), ["h2", "h4", "source"]);
}

#[test]
fn when_the_sender_is_killed_the_receivers_end() {
    let cluster = cluster!(3, &SLOW);
    let mut transfer = Transfer::start(&cluster, 3, 30 * MB, &[]);
    transfer.send.until_share(30);
    transfer.send.signal(Signal::KILL);
    for run in transfer.recv {
        run.end_within(AT_ONCE).expect(8);
    }
    assert_eq!(transfer.dir.names(), ["source"]);
}

#[test]
fn the_pace_follows_a_link_that_becomes_slow() {
    let cluster = cluster!(3, &["--mtu", "9000", "--rate", "1gbit"]);
    let mut transfer = Transfer::start(&cluster, 3, 120 * MB, &[]);
    transfer.send.until_share(25);
    // Another host's link: the sender could learn of a queue on its own link from its socket.
    cluster.run(&["rate", "200mbit", "--host", "h3"]);
    // If the pace did not change, more than half of all packets would be dropped from now on.
    transfer.settle();
    let done = transfer.end(&[]);
    assert!(done.dropped < 0.05, "{}", done.describe());
}

/// Both transfers use one group and one port on purpose: only their sessions differ.
#[test]
fn two_transfers_at_once() {
    let cluster = cluster!(3, &SLOW);
    let dir = Scratch::new();
    let hosts = ["h2", "h3", "h4"];
    let sources = [dir.file("a", 15 * MB), dir.file("b", 16 * MB)];
    let mut runs: Vec<(Run, Vec<Run>)> = Vec::new();
    for (i, source) in sources.iter().enumerate() {
        // The second sender runs on a host that receives from the first.
        let host = ["h1", "h2"][i];
        let source = source.to_str().unwrap();
        let group = ["--group", "239.255.1.1:7641", "--min-receivers", "3"];
        let fixed = ["send", source, "--json", "--interface", "eth0"];
        let mut send = cluster.start(host, &[&fixed[..], &group].concat());
        send.until("listening", |_| true);
        let recv = hosts.iter().map(|h| {
            let dest = dir.path(&format!("{h}-{i}"));
            let dest = dest.to_str().unwrap();
            cluster.start(h, &["recv", dest, "--json", "--no-sync", "--from", host])
        });
        runs.push((send, recv.collect()));
    }
    for (i, (send, recv)) in runs.into_iter().enumerate() {
        let sent = send.end().expect(0);
        assert_eq!(sent.one("summary")["verified"], 3);
        for (host, run) in hosts.iter().zip(recv) {
            run.end().expect(0);
            same(&sources[i], &dir.path(&format!("{host}-{i}")));
        }
    }
}

#[test]
fn the_sender_is_found_by_its_announcement() {
    let cluster = cluster!(2, &SLOW);
    let done = Transfer::over(0, &cluster, 2, 10 * MB, &[]).end(&[]);
    assert_eq!(done.reached_by("multicast").len(), 2);
}

/// Findings 4 and 12: any host on the link can announce a file.
#[test]
fn what_is_announced_is_taken_with_consent_alone() {
    let cluster = cluster!(2, &SLOW);
    let dir = Scratch::new();
    let home = dir.path("home");
    std::fs::create_dir(&home).unwrap();
    let to = home.to_str().unwrap();
    let offer = |file: &Path| {
        let mut send = cluster.send(file, &["--min-receivers", "1"]);
        send.until("listening", |_| true);
        send
    };

    // The audit's attack: the user has agreed to nothing.
    let hidden = offer(&dir.file(".bash_profile", 17));
    let end = cluster.start("h2", &["recv", to]).end().expect(2);
    assert!(end.stderr.contains("--any"), "{}", end.stderr);
    // A receiver with --any refuses a name that does something by itself.
    let any = ["recv", to, "--any", "--start-timeout", "500ms"];
    let end = cluster.start("h2", &any).end().expect(5);
    assert!(end.stderr.contains(".bash_profile"), "{}", end.stderr);
    hidden.signal(Signal::KILL);
    hidden.end();

    let source = dir.file("plain", 5000);
    let send = offer(&source);
    // On a terminal the receiver asks.
    let ask = || {
        let mut terminal = Terminal::start(cluster.command("h2", &["recv", to]));
        let said = terminal.until("[y/N] ");
        assert!(
            said.contains("offers plain (4.9 KiB). Receive it?"),
            "{said}"
        );
        terminal
    };
    let mut no = ask();
    no.input("n\n");
    assert_eq!(no.end(), Some(9));
    // The exit code tells the user at once that the chosen file has no place here.
    std::fs::write(home.join("plain"), "mine").unwrap();
    let mut exists = ask();
    exists.input("y\n");
    exists.until("exists already");
    assert_eq!(exists.end(), Some(1));
    std::fs::remove_file(home.join("plain")).unwrap();
    let interrupted = ask();
    interrupted.signal(Signal::INT);
    assert_eq!(interrupted.end(), Some(130));
    assert_eq!(std::fs::read_dir(&home).unwrap().count(), 0);
    // With a second sender the receiver asks which. With --any it takes neither until one remains.
    let mut second = cluster.start("h3", &["send", source.to_str().unwrap(), "--json"]);
    second.until("listening", |_| true);
    let mut any = cluster.start("h3", &["recv", to, "--any", "--json"]);
    let trying = any.until("trying", |_| true);
    assert!(
        trying["reason"].as_str().unwrap().contains("several"),
        "{trying}"
    );
    let mut which = Terminal::start(cluster.command("h2", &["recv", to]));
    let said = which.until("[1-2, or Enter for none] ");
    let line = said.lines().find(|l| l.contains(&cluster.address("h1", 4)));
    let number = line.unwrap().split_whitespace().next().unwrap().to_owned();
    any.signal(Signal::INT);
    any.end().expect(130);
    which.input(&format!("{number}\n"));
    assert_eq!(which.end(), Some(0));
    send.end().expect(0);
    same(&source, &home.join("plain"));
    second.signal(Signal::INT);
    second.end().expect(130);
}

/// Announcements by another host: what they can make a listening receiver do.
#[test]
fn receivers_connect_where_a_sender_may_be_and_ask_about_what_it_offers() {
    let cluster = cluster!(2, &SLOW);
    let dir = Scratch::new();
    let dest = dir.path("copy");
    let any = ["recv", dest.to_str().unwrap(), "--any", "--json"];
    let [h1, h3] = ["h1", "h3"].map(|h| cluster.address(h, 4));
    let own: Ipv4Addr = h3.parse().unwrap();
    let announce =
        |from: IpAddr, port: u16| cluster.on("h3", || Announcing::start(from, own, port, "x", 1));
    let opened = || -> u64 {
        let snmp = cluster.program("h2", &["cat", "/proc/net/snmp"]);
        let mut tcp = snmp.lines().filter(|l| l.starts_with("Tcp:"));
        let names = tcp.next().unwrap().split_whitespace();
        let values = tcp.next().unwrap().split_whitespace();
        let mut both = names.zip(values);
        both.find(|(n, _)| *n == "ActiveOpens")
            .unwrap()
            .1
            .parse()
            .unwrap()
    };
    // Announcements every 10 ms name a port where nobody listens. The receiver tries a connection
    // once, and seldom after that.
    let mut recv = cluster.start("h2", &any);
    let before = opened();
    let announcing = announce(own.into(), 2500);
    let trying = recv.until("trying", |_| true);
    assert!(
        trying["reason"]
            .as_str()
            .unwrap()
            .contains("cannot be used"),
        "{trying}"
    );
    announcing.until(50);
    assert!((1..4).contains(&(opened() - before)));
    drop((announcing, recv));

    // Announced addresses that are refused: a service's port, and a host reached only through a
    // router (h3).
    let far = "198.51.100.7";
    let add = format!("{far}/32");
    cluster.program("h3", &["ip", "addr", "add", &add, "dev", "eth0"]);
    cluster.program("h2", &["ip", "route", "add", "default", "via", &h3]);
    for (ip, port) in [(&*h3, 25), (far, 2500)] {
        let listener = cluster.on("h3", || TcpListener::bind((ip, port)).unwrap());
        listener.set_nonblocking(true).unwrap();
        let announcing = announce(ip.parse().unwrap(), port);
        let limit = [&any[..], &["--start-timeout", "500ms"]].concat();
        let end = cluster.start("h2", &limit).end().expect(5);
        let heard = if port == 25 {
            "nobody announces"
        } else {
            "unreachable"
        };
        assert!(end.stderr.contains(heard), "{}", end.stderr);
        assert!(listener.accept().is_err(), "{ip}:{port}");
        drop(announcing);
    }

    // Another host announces in the sender's name. The receiver asks again, with the true offer.
    let source = dir.file("true", 5000);
    let mut send = cluster.send(&source, &["--no-announce"]);
    let listening = send.until("listening", |_| true);
    let address = listening["address"].as_str().unwrap().to_owned();
    let port = address.parse::<std::net::SocketAddr>().unwrap().port();
    let ip: Ipv4Addr = h1.parse().unwrap();
    let forger = cluster.on("h1", || Announcing::start(ip.into(), ip, port, "false", 7));
    let mut asked = Terminal::start(cluster.command("h2", &any[..2]));
    asked.until("false (7 B). Receive it? [y/N] ");
    asked.input("y\n");
    asked.until("true (4.9 KiB). Receive it? [y/N] ");
    asked.input("y\n");
    assert_eq!(asked.end(), Some(0));
    drop(forger);
    send.end().expect(0);
    same(&source, &dest);
    std::fs::remove_file(&dest).unwrap();

    // A process that keeps the port of announcements to itself silences no other, on either side.
    for host in ["h1", "h2"] {
        let keeper = cluster.on(host, || UdpSocket::bind("0.0.0.0:7642").unwrap());
        let mut send = cluster.send(&source, &[]);
        let listening = send.until("listening", |_| true);
        assert_eq!(listening["announced"], true);
        let mut recv = cluster.start("h2", &any);
        let deaf = if host == "h1" { &mut send } else { &mut recv };
        deaf.until("notice", |e| e["text"].as_str().unwrap().contains("in use"));
        recv.end().expect(0);
        send.end().expect(0);
        same(&source, &dest);
        std::fs::remove_file(&dest).unwrap();
        drop(keeper);
    }
}

/// Which queries a sender answers, and which announcements a receiver hears.
#[test]
fn queries_are_answered_on_the_link_and_announcements_heard_on_it() {
    let cluster = cluster!(1, &SLOW);
    let dir = Scratch::new();
    let source = dir.file("source", 5000);
    let mut send = cluster.send(&source, &["--min-receivers", "2"]);
    send.until("listening", |_| true);
    // h2 gets another address, which h1 reaches only through a router, h2.
    let (near, far) = (cluster.address("h2", 4), "198.51.100.7");
    let add = format!("{far}/32");
    cluster.program("h2", &["ip", "addr", "add", &add, "dev", "eth0"]);
    cluster.program("h1", &["ip", "route", "add", "default", "via", &near]);
    let answers = |from: &str, len: usize| -> usize {
        cluster.on("h2", || {
            let socket = UdpSocket::bind((from, 0)).unwrap();
            let sent = SockRef::from(&socket).set_multicast_if_v4(&near.parse().unwrap());
            sent.unwrap();
            socket
                .set_read_timeout(Some(Duration::from_millis(300)))
                .unwrap();
            let mut query = br#"{"fabricast": 11, "asks": 7}"#.to_vec();
            query.resize(len, b' ');
            for _ in 0..400 {
                socket.send_to(&query, "239.255.76.41:7642").unwrap();
            }
            let mut bytes = [0; 2000];
            let mut count = 0;
            while let Ok((n, _)) = socket.recv_from(&mut bytes) {
                assert!(n <= len, "{n} bytes answer {len}");
                count += 1;
            }
            count
        })
    };
    assert_eq!(answers(&near, 60), 0);
    assert_eq!(answers(far, 1024), 0);
    // The queries from the far address have not used up the answers that are allowed at once, and
    // few more become allowed meanwhile.
    let few = answers(&near, 1024);
    assert!((128..300).contains(&few), "{few}");

    // A receiver does not hear a sender that announces on another interface of its host.
    let mut inside = cluster.start(
        "h2",
        &[
            "send",
            source.to_str().unwrap(),
            "--json",
            "--interface",
            "lo",
            "--port",
            "0",
            "--min-receivers",
            "2",
        ],
    );
    inside.until("listening", |_| true);
    let (a, b) = (dir.path("a"), dir.path("b"));
    let (a, b) = (a.to_str().unwrap(), b.to_str().unwrap());
    let other = cluster.start("h2", &["recv", a, "--any", "--interface", "lo", "--json"]);
    inside.until("connected", |_| true);
    send.signal(Signal::KILL);
    send.end();
    let deaf = [
        "recv",
        b,
        "--any",
        "--interface",
        "eth0",
        "--start-timeout",
        "1s",
    ];
    let end = cluster.start("h2", &deaf).end().expect(5);
    assert!(end.stderr.contains("nobody announces"), "{}", end.stderr);
    drop(other);
}

/// A host that forges the sender's address can neither end nor stop a transfer.
#[test]
fn forged_datagrams_stop_nobody() {
    let cluster = cluster!(4, &SLOW);
    let group = ("239.255.1.2", "7642");
    let option = [group.0, group.1].join(":");
    for kind in ["mismatch", "sync"] {
        let forger = cluster.forge("h5", kind, group);
        let transfer = Transfer::start(&cluster, 3, 10 * MB, &["--group", &option]);
        let forged = forger.end().expect(0);
        let sender = cluster.address("h1", 4);
        assert_eq!(forged.one("forged")["source"], sender.as_str(), "{kind}");
        let done = transfer.end(&[]);
        assert_eq!(done.reached_by("multicast").len(), 3, "{kind}");
    }
}

/// Packets of bursts that never were say nothing about the path, so they do not keep the rate at
/// its start value.
#[test]
fn forged_bursts_do_not_stop_the_pacer() {
    let cluster = cluster!(3, &["--mtu", "9000", "--rate", "1gbit"]);
    let group = ("239.255.1.3", "7642");
    let option = [group.0, group.1].join(":");
    let forger = cluster.forge("h4", "burst", group);
    let done = Transfer::start(&cluster, 2, 80 * MB, &["--group", &option]).end(&[]);
    forger.signal(Signal::TERM);
    let forged = forger.end().expect(0);
    let count = forged.one("forged")["count"].as_u64();
    assert!(count >= Some(10), "hardly attacked: {count:?}");
    let rates = done.sent.all("progress").filter_map(|e| e["rate"].as_u64());
    assert!(rates.max() > Some(20_000_000), "{}", done.describe());
}

/// Finding 1, by an admitted receiver.
#[test]
fn a_receiver_that_nobody_chose_repairs_for_nobody() {
    attacks::liars::who_relays(&cluster!(2, &[]));
}

/// Finding 3, between hosts.
#[test]
fn a_receiver_that_lacks_everything_does_not_starve_the_others() {
    attacks::liars::who_lacks_everything(&cluster!(2, &[]));
}

/// Findings 3 and 8, between hosts.
#[test]
fn a_host_that_only_speaks_is_given_up() {
    let cluster = cluster!(2, &[]);
    attacks::liars::who_only_counts(&cluster);
    attacks::liars::who_only_speaks(&cluster);
}

/// Without it, every scheme would run with one window.
#[test]
fn the_window_is_that_of_the_scheme() {
    attacks::liars::window_of_the_scheme(&cluster!(2, &[]));
}

/// Finding 10, between hosts.
#[test]
fn a_host_that_a_sender_names_gets_one_small_question() {
    attacks::third::third_host(&cluster!(2, &[]));
}

/// Finding 15, between hosts.
#[test]
fn forged_data_cost_pieces_between_hosts() {
    attacks::forged::forged_data(&cluster!(2, &[]));
}

/// Finding 7, between hosts.
#[test]
fn a_host_has_few_seats_and_no_name_of_another() {
    attacks::seats::few_seats(&cluster!(2, &[]));
}

/// Finding 7, between hosts.
#[test]
fn a_host_does_not_choose_the_family() {
    attacks::seats::other_family(&cluster!(2, &[]));
}

/// Finding 7, between hosts.
#[test]
fn a_host_that_says_it_has_the_file_must_prove_it() {
    attacks::seats::unproven(&cluster!(2, &[]));
}

/// Finding 8, between hosts.
#[test]
fn a_host_that_connects_ever_again_leaves_descriptors_to_the_transfer() {
    attacks::seats::descriptors(&cluster!(2, &[]));
}

/// Finding 8, between hosts.
#[test]
fn a_host_that_is_admitted_and_silent_is_given_up() {
    attacks::seats::silent_seat(&cluster!(2, &[]));
}

/// Finding 11, between hosts.
#[test]
fn a_host_that_offers_a_file_takes_no_disk_space() {
    attacks::files::offered_space(&cluster!(2, &[]));
}

/// Finding 12, between hosts.
#[test]
fn a_host_that_repeats_a_senders_session_is_a_second_sender() {
    attacks::announcers::repeated_session(&cluster!(2, &[]));
}

/// Finding 13, between hosts.
#[test]
fn a_source_that_changes_is_an_error_on_every_host() {
    let cluster = cluster!(2, &[]);
    attacks::files::changed_while_sent(&cluster);
    attacks::files::changed_when_proven(&cluster);
}

/// Finding 14, between hosts.
#[test]
fn a_host_that_has_proven_all_needs_no_sender() {
    attacks::files::sender_gone(&cluster!(2, &[]));
}

/// Finding 16, between hosts.
#[test]
fn a_host_that_greets_first_delays_no_rank() {
    attacks::ranks::silent_connections(&cluster!(2, &[]));
}
