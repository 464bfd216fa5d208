//! Entries of a feed whose names are one name in the follower's file system, since it does not tell
//! upper from lower case.
//!
//! Entries come by transfers of their own, so no transfer finds them. Without this check one would
//! replace the other again and again, or stand in its way.

use std::collections::BTreeSet;
use std::path::Path;

use fabricast::error::Error;
use fabricast::feed::Catalogue;
use fabricast::object::folded_names;
use fabricast::text::{escaped, first_of, shown};

/// The entries of the present catalogue that do not come for that reason.
#[derive(Default)]
pub struct Twins {
    /// Their numbers.
    numbers: BTreeSet<u32>,
    /// The names of each group that this follower has told the user of.
    told: BTreeSet<Vec<String>>,
}

impl Twins {
    /// Finds them in a new catalogue. `folder`: the feed's directory. Returns messages for the user
    /// about those that were not there before.
    pub fn find(&mut self, folder: &Path, catalogue: &Catalogue) -> Result<Vec<String>, Error> {
        let names: Vec<&str> = catalogue.entries.iter().map(|entry| &*entry.name).collect();
        let groups = folded_names(folder, &names)?;
        Ok(self.note(folder, &names, groups))
    }

    /// Notes groups of names that are one name each, by their numbers.
    fn note(&mut self, folder: &Path, names: &[&str], groups: Vec<Vec<u32>>) -> Vec<String> {
        let before = std::mem::take(&mut self.told);
        self.numbers = groups.iter().flatten().copied().collect();
        let mut messages = Vec::new();
        for group in groups {
            let group: Vec<String> = group.iter().map(|n| names[*n as usize].into()).collect();
            if !before.contains(&group)
                && let [one, others @ ..] = &group[..]
                && let [other, ..] = others
            {
                messages.push(format!(
                    "{} and {} are {} entries of the feed and one name here: the file system at {} \
                     does not tell upper from lower case, and none of them comes. Rename them at \
                     the feed, or receive into a directory on another file system",
                    escaped(one),
                    first_of(other, others.len()),
                    group.len(),
                    shown(folder)
                ));
            }
            self.told.insert(group);
        }
        messages
    }

    /// Removes them from what is wanted.
    pub fn remove_from(&self, wanted: &mut BTreeSet<u32>) {
        wanted.retain(|number| !self.numbers.contains(number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_one_are_told_once_and_do_not_come() {
        let (mut twins, folder) = (Twins::default(), Path::new("/feed"));
        let names = ["A", "b", "a", "B", "c"];
        let wanted = |twins: &Twins| {
            let mut wanted = (0..5).collect();
            twins.remove_from(&mut wanted);
            wanted.into_iter().collect::<Vec<u32>>()
        };
        assert_eq!(twins.note(folder, &names, Vec::new()), [""; 0]);
        assert_eq!(wanted(&twins), [0, 1, 2, 3, 4]);
        let told = twins.note(folder, &names, vec![vec![0, 2]]);
        assert!(told[0].starts_with("A and a are 2 entries"), "{told:?}");
        assert_eq!(wanted(&twins), [1, 3, 4]);
        let told = twins.note(folder, &names, vec![vec![0, 2], vec![1, 3]]);
        assert!(
            told.len() == 1 && told[0].starts_with("b and B"),
            "{told:?}"
        );
        assert_eq!(wanted(&twins), [4]);
        // One was renamed, and has its old name again later.
        assert_eq!(twins.note(folder, &names, Vec::new()), [""; 0]);
        assert_eq!(twins.note(folder, &names, vec![vec![0, 2]]).len(), 1);
    }
}
