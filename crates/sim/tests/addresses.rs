//! Hosts get multicast addresses from a simulated manager: random runs obey the judge.
//!
//! `SUBNET_SEED=N cargo test -p fabricast-sim --test addresses one_seed -- --nocapture` runs one
//! seed again and prints what its hosts do.

use fabricast_sim::Failure;
use fabricast_sim::Trace;
use fabricast_sim::subnet::{Outcome, Scenario, Subnet};

/// Runs a seed; a panic is a failure, too.
fn judge(seed: u64) -> Result<Outcome, String> {
    let run = || Subnet::new(&Scenario::from_seed(seed), Trace::silent()).run();
    match std::panic::catch_unwind(run) {
        Ok(result) => result.map_err(|failure: Failure| failure.to_string()),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()));
            Err(format!("panic: {}", text.unwrap_or_default()))
        }
    }
}

/// Seeds of one run.
const SEEDS: u64 = 400;

#[test]
fn random_runs_obey_the_judge() {
    std::panic::set_hook(Box::new(|_| {}));
    let mut failed = Vec::new();
    for seed in 0..std::env::var("N").map_or(SEEDS,|n|n.parse().unwrap()) {
        if let Err(why) = judge(seed) {
            failed.push(format!("seed {seed}: {why}"));
        }
    }
    let _ = std::panic::take_hook();
    let first: Vec<_> = failed.iter().take(12).collect();
    assert!(failed.is_empty(), "{} of {SEEDS}: {first:#?}", failed.len());
}

#[test]
fn one_seed_again() {
    let seed = std::env::var("SUBNET_SEED").ok();
    let Some(seed) = seed.and_then(|seed| seed.parse().ok()) else {
        return;
    };
    let scenario = Scenario::from_seed(seed);
    println!("{scenario:#?}");
    let mut out = std::io::stdout();
    let result = Subnet::new(&scenario, Trace::printed(&mut out)).run();
    println!("{result:#?}");
    assert!(result.is_ok());
}
