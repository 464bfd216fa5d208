//! How a receiver joins a transfer that runs already (spec 5.10): it learns which packs were
//! announced before, fetches the manifest, and says which of these packs it has. The sender sends
//! it the others again, as further packs of the stream.

use super::pack_table::{PackState, PackTable};
use crate::bootstrap::message::{Need, ToReceiver, ToSender};
use crate::error::Error;
use crate::object::manifest::PAGE_MAX;
use crate::object::pack::{Header, Pack};
use crate::transfer::events::RecvEvent;

/// How far a receiver has come with joining.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// It is no member of the group.
    Outside,
    /// It has joined the group, and learns which packs were announced before.
    Listing,
    /// It knows these packs, and fetches the manifest.
    Fetching,
    /// It has said what it has of these packs, and gets more of them from receivers that serve.
    Asking,
    /// It has said what it has of them, or was there from the start.
    Inside,
    /// It was inside, and was told of others that serve.
    Told,
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
    /// It says what it has, and tells its user if it has just joined.
    Has(Vec<ToSender>, Option<RecvEvent>),
}

/// How far a receiver has come with what was announced before it joined.
pub struct CatchingUp {
    stage: Stage,
    /// Number of packs that were announced before it joined.
    packs: u32,
    /// Whether it came late or was demoted, and its user knows that it takes part.
    has_joined: bool,
    /// How often the sender has told of receivers that serve.
    told: u32,
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
            packs: 0,
            has_joined: false,
            told: 0,
            lists: false,
            has_manifest,
            pages: 0,
        }
    }

    /// Notes that the receiver was demoted, and is no member of the group any more.
    pub fn leave(&mut self) {
        self.stage = Stage::Outside;
        self.has_joined = false;
    }

    /// Notes that the receiver is a member of the group now. `packs` were announced before.
    pub fn join(&mut self, packs: u32) {
        (self.stage, self.packs) = (Stage::Listing, packs);
    }

    /// Notes that the sender tells of receivers that serve: the receiver says once more what it
    /// has, also if it has said that. False if the sender may not tell it of any, or of no more.
    pub fn told(&mut self) -> bool {
        self.told += 1;
        if self.stage == Stage::Inside && self.has_joined {
            self.stage = Stage::Told;
        }
        let may = !matches!(self.stage, Stage::Outside | Stage::Inside);
        may && self.told <= ToReceiver::PEERS_TIMES
    }

    /// Whether the receiver is no member of the group.
    pub fn is_outside(&self) -> bool {
        self.stage == Stage::Outside
    }

    /// Whether the receiver has said what it has, so that it gets what it lacks.
    pub fn is_inside(&self) -> bool {
        self.stage == Stage::Inside
    }

    /// All packs were compared, those from number `first` on: says which of them the receiver has.
    pub fn compared(&self, table: &PackTable, first: u32) -> Vec<ToSender> {
        let runs = table.runs(table.len() as u32).into_iter();
        let runs = runs.map(|(from, to)| (from.max(first), to));
        self.has(&runs.filter(|run| run.0 < run.1).collect::<Vec<_>>(), false)
    }

    /// Whether the receiver gets packs from receivers that serve.
    pub fn asks_peers(&self) -> bool {
        self.stage == Stage::Asking
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
        if self.stage == Stage::Listing {
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
                None => self.stage = Stage::Fetching,
            }
        }
        match self.stage {
            Stage::Fetching if self.has_manifest || self.packs == 0 => {
                let said = self.has(&table.runs(self.packs), has_peers);
                Ok(Some(self.said(said, table, has_peers)))
            }
            Stage::Told if has_peers => Ok(Some(self.said(Vec::new(), table, true))),
            // What peers gave, it said when that came.
            Stage::Asking | Stage::Told if !has_peers => {
                let nothing = ToSender::Has {
                    runs: Vec::new(),
                    more: false,
                    told: self.told,
                };
                Ok(Some(self.said(vec![nothing], table, false)))
            }
            Stage::Fetching if self.pages < self.packs => self.page(table),
            // The next pages come with the stream.
            _ => Ok(None),
        }
    }

    /// Has the receiver say this, and enter its next stage. `more`: whether it asks receivers that
    /// serve from now on.
    fn said(&mut self, said: Vec<ToSender>, table: &PackTable, more: bool) -> Next {
        if more {
            self.stage = Stage::Asking;
            return Next::Ask(said, self.packs);
        }
        self.stage = Stage::Inside;
        let is_first = !std::mem::replace(&mut self.has_joined, true);
        Next::Has(said, is_first.then(|| self.joined(table)))
    }

    /// Tells the user that the sender sends again what is lacking.
    fn joined(&self, table: &PackTable) -> RecvEvent {
        let runs = table.runs(self.packs).into_iter();
        let has: u32 = runs.map(|run| run.1 - run.0).sum();
        RecvEvent::Joined {
            packs: self.packs,
            lacking: self.packs - has,
        }
    }

    /// Says which packs the receiver has. `more`: whether it may say so of others.
    fn has(&self, runs: &[(u32, u32)], more: bool) -> Vec<ToSender> {
        let count = runs.len().div_ceil(ToSender::RUNS_MAX).max(1);
        let message = |n: usize| {
            let some = runs.iter().skip(n * ToSender::RUNS_MAX);
            let more = more || n + 1 < count;
            ToSender::Has {
                runs: some.take(ToSender::RUNS_MAX).copied().collect(),
                more,
                told: if more { 0 } else { self.told },
            }
        };
        (0..count).map(message).collect()
    }

    /// Fetches the next page of the manifest, when the one before is stored.
    fn page(&mut self, table: &mut PackTable) -> Result<Option<Next>, Error> {
        let is_here = |table: &mut PackTable, page| {
            table
                .get(page)
                .is_some_and(|(_, pack)| pack == PackState::Here)
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
        table.set(number, PackState::Coming);
        let pack = Pack {
            bytes: vec![0; record.len as usize],
            header: record.header as usize,
        };
        let hash = blake3::Hash::from(record.hash).to_hex().to_string();
        Ok(Some(Next::Page(number, pack, hash)))
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
        let (mut table, mut late) = (PackTable::new(usize::MAX), CatchingUp::new(true, false));
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
            table.set(number, PackState::Here);
        }
        late.has_manifest();
        let Some(Next::Has(said, event)) = late.next(&mut table, false, false).unwrap() else {
            panic!("nothing said");
        };
        let expected = ToSender::Has {
            runs: vec![(0, 2)],
            more: false,
            told: 0,
        };
        assert_eq!(said, [expected]);
        let (packs, lacking) = (5, 3);
        assert_eq!(event, Some(RecvEvent::Joined { packs, lacking }));
        assert!(late.is_inside() && late.next(&mut table, false, false).unwrap().is_none());
    }

    #[test]
    fn one_with_peers_says_at_last_that_there_is_no_more() {
        let (mut table, mut late) = (PackTable::new(usize::MAX), CatchingUp::new(true, true));
        assert!(table.join(3) && !late.told(), "it is outside");
        late.join(3);
        assert!(late.told());
        assert_eq!(table.list(&records(0..3)), 3);
        table.set(0, PackState::Here);
        let more = |next: Option<Next>| match next {
            Some(Next::Ask(said, 3)) => said,
            _ => panic!("it asks nobody"),
        };
        let first = ToSender::Has {
            runs: vec![(0, 1)],
            more: true,
            told: 0,
        };
        assert_eq!(more(late.next(&mut table, false, true).unwrap()), [first]);
        assert!(late.next(&mut table, false, true).unwrap().is_none() && !late.is_inside());
        table.set(2, PackState::Coming);
        let Some(Next::Has(said, event)) = late.next(&mut table, false, false).unwrap() else {
            panic!("it says nothing at last");
        };
        let nothing = |told| {
            let (runs, more) = (Vec::new(), false);
            [ToSender::Has { runs, more, told }]
        };
        assert_eq!(said, nothing(2));
        let (packs, lacking) = (3, 1);
        assert_eq!(event, Some(RecvEvent::Joined { packs, lacking }));
        assert!(late.is_inside());
        // It is told of others, with which it does not begin from the start.
        assert!(late.told() && !late.is_inside());
        assert!(more(late.next(&mut table, false, true).unwrap()).is_empty());
        assert!(late.asks_peers() && late.told());
        // It knows no others, and answers all the same.
        for told in [4, 5] {
            let Some(Next::Has(said, None)) = late.next(&mut table, false, false).unwrap() else {
                panic!("it says nothing, or has joined twice");
            };
            assert_eq!(said, nothing(told));
            assert!(late.is_inside() && late.told());
        }
        late.leave();
        assert!(!late.told(), "it is outside");
        late.join(3);
        assert!(late.told() && !late.told(), "it was told too often");
    }

    #[test]
    fn one_that_is_there_from_the_start_is_told_of_nobody() {
        assert!(!CatchingUp::new(false, false).told());
    }

    #[test]
    fn one_that_has_compared_says_what_it_has_of_that() {
        let (mut table, member) = (PackTable::new(usize::MAX), CatchingUp::new(false, true));
        records(0..6)
            .into_iter()
            .for_each(|record| _ = table.push(record));
        table.set(3, PackState::Lacking);
        let has = ToSender::Has {
            runs: vec![(2, 3), (4, 6)],
            more: false,
            told: 0,
        };
        assert_eq!(member.compared(&table, 2), [has]);
    }

    #[test]
    fn many_runs_are_said_in_several_messages() {
        let mut table = PackTable::new(usize::MAX);
        let packs = 2 * ToSender::RUNS_MAX as u32 + 3;
        assert!(table.join(packs));
        for _ in 0..packs {
            assert_eq!(table.list(&records(0..1)), 1);
        }
        (0..packs)
            .step_by(2)
            .for_each(|n| table.set(n, PackState::Here));
        let late = CatchingUp {
            packs,
            told: 3,
            ..CatchingUp::new(true, true)
        };
        let said = late.has(&table.runs(packs), false);
        let lens: Vec<(usize, bool, u32)> = said
            .iter()
            .map(|message| match message {
                ToSender::Has { runs, more, told } => (runs.len(), *more, *told),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(lens, [(ToSender::RUNS_MAX, true, 0), (2, false, 3)]);
        let all_say_more = |message: &ToSender| matches!(message, ToSender::Has { more: true, .. });
        assert!(late.has(&table.runs(packs), true).iter().all(all_say_more));
    }
}
