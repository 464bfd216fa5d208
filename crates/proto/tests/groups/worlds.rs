//! Random worlds: groups come and go, hosts crash, the manager and the network forget.
//!
//! `GROUP_SEED=N GROUP_TRACE=1 cargo test -p fabricast-proto --test groups one_seed -- --nocapture`
//! runs one seed again and prints what its hosts do.

use fabricast_proto::group::{Refusal, Strategy};

use crate::seeds::variable;
use crate::world::{Scenario, World};

/// Worlds of one run; the variable `GROUP_SEEDS` asks for more.
const SEEDS: u64 = 2000;

#[test]
fn random_worlds_obey_the_judge() {
    std::panic::set_hook(Box::new(|_| {}));
    let mut failed = Vec::new();
    let (mut granted, mut at_once) = (0, 0);

    let seeds = variable("GROUP_SEEDS").and_then(|seeds| seeds.parse().ok());
    let seeds = seeds.unwrap_or(SEEDS);
    for seed in 0..seeds {
        match World::judge(seed, Scenario::random(seed)) {
            Ok(world) => {
                granted += world.granted;
                at_once += world.at_once;
            }
            Err(why) => failed.push(format!("seed {seed}: {why}")),
        }
    }
    let _ = std::panic::take_hook();
    let first: Vec<_> = failed.iter().take(12).collect();
    assert!(failed.is_empty(), "{} of {seeds}: {first:#?}", failed.len());
    // A few learn of a lost membership while the group is being created.
    assert!(
        granted > 1000 && at_once * 100 > granted * 99,
        "{at_once} of {granted}"
    );
}

/// Thousands of groups share few addresses: each has a way, and all addresses come back.
#[test]
fn thousands_of_groups_share_64_addresses() {
    for limit in [u32::MAX, 4, 0] {
        let mut scenario = Scenario::calm(32, Strategy::pool(8));
        scenario.addresses = 63;
        scenario.manager.limit = limit;
        (scenario.groups, scenario.at_once) = (2000, 2000);
        let world = World::judge(7, scenario).unwrap();
        let refused = (world.hosts.iter().flatten()).any(|host| {
            let last = host.statistics().last_refusal;
            last.is_some_and(|(why, _)| why == Refusal::NoAddresses)
        });
        assert_eq!(refused, limit < 63);
    }
}

#[test]
fn one_seed_again() {
    let Some(seed) = variable("GROUP_SEED").and_then(|seed| seed.parse().ok()) else {
        return;
    };
    let scenario = Scenario::random(seed);
    println!("{scenario:#?}");
    let result = World::run(seed, scenario);
    assert!(result.is_ok(), "{:?}", result.err());
}
