//! What a host knows of one group.

use crate::group::address::Refusal;
use crate::group::hosts::HostSet;
use crate::group::message::Grant;
use crate::id::AddressId;
use crate::time::Time;

/// A group of which this host is a member.
pub(super) struct Group {
    pub(super) hosts: HostSet,
    pub(super) grant: Option<Grant>,
    /// The address that it sends by.
    pub(super) by: Option<AddressId>,
    pub(super) ready: bool,
    pub(super) reason: Option<Refusal>,
    pub(super) counted: bool,
    /// Bytes sent since the last report.
    pub(super) bytes: u64,
    pub(super) created: Time,
    pub(super) used: Option<Time>,
}
