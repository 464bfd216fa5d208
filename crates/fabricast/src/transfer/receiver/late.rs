//! A receiver that comes late, or was demoted: how its session joins the group and learns what it
//! lacks (spec 5.10).

use std::time::Instant;

use fabricast_proto::{Admission, Command, Seq, Slot};

use super::catching_up::Next;
use super::driver::join_address;
use super::errors::{refused, strange, strange_packs};
use super::pack_table::PackState;
use super::peers::{Come, Peers};
use super::session::ReceiverSession;
use super::storing::Proof;
use crate::bootstrap::message::{Join, Serving, ToSender};
use crate::error::Error;
use crate::object::PackRecord;
use crate::text::escaped;
use crate::transfer::events::RecvEvent;
use crate::transfer::{ADDRESS, ALL, ROOT};

impl ReceiverSession<'_> {
    /// Joins the group, from the next pack on.
    pub(super) fn join(&mut self, join: Join) -> Result<(), Error> {
        if std::mem::take(&mut self.has_left)
            && let Some(group) = &self.group
        {
            join_address(&mut self.driver, group, self.tell);
        }
        let admission = Admission {
            slot: Slot {
                index: join.slot,
                epoch: join.epoch,
            },
            first: Seq(join.first),
            receivers: join.receivers,
        };
        let command = Command::GroupJoin {
            group: ALL,
            sender: ROOT,
            payload_size: self.payload_size,
            admission,
        };
        let joined = self.driver.command(self.clock.now(), command);
        joined.map_err(refused)?;
        if self.is_ordered() {
            return Err(strange()); // it is never late, and gets nothing out of order
        }
        self.catching_up.join(join.packs);
        match self.packs.join(join.packs) {
            true => Ok(()),
            false => Err(strange_packs()),
        }
    }

    /// Leaves the group, since the sender says so. What was posted has not come.
    pub(super) fn leave_group(&mut self) -> Result<(), Error> {
        if self.is_ordered() {
            return Err(strange()); // it takes nothing out of order, and the sender knows that
        }
        let left = Command::GroupRemove(ALL);
        let left = self.driver.command(self.clock.now(), left);
        left.map_err(refused)?;
        for posted in self.posted.drain(..) {
            self.packs.set(posted.number, PackState::Lacking);
            self.lent.push((posted.op, 0));
        }
        self.leave_comparison();
        self.leave_address();
        self.catching_up.leave();
        (self.tell)(RecvEvent::Demoted);
        Ok(())
    }

    /// Leaves the group's address, so that what the others are sent does not fill this host's link.
    pub(super) fn leave_address(&mut self) {
        if self.group.is_some() && !std::mem::replace(&mut self.has_left, true) {
            self.driver.transport().leave(ADDRESS);
        }
    }

    /// Takes the receivers that serve now, as the sender tells. A sender that was found by its
    /// announcement may be anybody: it could turn this receiver on third hosts. For the same reason
    /// any sender may tell of them a few times.
    pub(super) fn told_peers(&mut self, told: &[Serving]) -> Result<(), Error> {
        if !self.catching_up.told() {
            return Err(strange());
        }
        if self.is_found {
            return Ok(());
        }
        let local = self.control.local();
        let local = local.map_err(|e| Error::PeerLost(format!("the sender is gone: {e}")))?;
        let peers = self.peers.take();
        let mut peers = peers.unwrap_or_else(|| Peers::new(local, &self.waker));
        peers.tell(told);
        self.peers = Some(peers);
        Ok(())
    }

    /// Goes on with joining.
    pub(super) fn catch_up(&mut self) -> Result<(), Error> {
        self.take_from_peers()?;
        let is_repairing = self.repair.is_some() || self.asked_header.is_some();
        let has_peers = self.peers.as_ref().is_some_and(|peers| !peers.is_done());
        let next = self
            .catching_up
            .next(&mut self.packs, is_repairing, has_peers)?;
        match next {
            None => {}
            Some(Next::List(need)) => self.say(&ToSender::Need(need))?,
            Some(Next::Page(number, pack, hash)) => {
                self.storing.arrived(number, pack, Proof::Hash(hash));
            }
            Some(Next::Ask(messages, packs)) => {
                messages.iter().try_for_each(|has| self.say(has))?;
                if let Some(peers) = &mut self.peers {
                    peers.want(self.packs.lacking(packs));
                    self.fresh = true;
                }
            }
            Some(Next::Has(messages, event)) => {
                event.into_iter().for_each(&mut *self.tell);
                messages.iter().try_for_each(|has| self.say(has))?;
            }
        }
        Ok(())
    }

    /// Stores what peers have given, and requests more of them. Parts with them when they have
    /// nothing more, and when all packs have been announced.
    fn take_from_peers(&mut self) -> Result<(), Error> {
        let Some(mut peers) = self.peers.take() else {
            return Ok(());
        };
        while let Some(come) = peers.come() {
            match come {
                Come::Pack(number, pack, header) => {
                    self.moved = Instant::now();
                    self.statistics.peer_bytes += pack.bytes.len() as u64;
                    self.packs.set(number, PackState::Coming);
                    self.storing.arrived(number, pack, Proof::Header(header));
                    let (runs, more, told) = (vec![(number, number + 1)], true, 0);
                    self.say(&ToSender::Has { runs, more, told })?;
                }
                Come::Left(peer, reason) => {
                    let reason = escaped(&reason).into_owned();
                    (self.tell)(RecvEvent::PeerLeft { peer, reason });
                }
            }
        }
        // The sender has time now for what is lacking.
        if self.end.is_some() {
            return Ok(());
        }
        peers.arrived(self.driver.node().counters().received);
        if self.catching_up.asks_peers() {
            peers.request(&mut self.packs, self.store.room());
            if peers.is_done() {
                peers.leave();
            }
        }
        self.peers = Some(peers);
        Ok(())
    }

    /// Takes a list that this receiver has requested.
    pub(super) fn listed(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.catching_up.listed();
        let records = PackRecord::decode(bytes).ok_or_else(strange_packs)?;
        let from = self.packs.unlisted().unwrap_or_default();
        let count = self.packs.list(&records);
        if count == 0 {
            return Err(strange_packs());
        }
        for (number, record) in (from..).zip(&records[..count]) {
            self.keeps(number, record);
        }
        self.ask()
    }
}
