//! Tests of a single node: its outputs for given commands and packets, one file for each subject.

mod addresses;
mod common;
mod feedback;
mod groups;
mod mismatch;
mod paths;
mod receivers;
mod repairs;
mod shares;
mod streams;
