//! Admission of receivers by their keys: the sender lets in no client that does not show that it
//! knows the key of the receiver that it claims to be (spec 5.9).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use crate::bootstrap::message::{ToReceiver, ToSender};
use crate::bootstrap::psk::{Exchange, Mac, Nonce};
use crate::bootstrap::{Event, PeerKey, PreSharedKey, Rendezvous};
use crate::error::Error;
use crate::transfer::sender::receiver_table::Member;

/// How long a client may take to show that it knows its key.
const TIME: Duration = Duration::from_secs(10);
/// Most clients that have not shown their keys.
const WAITING_MAX: usize = 1024;
/// Why a client is refused that shows no key, a wrong one or a used one; it learns no more.
const UNKNOWN: &str = "this transfer is for receivers that its sender has started, and this one \
                       did not show that it knows its key";

/// The keys of the receivers that are still to come, and the clients that have not shown theirs.
pub struct Authenticator {
    session: u64,
    /// By the receivers' names. `None`: receivers need no keys.
    keys: Option<BTreeMap<String, PreSharedKey>>,
    waiting: Vec<Waiting>,
    /// The connections whose receivers have shown their keys.
    known: BTreeSet<PeerKey>,
}

/// A client that has to show that it knows its key.
struct Waiting {
    member: Member,
    exchange: Exchange,
}

/// What follows from what a client has said.
pub enum Step {
    /// The sender waits for what the client says next.
    Wait,
    /// The client may be admitted. The MAC shows it that the sender knows its key.
    Consider(Member, Option<Mac>),
    /// The client is refused for this reason.
    Refuse(Member, String),
}

impl Authenticator {
    /// Lets in these receivers of the transfer `session`, each once by its name and its key, or any
    /// receiver without keys.
    pub fn new(session: u64, keys: Option<BTreeMap<String, PreSharedKey>>) -> Authenticator {
        Authenticator {
            session,
            keys,
            waiting: Vec::new(),
            known: BTreeSet::new(),
        }
    }

    /// Takes a client that has said hello, and has it show its key if receivers have keys. At most
    /// `places` clients may be waiting; the oldest gives its place to the next.
    pub fn greet(
        &mut self,
        member: Member,
        places: usize,
        rendezvous: &Rendezvous,
    ) -> Result<Step, Error> {
        if self.keys.is_none() {
            return Ok(Step::Consider(member, None));
        }
        let Some(receiver) = member.hello.nonce else {
            return Ok(Step::Refuse(member, UNKNOWN.into()));
        };
        let exchange = Exchange {
            session: self.session,
            receiver,
            sender: Nonce::random()?,
        };
        let authenticate = ToReceiver::Authenticate {
            session: exchange.session,
            nonce: exchange.sender,
        };
        rendezvous.say(member.peer, authenticate);
        self.waiting.push(Waiting { member, exchange });
        match self.waiting.len() > places.clamp(1, WAITING_MAX) {
            true => Ok(Step::Refuse(self.waiting.remove(0).member, UNKNOWN.into())),
            false => Ok(Step::Wait),
        }
    }

    /// Takes an event of a client that has to show its key, and gives back that of any other.
    pub fn hear(&mut self, event: Event, rendezvous: &Rendezvous) -> ControlFlow<Step, Event> {
        let gives_up = |message: &ToSender| matches!(message, ToSender::Failed { .. });
        match event {
            Event::Said {
                peer,
                message: ToSender::Response { mac },
            } if self.awaits(peer) => ControlFlow::Break(self.respond(peer, mac)),
            Event::Said { peer, ref message } if !gives_up(message) => match self.take(peer) {
                Some((member, _)) => {
                    ControlFlow::Break(Step::Refuse(member, message.out_of_turn()))
                }
                None => ControlFlow::Continue(event),
            },
            Event::Said { peer, .. } | Event::Lost { peer, .. } if self.take(peer).is_some() => {
                rendezvous.close(peer);
                ControlFlow::Break(Step::Wait)
            }
            _ => ControlFlow::Continue(event),
        }
    }

    /// Takes a client's response. Only the right one leads on, and each key only once.
    fn respond(&mut self, peer: PeerKey, mac: Mac) -> Step {
        let Some((member, exchange)) = self.take(peer) else {
            return Step::Wait;
        };
        let keys = self.keys.get_or_insert_default();
        let key = keys.get(&member.name);
        let Some(key) = key.filter(|key| key.receiver_mac(&exchange) == mac) else {
            return Step::Refuse(member, UNKNOWN.into());
        };
        let own = key.sender_mac(&exchange);
        keys.remove(&member.name);
        self.known.insert(peer);
        Step::Consider(member, Some(own))
    }

    /// Whether a client has to show its key.
    fn awaits(&self, peer: PeerKey) -> bool {
        self.waiting.iter().any(|w| w.member.peer == peer)
    }

    /// Removes a client that has not shown its key.
    fn take(&mut self, peer: PeerKey) -> Option<(Member, Exchange)> {
        let at = self.waiting.iter().position(|w| w.member.peer == peer)?;
        let waiting = self.waiting.remove(at);
        Some((waiting.member, waiting.exchange))
    }

    /// Removes the clients that take too long to show their keys.
    pub fn expire(&mut self, now: Instant) -> Vec<Member> {
        let slow = |w: &mut Waiting| now.duration_since(w.member.since) > TIME;
        let slow = self.waiting.extract_if(.., slow);
        slow.map(|waiting| waiting.member).collect()
    }

    /// The name of a client in the sender's table. Without its key, a client may claim any name, so
    /// its address stands beside it.
    pub fn name(&self, member: &Member) -> String {
        let name = &member.hello.name;
        match self.keys.is_none() || self.known.contains(&member.peer) {
            true => name.clone(),
            false => format!("{name}@{}", member.address.ip()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::sync::Arc;

    use super::*;
    use crate::bootstrap::WorkerPlan;
    use crate::bootstrap::message::{Hello, VERSION};
    use crate::object::testing::scratch;
    use crate::object::{PackIndex, Selection, SourceSet};
    use crate::waker::Waker;

    /// Calls `act` with the connections of a sender that nobody has connected to.
    fn with_rendezvous(act: impl FnOnce(&Rendezvous)) {
        let dir = scratch();
        std::fs::write(dir.join("f"), "bytes").unwrap();
        let set = SourceSet::list(&[dir.join("f")], &Selection::default(), &mut |_| ()).unwrap();
        let index = Arc::new(PackIndex::new(Arc::new(set)));
        let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let plan = WorkerPlan::default();
        act(&Rendezvous::open(&[here], 0, index, plan, Waker::new().unwrap()).unwrap());
        std::fs::remove_dir_all(dir).unwrap();
    }

    fn client(name: &str, nonce: Option<Nonce>) -> Member {
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let hello = Hello {
            stream: false,
            discard: false,
            version: VERSION,
            name: name.into(),
            address: (Ipv4Addr::UNSPECIFIED.into(), 1).into(),
            datagram: 1472,
            window_bytes: 1 << 24,
            nonce,
        };
        Member::new(PeerKey::default(), at, at, hello, Instant::now())
    }

    #[test]
    fn a_key_leads_to_one_admission_and_a_wrong_one_uses_none_up() {
        let [key, other] = [(); 2].map(|()| PreSharedKey::random().unwrap());
        let keys = BTreeMap::from([("a".to_owned(), key.clone())]);
        let mut authenticator = Authenticator::new(7, Some(keys));
        let nonce = Nonce::random().unwrap();
        with_rendezvous(|rendezvous| {
            let mut respond = |key: &PreSharedKey| {
                let member = client("a", Some(nonce));
                let peer = member.peer;
                let step = authenticator.greet(member, 9, rendezvous).unwrap();
                assert!(matches!(step, Step::Wait) && authenticator.awaits(peer));
                let exchange = authenticator.waiting[0].exchange;
                assert_eq!((exchange.session, exchange.receiver), (7, nonce));
                match authenticator.respond(peer, key.receiver_mac(&exchange)) {
                    Step::Consider(_, Some(own)) => {
                        assert_eq!(own, key.sender_mac(&exchange));
                        true
                    }
                    Step::Refuse(..) => false,
                    _ => panic!("nothing was decided"),
                }
            };
            assert!(!respond(&other));
            assert!(respond(&key));
            assert!(!respond(&key));
            let bare = authenticator.greet(client("a", None), 9, rendezvous);
            assert!(matches!(bare.unwrap(), Step::Refuse(..)));
        });
    }

    #[test]
    fn clients_without_a_key_wait_for_a_bounded_time_in_bounded_number() {
        let mut authenticator = Authenticator::new(7, Some(BTreeMap::new()));
        let nonce = Some(Nonce::random().unwrap());
        with_rendezvous(|rendezvous| {
            let mut greet = |name: &str, places| {
                let step = authenticator.greet(client(name, nonce), places, rendezvous);
                match step.unwrap() {
                    Step::Refuse(member, _) => Some(member.name),
                    _ => None,
                }
            };
            assert_eq!(greet("a", 2), None);
            assert_eq!(greet("b", 2), None);
            assert_eq!(greet("c", 2), Some("a".into()));
            let begun = authenticator.waiting[0].member.since;
            assert_eq!(authenticator.expire(begun + TIME).len(), 0);
            let late = authenticator.expire(begun + 2 * TIME);
            assert_eq!(late.len(), 2);
            assert_eq!(authenticator.name(&late[0]), "b@127.0.0.1");
        });
    }
}
