//! A rate that several transfers of a process share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fabricast_proto::limits::WEIGHT_MAX;

/// A rate in bytes per second that several transfers share by their weights. A transfer with less
/// to send than its share leaves the rest to the others. Clones are the same rate.
#[derive(Clone, Debug)]
pub struct SharedRate {
    pool: Arc<Pool>,
    weight: u32,
}

#[derive(Debug)]
struct Pool {
    members: Mutex<Members>,
    /// Counts the changes of what members want and hold.
    changes: AtomicU64,
}

#[derive(Debug)]
struct Members {
    /// Bytes per second.
    total: u64,
    /// The members by their numbers.
    all: BTreeMap<u64, Member>,
    /// The number of the next member.
    next: u64,
}

/// A transfer that shares the rate.
#[derive(Clone, Copy, Debug)]
struct Member {
    weight: u32,
    /// The most that it could send, in bytes per second.
    wants: u64,
    /// What it may send until it looks again, in bytes per second.
    holds: u64,
}

/// The share of one transfer, which drops it at its end.
#[derive(Debug)]
pub(crate) struct RateShare {
    pool: Arc<Pool>,
    number: u64,
    /// The count of changes when the transfer looked last.
    seen: u64,
}

impl SharedRate {
    /// A rate in bytes per second that nobody shares yet. Transfers have weight 1.
    pub fn new(rate: u64) -> SharedRate {
        let members = Members {
            total: rate,
            all: BTreeMap::new(),
            next: 0,
        };
        let pool = Pool {
            members: Mutex::new(members),
            changes: AtomicU64::new(0),
        };
        SharedRate {
            pool: Arc::new(pool),
            weight: 1,
        }
    }

    /// The same rate, for a transfer with another weight, which is brought within 1 and
    /// [`WEIGHT_MAX`].
    #[must_use]
    pub fn with_weight(&self, weight: u32) -> SharedRate {
        SharedRate {
            pool: self.pool.clone(),
            weight: weight.clamp(1, WEIGHT_MAX),
        }
    }

    /// The whole rate, in bytes per second.
    pub fn rate(&self) -> u64 {
        self.pool.lock().total
    }

    /// A transfer begins, which has nothing to send yet.
    pub(crate) fn join(&self) -> RateShare {
        let mut members = self.pool.lock();
        let number = members.next;
        members.next += 1;
        members.all.insert(
            number,
            Member {
                weight: self.weight,
                wants: 0,
                holds: 0,
            },
        );
        RateShare {
            pool: self.pool.clone(),
            number,
            seen: 0,
        }
    }
}

impl Pool {
    fn lock(&self) -> MutexGuard<'_, Members> {
        // The numbers hold together even if a thread has panicked.
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self) {
        self.changes.fetch_add(1, Ordering::Release);
    }
}

impl Members {
    /// What a member should have: nobody has more than it wants, and those that want more than they
    /// have share the rest by their weights.
    fn share(&self, number: u64) -> u64 {
        let mut left = self.total;
        let mut others: Vec<(u64, Member)> = self.all.iter().map(|(&n, &m)| (n, m)).collect();
        loop {
            let weights: u64 = others.iter().map(|(_, m)| u64::from(m.weight)).sum();
            let share = |m: &Member| {
                let share = u128::from(left) * u128::from(m.weight) / u128::from(weights.max(1));
                share as u64
            };
            let content = others.iter().position(|(_, m)| m.wants <= share(m));
            let Some(content) = content else {
                let found = others.iter().find(|(n, _)| *n == number);
                return found.map_or(0, |(_, m)| share(m));
            };
            let (n, member) = others.swap_remove(content);
            if n == number {
                return member.wants;
            }
            left -= member.wants;
        }
    }
}

impl RateShare {
    /// The whole rate, in bytes per second.
    pub fn total(&self) -> u64 {
        self.pool.lock().total
    }

    /// Sets the most that the transfer could send, in bytes per second; zero: it has nothing to
    /// send.
    pub fn want(&mut self, rate: u64) {
        let mut members = self.pool.lock();
        if let Some(member) = members.all.get_mut(&self.number)
            && member.wants != rate
        {
            member.wants = rate;
            self.pool.changed();
        }
    }

    /// The rate of the transfer from now on, in bytes per second, if it changes. The transfer must
    /// keep to it at once. A share grows only when the others have given up theirs, so the sum is
    /// never more than the rate.
    pub fn take(&mut self) -> Option<u64> {
        let changes = self.pool.changes.load(Ordering::Acquire);
        if std::mem::replace(&mut self.seen, changes) == changes {
            return None;
        }
        let mut members = self.pool.lock();
        let others = members.all.iter().filter(|(n, _)| **n != self.number);
        let held: u64 = others.map(|(_, m)| m.holds).sum();
        let share = members.share(self.number);
        let share = share.min(members.total.saturating_sub(held));
        let member = members.all.get_mut(&self.number)?;
        if std::mem::replace(&mut member.holds, share) == share {
            return None;
        }
        self.pool.changed();
        Some(share)
    }
}

impl Drop for RateShare {
    fn drop(&mut self) {
        self.pool.lock().all.remove(&self.number);
        self.pool.changed();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: u64 = u64::MAX;

    /// All look until nothing changes. The sum is checked at each step.
    fn settle(rate: &SharedRate, shares: &mut [RateShare]) -> Vec<u64> {
        loop {
            let mut changed = false;
            for share in &mut *shares {
                changed |= share.take().is_some();
                let members = rate.pool.lock();
                let sum: u64 = members.all.values().map(|m| m.holds).sum();
                assert!(sum <= members.total);
            }
            if !changed {
                let members = rate.pool.lock();
                return shares
                    .iter()
                    .map(|s| members.all[&s.number].holds)
                    .collect();
            }
        }
    }

    #[test]
    fn a_transfer_alone_has_all() {
        let rate = SharedRate::new(1000);
        let mut shares = [rate.join()];
        assert_eq!(settle(&rate, &mut shares), [0]);
        shares[0].want(ALL);
        assert_eq!(shares[0].take(), Some(1000));
        assert_eq!(shares[0].take(), None);
    }

    #[test]
    fn transfers_share_by_weight() {
        let rate = SharedRate::new(1000);
        let mut shares = [rate.join(), rate.with_weight(4).join()];
        shares[0].want(ALL);
        assert_eq!(settle(&rate, &mut shares), [1000, 0]);
        shares[1].want(ALL);
        assert_eq!(shares[1].take(), None, "the other has it still");
        assert_eq!(shares[0].take(), Some(200));
        assert_eq!(shares[1].take(), Some(800));
        // One has nothing to send for a while.
        shares[1].want(0);
        assert_eq!(settle(&rate, &mut shares), [1000, 0]);
    }

    #[test]
    fn what_a_transfer_does_not_want_is_for_the_others() {
        let rate = SharedRate::new(1000);
        let mut shares = [rate.join(), rate.join(), rate.with_weight(3).join()];
        shares[0].want(100);
        shares[1].want(ALL);
        shares[2].want(ALL);
        assert_eq!(settle(&rate, &mut shares), [100, 225, 675]);
        shares[2].want(300);
        assert_eq!(settle(&rate, &mut shares), [100, 600, 300]);
        shares[1].want(0);
        assert_eq!(settle(&rate, &mut shares), [100, 0, 300]);
    }

    #[test]
    fn a_transfer_that_ends_leaves_its_share() {
        let rate = SharedRate::new(1000);
        let mut shares = vec![rate.join(), rate.join()];
        shares.iter_mut().for_each(|s| s.want(ALL));
        assert_eq!(settle(&rate, &mut shares), [500, 500]);
        drop(shares.pop());
        assert_eq!(settle(&rate, &mut shares), [1000]);
    }

    #[test]
    fn weights_are_bounded() {
        let rate = SharedRate::new(1001);
        let mut shares = [
            rate.with_weight(0).join(),
            rate.with_weight(u32::MAX).join(),
        ];
        shares.iter_mut().for_each(|s| s.want(ALL));
        assert_eq!(settle(&rate, &mut shares), [1, 1000]);
    }
}
