//! Exhaustive tests of small cases, and random ones, on a network without bytes on wires.

mod declines;
mod losses;
mod members;
mod net;

/// Whether a test fails with a defect.
#[cfg(feature = "mutants")]
fn fails(mutant: fabricast_proto::mutant::Mutant, test: impl FnOnce()) -> bool {
    use fabricast_proto::mutant;
    mutant::select(Some(mutant));
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(test));
    mutant::select(None);
    result.is_err()
}
