//! The packs that the sender announces to a receiver: it posts those that it lacks, and declines
//! the others.

use fabricast_proto::{Command, OpId, Refused};

use super::incoming::Incoming;
use super::pack_table;
use super::receiver_errors::refused;
use super::receiver_session::{POSTED_MAX, Posted, ReceiverSession};
use super::storing::Proof;
use super::{ALL, ROOT};
use crate::bootstrap::message::{Announced, ToSender};
use crate::error::Error;
use crate::object::PackRecord;
use crate::object::pack::Pack;

impl ReceiverSession<'_> {
    /// Posts a pack that the sender will broadcast, or declines it.
    pub(super) fn announced(&mut self, announced: &Announced) -> Result<(), Error> {
        let absurd = || Error::PeerLost("the sender's pack makes no sense".into());
        let is_new = announced.again.is_none();
        let may = self.posted.len() < POSTED_MAX
            && !self.catching_up.is_outside()
            && (self.end.is_none() || !is_new);
        let record = announced.record().filter(|_| may).ok_or_else(absurd)?;
        let number = match announced.again {
            None => self.packs.push(record),
            Some(number) if number as usize >= self.packs.len() => return Err(absurd()),
            Some(number) => number,
        };
        if is_new {
            self.looking.streamed(number);
        }
        let is_wanted = is_new || self.is_wanted(number);
        let is_here = is_wanted && self.keeps(number, &record);
        if is_here || !is_wanted {
            let decline = Command::Decline {
                group: ALL,
                sender: ROOT,
                len: record.len.into(),
            };
            match self.driver.command(self.clock.now(), decline) {
                // Where receivers report for each other, none declines. What comes is not stored.
                Err(Refused::Hierarchy) => {}
                declined => return declined.map_err(refused),
            }
        }
        self.packs.set(number, pack_table::Pack::Coming);
        let pack = Incoming::new(record.len as usize, &self.store);
        let posted = self.driver.post(self.clock.now(), ALL, ROOT, pack);
        let op = posted.map_err(|(r, _)| refused(r))?;
        self.posted.push(Posted {
            number,
            op,
            record,
            is_here,
        });
        Ok(())
    }

    /// Whether a pack with this record is here from an earlier run, or is present. Then it counts
    /// as stored.
    pub(super) fn keeps(&mut self, number: u32, record: &PackRecord) -> bool {
        if self.kept.packs.contains(&record.hash) {
            self.storing.keep(number, record.hash);
        } else if let Some(pack) = self.looking.take(&record.hash) {
            self.statistics.present_bytes += pack.bytes();
            self.storing.keep_present(number, pack);
        } else {
            return false;
        }
        self.packs.set(number, pack_table::Pack::Coming);
        true
    }

    /// Tells the sender whether this receiver may decline packs, as soon as that is known. What was
    /// announced before this receiver joined may be present, too.
    pub(super) fn tell_looked(&mut self) -> Result<(), Error> {
        let Some(candidates) = self.looking.ends() else {
            return Ok(());
        };
        let lacking: Vec<u32> = self.packs.lacking(self.packs.len() as u32).collect();
        for number in lacking {
            if let Some((record, _)) = self.packs.get(number) {
                self.keeps(number, &record);
            }
        }
        self.say(&ToSender::Looked { candidates })
    }

    /// Whether this receiver wants a pack that is sent again. It declines packs until it has said
    /// what it has: it gets those that it lacks later.
    fn is_wanted(&mut self, number: u32) -> bool {
        let entry = self.packs.get(number);
        let is_lacking = entry.is_some_and(|(_, pack)| pack == pack_table::Pack::Lacking);
        self.catching_up.is_inside() && is_lacking
    }

    /// Gives a pack that has arrived to the thread that stores it.
    pub(super) fn arrived(&mut self, op: OpId) {
        let Some(at) = self.posted.iter().position(|p| p.op == op) else {
            return;
        };
        let posted = self.posted.remove(at);
        let bytes = match self.driver.take(op) {
            Some(memory) => memory.into_bytes(),
            // Other receivers may still need a co-root's pack, so it is copied.
            None => {
                self.lent.push((op, posted.record.len.into()));
                self.store.wait(posted.record.len.into());
                let memory = self.driver.object(op);
                memory.map(|m| m.as_slice().to_vec()).unwrap_or_default()
            }
        };
        if posted.is_here {
            return; // nobody could decline it
        }
        let header = posted.record.header as usize;
        let pack = Pack { bytes, header };
        let hash = blake3::Hash::from(posted.record.hash).to_hex();
        let proof = Proof::Hash(hash.to_string());
        self.storing.arrived(posted.number, pack, proof);
        self.fresh = true;
    }
}
