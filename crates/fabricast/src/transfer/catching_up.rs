//! How a receiver joins a transfer that runs already (spec 5.10): it learns which packs were
//! announced before, fetches the manifest, and says which of these packs it has. The sender sends
//! it the others again, as further packs of the stream.

use super::events::RecvEvent;
use super::pack_table::{Pack as InTable, PackTable};
use crate::bootstrap::message::{Need, ToSender};
use crate::error::Error;
use crate::object::manifest::PAGE_MAX;
use crate::object::pack::{Header, Pack};

/// How far a receiver has come with joining.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// It is no member of the group.
    Outside,
    /// It has joined the group, and learns which packs were announced before: so many.
    Listing(u32),
    /// It knows these packs, and fetches the manifest.
    Fetching(u32),
    /// It has said what it has of these packs, and gets more of them from receivers that serve.
    Asking(u32),
    /// It has said what it has of them, or was there from the start.
    Inside,
}

/// What a receiver does next to join.
pub enum Next {
    /// It asks for a list. The answer goes to [`CatchingUp::listed`].
    List(Need),
    /// It stores a page of the manifest as a pack that arrived damaged throughout: its number, room
    /// for it, and the hash of its header.
    Page(u32, Pack, String),
    /// It says what it has so far. Receivers that serve may have what it lacks of the packs before
    /// this number.
    Ask(Vec<ToSender>, u32),
    /// It says what it has, and tells its user.
    Has(Vec<ToSender>, RecvEvent),
}

/// How far a receiver has come with what was announced before it joined.
pub struct CatchingUp {
    stage: Stage,
    /// Whether a list was requested that has not come.
    lists: bool,
    has_manifest: bool,
    /// Pages of the manifest that have been fetched, or are being fetched.
    pages: u32,
}

impl CatchingUp {
    /// A receiver that is there from the start, or comes `late`, and may have the manifest already.
    pub fn new(late: bool, has_manifest: bool) -> CatchingUp {
        CatchingUp {
            stage: match late {
                true => Stage::Outside,
                false => Stage::Inside,
            },
            lists: false,
            has_manifest,
            pages: 0,
        }
    }

    /// Notes that the receiver was demoted, and is no member of the group any more.
    pub fn leave(&mut self) {
        self.stage = Stage::Outside;
    }

    /// Notes that the receiver is a member of the group now. `packs` were announced before.
    pub fn join(&mut self, packs: u32) {
        self.stage = Stage::Listing(packs);
    }

    /// Whether the receiver is no member of the group.
    pub fn is_outside(&self) -> bool {
        self.stage == Stage::Outside
    }

    /// Whether the receiver has said what it has, so that it gets what it lacks.
    pub fn is_inside(&self) -> bool {
        self.stage == Stage::Inside
    }

    /// Whether the receiver gets packs from receivers that serve.
    pub fn asks_peers(&self) -> bool {
        matches!(self.stage, Stage::Asking(_))
    }

    /// Whether the sender's next answer is a list.
    pub fn lists(&self) -> bool {
        self.lists
    }

    /// Notes that the list that was requested has come.
    pub fn listed(&mut self) {
        self.lists = false;
    }

    /// Notes that the manifest is complete.
    pub fn has_manifest(&mut self) {
        self.has_manifest = true;
    }

    /// What the receiver does next, if anything. `is_repairing`: whether answers of another kind
    /// are awaited. `has_peers`: whether receivers that serve may give it something.
    pub fn next(
        &mut self,
        table: &mut PackTable,
        is_repairing: bool,
        has_peers: bool,
    ) -> Result<Option<Next>, Error> {
        if let Stage::Listing(packs) = self.stage {
            match table.unlisted() {
                Some(_) if self.lists || is_repairing => return Ok(None),
                Some(pack) => {
                    self.lists = true;
                    return Ok(Some(Next::List(Need {
                        pack,
                        list: true,
                        ..Need::default()
                    })));
                }
                None => self.stage = Stage::Fetching(packs),
            }
        }
        match self.stage {
            Stage::Fetching(packs) if self.has_manifest || packs == 0 => {
                let said = has(table, packs, has_peers);
                let next = match has_peers {
                    true => (Stage::Asking(packs), Next::Ask(said, packs)),
                    false => (Stage::Inside, Next::Has(said, joined(table, packs))),
                };
                self.stage = next.0;
                Ok(Some(next.1))
            }
            // What peers gave, it said when that came.
            Stage::Asking(packs) if !has_peers => {
                self.stage = Stage::Inside;
                let nothing = ToSender::Has {
                    runs: Vec::new(),
                    more: false,
                };
                Ok(Some(Next::Has(vec![nothing], joined(table, packs))))
            }
            Stage::Fetching(packs) if self.pages < packs => self.page(table),
            // The next pages come with the stream.
            _ => Ok(None),
        }
    }

    /// Fetches the next page of the manifest, when the one before is stored.
    fn page(&mut self, table: &mut PackTable) -> Result<Option<Next>, Error> {
        let is_here = |table: &mut PackTable, page| {
            table
                .get(page)
                .is_some_and(|(_, pack)| pack == InTable::Here)
        };
        while is_here(table, self.pages) {
            self.pages += 1; // it has come with the stream
        }
        let number = self.pages;
        if number
            .checked_sub(1)
            .is_some_and(|before| !is_here(table, before))
        {
            return Ok(None);
        }
        let most = Header::len_of(0, PAGE_MAX) + PAGE_MAX;
        let entry = table.get(number);
        let Some((record, _)) = entry.filter(|(record, _)| record.len as usize <= most) else {
            return Err(Error::Integrity(
                "the sender's first packs are not the manifest".into(),
            ));
        };
        self.pages += 1;
        table.set(number, InTable::Coming);
        let pack = Pack {
            bytes: vec![0; record.len as usize],
            header: record.header as usize,
        };
        let hash = blake3::Hash::from(record.hash).to_hex().to_string();
        Ok(Some(Next::Page(number, pack, hash)))
    }
}

/// Says which of the first `packs` packs a receiver has. `more`: whether it may say so of others.
fn has(table: &PackTable, packs: u32, more: bool) -> Vec<ToSender> {
    let runs = table.runs(packs);
    let count = runs.len().div_ceil(ToSender::RUNS_MAX).max(1);
    let message = |n: usize| {
        let some = runs.iter().skip(n * ToSender::RUNS_MAX);
        ToSender::Has {
            runs: some.take(ToSender::RUNS_MAX).copied().collect(),
            more: more || n + 1 < count,
        }
    };
    (0..count).map(message).collect()
}

/// Tells the user that the sender sends again what is lacking of the first `packs` packs.
fn joined(table: &PackTable, packs: u32) -> RecvEvent {
    let has: u32 = table.runs(packs).iter().map(|run| run.1 - run.0).sum();
    RecvEvent::Joined {
        packs,
        lacking: packs - has,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::PackRecord;

    fn records(numbers: std::ops::Range<u8>) -> Vec<PackRecord> {
        let record = |n| PackRecord {
            len: 10,
            header: 5,
            hash: [n; 32],
        };
        numbers.map(record).collect()
    }

    #[test]
    fn a_receiver_lists_fetches_the_manifest_and_says_what_it_has() {
        let (mut table, mut late) = (PackTable::default(), CatchingUp::new(true, false));
        assert!(late.is_outside() && late.next(&mut table, false, false).unwrap().is_none());
        assert!(table.join(5));
        late.join(5);
        // It waits for answers of another kind.
        assert!(late.next(&mut table, true, false).unwrap().is_none());
        for (from, some) in [(0, 0..3), (3, 3..5)] {
            let Some(Next::List(need)) = late.next(&mut table, false, false).unwrap() else {
                panic!("no list");
            };
            assert!(need.pack == from && late.lists());
            assert!(late.next(&mut table, false, false).unwrap().is_none());
            let some = records(some);
            assert_eq!(table.list(&some), some.len());
            late.listed();
        }
        // The manifest has two pages, one after the other.
        for page in 0..2 {
            let Some(Next::Page(number, pack, _)) = late.next(&mut table, false, false).unwrap()
            else {
                panic!("no page");
            };
            assert_eq!((number, pack.bytes.len(), pack.header), (page, 10, 5));
            assert!(late.next(&mut table, false, false).unwrap().is_none());
            table.set(number, InTable::Here);
        }
        late.has_manifest();
        let Some(Next::Has(said, event)) = late.next(&mut table, false, false).unwrap() else {
            panic!("nothing said");
        };
        let expected = ToSender::Has {
            runs: vec![(0, 2)],
            more: false,
        };
        assert_eq!(said, [expected]);
        let (packs, lacking) = (5, 3);
        assert_eq!(event, RecvEvent::Joined { packs, lacking });
        assert!(late.is_inside() && late.next(&mut table, false, false).unwrap().is_none());
    }

    #[test]
    fn one_with_peers_says_at_last_that_there_is_no_more() {
        let (mut table, mut late) = (PackTable::default(), CatchingUp::new(true, true));
        assert!(table.join(3));
        late.join(3);
        assert_eq!(table.list(&records(0..3)), 3);
        table.set(0, InTable::Here);
        let more = |next: Option<Next>| match next {
            Some(Next::Ask(said, 3)) => said,
            _ => panic!("it asks nobody"),
        };
        let first = ToSender::Has {
            runs: vec![(0, 1)],
            more: true,
        };
        assert_eq!(more(late.next(&mut table, false, true).unwrap()), [first]);
        assert!(late.next(&mut table, false, true).unwrap().is_none() && !late.is_inside());
        table.set(2, InTable::Coming);
        let Some(Next::Has(said, event)) = late.next(&mut table, false, false).unwrap() else {
            panic!("it says nothing at last");
        };
        let (runs, more) = (Vec::new(), false);
        assert_eq!(said, [ToSender::Has { runs, more }]);
        let (packs, lacking) = (3, 1);
        assert_eq!(event, RecvEvent::Joined { packs, lacking });
        assert!(late.is_inside());
    }

    #[test]
    fn many_runs_are_said_in_several_messages() {
        let mut table = PackTable::default();
        let packs = 2 * ToSender::RUNS_MAX as u32 + 3;
        assert!(table.join(packs));
        for _ in 0..packs {
            assert_eq!(table.list(&records(0..1)), 1);
        }
        (0..packs)
            .step_by(2)
            .for_each(|n| table.set(n, InTable::Here));
        let said = has(&table, packs, false);
        let lens: Vec<(usize, bool)> = said
            .iter()
            .map(|message| match message {
                ToSender::Has { runs, more } => (runs.len(), *more),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(lens, [(ToSender::RUNS_MAX, true), (2, false)]);
        let (runs, more) = (Vec::new(), false);
        assert_eq!(has(&table, 0, false), [ToSender::Has { runs, more }]);
        let all_say_more = |message: &ToSender| matches!(message, ToSender::Has { more: true, .. });
        assert!(has(&table, packs, true).iter().all(all_say_more));
    }
}
