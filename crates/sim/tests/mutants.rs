//! Tests of the tests: the soak must catch every deliberate defect of the core.
//!
//! `cargo test -p fabricast-sim --features mutants --test mutants`
#![cfg(feature = "mutants")]

use fabricast::proto::mutant::{self, Mutant};
use fabricast::proto::scheme::Copied;
use fabricast_sim::{LIAR_SEEDS, Network, Scenario, judge_liar, judge_seed};

/// Number of seeds within which a defect must show.
const SEEDS: u64 = 1500;

/// Seeds by which defects were caught that few seeds show. These are judged first; when the core
/// changes, others may catch them.
const CAUGHT_BY: [(Mutant, u64); 10] = [
    (Mutant::StaleReportsBelieved, 210),
    (Mutant::LateHoldsAll, 34),
    (Mutant::AnswersForItself, 33),
    (Mutant::RebuildsWhatIsHere, 34),
    (Mutant::KeptCountTwice, 34),
    (Mutant::SilenceTakes, 84),
    (Mutant::LeftTooEarly, 44),
    (Mutant::OldTablesBelieved, 296),
    (Mutant::OneForAll, 543),
    (Mutant::FileIdsFall, 162),
];

/// The seeds to judge for a defect.
fn seeds(mutant: Mutant) -> impl Iterator<Item = u64> {
    let known = CAUGHT_BY.iter().filter(move |known| known.0 == mutant);
    known.map(|known| known.1).chain(0..SEEDS)
}

/// Defects that only a lying member can exploit.
const TRUSTING: [Mutant; 3] = [
    Mutant::NumbersBelieved,
    Mutant::RepairsWithoutLimit,
    Mutant::AnybodySpeaks,
];

/// Defects by which a buffer is reused while the network may still read it.
const EARLY: [Mutant; 2] = [Mutant::ReleasesBeforeSent, Mutant::SentWhenPosted];

/// Defects that show where receivers join, leave and decline.
const MEMBERS: [Mutant; 4] = {
    let ([a, b], [c, d]) = (Mutant::MEMBERS, Mutant::DECLINES);
    [a, b, c, d]
};

/// Runs seeds with a defect until one fails. Returns this seed and why it failed.
fn caught(mutant: Mutant) -> Option<(u64, String)> {
    mutant::select(Some(mutant));
    let found = match TRUSTING.contains(&mutant) {
        true => LIAR_SEEDS
            .into_iter()
            .find_map(|seed| judge_liar(seed).err().map(|e| (seed, e))),
        // A driver that reuses a buffer too early may also free it, which a test must not do.
        false => seeds(mutant)
            .filter(|seed| copies(*seed, mutant))
            .find_map(|seed| {
                let network = match mutant {
                    _ if EARLY.contains(&mutant) => Network::Delayed,
                    _ if MEMBERS.contains(&mutant) => Network::Joined,
                    _ if Mutant::PACE.contains(&mutant) => Network::Outpaced,
                    _ if Mutant::SHARES.contains(&mutant) => Network::Weighted,
                    _ => Network::Prompt,
                };
                let verdict = judge_seed(seed, network, false);
                verdict.result.err().map(|e| (seed, e.what))
            }),
    };
    mutant::select(None);
    found
}

/// Whether a seed serves for a mutant.
fn copies(seed: u64, mutant: Mutant) -> bool {
    !EARLY.contains(&mutant) || Scenario::delayed(seed).scheme.copied == Copied::Never
}

#[test]
fn every_mutant_is_caught() {
    let all = Mutant::ALL.into_iter().chain(MEMBERS).chain(Mutant::PACE);
    let all = all.chain(Mutant::SHARES);
    catch(all.filter(|m| !TRUSTING.contains(m)));
}

#[test]
fn a_member_that_lies_finds_every_mutant_that_trusts_it() {
    assert!(TRUSTING.iter().all(|m| Mutant::ALL.contains(m)));
    catch(TRUSTING.into_iter());
}

#[test]
fn every_mutant_of_the_protocol_for_files_is_caught() {
    std::panic::set_hook(Box::new(|_| {}));
    let caught = |mutant: Mutant| {
        mutant::select(Some(mutant));
        let error = |seed| judge_seed(seed, Network::Files, false).result.err();
        let found = seeds(mutant).find_map(|seed| Some((seed, error(seed)?.what)));
        mutant::select(None);
        (mutant, found)
    };
    // The order of answers shows in no result, and nobody forges multicast here: rules in the core
    // catch these.
    let unseen = [
        Mutant::WaitListReversed,
        Mutant::MulticastReplaces,
        Mutant::AnswersAhead,
    ];
    let all = Mutant::IBRMP.into_iter();
    let found: Vec<_> = all
        .filter(|mutant| !unseen.contains(mutant))
        .map(caught)
        .collect();
    let _ = std::panic::take_hook();
    for (mutant, found) in found {
        let (seed, why) = found.unwrap_or_else(|| panic!("{mutant:?} is not caught"));
        println!("{mutant:?}: seed {seed}: {why}");
    }
}

/// The judge must say what is wrong, because a panic would show less.
#[test]
fn every_mutant_of_groups_is_caught() {
    std::panic::set_hook(Box::new(|_| {}));
    let caught = |mutant: Mutant| {
        let expected = match mutant {
            Mutant::LeftTooEarly => " leaves ",
            Mutant::AddressLeaked => "not returned",
            Mutant::OneForAll => "not full",
            _ => "not proven",
        };
        mutant::select(Some(mutant));
        let error = |seed| judge_seed(seed, Network::Subnet, false).result.err();
        let mut errors = seeds(mutant).filter_map(|seed| Some((seed, error(seed)?.what)));
        let found = errors.find(|(_, why)| why.contains(expected));
        mutant::select(None);
        (mutant, found)
    };
    let found = Mutant::GROUP.map(caught);
    let _ = std::panic::take_hook();
    for (mutant, found) in found {
        let (seed, why) = found.unwrap_or_else(|| panic!("{mutant:?} is not caught"));
        println!("{mutant:?}: seed {seed}: {why}");
    }
}

fn catch(mutants: impl Iterator<Item = Mutant>) {
    // A panic catches a mutant as well as a checker does; its message is in the verdict.
    std::panic::set_hook(Box::new(|_| {}));
    let mut alive = Vec::new();
    for mutant in mutants {
        match caught(mutant) {
            Some((seed, why)) => println!("{mutant:?}: seed {seed}: {why}"),
            None => alive.push(mutant),
        }
    }
    let _ = std::panic::take_hook();
    assert!(alive.is_empty(), "not caught in {SEEDS} seeds: {alive:?}");
}

#[test]
fn without_a_mutant_the_same_seeds_pass() {
    mutant::select(None);
    // The soak judges more of them.
    for seed in 0..10 {
        for network in [
            Network::Prompt,
            Network::Delayed,
            Network::Joined,
            Network::Outpaced,
            Network::Weighted,
            Network::Files,
            Network::Subnet,
        ] {
            let verdict = judge_seed(seed, network, false);
            assert!(verdict.result.is_ok(), "{verdict}");
        }
    }
}
