//! What this process is a member of. It asks the subnet for an address; only when the subnet has
//! granted it, the network between hosts joins.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::mem;
use std::time::Duration;

use fabricast_proto::group::Refusal;
use fabricast_proto::{AddressId, Time};
use tracing::{debug, info, warn};

use super::addresses::Addresses;
use crate::communicator::limits::ADDRESSES;
use crate::communicator::networks::{Network, Networks};
use crate::driver::Join;
use crate::object::Divisible;
use crate::subnet::failed::Failed;
use crate::subnet::{self, News, Subnet};
use crate::transport::GroupAddress;

/// What the subnet was asked for last, of one address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asked {
    /// To join; it has not answered.
    Joining,
    /// To join; it has agreed, and the network is joining.
    Attaching,
    /// To join; it has agreed, and the network has joined.
    Granted,
    /// To leave; it has not answered.
    Leaving,
}

/// What has become of a membership.
#[derive(Debug)]
pub(super) enum Became {
    /// The subnet has granted it, and the network has joined.
    Joined,
    /// The subnet has refused it.
    Refused(Refusal),
    /// The subnet has granted it, and the network could not join.
    Failed(io::Error),
    /// The subnet has forgotten it, and joins again by itself.
    Lost,
    /// It has ended.
    Left,
}

/// The addresses of which this process is a member, or is about to be.
pub(super) struct Memberships {
    subnet: Box<dyn Subnet + Send>,
    asked: BTreeMap<AddressId, Asked>,
    news: VecDeque<(AddressId, Became)>,
    /// When to take answers again: the subnet says so, since no thread sleeps on its descriptor.
    wake: Time,
}

impl Memberships {
    pub fn new(subnet: Box<dyn Subnet + Send>) -> Memberships {
        Memberships {
            subnet,
            asked: BTreeMap::new(),
            news: VecDeque::new(),
            wake: Time::NEVER,
        }
    }

    /// A word for what grants addresses.
    pub fn subnet_name(&self) -> &'static str {
        self.subnet.name()
    }

    /// Whether this process has left all addresses.
    pub fn is_empty(&self) -> bool {
        self.asked.is_empty()
    }

    /// Whether the subnet has answered everything, and the network has joined what was granted.
    pub fn is_settled(&self) -> bool {
        self.asked.values().all(|&asked| asked == Asked::Granted)
    }

    /// Whether an answer of the subnet is still to come, and not of the network alone.
    pub fn awaits_subnet(&self) -> bool {
        let answered = |asked| matches!(asked, Asked::Granted | Asked::Attaching);
        !self.asked.values().all(|&asked| answered(asked))
    }

    /// Whether the network is joining an address that the subnet has granted.
    pub fn is_attaching(&self, id: AddressId) -> bool {
        self.asked.get(&id) == Some(&Asked::Attaching)
    }

    /// Begins to join an address.
    pub fn join(&mut self, now: Time, (id, at): (AddressId, &GroupAddress)) {
        match self.asked.get(&id) {
            // Subnet and network go on by themselves.
            Some(Asked::Joining | Asked::Attaching) => {}
            // The machine gave up before the answer came, and asks again.
            Some(Asked::Granted) => self.news.push_back((id, Became::Joined)),
            Some(Asked::Leaving) | None => {
                self.asked.insert(id, Asked::Joining);
                self.subnet.create(now, at);
                self.wake = now;
            }
        }
    }

    /// Begins to join an address anew: kernel, switches and manager are told once more.
    pub fn join_anew<O: Divisible>(
        &mut self,
        now: Time,
        (id, at): (AddressId, &GroupAddress),
        networks: &mut Networks<O>,
    ) {
        if let Some(asked) = self.asked.get_mut(&id)
            && matches!(asked, Asked::Attaching | Asked::Granted)
        {
            *asked = Asked::Joining;
            self.wake = now;
            networks.leave(Network::InterNode, id);
            self.subnet.leave(now, at);
            self.subnet.create(now, at);
        }
        self.join(now, (id, at));
    }

    /// Begins to leave an address.
    pub fn leave<O: Divisible>(
        &mut self,
        now: Time,
        (id, at): (AddressId, &GroupAddress),
        networks: &mut Networks<O>,
    ) {
        match self.asked.get_mut(&id) {
            // The subnet tries again by itself.
            Some(Asked::Leaving) => {}
            Some(asked) => {
                if matches!(asked, Asked::Attaching | Asked::Granted) {
                    networks.leave(Network::InterNode, id);
                }
                *asked = Asked::Leaving;
                self.subnet.leave(now, at);
                self.wake = now;
            }
            None => self.news.push_back((id, Became::Left)),
        }
    }

    /// When to take the subnet's answers.
    pub fn due(&self) -> Time {
        match self.news.is_empty() {
            true => self.wake,
            false => Time::ZERO,
        }
    }

    /// Begins to leave all shared addresses.
    pub fn leave_shared<O: Divisible>(
        &mut self,
        now: Time,
        addresses: &Addresses,
        networks: &mut Networks<O>,
    ) {
        for id in (0..ADDRESSES as u32).map(AddressId) {
            if self.asked.contains_key(&id)
                && let Some(at) = addresses.at(id)
            {
                self.leave(now, (id, at), networks);
            }
        }
    }

    /// Takes the subnet's answers. The network joins what the subnet has granted.
    pub fn step<O: Divisible>(
        &mut self,
        now: Time,
        addresses: &Addresses,
        networks: &mut Networks<O>,
    ) {
        if let Err(error) = self.subnet.step(now) {
            warn!(%error, "the subnet gives no more addresses");
            self.fail(networks);
        }
        while let Some(news) = self.subnet.news() {
            debug!(%news, "the subnet tells");
            match news {
                News::Joined(at) => {
                    // It may have been left meanwhile.
                    if let Some(id) = addresses.number_of(&at)
                        && let Some(asked) = self.asked.get_mut(&id)
                        && *asked != Asked::Leaving
                    {
                        *asked = Asked::Attaching;
                        let joined = networks.join(Network::InterNode, id, &at);
                        self.attached(now, (id, &at), joined);
                    }
                }
                News::Refused(at, why) => {
                    if let Some(id) = addresses.number_of(&at) {
                        self.asked.remove(&id);
                        self.news.push_back((id, Became::Refused(reason(why))));
                    }
                }
                News::Left(at) => {
                    // An address that is joined again is not left.
                    if let Some(id) = addresses.number_of(&at)
                        && self.asked.get(&id) == Some(&Asked::Leaving)
                    {
                        self.asked.remove(&id);
                        self.news.push_back((id, Became::Left));
                    }
                }
                News::Lost(at) => {
                    if let Some(id) = addresses.number_of(&at) {
                        self.asked.insert(id, Asked::Joining);
                        self.news.push_back((id, Became::Lost));
                    }
                }
                news => info!(%news, "the subnet tells"),
            }
        }
        self.wake = self.subnet.due().unwrap_or(Time::NEVER);
    }

    /// Takes note of how the network's join of a granted address has ended, or that it goes on.
    pub fn attached(
        &mut self,
        now: Time,
        (id, at): (AddressId, &GroupAddress),
        joined: io::Result<Join>,
    ) {
        match joined {
            Ok(Join::UnderWay) => {}
            Ok(Join::Done) => {
                self.asked.insert(id, Asked::Granted);
                self.news.push_back((id, Became::Joined));
            }
            Err(error) => {
                debug!(%error, address = %at, "cannot join");
                self.asked.remove(&id);
                self.subnet.leave(now, at);
                self.wake = now;
                self.news.push_back((id, Became::Failed(error)));
            }
        }
    }

    /// What has become of a membership, the oldest first.
    pub fn news(&mut self) -> Option<(AddressId, Became)> {
        self.news.pop_front()
    }

    /// Blocks until the subnet may have answered, or `timeout` has passed.
    pub fn wait(&mut self, timeout: Duration) {
        // An error shows in the next step.
        let _ = self.subnet.wait(timeout);
    }

    /// From now on, another subnet grants addresses.
    #[cfg(test)]
    pub fn put_subnet(&mut self, subnet: Box<dyn Subnet + Send>) {
        self.subnet = subnet;
        self.wake = Time::ZERO;
    }

    /// The subnet has failed for good. From now on it refuses everything. Groups go on by shared
    /// addresses, which stay joined: the network may carry them still.
    fn fail<O: Divisible>(&mut self, networks: &mut Networks<O>) {
        self.subnet = Box::new(Failed::default());
        for (id, asked) in mem::take(&mut self.asked) {
            let became = match asked {
                Asked::Granted if (id.0 as usize) < ADDRESSES => {
                    self.asked.insert(id, asked);
                    continue;
                }
                Asked::Joining | Asked::Attaching => Became::Refused(Refusal::NoAnswer),
                Asked::Granted => Became::Lost,
                Asked::Leaving => Became::Left,
            };
            if matches!(asked, Asked::Attaching | Asked::Granted) {
                networks.leave(Network::InterNode, id);
            }
            self.news.push_back((id, became));
        }
    }
}

/// Why the subnet has refused an address, in the words of the machine of groups.
fn reason(why: subnet::Refusal) -> Refusal {
    match why {
        subnet::Refusal::NoAddresses | subnet::Refusal::TooMany => Refusal::NoAddresses,
        subnet::Refusal::Busy | subnet::Refusal::TimedOut => Refusal::NoAnswer,
        _ => Refusal::Denied,
    }
}
