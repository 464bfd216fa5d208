//! How long a broadcast on a new communicator takes, by strategy (P5.5, P5.6).

use std::time::Duration;

use fabricast::proto::group::{HostId, HostSet, Strategy};
use fabricast::proto::{Histogram, Time};

use super::{Behaviour, Plan, Scenario, Subnet};
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
    /// The manager.
    pub manager: Behaviour,
    /// Whether an address of all hosts is there from the start. A communicator without an address
    /// of its own sends by it, otherwise by unicast (P5.3).
    pub context_address: bool,
    /// Fixed rate of each sender in bytes per second; `None`: senders find it.
    pub rate: Option<u64>,
    /// Broadcasts, one after another.
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
    /// Median time from a host's request to join an address until the manager's answer, all joins
    /// of the run counted; at most an eighth too long.
    pub answer: Duration,
    /// Longest time from the manager's last answer for an address until its tables had followed.
    pub tables: Duration,
}

impl Experiment {
    /// A broadcast of 1 KB by a manager as measured, with an address of all hosts.
    pub fn new(nodes: u32, strategy: Strategy) -> Experiment {
        Experiment {
            nodes,
            strategy,
            manager: Behaviour::opensm(),
            context_address: true,
            rate: None,
            iterations: 1,
            len: 1024,
            compute: Duration::ZERO,
            seed: 1,
        }
    }

    /// Runs the experiment on the healthy network of [`Scenario::new`].
    pub fn run(&self) -> Result<Effective, Failure> {
        let mut scenario = Scenario::new(2 * self.nodes, self.strategy);
        scenario.seed = self.seed;
        scenario.manager = self.manager.clone();
        scenario.context_address = self.context_address;
        scenario.rate = self.rate;
        let hosts: HostSet = (0..self.nodes).map(|node| HostId(2 * node)).collect();
        let bcasts = vec![(HostId(0), self.len); self.iterations];
        let mut plan = Plan::new(AT, hosts, bcasts);
        plan.compute = self.compute;
        scenario.plans.push(plan);
        let mut subnet = Subnet::new(&scenario, Trace::silent());
        let outcome = subnet.work_only()?;
        let mut answers = Histogram::default();
        for host in &subnet.hosts {
            answers.add(&host.machine.statistics().join_time);
        }
        let course = &outcome.courses[0];
        let created = course.created.unwrap_or_default();
        let since = |at: Option<Time>| at.unwrap_or_default().since(created);
        let iterations = self.iterations.max(1) as u32;
        Ok(Effective {
            latency: since(course.done).saturating_sub(self.compute) / iterations,
            creation: since(course.ready),
            own_first: course.own_first == Some(true),
            answer: answers.quantile(0.5).unwrap_or_default(),
            tables: outcome.lag,
        })
    }
}
