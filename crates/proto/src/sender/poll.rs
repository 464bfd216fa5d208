//! What the sender sends next: probes first, then what its paths have. Each path sends repairs
//! before new packets.

use std::collections::VecDeque;

use super::Sender;
use super::member::GROUP_PATH;
use super::shares::Shares;
use crate::border::{Config, Counters, Output};
use crate::id::NodeId;
use crate::mutant::{self, Mutant};
use crate::path::window::Lacking;
use crate::path::{Burst, Path, Target, Transmission};
use crate::repair::{ParityRequests, XorExtents, XorSources};
use crate::scheme::{How, Scheme};
use crate::seq::Seq;
use crate::time::Time;
use crate::wire::{Origin, flag};

/// The packet that a path sends next.
#[derive(Clone, Copy, Debug)]
struct Next {
    seq: Seq,
    /// The members that lack it, if it is a retransmission.
    repair: Option<Lacking>,
    /// The only member that it goes to; `None`: all members of the path.
    only: Option<u32>,
}

impl Sender {
    /// Returns what the sender sends now, if anything. `shares`: the node's fixed rate, if it has
    /// one.
    pub fn poll(
        &mut self,
        now: Time,
        config: &Config,
        mut shares: Option<&mut Shares>,
        counters: &mut Counters,
        out: &mut VecDeque<Output>,
    ) -> Option<Transmission> {
        if self.grace_ends().is_some_and(|t| t <= now) {
            self.end_grace();
        }
        if self.probing.due.is_some_and(|t| t <= now) {
            self.probe_silent(now, config, out);
        }
        if mutant::active(Mutant::NeverAsks) {
            self.probing.queue.clear();
        }
        if let Some(to) = self.probing.queue.pop_front() {
            let next = self.paths[GROUP_PATH].as_ref()?.window.next();
            let sender = self.relay.map_or(config.node, |r| r.sender);
            let next = match to {
                Target::All => next,
                // The sync to a member with a path of its own says what that path has sent.
                Target::Node(n) => self.path_of(n).map_or(next, |l| l.window.next()),
            };
            return Some(Transmission::Sync { to, sender, next });
        }
        if let Some(shares) = &mut shares
            && !shares.is_open(now, &mut self.share)
        {
            let ready = self.sends_at(&config.scheme).is_some_and(|t| t <= now);
            shares.pause(&mut self.share, ready);
            return None;
        }
        for k in 0..self.paths.len() {
            let at = self.paths.in_turn(k);
            if let Some(send) = self.poll_path(now, at, &config.scheme, counters) {
                self.paths.has_sent(at, k);
                if let Some(shares) = shares {
                    shares.sent(now, &self.share);
                }
                return Some(send);
            }
        }
        if let Some(shares) = shares {
            shares.pause(&mut self.share, false);
        }
        None
    }

    /// What a path sends now, if anything: a parity packet, a retransmission, or a new packet.
    fn poll_path(
        &mut self,
        now: Time,
        at: usize,
        scheme: &Scheme,
        counters: &mut Counters,
    ) -> Option<Transmission> {
        if !self.paths[at].as_ref()?.pacer.is_open(now) {
            return None;
        }
        let requests = self.parity_requests.as_ref().filter(|_| at == GROUP_PATH);
        if requests.is_some_and(|requests| requests.oldest().is_some())
            && let Some(parity) = self.poll_blocks(now, scheme, counters)
        {
            return Some(parity);
        }
        let next = match self.next_retransmission(now, at, scheme) {
            Some(next) => next,
            None if self.may_start(now) && self.window_is_open(at) => Next {
                seq: self.paths[at].as_ref()?.window.next(),
                repair: None,
                only: None,
            },
            None => return None,
        };
        let send = self.send_or_retransmit(now, at, next, scheme, counters)?;
        if next.repair.is_none() {
            self.skip_unwanted(at);
        }
        if next.repair.is_none() && at == GROUP_PATH {
            self.follow_group();
            self.copy_to_coroots(now, next.seq);
        }
        self.arm_probe_timer(now, scheme);
        Some(send)
    }

    /// The kind of repair that this sender uses.
    fn repairs(&self, scheme: &Scheme) -> How {
        match self.relay {
            // A co-root's group has no address of its own.
            Some(_) => How::Unicast,
            None => scheme.repair.how,
        }
    }

    /// Finds the oldest packet that a path has to retransmit, if the first NACK for it is old
    /// enough.
    fn next_retransmission(&mut self, now: Time, at: usize, scheme: &Scheme) -> Option<Next> {
        let until = self.repair_nacks_until(now, at, scheme)?;
        let how = self.repairs(scheme);
        let l = self.paths[at].as_mut()?;
        l.window.oldest_report().filter(|t| *t <= until)?;
        let (seq, who) = l.window.peek_repair()?;
        let cheaper = match (how, who) {
            (How::Unicast | How::Multicast, _) | (_, Lacking::Stubborn(_)) => None,
            _ if at != GROUP_PATH => None,
            _ => self.cheaper_by_unicast(now),
        };
        let l = self.paths[at].as_mut()?;
        let only = match (how, who) {
            _ if cheaper.is_some() => cheaper,
            // With several lossy members, the NACK of another member that lacks it may be lost.
            (How::Coded | How::Xor | How::Parity, Lacking::One(_)) if l.lossy > 1 => None,
            (_, Lacking::Stubborn(i))
            | (
                How::Coded | How::Xor | How::Parity | How::Cheaper | How::Unicast,
                Lacking::One(i),
            )
            | (How::Unicast, Lacking::Several(Some(i))) => Some(i),
            (How::Multicast, _) | (_, Lacking::Several(_)) => None,
        };
        Some(Next {
            seq,
            repair: Some(who),
            only,
        })
    }

    /// Sends a packet by a path. Combines a retransmission with others if that mends more losses.
    fn send_or_retransmit(
        &mut self,
        now: Time,
        at: usize,
        Next { seq, repair, only }: Next,
        scheme: &Scheme,
        counters: &mut Counters,
    ) -> Option<Transmission> {
        let how = self.repairs(scheme);
        let at_op = self.ops.position(seq);
        let op = self.ops.queue.get(at_op)?;
        let l = self.paths[at].as_mut()?;
        let path_to = l.to;
        let sources = match (repair, how) {
            (Some(Lacking::One(_) | Lacking::Several(_)), How::Coded | How::Xor)
                if at == GROUP_PATH && l.lossy == 0 && seq + 1 != op.end() =>
            {
                // The last packet goes alone: it shows receivers where the operation ends.
                l.window.combine(op.base, op.base + (op.cut.packets - 1))?
            }
            _ => XorSources::new(seq),
        };
        let combined = sources.count() > 1;
        let to = match only.filter(|_| !combined) {
            Some(i) => Target::Node(self.members[i as usize].node),
            None => path_to,
        };
        let extent = op.extent(seq);
        // An XOR repair packet is as long as its first source, which is a full packet.
        let len = match combined {
            true => op.cut.payload_size,
            false => extent.len,
        };
        let burst = self.depart(now, at, len, scheme)?;
        let l = self.paths[at].as_mut()?;
        if combined {
            l.window.repair_all(now, burst, &sources);
            counters.repairs_coded += 1;
        } else if repair.is_some() {
            l.window.repair(now, burst, only);
            // A member that lacks the packet again may have lost a repair by multicast.
            if let Some(i) = only.filter(|i| l.window.was_sent_alone(seq, *i)) {
                self.members[i as usize].sent_alone(now);
            }
        } else {
            l.window.send(now, burst);
            l.fresh = l.fresh.wrapping_add(1);
            self.ops.sent = self.ops.sent.max(l.window.next());
        }
        *match (repair, to) {
            (Some(_), Target::All) => &mut counters.repairs_multicast,
            (Some(_), Target::Node(_)) => &mut counters.repairs_unicast,
            (None, Target::All) => &mut counters.data,
            (None, Target::Node(_)) => &mut counters.data_unicast,
        } += 1;
        let set = |is: bool, flag: u8| if is { flag } else { 0 };
        let last = sources.last() + 1;
        let asks = self.requests_ack(at, at_op, last, repair.is_some(), scheme);
        let flags = set(asks, flag::ACK_REQUEST);
        let burst = burst as u16;
        let op = self.ops.queue.get_mut(at_op)?;
        op.out += 1;
        if combined {
            let mut sum = XorExtents::new(op.id);
            for seq in sources.iter() {
                sum.push(op.extent(seq));
            }
            return Some(Transmission::Xor {
                to,
                burst,
                sources,
                flags,
                sum,
            });
        }
        let source = Origin::Source(op.base);
        let relayed = self.relay.map(|relay| Origin::Relayed(relay.sender));
        Some(Transmission::Data {
            to,
            burst,
            origin: relayed.unwrap_or(source),
            seq,
            flags: flags | set(repair.is_some(), flag::REPAIR) | set(last == op.end(), flag::LAST),
            extent,
        })
    }

    /// Whether the packet before `last`, of operation `at_op`, requests feedback from its
    /// receivers.
    fn requests_ack(
        &self,
        at: usize,
        at_op: usize,
        last: Seq,
        repair: bool,
        scheme: &Scheme,
    ) -> bool {
        let (Some(l), Some(op)) = (&self.paths[at], self.ops.queue.get(at_op)) else {
            return false;
        };
        match (scheme.feedback.on_request_only, repair) {
            // The sender retransmits what a receiver does not acknowledge.
            _ if self.by_sender && repair => true,
            (true, true) => l.window.oldest_report().is_none(),
            (true, false) => {
                let full = last == op.end() && at_op as u32 + 1 >= self.broadcasts;
                full || !l.window.has_room() || l.limit == Some(last)
            }
            // Receivers send ACKs without requests. Only the last packet requests them, unless the
            // sender detects losses.
            (false, _) => last == self.ops.end && !self.by_sender && op.awaited,
        }
    }

    /// Records that a packet with a payload of `len` bytes leaves a path. Returns the packet's
    /// burst.
    pub(super) fn depart(
        &mut self,
        now: Time,
        at: usize,
        len: u32,
        scheme: &Scheme,
    ) -> Option<u32> {
        let group_fresh = self.group_fresh();
        let copies = match self.paths[at].as_ref()?.to {
            Target::All => self.copies(),
            Target::Node(_) => 1,
        };
        let l = self.paths[at].as_mut()?;
        let burst = self.bursts.packet(Burst {
            at: now,
            path: l.number,
            fresh: l.fresh,
            group_fresh,
            bytes: l.pacer.bytes(),
        });
        let bytes = (len + scheme.data_overhead() as u32).saturating_mul(copies);
        l.pacer.sent(now, bytes);
        self.share.bytes = bytes;
        Some(burst)
    }

    pub(super) fn path_of(&self, node: NodeId) -> Option<&Path> {
        let i = self.index_of(node)?;
        self.paths[self.members[i].path].as_ref()
    }

    /// When [`Sender::poll`] has something to do; [`Time::ZERO`]: at once.
    pub fn wake(&self, scheme: &Scheme) -> Option<Time> {
        let mut wake = self.probing.due;
        let mut at = |t: Time| wake = Some(wake.map_or(t, |w| w.min(t)));
        if !self.probing.queue.is_empty() || !self.probing.reprobes.is_empty() {
            at(Time::ZERO);
        }
        if let Some(t) = self.grace_ends() {
            at(t);
        }
        let sends = self.sends_at(scheme).map(|t| t.max(self.share.opens_at()));
        // A stream that waits for its turn is told when it begins.
        if let Some(t) = sends.filter(|t| *t != Time::NEVER) {
            at(t);
        }
        wake
    }

    /// When the sender has something to send, as far as its paths are concerned, apart from probes;
    /// [`Time::ZERO`]: at once.
    fn sends_at(&self, scheme: &Scheme) -> Option<Time> {
        let mut sends = None;
        let mut at = |t: Time| sends = Some(sends.map_or(t, |s: Time| s.min(t)));
        let may_start = self.may_start_at().unwrap_or(Time::ZERO);
        for (i, l) in self.paths.iter().enumerate() {
            let Some(l) = l else { continue };
            let opens = l.pacer.opens_at();
            let demand = self.parity_requests.as_ref().filter(|_| i == GROUP_PATH);
            let asked = demand.and_then(ParityRequests::oldest);
            for t in [l.window.oldest_report(), asked].into_iter().flatten() {
                at(opens.max(t + self.nack_delay(i, scheme)));
            }
            if self.window_is_open(i) {
                at(opens.max(may_start));
            }
        }
        sends
    }
}
