//! Hostile datagrams that belong to nothing in the session: noise, truncated datagrams, other
//! sessions, unknown nodes, bursts that never were, and copies of datagrams delivered long ago.

use std::collections::VecDeque;
use std::rc::Rc;

use fabricast::proto::rng::Rng;
use fabricast::proto::wire::{self, Frame, HEADER_LEN, Header, Writer};
use fabricast::proto::{GroupId, NodeId, Seq, Session, Slot, limits};

use crate::fabric::{Packet, Target};
use crate::workload::Kind;

/// Number of datagrams that are remembered, to be changed or repeated.
const REMEMBERED: usize = 64;

/// Makes hostile datagrams.
#[derive(Debug)]
pub(crate) struct Hostile {
    rng: Rng,
    session: Session,
    recent: VecDeque<Rc<Packet>>,
    seen: u64,
}

impl Hostile {
    pub(crate) fn new(session: Session, seed: u64) -> Hostile {
        Hostile {
            rng: Rng::new(seed),
            session,
            recent: VecDeque::new(),
            seen: 0,
        }
    }

    /// Keeps some of what is sent: old datagrams as well as new ones.
    pub(crate) fn remember(&mut self, packet: &Rc<Packet>) {
        self.seen += 1;
        if self.recent.len() < REMEMBERED {
            self.recent.push_back(Rc::clone(packet));
        } else if self.seen.is_multiple_of(7) {
            let i = self.rng.below(REMEMBERED as u64) as usize;
            self.recent[i] = Rc::clone(packet);
        }
    }

    /// Nanoseconds until the next hostile datagram, `mean_ns` on average.
    pub(crate) fn pause(&mut self, mean_ns: u64) -> u64 {
        1 + self.rng.below(2 * mean_ns.max(1))
    }

    /// Makes a datagram and picks the host among `hosts` that it reaches.
    pub(crate) fn make(&mut self, hosts: u32) -> (u32, Rc<Packet>) {
        let host = self.rng.below(u64::from(hosts)) as u32;
        let known = if self.recent.is_empty() {
            None
        } else {
            let i = self.rng.below(self.recent.len() as u64) as usize;
            Some(Rc::clone(&self.recent[i]))
        };
        let mut bytes = match (&known, self.rng.below(7)) {
            (None, _) | (_, 0) => self.noise(),
            (Some(p), 1) => self.truncated(&p.bytes),
            (Some(p), 2) => self.other_session(&p.bytes),
            (_, 3) => self.unknown_node(),
            (Some(p), 4) => self.other_burst(&p.bytes),
            (Some(p), _) => return (self.again(host, p), Rc::clone(p)),
        };
        bytes.truncate(60_000);
        let packet = Packet {
            from: u32::MAX,
            to: Target::Host(host),
            kind: Kind::Message,
            way_ns: 0,
            bytes,
        };
        (host, Rc::new(packet))
    }

    /// Picks a host that the datagram could reach a second time.
    fn again(&mut self, host: u32, packet: &Packet) -> u32 {
        match packet.to {
            Target::Host(h) => h,
            // A multicast may reach any host, member or not: some switches flood.
            Target::Group(_) => host,
        }
    }

    fn noise(&mut self) -> Vec<u8> {
        let len = self.rng.below(200) as usize;
        let mut bytes: Vec<u8> = (0..len).map(|_| self.rng.bits() as u8).collect();
        // Half of the noise begins like one of our own datagrams.
        if len >= 16 && self.rng.chance(0.5) {
            bytes[0] = wire::VERSION;
            bytes[1] = (HEADER_LEN / 4) as u8;
            bytes[8..16].copy_from_slice(&self.session.0.to_be_bytes());
            if len >= 20 {
                // No version has a frame of this kind.
                bytes[16] = 200;
            }
        }
        bytes
    }

    fn truncated(&mut self, of: &[u8]) -> Vec<u8> {
        of[..self.rng.below(of.len() as u64) as usize].to_vec()
    }

    fn other_session(&mut self, of: &[u8]) -> Vec<u8> {
        let mut bytes = of.to_vec();
        let byte = 8 + self.rng.below(8) as usize;
        if let Some(b) = bytes.get_mut(byte) {
            *b ^= 1 << self.rng.below(8);
        }
        bytes
    }

    /// Returns the datagram as it was sent, but with a burst number that never existed.
    fn other_burst(&mut self, of: &[u8]) -> Vec<u8> {
        let mut bytes = of.to_vec();
        if let Some(number) = bytes.get_mut(2..4) {
            number.copy_from_slice(&(self.rng.bits() as u16).to_be_bytes());
        }
        bytes
    }

    /// Makes a well-formed datagram of this session from an unknown node or for an unknown group.
    fn unknown_node(&mut self) -> Vec<u8> {
        let mut space = [0; limits::HEAD_MAX];
        let mut out = Writer::new(&mut space);
        let header = Header {
            burst: self.rng.bits() as u16,
            source: NodeId(0x7fff_0000 | self.rng.below(1 << 16) as u32),
            session: self.session,
        };
        wire::put_header(&mut out, &header);
        let group = GroupId(self.rng.below(30) as u32);
        let (a, b) = (self.rng.bits() as u32, self.rng.bits() as u32);
        match self.rng.below(4) {
            0 => {
                let len = self.rng.below(100) as u32;
                let origin = match a & 1 {
                    0 => wire::Origin::Source(Seq(a)),
                    _ => wire::Origin::Relayed(NodeId(self.rng.below(10) as u32)),
                };
                wire::put_data(&mut out, group, origin, Seq(b), a as u8 & 3, len);
                out.zeros(len as usize).fill(0xee);
            }
            1 => {
                let sync = wire::Sync {
                    group,
                    sender: NodeId(self.rng.below(10) as u32),
                    next: Seq(a),
                };
                wire::put_sync(&mut out, &sync);
            }
            2 => {
                let probe = wire::Probe {
                    group,
                    nonce: a,
                    flags: b as u8,
                    only: None,
                    by: None,
                };
                wire::put_probe_ack(&mut out, &probe);
            }
            _ => {
                let feedback = wire::Feedback {
                    group,
                    sender: NodeId(self.rng.below(10) as u32),
                    cum: Seq(a),
                    cum_subtree: Seq(a),
                    limit: Seq(a) + 100,
                    high: Seq(a) + 100,
                    received: b,
                    arrived_us: b,
                    held_us: 0,
                    burst: b as u16,
                    flags: b as u8,
                    slot: (b & 4 != 0).then_some(Slot {
                        index: b as u16 >> 8 & 7,
                        epoch: 1 + (b >> 16 & 3) as u16,
                    }),
                    declined: wire::Declined::NONE,
                    missing: wire::Ranges::NONE,
                };
                let missing = [(Seq(a) + 3, 4)];
                wire::put_feedback(&mut out, &feedback, missing.into_iter());
            }
        }
        debug_assert!(
            wire::decode(&out).is_ok_and(|d| { d.frames().all(|f| !matches!(f, Frame::Probe(_))) })
        );
        out.to_vec()
    }
}
