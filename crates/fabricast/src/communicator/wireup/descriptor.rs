//! Endpoint descriptors: what each process gives to all others in a round of the wire-up.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::communicator::error::Error;
use crate::communicator::hierarchy::intra_node::LocalRank;
use crate::communicator::options::Bootstrap;
use crate::transport::NodeAddress;

/// Bytes that each process gives in a round.
pub const DESCRIPTOR_LEN: usize = 512;
/// Version of the descriptor format and of the protocol. All processes must have the same.
pub(crate) const VERSION: u32 = 6;
/// Largest length of a reason, in bytes of its JSON form.
const REASON: usize = 400;

/// What a process says of itself in the first round.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) struct EndpointDescriptor {
    pub version: u32,
    /// A random number of the process. The job uses that of rank 0.
    pub session: u64,
    /// The address to which datagrams for this process go.
    pub address: NodeAddress,
    /// The TCP address at which rank 0 listens; `None` for all others.
    pub watch: Option<SocketAddr>,
    /// Largest datagram that its interface takes, in bytes.
    pub datagram: u32,
    /// The number of the process's host, and the name of its channel there; `None`: it cannot share
    /// memory.
    pub host: Option<(u64, u64)>,
    /// A secret number that only the job's processes know.
    pub key: u64,
    /// A hash of the scheme's name. All processes must have the same.
    pub scheme: u64,
    /// A hash of the name of the algorithm of broadcasts. All processes must have the same.
    pub broadcast: u64,
    /// A hash of the name of the strategy by which groups get addresses. All processes must have
    /// the same.
    pub groups: u64,
}

impl EndpointDescriptor {
    /// What the process tells those with which it may share memory; `None`: it cannot share memory.
    pub fn local_rank(&self) -> Option<LocalRank> {
        let (host, waker) = self.host?;
        let key = self.key;
        Some(LocalRank { host, waker, key })
    }
}

/// What a process says in the second round, after it has tried to reach the others.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) struct Reached {
    /// Whether the process has reached its host's memory, or why not.
    pub near: Result<(), String>,
}

/// What a process that has probed the others says in the third round. Hosts are numbered in the
/// order of their leaders.
#[derive(Serialize, Deserialize, Debug)]
struct Tried {
    /// The number of the process's own host.
    pub host: u32,
    /// The hosts that its multicasts do not reach, as runs of a first number and a count.
    pub unreached: Vec<(u32, u32)>,
}

/// Largest number of runs, which fit in a descriptor. Each root finds out by itself about hosts in
/// further runs, as it does about hosts that are cut off during a job.
const RUNS_MAX: usize = 16;

fn put(given: &Result<impl Serialize, String>) -> Vec<u8> {
    let given = given.as_ref().map_err(|reason| short(reason));
    let mut bytes = serde_json::to_vec(&given).unwrap_or_default();
    bytes.resize(DESCRIPTOR_LEN, b' ');
    bytes
}

/// The longest prefix of a reason that fits in a descriptor.
pub(crate) fn short(reason: &str) -> &str {
    let fits = |text: &str| serde_json::to_string(text).is_ok_and(|t| t.len() <= REASON);
    let ends = (0..=REASON.min(reason.len())).rev();
    let mut cut = ends.filter_map(|end| reason.get(..end));
    cut.find(|text| fits(text)).unwrap_or_default()
}

/// What all processes gave, by rank. An error names the first process that reported one.
pub(crate) fn agree<T: for<'a> Deserialize<'a>>(
    bootstrap: &mut dyn Bootstrap,
    mine: &Result<impl Serialize, String>,
) -> Result<Vec<T>, Error> {
    let given = bootstrap.allgather(&put(mine));
    let given = given.map_err(Error::Bootstrap)?;
    let read = (0..).zip(&given).map(|(rank, bytes)| {
        let descriptor: Result<T, String> = serde_json::from_slice(bytes)
            .unwrap_or_else(|_| Err("it speaks another version of Fabricast".into()));
        descriptor.map_err(|reason| Error::CannotTakePart { rank, reason })
    });
    read.collect()
}

/// The third round: each process tells all others whether it is ready, or why not. A process that
/// has probed the others gives its own host and, sorted, the hosts that its multicasts do not
/// reach. Returns the hosts that no prober on another host reaches. An error names the first
/// process that is not ready.
pub(crate) fn agree_on_unreached(
    bootstrap: &mut dyn Bootstrap,
    mine: Result<Option<(u32, Vec<u32>)>, &Error>,
) -> Result<Vec<u32>, Error> {
    let mine = mine.map_err(Error::to_string);
    let mine = mine.map(|tried| {
        tried.map(|(host, unreached)| Tried {
            host,
            unreached: runs(&unreached),
        })
    });
    let said: Vec<Option<Tried>> = agree(bootstrap, &mine)?;
    let hosts = said.len() as u32;
    let tried: Vec<Tried> = said.into_iter().flatten().collect();
    let misses = |tried: &Tried, host: u32| {
        let mut runs = tried.unreached.iter();
        runs.any(|&(first, count)| host.checked_sub(first).is_some_and(|i| i < count))
    };
    let unreached = (0..hosts).filter(|&host| {
        let mut others = tried.iter().filter(|tried| tried.host != host).peekable();
        others.peek().is_some() && others.all(|tried| misses(tried, host))
    });
    Ok(unreached.collect())
}

/// Sorted numbers as runs, as many as fit in a descriptor.
fn runs(hosts: &[u32]) -> Vec<(u32, u32)> {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &host in hosts {
        let follows = runs
            .last()
            .is_some_and(|&(first, count)| first + count == host);
        match runs.last_mut() {
            Some((_, count)) if follows => *count += 1,
            _ => runs.push((host, 1)),
        }
    }
    runs.truncate(RUNS_MAX);
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_fits_whatever_it_says() {
        let descriptor = |udp: &str| EndpointDescriptor {
            version: u32::MAX,
            session: u64::MAX,
            address: udp.parse::<SocketAddr>().unwrap().into(),
            watch: Some(udp.parse().unwrap()),
            datagram: u32::MAX,
            host: Some((u64::MAX, u64::MAX)),
            key: u64::MAX,
            scheme: u64::MAX,
            broadcast: u64::MAX,
            groups: 0,
        };
        for udp in [
            "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff%4294967295]:65535",
            "10.0.0.1:1",
        ] {
            let bytes = put(&Ok(descriptor(udp)));
            assert_eq!(bytes.len(), DESCRIPTOR_LEN);
            let read: Result<EndpointDescriptor, String> = serde_json::from_slice(&bytes).unwrap();
            assert_eq!(read.unwrap().address.ip(), udp.parse().ok());
        }
        let near = |reason: &str| Reached {
            near: Err(short(reason).into()),
        };
        for letters in ["a", "ü\"\\\n", "\u{1}"] {
            let reason = letters.repeat(600);
            let bytes = put(&Err::<EndpointDescriptor, _>(reason.clone()));
            let read: Result<EndpointDescriptor, String> = serde_json::from_slice(&bytes).unwrap();
            let said = read.unwrap_err();
            assert!(said.len() > 60 && reason.starts_with(&said), "{said}");
            let bytes = put(&Ok(near(&reason)));
            let read: Result<Reached, String> = serde_json::from_slice(&bytes).unwrap();
            assert_eq!(read.unwrap().near, Err(said));
        }
    }

    /// The leaders of the first two of six hosts have probed the others.
    #[test]
    fn a_host_is_unreached_if_all_who_tried_say_so() {
        struct Said(Vec<Vec<u8>>);
        impl Bootstrap for Said {
            fn rank(&self) -> u32 {
                0
            }
            fn size(&self) -> u32 {
                6
            }
            fn allgather(
                &mut self,
                _: &[u8],
            ) -> Result<Vec<Vec<u8>>, crate::communicator::BootstrapError> {
                Ok(self.0.clone())
            }
        }
        let agreed = |first: Option<&[u32]>, second: Option<&[u32]>| {
            let said = (0..).zip([first, second, None, None, None, None]);
            let said = said.map(|(host, unreached)| {
                let unreached = unreached.map(runs);
                put(&Ok(unreached.map(|unreached| Tried { host, unreached })))
            });
            agree_on_unreached(&mut Said(said.collect()), Ok(None)).unwrap()
        };
        assert!(agreed(Some(&[]), Some(&[])).is_empty());
        assert_eq!(agreed(Some(&[4]), Some(&[4])), [4]);
        let blocked = agreed(Some(&[1, 2, 3, 4, 5]), Some(&[0, 2, 3, 4, 5]));
        assert_eq!(blocked, [0, 1, 2, 3, 4, 5]);
        // The first prober's own link may be at fault. No other process knows of the second host.
        assert_eq!(agreed(Some(&[1, 2, 3, 4, 5]), Some(&[3])), [1, 3]);
        assert_eq!(agreed(Some(&[3]), None), [3]);
        assert!(agreed(None, None).is_empty());
    }

    #[test]
    fn hosts_are_said_in_runs_that_fit_a_card() {
        assert_eq!(runs(&[0, 1, 2, 7, 9, 10]), [(0, 3), (7, 1), (9, 2)]);
        let every_other: Vec<u32> = (0..1000).map(|i| u32::MAX - 2000 + 2 * i).collect();
        let tried = Tried {
            host: u32::MAX,
            unreached: runs(&every_other),
        };
        let bytes = put(&Ok(Some(tried)));
        assert_eq!(bytes.len(), DESCRIPTOR_LEN);
        let read: Result<Option<Tried>, String> = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(read.unwrap().unwrap().unreached.len(), RUNS_MAX);
    }
}
