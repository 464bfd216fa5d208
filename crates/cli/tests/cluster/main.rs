//! Real processes of the command, between hosts: network namespaces that each test makes. Needs
//! root.

#[path = "../common/mod.rs"]
mod common;

mod again;
mod copy;
mod feed;
mod in_memory;
mod losses;
mod net;
mod restart;
mod serving;
mod slow;
mod slurm;
mod transfer;
