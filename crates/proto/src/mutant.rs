//! Deliberate defects, to prove that the tests can fail.
//!
//! With the feature `mutants` a test switches one on for its thread; without it [`active`] is
//! constantly false and nothing of this is left in the program. The simulator's checkers must
//! catch every one (see `crates/sim/tests/mutants.rs`).

/// A defect, named by what goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    /// A receiver acknowledges what it has seen, before the bytes are placed.
    AckBeforePlaced,
    /// A receiver takes every packet for new.
    RepeatIsNew,
    /// A receiver reports no gaps.
    GapsUnreported,
    /// The sender never asks those that are silent.
    NeverAsks,
    /// The sender believes every report, also one made before the repair could arrive.
    StaleReportsBelieved,
    /// A member that is not ready holds the others back, and is sent repairs.
    LateHoldsAll,
    /// When a member goes, its neighbour is removed too.
    RemovesNeighbour,
    /// Sequence numbers are compared without regard to their wrap.
    NoWrap,
    /// A receiver leaves one of the sources out when it decodes an XOR repair packet.
    SumForgetsOne,
    /// The sender sends packets for the only receiver of a group to the group's address.
    PairByGroup,
    /// A collector reports only what it has itself.
    AnswersForItself,
    /// A sender that is to notice losses notices none.
    SenderNoticesNothing,
    /// A receiver that answers questions only does not hear them.
    NobodyIsAsked,
    /// A datagram whose checksum is wrong is believed.
    DamageBelieved,
    /// A packet that is here already is computed again from parity packets.
    RebuildsWhatIsHere,
    /// A receiver asks for fewer packets than it lacks: parity packets that it has cached count
    /// twice.
    KeptCountTwice,
    /// A node leaves a barrier before the words of its last round are there.
    LeavesEarly,
    /// A word that is not covered is not repeated, and one that is lacking not asked for.
    ForgetsToRepeat,
    /// The sender judges a receiver by numbers that it can make up.
    NumbersBelieved,
    /// The sender repairs whatever a receiver asks for, however little it gets on.
    RepairsWithoutLimit,
    /// Every member may repair for a sender and say what it has sent.
    AnybodySpeaks,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 21] = [
        Mutant::AckBeforePlaced,
        Mutant::RepeatIsNew,
        Mutant::GapsUnreported,
        Mutant::NeverAsks,
        Mutant::StaleReportsBelieved,
        Mutant::LateHoldsAll,
        Mutant::RemovesNeighbour,
        Mutant::NoWrap,
        Mutant::SumForgetsOne,
        Mutant::PairByGroup,
        Mutant::AnswersForItself,
        Mutant::SenderNoticesNothing,
        Mutant::NobodyIsAsked,
        Mutant::DamageBelieved,
        Mutant::RebuildsWhatIsHere,
        Mutant::KeptCountTwice,
        Mutant::LeavesEarly,
        Mutant::ForgetsToRepeat,
        Mutant::NumbersBelieved,
        Mutant::RepairsWithoutLimit,
        Mutant::AnybodySpeaks,
    ];
}

#[cfg(feature = "mutants")]
mod selected {
    use super::Mutant;
    use core::cell::Cell;

    thread_local! {
        static SELECTED: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    /// Switches a defect on for this thread, or all off.
    pub fn select(mutant: Option<Mutant>) {
        SELECTED.set(mutant);
    }

    /// Whether this defect is on.
    pub fn active(mutant: Mutant) -> bool {
        SELECTED.get() == Some(mutant)
    }
}

#[cfg(feature = "mutants")]
pub use selected::{active, select};

/// Whether this defect is on: never.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn active(_mutant: Mutant) -> bool {
    false
}
