//! What an InfiniBand fabric forwards, beside what it should: the switches' multicast tables.
//!
//! [`smp`] is the bytes of subnet management, [`fabric`] what was found by them, [`walk`] the
//! judgement: it follows the tables from every member of a group and counts the copies.

pub mod fabric;
pub mod smp;
pub mod walk;
