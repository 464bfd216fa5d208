//! Addresses of which others have told.
//!
//! Whoever tells a receiver where its peers are could have it send to anybody. So such an address
//! gets one datagram of [`LEN`] bytes with a random token, when something is to go there for the
//! first time, and nothing else before the token has come back from that address (spec 6.10).

use std::collections::BTreeMap;
use std::net::SocketAddr;

use fabricast_proto::NodeId;

/// Length of a question and of its answer, in bytes: less than an address takes in `start`.
pub const LEN: usize = 10;
/// What they begin with; no datagram of the wire format does.
const MARK: u8 = 0xfb;
const QUESTION: u8 = 1;
const ANSWER: u8 = 2;
const TOKEN: usize = 8;
/// Datagrams that wait to be sent; more are not answered.
const OUTBOX: usize = 64;

const _: () = assert!(LEN == 2 + TOKEN && MARK != fabricast_proto::wire::VERSION);

struct Candidate {
    address: SocketAddr,
    /// What was asked, once it was.
    token: Option<[u8; TOKEN]>,
}

/// Nodes that are known from hearsay.
#[derive(Default)]
pub(super) struct Hearsay {
    candidates: BTreeMap<NodeId, Candidate>,
    outbox: Vec<(SocketAddr, [u8; LEN])>,
    answered: Vec<(NodeId, SocketAddr)>,
}

impl Hearsay {
    /// `node` is said to be at `address`.
    pub fn insert(&mut self, node: NodeId, address: SocketAddr) {
        let token = None;
        self.candidates.insert(node, Candidate { address, token });
    }

    pub fn forget(&mut self, node: NodeId) {
        self.candidates.remove(&node);
    }

    /// Something was to go to `node`: the first time, it is asked.
    pub fn wanted(&mut self, node: NodeId) {
        let candidate = self.candidates.get_mut(&node);
        if let Some(candidate) = candidate.filter(|c| c.token.is_none()) {
            let mut token = [0; TOKEN];
            let flags = rustix::rand::GetRandomFlags::empty();
            if rustix::rand::getrandom(&mut token, flags).is_ok() {
                candidate.token = Some(token);
                put(&mut self.outbox, candidate.address, QUESTION, &token);
            }
        }
    }

    /// `node`, which has not answered, is asked once more, in the same words.
    pub fn again(&mut self, node: NodeId) {
        let candidate = self.candidates.get(&node);
        if let Some((address, token)) = candidate.and_then(|c| Some((c.address, c.token?))) {
            put(&mut self.outbox, address, QUESTION, &token);
        }
    }

    /// Those who have been asked and have not answered.
    pub fn silent(&self) -> impl Iterator<Item = NodeId> + '_ {
        let asked = self.candidates.iter().filter(|(_, c)| c.token.is_some());
        asked.map(|(node, _)| *node)
    }

    /// Whether `node` is said to be where something came from.
    pub fn is(&self, node: NodeId, from: Option<SocketAddr>) -> bool {
        let candidate = self.candidates.get(&node);
        candidate.is_some_and(|c| Some(plain(c.address)) == from.map(plain))
    }

    /// Takes a datagram if it is a question or an answer. Only those are answered of whom somebody
    /// has told, or who are `known` already.
    pub fn take(
        &mut self,
        from: Option<SocketAddr>,
        bytes: &[u8],
        known: impl Fn(SocketAddr) -> bool,
    ) -> bool {
        let (&[MARK, kind, ref token @ ..], Some(from)) = (bytes, from) else {
            return false;
        };
        let Ok(token): Result<[u8; TOKEN], _> = token.try_into() else {
            return false;
        };
        let mut here = self.candidates.iter();
        match kind {
            QUESTION if known(from) || here.any(|(_, c)| plain(c.address) == plain(from)) => {
                put(&mut self.outbox, from, ANSWER, &token);
            }
            ANSWER => {
                let right =
                    |c: &Candidate| plain(c.address) == plain(from) && c.token == Some(token);
                let node = here.find(|(_, c)| right(c)).map(|(node, _)| *node);
                if let Some(node) = node
                    && let Some(candidate) = self.candidates.remove(&node)
                {
                    self.answered.push((node, candidate.address));
                }
            }
            _ => {}
        }
        true
    }

    /// Whether there is anything to send or to believe.
    pub fn is_idle(&self) -> bool {
        self.outbox.is_empty() && self.answered.is_empty()
    }

    /// What is to be sent now.
    pub fn outgoing(&mut self) -> Vec<(SocketAddr, [u8; LEN])> {
        std::mem::take(&mut self.outbox)
    }

    /// Who has answered, and from where.
    pub fn proven(&mut self) -> Vec<(NodeId, SocketAddr)> {
        std::mem::take(&mut self.answered)
    }
}

/// Without the scope of an IPv6 address, which is a number of our own.
fn plain(address: SocketAddr) -> (std::net::IpAddr, u16) {
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
