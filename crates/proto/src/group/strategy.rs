//! When a group gets an address of its own, as a value.

use core::fmt;
use core::ops::RangeInclusive;
use core::str::FromStr;

use crate::id::AddressId;

/// When a group gets a multicast address of its own (P5.2, P5.3, P5.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Strategy {
    /// A group is ready when its address is proven, or when it is known to get none (P5.2).
    Basic,
    /// A group is ready at once, and changes to its address when that is proven (P5.3).
    Lazy,
    /// Addresses are joined and proven by all hosts in advance. A group takes one (P5.4).
    Pool {
        /// Addresses in advance while few groups come; at least one.
        size: u32,
        /// Most addresses in advance, however fast groups come; at least `size`.
        max: u32,
    },
    /// A pool whose size follows the number of hosts, so that each host that may be a group's
    /// lowest has an address for it; at least 8 addresses, at most 64.
    #[default]
    PoolByHosts,
}

/// Least and most addresses in advance of a pool whose size follows the number of hosts.
const SIZES: RangeInclusive<u32> = 8..=64;
/// Largest number that a strategy's name may contain.
const SIZE_MAX: u32 = 4096;
/// `max` of a pool whose name does not say it, as a multiple of `size`.
const MAX_FACTOR: u32 = 4;

/// The address of a group that has none of its own: one of 1 to `addresses`, by a hash of its
/// members. All members compute the same, from the members in ascending order.
pub fn shared_address(members: impl Iterator<Item = u32>, addresses: u32) -> AddressId {
    let mix = |sum: u64, member: u32| (sum ^ u64::from(member)).wrapping_mul(0x0100_0000_01b3);
    let mixed = members.fold(0xcbf2_9ce4_8422_2325, mix);
    AddressId(1 + ((mixed >> 32) % u64::from(addresses)) as u32)
}

impl Strategy {
    /// A pool of `size` addresses that may grow to four times as many.
    pub const fn pool(size: u32) -> Strategy {
        let max = MAX_FACTOR * size;
        Strategy::Pool { size, max }
    }

    /// Whether there are addresses in advance.
    pub fn has_pool(self) -> bool {
        self.sizes(u32::MAX).0 > 0
    }

    /// How many addresses there are in advance among this many hosts: while few groups come, and at
    /// most.
    pub fn sizes(self, hosts: u32) -> (u32, u32) {
        match self {
            Strategy::Basic | Strategy::Lazy => (0, 0),
            Strategy::Pool { size, max } => (size, max.max(size)),
            Strategy::PoolByHosts => {
                // The last two hosts are no group's lowest. A quarter is kept as the reserve.
                let lowest = hosts.saturating_sub(2).min(*SIZES.end());
                let size = (lowest * 4).div_ceil(3).clamp(*SIZES.start(), *SIZES.end());
                (size, MAX_FACTOR * size)
            }
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Strategy::Basic => write!(f, "basic"),
            Strategy::Lazy => write!(f, "lazy"),
            Strategy::Pool { size, .. } if *self == Strategy::pool(size) => {
                write!(f, "pool({size})")
            }
            Strategy::Pool { size, max } => write!(f, "pool({size}),max={max}"),
            Strategy::PoolByHosts => write!(f, "pool"),
        }
    }
}

/// The error of a name that stands for no strategy. Its message lists the valid names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownStrategy {
    name: String,
}

impl fmt::Display for UnknownStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "no strategy '{}': one of basic, lazy, pool, pool(N), pool(N),max=M, with N from 1 to \
             {SIZE_MAX} and M at least N",
            self.name
        )
    }
}

impl std::error::Error for UnknownStrategy {}

impl FromStr for Strategy {
    type Err = UnknownStrategy;

    fn from_str(name: &str) -> Result<Strategy, UnknownStrategy> {
        let pool = || {
            let (size, rest) = name.strip_prefix("pool(")?.split_once(')')?;
            let size = number(size)?;
            if rest.is_empty() {
                return Some(Strategy::pool(size));
            }
            let max = number(rest.strip_prefix(",max=")?)?;
            (size <= max).then_some(Strategy::Pool { size, max })
        };
        let strategy = match name {
            "basic" => Some(Strategy::Basic),
            "lazy" => Some(Strategy::Lazy),
            "pool" => Some(Strategy::PoolByHosts),
            _ => pool(),
        };
        strategy.ok_or_else(|| UnknownStrategy {
            name: name.to_string(),
        })
    }
}

/// A number from 1 to [`SIZE_MAX`], in digits only.
fn number(text: &str) -> Option<u32> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|_| digits)?;
    (1..=SIZE_MAX).contains(&number).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_strategy_is_read_as_it_is_written() {
        let mut all = vec![Strategy::Basic, Strategy::Lazy, Strategy::default()];
        for size in [1, 2, 8, 1000, SIZE_MAX] {
            let max = [size, size + 1, 4 * size, SIZE_MAX];
            let max = max.into_iter().filter(|&max| max <= SIZE_MAX);
            all.extend(max.map(|max| Strategy::Pool { size, max }));
        }
        for strategy in all {
            let name = strategy.to_string();
            assert_eq!(name.parse(), Ok(strategy), "{name}");
        }
        assert_eq!("pool".parse(), Ok(Strategy::default()));
        let pool = Strategy::Pool { size: 4, max: 9 };
        assert_eq!("pool(4),max=9".parse(), Ok(pool));
    }

    #[test]
    fn a_name_that_means_nothing_is_refused() {
        for bad in [
            "",
            "Basic",
            "basic ",
            "pool ",
            "pool()",
            "pool(0)",
            "pool(+1)",
            "pool(4",
            "pool(4)x",
            "pool(4),max=3",
            "pool(4),max=",
            "pool(4), max=8",
            "pool(5000)",
            "lazy(1)",
            "max=4",
        ] {
            let error = bad.parse::<Strategy>().unwrap_err().to_string();
            assert!(error.contains("pool(N),max=M"), "{bad}: {error}");
        }
    }
}
