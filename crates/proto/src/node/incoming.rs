//! Datagrams come in: which nodes may send a frame, and which stream or barrier it is for.

use super::{ACKS_MAX, Node};
use crate::border::{PathState, Placement};
use crate::id::{GroupId, NodeId};
use crate::receiver::Shared;
use crate::time::Time;
use crate::wire::{Frame, Header, Origin, flag};

/// The group that a frame is for.
fn group_of(frame: &Frame<'_>) -> GroupId {
    match frame {
        Frame::Data(f) => f.group,
        Frame::Xor(f) => f.group,
        Frame::Parity(f) => f.group,
        Frame::Feedback(f) => f.group,
        Frame::Sync(f) => f.group,
        Frame::Probe(f) | Frame::ProbeAck(f) => f.group,
        Frame::Word(f) => f.group,
        Frame::Query(f) => f.group,
        Frame::Reply(f) => f.group,
    }
}

impl Node {
    /// Takes one frame of a datagram that came out of the network at `arrived`. This is before
    /// `now` if the datagram has waited in a buffer since, or a little after it if the datagram
    /// came while the driver was reading.
    pub fn packet(
        &mut self,
        now: Time,
        arrived: Time,
        header: &Header,
        frame: &Frame<'_>,
    ) -> Placement {
        let from = header.source;
        let known = self.index.get(&group_of(frame)).copied().filter(|&at| {
            header.session == self.config.session
                && from != self.config.node
                && !self.gone.contains(&from)
                && self.groups[at].as_ref().is_some_and(|g| g.expects(from))
        });
        let Some(at) = known else {
            self.counters.foreign += 1;
            return Placement::Discard;
        };
        let foreign = self.counters.foreign;
        let placement = match frame {
            Frame::Data(_) | Frame::Xor(_) | Frame::Parity(_) => {
                self.on_data(now, at, from, (header.burst, arrived), frame)
            }
            _ => {
                self.on_control(now, at, from, frame);
                Placement::Discard
            }
        };
        if let Frame::Feedback(f) = frame
            && f.flags & flag::PIGGYBACKED != 0
        {
            // Piggybacked feedback is for one of the nodes that receive the datagram, so the others
            // do not count it as foreign.
            self.counters.foreign = foreign;
        }
        self.touch(at);
        placement
    }

    /// Takes a frame with a payload of a stream of group `at`.
    fn on_data(
        &mut self,
        now: Time,
        at: usize,
        from: NodeId,
        burst: (u16, Time),
        frame: &Frame<'_>,
    ) -> Placement {
        let Some(group) = self.groups[at].as_mut() else {
            return Placement::Discard;
        };
        let scheme = &self.config.scheme;
        let mut shared = Shared {
            counters: &mut self.counters,
            token: &mut self.unexpected_token,
            out: &mut self.out,
        };
        let place = match frame {
            Frame::Data(f) => {
                let sender = match f.origin {
                    Origin::Source(_) => from,
                    Origin::Relayed(sender) => sender,
                };
                let place = group.spoken_for(&self.config, sender, from);
                shared.counters.foreign += u64::from(place.is_none());
                place
            }
            _ => group.stream(&self.config, from),
        };
        let stream = place.and_then(|place| group.streams.change(scheme, place));
        match (frame, stream) {
            (Frame::Data(f), Some(mut stream)) => stream.data(now, burst, scheme, f, &mut shared),
            (Frame::Xor(f), Some(mut stream)) => {
                stream.xor_repair(now, burst, scheme, f, &mut shared)
            }
            (Frame::Parity(f), Some(mut stream)) => {
                stream.parity(now, burst, scheme, f, &mut shared)
            }
            _ => Placement::Discard,
        }
    }

    /// Takes a frame without a payload of group `at`.
    fn on_control(&mut self, now: Time, at: usize, from: NodeId, frame: &Frame<'_>) {
        let Some(group) = self.groups[at].as_mut() else {
            return;
        };
        let scheme = &self.config.scheme;
        let mut shared = Shared {
            counters: &mut self.counters,
            token: &mut self.unexpected_token,
            out: &mut self.out,
        };
        match frame {
            Frame::Sync(f) => match group.spoken_for(&self.config, f.sender, from) {
                Some(place) => {
                    if let Some(mut stream) = group.streams.change(scheme, place) {
                        stream.sync(now, scheme, f.next);
                    }
                }
                None => shared.counters.foreign += 1,
            },
            Frame::Feedback(f) if f.sender == self.config.node && group.takes_part().is_ok() => {
                let sender = group.sender(&self.config);
                sender.on_feedback(now, from, f, shared.counters, shared.out);
            }
            Frame::Feedback(f) => {
                let place = group.begun(f.sender);
                let stream = place.and_then(|place| group.streams.change(scheme, place));
                let told =
                    stream.is_some_and(|mut s| s.report(now, scheme, (from, f), &mut shared));
                self.counters.foreign += u64::from(!told);
            }
            Frame::Probe(f) => {
                let mine = f.only.is_none_or(|only| only == self.config.node);
                let copies = match mine {
                    true => group.answers(now, from, f),
                    false => 0,
                };
                for _ in 0..copies.min(ACKS_MAX - self.acks.len()) {
                    self.acks.push_back((from, *f));
                }
            }
            Frame::ProbeAck(f) if f.flags & flag::ALONE != 0 => {
                let sender = group.own.get_mut();
                let answered = (from, f.nonce);
                // Barriers, and streams that begin later, use multicast again, too.
                if sender.is_some_and(|sender| sender.on_reprobe_ack(now, answered, &mut self.out))
                {
                    group.set_path_state(from, PathState::Multicast, &mut self.out);
                }
            }
            Frame::ProbeAck(f) => {
                for prover in group.provers() {
                    prover.ack(now, from, f);
                }
            }
            Frame::Word(f) => {
                shared.counters.words_received += 1;
                let rank = group.rank(from);
                let words = group.words(&self.config).zip(rank);
                let fits = words.is_some_and(|(w, rank)| w.word(now, rank as u32, f));
                shared.counters.foreign += u64::from(!fits);
            }
            Frame::Query(f) => {
                if self.queries.len() < ACKS_MAX {
                    self.queries.push_back((from, *f));
                }
            }
            Frame::Reply(f) => {
                let place = group.begun(from);
                let stream = place.and_then(|place| group.streams.change(scheme, place));
                let told = stream.is_some_and(|mut s| s.reply(now, f, shared.out));
                let rank = group.rank(from);
                let words = group.words.as_mut().zip(rank);
                let asked =
                    told || words.is_some_and(|(w, rank)| w.reply(rank as u32, f, shared.out));
                shared.counters.foreign += u64::from(!asked);
            }
            Frame::Data(_) | Frame::Xor(_) | Frame::Parity(_) => {}
        }
    }
}
