//! Real processes of the command, on the loopback.

#[path = "../common/mod.rs"]
mod common;

mod again;
mod again_lies;
mod copy;
mod copy_ssh;
mod demo;
mod discard;
mod faults;
mod feed;
mod feed_at_once;
mod feed_clock;
mod feed_faults;
mod forged;
mod ibrmp;
mod ibrmp_receiver;
mod ibrmp_stops;
mod ibrmp_workers;
mod late;
mod liars;
mod packaging;
mod restart;
mod run;
mod serving;
mod set;
mod slow;
mod start;
mod stream;
mod transfer;
mod usage;
