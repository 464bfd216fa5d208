//! Experiments drawn from a seed: several files, losses, receivers that join and leave, expiry.

use std::time::Duration;

use fabricast::proto::ibrmp::Credits;
use fabricast::proto::rng::Rng;

use super::FileExperiment;
use crate::fault::LinkFaults;

impl FileExperiment {
    /// The experiment of a seed.
    pub fn from_seed(seed: u64) -> FileExperiment {
        let mut rng = Rng::new(seed);
        let messages = 1 + rng.below(32) as u32;
        let files = 1 + rng.below(30);
        let receivers = rng.below(6) as u32;
        let late = rng.below(4) as usize;
        let hosts = 1..=receivers + late as u32;
        let leaving: Vec<u32> = hosts.filter(|_| rng.below(4) == 0).collect();
        let leaving = leaving.into_iter();
        let soon = |rng: &mut Rng| Duration::from_micros(rng.below(5000));
        FileExperiment {
            receivers,
            late: (0..late).map(|_| soon(&mut rng)).collect(),
            leaves: leaving.map(|host| (host, soon(&mut rng) * 2)).collect(),
            files: (0..files).map(|_| rng.below(60_000)).collect(),
            slots: 1 + rng.below(8) as u16,
            block: 500 + rng.below(1000) as u32,
            credits: Credits {
                messages,
                batch: 1 + rng.below(u64::from(messages)) as u32,
            },
            timeout: Duration::from_micros(20 << rng.below(14)),
            faults: LinkFaults {
                loss: 0.9 * rng.unit(),
                duplicate: 0.1,
                reorder: 0.2,
                late_max: Duration::from_micros(300),
                ..LinkFaults::NONE
            },
            seed,
            ..FileExperiment::default()
        }
    }
}
