//! Receivers whose links are slower than the others', on hosts of their own. Needs root. The tests
//! judge who is left behind, not times.

use crate::common::Scratch;
use crate::net::{Cluster, Transfer, told_unicast};

const MB: usize = 1_000_000;
/// The host with the slow link.
const SLOW: &str = "h4";

/// A cluster whose receivers have the same rate, but for one with a tenth of it.
fn one_at_a_tenth(receivers: usize) -> Option<Cluster> {
    let cluster = Cluster::up(receivers, &["--rate", "200mbit"])?;
    cluster.run(&["rate", "20mbit", "--host", SLOW]);
    Some(cluster)
}

/// A receiver with a tenth of the others' speed is not taken for one that multicast does not reach:
/// the queue of its link is long, but all of it arrives.
#[test]
fn one_at_a_tenth_is_reached_by_multicast() {
    let Some(cluster) = one_at_a_tenth(3) else {
        return;
    };
    let dir = Scratch::new();
    let source = dir.file("source", 20 * MB);
    for _ in 0..3 {
        let mut send = cluster.send(&source, &["--min-receivers", "3"]);
        send.until("listening", |_| true);
        let address = cluster.address("h1", 4);
        let recv = ["h2", "h3", SLOW].map(|host| {
            let args = ["recv", "--discard", "--from", &address, "--as", host];
            cluster.start(host, &args)
        });
        let sent = send.end().expect(0);
        assert_eq!(told_unicast(&sent), [""; 0]);
        recv.into_iter().for_each(|run| _ = run.end().expect(0));
    }
}

/// A receiver that gets on all the time, at a tenth of the others' speed, is demoted long before
/// the patience is over, and has the file in the end. Nobody else is.
#[test]
fn one_at_a_tenth_is_demoted_and_has_all_in_the_end() {
    let Some(cluster) = one_at_a_tenth(5) else {
        return;
    };
    let done = Transfer::start(&cluster, 5, 30 * MB, &["--slow", "demote"]).end(&[]);
    assert_eq!(done.told_unicast(), [""; 0]);
    let demoted: Vec<_> = done.sent.all("demoted").collect();
    assert!(demoted.iter().all(|e| e["receiver"] == SLOW), "{demoted:?}");
    // Within two seconds it would get more.
    let placed = demoted[0]["placed"].as_u64().unwrap();
    assert!(placed < 5 * MB as u64, "{placed}");
    for host in &done.hosts {
        let part = if host == SLOW { "demoted" } else { "whole" };
        assert_eq!(done.sent.result(host)["part"], part, "{host}");
    }
    assert_eq!(done.sent.all("verified").last().unwrap()["receiver"], SLOW);
}

/// The same where the rate is fixed: the sender does not try whether the others take more, but they
/// are far ahead soon.
#[test]
fn one_at_a_tenth_of_a_fixed_rate_is_demoted() {
    let Some(cluster) = one_at_a_tenth(5) else {
        return;
    };
    let options = ["--slow", "demote", "--rate", "180Mbit"];
    let done = Transfer::start(&cluster, 5, 80 * MB, &options).end(&[]);
    assert_eq!(done.told_unicast(), [""; 0]);
    let demoted: Vec<_> = done.sent.all("demoted").collect();
    assert!(demoted.iter().all(|e| e["receiver"] == SLOW), "{demoted:?}");
    // Within the patience it would get 25 MB.
    let placed = demoted[0]["placed"].as_u64().unwrap();
    assert!(placed < 13 * MB as u64, "{placed}");
}

/// A receiver that gets on all the time, and would take a minute more than the others, is given up.
#[test]
fn one_that_trickles_is_given_up() {
    let Some(cluster) = one_at_a_tenth(5) else {
        return;
    };
    let rate = ["rate", "500kbit", "--host", SLOW, "--queue", "32kb"];
    cluster.run(&rate);
    let options = ["--slow", "demote", "--patience", "1s"];
    let done = Transfer::start(&cluster, 5, 4 * MB, &options).end(&[SLOW]);
    let result = done.sent.result(SLOW);
    assert_eq!(result["state"], "dropped", "{result}");
    let reason = result["reason"].as_str().unwrap();
    assert!(reason.contains("it has not caught up within"), "{reason}");
}

/// The rule for one receiver by its name: it is dropped, and the rule for the others is another.
#[test]
fn one_at_a_tenth_is_dropped_by_name() {
    let Some(cluster) = one_at_a_tenth(5) else {
        return;
    };
    let by_name = format!("{SLOW}=drop");
    let options = ["--slow", "wait", "--slow", &by_name, "--patience", "1s"];
    let done = Transfer::start(&cluster, 5, 30 * MB, &options).end(&[SLOW]);
    let result = done.sent.result(SLOW);
    assert_eq!(result["state"], "dropped");
    let reason = result["reason"].as_str().unwrap();
    // Whichever rule finds it first: by its speed, or by the window that it holds back.
    let found = ["less than half", "far behind"];
    assert!(found.iter().any(|why| reason.contains(why)), "{reason}");
}

/// Nobody is demoted where all have the same slow link, or one is a little slower.
#[test]
fn nobody_is_demoted_where_all_are_about_as_slow() {
    let Some(cluster) = Cluster::up(3, &["--rate", "40mbit"]) else {
        return;
    };
    let options = ["--slow", "demote", "--patience", "500ms"];
    for rate in ["40mbit", "30mbit"] {
        cluster.run(&["rate", rate, "--host", SLOW]);
        let done = Transfer::start(&cluster, 3, 15 * MB, &options).end(&[]);
        assert_eq!(done.sent.all("demoted").count(), 0, "{rate}");
    }
}
