//! Tests of the tests: the rules and the random worlds must catch every deliberate defect.
//!
//! `cargo test -p fabricast-proto --features mutants --test ibrmp mutant`

use fabricast_proto::mutant::{self, Mutant};

use crate::forgeries;
use crate::rules;
use crate::seeds::caught;
use crate::worlds;

/// Number of seeds within which a defect must show.
const SEEDS: u64 = 1000;

/// The rule that each defect breaks.
fn rule(mutant: Mutant) -> fn() {
    match mutant {
        Mutant::DoneBeforeEof => rules::transfer_done_comes_only_after_all_data_and_eof,
        Mutant::EndMakesNoHole => rules::eof_makes_holes_requestable_without_the_bof,
        Mutant::FileIdsFall => rules::file_ids_only_rise,
        Mutant::TimeoutForEach => {
            rules::file_timeout_is_sent_once_to_each_receiver_and_only_if_needed
        }
        Mutant::ReusedSlotAnswers => {
            rules::requests_for_closed_files_are_judged_by_the_tuples_of_the_paper
        }
        Mutant::TimeoutRenewed => rules::a_file_has_one_timeout_from_the_end_of_its_multicast,
        Mutant::GhostsAwaited => rules::ghosts_delay_nothing_and_wait_for_the_next_file,
        Mutant::ExpiryUntold => rules::what_waits_for_credits_at_expiry_becomes_one_file_timeout,
        Mutant::CreditsIgnored | Mutant::WaitListReversed => {
            rules::at_zero_credits_answers_wait_and_resume_in_order
        }
        Mutant::AckForEach => rules::one_ack_acknowledges_a_batch,
        Mutant::MulticastReplaces => forgeries::a_forged_newer_file_ends_none,
        Mutant::AnswersAhead => forgeries::what_was_never_multicast_is_not_answered,
        other => panic!("{other:?} is no defect of this protocol"),
    }
}

#[test]
fn every_mutant_is_caught_by_its_rule_and_by_random_worlds() {
    std::panic::set_hook(Box::new(|_| {}));
    let found = Mutant::IBRMP.map(|mutant| {
        mutant::select(Some(mutant));
        let by_rule = caught(|| {
            rule(mutant)();
            Ok(())
        });
        let by_world = (0..SEEDS).find_map(|seed| {
            let why = caught(|| worlds::run(seed, false)).err();
            why.map(|why| (seed, why))
        });
        mutant::select(None);
        (mutant, by_rule.err(), by_world)
    });
    let _ = std::panic::take_hook();
    for (mutant, by_rule, by_world) in found {
        println!("{mutant:?}: {by_rule:?} {by_world:?}");
        assert!(by_rule.is_some(), "{mutant:?} breaks no rule");
        // The judge of the worlds does not judge the order of messages.
        let is_order = mutant == Mutant::WaitListReversed;
        assert!(
            by_world.is_some() || is_order,
            "{mutant:?}: the worlds do not see it"
        );
    }
}
