//! Workloads that measure the simulator's own speed. The caller has the clock.

use std::time::Duration;

use fabricast::proto::Time;

use fabricast_sim::Scenario;
use fabricast_sim::Trace;
use fabricast_sim::fault::LinkFaults;
use fabricast_sim::topology::{LinkSpec, Topology};
use fabricast_sim::{Cluster, Failure};

/// A run to be timed.
#[derive(Clone, PartialEq, Debug)]
pub struct Workload {
    /// Description of the workload.
    pub name: &'static str,
    /// The simulated scenario.
    pub scenario: Scenario,
    /// The speed that the workload is to reach.
    pub goal: Option<Goal>,
}

/// A bound on the median of a workload.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Goal {
    /// At most this many seconds.
    Seconds(f64),
    /// At least this many million events per second.
    MillionPerSecond(f64),
}

/// All workloads. The checkers watch only where the name says so.
pub fn workloads() -> [Workload; 5] {
    let small = to_nodes(1024, 64 << 10);
    let lossy = |mut s: Scenario| {
        s.faults.down = LinkFaults::uniform(0.01);
        s.faults.heal_at = Duration::from_secs(3600);
        s
    };
    let judged = |mut s: Scenario| {
        s.judged = true;
        s
    };
    let workload = |name, scenario, goal| Workload {
        name,
        scenario,
        goal,
    };
    let (soon, fast) = (Goal::Seconds(0.1), Goal::MillionPerSecond(2.0));
    let large = to_nodes(64, 16 << 20);
    [
        workload("64 KB to 1024 nodes", small.clone(), Some(soon)),
        workload("64 KB to 1024 nodes, 1 % loss", lossy(small.clone()), None),
        workload("16 MB to 64 nodes", large.clone(), Some(fast)),
        // Here most of the time goes into computing what each receiver lacks.
        workload("16 MB to 64 nodes, 1 % loss", lossy(large), None),
        workload("64 KB to 1024 nodes, checked", judged(small), None),
    ]
}

/// A scenario of one object to `receivers` nodes on switches of 32.
fn to_nodes(receivers: usize, len: u64) -> Scenario {
    let mut s = Scenario::bulk(receivers + 1, len, 1440);
    s.topology = Topology::two_level(32, LinkSpec::GIGABIT, LinkSpec::GIGABIT);
    s.judged = false;
    s
}

impl Workload {
    /// Builds the cluster and runs it to the end. Returns the number of events, and the simulated
    /// time at which the broadcast was complete.
    pub fn run(&self) -> Result<(u64, Time), Failure> {
        let outcome = Cluster::new(&self.scenario, Trace::silent()).run()?;
        Ok((outcome.events, outcome.done_at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workload_runs_to_its_end() {
        for workload in workloads() {
            let (events, _) = workload.run().expect(workload.name);
            assert!(events > 50_000, "{}: {events} events", workload.name);
        }
    }
}
