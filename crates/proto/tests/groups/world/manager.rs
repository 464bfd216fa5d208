//! A manager that answers joins one by one, and switches whose tables lag behind its answers.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use fabricast_proto::group::{HostId, HostSet, Refusal};
use fabricast_proto::rng::Rng;
use fabricast_proto::{AddressId, Time};

/// The context's own address.
pub const CONTEXT: AddressId = AddressId(0);

/// A request of a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    pub host: HostId,
    pub address: AddressId,
    pub join: bool,
}

/// What the manager says to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    Joined,
    Left,
    Refused(Refusal),
}

/// What the manager does with the request at the head of its queue.
pub struct Served {
    pub request: Request,
    /// `None`: the answer is lost.
    pub answer: Option<Answer>,
    /// When the switches follow, and the number of this change; `None` if nothing changes.
    pub table: Option<(Duration, u64)>,
}

/// The manager's behaviour.
#[derive(Clone, Debug)]
pub struct Behaviour {
    /// Most addresses beside the context's; `u32::MAX`: no limit.
    pub limit: u32,
    /// Whether an address beyond the limit is granted and never forwarded, as with IGMP.
    pub silent_limit: bool,
    /// Most microseconds that a request takes.
    pub service_us: u64,
    /// Most microseconds by which tables lag behind answers.
    pub lag_us: u64,
    /// Probability that an answer is lost.
    pub lost: f64,
    /// An address that every host is denied.
    pub denied: Option<AddressId>,
    /// A host that is denied every address but the context's.
    pub barred: Option<HostId>,
    /// A host whose requests are never answered, except those for the context's address.
    pub unheard: Option<HostId>,
    /// A host that probes by no address but the context's reach, and whose own arrive nowhere.
    pub deaf: Option<HostId>,
    /// Probability that a host's answer to a probe is lost.
    pub probes_lost: f64,
}

/// The manager, its database, and the tables of the switches.
pub struct Manager {
    pub behaviour: Behaviour,
    pub queue: VecDeque<Request>,
    /// Members as the manager knows them.
    pub members: BTreeMap<AddressId, HostSet>,
    /// Members that the network forwards to.
    pub table: BTreeMap<AddressId, HostSet>,
    /// The last change of each table entry that was ordered, and the last that was made.
    ordered: BTreeMap<(AddressId, HostId), u64>,
    changes: u64,
    /// The manager answers nothing before this time.
    pub down_until: Time,
}

impl Manager {
    pub fn new(behaviour: Behaviour, context: Option<HostSet>) -> Manager {
        let members: BTreeMap<_, _> = context.map(|all| (CONTEXT, all)).into_iter().collect();
        Manager {
            behaviour,
            queue: VecDeque::new(),
            table: members.clone(),
            members,
            ordered: BTreeMap::new(),
            changes: 0,
            down_until: Time::ZERO,
        }
    }

    pub fn forwards(&self, address: AddressId, host: HostId) -> bool {
        let deaf = self.behaviour.deaf == Some(host) && address != CONTEXT;
        !deaf && self.table.get(&address).is_some_and(|to| to.contains(host))
    }

    /// Serves the next request.
    pub fn serve(&mut self, now: Time, rng: &mut Rng) -> Option<Served> {
        let request = self.queue.pop_front()?;
        let Request {
            host,
            address,
            join,
        } = request;
        let unheard = self.behaviour.unheard == Some(host) && address != CONTEXT;
        if now < self.down_until || unheard {
            return Some(Served {
                request,
                answer: None,
                table: None,
            });
        }
        let used = self.members.iter();
        let used = used.filter(|(a, members)| **a != CONTEXT && !members.is_empty());
        let exists = self.members.get(&address).is_some_and(|m| !m.is_empty());
        let full = address != CONTEXT && !exists && used.count() as u32 >= self.behaviour.limit;
        let members = self.members.entry(address).or_default();
        let mut forwards = true;
        let barred = self.behaviour.barred == Some(host) && address != CONTEXT;
        let answer = match join {
            true if barred => Answer::Refused(Refusal::Denied),
            true if self.behaviour.denied == Some(address) => Answer::Refused(Refusal::Denied),
            true if full && !self.behaviour.silent_limit => Answer::Refused(Refusal::NoAddresses),
            true => {
                forwards = !full;
                if !full {
                    members.insert(host);
                }
                Answer::Joined
            }
            false if members.remove(host) || rng.chance(0.5) => Answer::Left,
            false => Answer::Refused(Refusal::Denied),
        };
        let changes = forwards && !matches!(answer, Answer::Refused(_));
        let table = changes.then(|| {
            self.changes += 1;
            self.ordered.insert((address, host), self.changes);
            let lag = Duration::from_micros(rng.below(self.behaviour.lag_us + 1));
            (lag, self.changes)
        });
        let answer = (!rng.chance(self.behaviour.lost)).then_some(answer);
        Some(Served {
            request,
            answer,
            table,
        })
    }

    /// A switch follows the manager, unless a later change was ordered. Returns the entry's value
    /// if it changed.
    pub fn follow(&mut self, request: Request, number: u64) -> bool {
        let key = (request.address, request.host);
        if self.ordered.get(&key) != Some(&number) {
            return false;
        }
        let table = self.table.entry(request.address).or_default();
        match request.join {
            true => table.insert(request.host),
            false => table.remove(request.host),
        }
    }

    /// The network forgets a membership. With `database` the manager forgets it as well.
    pub fn forget(&mut self, address: AddressId, host: HostId, database: bool) {
        self.ordered.remove(&(address, host));
        if let Some(table) = self.table.get_mut(&address) {
            table.remove(host);
        }
        if let Some(members) = self.members.get_mut(&address).filter(|_| database) {
            members.remove(host);
        }
    }
}
