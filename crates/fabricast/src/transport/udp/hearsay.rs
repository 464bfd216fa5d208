//! Addresses that other nodes have told.
//!
//! A node that tells a receiver where its peers are could make the receiver send to any address.
//! So, when something is to go to such an address for the first time, only one datagram of [`LEN`]
//! bytes with a random token goes there. Nothing else goes there before the token has come back
//! from that address (spec 6.10). Many nodes may be said to be on one host. Of the nodes on one
//! host that have not answered, at most [`HOST`] are asked, unless there is a further reason.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use fabricast_proto::NodeId;

/// Length of a question and of its answer, in bytes: less than an address takes in `start`.
pub const LEN: usize = 10;
/// First byte of a question and of an answer. No datagram of the wire format begins with it.
const MARK: u8 = 0xfb;
const QUESTION: u8 = 1;
const ANSWER: u8 = 2;
const TOKEN: usize = 8;
/// Largest number of nodes of one IP address that are asked and have not answered. The next one
/// must wait for an answer from that address, or for [`Hearsay::again`].
pub const HOST: usize = 4;
/// Largest number of datagrams that wait to be sent. More are dropped.
const OUTBOX: usize = 64;

const _: () = assert!(LEN == 2 + TOKEN && MARK != fabricast_proto::wire::VERSION);

struct Candidate {
    address: SocketAddr,
    state: State,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    /// Nothing was to go to the node yet.
    Unused,
    /// Something was to go to the node, but other nodes of its host must answer first.
    Held,
    /// The node was asked with this token.
    Asked([u8; TOKEN]),
}

/// Nodes whose addresses are known only from hearsay.
#[derive(Default)]
pub(super) struct Hearsay {
    candidates: BTreeMap<NodeId, Candidate>,
    /// The candidates by their addresses. The first node that is said to be at an address counts.
    places: BTreeMap<(IpAddr, u16), NodeId>,
    /// Number of candidates of each IP address that have been asked.
    asked: BTreeMap<IpAddr, usize>,
    outbox: Vec<(SocketAddr, [u8; LEN])>,
    answered: Vec<(NodeId, SocketAddr)>,
}

impl Hearsay {
    /// Takes note that `node` is said to be at `address`.
    pub fn insert(&mut self, node: NodeId, address: SocketAddr) {
        self.forget(node);
        let state = State::Unused;
        self.candidates.insert(node, Candidate { address, state });
        self.places.entry(plain(address)).or_insert(node);
    }

    /// Removes a candidate.
    fn remove(&mut self, node: NodeId) -> Option<Candidate> {
        let candidate = self.candidates.remove(&node)?;
        let place = plain(candidate.address);
        if self.places.get(&place) == Some(&node) {
            self.places.remove(&place);
        }
        Some(candidate)
    }

    pub fn forget(&mut self, node: NodeId) {
        if let Some(candidate) = self.remove(node) {
            self.no_longer_asked(candidate);
        }
    }

    fn no_longer_asked(&mut self, candidate: Candidate) {
        let (ip, _) = plain(candidate.address);
        if let (State::Asked(_), Some(count)) = (candidate.state, self.asked.get_mut(&ip)) {
            *count -= 1;
            if *count == 0 {
                self.asked.remove(&ip);
            }
        }
    }

    /// Takes note that something is to go to `node`. The first time, it asks the node.
    pub fn wanted(&mut self, node: NodeId) {
        let candidate = self.candidates.get_mut(&node);
        let Some(candidate) = candidate.filter(|c| c.state == State::Unused) else {
            return;
        };
        let (ip, _) = plain(candidate.address);
        if self.asked.get(&ip).is_some_and(|count| *count >= HOST) {
            candidate.state = State::Held;
        } else {
            self.ask(node);
        }
    }

    /// Asks `node` once more with the same token, if it has not answered, or for the first time if
    /// it is held.
    pub fn again(&mut self, node: NodeId) {
        match self.candidates.get(&node).map(|c| (c.address, c.state)) {
            Some((address, State::Asked(token))) => {
                put(&mut self.outbox, address, QUESTION, &token);
            }
            Some((_, State::Held)) => self.ask(node),
            Some((_, State::Unused)) | None => {}
        }
    }

    /// Asks `node` for the first time.
    fn ask(&mut self, node: NodeId) {
        let mut token = [0; TOKEN];
        let flags = rustix::rand::GetRandomFlags::empty();
        if let Some(candidate) = self.candidates.get_mut(&node)
            && rustix::rand::getrandom(&mut token, flags).is_ok()
        {
            candidate.state = State::Asked(token);
            *self.asked.entry(plain(candidate.address).0).or_default() += 1;
            put(&mut self.outbox, candidate.address, QUESTION, &token);
        }
    }

    /// The nodes that have been asked, or must be, and have not answered.
    pub fn silent(&self) -> impl Iterator<Item = NodeId> + '_ {
        let silent = |c: &Candidate| c.state != State::Unused;
        let silent = self.candidates.iter().filter(move |(_, c)| silent(c));
        silent.map(|(node, _)| *node)
    }

    /// The first node that is said to be at the address `from`.
    pub fn source(&self, from: SocketAddr) -> Option<NodeId> {
        self.places.get(&plain(from)).copied()
    }

    /// Takes a datagram if it is a question or an answer. Only a node that is `known`, or known
    /// from hearsay, gets an answer.
    pub fn take(&mut self, from: Option<SocketAddr>, bytes: &[u8], known: bool) -> bool {
        let (&[MARK, kind, ref token @ ..], Some(from)) = (bytes, from) else {
            return false;
        };
        let Ok(token): Result<[u8; TOKEN], _> = token.try_into() else {
            return false;
        };
        let here = self.source(from);
        match kind {
            QUESTION if known || here.is_some() => {
                put(&mut self.outbox, from, ANSWER, &token);
            }
            ANSWER => {
                let asked = |node: &NodeId| {
                    let candidate = self.candidates.get(node);
                    candidate.is_some_and(|c| c.state == State::Asked(token))
                };
                if let Some(node) = here.filter(asked)
                    && let Some(candidate) = self.remove(node)
                {
                    self.answered.push((node, candidate.address));
                    self.no_longer_asked(candidate);
                    self.next_of(from.ip());
                }
            }
            _ => {}
        }
        true
    }

    /// Asks another held node of `ip`, because one there has answered.
    fn next_of(&mut self, ip: IpAddr) {
        let held = |c: &Candidate| c.state == State::Held && c.address.ip() == ip;
        let next = self.candidates.iter().find(|(_, c)| held(c));
        if let Some(next) = next.map(|(node, _)| *node) {
            self.ask(next);
        }
    }

    /// Whether there is nothing to send and no answer to report.
    pub fn is_idle(&self) -> bool {
        self.outbox.is_empty() && self.answered.is_empty()
    }

    /// The datagrams to send now.
    pub fn outgoing(&mut self) -> Vec<(SocketAddr, [u8; LEN])> {
        std::mem::take(&mut self.outbox)
    }

    /// The nodes that have answered, and their addresses.
    pub fn proven(&mut self) -> Vec<(NodeId, SocketAddr)> {
        std::mem::take(&mut self.answered)
    }
}

/// The address without the scope of an IPv6 address, which is this host's number of an interface.
fn plain(address: SocketAddr) -> (IpAddr, u16) {
    (address.ip(), address.port())
}

fn put(outbox: &mut Vec<(SocketAddr, [u8; LEN])>, to: SocketAddr, kind: u8, token: &[u8; TOKEN]) {
    if outbox.len() < OUTBOX {
        let mut bytes = [MARK; LEN];
        bytes[1] = kind;
        bytes[2..].copy_from_slice(token);
        outbox.push((to, bytes));
    }
}
