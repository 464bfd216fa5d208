//! Whole runs: some hundreds of seeds with everything that can go wrong, and the promised figures.

use std::time::Duration;

use fabricast_sim::fault::{Block, Blocked, Crash};
use fabricast_sim::table::{FAST, LINKS, SLOW, goodput, late_poster, packet_count, step};
use fabricast_sim::{
    Cluster, LIAR_SEEDS, Network, Scenario, Trace, judge_liar, judge_seed, run_scenario, soak,
};

#[test]
fn seeds_are_good_and_repeat_themselves() {
    let report = soak(Network::Prompt, 0, 300, 4, &mut |_, _| true);
    assert_eq!(report.seeds, 300);
    assert!(report.is_clean(), "{report}");
}

/// A device that reads memory by itself: nothing is reused or returned while it may still read.
#[test]
fn seeds_are_good_when_the_network_reads_late() {
    let report = soak(Network::Delayed, 0, 200, 4, &mut |_, _| true);
    assert_eq!(report.seeds, 200);
    assert!(report.is_clean(), "{report}");
}

/// A host may send to a group by another address, or by unicast, from any time on: nothing is lost
/// or repeated.
#[test]
fn seeds_are_good_when_hosts_send_by_other_addresses() {
    let report = soak(Network::Readdressed, 0, 300, 4, &mut |_, _| true);
    assert_eq!(report.seeds, 300);
    assert!(report.is_clean(), "{report}");
}

/// Receivers join and leave in the midst of broadcasts: each gets every broadcast from its join on,
/// and none before it, and nobody waits for those that have left.
#[test]
fn seeds_are_good_when_receivers_join_and_leave() {
    let report = soak(Network::Joined, 0, 300, 4, &mut |_, _| true);
    assert_eq!(report.seeds, 300);
    assert!(report.is_clean(), "{report}");
    // It says what it has tried.
    let tried = report.tried;
    let least = tried.joins.min(tried.leaves).min(tried.declines);
    assert!(least >= 100, "{report}");
    let joins = format!("; {} joins, ", tried.joins);
    assert!(report.to_string().contains(&joins), "{report}");
}

/// Streams of a host share its fixed rate by their weights, whatever pauses and losses there are,
/// and together are not faster.
#[test]
fn seeds_are_good_when_streams_share_a_rate() {
    let report = soak(Network::Weighted, 0, 100, 4, &mut |_, _| true);
    assert_eq!(report.seeds, 100);
    assert!(report.is_clean(), "{report}");
}

/// Receivers that take less than half of what the others take are left behind, and no others are.
#[test]
fn seeds_are_good_when_receivers_are_slow() {
    let report = soak(Network::Outpaced, 0, 40, 4, &mut |_, _| true);
    assert_eq!(report.seeds, 40);
    assert!(report.is_clean(), "{report}");
}

/// Seeds that have found a defect, each with a sentence about that defect.
#[test]
fn seeds_of_defects_that_are_mended() {
    let seeds = [
        50,    // what a late receiver lacked was repaired before the receiver was ready
        12,    // repair by multicast only, for ever, to a member that multicast does not reach
        364,   // a receiver that nothing reached brought its path's rate to the floor
        774,   // a member without multicast was not found out when sending was sparse
        5713,  // the watch began at time zero: after a late start all members counted as deaf
        2368,  // the first eight that owed an answer were probed for ever, the silent one never
        164,   // an operation failed more than once, and its packets were still taken
        20488, // a collector did not report what was missing below it if a part was news to it
        1334,  // a round trip of a minute, once seen, made a root probe a minute after the end
        0,     // packets of a peer that was gone were still answered
        1394,  // feedback was written past the end of a slot before it was found to be too long
        784,   // a co-root held no base of its window when a receiver was ahead of it
        // Repairs of receivers below a member made the member count as deaf, again and again.
        103314,
    ];
    let outpaced = [
        716,  // what a slow receiver's short queue dropped counted as usual: no trial succeeded
        1096, // the trial silenced the slow ones, so they left the path and were not found
        8589, // the judge took one that the sender does not wait for as one that holds the others
    ];
    let prompt = seeds.map(|seed| (seed, Network::Prompt));
    let outpaced = outpaced.map(|seed| (seed, Network::Outpaced));
    for (seed, network) in prompt.into_iter().chain(outpaced) {
        let verdict = judge_seed(seed, network, true);
        assert!(verdict.result.is_ok(), "{verdict}");
    }
}

#[test]
fn a_run_prints_one_line_per_transition() {
    let scenario = Scenario::bulk(3, 10_000, 1440);
    let mut text = Vec::new();
    let verdict = run_scenario(&scenario, Trace::printed(&mut text));
    assert!(verdict.result.is_ok(), "{verdict}");
    let text = String::from_utf8_lossy(&text);
    for part in ["h0 sends s0/0", "h1 posts s0/0", "h2 <- h0", "Complete"] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    let silent = run_scenario(&scenario, Trace::silent());
    assert_eq!(silent.hash, verdict.hash, "printing changes nothing");
}

#[test]
fn two_hundred_and_fifty_six_receivers_cost_few_packets() {
    let count = match packet_count(256, 4096) {
        Ok(c) => c,
        Err(e) => panic!("{e}"),
    };
    assert!(count.holds(), "{count:?}");
}

#[test]
fn who_posts_late_holds_nobody_up_and_is_not_repaired_before() {
    let late = match late_poster() {
        Ok(l) => l,
        Err(e) => panic!("{e}"),
    };
    assert_eq!(late.repairs_before, 0);
    assert!(
        late.others.0 * 100 <= late.undisturbed.0 * 105,
        "the others: {:?} instead of {:?}",
        late.others,
        late.undisturbed
    );
}

#[test]
fn loss_costs_no_more_than_promised() {
    for link in &LINKS {
        for (loss, bursty) in [(0.0, false), (0.01, false), (0.05, false), (0.05, true)] {
            match goodput(link, 8, loss, bursty, 2.0) {
                Ok(t) => assert!(
                    t.holds(loss, bursty),
                    "{} at {loss}, bursty {bursty}: {t:?}",
                    link.name
                ),
                Err(e) => panic!("{e}"),
            }
        }
    }
}

#[test]
fn more_receivers_take_no_more_time() {
    let time = |receivers| match goodput(&LINKS[0], receivers, 0.0, false, 1.0) {
        Ok(t) => t.time.0,
        Err(e) => panic!("{e}"),
    };
    let (one, many) = (time(1), time(32));
    assert!(
        many * 100 <= one * 105,
        "{many} ns with 32, {one} ns with 1"
    );
}

#[test]
fn the_pace_follows_a_step_within_a_second() {
    for (before, after) in [(FAST, SLOW), (SLOW, FAST)] {
        match step(before, after) {
            Ok(c) => assert!(c.holds(), "{before} to {after}: {c:?}"),
            Err(e) => panic!("{e}"),
        }
    }
}

/// One receiver's cable carries nothing for four seconds.
#[test]
fn after_an_outage_the_pace_is_as_before() {
    let undisturbed = LINKS[0].scenario(3, 2.0);
    let mut s = undisturbed.clone();
    s.faults.blocks.push(Block {
        host: 1,
        what: Blocked::All,
        at: Duration::from_secs(1),
        until: Some(Duration::from_secs(5)),
    });
    let time = |s: &Scenario| match Cluster::new(s, Trace::silent()).run() {
        Ok(o) => o.root_done_at[0].0,
        Err(e) => panic!("{e}"),
    };
    let (without, with) = (time(&undisturbed), time(&s));
    assert!(
        with < without + 5_000_000_000,
        "{with} ns instead of {without}"
    );
}

#[test]
fn a_receiver_that_dies_half_way_holds_nobody_up() {
    let undisturbed = LINKS[0].scenario(4, 1.0);
    let mut s = undisturbed.clone();
    s.faults.crashes.push(Crash {
        host: 2,
        at: Duration::from_millis(500),
        noticed_after: Duration::from_millis(20),
    });
    let time = |s: &Scenario| match Cluster::new(s, Trace::silent()).run() {
        Ok(o) => o.root_done_at[0].0,
        Err(e) => panic!("{e}"),
    };
    let (without, with) = (time(&undisturbed), time(&s));
    assert!(with * 10 <= without * 11, "{with} ns instead of {without}");
}

#[test]
fn a_fixed_rate_holds_for_all_ways_together() {
    let rate = 2_000_000;
    let mut s = LINKS[0].scenario(4, 0.1);
    s.rate = Some(rate);
    let bytes = s.streams[0].lens[0];
    // Multicast reaches no receiver: the root sends the object four times.
    s.faults.blocks = (1..5)
        .map(|host| Block {
            host,
            what: Blocked::Multicast,
            at: Duration::ZERO,
            until: None,
        })
        .collect();
    match Cluster::new(&s, Trace::silent()).run() {
        Ok(o) => {
            let least = 4 * bytes * 1_000_000_000 / rate;
            assert!(
                o.root_done_at[0].0 >= least,
                "{:?}, not {least} ns",
                o.root_done_at
            );
            assert!(
                o.root_done_at[0].0 <= least * 13 / 10,
                "{:?}, not {least} ns",
                o.root_done_at
            );
        }
        Err(e) => panic!("{e}"),
    }
}

/// One member makes up all that it says. The others get everything and nothing else, in little more
/// time than without this member.
#[test]
fn a_member_that_lies_costs_the_others_little() {
    let judge = |seed| judge_liar(seed).unwrap_or_else(|e| panic!("{e}"));
    // As many seeds as take half a minute.
    let mut factors: Vec<f64> = LIAR_SEEDS.take(12).map(judge).collect();
    factors.sort_by(f64::total_cmp);
    let (median, worst) = (factors[factors.len() / 2], factors[factors.len() - 1]);
    println!("median {median:.2}, worst {worst:.2}");
}
