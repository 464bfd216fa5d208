//! The packs of the stream that have been announced, by number.

use std::ops::Range;

use super::missed::Missed;

/// The lengths of all packs that have been announced.
pub struct AnnouncedPacks {
    /// Bytes of the stream before each pack, and of all packs so far.
    sums: Vec<u64>,
}

impl AnnouncedPacks {
    /// No pack has been announced yet.
    pub fn new() -> AnnouncedPacks {
        AnnouncedPacks { sums: vec![0] }
    }

    /// Notes the next pack, which has `len` bytes. Returns its number.
    pub fn add(&mut self, len: u64) -> u32 {
        let number = self.count();
        self.sums.push(self.bytes() + len);
        number
    }

    /// Number of packs so far.
    pub fn count(&self) -> u32 {
        (self.sums.len() - 1) as u32
    }

    /// Bytes of all packs so far.
    pub fn bytes(&self) -> u64 {
        self.bytes_before(self.count())
    }

    /// Bytes of one pack; zero if it has not been announced.
    pub fn len(&self, pack: u32) -> u64 {
        self.bytes_before(pack + 1)
            .saturating_sub(self.bytes_before(pack))
    }

    /// Bytes of the packs that a receiver lacks.
    pub fn lacking(&self, missed: &Missed) -> u64 {
        let bytes = |run: Range<u32>| self.bytes_before(run.end) - self.bytes_before(run.start);
        missed.runs().map(bytes).sum()
    }

    fn bytes_before(&self, pack: u32) -> u64 {
        self.sums.get(pack as usize).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packs_have_numbers_in_their_order_and_lengths() {
        let mut announced = AnnouncedPacks::new();
        assert_eq!((announced.count(), announced.bytes()), (0, 0));
        assert_eq!([2, 3, 4].map(|len| announced.add(len)), [0, 1, 2]);
        assert_eq!((announced.count(), announced.bytes()), (3, 9));
        assert_eq!([0, 1, 2, 3].map(|pack| announced.len(pack)), [2, 3, 4, 0]);
        let mut missed = Missed::nothing();
        missed.add(0..1);
        missed.add(2..3);
        assert_eq!(announced.lacking(&missed), 6);
    }
}
