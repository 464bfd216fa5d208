//! Deliberate defects, which prove that the tests can fail.
//!
//! With the feature `mutants` a test switches a defect on for its thread. Without the feature
//! [`active`] is constantly false, and the compiler removes all of this. The simulator's checkers
//! (`crates/sim/tests/mutants.rs`) or the core's own worlds (`tests/groups/mutants.rs`,
//! `tests/ibrmp/mutants.rs`) must catch every defect.

/// A defect, named by what goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    /// A receiver acknowledges packets that it has seen, before their bytes are placed.
    AckBeforePlaced,
    /// A receiver takes every packet for new.
    RepeatIsNew,
    /// A receiver reports no gaps.
    GapsUnreported,
    /// The sender never probes silent receivers.
    NeverAsks,
    /// The sender believes every report, including reports made before the last repair could
    /// arrive.
    StaleReportsBelieved,
    /// The sender treats a member that is not ready as ready: the member holds the others back, and
    /// gets repairs.
    LateHoldsAll,
    /// When a member goes, the sender removes its neighbour, too.
    RemovesNeighbour,
    /// Sequence numbers are compared without their wrap.
    NoWrap,
    /// A receiver leaves one of the sources out when it decodes an XOR repair packet.
    SumForgetsOne,
    /// The sender sends to the group's address although the group has only one receiver.
    PairByGroup,
    /// A collector reports only what it has placed itself.
    AnswersForItself,
    /// A sender that has to detect losses detects none.
    SenderNoticesNothing,
    /// A receiver that sends feedback only on request ignores requests.
    NobodyIsAsked,
    /// A receiver believes a datagram whose checksum is wrong.
    DamageBelieved,
    /// A receiver computes a packet again from parity packets although it has the packet.
    RebuildsWhatIsHere,
    /// A receiver asks for fewer packets than it lacks: cached parity packets count twice.
    KeptCountTwice,
    /// A node leaves a barrier before the words of the last round are there.
    LeavesEarly,
    /// A rank neither repeats a word that is not covered, nor asks for a word that it lacks.
    ForgetsToRepeat,
    /// The sender judges a receiver by numbers that the receiver can make up.
    NumbersBelieved,
    /// The sender repairs whatever a receiver asks for, however little progress the receiver makes.
    RepairsWithoutLimit,
    /// Receivers let every member repair for a sender and say what that sender has sent.
    AnybodySpeaks,
    /// The sender returns an object while the network may still read it.
    ReleasesBeforeSent,
    /// The driver counts a datagram as sent when the network has taken it, not when the network
    /// reads it no more.
    SentWhenPosted,
    /// A node does not record when a stream that has changed has something to do.
    ChangesUnnoticed,
    /// A node that joins is told that it gets the broadcasts that are under way.
    JoinsUnderWay,
    /// A sender takes feedback of an earlier holder of a slot for that of the present one.
    EpochsIgnored,
    /// A receiver does not tell the sender what it declines.
    DeclinesUntold,
    /// A sender sends what no member of a path wants.
    SentUnwanted,
    /// The pacer takes receivers for outpaced that hold the rate, without trying a higher one.
    OutpacesUntried,
    /// The pacer never finds that receivers are outpaced.
    NobodyIsOutpaced,
    /// The pacer takes a receiver that reports nothing of a trial for one that takes all of it.
    SilenceTakes,
    /// The pacer takes receivers for outpaced that have held the rate only for a moment.
    MomentsCount,
    /// Streams of a node share its fixed rate as if all had the same weight.
    WeightsIgnored,
    /// A stream that has nothing to send saves up its share of the node's fixed rate.
    PausesSaveUp,
    /// A group sends by an address that its hosts have joined, before probes have proven it.
    UsedBeforeProof,
    /// A host leaves an address as soon as it is told to send there no more; others still send.
    LeftTooEarly,
    /// The coordinator takes the manager's answers for a proof.
    AnswerBelieved,
    /// The coordinator keeps the address of groups that have ended.
    AddressLeaked,
    /// A host joins an address again, and proves it, while tables of before may lead there.
    OldTablesBelieved,
    /// An address that the manager refuses to one host is given up for all.
    OneForAll,
    /// A receiver of files sends TRANSFER_DONE as soon as BOF and all bytes are here, without EOF.
    DoneBeforeEof,
    /// A receiver of files requests nothing of what the EOF shows to be missing.
    EndMakesNoHole,
    /// A receiver of files takes an older file of a slot for a new one.
    FileIdsFall,
    /// A sender of files answers each request for a closed file by FILE_TIMEOUT.
    TimeoutForEach,
    /// A sender of files answers requests for the last file of a slot that is in use again.
    ReusedSlotAnswers,
    /// A sender of files prolongs a file's timeout with each request.
    TimeoutRenewed,
    /// A sender of files waits for receivers that have come after the EOF, too.
    GhostsAwaited,
    /// A sender of files drops what waits for a receiver when a file expires, and says nothing.
    ExpiryUntold,
    /// An end of a reliable channel sends messages without credits.
    CreditsIgnored,
    /// An end of a reliable channel sends the last entry of its wait-list first.
    WaitListReversed,
    /// An end of a reliable channel acknowledges each message by itself.
    AckForEach,
    /// Multicast of a newer file ends the file that is under way in its slot.
    MulticastReplaces,
    /// A sender answers requests for what has not been multicast yet.
    AnswersAhead,
}

impl Mutant {
    /// Mutants of a node, which the simulator's checkers catch.
    pub const ALL: [Mutant; 24] = [
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
        Mutant::ReleasesBeforeSent,
        Mutant::SentWhenPosted,
        Mutant::ChangesUnnoticed,
    ];
    /// Mutants of members that join and leave, which the simulator catches. Random runs in
    /// `tests/small/members.rs` catch them, too.
    pub const MEMBERS: [Mutant; 2] = [Mutant::JoinsUnderWay, Mutant::EpochsIgnored];
    /// Mutants of objects that receivers decline, which the simulator catches. Small cases in
    /// `tests/small/declines.rs` catch them, too.
    pub const DECLINES: [Mutant; 2] = [Mutant::DeclinesUntold, Mutant::SentUnwanted];
    /// Mutants of receivers that the group outpaces, which the simulator catches. Tests of the
    /// pacer catch them, too.
    pub const PACE: [Mutant; 4] = [
        Mutant::OutpacesUntried,
        Mutant::NobodyIsOutpaced,
        Mutant::SilenceTakes,
        Mutant::MomentsCount,
    ];
    /// Mutants of streams that share a fixed rate, which the simulator catches. Tests of the shares
    /// catch them, too.
    pub const SHARES: [Mutant; 2] = [Mutant::WeightsIgnored, Mutant::PausesSaveUp];
    /// Mutants of the addresses of groups, which the simulator catches. Random worlds in
    /// `tests/groups/mutants.rs` catch all but the last.
    pub const GROUP: [Mutant; 6] = [
        Mutant::UsedBeforeProof,
        Mutant::LeftTooEarly,
        Mutant::AnswerBelieved,
        Mutant::AddressLeaked,
        Mutant::OldTablesBelieved,
        Mutant::OneForAll,
    ];
    /// Mutants of the protocol for files, which `tests/ibrmp/mutants.rs` catches.
    pub const IBRMP: [Mutant; 13] = [
        Mutant::DoneBeforeEof,
        Mutant::EndMakesNoHole,
        Mutant::FileIdsFall,
        Mutant::TimeoutForEach,
        Mutant::ReusedSlotAnswers,
        Mutant::TimeoutRenewed,
        Mutant::GhostsAwaited,
        Mutant::ExpiryUntold,
        Mutant::CreditsIgnored,
        Mutant::WaitListReversed,
        Mutant::AckForEach,
        Mutant::MulticastReplaces,
        Mutant::AnswersAhead,
    ];
}

#[cfg(feature = "mutants")]
mod selected {
    use super::Mutant;
    use core::cell::Cell;

    thread_local! {
        static SELECTED: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    /// Switches a defect on for this thread; `None` switches all off.
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
