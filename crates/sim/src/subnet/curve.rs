//! How long a broadcast on a new communicator takes, by strategy (P5.6).

use std::time::Duration;

use fabricast::proto::group::{HostId, HostSet, Strategy};

use super::{Plan, Scenario, Subnet};
use crate::cluster::Failure;
use crate::trace::Trace;

/// When the communicator is created: the pool is full by then.
const AT: Duration = Duration::from_secs(2);

/// An experiment: a communicator is created, its hosts compute, and one of them broadcasts.
#[derive(Clone, PartialEq, Debug)]
pub struct Experiment {
    /// Hosts of the communicator. The cluster has as many again, which are not in it.
    pub nodes: u32,
    /// When the communicator gets an address.
    pub strategy: Strategy,
    /// Broadcasts.
    pub iterations: usize,
    /// Length of each broadcast in bytes.
    pub len: u64,
    /// Time for which the hosts compute before the first broadcast.
    pub compute: Duration,
    /// Seed of the manager's and the network's times.
    pub seed: u64,
}

/// The result of an experiment.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Effective {
    /// Time from the call that creates the communicator until all hosts have all broadcasts, less
    /// the time of computing, for each broadcast.
    pub latency: Duration,
    /// Time from the call that creates the communicator until it has returned at all hosts.
    pub creation: Duration,
    /// Whether the first broadcast left by an address of exactly the communicator's hosts.
    pub own_first: bool,
}

impl Experiment {
    /// Runs the experiment on a healthy network with the manager of [`Scenario::new`].
    pub fn run(&self) -> Result<Effective, Failure> {
        let mut scenario = Scenario::new(2 * self.nodes, self.strategy);
        scenario.seed = self.seed;
        let hosts: HostSet = (0..self.nodes).map(|node| HostId(2 * node)).collect();
        let bcasts = vec![(HostId(0), self.len); self.iterations];
        let mut plan = Plan::new(AT, hosts, bcasts);
        plan.compute = self.compute;
        scenario.plans.push(plan);
        let outcome = Subnet::new(&scenario, Trace::silent()).work_only()?;
        let course = &outcome.courses[0];
        let created = course.created.unwrap_or_default();
        let since = |at: Option<fabricast::proto::Time>| at.unwrap_or_default().since(created);
        let iterations = self.iterations.max(1) as u32;
        Ok(Effective {
            latency: since(course.done).saturating_sub(self.compute) / iterations,
            creation: since(course.ready),
            own_first: course.own_first == Some(true),
        })
    }
}
