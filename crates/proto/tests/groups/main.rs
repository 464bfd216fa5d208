//! Tests of groups' addresses: one address exhaustively, strategies, random worlds with a judge.

mod aside;
mod bounds;
#[cfg(feature = "mutants")]
mod mutants;
#[path = "../seeds/mod.rs"]
mod seeds;
mod states;
mod strategies;
mod world;
mod worlds;
