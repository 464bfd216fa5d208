//! The receivers that serve, as their sender knows them (spec 5.15).

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
    /// Late receivers that were told of it.
    told: usize,
}

/// All receivers that serve and are there.
#[derive(Default)]
pub struct Offers(Vec<Offer>);

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
        self.0.push(Offer {
            peer,
            serving,
            is_whole,
            told: 0,
        });
        true
    }

    /// Whether this receiver serves.
    fn contains(&self, peer: PeerKey) -> bool {
        self.0.iter().any(|offer| offer.peer == peer)
    }

    /// Notes that a receiver serves no more.
    pub fn remove(&mut self, peer: PeerKey) {
        self.0.retain(|offer| offer.peer != peer);
    }

    /// The receivers that the sender names to a late one: not itself, first those that were there
    /// from the start, and among these those that it has named to the fewest.
    pub fn tell(&mut self, late: PeerKey) -> Vec<Serving> {
        let others = self.0.iter_mut().filter(|offer| offer.peer != late);
        let mut others: Vec<&mut Offer> = others.collect();
        others.sort_by_key(|offer| (!offer.is_whole, offer.told));
        let told = others.into_iter().take(ToReceiver::PEERS_MAX);
        told.map(|offer| {
            offer.told += 1;
            offer.serving
        })
        .collect()
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
        let ports = |told: Vec<Serving>| -> Vec<u16> {
            let at = told.iter().map(|serving| serving.address.ip().unwrap());
            at.map(|at| {
                assert_eq!(at.ip(), from.ip());
                at.port()
            })
            .collect()
        };
        assert_eq!(ports(offers.tell(peer(1))), [2002, 2003, 2004, 2005]);
        assert_eq!(ports(offers.tell(peer(9))), [2001, 2006, 2002, 2003]);
        offers.remove(peer(2));
        assert!(!offers.contains(peer(2)));
        assert_eq!(ports(offers.tell(peer(9))), [2001, 2004, 2005, 2006]);
        // Nobody was told of one that came late itself, and still it comes last.
        assert!(offers.add(peer(7), offer(2007), false));
        offers.remove(peer(3));
        offers.remove(peer(4));
        assert_eq!(ports(offers.tell(peer(9))), [2001, 2005, 2006, 2007]);
        offers.remove(peer(1));
        assert_eq!(ports(offers.tell(peer(9))), [2005, 2006, 2007]);
    }
}
