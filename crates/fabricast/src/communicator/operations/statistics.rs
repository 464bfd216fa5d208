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
    /// least for a while.
    pub unaddressed: Reasons,
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
            refused: Reasons::new(&counted.refused),
            unaddressed: Reasons::new(&counted.unaddressed),
            joins: (&counted.join_time).into(),
            proofs: (&counted.proof_time).into(),
            changes: (&counted.own_time).into(),
        }
    }
}

/// How often an address was not to be had, by reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reasons {
    /// There were no more addresses.
    pub exhausted: u64,
    /// The subnet denied the address.
    pub denied: u64,
    /// The subnet did not answer.
    pub unanswered: u64,
    /// All hosts had joined, and probes did not reach them.
    pub unproven: u64,
    /// A host was gone.
    pub gone: u64,
}

impl Reasons {
    fn new(counted: &[u64; Refusal::ALL.len()]) -> Reasons {
        Reasons {
            exhausted: counted[Refusal::NoAddresses.index()],
            denied: counted[Refusal::Denied.index()],
            unanswered: counted[Refusal::NoAnswer.index()],
            unproven: counted[Refusal::Unproven.index()],
            gone: counted[Refusal::Gone.index()],
        }
    }

    /// The sum over all reasons.
    pub fn total(&self) -> u64 {
        self.exhausted + self.denied + self.unanswered + self.unproven + self.gone
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_its_count() {
        let mut counted = [0; Refusal::ALL.len()];
        for (n, why) in Refusal::ALL.into_iter().enumerate() {
            counted[why.index()] = 10u64.pow(n as u32);
        }
        let reasons = Reasons::new(&counted);
        let expected = Reasons {
            exhausted: 1,
            denied: 10,
            unanswered: 100,
            unproven: 1000,
            gone: 10_000,
        };
        assert_eq!((reasons, reasons.total()), (expected, 11_111));
    }
}
