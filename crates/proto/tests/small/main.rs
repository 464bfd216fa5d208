//! Exhaustive tests of small cases, and random ones, on a network without bytes on wires.

mod losses;
mod members;
mod net;
