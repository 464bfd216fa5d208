//! The types that enter and leave a host's machine.

use super::hosts::{HostId, HostSet};
use super::message::Message;
use super::strategy::Strategy;
use crate::id::{AddressId, GroupId};
use crate::time::Time;

/// The configuration of one host; equal at all hosts of a context except for `host`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// This host.
    pub host: HostId,
    /// Number of hosts of the context, at most [`super::HOSTS_MAX`].
    pub hosts: u32,
    /// When groups get addresses.
    pub strategy: Strategy,
    /// How many addresses groups may have. Zero: none.
    pub addresses: u32,
    /// The lowest number of these addresses, at least 1; their numbers follow one another.
    pub first: u32,
    /// Whether the context has an address of its own, number 0, which all hosts have joined and
    /// which is proven.
    pub context_address: bool,
}

/// What the driver does next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// Request from the manager that this host joins the address. The driver answers with
    /// `joined` or `refused`, or not at all. The machine repeats a request that has no answer yet.
    Join(AddressId),
    /// Request from the manager that this host joins the address anew: the manager granted it, and
    /// yet nothing arrives by it, or the network has forgotten it. Answered like [`Output::Join`].
    JoinAnew(AddressId),
    /// Request from the manager that this host leaves the address. The driver answers with `left`,
    /// or with `refused` if the manager does not know the membership.
    Leave(AddressId),
    /// Send full-size probes by this address to these hosts. The driver always answers with
    /// `proved`, also when hosts stay silent. A host answers by the same address, so that in a tree
    /// of switches one proof holds for every sender.
    Prove {
        /// The address.
        address: AddressId,
        /// The hosts that are to answer.
        hosts: HostSet,
    },
    /// The group sends by this address from now on, or by unicast.
    SendBy {
        /// The group.
        group: GroupId,
        /// The address; `None` for unicast.
        address: Option<AddressId>,
    },
    /// Send a message to another host.
    Tell {
        /// The host.
        to: HostId,
        /// The message.
        message: Message,
    },
    /// The call that creates this group may return.
    Ready(GroupId),
    /// Nothing to do before this time, which lies in the future, unless there is an input.
    Wait(Time),
}
