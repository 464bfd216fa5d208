//! The missing and the declined ranges of a feedback frame.

use crate::seq::Seq;

/// Length of one range of a feedback frame, in bytes. A range consists of its distance from the end
/// of the range before, and its length.
pub const RANGE_LEN: usize = 4;

/// The missing ranges of a checked feedback frame, each as first sequence number and length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ranges<'a> {
    pub(super) at: Seq,
    pub(super) rest: &'a [u8],
}

impl Ranges<'_> {
    /// An empty list.
    pub const NONE: Ranges<'static> = Ranges {
        at: Seq(0),
        rest: &[],
    };

    /// Whether no packet is missing.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
}

impl Iterator for Ranges<'_> {
    type Item = (Seq, u32);

    fn next(&mut self) -> Option<(Seq, u32)> {
        let (r, rest) = self.rest.split_first_chunk::<RANGE_LEN>()?;
        let first = self.at + u32::from(u16::from_be_bytes([r[0], r[1]]));
        let len = u32::from(u16::from_be_bytes([r[2], r[3]]));
        self.at = first + len;
        self.rest = rest;
        Some((first, len))
    }
}

/// Length of one declined range of a feedback frame, in bytes: first sequence number, and packets.
pub const DECLINED_LEN: usize = 8;

/// The declined ranges of a checked feedback frame, each as first sequence number and length, in
/// rising order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Declined<'a> {
    pub(super) rest: &'a [u8],
}

impl Declined<'_> {
    /// An empty list.
    pub const NONE: Declined<'static> = Declined { rest: &[] };

    /// Whether nothing is declined.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
}

impl Iterator for Declined<'_> {
    type Item = (Seq, u32);

    fn next(&mut self) -> Option<(Seq, u32)> {
        let (range, rest) = self.rest.split_first_chunk::<DECLINED_LEN>()?;
        let [a, b, c, d, e, f, g, h] = *range;
        self.rest = rest;
        Some((
            Seq(u32::from_be_bytes([a, b, c, d])),
            u32::from_be_bytes([e, f, g, h]),
        ))
    }
}
