//! Random worlds: groups come and go, hosts crash, the manager and the network forget.
//!
//! `GROUP_SEED=N GROUP_TRACE=1 cargo test -p fabricast-proto --test groups one_seed -- --nocapture`
//! runs one seed again and prints what its hosts do.

use crate::world::{Scenario, World};

/// Worlds of one run.
const SEEDS: u64 = 4000;

#[test]
fn random_worlds_obey_the_judge() {
    std::panic::set_hook(Box::new(|_| {}));
    let mut failed = Vec::new();
    let mut worst = (0.0, 0);
    let (mut granted, mut at_once) = (0, 0);
    for seed in 0..SEEDS {
        match World::judge(seed, Scenario::random(seed)) {
            Ok(world) => {
                let s = world.hosts[0]
                    .as_ref()
                    .map(|h| h.statistics().coordinator.messages)
                    .unwrap_or(0);
                let _ = s;
                let r = world.messages as f64 / world.messages_most() as f64;
                if r > worst.0 {
                    worst = (r, seed);
                }
                granted += world.granted;
                at_once += world.at_once;
            }
            Err(why) => failed.push(format!("seed {seed}: {why}")),
        }
    }
    let _ = std::panic::take_hook();
    println!("{worst:?} {granted} {at_once}");
    let first: Vec<_> = failed.iter().take(12).collect();
    assert!(failed.is_empty(), "{} of {SEEDS}: {first:#?}", failed.len());
}

#[test]
fn one_seed_again() {
    let Some(seed) = std::env::var("GROUP_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
    else {
        return;
    };
    let scenario = Scenario::random(seed);
    println!("{scenario:#?}");
    let result = World::run(seed, scenario);
    assert!(result.is_ok(), "{:?}", result.err());
}
