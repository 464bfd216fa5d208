//! The receivers that serve, as their sender knows them (spec 5.15).

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::bootstrap::message::{Serving, ToReceiver};
use crate::bootstrap::{PORT_MIN, PeerKey, Ticket};
use crate::transport::NodeAddress;

/// A receiver that serves.
struct Offer {
    peer: PeerKey,
    serving: Serving,
    /// Whether it was there from the start. One that came late has less to give.
    is_whole: bool,
}

/// What a late receiver was told.
#[derive(Default)]
struct Told {
    /// Of whom, the last time.
    of: Vec<PeerKey>,
    times: u32,
}

/// The receivers that serve now, and to which late receivers the sender has named each of them.
#[derive(Default)]
pub struct Offers {
    all: Vec<Offer>,
    told: BTreeMap<PeerKey, Told>,
    /// Whether one has come or gone since late receivers were told.
    has_changed: bool,
}

impl Offers {
    /// Notes what a receiver offers that connects from `from`: it can offer its own address alone.
    /// False if it may not say that.
    pub fn add(
        &mut self,
        peer: PeerKey,
        (from, port, ticket): (SocketAddr, u16, Ticket),
        is_whole: bool,
    ) -> bool {
        if port < PORT_MIN || self.contains(peer) {
            return false;
        }
        let mut address = from;
        address.set_port(port);
        let serving = Serving {
            address: NodeAddress::from(address).for_others(),
            ticket,
        };
        self.all.push(Offer {
            peer,
            serving,
            is_whole,
        });
        self.has_changed = true;
        true
    }

    /// Whether this receiver serves.
    fn contains(&self, peer: PeerKey) -> bool {
        self.all.iter().any(|offer| offer.peer == peer)
    }

    /// Notes that a receiver serves no more, and asks no others any more.
    pub fn remove(&mut self, peer: PeerKey) {
        self.has_changed |= self.contains(peer);
        self.all.retain(|offer| offer.peer != peer);
        if let Some(told) = self.told.get_mut(&peer) {
            told.of.clear();
        }
    }

    /// How often a late receiver was told of those that serve.
    pub fn times(&self, late: PeerKey) -> u32 {
        self.told.get(&late).map_or(0, |told| told.times)
    }

    /// Whether a receiver that serves has come or gone since this was asked last.
    pub fn take_change(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }

    /// How many late receivers know of this one.
    fn known_by(&self, peer: PeerKey) -> usize {
        let told = self.told.values();
        told.filter(|told| told.of.contains(&peer)).count()
    }

    /// The receivers that the sender names to a late one: those that it has named already and that
    /// are still there, then others, first those that were there from the start, and among these
    /// those that the fewest know of. `None` if the late receiver knows that, or was told as often
    /// as it may be. `is_asking`: whether it is connected to those that it knows. If it is not, a
    /// receiver that is gone is nothing new to it.
    pub fn tell(&mut self, late: PeerKey, is_asking: bool) -> Option<Vec<Serving>> {
        let (before, times) = match self.told.get(&late) {
            Some(told) => (&told.of[..], told.times),
            None => (&[][..], 0),
        };
        let stays = before.iter().filter(|peer| self.contains(**peer));
        let mut of: Vec<PeerKey> = stays.copied().collect();
        if times == ToReceiver::PEERS_TIMES || of.len() == ToReceiver::PEERS_MAX {
            return None;
        }
        let is_new = |offer: &&Offer| offer.peer != late && !of.contains(&offer.peer);
        let mut others: Vec<&Offer> = self.all.iter().filter(is_new).collect();
        others.sort_by_cached_key(|offer| (!offer.is_whole, self.known_by(offer.peer)));
        let others = others.iter().map(|offer| offer.peer);
        let room = ToReceiver::PEERS_MAX - of.len();
        let staying = of.len();
        of.extend(others.take(room));
        if of == before || !is_asking && of.len() == staying {
            return None;
        }
        let serving = |peer: &PeerKey| self.all.iter().find(|offer| offer.peer == *peer);
        let told = of.iter().filter_map(serving).map(|offer| offer.serving);
        let told = told.collect();
        let times = times + 1;
        self.told.insert(late, Told { of, times });
        Some(told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_offers_its_own_address_and_the_late_are_spread() {
        let mut offers = Offers::default();
        let from: SocketAddr = "10.0.0.7:5000".parse().unwrap();
        let ticket = Ticket::random().unwrap();
        let peer = PeerKey::numbered;
        let offer = |port| (from, port, ticket);
        assert!(!offers.add(peer(1), offer(1023), true), "a service's port");
        for n in 1..=6 {
            assert!(offers.add(peer(n), offer(2000 + n as u16), true));
        }
        assert!(!offers.add(peer(1), offer(3000), true), "it has one");
        let ports = |told: Option<Vec<Serving>>| -> Vec<u16> {
            let at = told.into_iter().flatten();
            at.map(|serving| {
                let at = serving.address.ip().unwrap();
                assert_eq!(at.ip(), from.ip());
                at.port()
            })
            .collect()
        };
        assert_eq!(ports(offers.tell(peer(1), true)), [2002, 2003, 2004, 2005]);
        assert_eq!(ports(offers.tell(peer(9), true)), [2001, 2006, 2002, 2003]);
        assert!(offers.take_change() && !offers.take_change());
        assert_eq!(offers.tell(peer(9), true), None, "it knows that");
        // One that is gone makes room for another, if there is one.
        offers.remove(peer(2));
        assert!(!offers.contains(peer(2)) && offers.take_change());
        assert_eq!(ports(offers.tell(peer(9), true)), [2001, 2006, 2003, 2004]);
        assert_eq!(ports(offers.tell(peer(1), true)), [2003, 2004, 2005, 2006]);
        // Nobody was told of one that came late itself, and still it comes last.
        assert!(offers.add(peer(7), offer(2007), false));
        assert_eq!(ports(offers.tell(peer(8), true)), [2001, 2005, 2003, 2004]);
        offers.remove(peer(3));
        offers.remove(peer(4));
        assert_eq!(ports(offers.tell(peer(8), true)), [2001, 2005, 2006, 2007]);
        offers.remove(peer(1));
        assert_eq!(ports(offers.tell(peer(8), true)), [2005, 2006, 2007]);
        // It is told so, too, when nobody is left.
        (5..=7).for_each(|n| offers.remove(peer(n)));
        assert_eq!(offers.tell(peer(8), true), Some(Vec::new()));
        assert_eq!(offers.tell(peer(8), true), None);
        // A receiver that comes and goes all the time costs a late receiver a few messages.
        let mut told = 0;
        for n in 10..30 {
            assert!(offers.add(peer(n), offer(3000), true));
            told += u32::from(offers.tell(peer(40), true).is_some());
            offers.remove(peer(n));
        }
        assert_eq!(told, ToReceiver::PEERS_TIMES);
        assert_eq!(offers.times(peer(40)), told);
    }

    #[test]
    fn one_that_asks_nobody_is_told_of_those_that_come() {
        let mut offers = Offers::default();
        let from: SocketAddr = "10.0.0.7:5000".parse().unwrap();
        let peer = PeerKey::numbered;
        let comes = |offers: &mut Offers, n| {
            let ticket = Ticket::random().unwrap();
            assert!(offers.add(peer(n), (from, 4000, ticket), true));
        };
        assert_eq!(
            (offers.tell(peer(9), false), offers.times(peer(9))),
            (None, 0)
        );
        comes(&mut offers, 1);
        comes(&mut offers, 2);
        assert_eq!(offers.tell(peer(9), false).unwrap().len(), 2);
        offers.remove(peer(1));
        assert_eq!(offers.tell(peer(9), false), None, "one is gone");
        comes(&mut offers, 3);
        assert_eq!(offers.tell(peer(9), false).unwrap().len(), 2);
        // A demoted receiver was told as often as before.
        offers.remove(peer(9));
        assert_eq!(offers.times(peer(9)), 2);
    }
}
