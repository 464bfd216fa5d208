//! Hosts get multicast addresses from a simulated manager: random runs obey the judge.
//!
//! `SUBNET_SEED=N cargo test -p fabricast-sim --test addresses one_seed -- --nocapture` runs one
//! seed again and prints what its hosts do. `SUBNET_SEEDS=N` runs more seeds.

use std::time::Duration;

use fabricast::proto::group::{HostId, HostSet, Strategy};
use fabricast_sim::Trace;
use fabricast_sim::subnet::curve::{Effective, Experiment};
use fabricast_sim::subnet::{Behaviour, Outcome, Plan, Received, Scenario, Subnet};

/// Seeds of one run.
const SEEDS: u64 = 400;

/// Runs a seed; a panic is a failure, too.
fn judge(seed: u64) -> Result<Outcome, String> {
    let run = || Subnet::new(&Scenario::from_seed(seed), Trace::silent()).run();
    match std::panic::catch_unwind(run) {
        Ok(result) => result.map_err(|failure| failure.to_string()),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()));
            Err(format!("panic: {}", text.unwrap_or_default()))
        }
    }
}

fn number(name: &str) -> Option<u64> {
    #[expect(clippy::disallowed_methods, reason = "which seeds to run")]
    let text = std::env::var(name).ok()?;
    text.parse().ok()
}

/// Runs `run` without the messages of panics, which are failures of seeds.
fn quietly<T>(run: impl FnOnce() -> T) -> T {
    std::panic::set_hook(Box::new(|_| {}));
    let result = run();
    let _ = std::panic::take_hook();
    result
}

#[test]
fn random_runs_obey_the_judge() {
    let seeds = number("SUBNET_SEEDS").unwrap_or(SEEDS);
    let runs: Vec<_> = quietly(|| (0..seeds).map(|seed| (seed, judge(seed))).collect());
    let failed = runs
        .iter()
        .filter_map(|(seed, run)| Some((seed, run.as_ref().err()?)));
    let failed: Vec<_> = failed.collect();
    let first: Vec<_> = failed.iter().take(12).collect();
    assert!(failed.is_empty(), "{} of {seeds}: {first:#?}", failed.len());

    // Where the network forgets nothing, no datagram misses a member.
    for (seed, run) in &runs {
        let forgets =
            |outcome: &Outcome| !Scenario::from_seed(*seed).faults.is_empty() || outcome.gaps > 0;
        if let Ok(outcome) = run
            && !forgets(outcome)
        {
            assert_eq!(outcome.unreached, 0, "seed {seed}");
        }
    }
    // The runs are not empty: communicators broadcast by addresses of their own.
    let outcomes: Vec<&Outcome> = runs.iter().flat_map(|(_, run)| run).collect();
    let sum = |of: fn(&Outcome) -> u64| outcomes.iter().map(|&o| of(o)).sum::<u64>();
    let courses = || outcomes.iter().flat_map(|outcome| &outcome.courses);
    let done = courses().filter(|course| course.done.is_some()).count();
    let granted = courses().filter(|course| course.granted).count();
    let first = courses().filter(|course| course.own_first == Some(true));
    let first = first.count();
    let gaps = sum(|o| o.gaps);
    let (sent, unreached) = (sum(|o| o.sent), sum(|o| o.unreached));
    let own = sum(|o| o.received.own);
    let context = sum(|o| o.received.foreign_by_context);
    let wider = sum(|o| o.received.foreign_by_address);
    let left = sum(|o| o.received.foreign_after_leave);
    println!(
        "{done} communicators broadcast, {granted} had an address at hand, {first} began by it"
    );
    println!("received: {own} own; {context}, {wider} and {left} foreign");
    println!("{gaps} gaps; tables did not lead {unreached} of {sent} to all members");
    assert!(done as u64 > 3 * seeds && granted as u64 > seeds / 2 && first as u64 > seeds / 2);
    // Where no address leads beyond a group's hosts but the context's, few frames are foreign.
    assert!((wider + left) * 20 < own, "{wider} and {left} of {own}");
}

#[test]
fn equal_seeds_leave_equal_traces() {
    for seed in 0..20 {
        assert_eq!(judge(seed), judge(seed), "{seed}");
    }
}

#[test]
fn one_seed_again() {
    let Some(seed) = number("SUBNET_SEED") else {
        return;
    };
    let scenario = Scenario::from_seed(seed);
    println!("{scenario:#?}");
    let mut out = std::io::stdout();
    let result = Subnet::new(&scenario, Trace::printed(&mut out)).run();
    println!("{result:#?}");
    assert!(result.is_ok());
}

/// Tests of the tests: the judge catches each deliberate defect of groups' addresses.
#[cfg(feature = "mutants")]
mod mutants {
    use fabricast::proto::mutant::{self, Mutant};

    use super::{judge, quietly};

    /// Number of seeds within which a defect must show.
    const SEEDS: u64 = 300;

    #[test]
    fn every_mutant_of_groups_is_caught() {
        let caught = |defect: Mutant| {
            let expected = match defect {
                Mutant::LeftTooEarly => " leaves ",
                Mutant::AddressLeaked => "not returned",
                _ => "not proven",
            };
            mutant::select(Some(defect));
            let mut errors = (0..SEEDS).filter_map(|seed| Some((seed, judge(seed).err()?)));
            let found = errors.find(|(_, why)| why.contains(expected));
            mutant::select(None);
            (defect, found)
        };
        for (defect, found) in quietly(|| Mutant::GROUP.map(caught)) {
            let (seed, why) = found.unwrap_or_else(|| panic!("{defect:?} is not caught"));
            println!("{defect:?}: seed {seed}: {why}");
        }
    }
}

/// The mean over some seeds of the time in which tables follow the last answer, for 32 members.
fn lag_us(added_us: u64, outstanding: usize) -> f64 {
    const SEEDS: u64 = 16;
    let lag = |seed| {
        let mut scenario = Scenario::new(32, Strategy::Pool { size: 1, max: 1 });
        scenario.seed = seed;
        scenario.manager = Behaviour::opensm().slower(Duration::from_micros(added_us));
        scenario.manager.outstanding = outstanding;
        let hosts = [HostId(0), HostId(1)].into_iter().collect();
        let at = Duration::from_secs(1);
        scenario.plans.push(Plan::new(at, hosts, Vec::new()));
        let outcome = Subnet::new(&scenario, Trace::silent()).work_only();
        outcome.expect("a healthy run").lag.as_secs_f64() * 1e6
    };
    (0..SEEDS).map(lag).sum::<f64>() / SEEDS as f64
}

/// The manager's values are fitted to these: of OpenSM on ibsim, as `Behaviour::opensm` says.
#[test]
fn tables_follow_as_late_as_those_of_opensm() {
    let measured = [
        (0, 4, 320.0),
        (500, 1, 5600.0),
        (500, 4, 1600.0),
        (500, 0, 1200.0),
    ];
    for (added_us, outstanding, expected) in measured {
        let lag = lag_us(added_us, outstanding);
        println!("{added_us} µs added, {outstanding} outstanding: {lag:.0} µs");
        let ratio = lag / expected;
        assert!(
            (0.67..1.33).contains(&ratio),
            "{lag} µs, measured {expected} µs"
        );
    }
}

fn effective(nodes: u32, strategy: Strategy, iterations: usize) -> Effective {
    let experiment = Experiment {
        iterations,
        ..Experiment::new(nodes, strategy)
    };
    experiment.run().expect("a healthy run")
}

#[test]
fn a_new_communicator_broadcasts_at_once_with_a_pool() {
    for nodes in [16, 32] {
        let [basic, lazy, pool] = [Strategy::Basic, Strategy::Lazy, Strategy::pool(8)]
            .map(|strategy| effective(nodes, strategy, 1));
        // No host waits for the manager, and the first broadcast leaves by the group's own address.
        assert!(pool.own_first && basic.own_first && !lazy.own_first);
        assert!(pool.creation <= Duration::from_micros(50), "{pool:?}");
        assert!(basic.creation > 5 * pool.creation, "{basic:?}");
        // With `basic`, the address was proven before the broadcast.
        let first = pool.latency - pool.creation;
        let proven = basic.latency - basic.creation;
        assert!(first <= proven.mul_f64(1.2), "{first:?} {proven:?}");
        // The more broadcasts, the less the creation counts.
        let ratio = |iterations| {
            let of = |strategy| effective(nodes, strategy, iterations).latency.as_secs_f64();
            of(Strategy::Basic) / of(Strategy::pool(8))
        };
        let ratios = [1, 10, 100, 1000].map(ratio);
        println!("{nodes} nodes: basic / pool {ratios:.2?}");
        assert!(ratios.is_sorted_by(|a, b| a > b) && ratios[0] > 4.0);
    }
}

/// 64 communicators of half the hosts each: datagrams that hosts receive for the groups of others.
fn foreign(addresses: u32, bcasts: usize) -> (u64, Received) {
    let mut scenario = Scenario::new(32, Strategy::pool(8));
    scenario.addresses = addresses;
    for k in 0..64 {
        let at = Duration::from_millis(1000 + 50 * k);
        // The first host is in every other one.
        let start = k as u32 % 32;
        let hosts: HostSet = (0..16)
            .map(|i| HostId((start + i * (1 + k as u32 / 32)) % 32))
            .collect();
        let root = hosts.lowest().expect("a host");
        scenario
            .plans
            .push(Plan::new(at, hosts, vec![(root, 1024); bcasts]));
    }
    let outcome = Subnet::new(&scenario, Trace::silent()).work_only();
    let received = outcome.expect("a healthy run").received;
    let foreign = received.foreign_by_context + received.foreign_by_address;
    (foreign + received.foreign_after_leave, received)
}

#[test]
fn hosts_outside_a_communicator_are_hardly_bothered() {
    let ((few, pool), (many, shared)) = (foreign(80, 200), foreign(0, 200));
    println!("{few} {pool:?}\n{many} {shared:?}");
    // Only the first ones count, until the manager has answered 16 leaves and the tables follow:
    // of 1000 broadcasts back to back these are 1.13 %, of 200 five times as many.
    assert!(few * 100 < many * 6, "{few} of {many}");
    // The tables follow an answer within the measured time.
    assert!(
        pool.after_leave_max < Duration::from_micros(1500),
        "{pool:?}"
    );
}
