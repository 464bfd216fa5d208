//! What hosts tell each other about addresses: messages as values, and their bytes.
//!
//! Messages go by the reliable and ordered connections that exist between hosts. All of them go to
//! the coordinator or come from it.

use super::address::Refusal;
use super::hosts::{HostId, HostSet};
use crate::id::{AddressId, GroupId};

/// An address that a group may use, with the number of its present use. It travels with the group's
/// agreed creation. A host ignores it if the address has gone to other groups in the meantime.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Grant {
    /// The address.
    pub address: AddressId,
    /// The term, from when hosts are told to join the address until it is withdrawn. A group that
    /// takes the address from the pool only narrows its hosts, within the term.
    pub term: u32,
}

impl Grant {
    /// The grant as one number, which is never 0: no grant names the context's address.
    pub fn number(self) -> u64 {
        u64::from(self.term) << 32 | u64::from(self.address.0)
    }

    /// The grant of this number; `None` for 0.
    pub fn from_number(number: u64) -> Option<Grant> {
        let grant = Grant {
            address: AddressId(number as u32),
            term: (number >> 32) as u32,
        };
        (number != 0).then_some(grant)
    }
}

/// Most groups in one [`Message::Sent`].
pub const SENT_MAX: usize = 64;
/// Most hosts of a context, which bounds a message's size.
pub const HOSTS_MAX: u32 = 65_536;

/// A message between a host and the coordinator.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// Coordinator: be a member of this address. Answered by `Joined` or `Refused`.
    Join {
        /// The address and its term.
        grant: Grant,
        /// The set of hosts whose groups may send to the address; `None` for one that a group has
        /// yet to take.
        hosts: Option<HostSet>,
    },
    /// Coordinator: probes do not reach this host. Join again, although the manager has said that
    /// the host is a member. Answered like `Join`.
    Rejoin(AddressId),
    /// Coordinator: probe these hosts by this address. Answered by `Proved`.
    Prove(AddressId, HostSet),
    /// Coordinator: all members have answered probes; groups may send.
    Proven(AddressId),
    /// Coordinator: the proof no longer holds; groups send by other ways.
    Unproven(AddressId),
    /// Coordinator: this address belongs to the share of this host, which may give it to a group of
    /// these hosts or some of them.
    Share(Grant, HostSet),
    /// Coordinator: no group sends to this address from now on. Answered by `Withdrawn`.
    Withdraw(AddressId),
    /// Coordinator: no host sends to this address; be no member any more. Answered by `Left`.
    Leave(AddressId),
    /// Coordinator: this group has no address of its own for now.
    NoAddress(GroupId, Refusal),
    /// Host: this host is a member.
    Joined(AddressId),
    /// Host: the manager refuses this host.
    Refused(AddressId, Refusal),
    /// Host: the membership is lost; this host joins again and then sends `Joined`.
    Lost(AddressId),
    /// Host: no group of this host sends to the address any more.
    Withdrawn(AddressId),
    /// Host: this host is no member.
    Left(AddressId),
    /// Host: these hosts have not answered the probes.
    Proved(AddressId, HostSet),
    /// Host: multicast by this address does not reach a host that it should reach.
    Unreached(AddressId),
    /// Host: a group has been created. The lowest host of a group sends this, and with
    /// [`super::Strategy::Basic`] each member.
    Created {
        /// The group.
        group: GroupId,
        /// Its hosts.
        hosts: HostSet,
        /// The address that its lowest host gave it.
        grant: Option<Grant>,
    },
    /// Host: the address of its share that this host took is not used after all.
    PutBack(Grant),
    /// Host: the group's last barrier is over at this host.
    Ended {
        /// The group.
        group: GroupId,
        /// Its lowest host, which has told or tells of its creation.
        lowest: HostId,
    },
    /// Host: bytes that this host has sent to groups since its last report; at most [`SENT_MAX`].
    Sent(Vec<(GroupId, u64)>),
}

impl Message {
    /// Largest size of a message in a context of `hosts` hosts, in bytes.
    pub const fn size_max(hosts: u32) -> usize {
        let set = 4 + 8 * (hosts as usize).div_ceil(64);
        let created = 1 + 4 + set + 1 + 8;
        let sent = 1 + 4 + 12 * SENT_MAX;
        if created > sent { created } else { sent }
    }

    /// Whether a host sends this to the coordinator; the coordinator sends the other messages.
    pub fn is_for_coordinator(&self) -> bool {
        use Message::*;
        match self {
            Join { .. }
            | Rejoin(_)
            | Prove(..)
            | Proven(_)
            | Unproven(_)
            | Share(..)
            | Withdraw(_)
            | Leave(_)
            | NoAddress(..) => false,
            Joined(_)
            | Refused(..)
            | Lost(_)
            | Withdrawn(_)
            | Left(_)
            | Proved(..)
            | Unreached(_)
            | Created { .. }
            | PutBack(_)
            | Ended { .. }
            | Sent(_) => true,
        }
    }

    /// Appends the message's bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut w = Writer(out);
        match self {
            Message::Join { grant, hosts } => {
                w.byte(0).grant(*grant).byte(hosts.is_some() as u8);
                if let Some(hosts) = hosts {
                    w.set(hosts);
                }
            }
            Message::Rejoin(a) => drop(w.byte(1).word(a.0)),
            Message::Prove(a, hosts) => drop(w.byte(2).word(a.0).set(hosts)),
            Message::Proven(a) => drop(w.byte(3).word(a.0)),
            Message::Unproven(a) => drop(w.byte(4).word(a.0)),
            Message::Share(grant, hosts) => drop(w.byte(5).grant(*grant).set(hosts)),
            Message::Withdraw(a) => drop(w.byte(6).word(a.0)),
            Message::Leave(a) => drop(w.byte(7).word(a.0)),
            Message::NoAddress(g, why) => drop(w.byte(8).word(g.0).refusal(*why)),
            Message::Joined(a) => drop(w.byte(9).word(a.0)),
            Message::Refused(a, why) => drop(w.byte(10).word(a.0).refusal(*why)),
            Message::Lost(a) => drop(w.byte(11).word(a.0)),
            Message::Withdrawn(a) => drop(w.byte(12).word(a.0)),
            Message::Left(a) => drop(w.byte(13).word(a.0)),
            Message::Proved(a, silent) => drop(w.byte(14).word(a.0).set(silent)),
            Message::Unreached(a) => drop(w.byte(15).word(a.0)),
            Message::Created {
                group,
                hosts,
                grant,
            } => {
                w.byte(16)
                    .word(group.0)
                    .set(hosts)
                    .byte(grant.is_some() as u8);
                if let Some(grant) = grant {
                    w.grant(*grant);
                }
            }
            Message::PutBack(grant) => drop(w.byte(17).grant(*grant)),
            Message::Ended { group, lowest } => drop(w.byte(18).word(group.0).word(lowest.0)),
            Message::Sent(counts) => {
                w.byte(19).word(counts.len() as u32);
                for &(group, bytes) in counts {
                    w.word(group.0).long(bytes);
                }
            }
        }
    }

    /// The message that these bytes are, and nothing else; `None` if they are none, or if they name
    /// a host that is not among `hosts` hosts.
    pub fn decode(bytes: &[u8], hosts: u32) -> Option<Message> {
        let mut r = Reader { bytes, hosts };
        let message = match r.byte()? {
            0 => {
                let grant = r.grant()?;
                let hosts = match r.flag()? {
                    true => Some(r.set()?),
                    false => None,
                };
                Message::Join { grant, hosts }
            }
            1 => Message::Rejoin(r.address()?),
            2 => Message::Prove(r.address()?, r.set()?),
            3 => Message::Proven(r.address()?),
            4 => Message::Unproven(r.address()?),
            5 => Message::Share(r.grant()?, r.set()?),
            6 => Message::Withdraw(r.address()?),
            7 => Message::Leave(r.address()?),
            8 => Message::NoAddress(r.group()?, r.refusal()?),
            9 => Message::Joined(r.address()?),
            10 => Message::Refused(r.address()?, r.refusal()?),
            11 => Message::Lost(r.address()?),
            12 => Message::Withdrawn(r.address()?),
            13 => Message::Left(r.address()?),
            14 => Message::Proved(r.address()?, r.set()?),
            15 => Message::Unreached(r.address()?),
            16 => Message::Created {
                group: r.group()?,
                hosts: r.set()?,
                grant: match r.flag()? {
                    true => Some(r.grant()?),
                    false => None,
                },
            },
            17 => Message::PutBack(r.grant()?),
            18 => Message::Ended {
                group: r.group()?,
                lowest: HostId(r.word()?),
            },
            19 => {
                let count = r.word()? as usize;
                if count > SENT_MAX {
                    return None;
                }
                let counts = (0..count).map(|_| Some((r.group()?, r.long()?)));
                Message::Sent(counts.collect::<Option<_>>()?)
            }
            _ => return None,
        };
        r.bytes.is_empty().then_some(message)
    }
}

struct Writer<'a>(&'a mut Vec<u8>);

impl Writer<'_> {
    fn byte(&mut self, byte: u8) -> &mut Self {
        self.0.push(byte);
        self
    }

    fn word(&mut self, word: u32) -> &mut Self {
        self.0.extend(word.to_le_bytes());
        self
    }

    fn long(&mut self, long: u64) -> &mut Self {
        self.0.extend(long.to_le_bytes());
        self
    }

    fn grant(&mut self, grant: Grant) -> &mut Self {
        self.word(grant.address.0).word(grant.term)
    }

    fn refusal(&mut self, why: Refusal) -> &mut Self {
        self.byte(why.index() as u8)
    }

    fn set(&mut self, hosts: &HostSet) -> &mut Self {
        self.word(hosts.words().len() as u32);
        for &word in hosts.words() {
            self.long(word);
        }
        self
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    hosts: u32,
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.bytes.split_at_checked(N)?;
        self.bytes = rest;
        taken.try_into().ok()
    }

    fn byte(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn flag(&mut self) -> Option<bool> {
        match self.byte()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    fn word(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn long(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn address(&mut self) -> Option<AddressId> {
        self.word().map(AddressId)
    }

    fn group(&mut self) -> Option<GroupId> {
        self.word().map(GroupId)
    }

    fn grant(&mut self) -> Option<Grant> {
        let address = self.address()?;
        let term = self.word()?;
        Some(Grant { address, term })
    }

    fn refusal(&mut self) -> Option<Refusal> {
        Refusal::ALL.get(usize::from(self.byte()?)).copied()
    }

    fn set(&mut self) -> Option<HostSet> {
        let count = self.word()?;
        if count > self.hosts.div_ceil(64) {
            return None;
        }
        let words = (0..count).map(|_| self.long());
        let words = words.collect::<Option<Vec<u64>>>()?;
        // One set has one form.
        let canonical = words.last() != Some(&0);
        let set = HostSet::from_words(words);
        let known = set.iter().all(|host| host.0 < self.hosts);
        (canonical && known).then_some(set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(set: &HostSet) -> Vec<Message> {
        let (a, g) = (AddressId(7), GroupId(9));
        let grant = Grant {
            address: a,
            term: 3,
        };
        let mut all = vec![
            Message::Rejoin(a),
            Message::Prove(a, set.clone()),
            Message::Proven(a),
            Message::Unproven(a),
            Message::Share(grant, set.clone()),
            Message::Withdraw(a),
            Message::Leave(a),
            Message::Joined(a),
            Message::Lost(a),
            Message::Withdrawn(a),
            Message::Left(a),
            Message::Proved(a, set.clone()),
            Message::Unreached(a),
            Message::PutBack(grant),
            Message::Ended {
                group: g,
                lowest: HostId(2),
            },
            Message::Sent(vec![]),
            Message::Sent(vec![(g, u64::MAX); SENT_MAX]),
        ];
        for why in Refusal::ALL {
            all.extend([Message::NoAddress(g, why), Message::Refused(a, why)]);
        }
        for (hosts, grant) in [(None, None), (Some(set.clone()), Some(grant))] {
            let group = g;
            all.push(Message::Created {
                group,
                hosts: set.clone(),
                grant,
            });
            let grant = grant.unwrap_or(Grant {
                address: a,
                term: 0,
            });
            all.push(Message::Join { grant, hosts });
        }
        all
    }

    #[test]
    fn messages_are_read_as_they_are_written_and_nothing_else_is() {
        for hosts in [1, 63, 64, 65, 4096] {
            for message in all(&HostSet::first_hosts(hosts)) {
                let mut bytes = Vec::new();
                message.encode(&mut bytes);
                assert!(bytes.len() <= Message::size_max(hosts), "{message:?}");
                assert_eq!(Message::decode(&bytes, hosts), Some(message.clone()));
                for len in 0..bytes.len() {
                    assert_eq!(Message::decode(&bytes[..len], hosts), None, "{message:?}");
                }
                bytes.push(0);
                assert_eq!(Message::decode(&bytes, hosts), None, "{message:?}");
            }
        }
    }

    #[test]
    fn a_set_of_unknown_hosts_is_refused() {
        let mut bytes = Vec::new();
        Message::Proved(AddressId(1), HostSet::first_hosts(65)).encode(&mut bytes);
        assert!(Message::decode(&bytes, 65).is_some());
        assert_eq!(Message::decode(&bytes, 64), None);
    }

    #[test]
    fn arbitrary_bytes_do_not_panic() {
        let mut rng = crate::rng::Rng::new(3);
        for _ in 0..20_000 {
            let len = rng.below(40) as usize;
            let mut bytes: Vec<u8> = (0..len).map(|_| rng.bits() as u8).collect();
            if let Some(first) = bytes.first_mut() {
                *first %= 21;
            }
            if let Some(message) = Message::decode(&bytes, 100) {
                let mut again = Vec::new();
                message.encode(&mut again);
                assert_eq!(again, bytes);
            }
        }
    }
}
