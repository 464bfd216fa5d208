//! The packs of a sender: it announces them, and hands them to the driver.

use super::ALL;
use super::sender_session::{KEPT_MAX, Phase, SenderSession, UNSENT};
use crate::bootstrap::message::{Announced, ToReceiver};
use crate::error::Error;
use crate::object::pack::{PACK_MAX, Pack};
use crate::object::{Memory, Object, PackRecord, Packed};

impl SenderSession<'_> {
    /// Announces and broadcasts what has been read, as much as the core should have.
    pub(super) fn feed(&mut self) -> Result<(), Error> {
        while !self.is_full()
            && let Some(packed) = self.packer.next()
        {
            match packed {
                Packed::Pack(pack) => self.broadcast(pack)?,
                Packed::Failed(file, reason) => {
                    self.failed_files.insert(file);
                    if self.set.is_lost(&self.failed_files) {
                        let text = format!("{reason}; nobody has received it");
                        return Err(Error::SourceChanged(text));
                    }
                    self.fails(file, &reason);
                }
                Packed::End => {
                    return self.end();
                }
                Packed::Gone => {
                    let ended = std::io::Error::other("its reader ended");
                    return Err(Error::io("reading the source", ended));
                }
            }
        }
        Ok(())
    }

    /// Whether the core has enough to send. It gets few packs ahead, since a receiver that comes
    /// late gets only those that the core gets after it has come.
    pub(super) fn is_full(&self) -> bool {
        let start = &self.plan.start;
        let window = u64::from(start.window) * u64::from(start.payload_size);
        self.held >= window + PACK_MAX as u64
            || self.keeps_all()
            || self.driver.node().unsent(ALL) >= UNSENT
    }

    /// Whether the sender keeps as much of a stream as it may. An honest receiver that has
    /// acknowledged packs and not proven them yet has fewer.
    pub(super) fn keeps_all(&self) -> bool {
        let start = &self.plan.start;
        let window = u64::from(start.window) * u64::from(start.payload_size);
        let (packs, bytes) = self.index.kept();
        packs >= KEPT_MAX || bytes >= window + 3 * PACK_MAX as u64
    }

    fn broadcast(&mut self, pack: Pack) -> Result<(), Error> {
        self.index.add(&pack);
        let record = PackRecord::of(&pack);
        self.hasher.update(&record.hash);
        self.packs = (self.packs.0 + 1, self.packs.1 + u64::from(record.len));
        self.catch_up.add(record.len.into());
        let announced = ToReceiver::Pack(Announced::new(&record, None));
        self.announce(&announced, Memory::new(pack.bytes))
    }

    /// Announces a pack to the members of the group, and broadcasts it. Where some of them may
    /// decline it, it waits until the next one is announced: so it does not leave before they have
    /// declined it.
    pub(super) fn announce(&mut self, pack: &ToReceiver, memory: Memory) -> Result<(), Error> {
        self.lend_announced()?;
        self.admission.say_group(pack);
        self.announced = Some(memory);
        let mut members = self.admission.members.iter();
        let waits = members.any(|m| m.in_group() && m.declines);
        match waits && self.phase == Phase::Packs && !self.set.is_stream() {
            true => Ok(()),
            false => self.lend_announced(),
        }
    }

    /// Broadcasts the pack that is announced, if there is one.
    pub(super) fn lend_announced(&mut self) -> Result<(), Error> {
        let Some(memory) = self.announced.take() else {
            return Ok(());
        };
        for member in self.admission.members.iter_mut().filter(|m| m.in_group()) {
            member.sent += memory.len();
        }
        self.held += memory.len();
        self.fresh = true;
        // No caller waits for the memory of a pack, so it is not copied.
        match self.driver.lend(self.clock.now(), ALL, memory, true) {
            Ok(op) => {
                self.under_way.push(op);
                Ok(())
            }
            Err((refused, _)) => Err(Error::Usage(format!("this cannot be sent: {refused}"))),
        }
    }
}
