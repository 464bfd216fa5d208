//! What a context has counted.

use std::time::Duration;

use fabricast_proto::Histogram;
use fabricast_proto::group::{self, Refusal, Snapshot};

use crate::driver;
use crate::transport;
use crate::transport::fault::FaultCounters;

/// Counters of a context, all since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Statistics {
    /// Counters of the protocol on the network.
    pub node: fabricast_proto::Counters,
    /// Counters of the protocol between processes of this host.
    pub near: fabricast_proto::Counters,
    /// Counters of the memory that processes of this host share.
    pub shm: transport::Counters,
    /// Counters of the driver on the network.
    pub driver: driver::Counters,
    /// Counters of the network between hosts.
    pub net: transport::Counters,
    /// Counters of injected faults.
    pub faults: FaultCounters,
    /// Broadcasts that this process started as root.
    pub sent: u64,
    /// Bytes of the broadcasts in `sent`.
    pub sent_bytes: u64,
    /// Broadcasts that this process received, those under way among them.
    pub received: u64,
    /// Bytes of the broadcasts in `received`.
    pub received_bytes: u64,
    /// Barriers that this process entered.
    pub barriers: u64,
    /// How often multicast was found not to reach a receiver, or no longer to reach it. Unicast
    /// then serves the receiver.
    pub unreached: u64,
    /// 1 if this process should share memory with others of its host and does not.
    pub unshared: u64,
    /// Multicast addresses and how groups use them, now.
    pub addresses: AddressStatistics,
    /// Groups that are not over, including those that this process has left and others have not.
    pub groups: u64,
}

/// The multicast addresses of a context as one process sees them. All zero at a process that does
/// not speak for its host, and in a context without a strategy
/// ([`crate::communicator::Options::groups`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AddressStatistics {
    /// Addresses that the host has joined, or is about to.
    pub joined: u64,
    /// Addresses to which groups of the host send.
    pub in_use: u64,
    /// The highest number of such addresses so far.
    pub in_use_max: u64,
    /// Addresses to which two groups of the host or more send.
    pub shared: u64,
    /// The highest number of such addresses so far.
    pub shared_max: u64,
    /// Broadcasts that this process has sent by an address of exactly the group's hosts.
    pub sent_own: u64,
    /// Groups that send by an address of exactly their hosts.
    pub own: u64,
    /// Groups that send by an address with more hosts.
    pub wider: u64,
    /// Groups that send by unicast, because there is no address for them.
    pub unicast: u64,
    /// Joins that were refused.
    pub refused: Reasons,
    /// Groups whose lowest host this is, and that had to do without an address of their own, at
    /// least for a while, by reason.
    pub unaddressed: Reasons,
    /// Groups that can have none, because another process than the lowest of a host leads them
    /// there. Their lowest leader counts them.
    pub unled: u64,
    /// At rank 0: addresses that were given up, by reason.
    pub given_up: Reasons,
    /// At rank 0: hosts that could not join what others had joined and were set aside, by reason.
    pub set_aside: Reasons,
    /// Memberships that the network had forgotten, as a manager that was restarted has.
    pub lost: u64,
    /// From the request to join an address to the subnet's answer (P5.3).
    pub joins: Taken,
    /// From that answer to the proof (P5.3).
    pub proofs: Taken,
    /// From a group's first use until it sent by an address of its own (P5.3).
    pub changes: Taken,
}

impl AddressStatistics {
    /// What the machine of a host has counted, and how many broadcasts this process has sent by
    /// addresses of exactly the groups' hosts.
    pub(crate) fn new(
        snapshot: &Snapshot,
        counted: &group::Statistics,
        sent_own: u64,
    ) -> AddressStatistics {
        AddressStatistics {
            joined: snapshot.addresses.into(),
            in_use: counted.in_use.now.into(),
            in_use_max: counted.in_use.max.into(),
            shared: counted.shared.now.into(),
            shared_max: counted.shared.max.into(),
            sent_own,
            own: snapshot.own.into(),
            wider: snapshot.wider.into(),
            unicast: snapshot.unicast.into(),
            refused: Reasons(counted.refused),
            unaddressed: Reasons(counted.unaddressed),
            unled: 0,
            given_up: Reasons(counted.coordinator.given_up),
            set_aside: Reasons(counted.coordinator.set_aside),
            lost: counted.lost,
            joins: (&counted.join_time).into(),
            proofs: (&counted.proof_time).into(),
            changes: (&counted.own_time).into(),
        }
    }
}

/// How often an address was not to be had, by reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reasons(pub(crate) [u64; Refusal::ALL.len()]);

impl Reasons {
    /// The counter of one reason.
    pub fn of(&self, why: Refusal) -> u64 {
        self.0[why.index()]
    }

    /// The sum of these counters and others.
    pub(crate) fn and(mut self, others: &[u64; Refusal::ALL.len()]) -> Reasons {
        self.0.iter_mut().zip(others).for_each(|(sum, n)| *sum += n);
        self
    }

    /// All counters together.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

/// How often something that takes time has happened, and how long that took in all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Taken {
    /// How often.
    pub times: u64,
    /// How long all of them took together.
    pub total: Duration,
}

impl From<&Histogram> for Taken {
    fn from(histogram: &Histogram) -> Taken {
        Taken {
            times: histogram.count(),
            total: histogram.total(),
        }
    }
}
