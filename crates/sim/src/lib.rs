//! A simulated cluster that runs the same protocol code under virtual time and judges it.
// Allowed again where an object promises that its bytes stay where they are (`object`).
#![deny(unsafe_code)]

pub mod barrier;
pub mod baseline;
mod check;
mod cluster;
pub mod fabric;
pub mod fault;
mod host;
mod hostile;
pub mod ibrmp;
mod liar;
pub mod measure;
pub mod object;
pub mod parallel;
mod queue;
pub mod scenario;
mod shares;
pub mod skew;
mod soak;
pub mod subnet;
pub mod table;
pub mod topology;
pub mod trace;
mod transport;
mod words;
pub mod workload;

pub use baseline::Baseline;
pub use cluster::{Cluster, Failure, Outcome, Tried, View, group_id};
pub use measure::{Timing, measure};
pub use scenario::Scenario;
pub use soak::{
    LIAR_COSTS, LIAR_SEEDS, Network, Passed, SoakReport, Verdict, judge_liar, judge_seed,
    run_scenario, run_seed, soak,
};
pub use table::table;
pub use trace::Trace;
pub use transport::SimTransport;
