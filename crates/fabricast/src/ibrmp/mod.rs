//! P3's protocol for files on real networks (spec 7): what drives [`fabricast_proto::ibrmp`].
//!
//! BOF and DATA go by multicast, as datagrams of one message each. The reliable channel of a
//! receiver is its control connection ([`crate::bootstrap`]), where pending connections are
//! limited, too.
//!
//! ```text
//!   source files ─→ FileSender ── BOF, DATA: multicast ──→ FileReceiver ─→ partial files
//!                        ↑ └───── EOF, answers: TCP ───────────↑ │
//!                        └─────── requests, ACKs: TCP ───────────┘
//! ```
//! The transfer ([`crate::transfer`]) admits receivers, starts, and reports.

mod coming;
mod fingerprint;
mod mending;
mod messages;
mod offer;
mod pace;
mod peer;
mod receiver;
mod sender;
mod sent;
mod sources;
mod storing;

pub use fingerprint::Fingerprint;
pub use mending::Mended;
pub use messages::{MessageCounts, Messages};
pub use offer::over_before;
pub use receiver::{CREDITS_MAX, FileOutcome, FileReceiver, ReceiverPlan};
pub use sender::{FileSender, Noticed, SenderPlan};
pub use sent::SentFiles;
pub use sources::{digest, files};

use fabricast_proto::ibrmp::{Credits, HEADER_LEN};
use fabricast_proto::{AddressId, NodeId};

/// The name by which `send` and `recv` call this protocol, among the names of schemes.
pub const NAME: &str = "ibrmp";
/// Bytes of a DATA message before the bytes of its file.
pub const OVERHEAD: u32 = HEADER_LEN as u32;
/// Credits of each channel, for both directions.
pub const CREDITS: Credits = Credits::PAPER;
/// The sender's node number.
const SENDER: NodeId = NodeId(0);
/// The number of the multicast address.
const ADDRESS: AddressId = AddressId(0);

/// Whether a scheme's name means P3's protocol; with modifiers, too, which it does not have.
pub fn is_meant(scheme: &str) -> bool {
    scheme.split('+').next() == Some(NAME)
}
