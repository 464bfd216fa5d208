//! Reliability schemes as values: feedback topology, feedback rule, loss detection, repair, window.
//!
//! Every scheme of the papers is a point in this space, and none has a protocol of its own. Only
//! variants in use exist: an axis gets a new variant when a preset needs it.

use core::time::Duration;

use crate::id::Cut;
use crate::limits;
use crate::wire::{CHECK_LEN, DATA_OVERHEAD};

pub use crate::wire::Checksum;

mod hierarchy;
mod presets;

pub use hierarchy::Hierarchy;
pub use presets::{PRESETS, Preset, UnknownScheme};

/// A reliability scheme: feedback topology, feedback schedule, loss detection, repair, and a window
/// (P1.1, P1.3).
#[derive(Clone, PartialEq, Debug)]
pub struct Scheme {
    /// To which node a receiver reports.
    pub topology: FeedbackTopology,
    /// When a receiver sends feedback.
    pub feedback: FeedbackRule,
    /// Which side detects a loss, and after which time.
    pub detect: Detect,
    /// How losses are repaired.
    pub repair: Repair,
    /// Packets that the sender may have sent before all receivers have placed them, within
    /// [`crate::limits::WINDOW_MIN`]`..=`[`crate::limits::WINDOW_MAX`]. A receiver accepts no
    /// packet beyond the window, so that an object that delays writes knows how much it may have to
    /// keep.
    pub window: u32,
    /// Broadcasts that one sender may have under way at once: one (P1.2), as many as there are
    /// channels (P4.1), or any number.
    pub broadcasts: u32,
    /// The checksum that shows whether a datagram arrived unchanged (P4.4).
    pub checksum: Checksum,
    /// Credits (P1.10): a receiver divides its buffers among all nodes that send to it, and no
    /// sender exceeds its share. Without credits each sender may send as if it were alone.
    pub credits: bool,
    /// Which objects are copied when they are sent, so that the caller may reuse its memory at
    /// once. Any other object is read in place until every receiver has it (P1.7, P4.8).
    pub copied: Copied,
}

/// Which objects are copied when they are sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Copied {
    /// The scheme does not say. A communicator chooses, and in a transfer no object is copied.
    Unsaid,
    /// None.
    Never,
    /// Those of at most this many bytes (P4.8).
    UpTo(u32),
    /// Those whose packets fit in the window, where each packet has a slot (P1.3), as soon as so
    /// many slots are free ([`crate::Node::has_slots`]).
    IntoWindow,
}

/// The feedback topology: the node to which a receiver reports, which is also the node that repairs
/// for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FeedbackTopology {
    /// Every receiver reports to the sender.
    Direct,
    /// This many delivery groups of equal size, one of them the sender's own. The first receiver of
    /// each other group is a *co-root*: its group reports to it, and it repairs for its group. A
    /// co-root gets a copy of everything from the sender or from another co-root (P1.4).
    Coroots(u32),
    /// A tree in which each node has this many children. A receiver reports to its parent what all
    /// of its sub-tree has. The sender repairs for whole sub-trees (P1.5, P4.3).
    Tree(u32),
}

/// When a receiver sends feedback: an ACK of what it has, and a NACK of what it lacks.
#[derive(Clone, PartialEq, Debug)]
pub struct FeedbackRule {
    /// Only on request: in answer to a probe, or to the packet that uses up the window (P4.2). Then
    /// `every`, `spacing_min` and `delay_max` have no effect.
    pub on_request_only: bool,
    /// Data packets after which a receiver sends feedback (P1.6 "every M").
    pub every: u32,
    /// Receiver `i` sends feedback after packets whose number is `i` modulo `every`, so that
    /// receivers take turns (P1.6 "skewed").
    pub skewed: bool,
    /// Least time between two feedback datagrams, unless the window is running out.
    pub spacing_min: Duration,
    /// Longest time from a data packet to the feedback that covers it.
    pub delay_max: Duration,
    /// Time between the answers of two neighbours when all receivers are probed at once. Receivers
    /// that lack something answer four times as fast.
    pub turn: Duration,
    /// How long feedback that is not urgent waits for a datagram to the same node, or to a group
    /// that the node is in, to be piggybacked on (P1.6 "piggyback"). Zero: no piggybacking.
    pub piggyback: Duration,
    /// Delayed ACK of a copied broadcast ([`Scheme::copied`]), for which no caller waits. Its last
    /// packet requests no ACK. A receiver that has it waits this long before it sends one, which
    /// then covers later broadcasts, too. Without effect where the sender detects losses.
    pub ack_delay: Duration,
    /// Feedback suppression: in a group of more receivers than this, counts and times are longer in
    /// proportion, so that the sender receives no more feedback than from this many.
    pub suppress_above: u32,
}

/// Loss detection.
#[derive(Clone, PartialEq, Debug)]
pub struct Detect {
    /// Whether the sender (or the co-root) detects losses. If true, it takes a packet for lost that
    /// a receiver has not acknowledged for [`Detect::rto_min`] (P1.2), and receivers send no NACKs
    /// by themselves. If false, receivers detect losses by gaps and send NACKs, and the sender
    /// probes receivers that are silent (P1.15).
    pub by_sender: bool,
    /// The reordering threshold at the beginning: how long a gap must be open before it is NACKed.
    /// A receiver then learns the threshold from how late reordered packets arrive.
    pub reorder_min: Duration,
    /// The largest reordering threshold.
    pub reorder_max: Duration,
    /// Least retransmission timeout: the sender probes a receiver that has been silent for this
    /// long, and a receiver NACKs again what it still lacks. Each timeout in vain doubles it.
    pub rto_min: Duration,
    /// Least timeout at the end, when all packets have been sent: the sender probes after two round
    /// trips, but not before this, and a receiver NACKs again after five times this.
    pub tail_min: Duration,
    /// Largest retransmission timeout: doubling stops here.
    pub rto_max: Duration,
}

/// How losses are repaired.
#[derive(Clone, PartialEq, Debug)]
pub struct Repair {
    /// What is sent, and to which members.
    pub how: How,
    /// NACK aggregation delay: how long the sender waits after the first NACK of a packet for NACKs
    /// of other receivers. At most a quarter of a round trip when the sender has nothing else to
    /// send.
    pub nack_delay: Duration,
}

/// What the sender sends to repair a loss, and to which members.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// `Xor` in small groups, `Parity` in large ones.
    Coded,
    /// Like `Cheaper`, but packets that different receivers lack are combined: one XOR repair
    /// packet to the group mends all of these losses. Where the sender does not know which receiver
    /// lacks what (see [`limits::SETS_BYTES`]), like `Cheaper`.
    Xor,
    /// Parity packets to the group, as many as the neediest receiver lacks packets of a block,
    /// unless retransmission is cheaper.
    Parity,
    /// A retransmission: by unicast if one receiver lacks the packet, to the group if several do.
    Cheaper,
    /// A retransmission by unicast to each receiver that lacks the packet.
    Unicast,
    /// A retransmission to the group.
    Multicast,
}

impl Scheme {
    /// Fabricast's own scheme. Receivers detect gaps and send NACKs together with ACKs (P1.15), and
    /// one repair packet mends losses of several receivers. While much is sent, throughput comes
    /// first and a repair may take some milliseconds. What is missing at the end is repaired within
    /// a few round trips.
    pub fn auto() -> Scheme {
        Scheme {
            topology: FeedbackTopology::Direct,
            feedback: FeedbackRule {
                on_request_only: false,
                every: 64,
                skewed: true,
                spacing_min: Duration::from_millis(2),
                delay_max: Duration::from_millis(20),
                turn: Duration::from_micros(2),
                piggyback: Duration::ZERO,
                ack_delay: Duration::from_millis(1),
                suppress_above: 64,
            },
            detect: Detect {
                by_sender: false,
                reorder_min: Duration::from_micros(20),
                reorder_max: Duration::from_millis(60),
                rto_min: Duration::from_millis(10),
                tail_min: Duration::from_micros(200),
                rto_max: Duration::from_millis(500),
            },
            repair: Repair {
                how: How::Coded,
                nack_delay: Duration::from_millis(8),
            },
            window: 16_384,
            broadcasts: u32::MAX,
            checksum: Checksum::None,
            credits: false,
            copied: Copied::Unsaid,
        }
    }

    /// Whether a receiver acknowledges a broadcast of `len` bytes at once, because the sender's
    /// caller, or its next one, waits for that. It need not for an object without bytes, or one
    /// that is copied up to a length.
    pub fn is_awaited(&self, len: u64) -> bool {
        match self.copied {
            Copied::UpTo(most) => len > u64::from(most),
            Copied::Unsaid | Copied::Never | Copied::IntoWindow => len > 0,
        }
    }

    /// Whether an object of `len` bytes is copied when it is sent, in packets of at most
    /// `payload_size` bytes.
    pub fn copies(&self, len: u64, payload_size: u32) -> bool {
        match self.copied {
            Copied::Unsaid | Copied::Never => false,
            Copied::UpTo(most) => len <= u64::from(most),
            Copied::IntoWindow => len <= u64::from(payload_size) * u64::from(self.window),
        }
    }

    /// How a broadcast of `len` bytes is cut into packets of at most `payload_size` bytes. `None`
    /// if it has too many packets.
    pub fn cut(&self, len: u64, payload_size: u32) -> Option<Cut> {
        match self.is_awaited(len) {
            true => Cut::new(len, payload_size),
            false => Cut::equal(len, payload_size),
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

    /// The scheme with every value clamped to its bounds: counts of at least one, the window within
    /// [`limits::WINDOW_MIN`]`..=`[`limits::WINDOW_MAX`], times of at most an hour, and of at least
    /// 1 µs where zero would let no time pass. No upper bound is below its lower bound.
    pub fn bounded(mut self) -> Scheme {
        const SOON: Duration = Duration::from_micros(1);
        const LATE: Duration = Duration::from_secs(3600);
        let (feedback, detect) = (&mut self.feedback, &mut self.detect);
        feedback.every = feedback.every.max(1);
        feedback.suppress_above = feedback.suppress_above.max(1);
        feedback.turn = feedback.turn.min(LATE);
        feedback.piggyback = feedback.piggyback.min(LATE);
        feedback.ack_delay = feedback.ack_delay.min(LATE);
        self.repair.nack_delay = self.repair.nack_delay.min(LATE);
        for t in [
            &mut feedback.spacing_min,
            &mut feedback.delay_max,
            &mut detect.reorder_min,
            &mut detect.reorder_max,
            &mut detect.rto_min,
            &mut detect.rto_max,
            &mut detect.tail_min,
        ] {
            *t = (*t).clamp(SOON, LATE);
        }
        detect.reorder_max = detect.reorder_max.max(detect.reorder_min);
        detect.rto_max = detect.rto_max.max(detect.rto_min);
        self.broadcasts = self.broadcasts.max(1);
        self.window = self.window.clamp(limits::WINDOW_MIN, limits::WINDOW_MAX);
        self
    }
}
