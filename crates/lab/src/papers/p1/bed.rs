//! The testbed of P1, and the sizes that its experiments send.

use crate::calibration::{Calibration, Testbed};
use crate::model::P1;
use crate::papers::lab::Bed;

/// Sizes that fit one buffer, in bytes.
pub(super) const SMALL: [u64; 7] = [4, 32, 128, 256, 512, 1024, 1836];
/// Fewer sizes that fit one buffer, for quick runs.
pub(super) const SMALL_QUICK: [u64; 4] = [4, 32, 256, 1024];
/// Size at which the paper's "up to" is read, in bytes: the largest power of two in one buffer.
pub(super) const KILO: u64 = 1024;

pub(super) fn p1() -> P1 {
    P1::new(&Calibration::of(Testbed::P1))
}

pub(super) fn bed(hosts: usize) -> Bed {
    Bed {
        simulated: p1().simulated(),
        hosts,
    }
}
