//! The packs of a receiver: they are posted when they are announced, and stored when they have
//! arrived.

use std::time::Instant;

use fabricast_proto::{Command, OpId, Refused};

use super::errors::refused;
use super::incoming::{Incoming, POSTED_MAX, Posted};
use super::pack_table::PackState;
use super::session::ReceiverSession;
use super::storing::{Proof, Stored};
use crate::bootstrap::message::Announced;
use crate::error::Error;
use crate::object::PackRecord;
use crate::object::pack::Pack;
use crate::transfer::{ALL, ROOT};

impl ReceiverSession<'_> {
    /// Posts a pack that the sender will broadcast, or declines it. One that members of the group
    /// keep is not broadcast: those that do not keep it lack it until it is sent again.
    pub(super) fn announced(&mut self, announced: &Announced) -> Result<(), Error> {
        let absurd = || Error::PeerLost("the sender's pack makes no sense".into());
        let is_new = announced.again.is_none();
        let may = self.posted.len() < POSTED_MAX
            && !self.catching_up.is_outside()
            && (self.end.is_none() || !is_new);
        let record = announced.record().filter(|_| may).ok_or_else(absurd)?;
        let number = match announced.again {
            None => self.packs.push(record).ok_or_else(absurd)?,
            Some(number) if number as usize >= self.packs.len() => return Err(absurd()),
            Some(number) => number,
        };
        if let Some(comparing) = &mut self.comparing {
            comparing.is_sent(Instant::now());
        }
        let is_wanted = is_new || self.is_wanted(number);
        let is_kept = is_wanted && self.keeps(number, &record);
        if announced.kept {
            if !is_kept {
                self.packs.set(number, PackState::Lacking);
                self.moved = Instant::now();
            }
            return is_new.then_some(()).ok_or_else(absurd);
        }
        if !is_wanted || is_kept {
            match self.decline(record.len) {
                // Where receivers report for each other, none declines. What comes is not stored.
                Err(Refused::Hierarchy) => {}
                declined => return declined.map_err(refused),
            }
        }
        self.packs.set(number, PackState::Coming);
        self.post(number, record, false)
    }

    /// Declines what is announced next, which has `len` bytes.
    pub(super) fn decline(&mut self, len: u32) -> Result<(), Refused> {
        let decline = Command::Decline {
            group: ALL,
            sender: ROOT,
            len: len.into(),
        };
        self.driver.command(self.clock.now(), decline)
    }

    /// Posts a pack, or its header alone.
    pub(super) fn post(
        &mut self,
        number: u32,
        record: PackRecord,
        is_header: bool,
    ) -> Result<(), Error> {
        let len = match is_header {
            true => record.header,
            false => record.len,
        };
        let incoming = Incoming::new(len as usize, &self.store);
        let posted = self.driver.post(self.clock.now(), ALL, ROOT, incoming);
        let op = posted.map_err(|(r, _)| refused(r))?;
        self.posted.push(Posted {
            number,
            op,
            record,
            is_header,
        });
        Ok(())
    }

    /// Whether a pack with this record is here from an earlier run. Then it counts as stored.
    pub(super) fn keeps(&mut self, number: u32, record: &PackRecord) -> bool {
        let is_kept = self.kept.packs.contains(&record.hash);
        if is_kept {
            self.packs.set(number, PackState::Coming);
            self.storing.keep(number, record.hash);
        }
        is_kept
    }

    /// Whether this receiver wants a pack that is sent again. It declines packs until it has said
    /// what it has: it gets those that it lacks later.
    fn is_wanted(&mut self, number: u32) -> bool {
        let entry = self.packs.get(number);
        let is_lacking = entry.is_some_and(|(_, pack)| pack == PackState::Lacking);
        self.is_inside() && is_lacking
    }

    /// Gives a pack that has arrived to the thread that stores it.
    pub(super) fn arrived(&mut self, op: OpId) -> Result<(), Error> {
        let Some(at) = self.posted.iter().position(|p| p.op == op) else {
            return Ok(());
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
        if posted.is_header {
            return self.header_arrived(posted.number, &posted.record, &bytes);
        }
        if self.kept.packs.contains(&posted.record.hash) {
            return Ok(()); // nobody could decline it
        }
        let header = posted.record.header as usize;
        let pack = Pack { bytes, header };
        let hash = blake3::Hash::from(posted.record.hash).to_hex();
        let proof = Proof::Hash(hash.to_string());
        self.storing.arrived(posted.number, pack, proof);
        self.fresh = true;
        Ok(())
    }

    /// Counts packs as proven.
    pub(super) fn are_proven(&mut self, packs: usize) {
        self.proven += packs;
        if self.is_proven()
            && let Some(why) = self.lost.take()
        {
            self.alone(&why);
            self.lost = Some(why);
        }
    }

    /// Takes what the thread that stores has done.
    pub(super) fn stored(&mut self) -> Result<(), Error> {
        while let Some(stored) = self.storing.done() {
            self.fresh = true;
            self.moved = Instant::now();
            match stored {
                Stored::Proven => {
                    self.are_proven(1);
                }
                Stored::Looked { candidates, is_cut } => self.looked(candidates, is_cut)?,
                Stored::Remain(present) => self.statistics.present_bytes = present,
                Stored::Pack(number) => {
                    self.packs.set(number, PackState::Here);
                }
                Stored::Manifest => self.catching_up.has_manifest(),
                Stored::Surplus(paths) => self.end_dry_run(paths),
                Stored::Damaged(repair) => {
                    self.repair = Some(repair);
                    self.ask()?;
                }
                Stored::Copied(bytes) => self.copied += bytes,
                Stored::Finished(finished) => self.safe(finished),
                Stored::Failed(error) => return Err(error),
            }
        }
        Ok(())
    }
}
