//! What receivers lack of the packs that were announced before they joined the group, and the packs
//! that the sender reads again for them (spec 5.10).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::object::{Again, PackIndex, Repacker};
use crate::waker::Waker;

/// While the stream runs, packs that are sent again have at most this share of its bytes: one in so
/// many.
const SHARE: u64 = 100;

/// Numbers of packs that a receiver lacks, as runs: where each begins, and where it ends.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lacks(BTreeMap<u32, u32>);

impl Lacks {
    /// Everything before pack `end`.
    pub fn before(end: u32) -> Lacks {
        Lacks((end > 0).then_some((0, end)).into_iter().collect())
    }

    /// Takes the packs from `start` to before `end` out. False if some of them are not lacking.
    pub fn remove(&mut self, start: u32, end: u32) -> bool {
        if start >= end {
            return false;
        }
        let run = self.0.range(..=start).next_back().map(|(s, e)| (*s, *e));
        let Some((first, last)) = run.filter(|run| run.1 >= end) else {
            return false;
        };
        self.0.remove(&first);
        if first < start {
            self.0.insert(first, start);
        }
        if end < last {
            self.0.insert(end, last);
        }
        true
    }

    /// Adds packs behind all that were announced before, or that are lacking already: those from
    /// `start` to before `end`.
    pub fn add(&mut self, start: u32, end: u32) {
        match self.0.last_entry() {
            Some(mut last) if *last.get() >= start => {
                let most = end.max(*last.get());
                last.insert(most);
            }
            _ if start < end => _ = self.0.insert(start, end),
            _ => {}
        }
    }

    /// The first pack that is lacking.
    pub fn first(&self) -> Option<u32> {
        self.0.first_key_value().map(|run| *run.0)
    }

    /// Whether nothing is lacking.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether this pack is lacking.
    pub fn contains(&self, pack: u32) -> bool {
        let run = self.0.range(..=pack).next_back();
        run.is_some_and(|run| pack < *run.1)
    }

    /// The runs.
    pub fn runs(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.0.iter().map(|(start, end)| (*start, *end))
    }
}

/// The packs that are sent again.
pub struct CatchUp {
    index: Arc<PackIndex>,
    waker: Waker,
    /// Runs from the first pack that is sent again.
    repacker: Option<Repacker>,
    is_reading: bool,
    /// Bytes of the stream before each pack, and of all packs.
    sums: Vec<u64>,
    /// Bytes of the packs of the stream that were broadcast.
    broadcast: u64,
    /// Bytes of the packs that were sent again.
    pub bytes: u64,
}

impl CatchUp {
    /// Nothing is sent again yet.
    pub fn new(index: Arc<PackIndex>, waker: Waker) -> CatchUp {
        CatchUp {
            index,
            waker,
            repacker: None,
            is_reading: false,
            sums: vec![0],
            broadcast: 0,
            bytes: 0,
        }
    }

    /// Notes the next pack of the stream, which has `len` bytes.
    pub fn add(&mut self, len: u64) {
        let before = self.sums.last().copied().unwrap_or(0);
        self.sums.push(before + len);
    }

    /// Notes that `len` bytes of the stream are broadcast.
    pub fn broadcast(&mut self, len: u64) {
        self.broadcast += len;
    }

    /// Bytes of the packs that are lacking.
    pub fn lacking(&self, lacks: &Lacks) -> u64 {
        let sum = |pack: u32| self.sums.get(pack as usize).copied().unwrap_or(0);
        lacks.runs().map(|(start, end)| sum(end) - sum(start)).sum()
    }

    /// Whether another pack may be read: one at a time, and within the share unless the network
    /// `is_free`, since all of the stream was sent.
    pub fn is_due(&self, is_free: bool) -> bool {
        !self.is_reading && (is_free || self.bytes * SHARE <= self.broadcast)
    }

    /// Has a pack read, without what came of the files `failed`.
    pub fn read(&mut self, pack: u32, failed: &BTreeSet<u32>) {
        let start = || Repacker::start(self.index.clone(), self.waker.clone());
        self.repacker
            .get_or_insert_with(start)
            .read(pack, failed.clone());
        self.is_reading = true;
    }

    /// The pack that has been read, or why that cannot be done; does not block.
    pub fn next(&mut self) -> Option<(u32, Result<Again, String>)> {
        let read = self.repacker.as_ref()?.next()?;
        self.is_reading = false;
        Some(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pack_is_lacking_once() {
        let mut lacks = Lacks::before(10);
        assert!(lacks.remove(2, 4) && lacks.remove(9, 10));
        for (start, end) in [(2, 3), (1, 3), (0, 10), (8, 11), (5, 5), (6, 5)] {
            assert!(!lacks.remove(start, end), "{start}");
        }
        assert_eq!(lacks.runs().collect::<Vec<_>>(), [(0, 2), (4, 9)]);
        assert!(lacks.contains(1) && !lacks.contains(2) && !lacks.contains(9));
        assert_eq!(lacks.first(), Some(0));
        assert!(lacks.remove(0, 2) && lacks.remove(4, 9) && lacks.is_empty());
        assert!(Lacks::before(0).is_empty());
        lacks.add(7, 9);
        lacks.add(9, 10);
        lacks.add(9, 10);
        lacks.add(12, 12);
        lacks.add(12, 14);
        assert_eq!(lacks.runs().collect::<Vec<_>>(), [(7, 10), (12, 14)]);
    }
    /// While the stream runs, what is sent again has one percent of its bytes, and the pack that
    /// goes beyond is the last. When the stream has ended, nothing bounds it.
    #[test]
    fn packs_are_sent_again_within_their_share_while_the_stream_runs() {
        let dir = crate::object::testing::scratch();
        let set = crate::object::testing::set_of(std::slice::from_ref(&dir));
        let index = Arc::new(PackIndex::new(set));
        let mut catch_up = CatchUp::new(index, Waker::new().unwrap());
        assert!(catch_up.is_due(false), "nothing was sent again yet");
        catch_up.add(1000);
        assert!(catch_up.is_due(false), "nothing was sent again yet");
        catch_up.broadcast(60);
        catch_up.broadcast(140);
        for (again, is_due) in [(0, true), (1, true), (2, true), (3, false), (200, false)] {
            catch_up.bytes = again;
            assert_eq!(catch_up.is_due(false), is_due, "{again} of 200 bytes");
            assert!(catch_up.is_due(true), "{again} bytes after the stream");
        }
        catch_up.broadcast(19_800);
        assert!(catch_up.is_due(false), "1 % of 20 000 bytes");
        catch_up.bytes = 201;
        assert!(!catch_up.is_due(false));
        // One pack is read at a time, whatever is left of the share.
        catch_up.is_reading = true;
        assert!(!catch_up.is_due(true));
        std::fs::remove_dir_all(dir).unwrap();
    }
}
