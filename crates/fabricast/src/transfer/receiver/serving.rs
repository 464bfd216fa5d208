//! A receiver that serves: it gives late receivers what it has stored (spec 5.15).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use super::pack_table::packs_max;
use super::stored_headers::StoredHeaders;
use super::stored_packs::StoredPacks;
use super::storing::ReadBack;
use crate::bootstrap::message::{ToReceiver, ToSender, Welcome};
use crate::bootstrap::{Control, Event, PeerKey, Rendezvous, Ticket, WorkerPlan};
use crate::error::Error;
use crate::object::LEN_MAX;
use crate::waker::Waker;

/// Guests that are served at once, at most. Each may have a block in memory.
const GUESTS_MAX: usize = 16;
/// This receiver serves at most so many guests with the same address at once. So one host does not
/// keep all others out.
const PER_ADDRESS: usize = 4;

/// The late receivers that this receiver serves, its *guests*.
pub struct Serving {
    rendezvous: Rendezvous,
    guests: BTreeMap<PeerKey, IpAddr>,
}

impl Serving {
    /// Listens at a free port of the address by which the sender reaches this receiver, and tells
    /// the sender. `headers` and `files`: the packs of the set, which `welcome` describes.
    pub fn open(
        control: &mut Control,
        welcome: &Welcome,
        headers: Arc<StoredHeaders>,
        files: ReadBack,
        waker: &Waker,
    ) -> Result<Serving, Error> {
        let failed = |e| Error::io("listening for late receivers", e);
        // Each block is one of a pack, and each pack has at most one that is not full.
        let parts = 2 * packs_max(welcome.entries, Some(welcome.len.unwrap_or(LEN_MAX))) as u64;
        let packs = StoredPacks::new(headers, files, parts);
        let mut at = control.local().map_err(failed)?;
        at.set_port(0);
        // One thread reads for all guests, so that at most one block is read between packs that are
        // stored.
        let plan = WorkerPlan {
            receivers_per_worker: GUESTS_MAX,
            workers_max: Some(1),
            cpus: None,
        };
        let ticket = Ticket::random()?;
        let opened = Rendezvous::open_for_guests(at, ticket, Arc::new(packs), plan, waker.clone());
        let rendezvous = opened.map_err(failed)?;
        let port = rendezvous.address().port();
        let said = control.say(&ToSender::Serves { port, ticket });
        said.map_err(|e| Error::io("talking to the sender", e))?;
        Ok(Serving {
            rendezvous,
            guests: BTreeMap::new(),
        })
    }

    /// Why a guest at this address cannot be served, if it cannot.
    fn objection(&self, address: IpAddr) -> Option<&'static str> {
        let of_it = self.guests.values().filter(|at| **at == address).count();
        match () {
            () if self.guests.len() >= GUESTS_MAX => Some("it serves as many as it can"),
            () if of_it >= PER_ADDRESS => Some("it serves as many of this address as it may"),
            () => None,
        }
    }

    /// Admits guests that have shown the ticket, and forgets those that are gone.
    pub fn turn(&mut self) {
        while let Some(event) = self.rendezvous.event() {
            match event {
                Event::Guest { peer, address } => match self.objection(address.ip()) {
                    None => {
                        self.guests.insert(peer, address.ip());
                        self.rendezvous.say(peer, ToReceiver::Admitted);
                    }
                    Some(reason) => {
                        let reason = reason.into();
                        self.rendezvous.say(peer, ToReceiver::Refused { reason });
                        self.rendezvous.close(peer);
                    }
                },
                // A guest requests packs, and says nothing else.
                Event::Said { peer, .. } => {
                    self.rendezvous.close(peer);
                    self.guests.remove(&peer);
                }
                Event::Lost { peer, .. } => _ = self.guests.remove(&peer),
                Event::Hello { .. }
                | Event::Refused { .. }
                | Event::Frame { .. }
                | Event::Pending(_) => {}
            }
        }
    }
}
