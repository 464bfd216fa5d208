//! What a feed sends next, and to whom.

use std::collections::BTreeSet;

/// Most bytes of a short entry. A longer one is sent alone: then a follower that was killed finds
/// the same set again, and goes on with it (spec 5.11).
pub const SHORT_MAX: u64 = 4 << 20;
/// Most transfers in which a follower takes part at the same time.
pub const AT_ONCE_MAX: usize = 16;
/// Most bytes of the short entries of a publication.
const BYTES_MAX: u64 = 64 << 20;
/// Most entries of a publication.
const ENTRIES_MAX: usize = 1024;

/// What is sent next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Choice<K> {
    /// Numbers of the entries in the catalogue.
    pub entries: BTreeSet<u32>,
    /// The followers that want all of these.
    pub followers: Vec<K>,
}

/// Chooses what to send next: the entry that most followers want, of these the oldest. A short one
/// takes other short ones along that exactly the same followers want. `None` if nobody wants
/// anything that may be sent now.
///
/// * `lens`: bytes of each entry of the catalogue; `None`: it is not sent now.
/// * `wants`: each follower, and the numbers of the entries that it wants.
pub fn next_publication<K: Copy>(
    lens: &[Option<u64>],
    wants: &[(K, &BTreeSet<u32>)],
) -> Option<Choice<K>> {
    let mut counts = vec![0usize; lens.len()];
    for (_, wanted) in wants {
        for &entry in *wanted {
            counts[entry as usize] += usize::from(lens[entry as usize].is_some());
        }
    }
    let most = *counts.iter().max()?;
    let first = counts.iter().position(|count| *count == most && most > 0)?;
    let wanted_by = |entry: usize| {
        let entry = entry as u32;
        wants.iter().map(move |(_, wanted)| wanted.contains(&entry))
    };
    let mut entries = BTreeSet::from([first as u32]);
    let mut bytes = lens[first]?;
    let others = match bytes <= SHORT_MAX {
        true => first + 1..lens.len(),
        false => 0..0,
    };
    for entry in others {
        let is_alike = counts[entry] == most && wanted_by(entry).eq(wanted_by(first));
        let Some(len) = lens[entry].filter(|len| is_alike && *len <= SHORT_MAX) else {
            continue;
        };
        bytes += len;
        if bytes > BYTES_MAX || entries.len() == ENTRIES_MAX {
            break;
        }
        entries.insert(entry as u32);
    }
    let followers = wants
        .iter()
        .filter(|(_, wanted)| wanted.contains(&(first as u32)));
    Some(Choice {
        entries,
        followers: followers.map(|(key, _)| *key).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(numbers: &[u32]) -> BTreeSet<u32> {
        numbers.iter().copied().collect()
    }

    /// Publishes until nobody wants anything. Returns what was sent to whom.
    fn all(lens: &[u64], wants: &[&[u32]]) -> Vec<(Vec<u32>, Vec<usize>)> {
        let lens: Vec<Option<u64>> = lens.iter().copied().map(Some).collect();
        let mut wants: Vec<BTreeSet<u32>> = wants.iter().map(|wanted| set(wanted)).collect();
        let mut sent = Vec::new();
        loop {
            let some: Vec<(usize, &BTreeSet<u32>)> = wants.iter().enumerate().collect();
            let Some(Choice { entries, followers }) = next_publication(&lens, &some) else {
                return sent;
            };
            for follower in &followers {
                wants[*follower] = wants[*follower].difference(&entries).copied().collect();
            }
            sent.push((entries.into_iter().collect(), followers));
        }
    }

    #[test]
    fn what_many_want_goes_first_and_nothing_goes_twice() {
        // Two followers lack the last entry, and a new one lacks all.
        let sent = all(&[1, 2, 3], &[&[2], &[2], &[0, 1, 2]]);
        assert_eq!(sent, [(vec![2], vec![0, 1, 2]), (vec![0, 1], vec![2])]);
        assert_eq!(all(&[1, 2], &[&[], &[]]), []);
        assert_eq!(all(&[], &[&[]]), []);
    }

    #[test]
    fn long_entries_go_alone() {
        let long = SHORT_MAX + 1;
        let sent = all(&[1, long, 2, long], &[&[0, 1, 2, 3]]);
        let entries: Vec<Vec<u32>> = sent.into_iter().map(|(entries, _)| entries).collect();
        assert_eq!(entries, [vec![0, 2], vec![1], vec![3]]);
    }

    /// What is not sent now counts for nothing: neither who wants it, nor that it is like another.
    #[test]
    fn what_is_not_sent_now_is_left_out() {
        let (both, one) = (set(&[0, 1, 2, 3]), set(&[2, 3]));
        let wants = [("a", &both), ("b", &one)];
        let next = |lens: &[Option<u64>]| {
            let choice = next_publication(lens, &wants)?;
            Some((Vec::from_iter(choice.entries), choice.followers))
        };
        let both = vec!["a", "b"];
        assert_eq!(next(&[Some(1); 4]), Some((vec![2, 3], both.clone())));
        assert_eq!(next(&[Some(1), None, None, Some(1)]), Some((vec![3], both)));
        assert_eq!(
            next(&[Some(1), None, None, None]),
            Some((vec![0], vec!["a"]))
        );
        assert_eq!(next(&[None; 4]), None);
    }

    #[test]
    fn a_publication_is_bounded() {
        let many: Vec<u32> = (0..3000).collect();
        let sent = all(&vec![1; 3000], &[&many]);
        assert_eq!(sent.len(), 3);
        let some: Vec<u32> = (0..40).collect();
        let sent = all(&[SHORT_MAX; 40], &[&some]);
        assert!(
            sent.iter().all(|(entries, _)| entries.len() <= 16),
            "{sent:?}"
        );
        assert_eq!(
            sent.iter().map(|(entries, _)| entries.len()).sum::<usize>(),
            40
        );
    }

    /// Every follower gets everything that it wants once, and nothing else, whatever is wanted.
    #[test]
    fn all_small_cases() {
        for wants in 0..1u32 << 9 {
            let of = |follower: u32| -> Vec<u32> {
                (0..3)
                    .filter(|e| wants >> (follower * 3 + e) & 1 == 1)
                    .collect()
            };
            let wanted: Vec<Vec<u32>> = (0..3).map(of).collect();
            let slices: Vec<&[u32]> = wanted.iter().map(|w| &w[..]).collect();
            for lens in [[1, 1, 1], [1, SHORT_MAX + 1, 1], [SHORT_MAX + 1; 3]] {
                let mut got = vec![Vec::<u32>::new(); 3];
                let mut sent = Vec::new();
                for (entries, followers) in all(&lens, &slices) {
                    followers.iter().for_each(|f| got[*f].extend(&entries));
                    sent.extend(entries);
                }
                got.iter_mut().for_each(|got| got.sort());
                assert_eq!(got, wanted);
                sent.sort();
                assert!(sent.windows(2).all(|two| two[0] < two[1]), "{sent:?}");
            }
        }
    }
}
