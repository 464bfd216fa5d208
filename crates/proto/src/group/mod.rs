//! Multicast addresses of groups: which hosts join which address, and who may send to it when.
//!
//! A group is a set of hosts; an address is a resource of the network, given out by an external
//! manager that answers a join before the network forwards (P5.1). Each host runs a [`Host`]:
//! *inputs* are the caller's groups, the manager's answers and the messages of other hosts;
//! *outputs* are joins, leaves, probes, messages, and by which address each group sends.
//! Host 0 is the *coordinator* and decides. Each address has one *term* after another: hosts join,
//! probes prove it for all of them, groups send, all hosts say that they send no more, hosts leave.
//! So no host sends to an address that is not proven, and no host leaves one that is still sent to.
//! A [`Strategy`] says when a group gets an address; until then it shares one, or uses unicast.
//!
//! `address` is the state of one address at one host, `holder` one host's part, `coordinator` the
//! part of host 0, `message` what they tell each other (spec 4).

mod address;
mod border;
mod coordinator;
mod holder;
mod host;
mod hosts;
mod message;
mod statistics;
mod strategy;

pub use address::{Action, Input, Refusal, State};
pub use border::{Config, Output};
pub use host::Host;
pub use hosts::{HostId, HostSet};
pub use message::{Grant, HOSTS_MAX, Message, SENT_MAX};
pub use statistics::{CoordinatorStatistics, GroupStatus, Level, Snapshot, Statistics, Times};
pub use strategy::{Strategy, UnknownStrategy, shared_address};
