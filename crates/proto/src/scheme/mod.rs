//! A reliability scheme is a value: who is told, when, who notices loss, who repairs and how.
//!
//! Every scheme of the papers is a point in this space and none has a protocol of its own. Only
//! the points that something uses exist yet; an axis grows a variant when a preset needs it.

use core::time::Duration;

use crate::id::Cut;
use crate::limits;
use crate::wire::{CHECK_LEN, DATA_OVERHEAD};

mod presets;
pub use presets::{PRESETS, Preset, UnknownScheme};

/// The four choices (who is told; when; who notices a loss; who repairs, and how) and a window
/// (P1.1, P1.3).
#[derive(Clone, PartialEq, Debug)]
pub struct Scheme {
    /// Who is told.
    pub told: Told,
    /// When.
    pub feedback: FeedbackRule,
    /// Who notices a loss, and after how long.
    pub detect: Detect,
    /// Who repairs, and how.
    pub repair: Repair,
    /// Packets that may be sent and not yet be placed everywhere, within
    /// [`crate::limits::WINDOW_MIN`]`..=`[`crate::limits::WINDOW_MAX`]. A receiver takes none
    /// beyond it, so that an object which puts writes off knows how much it may have to keep.
    pub window: u32,
    /// Broadcasts of one root under way at once: one (P1.2), as many as there are channels (P4.1),
    /// or any number.
    pub broadcasts: u32,
    /// What proves that a datagram is as it was sent (P4.4).
    pub checksum: Checksum,
    /// A receiver divides its buffers among all from whom it receives, and none of them sends more
    /// than its share (P1.10); else each may send as if it were alone.
    pub credits: bool,
    /// An object of at most so many bytes is copied when it is sent, so that the caller is done
    /// with it at once; a longer one is read where it is until everybody has it (P1.7, P4.8). Zero:
    /// none is copied.
    pub copied: u32,
}

/// What each datagram carries to prove that it is as it was sent. Of a datagram whose proof fails
/// nothing is believed, not even its number: it is lost (P4.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Checksum {
    /// Nothing: what the network checks by itself is enough.
    None,
    /// The sum of its 32-bit words. It misses words that have changed places, and changes that
    /// cancel out.
    Additive,
    /// CRC-32C (Castagnoli).
    Crc32c,
}

/// Who is told what a receiver has, and so who repairs for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Told {
    /// The root, by everybody.
    Root,
    /// So many delivery groups of one size, the root's among them; the first of each other group is
    /// a *co-root*, which is told by its group and repairs for it, and gets a copy of its own
    /// of everything from the root or another co-root (P1.4).
    Coroots(u32),
    /// Everybody's parent in a tree where each has so many children; it tells its own parent
    /// what all below it have, and the root repairs for whole sub-trees (P1.5, P4.3).
    Tree(u32),
}

/// When a receiver tells what it has.
#[derive(Clone, PartialEq, Debug)]
pub struct FeedbackRule {
    /// Only when it is asked: by a question, or by the packet that uses up the window (P4.2). Then
    /// the next three mean nothing.
    pub asked_only: bool,
    /// After this many data packets (P1.6 "every M").
    pub every: u32,
    /// Receiver `i` speaks after packets whose number is `i` modulo `every`, so that they take
    /// turns (P1.6 "skewed").
    pub skewed: bool,
    /// Not more often than this, unless the window is running out.
    pub spacing_min: Duration,
    /// Not later than this after a data packet that has not been told of.
    pub delay_max: Duration,
    /// How far apart the answers of two neighbours are when all are asked at once; those that lack
    /// something answer four times as fast.
    pub turn: Duration,
    /// What need not be said at once waits so long for a datagram that goes to the same node, or to
    /// a group in which that is, before it is sent by itself (P1.6 "piggyback"); zero: not at all.
    pub piggyback: Duration,
    /// A broadcast that was copied ([`Scheme::copied`]) nobody waits for: its last packet asks
    /// nothing, and who has it waits so long before it says so, for one acknowledgement then covers
    /// those that have come meanwhile. (Where receivers notice losses, and speak unasked.)
    pub unhurried: Duration,
    /// In a group of more receivers than this, counts and times are so much longer that the root
    /// hears as much as from so many.
    pub crowd: u32,
}

/// Who notices a loss.
#[derive(Clone, PartialEq, Debug)]
pub struct Detect {
    /// The root, or the co-root, takes a receiver that it has not heard for [`Detect::ask_min`] to
    /// have lost what it has not acknowledged (P1.2), and receivers report no gaps. Else receivers
    /// notice gaps, and who is silent is asked (P1.15).
    pub by_sender: bool,
    /// A receiver waits this long at first before it calls a gap a loss; it then learns from how
    /// late reordered packets come.
    pub reorder_min: Duration,
    /// It never waits longer than this.
    pub reorder_max: Duration,
    /// The root asks for feedback when nothing has been heard for this long, doubling, and a
    /// receiver asks again for what it lacks.
    pub ask_min: Duration,
    /// When all has been sent, the root asks after two round trips already, but not before this;
    /// and a receiver asks again after five times this.
    pub tail_min: Duration,
    /// The time of `ask_min` doubles up to this.
    pub ask_max: Duration,
}

/// How the root repairs.
#[derive(Clone, PartialEq, Debug)]
pub struct Repair {
    /// To whom a repair is sent.
    pub how: How,
    /// How long the root waits from the first report of a loss for the others' reports; at most a
    /// quarter of a round trip when it has nothing else to send.
    pub gather: Duration,
}

/// To whom a repair is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// As `Sums` in small groups, as `Blocks` in large ones.
    Coded,
    /// Like `Cheaper`, and packets that different receivers lack are added up: one sum to the group
    /// mends them all. Where it is not known who lacks what (see [`limits::SETS_BYTES`]), as
    /// `Cheaper`.
    Sums,
    /// Parity packets to the group, as many as the neediest receiver lacks packets of a block,
    /// unless it is cheaper to send again what is lacking.
    Blocks,
    /// To the one receiver that lacks it, or to the group if several do.
    Cheaper,
    /// To each that lacks it.
    Unicast,
    /// To the group.
    Multicast,
}

impl Scheme {
    /// Ours: receivers notice gaps and say so, together with what they have (P1.15); what several
    /// lack is mended at once. While much is sent, throughput comes first and a repair may take
    /// some milliseconds; what is missing at the end is repaired within a few round trips.
    pub fn auto() -> Scheme {
        Scheme {
            told: Told::Root,
            feedback: FeedbackRule {
                asked_only: false,
                every: 64,
                skewed: true,
                spacing_min: Duration::from_millis(2),
                delay_max: Duration::from_millis(20),
                turn: Duration::from_micros(2),
                piggyback: Duration::ZERO,
                unhurried: Duration::from_millis(1),
                crowd: 64,
            },
            detect: Detect {
                by_sender: false,
                reorder_min: Duration::from_micros(20),
                reorder_max: Duration::from_millis(60),
                ask_min: Duration::from_millis(10),
                tail_min: Duration::from_micros(200),
                ask_max: Duration::from_millis(500),
            },
            repair: Repair {
                how: How::Coded,
                gather: Duration::from_millis(8),
            },
            window: 16_384,
            broadcasts: u32::MAX,
            checksum: Checksum::None,
            credits: false,
            copied: 0,
        }
    }

    /// Whether somebody waits until everybody has a broadcast of `len` bytes; else it was copied.
    pub fn is_awaited(&self, len: u64) -> bool {
        len > u64::from(self.copied)
    }

    /// How a broadcast of `len` bytes is cut where a packet has room for `chunk`; `None`: it has
    /// too many packets.
    pub fn cut(&self, len: u64, chunk: u32) -> Option<Cut> {
        match self.is_awaited(len) {
            true => Cut::new(len, chunk),
            false => Cut::equal(len, chunk),
        }
    }

    /// What a data or coded packet adds to its payload, in bytes.
    pub fn data_overhead(&self) -> usize {
        let check = match self.checksum {
            Checksum::None => 0,
            Checksum::Additive | Checksum::Crc32c => CHECK_LEN,
        };
        DATA_OVERHEAD + check
    }

    /// The same with every value within its bounds: counts of at least one, the window within
    /// [`limits::WINDOW_MIN`]`..=`[`limits::WINDOW_MAX`], times that let time pass (from 1 µs to an
    /// hour), and no upper bound below its lower one.
    pub fn bounded(mut self) -> Scheme {
        const SOON: Duration = Duration::from_micros(1);
        const LATE: Duration = Duration::from_secs(3600);
        let (feedback, detect) = (&mut self.feedback, &mut self.detect);
        feedback.every = feedback.every.max(1);
        feedback.crowd = feedback.crowd.max(1);
        feedback.turn = feedback.turn.min(LATE);
        feedback.piggyback = feedback.piggyback.min(LATE);
        feedback.unhurried = feedback.unhurried.min(LATE);
        self.repair.gather = self.repair.gather.min(LATE);
        for t in [
            &mut feedback.spacing_min,
            &mut feedback.delay_max,
            &mut detect.reorder_min,
            &mut detect.reorder_max,
            &mut detect.ask_min,
            &mut detect.ask_max,
            &mut detect.tail_min,
        ] {
            *t = (*t).clamp(SOON, LATE);
        }
        detect.reorder_max = detect.reorder_max.max(detect.reorder_min);
        detect.ask_max = detect.ask_max.max(detect.ask_min);
        self.broadcasts = self.broadcasts.max(1);
        self.window = self.window.clamp(limits::WINDOW_MIN, limits::WINDOW_MAX);
        self
    }
}
