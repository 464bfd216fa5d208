//! What a node does next: datagrams, events, and when it has something to do again.

use core::cmp::Reverse;

use super::datagram::{self, Datagram, Start};
use super::op_table::{Entry, Stream};
use super::{Node, timers_max};
use crate::barrier::{To, Words};
use crate::border::{Dest, Event, Output, PathState};
use crate::id::OpId;
use crate::path::{Target, Transmission};
use crate::schedule::Reached;
use crate::sender::Shares;
use crate::time::Time;
use crate::wire::{self, Header, Query, Reply, Writer};

impl Node {
    /// Returns what the driver does next. For [`Output::Transmit`] the node has appended the
    /// datagram's head to `head`. The driver calls this until it returns [`Output::Wait`].
    ///
    /// `head` needs room for [`crate::limits::HEAD_MAX`] bytes, and for the largest data packet of
    /// any group, with its payload. Panics without it.
    pub fn poll(&mut self, now: Time, head: &mut Writer<'_>) -> Output {
        if let Some(output) = self.copies.poll(head) {
            return output;
        }
        if let Some((to, probe)) = self.acks.pop_front() {
            self.start().put(head, 0);
            wire::put_probe_ack(head, &probe);
            let to = match probe.by {
                Some(address) => Dest::Address(address),
                None => Dest::Node(to),
            };
            return datagram::transmit(to, None);
        }
        while let Some((to, query)) = self.queries.pop_front() {
            if let Some(reply) = self.reply(&query) {
                self.start().put(head, 0);
                wire::put_reply(head, &reply);
                return datagram::transmit(Dest::Node(to), None);
            }
        }
        if self.out.is_empty() {
            self.ring(now);
        }
        loop {
            if let Some(output) = self.out.pop_front() {
                if let Output::Release(op) = output {
                    self.ops.remove(op);
                }
                return output;
            }
            if let Some(words) = self.poll_gathered(now, head) {
                return words;
            }
            self.begin_turn(now);
            let Some(&at) = self.ready.front() else {
                // Entries of groups that wait for nothing any more are no timers: remove them.
                self.ring(now);
                let turn = self.shares.as_ref().and_then(Shares::wake);
                let timer = self.timers.peek().map(|t| t.0.0);
                return Output::Wait(timer.into_iter().chain(turn).min());
            };
            let start = head.len();
            if let Some(datagram) = self.poll_group(now, at, head) {
                return self.send(at, datagram, &head[start..]);
            }
            if self.out.is_empty() {
                self.ready.pop_front();
                self.gathered.first_is_done();
                self.set_timer(now, at);
            }
        }
    }

    /// Gathers the words of all groups that are ready, if there are several. Returns the next
    /// datagram of words, whose head it has appended to `head`.
    fn poll_gathered(&mut self, now: Time, head: &mut Writer<'_>) -> Option<Output> {
        let begin = self.start();
        while self.ready.len() > 1
            && let Some(next) = self.gathered.looks_at()
            && let Some(&at) = self.ready.get(next)
        {
            let group = self.groups[at].as_mut();
            let said = group.and_then(|group| {
                let words = group.words.as_mut()?;
                let said = words.poll(now, &mut self.counters, &mut self.out)?;
                Some((group, said))
            });
            match said {
                Some((group, (To::Rank(rank), word))) => {
                    // A datagram of words is no longer than one with data.
                    let room = group.payload_size as usize + wire::DATA_LEN;
                    self.gathered.add(group.members[rank as usize], room, &word);
                }
                Some((_, (To::All, word))) => {
                    let start = head.len();
                    let datagram = datagram::put_word(Target::All, &word, begin, head);
                    return Some(self.send(at, datagram, &head[start..]));
                }
                None => self.gathered.looks_further(),
            }
        }
        let (to, words) = self.gathered.take()?;
        begin.put(head, 0);
        words.iter().for_each(|word| wire::put_word(head, word));
        Some(datagram::transmit(Dest::Node(to), None))
    }

    /// This node's reply to a query; `None`: it has left the group meanwhile.
    pub(super) fn reply(&self, query: &Query) -> Option<Reply> {
        let (_, group) = self.group(query.group).ok()?;
        let words = group.words.as_ref();
        let (at, barrier, ended) = words.map_or_else(
            || (Reached::none(group.start), None, !group.gone.is_empty()),
            Words::state,
        );
        Some(Reply {
            group: group.id,
            nonce: query.nonce,
            op: group.own.get().and_then(|r| r.describes(query.seq)),
            at,
            barrier,
            ended,
        })
    }

    /// Begins the turn of a stream that waits for it, if the node's fixed rate lets one send now.
    fn begin_turn(&mut self, now: Time) {
        if let Some(shares) = &mut self.shares
            && let Some(group) = shares.next_turn(now)
        {
            let Some(&at) = self.index.get(&group) else {
                unreachable!("a removed group has been forgotten");
            };
            if let Some(sender) = self.groups[at].as_mut().and_then(|g| g.own.get_mut()) {
                sender.begins_turn();
            }
            self.touch(at);
        }
    }

    /// Moves groups whose timer has expired to the groups that are ready.
    pub(super) fn ring(&mut self, now: Time) {
        while let Some(&Reverse((at_time, at))) = self.timers.peek() {
            let set = self.groups[at]
                .as_mut()
                .filter(|g| g.timer == Some(at_time));
            if at_time > now && set.is_some() {
                break;
            }
            self.timers.pop();
            if let Some(group) = set {
                group.timer = None;
                self.touch(at);
            }
        }
    }

    pub(super) fn set_timer(&mut self, now: Time, at: usize) {
        let Some(group) = self.groups[at].as_mut() else {
            return;
        };
        group.queued = false;
        group.own.record(&self.config.scheme);
        match group.wake(&self.config.scheme) {
            Some(t) => {
                debug_assert!(t > now, "a wake-up must lie in the future");
                let t = t.max(Time(now.0 + 1));
                if group.timer.is_none_or(|set| t < set) {
                    group.timer = Some(t);
                    self.timers.push(Reverse((t, at)));
                }
            }
            None => group.timer = None,
        }
        if self.timers.len() > timers_max(self.groups.len()) {
            self.timers.clear();
            let groups = self.groups.iter().enumerate();
            let set = groups.filter_map(|(at, g)| Some(Reverse((g.as_ref()?.timer?, at))));
            self.timers.extend(set);
        }
    }

    /// The beginning of every datagram of this node.
    pub(super) fn start(&self) -> Start {
        Start {
            header: Header {
                burst: 0,
                source: self.config.node,
                session: self.config.session,
            },
            checksum: self.config.scheme.checksum,
        }
    }

    pub(super) fn poll_group(
        &mut self,
        now: Time,
        at: usize,
        head: &mut Writer<'_>,
    ) -> Option<Datagram> {
        let begin = self.start();
        let group = self.groups[at].as_mut()?;
        // Words go first: in a barrier all ranks wait for the slowest.
        if let Some(words) = group.words.as_mut()
            && let Some((to, word)) = words.poll(now, &mut self.counters, &mut self.out)
        {
            let to = match to {
                To::All => Target::All,
                To::Rank(rank) => Target::Node(group.members[rank as usize]),
            };
            return Some(datagram::put_word(to, &word, begin, head));
        }
        if let Some((to, query)) = group.query(now, &self.config.scheme, &mut self.nonces) {
            return Some(datagram::put_query(Target::Node(to), &query, begin, head));
        }
        let probe = group.provers().find_map(|p| p.poll(now));
        if let Some((to, probe)) = probe {
            let size = group.payload_size as usize + self.config.scheme.data_overhead();
            return Some(datagram::put_probe(to, &probe, size, begin, head));
        }
        if group.prover.is_some() {
            self.finish_proof(now, at);
        }
        let group = self.groups[at].as_mut()?;
        if !group.provers.is_empty() {
            self.finish_addresses(now, at);
        }
        let group = self.groups[at].as_mut()?;
        let (counters, out) = (&mut self.counters, &mut self.out);
        if let Some(sender) = group.own.due(now) {
            let shares = self.shares.as_mut();
            if let Some(send) = &sender.poll(now, &self.config, shares, counters, out) {
                return self.transmit(now, at, send, head);
            }
            if let Some(send) = &sender.next_reprobe(&mut self.nonces) {
                return self.transmit(now, at, send, head);
            }
        }
        let shares = self.shares.as_mut();
        let relayed = group
            .streams
            .relay(now, &self.config, shares, counters, out);
        if let Some(send) = &relayed {
            return self.transmit(now, at, send, head);
        }
        let scheme = &self.config.scheme;
        let start = head.len();
        let put = |head: &mut Writer<'_>| begin.put(head, 0);
        let to = Target::Node(group.streams.poll(now, scheme, head, put)?);
        self.counters.feedback_sent += 1;
        let size = group.payload_size as usize + scheme.data_overhead();
        let room = (start + size).saturating_sub(head.len());
        let appended = group.piggyback(now, scheme, (to, room), head);
        self.counters.feedback_piggybacked += appended;
        Some(datagram::control(to))
    }

    /// Sends a transmission of a stream of group `at`, and feedback that goes the same way.
    fn transmit(
        &mut self,
        now: Time,
        at: usize,
        send: &Transmission,
        head: &mut Writer<'_>,
    ) -> Option<Datagram> {
        let begin = self.start();
        let group = self.groups[at].as_mut()?;
        let scheme = &self.config.scheme;
        let named = (
            group.id,
            group.payload_size as usize + scheme.data_overhead(),
        );
        let piggyback = |head: &mut Writer<'_>, to: Target, room: usize| {
            let appended = group.piggyback(now, scheme, (to, room), head);
            self.counters.feedback_piggybacked += appended;
        };
        Some(datagram::put(send, named, begin, head, piggyback))
    }

    /// Sends a datagram of group `at`, whose head was written. If the group has no address, copies
    /// for the other members follow.
    fn send(&mut self, at: usize, datagram: Datagram, head: &[u8]) -> Output {
        let Datagram { to, by, payload } = datagram;
        let to = match (to, &self.groups[at]) {
            (Target::Node(node), _) => Dest::Node(node),
            (Target::All, Some(group)) => match by.or(group.address) {
                Some(address) => Dest::Address(address),
                None => Dest::Node(self.copies.begin(self.config.node, group, (head, payload))),
            },
            (Target::All, None) => unreachable!("a group that sends exists"),
        };
        if let Some(payload) = payload.filter(|_| !self.copies.is_empty()) {
            self.sends_again(payload.op(), self.copies.len());
        }
        datagram::transmit(to, payload)
    }

    /// Records that the payload that is sent now is sent again, this many times.
    fn sends_again(&mut self, op: OpId, times: u32) {
        if let Some(&Entry {
            group,
            stream,
            base,
            ..
        }) = self.ops.get(op)
            && let Some(group) = self.groups[group].as_mut()
        {
            match stream {
                Stream::Own => group.sender(&self.config).sends_again(base, times),
                Stream::At(place) => {
                    if let Some(mut stream) = group.streams.change(&self.config.scheme, place) {
                        stream.sends_again(base, times);
                    }
                }
            }
        }
    }

    /// Ends the proofs of addresses that have a result.
    fn finish_addresses(&mut self, now: Time, at: usize) {
        let Some(group) = self.groups[at].as_mut() else {
            return;
        };
        let (id, out) = (group.id, &mut self.out);
        group.provers.retain(|&address, prover| {
            let Some(result) = prover.result(now) else {
                return true;
            };
            for (node, path_state, _) in result {
                if path_state != PathState::Multicast {
                    out.push_back(Output::Event(Event::AddressSilent {
                        group: id,
                        address,
                        node,
                    }));
                }
            }
            let over = Event::AddressProven { group: id, address };
            out.push_back(Output::Event(over));
            false
        });
    }

    /// Ends the proof of a group when the path states of all members are known.
    pub(super) fn finish_proof(&mut self, now: Time, at: usize) {
        let Some(group) = self.groups[at].as_mut() else {
            return;
        };
        let Some(result) = group.prover.as_ref().and_then(|p| p.result(now)) else {
            return;
        };
        let result: Vec<_> = result.collect();
        group.prover = None;
        for (node, path_state, probes) in result {
            if probes > 1 {
                group.probes.insert(node, probes);
            }
            if let Some(sender) = group.own.get_mut() {
                sender.proven(node, probes);
            }
            if path_state == PathState::Multicast {
                continue;
            }
            group.set_path_state(node, path_state, &mut self.out);
            self.out.push_back(Output::Event(Event::Path {
                group: group.id,
                node,
                path_state,
            }));
        }
        self.out.push_back(Output::Event(Event::Proven(group.id)));
    }
}
