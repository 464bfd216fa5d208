//! The receivers that can take part together, and where they are: by which family of addresses, and
//! by which of the sender's networks.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::seats::host;
use crate::interface::Family;
use crate::transfer::sender::admission::Admission;
use crate::transfer::sender::receiver_table::Member;

impl Admission<'_> {
    /// Number of receivers that wait for the start and can take part together.
    pub(super) fn present(&self) -> usize {
        self.together().count()
    }

    /// The receivers that wait for the start and can take part together.
    pub(super) fn together(&self) -> impl Iterator<Item = &Member> {
        let family = self.family();
        self.receivers
            .taking_part()
            .filter(move |m| Some(Family::of(m.address.ip())) == family)
    }

    /// The family of the group, or that of most hosts that wait: one client alone does not choose
    /// it.
    pub(super) fn family(&self) -> Option<Family> {
        if let Some(group) = self.options.group {
            return Some(Family::of(group));
        }
        let hosts = |family| {
            let its = self
                .receivers
                .taking_part()
                .map(|m| (m.address.ip(), m.local.ip()));
            its.filter(|(ip, _)| Family::of(*ip) == family)
                .map(|(ip, local)| host(ip, local))
                .collect::<BTreeSet<_>>()
                .len()
        };
        match (hosts(Family::V4), hosts(Family::V6)) {
            (0, 0) => None,
            (v4, v6) if v4 >= v6 => Some(Family::V4), // announcements go by IPv4
            _ => Some(Family::V6),
        }
    }

    /// The sender's address as most receivers' hosts see it: datagrams go out there. Hosts count,
    /// not seats. Clients on this host that connect by the loopback count only if there are no
    /// others.
    pub(super) fn near(&self) -> Option<IpAddr> {
        let mut hosts = BTreeMap::<_, BTreeSet<_>>::new();
        for member in self.receivers.iter() {
            let local = member.local.ip();
            let its = hosts.entry(local).or_default();
            its.insert(host(member.address.ip(), local));
        }
        let most = |(ip, its): &(&IpAddr, &BTreeSet<_>)| (!ip.is_loopback(), its.len());
        hosts.iter().max_by_key(most).map(|(ip, _)| *ip)
    }
}
