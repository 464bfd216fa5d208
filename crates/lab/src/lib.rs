//! Models and simulations of the papers' measurements, and comparisons of the papers' schemes, all
//! on the simulator that judges the protocol.
#![forbid(unsafe_code)]

pub mod bench;
pub mod calibration;
pub mod compare;
pub mod model;
pub mod papers;
pub mod subnet;
