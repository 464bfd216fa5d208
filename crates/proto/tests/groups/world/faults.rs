//! What goes wrong in a world: hosts stop or crash, the network forgets.

use std::collections::BTreeSet;
use std::time::Duration;

use fabricast_proto::group::HostId;
use fabricast_proto::{AddressId, Time};

use super::{EXCUSE, Event, UNNOTICED, World};

impl World {
    /// A host does nothing from now on, as if its process were stopped.
    pub fn stop(&mut self, host: HostId) {
        self.stopped.insert(host);
    }

    /// A host that was stopped goes on.
    pub fn go_on(&mut self, host: HostId) {
        self.stopped.remove(host);
        let (ready, kept) = (self.kept.drain(..)).partition(|(at, _)| *at == host);
        self.kept = kept;
        let ready: Vec<(HostId, Event)> = ready;
        for (_, event) in ready {
            self.after(Duration::ZERO, event);
        }
    }

    /// The network forgets memberships: all, those of a host, or one that nobody notices.
    pub(super) fn forget(&mut self, kind: u32) {
        self.losses += 1;
        let entries: Vec<(AddressId, HostId)> = (self.manager.members.iter())
            .flat_map(|(&address, hosts)| hosts.iter().map(move |host| (address, host)))
            .collect();
        if entries.is_empty() {
            return;
        }
        let pick = entries[self.rng.below(entries.len() as u64) as usize];
        let restart = kind.is_multiple_of(3);
        let lost: BTreeSet<_> = match kind % 3 {
            0 => entries.into_iter().collect(),
            1 => entries
                .into_iter()
                .filter(|entry| entry.1 == pick.1)
                .collect(),
            _ => [pick].into(),
        };
        if restart {
            let down = self.within(3_000_000);
            self.manager.down_until = self.now + down;
            self.manager.queue.clear();
        }
        let noticed = kind % 3 < 2;
        self.forgotten += lost.len() as u64;
        for (address, host) in lost {
            self.manager.forget(address, host, noticed);
            let news = self.within(20_000);
            let until = match noticed {
                true => self.now + news + EXCUSE,
                false => self.now + UNNOTICED + EXCUSE,
            };
            let alone = self.judge.crashed.contains(HostId(0));
            let until = if alone { Time::NEVER } else { until };
            self.judge.forgotten(address, host, until);
            if noticed {
                self.after(news, Event::LostNews(host, address));
            }
        }
        self.dirty = true;
    }

    pub(super) fn crash(&mut self) {
        let host = HostId(self.rng.below(u64::from(self.scenario.hosts)) as u32);
        // The coordinator crashes more rarely: nothing new happens without it.
        if host == HostId(0) && self.rng.chance(0.6) {
            return;
        }
        if !self.judge.crashed.insert(host) {
            return;
        }
        self.hosts[host.0 as usize] = None;
        self.judge.by.retain(|(of, _), _| *of != host);
        if host == HostId(0) {
            for until in self.judge.excused.values_mut() {
                *until = Time::NEVER;
            }
        }
        for to in 0..self.scenario.hosts {
            let wait = self.within(50_000);
            self.after(wait, Event::GoneNews(HostId(to), host));
        }
    }
}
