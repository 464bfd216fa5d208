//! Hosts of a context, and sets of them.

use core::fmt;

/// A host of a context, numbered from 0 without gaps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct HostId(pub u32);

/// A set of hosts. Sets are ordered by size first, so that the smallest of several sets is their
/// minimum.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct HostSet {
    len: u32,
    /// One bit for each host; the last word is not zero.
    words: Vec<u64>,
}

impl HostSet {
    /// The empty set.
    pub const fn new() -> HostSet {
        HostSet {
            len: 0,
            words: Vec::new(),
        }
    }

    /// Hosts `0 .. count`.
    pub fn first_hosts(count: u32) -> HostSet {
        (0..count).map(HostId).collect()
    }

    /// Number of hosts.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether no host is in the set.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether a host is in the set.
    pub fn contains(&self, host: HostId) -> bool {
        let word = self.words.get(host.0 as usize / 64);
        word.is_some_and(|word| word >> (host.0 % 64) & 1 == 1)
    }

    /// Adds a host; false if it was there.
    pub fn insert(&mut self, host: HostId) -> bool {
        let at = host.0 as usize / 64;
        if self.contains(host) {
            return false;
        }
        if self.words.len() <= at {
            self.words.resize(at + 1, 0);
        }
        self.words[at] |= 1 << (host.0 % 64);
        self.len += 1;
        true
    }

    /// Removes a host; false if it was not there.
    pub fn remove(&mut self, host: HostId) -> bool {
        if !self.contains(host) {
            return false;
        }
        self.words[host.0 as usize / 64] &= !(1 << (host.0 % 64));
        self.len -= 1;
        self.trim();
        true
    }

    /// The lowest host.
    pub fn lowest(&self) -> Option<HostId> {
        self.iter().next()
    }

    /// Whether every host of `other` is in this set.
    pub fn includes(&self, other: &HostSet) -> bool {
        other.len <= self.len
            && other.words.len() <= self.words.len()
            && (self.words.iter().zip(&other.words)).all(|(mine, theirs)| theirs & !mine == 0)
    }

    /// The hosts that are in this set and not in `other`.
    pub fn without(&self, other: &HostSet) -> HostSet {
        self.combined(other, |mine, theirs| mine & !theirs)
    }

    /// The hosts that are in both sets.
    pub fn common(&self, other: &HostSet) -> HostSet {
        self.combined(other, |mine, theirs| mine & theirs)
    }

    /// The hosts, the lowest first.
    pub fn iter(&self) -> impl Iterator<Item = HostId> + '_ {
        self.words.iter().enumerate().flat_map(|(at, &word)| {
            let mut left = word;
            core::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros())?;
                left &= left - 1;
                Some(HostId(at as u32 * 64 + bit))
            })
        })
    }

    /// The words of the set, one bit for each host; the last word is not zero.
    pub(super) fn words(&self) -> &[u64] {
        &self.words
    }

    /// The set with these words.
    pub(super) fn from_words(words: Vec<u64>) -> HostSet {
        let len = words.iter().map(|word| word.count_ones()).sum();
        let mut set = HostSet { len, words };
        set.trim();
        set
    }

    fn combined(&self, other: &HostSet, both: impl Fn(u64, u64) -> u64) -> HostSet {
        let theirs = other.words.iter().copied().chain(core::iter::repeat(0));
        let words = self.words.iter().zip(theirs);
        HostSet::from_words(words.map(|(&mine, theirs)| both(mine, theirs)).collect())
    }

    fn trim(&mut self) {
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
    }
}

impl FromIterator<HostId> for HostSet {
    fn from_iter<I: IntoIterator<Item = HostId>>(hosts: I) -> HostSet {
        let mut set = HostSet::new();
        for host in hosts {
            set.insert(host);
        }
        set
    }
}

impl Extend<HostId> for HostSet {
    fn extend<I: IntoIterator<Item = HostId>>(&mut self, hosts: I) {
        for host in hosts {
            self.insert(host);
        }
    }
}

impl fmt::Debug for HostSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set()
            .entries(self.iter().map(|host| host.0))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn set(hosts: &BTreeSet<u32>) -> HostSet {
        hosts.iter().map(|&host| HostId(host)).collect()
    }

    #[test]
    fn sets_are_sets() {
        let mut rng = crate::rng::Rng::new(1);
        for _ in 0..2000 {
            let mut draw = || -> BTreeSet<u32> {
                let count = rng.below(6);
                let range = [4, 70, 200][rng.below(3) as usize];
                (0..count).map(|_| rng.below(range) as u32).collect()
            };
            let (a, b) = (draw(), draw());
            let (x, y) = (set(&a), set(&b));
            assert_eq!(x.len() as usize, a.len());
            assert_eq!(x == y, a == b);
            assert_eq!(x.includes(&y), a.is_superset(&b));
            assert_eq!(x.without(&y), set(&(&a - &b)));
            assert_eq!(x.common(&y), set(&(&a & &b)));
            assert!(x.iter().map(|host| host.0).eq(a.iter().copied()));
            assert_eq!(x.lowest().map(|host| host.0), a.first().copied());
            if a.len() < b.len() {
                assert!(x < y);
            }
            let mut fewer = x.clone();
            for host in &b {
                assert_eq!(fewer.remove(HostId(*host)), a.contains(host));
            }
            assert_eq!(fewer, x.without(&y));
        }
    }
}
