//! The packs of a set, as a receiver knows them: those that the sender announces to it, and those
//! that it announced to others before.

use crate::object::{PackRecord, blocks};

/// What a receiver has of a pack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PackState {
    /// Nothing, and nothing comes: the sender has to send it again.
    Lacking,
    /// It comes, or has come and is being stored.
    Coming,
    /// It is stored.
    Here,
}

/// Most packs of a set that are needed: each holds a page of the manifest, short files, or a piece
/// of a long one. A receiver does not believe a sender that announces more, since its memory might
/// not suffice for their list. `len`: the bytes of all files; `None`: a stream, which has no list.
pub fn packs_max(entries: u32, len: Option<u64>) -> usize {
    let most = |len| 2 * (u64::from(entries) + blocks(len) + 1);
    len.map_or(usize::MAX, |len| {
        usize::try_from(most(len)).unwrap_or(usize::MAX)
    })
}

/// All packs, by number.
pub struct PackTable {
    /// Most packs that there may be.
    max: usize,
    /// The first packs, without a gap.
    first: Vec<(PackRecord, PackState)>,
    /// Number of the first pack in `later`: more than there are in `first` while the sender has
    /// still to list those between.
    split: usize,
    /// Packs from `split` on.
    later: Vec<(PackRecord, PackState)>,
    /// Number of packs that are here, of those that are lacking, and bytes of those that are here.
    here: usize,
    lacking: usize,
    bytes: u64,
}

impl PackTable {
    /// An empty table of at most `max` packs.
    pub fn new(max: usize) -> PackTable {
        PackTable {
            max,
            first: Vec::new(),
            split: 0,
            later: Vec::new(),
            here: 0,
            lacking: 0,
            bytes: 0,
        }
    }

    /// Number of packs.
    pub fn len(&self) -> usize {
        self.split + self.later.len()
    }

    /// Number of packs that are stored.
    pub fn here(&self) -> usize {
        self.here
    }

    /// Bytes of the packs that are stored.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The first pack that the sender has still to list.
    pub fn unlisted(&self) -> Option<u32> {
        (self.first.len() < self.split).then_some(self.first.len() as u32)
    }

    /// Whether every pack is listed and comes or is here.
    pub fn is_whole(&self) -> bool {
        self.unlisted().is_none() && self.lacking == 0
    }

    /// Adds the next pack, which comes. Returns its number; `None` if there may be no more.
    pub fn push(&mut self, record: PackRecord) -> Option<u32> {
        let number = self.len();
        (number < self.max).then(|| {
            self.later.push((record, PackState::Coming));
            number as u32
        })
    }

    /// Notes that the sender has announced `packs` packs to others. This receiver may know some of
    /// them already. False if that is fewer than this receiver knows, or more than there may be.
    pub fn join(&mut self, packs: u32) -> bool {
        let packs = packs as usize;
        if self.unlisted().is_some() || packs < self.len() || packs > self.max {
            return false;
        }
        self.first.append(&mut self.later);
        self.split = packs;
        true
    }

    /// Takes the next records of the list, and returns how many. The list may go on with packs that
    /// were announced since this receiver joined: these come by their announcements.
    pub fn list(&mut self, records: &[PackRecord]) -> usize {
        let count = records.len().min(self.split - self.first.len());
        self.lacking += count;
        let lacking = records[..count]
            .iter()
            .map(|record| (*record, PackState::Lacking));
        self.first.extend(lacking);
        count
    }

    fn at(&mut self, number: u32) -> Option<&mut (PackRecord, PackState)> {
        let number = number as usize;
        match number.checked_sub(self.split) {
            Some(later) => self.later.get_mut(later),
            None => self.first.get_mut(number),
        }
    }

    /// What is here of a pack, and its record; `None` if it is unknown.
    pub fn get(&mut self, number: u32) -> Option<(PackRecord, PackState)> {
        self.at(number).copied()
    }

    /// Notes what is here of a pack. An unknown pack is ignored.
    pub fn set(&mut self, number: u32, pack: PackState) {
        let Some(entry) = self.at(number) else {
            return;
        };
        let (len, before) = (u64::from(entry.0.len), entry.1);
        entry.1 = pack;
        let count = |what: PackState| (usize::from(before == what), usize::from(pack == what));
        let (was, is) = count(PackState::Lacking);
        self.lacking = self.lacking + is - was;
        let (was, is) = count(PackState::Here);
        self.here = self.here + is - was;
        self.bytes = self.bytes + len * is as u64 - len * was as u64;
    }

    /// Runs of packs before number `end` that are not lacking: where each begins and ends.
    pub fn runs(&self, end: u32) -> Vec<(u32, u32)> {
        let all = self.first.iter().chain(&self.later);
        let mut runs = Vec::<(u32, u32)>::new();
        for (number, (_, pack)) in (0..end).zip(all) {
            match runs.last_mut() {
                _ if *pack == PackState::Lacking => {}
                Some(last) if last.1 == number => last.1 += 1,
                _ => runs.push((number, number + 1)),
            }
        }
        runs
    }

    /// Numbers of packs before number `end` that are lacking.
    pub fn lacking(&self, end: u32) -> impl Iterator<Item = u32> + '_ {
        let all = self.first.iter().chain(&self.later);
        let lacking = (0..end)
            .zip(all)
            .filter(|(_, (_, pack))| *pack == PackState::Lacking);
        lacking.map(|(number, _)| number)
    }

    /// BLAKE3 of the hashes of all packs, in hexadecimal.
    pub fn root(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        for (record, _) in self.first.iter().chain(&self.later) {
            hasher.update(&record.hash);
        }
        hasher.finalize().to_hex().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(n: u8) -> PackRecord {
        PackRecord {
            len: 10,
            header: 5,
            hash: [n; 32],
        }
    }

    #[test]
    fn a_late_receiver_learns_what_was_before() {
        let mut table = PackTable::new(9);
        assert!(table.is_whole() && table.join(5));
        assert_eq!(
            (table.push(record(5)), table.push(record(6))),
            (Some(5), Some(6))
        );
        assert_eq!((table.len(), table.unlisted()), (7, Some(0)));
        assert!(!table.is_whole() && !table.join(9), "it lists still");
        assert_eq!(table.get(4), None);
        table.set(4, PackState::Here); // it is unknown
        let records: Vec<PackRecord> = (0..7).map(record).collect();
        assert_eq!((table.list(&[]), table.list(&records[..3])), (0, 3));
        assert_eq!(table.unlisted(), Some(3));
        // Two packs were announced since it joined, and the list has them, too.
        assert_eq!(
            (table.list(&records[3..]), table.list(&records[3..])),
            (2, 0)
        );
        assert_eq!(table.len(), 7);
        assert_eq!((table.unlisted(), table.is_whole()), (None, false));
        for number in [0, 3, 5] {
            table.set(number, PackState::Here);
        }
        assert_eq!((table.here(), table.bytes()), (3, 30));
        assert_eq!(table.runs(5), [(0, 1), (3, 4)]);
        assert_eq!(table.runs(7), [(0, 1), (3, 4), (5, 7)]);
        assert!(table.lacking(4).eq([1, 2]) && table.lacking(7).eq([1, 2, 4]));
        for number in [1, 2, 4] {
            table.set(number, PackState::Coming);
        }
        assert!(table.is_whole());
        let mut hasher = blake3::Hasher::new();
        (0..7).for_each(|n| _ = hasher.update(&[n; 32]));
        assert_eq!(table.root(), hasher.finalize().to_hex().to_string());
        // It leaves and joins again, when more has been announced.
        assert!(!table.join(6), "it knows more");
        assert!(table.join(9) && table.unlisted() == Some(7));
        assert_eq!(table.list(&[record(7), record(8)]), 2);
        assert_eq!(table.runs(9), [(0, 7)]);
    }

    #[test]
    fn there_are_no_more_packs_than_the_set_can_have() {
        let mut table = PackTable::new(2);
        assert!(!table.join(3) && table.join(1));
        assert_eq!(
            (table.push(record(1)), table.push(record(2))),
            (Some(1), None)
        );
        assert_eq!(table.len(), 2);
        assert_eq!(packs_max(1, Some(4)), 6);
        assert_eq!(packs_max(u32::MAX, Some(u64::MAX)) >> 44, 2, "no overflow");
        assert_eq!(packs_max(1, None), usize::MAX);
    }
}
