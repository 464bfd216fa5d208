//! A receiver that compares what it has: its part (spec 5.16).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use fabricast_proto::Command;

use super::comparing::UNANSWERED_MAX;
use super::incoming::Incoming;
use super::pack_table::Pack;
use super::receiver_errors::{refused, strange_packs};
use super::receiver_packs::{POSTED_MAX, Posted};
use super::receiver_session::ReceiverSession;
use super::{ALL, ROOT};
use crate::bootstrap::message::{Announced, ToSender};
use crate::error::Error;
use crate::object::pack::Header;
use crate::object::{Candidates, Comparer, PackRecord};
use crate::text::shown;

/// How far a receiver is with comparing what it has.
#[derive(Default)]
pub struct ReceiverComparing {
    /// Compares packs, once the receiver has looked.
    comparer: Option<Comparer>,
    /// Number of the first pack that is compared, once there is one.
    first: Option<u32>,
    /// Number of packs that were announced and are not compared.
    unanswered: usize,
    /// Number of the pack that is compared next. Headers arrive in any order.
    next: u32,
    /// Headers that have arrived before that of the next pack; `None`: it is not what was announced.
    early: BTreeMap<u32, Option<Header>>,
}

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
        let number = self.packs.push(record);
        let now = self.clock.now();
        let Some(comparing) = &mut self.comparing else {
            // It comes again as a whole.
            self.packs.set(number, Pack::Lacking);
            let decline = Command::Decline {
                group: ALL,
                sender: ROOT,
                len: record.header.into(),
            };
            let declined = self.driver.command(now, decline);
            return declined.map(drop).map_err(refused);
        };
        if comparing.first.is_none() {
            (comparing.first, comparing.next) = (Some(number), number);
        }
        comparing.unanswered += 1;
        if comparing.unanswered > UNANSWERED_MAX {
            return Err(absurd());
        }
        let header = Incoming::new(record.header as usize, &self.store);
        let posted = self.driver.post(now, ALL, ROOT, header);
        let op = posted.map_err(|(r, _)| refused(r))?;
        self.posted.push(Posted {
            number,
            op,
            record,
            is_header: true,
        });
        Ok(())
    }

    /// Has a pack compared whose header has arrived. One whose header is not what was announced
    /// comes again as a whole.
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
        while let Some(header) = comparing.early.remove(&comparing.next) {
            match &mut comparing.comparer {
                Some(comparer) => comparer.compare(comparing.next, header),
                // The sender has not waited for the candidates.
                None => return Err(strange_packs()),
            }
            comparing.next += 1;
        }
        Ok(())
    }

    /// Says what it may have.
    pub(super) fn looked(&mut self, candidates: Candidates) -> Result<(), Error> {
        let ranges = candidates.ranges();
        let Some(comparing) = &mut self.comparing else {
            return Ok(()); // it was demoted
        };
        comparing.comparer = Some(Comparer::start(candidates, self.waker.clone()));
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
        while let Some(comparing) = &mut self.comparing
            && let Some(compared) = comparing.comparer.as_mut().and_then(Comparer::take)
        {
            comparing.unanswered -= 1;
            let here = compared.here.iter();
            here.for_each(|(pack, _)| self.packs.set(*pack, Pack::Here));
            let proven = compared.here.len();
            if !compared.remaining.is_empty() || proven > 0 {
                self.storing.remain(compared.remaining, compared.here);
            }
            self.are_proven(proven);
            (self.progress.0, self.fresh) = (Instant::now(), true);
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
        let said = self.catching_up.compared(&self.packs, first);
        said.iter().try_for_each(|has| self.say(has))
    }

    /// Compares nothing more. Packs that were compared and are not here are lacking.
    pub(super) fn leave_comparison(&mut self) {
        let comparing = self.comparing.take();
        let Some(first) = comparing.and_then(|comparing| comparing.first) else {
            return;
        };
        for number in first..self.packs.len() as u32 {
            if self
                .packs
                .get(number)
                .is_some_and(|(_, pack)| pack == Pack::Coming)
            {
                self.packs.set(number, Pack::Lacking);
            }
        }
    }

    /// Whether packs are being compared.
    pub(super) fn is_comparing(&self) -> bool {
        let comparer = self.comparing.as_ref().and_then(|c| c.comparer.as_ref());
        comparer.is_some_and(Comparer::is_busy)
    }
}

/// What the sender is told of files that were to remain and cannot be kept.
pub fn changed(files: &[PathBuf]) -> String {
    let first = files.first().map(|file| shown(file).to_string());
    format!(
        "it had {} files already that were changed there while the set came, or refused owner, \
         permissions or time, such as {}",
        files.len(),
        first.unwrap_or_default()
    )
}
