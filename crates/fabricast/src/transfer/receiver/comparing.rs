//! A receiver that compares what it has: its part (spec 5.16).

use std::time::{Duration, Instant};

use super::errors::{refused, strange_packs};
use super::incoming::POSTED_MAX;
use super::pack_table::PackState;
use super::session::ReceiverSession;
use crate::bootstrap::message::{Announced, Need, ToSender};
use crate::error::Error;
use crate::object::pack::Header;
use crate::object::{Candidates, Comparer, PackRecord};
use crate::transfer::comparing::AHEAD_MAX;
use crate::transfer::events::RecvEvent;

impl ReceiverSession<'_> {
    /// Takes the next pack of which only the header comes.
    pub(super) fn compare(&mut self, announced: &Announced) -> Result<(), Error> {
        let absurd = || Error::PeerLost("the sender's pack makes no sense".into());
        let may = self.posted.len() < POSTED_MAX
            && !self.catching_up.is_outside()
            && !self.is_ordered()
            && self.end.is_none()
            && announced.again.is_none();
        let record = announced.record().filter(|_| may).ok_or_else(absurd)?;
        let number = self.packs.push(record).ok_or_else(absurd)?;
        let Some(comparing) = &mut self.comparing else {
            if !self.keeps(number, &record) {
                // It comes again as a whole.
                self.packs.set(number, PackState::Lacking);
            }
            return self.decline(record.header).map_err(refused);
        };
        if comparing.first.is_none() {
            comparing.next = number;
            (self.tell)(RecvEvent::Comparing);
        }
        comparing.unanswered += 1;
        comparing.is_compared(number, Instant::now());
        if comparing.unanswered > AHEAD_MAX {
            return Err(absurd());
        }
        self.post(number, record, true)
    }

    /// Has a pack compared whose header has arrived.
    pub(super) fn header_arrived(
        &mut self,
        number: u32,
        record: &PackRecord,
        bytes: &[u8],
    ) -> Result<(), Error> {
        self.fresh = true;
        let Some(comparing) = &mut self.comparing else {
            return Ok(());
        };
        let header = match *blake3::hash(bytes).as_bytes() == record.hash {
            true => {
                let header = Header::decode(bytes, (record.len - record.header) as usize);
                Some(header.ok_or_else(strange_packs)?)
            }
            false => None,
        };
        comparing.early.insert(number, header);
        self.compare_next()
    }

    /// Has the next packs compared whose headers are here. A header that is not what was announced
    /// is requested again.
    fn compare_next(&mut self) -> Result<(), Error> {
        while let Some(comparing) = &mut self.comparing
            && let Some(header) = comparing.early.get_mut(&comparing.next)
        {
            let Some(header) = header.take() else {
                return self.ask_for_header();
            };
            comparing.early.remove(&comparing.next);
            match &mut comparing.comparer {
                Some(comparer) => comparer.compare(comparing.next, header),
                // The sender has not waited for the candidates.
                None => return Err(strange_packs()),
            }
            comparing.next += 1;
        }
        Ok(())
    }

    /// Requests the header of the pack that is compared next, unless other answers are awaited.
    fn ask_for_header(&mut self) -> Result<(), Error> {
        let Some(number) = self.comparing.as_ref().map(|comparing| comparing.next) else {
            return Ok(());
        };
        if self.asked_header.is_some() || self.repair.is_some() {
            return Ok(());
        }
        let (record, _) = self.packs.get(number).ok_or_else(strange_packs)?;
        self.asked_header = Some((number, record));
        self.say(&ToSender::Need(Need {
            pack: number,
            hash: blake3::Hash::from(record.hash).to_hex().to_string(),
            ..Need::default()
        }))
    }

    /// Takes a header that was requested.
    pub(super) fn header_mended(
        &mut self,
        (number, record): (u32, PackRecord),
        bytes: &[u8],
    ) -> Result<(), Error> {
        self.moved = Instant::now();
        self.statistics.mended_bytes += bytes.len() as u64;
        if *blake3::hash(bytes).as_bytes() != record.hash {
            return Err(Error::Integrity(
                "the header of a pack is not what the sender promised".into(),
            ));
        }
        self.header_arrived(number, &record, bytes)?;
        self.ask()
    }

    /// Says what it may have. `is_cut`: whether there was no time to look at all files.
    pub(super) fn looked(&mut self, candidates: Candidates, is_cut: bool) -> Result<(), Error> {
        let ranges = candidates.ranges();
        if is_cut {
            let text = "looking at the files that are here took too long: the rest of them comes \
                        again";
            (self.tell)(RecvEvent::Notice { text: text.into() });
        }
        let Some(comparing) = &mut self.comparing else {
            return Ok(()); // it was demoted
        };
        comparing.looked(Instant::now());
        let (limit, serves, waker) = (comparing.limit, self.options.serve, self.waker.clone());
        comparing.comparer = Some(Comparer::start(candidates, limit, serves, waker)?);
        let all = ranges.as_slice();
        let last = all.len().saturating_sub(1) / ToSender::RUNS_MAX;
        for n in 0..=last {
            let some = all.iter().skip(n * ToSender::RUNS_MAX);
            self.say(&ToSender::Looked {
                candidates: some.take(ToSender::RUNS_MAX).copied().collect(),
                more: n < last,
            })?;
        }
        Ok(())
    }

    /// Takes what was compared, and answers. When all packs were announced and compared, says which
    /// of them are here.
    pub(super) fn take_compared(&mut self) -> Result<(), Error> {
        self.compare_next()?;
        while let Some(comparing) = &mut self.comparing
            && let Some(comparer) = &mut comparing.comparer
            && let Some(compared) = comparer.take()?
        {
            comparing.unanswered -= 1;
            let record = self.packs.get(compared.number);
            comparing.compared +=
                record.map_or(0, |(record, _)| u64::from(record.len - record.header));
            if compared.gave_up {
                let text = "comparing the files that are here took too long: the rest of them \
                            comes again";
                (self.tell)(RecvEvent::Notice { text: text.into() });
            }
            let here = compared.here.iter();
            here.for_each(|(pack, _)| self.packs.set(*pack, PackState::Here));
            let proven = compared.here.len();
            if !compared.remaining.is_empty() || proven > 0 {
                self.storing.remain(compared.remaining, compared.here);
            }
            self.are_proven(proven);
            (self.moved, self.fresh) = (Instant::now(), true);
            let number = compared.number;
            self.say(&ToSender::Compared { number })?;
        }
        let Some(comparing) = &self.comparing else {
            return Ok(());
        };
        if self.end.is_none() || comparing.unanswered > 0 {
            return Ok(());
        }
        let first = comparing.first;
        self.leave_comparison();
        let said = match first {
            Some(first) => self.catching_up.compared(&self.packs, first),
            None => Vec::new(),
        };
        said.iter().try_for_each(|has| self.say(has))
    }

    /// Compares nothing more. Packs that were compared and are not here are lacking.
    pub(super) fn leave_comparison(&mut self) {
        let comparing = self.comparing.take();
        // What is lacking comes from now on.
        self.moved = Instant::now();
        let Some(first) = comparing.and_then(|comparing| comparing.first) else {
            return;
        };
        for number in first..self.packs.len() as u32 {
            if self
                .packs
                .get(number)
                .is_some_and(|(_, pack)| pack == PackState::Coming)
            {
                self.packs.set(number, PackState::Lacking);
            }
        }
    }

    /// Whether it has said what it has, so that it gets what it lacks.
    pub(super) fn is_inside(&self) -> bool {
        self.catching_up.is_inside() && self.comparing.is_none()
    }

    /// Bytes of files that are present. While packs are compared, all that was compared counts.
    pub(super) fn present(&self) -> u64 {
        let compared = self.comparing.as_ref().map_or(0, |c| c.compared);
        compared.max(self.statistics.present_bytes)
    }

    /// How long the transfer has been silent, without what the comparisons of other members may
    /// take.
    pub(super) fn silent(&self, now: Instant) -> Duration {
        let (last, comparing) = (self.moved, self.comparing.as_ref());
        now.saturating_duration_since(comparing.map_or(last, |c| c.silent_since(last)))
    }

    /// Whether packs are being compared.
    pub(super) fn is_comparing(&self) -> bool {
        let comparer = self.comparing.as_ref().and_then(|c| c.comparer.as_ref());
        comparer.is_some_and(Comparer::is_busy)
    }
}
