//! Sequence numbers that wrap. All arithmetic with them is here.

use crate::mutant::{self, Mutant};
use core::fmt;
use core::ops::{Add, AddAssign};

/// The number of a packet in a stream (one sender's packets to one group), modulo 2^32.
///
/// Two numbers that are compared must be less than 2^31 apart. The window (at most
/// [`crate::limits::WINDOW_MAX`]) is far smaller. The wire's decoder cannot check a number's
/// distance, so code that takes a number from the network first calls [`Seq::within`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Seq(pub u32);

impl Seq {
    /// Distance from `base` to `self`, as a signed number: negative if `self` lies before `base`.
    pub fn from(self, base: Seq) -> i32 {
        self.0.wrapping_sub(base.0) as i32
    }

    /// Whether `self` comes before `other`.
    pub fn before(self, other: Seq) -> bool {
        if mutant::active(Mutant::NoWrap) {
            return self.0 < other.0;
        }
        self.from(other) < 0
    }

    /// Whether `base <= self < base + len`; `len` below 2^31.
    pub fn within(self, base: Seq, len: u32) -> bool {
        self.0.wrapping_sub(base.0) < len
    }

    /// The later of two numbers.
    pub fn max(self, other: Seq) -> Seq {
        if self.before(other) { other } else { self }
    }

    /// The earlier of two numbers.
    pub fn min(self, other: Seq) -> Seq {
        if self.before(other) { self } else { other }
    }
}

impl Add<u32> for Seq {
    type Output = Seq;
    fn add(self, n: u32) -> Seq {
        Seq(self.0.wrapping_add(n))
    }
}

impl AddAssign<u32> for Seq {
    fn add_assign(&mut self, n: u32) {
        *self = *self + n;
    }
}

impl fmt::Debug for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn order_survives_the_wrap(a: u32, d in 0u32..0x7fff_ffff) {
            let (x, y) = (Seq(a), Seq(a) + d);
            prop_assert_eq!(y.from(x), d as i32);
            prop_assert_eq!(x.before(y), d > 0);
            prop_assert!(!y.before(x));
            prop_assert_eq!(x.max(y), y);
            prop_assert_eq!(x.min(y), x);
        }

        #[test]
        fn within_is_a_half_open_range(a: u32, len in 0u32..0x7fff_ffff, d: u32) {
            prop_assert_eq!((Seq(a) + d).within(Seq(a), len), d < len);
        }
    }
}
