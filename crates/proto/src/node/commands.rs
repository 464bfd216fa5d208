//! Executes the caller's commands at a node.

use core::cmp::Reverse;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use super::group::Group;
use super::op_table::{Entry, Stream};
use super::own_stream::OwnStream;
use super::{Node, timers_max};
use crate::barrier::Queued;
use crate::border::{Command, Output, PathState, Refused};
use crate::id::{AddressId, Cut, GroupId, NodeId, OpId};
use crate::limits;
use crate::membership::Admission;
use crate::path::Prover;
use crate::receiver::{Receiver, Streams};
use crate::schedule::Barrier;
use crate::scheme::FeedbackTopology;
use crate::seq::Seq;
use crate::time::Time;

impl Node {
    /// Executes a command, or refuses it and changes nothing. Returns the number of the operation
    /// that the command begins; `None` for other commands.
    pub fn command(&mut self, now: Time, command: Command) -> Result<Option<OpId>, Refused> {
        match command {
            Command::GroupAdd {
                group,
                address,
                members,
                payload_size,
                start,
            } => self
                .group_add((group, address), members, payload_size, start)
                .map(|()| None),
            Command::MemberAdd { group, node } => self.member_add(now, group, node).map(|()| None),
            Command::MemberRemove { group, node } => {
                self.member_remove(now, group, node).map(|()| None)
            }
            Command::MayOutpace {
                group,
                node,
                may_hold,
            } => self.may_outpace(group, node, may_hold).map(|()| None),
            Command::GroupJoin {
                group,
                sender,
                payload_size,
                admission,
            } => self
                .group_join(group, sender, payload_size, admission)
                .map(|()| None),
            Command::SendBy { group, address } => self.send_by(group, address).map(|()| None),
            Command::GroupRemove(group) => self.group_remove(group).map(|()| None),
            Command::PeerRemove(node) => {
                self.peer_remove(now, node);
                Ok(None)
            }
            Command::PeerAdd(node) => {
                self.gone.remove(&node);
                Ok(None)
            }
            Command::Prove {
                group,
                multicast,
                unicast,
            } => self.prove(now, group, [multicast, unicast]).map(|()| None),
            Command::ProveAddress {
                group,
                address,
                members,
                patience,
            } => self
                .prove_address(now, group, address, &members, patience)
                .map(|()| None),
            Command::Unreached { group, members } => {
                self.unreached_are(group, &members).map(|()| None)
            }
            Command::Bcast {
                group,
                len,
                awaited,
            } => self.bcast(now, group, (len, awaited)).map(Some),
            Command::Post { group, sender, len } => self.post(now, group, sender, len).map(Some),
            Command::Decline { group, sender, len } => {
                self.decline(now, group, sender, len).map(|()| None)
            }
            Command::Barrier {
                group,
                algorithm,
                held,
                awaited,
            } => self.barrier(group, algorithm, held, awaited).map(Some),
            Command::Release(group) => self.release(group).map(|()| None),
            Command::Weight { group, weight } => self.set_weight(group, weight).map(|()| None),
            Command::Rate(rate) => self.set_rate(now, rate).map(|()| None),
        }
    }

    pub(super) fn group_add(
        &mut self,
        (group, address): (GroupId, Option<AddressId>),
        mut members: Vec<NodeId>,
        payload_size: u32,
        start: Seq,
    ) -> Result<(), Refused> {
        if !members.is_sorted_by(|a, b| a < b) {
            members.sort_unstable();
            members.dedup();
        }
        self.add((group, address), members, payload_size, (start, None))
    }

    /// Adds a group. `joined`: this node receives the stream of the only other member, and has been
    /// told this about it.
    pub(super) fn add(
        &mut self,
        (group, address): (GroupId, Option<AddressId>),
        members: Vec<NodeId>,
        payload_size: u32,
        (start, joined): (Seq, Option<Admission>),
    ) -> Result<(), Refused> {
        if self.index.contains_key(&group) {
            return Err(Refused::GroupExists);
        }
        if !(limits::PAYLOAD_MIN..=limits::PAYLOAD_MAX).contains(&payload_size) {
            return Err(Refused::PayloadSize);
        }
        if members.binary_search(&self.config.node).is_err() {
            return Err(Refused::NotMember);
        }
        if members.len() > limits::MEMBERS_MAX || self.index.len() >= limits::GROUPS_MAX {
            return Err(Refused::Busy);
        }
        let at = self.free.pop().map_or(self.groups.len(), |at| at.0);
        if at == self.groups.len() {
            self.groups.push(None);
        }
        let gone = self.gone.iter().copied();
        let gone: BTreeSet<_> = gone.filter(|m| members.binary_search(m).is_ok()).collect();
        self.groups[at] = Some(Group {
            id: group,
            address,
            members,
            joined,
            payload_size,
            start,
            weight: 1,
            path_state: gone.iter().map(|&m| (m, PathState::Nothing)).collect(),
            probes: BTreeMap::new(),
            heard: BTreeMap::new(),
            gone,
            own: OwnStream::new(),
            streams: Streams::new(),
            prover: None,
            provers: BTreeMap::new(),
            paid_by_address: Time::ZERO,
            words: None,
            queued: false,
            timer: None,
        });
        self.index.insert(group, at);
        self.timers
            .reserve(timers_max(self.groups.len()) + 1 - self.timers.len());
        Ok(())
    }

    fn send_by(&mut self, group: GroupId, address: Option<AddressId>) -> Result<(), Refused> {
        let (at, _) = self.group(group)?;
        if let Some(group) = self.groups[at].as_mut() {
            group.send_by(address);
        }
        Ok(())
    }

    fn set_weight(&mut self, group: GroupId, weight: u32) -> Result<(), Refused> {
        let (at, _) = self.group(group)?;
        if !(1..=limits::WEIGHT_MAX).contains(&weight) {
            return Err(Refused::Weight);
        }
        let group = self.groups[at].as_mut().ok_or(Refused::NoGroup)?;
        group.weight = weight;
        if let Some(sender) = group.own.get_mut() {
            sender.set_weight(weight);
        }
        self.touch(at);
        Ok(())
    }

    fn set_rate(&mut self, now: Time, rate: u64) -> Result<(), Refused> {
        let shares = self.shares.as_mut().filter(|_| rate > 0);
        shares.ok_or(Refused::Rate)?.set_rate(now, rate);
        self.config.rate = Some(rate);
        for at in 0..self.groups.len() {
            let Some(group) = self.groups[at].as_mut() else {
                continue;
            };
            if let Some(sender) = group.own.get_mut() {
                sender.rate_has_changed();
            }
            group
                .streams
                .change_all(&self.config.scheme, Receiver::rate_has_changed);
            self.touch(at);
        }
        Ok(())
    }

    pub(super) fn group_remove(&mut self, group: GroupId) -> Result<(), Refused> {
        let at = self.index.remove(&group).ok_or(Refused::NoGroup)?;
        self.free.push(Reverse(at));
        self.ready.retain(|&g| g != at);
        if let Some(shares) = &mut self.shares {
            shares.forget(group);
        }
        self.gathered.looks_anew();
        if let Some(mut group) = self.groups[at].take() {
            if let Some(sender) = group.own.get() {
                self.leaving.extend(sender.unfinished());
            }
            group.streams.change_all(&self.config.scheme, |stream| {
                self.leaving.extend(stream.unfinished());
                stream.drop_unexpected(&mut self.out);
            });
        }
        let ops = self.ops.remove_group(at).into_iter();
        for op in ops.filter(|op| !self.leaving.contains_key(op)) {
            let release = Output::Release(op);
            if !self.out.contains(&release) {
                self.out.push_back(release);
            }
        }
        Ok(())
    }

    pub(super) fn prove(
        &mut self,
        now: Time,
        group: GroupId,
        patience: [Duration; 2],
    ) -> Result<(), Refused> {
        let nonces = [self.nonces.multicast(), self.nonces.secret() as u32];
        let (at, group) = self.group(group)?;
        let node = self.config.node;
        let gone = |m: &NodeId| group.path_state.get(m) == Some(&PathState::Nothing);
        let members = group.peers(node).filter(|m| !gone(m));
        let alone = group.is_pair() || group.address.is_none();
        let prover = Prover::new(now, group.id, nonces, members, patience, alone);
        if let Some(group) = self.groups[at].as_mut() {
            group.prover = Some(prover);
        }
        self.touch(at);
        Ok(())
    }

    pub(super) fn prove_address(
        &mut self,
        now: Time,
        group: GroupId,
        address: AddressId,
        members: &[NodeId],
        patience: Duration,
    ) -> Result<(), Refused> {
        let nonces = [self.nonces.multicast(), self.nonces.secret() as u32];
        let (at, group) = self.group(group)?;
        let me = self.config.node;
        let wanted: BTreeSet<NodeId> = members.iter().copied().collect();
        let probed = |m: &NodeId| wanted.contains(m) && group.expects(*m);
        let probed = group.peers(me).filter(probed);
        let prover = Prover::of_address(now, group.id, nonces, probed, address, patience);
        if let Some(group) = self.groups[at].as_mut() {
            group.provers.insert(address, prover);
        }
        self.touch(at);
        Ok(())
    }

    pub(super) fn unreached_are(
        &mut self,
        group: GroupId,
        members: &[NodeId],
    ) -> Result<(), Refused> {
        let (at, _) = self.group(group)?;
        let group = self.groups[at].as_mut().ok_or(Refused::NoGroup)?;
        for &node in members {
            if node != self.config.node && group.expects(node) {
                group.set_path_state(node, PathState::Unicast, &mut self.out);
            }
        }
        self.touch(at);
        Ok(())
    }

    /// Number and cut of the next broadcast or post, of `len` bytes.
    fn next_operation(&self, len: u64, payload_size: u32) -> Result<(OpId, Cut), Refused> {
        let cut = self.config.scheme.cut(len, payload_size);
        Ok((self.ops.next(), cut.ok_or(Refused::TooLong)?))
    }

    pub(super) fn bcast(
        &mut self,
        now: Time,
        group: GroupId,
        (len, awaited): (u64, bool),
    ) -> Result<OpId, Refused> {
        let (at, g) = self.group(group)?;
        let payload_size = g.payload_size;
        let (id, cut) = self.next_operation(len, payload_size)?;
        let g = self.groups[at].as_mut().ok_or(Refused::NoGroup)?;
        g.takes_part()?;
        let sender = g.sender(&self.config);
        let base = sender.bcast(now, (id, len, cut), awaited, &mut self.out)?;
        self.ops.add(Entry {
            op: id,
            group: at,
            stream: Stream::Own,
            base,
        });
        self.touch(at);
        Ok(id)
    }

    pub(super) fn post(
        &mut self,
        now: Time,
        group: GroupId,
        sender: NodeId,
        len: u64,
    ) -> Result<OpId, Refused> {
        let (at, g) = self.group(group)?;
        let payload_size = g.payload_size;
        let (id, cut) = self.next_operation(len, payload_size)?;
        let g = self.groups[at].as_mut().ok_or(Refused::NoGroup)?;
        let place = g.stream(&self.config, sender).ok_or(Refused::NotMember)?;
        let (scheme, out) = (&self.config.scheme, &mut self.out);
        let stream = g.streams.change(scheme, place);
        let mut stream = stream.ok_or(Refused::NotMember)?;
        let base = stream.post(now, scheme, (id, len, cut), out)?;
        drop(stream);
        self.ops.add(Entry {
            op: id,
            group: at,
            stream: Stream::At(place),
            base,
        });
        self.touch(at);
        Ok(id)
    }

    pub(super) fn decline(
        &mut self,
        now: Time,
        group: GroupId,
        sender: NodeId,
        len: u64,
    ) -> Result<(), Refused> {
        if self.config.scheme.topology != FeedbackTopology::Direct {
            return Err(Refused::Hierarchy);
        }
        let (at, g) = self.group(group)?;
        let cut = self.config.scheme.cut(len, g.payload_size);
        let cut = cut.ok_or(Refused::TooLong)?;
        let g = self.groups[at].as_mut().ok_or(Refused::NoGroup)?;
        let place = g.stream(&self.config, sender).ok_or(Refused::NotMember)?;
        let stream = g.streams.change(&self.config.scheme, place);
        let mut stream = stream.ok_or(Refused::NotMember)?;
        stream.decline(now, cut, &mut self.out)?;
        drop(stream);
        self.touch(at);
        Ok(())
    }

    pub(super) fn barrier(
        &mut self,
        group: GroupId,
        algorithm: Barrier,
        held: bool,
        awaited: bool,
    ) -> Result<OpId, Refused> {
        let (at, _) = self.group(group)?;
        let id = self.ops.next();
        let group = self.groups[at].as_mut().ok_or(Refused::NoGroup)?;
        group.takes_part()?;
        let words = group.words(&self.config).ok_or(Refused::NotMember)?;
        words.begin(Queued {
            op: id,
            barrier: algorithm,
            held,
            awaited,
        })?;
        self.ops.give_away(id);
        self.touch(at);
        Ok(id)
    }

    pub(super) fn release(&mut self, group: GroupId) -> Result<(), Refused> {
        let (at, _) = self.group(group)?;
        if let Some(words) = self.groups[at].as_mut().and_then(|g| g.words.as_mut()) {
            words.release();
        }
        self.touch(at);
        Ok(())
    }
}
