//! One host's machine: its holder and, at host 0, the coordinator.

use core::fmt;

use super::address::{Input, Refusal, State};
use super::border::{Config, Output};
use super::coordinator::Coordinator;
use super::holder::Holder;
use super::hosts::{HostId, HostSet};
use super::message::{Grant, HOSTS_MAX, Message};
use super::statistics::{GroupStatus, Snapshot, Statistics};
use crate::id::{AddressId, GroupId};
use crate::time::Time;

/// Addresses and groups of one host. Without I/O and without a clock.
///
/// After each input the driver calls [`Host::poll`] until it returns [`Output::Wait`], and executes
/// the outputs in their order.
pub struct Host {
    host: HostId,
    holder: Holder,
    coordinator: Option<Box<Coordinator>>,
    /// When a timer expires.
    wake: Time,
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut host = f.debug_struct("Host");
        host.field("host", &self.host).field("wake", &self.wake);
        host.field("snapshot", &self.snapshot())
            .finish_non_exhaustive()
    }
}

impl Host {
    /// The machine of one host.
    ///
    /// # Panics
    ///
    /// If the configuration has no hosts, more than [`HOSTS_MAX`], or this host is none of them.
    pub fn new(now: Time, config: &Config) -> Host {
        assert!(config.host.0 < config.hosts && config.hosts <= HOSTS_MAX);
        let first = config.host == HostId(0);
        let mut host = Host {
            host: config.host,
            holder: Holder::new(config),
            coordinator: first.then(|| Box::new(Coordinator::new(now, config))),
            wake: Time::NEVER,
        };
        host.settle(now);
        host
    }

    /// The address of a new group of these hosts, of which this host is the lowest. It travels with
    /// the agreed creation to all members, which pass it to [`Host::create`]. `None` if none is at
    /// hand; the group may get one later.
    pub fn take(&mut self, _now: Time, hosts: &HostSet) -> Option<Grant> {
        match hosts.lowest() == Some(self.host) {
            true => self.holder.take(hosts),
            false => None,
        }
    }

    /// Whether an address of the pool is proven, so that a new group can have it at once.
    pub fn has_spare(&self) -> bool {
        self.holder.has_spare()
    }

    /// Returns an address that no member passes to [`Host::create`], because the creation failed.
    pub fn put_back(&mut self, now: Time, grant: Grant) {
        self.holder.put_back(now, grant);
        self.settle(now);
    }

    /// A group of these hosts exists from now on at this host. All members pass the same arguments.
    /// Returns false, and changes nothing, if this host is no member, if the group exists, or if
    /// there are too many groups.
    pub fn create(
        &mut self,
        now: Time,
        group: GroupId,
        hosts: HostSet,
        grant: Option<Grant>,
    ) -> bool {
        let created = self.holder.create(now, group, hosts, grant);
        self.settle(now);
        created
    }

    /// A group is used again. Until its second use, or for 2 ms, the coordinator is not told that
    /// the group has taken an address from the pool, so that nobody works for that while the first
    /// broadcast is under way.
    pub fn used_again(&mut self, now: Time, group: GroupId) {
        self.holder.tell_of(group);
        self.settle(now);
    }

    /// The group's last barrier is over at this host, which neither sends to it nor receives from
    /// it any more.
    pub fn ended(&mut self, now: Time, group: GroupId) {
        self.holder.ended(group);
        self.settle(now);
    }

    /// This host has sent bytes to a group.
    pub fn sent(&mut self, now: Time, group: GroupId, bytes: u64) {
        self.holder.sent(now, group, bytes);
        self.settle(now);
    }

    /// The manager answers that this host has joined.
    pub fn joined(&mut self, now: Time, address: AddressId) {
        self.holder.answer(now, address, Input::Joined);
        self.settle(now);
    }

    /// The manager answers that this host has left.
    pub fn left(&mut self, now: Time, address: AddressId) {
        self.holder.answer(now, address, Input::Left);
        self.settle(now);
    }

    /// The manager refuses the last request.
    pub fn refused(&mut self, now: Time, address: AddressId, why: Refusal) {
        self.holder.answer(now, address, Input::Refused(why));
        self.settle(now);
    }

    /// The manager or a port has forgotten this host's membership.
    pub fn lost(&mut self, now: Time, address: AddressId) {
        self.holder.answer(now, address, Input::Lost);
        self.settle(now);
    }

    /// The probes of an [`Output::Prove`] are over; these hosts have not answered.
    pub fn proved(&mut self, now: Time, address: AddressId, silent: &HostSet) {
        self.holder.proved(address, silent);
        self.settle(now);
    }

    /// A sender of this host has noticed that multicast by an address does not reach a member.
    pub fn unreached(&mut self, now: Time, address: AddressId) {
        self.holder.unreached(address);
        self.settle(now);
    }

    /// A message of another host.
    pub fn message(&mut self, now: Time, from: HostId, message: Message) {
        self.deliver(now, from, message);
        self.settle(now);
    }

    /// A host is gone and will never be heard again.
    pub fn gone(&mut self, now: Time, host: HostId) {
        if host != self.host {
            self.holder.gone(now, host);
            if let Some(coordinator) = &mut self.coordinator {
                coordinator.gone(now, host);
            }
            self.settle(now);
        }
    }

    /// The context ends. All groups end here, and this host leaves all addresses without asking the
    /// coordinator. All hosts call this once no host sends any more.
    pub fn close(&mut self, now: Time) {
        self.holder.close(now);
        self.coordinator = None;
        self.settle(now);
    }

    /// Whether the host was closed and the manager has confirmed that it has left everything.
    pub fn is_closed(&self) -> bool {
        self.holder.is_closed()
    }

    /// What the driver does next. The driver calls this until it is [`Output::Wait`].
    pub fn poll(&mut self, now: Time) -> Output {
        if self.wake <= now {
            self.settle(now);
        }
        if let Some(output) = self.holder.outputs.pop_front() {
            return output;
        }
        debug_assert!(self.wake > now);
        Output::Wait(self.wake)
    }

    /// What this host knows of a group.
    pub fn status(&self, group: GroupId) -> Option<GroupStatus> {
        self.holder.status(group)
    }

    /// The state of an address at this host.
    pub fn state(&self, address: AddressId) -> State {
        self.holder.state(address)
    }

    /// The addresses and groups at this moment.
    pub fn snapshot(&self) -> Snapshot {
        let mut snapshot = self.holder.snapshot();
        if let Some(coordinator) = &self.coordinator {
            coordinator.snapshot(&mut snapshot);
        }
        snapshot
    }

    /// What has been counted so far.
    pub fn statistics(&self) -> Statistics {
        let mut statistics = self.holder.statistics.clone();
        if let Some(coordinator) = &self.coordinator {
            statistics.coordinator = coordinator.statistics.clone();
        }
        statistics
    }

    /// Why a group of which this host is the lowest has had no address of its own, if one has had
    /// none.
    pub fn scarce(&self) -> Option<Refusal> {
        self.holder.statistics.scarce()
    }

    /// At the coordinator: the hosts that cannot join what others have joined, and why.
    pub fn set_aside(&self) -> Vec<(HostId, Refusal)> {
        let coordinator = self.coordinator.as_ref();
        coordinator.map_or(Vec::new(), |coordinator| coordinator.all_aside())
    }

    /// Panics if the state contradicts itself. For tests.
    pub fn invariants(&self) {
        self.holder.invariants();
        if let Some(coordinator) = &self.coordinator {
            coordinator.invariants();
        }
    }

    fn deliver(&mut self, now: Time, from: HostId, message: Message) {
        match (&mut self.coordinator, message.is_for_coordinator()) {
            (Some(coordinator), true) => coordinator.message(now, from, message),
            (_, false) if from == HostId(0) => self.holder.message(now, message),
            // A message that this host does not expect changes nothing.
            _ => {}
        }
    }

    /// Does what is due, and passes messages between the holder and the coordinator of this host.
    fn settle(&mut self, now: Time) {
        loop {
            self.wake = self.holder.tick(now);
            if let Some(coordinator) = &mut self.coordinator {
                self.wake = self.wake.min(coordinator.tick(now));
            }
            let mut moved = false;
            if let Some(coordinator) = &mut self.coordinator {
                let mut kept = Vec::new();
                let mut local = Vec::new();
                for output in self.holder.outputs.drain(..) {
                    match output {
                        Output::Tell { to, message } if to == self.host => local.push(message),
                        output => kept.push(output),
                    }
                }
                self.holder.outputs.extend(kept);
                for message in local {
                    moved = true;
                    coordinator.message(now, self.host, message);
                }
            }
            while let Some((to, message)) = self.next_order() {
                match to == self.host {
                    true => {
                        moved = true;
                        self.holder.message(now, message);
                    }
                    false => self.holder.outputs.push_back(Output::Tell { to, message }),
                }
            }
            if !moved {
                break;
            }
        }
    }

    fn next_order(&mut self) -> Option<(HostId, Message)> {
        self.coordinator.as_mut()?.orders.pop_front()
    }
}
