//! One host's part: its memberships, its groups, and the address that each group sends by.
//!
//! A group sends by the smallest address that is proven here and whose hosts include its own. So a
//! group without an address of its own shares one, at worst the context's.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::address::{Action, Input, Refusal, State};
use super::border::{Config, Output};
use super::hosts::{HostId, HostSet};
use super::message::{Grant, Message};
use super::statistics::Statistics;
use super::strategy::Strategy;
use crate::id::{AddressId, GroupId};
use crate::mutant::{self, Mutant};
use crate::time::Time;

mod group;
mod held;
mod lives;
mod requests;
mod snapshot;

use group::Group;
use held::Held;

/// Fewest hosts of a group that uses multicast. A smaller group has one receiver.
pub(in crate::group) const MULTICAST_MIN: u32 = 3;

/// The context's own address, which all hosts join before groups exist.
pub(in crate::group) const CONTEXT: AddressId = AddressId(0);

/// One host's memberships and groups.
pub(in crate::group) struct Holder {
    host: HostId,
    hosts: u32,
    strategy: Strategy,
    held: BTreeMap<AddressId, Held>,
    groups: BTreeMap<GroupId, Group>,
    /// Addresses that this host may give to groups, each with its members.
    share: VecDeque<(Grant, HostSet)>,
    /// Addresses of the share that were taken for a group which has not been created yet.
    taken: BTreeSet<Grant>,
    /// Addresses for which probes are under way, with the hosts that are to be probed after that.
    proving: BTreeMap<AddressId, Option<HostSet>>,
    gone: HostSet,
    closed: bool,
    /// Requests under way.
    requests: u32,
    /// Groups that wait for their address, and until when.
    early: BTreeSet<(Time, GroupId)>,
    /// Groups of which the coordinator is not told before this time.
    untold: BTreeSet<(Time, GroupId)>,
    /// Groups with bytes to report, and when the report is due.
    unreported: BTreeSet<GroupId>,
    report: Time,
    pub(in crate::group) outputs: VecDeque<Output>,
    pub(in crate::group) statistics: Statistics,
}

impl Holder {
    pub(in crate::group) fn new(config: &Config) -> Holder {
        let mut holder = Holder {
            host: config.host,
            hosts: config.hosts,
            strategy: config.strategy,
            held: BTreeMap::new(),
            groups: BTreeMap::new(),
            share: VecDeque::new(),
            taken: BTreeSet::new(),
            proving: BTreeMap::new(),
            gone: HostSet::new(),
            closed: false,
            requests: 0,
            early: BTreeSet::new(),
            untold: BTreeSet::new(),
            unreported: BTreeSet::new(),
            report: Time::NEVER,
            outputs: VecDeque::new(),
            statistics: Statistics::default(),
        };
        if config.context_address {
            let mut held = Held::new(State::Proven);
            held.term = Some(0);
            held.hosts = Some(HostSet::first_hosts(config.hosts));
            holder.held.insert(CONTEXT, held);
        }
        holder
    }

    /// The manager's answer to a request, or news of a membership.
    pub(in crate::group) fn answer(&mut self, now: Time, address: AddressId, input: Input) {
        let Some(held) = self.held.get_mut(&address) else {
            return;
        };
        match input {
            // A late answer to an earlier join ends no request to leave.
            Input::Joined if held.state == State::Leaving => return,
            Input::Lost => self.statistics.lost += 1,
            Input::Joined => {
                held.joined = Some(now);
                let waits = matches!(held.state, State::Requested | State::RequestedAgain);
                if let Some(requested) = held.requested.filter(|_| waits) {
                    self.statistics.join_time.note(now.since(requested));
                }
            }
            Input::Refused(why) if held.state == State::Requested => {
                self.statistics.refuse(now, why);
            }
            _ => {}
        }
        self.input(now, address, input);
    }

    /// The outcome of probes that this host was told to send.
    pub(in crate::group) fn proved(&mut self, address: AddressId, silent: &HostSet) {
        let Some(next) = self.proving.remove(&address) else {
            return;
        };
        if let Some(hosts) = next {
            self.prove(address, hosts);
        }
        self.tell(Message::Proved(address, silent.clone()));
    }

    /// Multicast by an address does not reach a member.
    pub(in crate::group) fn unreached(&mut self, address: AddressId) {
        if self.held.get(&address).is_some_and(Held::may_send) {
            self.tell(Message::Unreached(address));
        }
    }

    /// A message of the coordinator.
    pub(in crate::group) fn message(&mut self, now: Time, message: Message) {
        if self.closed {
            return;
        }
        match message {
            Message::Join { grant, hosts } => self.join(now, grant, hosts),
            Message::Rejoin(address) => self.input(now, address, Input::Rejoin),
            Message::Prove(address, hosts) => self.prove(address, hosts),
            Message::Proven(address) => self.is_proven(now, address),
            Message::Unproven(address) => self.input(now, address, Input::Unproven),
            Message::Share(grant, members) => {
                let held = self.held.get(&grant.address);
                if held.is_some_and(|held| held.term == Some(grant.term)) {
                    self.share.push_back((grant, members));
                }
            }
            Message::Withdraw(address) => {
                self.withdraw(now, address);
                if mutant::active(Mutant::LeftTooEarly) {
                    self.input(now, address, Input::Leave);
                }
            }
            Message::Leave(address) => {
                self.share.retain(|(grant, _)| grant.address != address);
                match self.held.contains_key(&address) {
                    true => self.input(now, address, Input::Leave),
                    false => self.tell(Message::Left(address)),
                }
            }
            Message::NoAddress(group, why) => {
                self.has_none(group, why);
            }
            // The others go to the coordinator.
            _ => {}
        }
    }

    /// A host is gone.
    pub(in crate::group) fn gone(&mut self, now: Time, host: HostId) {
        if !self.gone.insert(host) || host != HostId(0) {
            return;
        }
        // Nobody can tell the others any more that a membership is lost. Groups send by the
        // context's address; the memberships stay until the context is closed, because others may
        // not know yet that the coordinator is gone.
        self.share.clear();
        self.report = Time::NEVER;
        self.unreported.clear();
        let others: Vec<_> = self
            .held
            .keys()
            .filter(|&&a| a != CONTEXT)
            .copied()
            .collect();
        for address in others {
            self.withdraw(now, address);
        }
        let groups: Vec<_> = self.groups.keys().copied().collect();
        for id in groups {
            if let Some(group) = self.groups.get_mut(&id) {
                group.reason = group.reason.or(Some(Refusal::Gone));
            }
            self.ready(id);
        }
    }

    /// The context ends: no group is left, and this host leaves all addresses.
    pub(in crate::group) fn close(&mut self, now: Time) {
        let groups: Vec<_> = self.groups.keys().copied().collect();
        for id in groups {
            self.ended(id);
        }
        self.closed = true;
        self.share.clear();
        self.report = Time::NEVER;
        let all: Vec<_> = self.held.keys().copied().collect();
        for address in all {
            self.input(now, address, Input::Leave);
        }
    }

    /// Whether this host was closed and has left all addresses.
    pub(in crate::group) fn is_closed(&self) -> bool {
        self.closed && self.held.is_empty()
    }

    /// The state of an address.
    pub(in crate::group) fn state(&self, address: AddressId) -> State {
        self.held
            .get(&address)
            .map_or(State::Free, |held| held.state)
    }

    /// Panics if this host's state contradicts itself.
    pub(in crate::group) fn invariants(&self) {
        let mut users = BTreeMap::new();
        for (id, group) in &self.groups {
            let Some(by) = group.by else { continue };
            *users.entry(by).or_insert(0) += 1;
            let held = self
                .held
                .get(&by)
                .expect("a group sends by an address held");
            let hosts = held.usable().expect("a group sends by a usable address");
            assert!(hosts.includes(&group.hosts), "{id:?} by {by:?}");
        }
        let mut asked = 0;
        for (address, held) in &self.held {
            let count = users.get(address).copied().unwrap_or(0);
            assert_eq!(held.users, count, "{address:?}");
            assert_ne!(held.state, State::Free, "{address:?}");
            let in_use = held.state == State::InUse;
            let early = mutant::active(Mutant::UsedBeforeProof);
            assert!(
                in_use == (count > 0) || early,
                "{address:?} {:?}",
                held.state
            );
            asked += u32::from(held.asked);
        }
        assert_eq!(self.requests, asked);
        let snapshot = self.snapshot();
        assert_eq!(self.statistics.in_use.now, snapshot.in_use);
        assert_eq!(self.statistics.shared.now, snapshot.shared);
        assert!(self.share.len() <= self.held.len());
    }

    /// Whether a set of hosts gains by an address of its own.
    fn wants_address(&self, hosts: &HostSet) -> bool {
        hosts.len() >= MULTICAST_MIN
            && self.gone.common(hosts).is_empty()
            && !self.gone.contains(HostId(0))
    }

    fn tell(&mut self, message: Message) {
        if !self.closed && !self.gone.contains(HostId(0)) {
            let to = HostId(0);
            self.outputs.push_back(Output::Tell { to, message });
        }
    }

    /// The smallest usable address whose hosts include these.
    fn select(&self, hosts: &HostSet) -> Option<AddressId> {
        if hosts.len() < MULTICAST_MIN {
            return None;
        }
        let usable = self.held.iter().filter_map(|(&address, held)| {
            let of = held.usable()?;
            of.includes(hosts).then_some((of.len(), address))
        });
        usable.min().map(|(_, address)| address)
    }

    /// Gives an address to the groups within these hosts, if it is at hand.
    fn accept(&mut self, now: Time, grant: Grant, hosts: &HostSet) {
        if let Some(held) = self.held.get_mut(&grant.address)
            && held.term == Some(grant.term)
            && held.hosts.is_none()
            && hosts.len() >= MULTICAST_MIN
        {
            held.hosts = Some(hosts.clone());
            // The coordinator shares out only what is proven. Its message that says so to this host
            // may be on the way yet.
            if held.untold {
                self.is_proven(now, grant.address);
            }
            self.fill(now, grant.address);
        }
    }

    /// The coordinator has said that probes reach all members.
    fn is_proven(&mut self, now: Time, address: AddressId) {
        if let Some(held) = self.held.get_mut(&address)
            && held.state == State::Joined
        {
            held.untold = false;
            held.proven = Some(now);
            if let Some(joined) = held.joined {
                self.statistics.proof_time.note(now.since(joined));
            }
        }
        self.input(now, address, Input::Proven);
    }

    fn join(&mut self, now: Time, grant: Grant, hosts: Option<HostSet>) {
        let held = self.held.entry(grant.address);
        let held = held.or_insert_with(|| Held::new(State::Free));
        held.term = Some(grant.term);
        held.hosts = hosts;
        held.proven = None;
        held.untold = true;
        // A group may have come before this message did.
        if held.hosts.is_none() {
            let mut groups = self.groups.values();
            let group = groups.find(|group| group.grant == Some(grant));
            held.hosts = group.map(|group| group.hosts.clone());
        }
        self.input(now, grant.address, Input::Join);
    }

    fn prove(&mut self, address: AddressId, hosts: HostSet) {
        match self.proving.get_mut(&address) {
            Some(next) => *next = Some(hosts),
            None => {
                self.proving.insert(address, None);
                self.outputs.push_back(Output::Prove { address, hosts });
            }
        }
    }

    fn withdraw(&mut self, now: Time, address: AddressId) {
        self.share.retain(|(grant, _)| grant.address != address);
        self.taken.retain(|grant| grant.address != address);
        match self.held.get_mut(&address) {
            Some(held) => {
                held.term = None;
                self.input(now, address, Input::Withdraw);
                if let Some(held) = self.held.get_mut(&address) {
                    held.hosts = None;
                }
            }
            None => self.tell(Message::Withdrawn(address)),
        }
    }

    /// Moves an address to its next state, groups before it if they may no longer send there.
    fn input(&mut self, now: Time, address: AddressId, input: Input) {
        let Some(held) = self.held.get_mut(&address) else {
            return;
        };
        held.untold &= !matches!(input, Input::Lost | Input::Rejoin | Input::Unproven);
        let (next, _) = held.state.next(input);
        let ends = next != held.state && !next.may_send();
        if ends || held.term.is_none() || input == Input::Join {
            self.empty(now, address);
        }
        let Some(held) = self.held.get_mut(&address) else {
            return;
        };
        let (next, action) = held.state.next(input);
        // The request under way is answered, or it is for what is no longer wanted.
        if next != held.state && core::mem::take(&mut held.asked) {
            self.requests -= 1;
        }
        if next != held.state && matches!(next, State::Wanted | State::Lost | State::Leaving) {
            held.due = now;
            held.tries = 0;
        }
        held.state = next;
        if next == State::Free {
            self.held.remove(&address);
        }
        self.act(now, address, action);
        self.fill(now, address);
    }

    fn act(&mut self, now: Time, address: AddressId, action: Option<Action>) {
        match action {
            Some(request @ (Action::RequestJoin | Action::RequestJoinAnew)) => {
                if let Some(held) = self.held.get_mut(&address) {
                    held.requested = Some(now);
                    held.joined = None;
                }
                self.outputs.push_back(match request {
                    Action::RequestJoinAnew => Output::JoinAnew(address),
                    _ => Output::Join(address),
                });
            }
            Some(Action::RequestLeave) => self.outputs.push_back(Output::Leave(address)),
            Some(Action::TellJoined) => self.tell(Message::Joined(address)),
            Some(Action::TellRefused(why)) => self.tell(Message::Refused(address, why)),
            Some(Action::TellLost) => self.tell(Message::Lost(address)),
            Some(Action::TellWithdrawn) => self.tell(Message::Withdrawn(address)),
            Some(Action::TellLeft) => self.tell(Message::Left(address)),
            None => {}
        }
    }

    /// Moves all groups that send by an address elsewhere.
    fn empty(&mut self, now: Time, address: AddressId) {
        let Some(held) = self.held.get_mut(&address) else {
            return;
        };
        if held.users == 0 {
            return;
        }
        // The address is not to be selected again, in whichever state it is still.
        let term = held.term.take();
        let users = self.groups.iter();
        let users = users.filter(|(_, group)| group.by == Some(address));
        let users: Vec<_> = users.map(|(&id, _)| id).collect();
        for id in users {
            let by = self.groups.get(&id).map(|group| self.select(&group.hosts));
            self.switch(now, id, by.flatten());
        }
        if let Some(held) = self.held.get_mut(&address) {
            held.term = term;
        }
    }

    /// Moves groups to an address that is better for them than the present one.
    fn fill(&mut self, now: Time, address: AddressId) {
        let Some(of) = self.held.get(&address).and_then(Held::usable) else {
            return;
        };
        let mut better = Vec::new();
        for (&id, group) in &self.groups {
            if group.by != Some(address)
                && of.includes(&group.hosts)
                && self.select(&group.hosts) == Some(address)
            {
                better.push(id);
            }
        }
        for id in better {
            self.switch(now, id, Some(address));
        }
    }

    /// A group sends by this address from now on.
    fn switch(&mut self, now: Time, id: GroupId, by: Option<AddressId>) {
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        let before = core::mem::replace(&mut group.by, by);
        if before == by {
            return;
        }
        self.outputs.push_back(Output::SendBy {
            group: id,
            address: by,
        });
        if let Some(address) = before {
            self.unused(address);
        }
        if let Some(address) = by
            && let Some(held) = self.held.get_mut(&address)
            && let Some(group) = self.groups.get_mut(&id)
        {
            held.users += 1;
            self.statistics.used(held.users);
            (held.state, _) = held.state.next(Input::Used);
            if held.hosts.as_ref() == Some(&group.hosts) {
                if group.used.is_none() {
                    group.used = Some(now);
                    self.statistics.own_time.note(now.since(group.created));
                }
                group.reason = None;
                self.ready(id);
            }
        }
    }

    fn unused(&mut self, address: AddressId) {
        if let Some(held) = self.held.get_mut(&address) {
            held.users -= 1;
            self.statistics.unused(held.users);
            if held.users == 0 {
                (held.state, _) = held.state.next(Input::Unused);
            }
        }
    }
}
