//! The packs of a sender: what has been read is announced and broadcast.

use fabricast_proto::OpId;

use super::member_comparing::ComparingPhase;
use super::session::{EndOfStream, Phase, SenderSession};
use super::slow::OthersDone;
use crate::bootstrap::message::{Announced, ToReceiver};
use crate::error::Error;
use crate::object::pack::{PACK_MAX, Pack};
use crate::object::{Memory, Object, PackRecord, Packed};
use crate::transfer::ALL;
use crate::transfer::events::{Part, SendEvent};
use crate::transfer::kept_packs::called;

/// Bytes in the core that were never sent, above which it gets no more. At 10 Gbit/s it has sent
/// them in 3 ms, and one step takes far less.
const UNSENT: u64 = 4 << 20;
/// Packs of a stream that are kept until all receivers have proven them, at most: a receiver takes
/// no more that have not arrived.
const KEPT_MAX: usize = 1024;

impl SenderSession<'_> {
    /// Announces and broadcasts what has been read, as much as the core should have.
    pub(super) fn feed(&mut self) -> Result<(), Error> {
        while !self.is_read
            && !self.is_full()
            && !self.compares_enough()
            && let Some(packed) = self.packer.next()
        {
            match packed {
                Packed::Pack(pack) => self.broadcast(pack)?,
                Packed::Pages => self.comparison = ComparingPhase::Delivering,
                Packed::Compare(pack) => self.compare(pack)?,
                Packed::Failed(file, reason) => {
                    for failure in self.failed.add(file, &reason)? {
                        (self.tell)(SendEvent::FileFailed(failure));
                    }
                }
                Packed::End => self.is_read = true,
                Packed::Gone => {
                    let ended = std::io::Error::other("its reader ended");
                    return Err(Error::io("reading the source", ended));
                }
            }
        }
        if self.is_read && !self.awaits_comparison() {
            self.end();
        }
        Ok(())
    }

    /// Whether the core has enough to send. It gets few packs ahead, since a receiver that comes
    /// late gets only those that the core gets after it has come.
    pub(super) fn is_full(&self) -> bool {
        let window = self.plan.start.window_bytes();
        self.held >= window + PACK_MAX as u64
            || self.keeps_all()
            || self.awaits_decline()
            || self.driver.node().unsent(ALL) >= UNSENT
    }

    /// Whether the sender keeps as much of a stream as it may. An honest receiver that has
    /// acknowledged packs and not proven them yet has fewer.
    pub(super) fn keeps_all(&self) -> bool {
        let window = self.plan.start.window_bytes();
        let (packs, bytes) = self.index.kept();
        packs >= KEPT_MAX || bytes >= window + 3 * PACK_MAX as u64
    }

    /// Whether the sender waits until all members have declined a pack.
    fn awaits_decline(&self) -> bool {
        let declined = self.unbroadcast.declined;
        declined.is_some_and(|op| self.under_way.contains(&op))
    }

    /// Announces a pack, and broadcasts it unless members keep it from an earlier run.
    fn broadcast(&mut self, pack: Pack) -> Result<(), Error> {
        let (number, record) = self.number(&pack);
        let is_kept = self.is_kept(&pack, &record);
        let kept = self.unbroadcast.takes(is_kept);
        self.unbroadcast.any |= self.admission.receivers.in_group().next().is_none();
        let announced = ToReceiver::Pack(Announced {
            kept,
            ..Announced::new(&record, None)
        });
        if !kept {
            self.catch_up.broadcast(record.len.into());
            let op = self.announce(&announced, Memory::new(pack.bytes))?;
            self.unbroadcast.declined = is_kept.then_some(op);
            return Ok(());
        }
        self.admission.say_group(&announced);
        let name = called(self.admission.session, &record.hash);
        let group = self.admission.receivers.in_group_mut();
        group
            .filter(|m| !m.keeps.has(name))
            .for_each(|m| m.missed.add(number..number + 1));
        self.packer.give_back(pack.bytes);
        self.fresh = true;
        Ok(())
    }

    /// Announces a pack whose files all members may have, and broadcasts its header alone.
    fn compare(&mut self, pack: Pack) -> Result<(), Error> {
        let (number, record) = self.number(&pack);
        self.note_comparison(number, &record);
        let header = pack.bytes[..pack.header].to_vec();
        self.packer.give_back(pack.bytes);
        let announced = ToReceiver::Compare(Announced::new(&record, None));
        let op = self.announce(&announced, Memory::new(header))?;
        self.headers.push((op, number));
        Ok(())
    }

    /// Gives a pack the next number. Returns it, and what is announced of the pack.
    fn number(&mut self, pack: &Pack) -> (u32, PackRecord) {
        self.index.add(pack);
        let record = PackRecord::of(pack);
        self.hasher.update(&record.hash);
        (self.announced.add(record.len.into()), record)
    }

    /// Whether a pack is not broadcast, since members of the group keep it from an earlier run: all
    /// of them, or some and the others can get it after the stream. All need the pages of the
    /// manifest before anything else.
    fn is_kept(&self, pack: &Pack, record: &PackRecord) -> bool {
        let name = called(self.admission.session, &record.hash);
        let group = || self.admission.receivers.in_group();
        let keep = group().filter(|m| m.keeps.has(name)).count();
        let can_wait = !pack.is_page() && self.plan.start.reports_to_sender();
        keep > 0 && (can_wait || keep == group().count())
    }

    /// Announces a pack to the members of the group, and broadcasts it. Returns the operation.
    pub(super) fn announce(&mut self, pack: &ToReceiver, memory: Memory) -> Result<OpId, Error> {
        self.admission.say_group(pack);
        let len = memory.len();
        for member in self.admission.receivers.in_group_mut() {
            member.sent += len;
        }
        self.held += len;
        self.fresh = true;
        // No caller waits for the memory of a pack, so it is not copied.
        match self
            .driver
            .lend(self.admission.clock.time(), ALL, memory, true)
        {
            Ok(op) => {
                self.under_way.push(op);
                Ok(op)
            }
            Err((refused, _)) => Err(Error::Usage(format!("this cannot be sent: {refused}"))),
        }
    }

    /// What says that all packs have been announced.
    pub(super) fn end_message(&self) -> ToReceiver {
        ToReceiver::End {
            packs: self.announced.count(),
            key: blake3::Hash::from(self.set.challenge_key())
                .to_hex()
                .to_string(),
        }
    }

    /// Tells the receivers that all packs have been announced.
    fn end(&mut self) {
        let end = self.end_message();
        self.admission.say_group(&end);
        self.ask_what_remains();
        let now = self.admission.clock.now();
        for member in self.admission.receivers.in_group_mut() {
            member.knows_end = true;
            // Those that get packs from receivers that serve stop that now.
            member.missed.await_answer(now);
        }
        let (at, lasted) = (now, now - self.admission.clock.start());
        self.phase = Phase::Ended(EndOfStream {
            root: self.hasher.finalize().to_hex().to_string(),
            total: self.announced.bytes() + self.set.manifest().copied(),
            done: OthersDone { at, lasted },
        });
        self.tell_lacking();
    }

    /// Tells which members lack what others kept from an earlier run.
    fn tell_lacking(&mut self) {
        let members = self.admission.receivers.in_group();
        for member in members.filter(|m| m.part == Part::Whole && m.missed.is_known()) {
            let lacking = self.announced.lacking(&member.missed);
            if lacking > 0 {
                (self.tell)(SendEvent::CatchingUp {
                    receiver: member.name.clone(),
                    part: member.part,
                    lacking,
                });
            }
        }
    }

    /// Drops the packs of a stream that every receiver has proven.
    pub(super) fn release_proven(&mut self) {
        let active = self.admission.receivers.active();
        if let Some(proven) = active.map(|m| m.proven).min() {
            self.index.release(proven);
            self.fresh = true;
        }
    }
}
