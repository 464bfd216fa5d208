//! A receiver that comes late, or was demoted: how its session joins the group and learns what it
//! lacks (spec 5.10).

use fabricast_proto::{Admission, Command, Seq, Slot};

use super::catching_up::Next;
use super::events::RecvEvent;
use super::pack_table;
use super::receiver_driver::join_address;
use super::receiver_errors::{refused, strange, strange_packs};
use super::receiver_session::ReceiverSession;
use super::{ADDRESS, ALL, ROOT};
use crate::bootstrap::message::{Join, ToSender};
use crate::error::Error;
use crate::object::PackRecord;

impl ReceiverSession<'_> {
    /// Joins the group, from the next pack on.
    pub(super) fn join(&mut self, join: Join) -> Result<(), Error> {
        if let (Some(group), left @ true) = &mut self.group {
            *left = false;
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
            self.packs.set(posted.number, pack_table::Pack::Lacking);
            self.lent.push((posted.op, 0));
        }
        // What the others are sent would fill a slow link.
        if let (Some(_), left) = &mut self.group {
            *left = true;
            self.driver.transport().leave(ADDRESS);
        }
        self.catching_up.leave();
        (self.tell)(RecvEvent::Demoted);
        Ok(())
    }

    /// Goes on with joining.
    pub(super) fn catch_up(&mut self) -> Result<(), Error> {
        let is_repairing = self.repair.is_some();
        match self.catching_up.next(&mut self.packs, is_repairing)? {
            None => {}
            Some(Next::List(need)) => self.say(&ToSender::Need(need))?,
            Some(Next::Page(number, pack, hash)) => self.storing.arrived(number, pack, hash),
            Some(Next::Has(messages, event)) => {
                (self.tell)(event);
                messages.iter().try_for_each(|has| self.say(has))?;
            }
        }
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
