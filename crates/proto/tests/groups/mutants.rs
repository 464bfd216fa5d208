//! Tests of the tests: random worlds must catch every deliberate defect of groups' addresses.
//!
//! `cargo test -p fabricast-proto --features mutants --test groups mutant`

use fabricast_proto::mutant::{self, Mutant};

use crate::world::{Scenario, World};

/// Number of seeds within which a defect must show.
const SEEDS: u64 = 300;

/// Runs seeds with a defect until the judge says what is expected of it. Returns the seed and why
/// it failed.
fn caught(mutant: Mutant, expected: &str) -> Option<(u64, String)> {
    mutant::select(Some(mutant));
    let found = (0..SEEDS).find_map(|seed| {
        let error = World::judge(seed, Scenario::random(seed)).err();
        error
            .filter(|why| why.contains(expected))
            .map(|why| (seed, why))
    });
    mutant::select(None);
    found
}

#[test]
fn every_mutant_of_groups_is_caught_by_the_judge() {
    std::panic::set_hook(Box::new(|_| {}));
    // Tables here follow each answer in turn, so none of before can come back.
    let all = Mutant::GROUP
        .into_iter()
        .filter(|&m| m != Mutant::OldTablesBelieved);
    let found = all.map(|mutant| {
        let expected = match mutant {
            Mutant::LeftTooEarly => " leaves ",
            Mutant::AddressLeaked => "not returned",
            Mutant::OneForAll => "not full",
            _ => "does not reach",
        };
        (mutant, caught(mutant, expected))
    });
    let found: Vec<_> = found.collect();
    let _ = std::panic::take_hook();
    for (mutant, found) in found {
        let (seed, why) = found.unwrap_or_else(|| panic!("{mutant:?} is not caught"));
        println!("{mutant:?}: seed {seed}: {why}");
    }
}

#[test]
fn without_a_mutant_the_same_seeds_pass() {
    mutant::select(None);
    for seed in 0..SEEDS {
        let result = World::judge(seed, Scenario::random(seed));
        assert!(result.is_ok(), "seed {seed}: {:?}", result.err());
    }
}
