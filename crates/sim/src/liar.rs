//! A member that takes part only to mislead: all its datagrams are well-formed, bear its own name,
//! and are made up.

use fabricast::proto::rng::Rng;
use fabricast::proto::wire::{self, Frame, Header, Origin, Writer, flag};
use fabricast::proto::{Barrier, GroupId, NodeId, Reached, Seq, Session, limits};

use crate::fabric::Target;

/// A stream that the liar receives, and what it has heard of it.
#[derive(Clone, Debug)]
pub(crate) struct Heard {
    pub(crate) group: GroupId,
    /// The group's number in the fabric.
    pub(crate) target: u32,
    /// The root's host.
    pub(crate) host: u32,
    pub(crate) sender: NodeId,
    pub(crate) payload_size: u32,
    /// All packets before this one have been sent.
    pub(crate) front: Seq,
    /// ACK that the liar has sent last.
    pub(crate) cum: Seq,
    pub(crate) burst: u16,
    pub(crate) received: u32,
}

/// A member that makes up all its datagrams; see the module.
#[derive(Debug)]
pub(crate) struct Liar {
    rng: Rng,
    node: NodeId,
    session: Session,
    window: u32,
    /// Whether the liar claims to have placed nothing.
    lags: bool,
    streams: Vec<Heard>,
}

impl Liar {
    pub(crate) fn new(
        (node, session): (NodeId, Session),
        seed: u64,
        window: u32,
        streams: Vec<Heard>,
    ) -> Liar {
        let mut rng = Rng::new(seed);
        Liar {
            lags: rng.chance(0.5),
            rng,
            node,
            session,
            window,
            streams,
        }
    }

    /// Learns from an arrived datagram what would be plausible to say.
    pub(crate) fn hears(&mut self, bytes: &[u8]) {
        let Ok(datagram) = wire::decode(bytes) else {
            return;
        };
        for frame in datagram.frames() {
            if let Frame::Data(d) = frame
                && let Some(s) = self
                    .streams
                    .iter_mut()
                    .find(|s| s.group == d.group && s.sender == datagram.header.source)
            {
                s.front = s.front.max(d.seq + 1);
                s.burst = datagram.header.burst;
                s.received += 1;
            }
        }
    }

    /// Nanoseconds until the liar speaks again.
    pub(crate) fn pause(&mut self, mean_ns: u64) -> u64 {
        1 + self.rng.below(2 * mean_ns.max(1))
    }

    /// Makes the liar's next datagram and picks its destination among `hosts` hosts.
    pub(crate) fn says(&mut self, hosts: u32) -> (Target, Vec<u8>) {
        let i = self.rng.below(self.streams.len() as u64) as usize;
        let payload_size = self.streams[i].payload_size as usize;
        let mut space = vec![0; limits::HEAD_MAX + payload_size];
        let mut out = Writer::new(&mut space);
        let header = Header {
            burst: self.rng.bits() as u16,
            source: self.node,
            session: self.session,
        };
        wire::put_header(&mut out, &header);
        let anybody = Target::Host(self.rng.below(u64::from(hosts)) as u32);
        let all = Target::Group(self.streams[i].target);
        let somebody = if self.rng.chance(0.5) { anybody } else { all };
        let to = match self.rng.below(8) {
            0 => {
                self.sync(i, &mut out);
                somebody
            }
            1 => {
                self.data(i, &mut out);
                somebody
            }
            2 => {
                self.word(i, &mut out);
                somebody
            }
            3 => {
                self.answer(i, &mut out);
                anybody
            }
            _ => {
                self.report(i, &mut out);
                Target::Host(self.streams[i].host)
            }
        };
        debug_assert!(wire::decode(&out).is_ok(), "it is well-formed");
        (to, out.to_vec())
    }

    fn up_to(&mut self, most: u32) -> u32 {
        self.rng.below(u64::from(most) + 1) as u32
    }

    fn report(&mut self, i: usize, out: &mut Writer<'_>) {
        let mut s = self.streams[i].clone();
        let sent = s.front.from(s.cum).max(0) as u32;
        if !self.lags {
            s.cum += self.up_to(sent);
        }
        self.streams[i].cum = s.cum;
        // The liar may report packets that do not exist.
        let high = match self.rng.chance(0.3) {
            true => s.cum + self.up_to(self.window),
            false => s.front.max(s.cum).min(s.cum + self.window),
        };
        let mut at = s.cum;
        let mut missing = Vec::new();
        for _ in 0..self.up_to(8) {
            let rest = high.from(at) as u32;
            let first = at + self.up_to(rest / 4);
            let len = self.up_to(high.from(first) as u32);
            if len > 0 {
                missing.push((first, len));
            }
            at = first + len;
        }
        let feedback = wire::Feedback {
            group: s.group,
            sender: s.sender,
            cum: s.cum,
            cum_subtree: s.cum,
            limit: s.cum + self.up_to(2 * limits::WINDOW_MAX),
            high,
            received: s.received + self.up_to(100),
            arrived_us: self.rng.bits() as u32,
            held_us: self.up_to(10_000),
            burst: s.burst.wrapping_sub(self.up_to(20) as u16),
            flags: if self.rng.chance(0.5) { flag::BURST } else { 0 },
            slot: None,
            declined: wire::Declined::NONE,
            missing: wire::Ranges::NONE,
        };
        wire::put_feedback(out, &feedback, missing.into_iter());
    }

    fn sync(&mut self, i: usize, out: &mut Writer<'_>) {
        let next = self.streams[i].front + self.up_to(self.window);
        let s = &self.streams[i];
        let (group, sender) = (s.group, s.sender);
        wire::put_sync(
            out,
            &wire::Sync {
                group,
                sender,
                next,
            },
        );
    }

    /// Adds a repair to mislead the root. (In a stream of its own, the liar is the root and may
    /// send what it likes.)
    fn data(&mut self, i: usize, out: &mut Writer<'_>) {
        let seq = self.streams[i].front + self.up_to(200) + 0u32.wrapping_sub(100);
        let s = self.streams[i].clone();
        let len = match self.rng.chance(0.5) {
            true => s.payload_size,
            false => self.up_to(s.payload_size),
        };
        let flags = self.rng.bits() as u8 & (flag::ACK_REQUEST | flag::LAST | flag::REPAIR);
        let (origin, flags) = (Origin::Relayed(s.sender), flags | flag::RELAYED);
        wire::put_data(out, s.group, origin, seq, flags, len);
        out.zeros(len as usize).fill(0xee);
    }

    fn reached(&mut self) -> Reached {
        Reached {
            count: Seq(self.up_to(3)),
            round: self.up_to(3) as u16,
        }
    }

    fn word(&mut self, i: usize, out: &mut Writer<'_>) {
        let (at, heard) = (self.reached(), self.reached());
        let word = wire::Word {
            group: self.streams[i].group,
            at,
            heard: self.rng.chance(0.5).then_some(heard),
            barrier: Some(Barrier::Central),
            flags: self.rng.bits() as u8 & (flag::ACK_REQUEST | flag::ENDED),
        };
        wire::put_word(out, &word);
    }

    /// Adds a query, or a reply to no query.
    fn answer(&mut self, i: usize, out: &mut Writer<'_>) {
        let (group, front) = (self.streams[i].group, self.streams[i].front);
        let nonce = self.rng.bits();
        if self.rng.chance(0.5) {
            let seq = front;
            return wire::put_query(out, &wire::Query { group, seq, nonce });
        }
        let reply = wire::Reply {
            group,
            nonce,
            op: Some((front, nonce)),
            at: self.reached(),
            barrier: Some(Barrier::Central),
            ended: true,
        };
        wire::put_reply(out, &reply);
    }
}
