//! The `fabricast` command.
#![forbid(unsafe_code)]

fn main() {}
