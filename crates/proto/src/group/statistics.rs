//! What a host and the coordinator count.

use super::address::Refusal;
use super::message::Grant;
use crate::histogram::Histogram;
use crate::id::AddressId;
use crate::time::Time;

/// Counters of one host, and of the coordinator if the host is it.
#[derive(Clone, Default, Debug)]
pub struct Statistics {
    /// Memberships that the network forgot.
    pub lost: u64,
    /// Refusals of the manager, by reason ([`Refusal::ALL`]).
    pub refused: [u64; Refusal::ALL.len()],
    /// Groups that had to do without an address of their own, at least for a while, by reason
    /// ([`Refusal::ALL`]). Their lowest host counts them.
    pub unaddressed: [u64; Refusal::ALL.len()],
    /// Addresses to which groups of this host send.
    pub in_use: Level,
    /// Addresses to which two groups of this host or more send.
    pub shared: Level,
    /// The last refusal, and when it came.
    pub last_refusal: Option<(Refusal, Time)>,
    /// Time from the request of a join to its answer (P5.3, P5.5).
    pub join_time: Histogram,
    /// Time from the answer to the proof (P5.3, P5.5).
    pub proof_time: Histogram,
    /// Time from a group's creation until it first sends by its own address (P5.3).
    pub own_time: Histogram,
    /// What the coordinator counts; zero at other hosts.
    pub coordinator: CoordinatorStatistics,
}

impl Statistics {
    /// Counts a refusal of the manager.
    pub(in crate::group) fn refuse(&mut self, now: Time, why: Refusal) {
        self.refused[why.index()] += 1;
        self.last_refusal = Some((why, now));
    }

    /// One group more sends by an address, to which `users` of this host send now.
    pub(in crate::group) fn used(&mut self, users: u32) {
        match users {
            1 => self.in_use.rise(),
            2 => self.shared.rise(),
            _ => {}
        }
    }

    /// One group less sends by an address, to which `users` of this host send still.
    pub(in crate::group) fn unused(&mut self, users: u32) {
        match users {
            0 => self.in_use.fall(),
            1 => self.shared.fall(),
            _ => {}
        }
    }

    /// Why a group has had no address of its own, if one has had none.
    pub fn scarce(&self) -> Option<Refusal> {
        let reasons = Refusal::ALL.into_iter();
        reasons
            .zip(self.unaddressed)
            .find_map(|(why, groups)| (groups > 0).then_some(why))
    }
}

/// A number that goes up and down, and how high it has been.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Level {
    /// The number now.
    pub now: u32,
    /// The highest number so far.
    pub max: u32,
}

impl Level {
    fn rise(&mut self) {
        self.now += 1;
        self.max = self.max.max(self.now);
    }

    fn fall(&mut self) {
        self.now -= 1;
    }
}

/// Counters of the coordinator.
#[derive(Clone, Default, Debug)]
pub struct CoordinatorStatistics {
    /// Proofs that were ordered.
    pub proofs: u64,
    /// Proofs that some hosts did not answer.
    pub silent: u64,
    /// Addresses that were given up, by reason ([`Refusal::ALL`]): no host could join them, or no
    /// host answered their probes.
    pub given_up: [u64; Refusal::ALL.len()],
    /// Hosts that could not join what others had joined and were set aside, by reason
    /// ([`Refusal::ALL`]).
    pub set_aside: [u64; Refusal::ALL.len()],
    /// Addresses taken back from groups that others gain more by.
    pub taken_back: u64,
}

/// The addresses and groups at one moment, as one host sees them.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Snapshot {
    /// Addresses of which this host is, or is about to be, a member.
    pub addresses: u32,
    /// Addresses that groups of this host send to.
    pub in_use: u32,
    /// Addresses to which two groups of this host or more send.
    pub shared: u32,
    /// Groups of this host.
    pub groups: u32,
    /// Groups that send by an address of exactly their hosts.
    pub own: u32,
    /// Groups that send by an address with more hosts.
    pub wider: u32,
    /// Groups that send by unicast.
    pub unicast: u32,
    /// Addresses in the share of this host.
    pub share: u32,
    /// Groups with an address from the share of which the coordinator is yet to be told.
    pub untold: u32,
    /// Coordinator: addresses that are not free.
    pub taken: u32,
    /// Coordinator: addresses in advance, whether proven yet or not.
    pub spare: u32,
    /// Coordinator: addresses in advance that are in the share of a host.
    pub dealt: u32,
    /// Coordinator: hosts that are set aside.
    pub aside: u32,
    /// Coordinator: sets of hosts that have no address and would gain by one.
    pub waiting: u32,
    /// Coordinator: groups that not all members have ended.
    pub alive: u32,
    /// Coordinator: addresses in advance that it aims at.
    pub target: u32,
    /// Entries of all collections of this host and, at host 0, of the coordinator: a measure of
    /// their memory.
    pub entries: u32,
}

/// When a group came and its address became usable (P5.3); `None` for what has not happened.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Times {
    /// The group was created at this host.
    pub created: Time,
    /// This host requested to join the group's own address.
    pub requested: Option<Time>,
    /// The manager answered.
    pub joined: Option<Time>,
    /// The address was proven.
    pub proven: Option<Time>,
    /// The group began to send by it.
    pub used: Option<Time>,
}

/// What a host knows of one of its groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupStatus {
    /// The address that it sends by; `None` by unicast.
    pub address: Option<AddressId>,
    /// Whether no other set of hosts has that address.
    pub own: bool,
    /// The address that it got when it was created.
    pub grant: Option<Grant>,
    /// Why it has no address of its own, if the coordinator has said so.
    pub reason: Option<Refusal>,
    /// When it came, and when its address became usable.
    pub times: Times,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_rise_and_fall_and_their_maximum_stays() {
        let mut counted = Statistics::default();
        let levels = |s: &Statistics| [s.in_use.now, s.in_use.max, s.shared.now, s.shared.max];
        // Three groups by one address, then one by another.
        for users in [1, 2, 3, 1] {
            counted.used(users);
        }
        assert_eq!(levels(&counted), [2, 2, 1, 1]);
        for users in [2, 1, 0] {
            counted.unused(users);
        }
        assert_eq!(levels(&counted), [1, 2, 0, 1]);
        counted.unused(0);
        assert_eq!(levels(&counted), [0, 2, 0, 1]);
    }
}
