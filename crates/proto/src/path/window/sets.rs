//! Sets of members for the slots of a window: those that lack a packet, and those that it has been
//! sent to again.

/// A fixed number of sets, with a bit for each member. They take memory, all together, when the
/// first member is put in: many windows lose no packet.
#[derive(Clone, Debug)]
pub struct Sets {
    /// The words of all sets, or none while all are empty.
    words: Vec<u64>,
    sets: usize,
    /// Words of one set.
    stride: usize,
    /// The last word of a set that has all members.
    last: u64,
}

impl Sets {
    /// Makes `sets` empty sets of members `0 .. members`.
    pub fn new(sets: usize, members: usize) -> Sets {
        let stride = Sets::stride(members);
        Sets {
            words: Vec::new(),
            sets,
            stride,
            last: u64::MAX >> (stride * 64 - members.max(1)),
        }
    }

    /// Memory of `sets` sets of `members` members, in bytes.
    pub fn bytes(sets: usize, members: usize) -> usize {
        sets * Sets::stride(members) * size_of::<u64>()
    }

    /// Makes room for members `0 .. members`, no fewer than before.
    pub fn grow(&mut self, members: usize) {
        let wider = Sets::new(self.sets, members);
        let old = core::mem::replace(self, wider);
        if old.words.is_empty() || old.stride == self.stride {
            self.words = old.words;
            return;
        }
        for at in 0..self.sets {
            self.get_mut(at)[..old.stride].copy_from_slice(old.get(at));
        }
    }

    fn stride(members: usize) -> usize {
        members.div_ceil(64).max(1)
    }

    /// The words of set `at`; none if no set has ever had a member.
    pub fn get(&self, at: usize) -> &[u64] {
        let from = at * self.stride;
        self.words.get(from..from + self.stride).unwrap_or_default()
    }

    /// The words of set `at`, to put members into it.
    fn get_mut(&mut self, at: usize) -> &mut [u64] {
        if self.words.is_empty() {
            self.words = vec![0; self.sets * self.stride];
        }
        &mut self.words[at * self.stride..][..self.stride]
    }

    /// Whether `member` is in set `at`.
    pub fn has(&self, at: usize, member: u32) -> bool {
        let word = self.get(at).get(member as usize / 64);
        word.is_some_and(|word| word >> (member % 64) & 1 == 1)
    }

    /// Puts `member` into set `at`; says whether it was not in it.
    pub fn insert(&mut self, at: usize, member: u32) -> bool {
        let word = &mut self.get_mut(at)[member as usize / 64];
        let old = *word;
        *word |= 1 << (member % 64);
        *word != old
    }

    /// Takes `member` out of set `at`; says whether it was in it.
    pub fn remove(&mut self, at: usize, member: u32) -> bool {
        let had = self.has(at, member);
        if had {
            self.get_mut(at)[member as usize / 64] &= !(1 << (member % 64));
        }
        had
    }

    /// Takes all members out of set `at`.
    pub fn clear(&mut self, at: usize) {
        if !self.words.is_empty() {
            self.get_mut(at).fill(0);
        }
    }

    /// Puts all members into set `at`.
    pub fn fill(&mut self, at: usize) {
        let last = self.last;
        if let Some((end, words)) = self.get_mut(at).split_last_mut() {
            words.fill(u64::MAX);
            *end = last;
        }
    }

    /// Puts all members of `other`, a set of the same size, into set `at`.
    pub fn add(&mut self, at: usize, other: &[u64]) {
        for (word, other) in self.get_mut(at).iter_mut().zip(other) {
            *word |= other;
        }
    }

    /// Whether a member of `other`, a set of the same size, is in set `at`.
    pub fn meets(&self, at: usize, other: &[u64]) -> bool {
        self.get(at).iter().zip(other).any(|(a, b)| a & b != 0)
    }

    /// The members of set `at`.
    pub fn members(&self, at: usize) -> impl Iterator<Item = u32> + '_ {
        let words = (0..).step_by(64).zip(self.get(at));
        words.flat_map(|(first, &word)| {
            let rest = core::iter::successors(Some(word), |w| Some(w & w.wrapping_sub(1)));
            let rest = rest.take_while(|w| *w != 0);
            rest.map(move |w| first + w.trailing_zeros())
        })
    }

    /// The member of set `at` that has `rank` members of the set before it, if there is one.
    pub fn nth(&self, at: usize, mut rank: u32) -> Option<u32> {
        for (first, &word) in (0..).step_by(64).zip(self.get(at)) {
            if rank < word.count_ones() {
                let rest = (0..rank).fold(word, |w, _| w & (w - 1));
                return Some(first + rest.trailing_zeros());
            }
            rank -= word.count_ones();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[derive(Clone, Debug)]
    enum Act {
        Insert(u32),
        Remove(u32),
        Clear,
        Fill,
        Add,
        Grow(u32),
    }

    proptest! {
        /// Compares two of three sets with sets of the standard library; the third stays empty.
        #[test]
        fn agree_with_sets(
            members in 1u32..200,
            acts in proptest::collection::vec((0..2usize, any::<u32>(), prop_oneof![
                6 => any::<u32>().prop_map(Act::Insert),
                3 => any::<u32>().prop_map(Act::Remove),
                1 => Just(Act::Clear),
                1 => Just(Act::Fill),
                1 => Just(Act::Add),
                1 => (0u32..80).prop_map(Act::Grow),
            ]), 0..200),
        ) {
            let mut members = members;
            let mut sets = Sets::new(3, members as usize);
            let mut model = [BTreeSet::new(), BTreeSet::new()];
            for (at, rank, act) in acts {
                match act {
                    Act::Insert(m) => {
                        let m = m % members;
                        prop_assert_eq!(sets.insert(at, m), model[at].insert(m));
                    }
                    Act::Remove(m) => {
                        let m = m % members;
                        prop_assert_eq!(sets.remove(at, m), model[at].remove(&m));
                    }
                    Act::Clear => {
                        sets.clear(at);
                        model[at].clear();
                    }
                    Act::Fill => {
                        sets.fill(at);
                        model[at].extend(0..members);
                    }
                    Act::Grow(more) => {
                        members += more;
                        sets.grow(members as usize);
                    }
                    Act::Add => {
                        let other = sets.get(1 - at).to_vec();
                        sets.add(at, &other);
                        let other = model[1 - at].clone();
                        model[at].extend(other);
                    }
                }
                for m in 0..members {
                    prop_assert_eq!(sets.has(at, m), model[at].contains(&m));
                }
                prop_assert!(sets.members(at).eq(model[at].iter().copied()));
                let common = model[0].intersection(&model[1]).next().is_some();
                prop_assert_eq!(sets.meets(0, sets.get(1)), common);
                if let Some(rank) = rank.checked_rem(model[at].len() as u32) {
                    let member = model[at].iter().nth(rank as usize).copied();
                    prop_assert_eq!(sets.nth(at, rank), member);
                }
                prop_assert_eq!(sets.nth(2, 0), None);
            }
        }
    }
}
