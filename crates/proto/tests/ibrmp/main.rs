//! Tests of P3's protocol for files: each rule by itself, forged messages, every loss of a small
//! world, random worlds.

mod forgeries;
#[cfg(feature = "mutants")]
mod mutants;
mod rules;
#[path = "../seeds/mod.rs"]
mod seeds;
mod small;
mod world;
mod worlds;
