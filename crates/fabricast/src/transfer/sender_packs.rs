//! The packs of a sender: it announces them, and hands them to the driver.
//!
//! Where receivers look at what they have (spec 5.16), the first pack of files waits for them, and
//! each pack for the announcement of the next one.

use std::time::{Duration, Instant};

use super::ALL;
use super::sender_session::{KEPT_MAX, Phase, SenderSession, UNSENT};
use crate::bootstrap::message::{Announced, ToReceiver};
use crate::error::Error;
use crate::object::pack::{PACK_MAX, Pack};
use crate::object::{Memory, Object, PackRecord, Packed};

/// How long the sender waits, after all pages of the manifest have been delivered, for receivers
/// that look at what they have.
const LOOKING: Duration = Duration::from_secs(3);

impl SenderSession<'_> {
    /// Announces and broadcasts what has been read, as much as the core should have.
    pub(super) fn feed(&mut self) -> Result<(), Error> {
        while !self.is_full()
            && let Some(packed) = self.next_packed()
        {
            match packed {
                Packed::Pack(pack) if self.waits_for_looks(&pack) => {
                    self.ahead.first = Some(pack);
                    return Ok(());
                }
                Packed::Pack(pack) => self.broadcast(pack)?,
                Packed::Failed(file, reason) => {
                    self.failed_files.insert(file);
                    if self.set.is_lost(&self.failed_files) {
                        let text = format!("{reason}; nobody has received it");
                        return Err(Error::SourceChanged(text));
                    }
                    self.fails(file, &reason);
                }
                Packed::End => return self.end(),
                Packed::Gone => {
                    let ended = std::io::Error::other("its reader ended");
                    return Err(Error::io("reading the source", ended));
                }
            }
        }
        Ok(())
    }

    fn next_packed(&mut self) -> Option<Packed> {
        let first = self.ahead.first.take();
        first.map(Packed::Pack).or_else(|| self.packer.next())
    }

    /// Whether a pack has to wait, since it is the first one of files and a receiver has still to
    /// say whether it has candidates.
    fn waits_for_looks(&mut self, pack: &Pack) -> bool {
        if self.ahead.is_over || pack.is_page() {
            return false;
        }
        let mut members = self.admission.members.iter();
        let looks = members.any(|m| m.in_group() && m.may_have && m.candidates.is_none());
        // Where receivers report for each other, none declines.
        let is_shared = !self.plan.start.addresses.is_empty();
        if self.under_way.is_empty() {
            self.ahead.delivered.get_or_insert_with(Instant::now);
        }
        let delivered = self.ahead.delivered;
        let has_waited = delivered.is_some_and(|since| since.elapsed() >= LOOKING);
        self.ahead.is_over = !looks || is_shared || has_waited;
        !self.ahead.is_over
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

    /// Announces a pack to the members of the group, and broadcasts it. Where some of them have
    /// candidates, it waits until the next one is announced: so it does not leave before they have
    /// declined it.
    pub(super) fn announce(&mut self, pack: &ToReceiver, memory: Memory) -> Result<(), Error> {
        self.lend_announced()?;
        self.admission.say_group(pack);
        self.ahead.announced = Some(memory);
        let mut members = self.admission.members.iter();
        let waits = members.any(|m| m.in_group() && m.candidates == Some(true));
        match waits && self.phase == Phase::Packs {
            true => Ok(()),
            false => self.lend_announced(),
        }
    }

    /// Broadcasts the pack that is announced, if there is one.
    pub(super) fn lend_announced(&mut self) -> Result<(), Error> {
        let Some(memory) = self.ahead.announced.take() else {
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
