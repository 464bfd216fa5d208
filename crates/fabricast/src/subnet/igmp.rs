//! A network without a manager, such as IP multicast on Ethernet: the transport joins at once, and
//! nobody ever says "no more".
//!
//! The sockets that join are the transport's. Here memberships are only counted. Whether switches
//! forward, a probe tells.

use std::collections::VecDeque;

use fabricast_proto::Time;
use rustc_hash::FxHashMap;

use super::{News, Refusal, Subnet};
use crate::transport::GroupAddress;

/// Grants every multicast address at once.
#[derive(Default)]
pub struct Igmp {
    /// How often each address is joined.
    uses: FxHashMap<GroupAddress, u32>,
    news: VecDeque<News>,
}

impl Igmp {
    /// Makes a subnet without memberships.
    pub fn new() -> Igmp {
        Igmp::default()
    }

    /// Number of addresses that this host is a member of.
    pub fn memberships(&self) -> usize {
        self.uses.len()
    }
}

impl Subnet for Igmp {
    fn name(&self) -> &'static str {
        "igmp"
    }

    fn create(&mut self, now: Time, address: &GroupAddress) {
        self.join(now, address);
    }

    fn join(&mut self, _: Time, address: &GroupAddress) {
        self.news.push_back(match address.ip() {
            Some(ip) if !ip.ip().is_multicast() => News::Refused(address.clone(), Refusal::Foreign),
            _ => {
                *self.uses.entry(address.clone()).or_default() += 1;
                News::Joined(address.clone())
            }
        });
    }

    fn leave(&mut self, _: Time, address: &GroupAddress) {
        if let Some(uses) = self.uses.get_mut(address) {
            *uses -= 1;
            if *uses == 0 {
                self.uses.remove(address);
            }
        }
        self.news.push_back(News::Left(address.clone()));
    }

    fn news(&mut self) -> Option<News> {
        self.news.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    #[test]
    fn every_join_is_granted_and_counted() {
        let mut igmp = Igmp::new();
        let a: GroupAddress = "239.1.1.1:7000".parse::<SocketAddr>().unwrap().into();
        igmp.create(Time::ZERO, &a);
        igmp.join(Time::ZERO, &a);
        assert_eq!(igmp.memberships(), 1);
        igmp.leave(Time::ZERO, &a);
        assert_eq!(igmp.memberships(), 1);
        igmp.leave(Time::ZERO, &a);
        assert_eq!(igmp.memberships(), 0);
        let news: Vec<_> = std::iter::from_fn(|| igmp.news()).collect();
        let [joined, left] = [News::Joined(a.clone()), News::Left(a)];
        assert_eq!(news, [joined.clone(), joined, left.clone(), left]);
    }

    #[test]
    fn unicast_addresses_are_refused() {
        let mut igmp = Igmp::new();
        let unicast: SocketAddr = "10.0.0.1:7000".parse().unwrap();
        let unicast = GroupAddress::from(unicast);
        igmp.join(Time::ZERO, &unicast);
        let refused = News::Refused(unicast, Refusal::Foreign);
        assert_eq!(igmp.news(), Some(refused));
        assert_eq!(igmp.memberships(), 0);
    }
}
