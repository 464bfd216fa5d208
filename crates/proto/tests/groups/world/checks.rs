//! What must hold when a world has come to rest.

use std::time::Duration;

use fabricast_proto::AddressId;
use fabricast_proto::group::{HostId, HostSet, Strategy};

use super::World;
use super::manager::CONTEXT;

impl World {
    fn live(&self) -> HostSet {
        HostSet::first_hosts(self.scenario.hosts).without(&self.judge.crashed)
    }

    /// The live hosts that can join addresses.
    fn able(&self) -> HostSet {
        let m = &self.scenario.manager;
        let lame: HostSet = m.barred.or(m.unheard).or(m.deaf).into_iter().collect();
        self.live().without(&lame)
    }

    /// Most messages that the coordinator may send in the whole run.
    fn messages_most(&self) -> u64 {
        let hosts = u64::from(self.scenario.hosts);
        let groups = u64::from(self.created);
        // Where addresses are refused, one more is tried every minute at most, by all hosts.
        let limited = self.scenario.is_scarce() || self.scenario.stops > 0;
        let tries = if limited { 30 } else { 0 };
        hosts * (8 * groups + 8 * self.forgotten + 12 * tries + 60)
    }

    fn members(&self, address: AddressId) -> HostSet {
        let members = self.manager.members.get(&address);
        members.map_or(HostSet::new(), |m| m.without(&self.judge.crashed))
    }

    /// Checks a world in which nothing has happened for long, with groups in it.
    pub(super) fn settled(&self) -> Result<(), String> {
        let alone = self.judge.crashed.contains(HostId(0));
        for (&(host, id), &by) in &self.judge.by {
            let group = &self.judge.groups[&id];
            let Some(machine) = &self.hosts[host.0 as usize] else {
                continue;
            };
            if !group.ready.contains(host) {
                return Err(format!("{host:?}: {id:?} never becomes ready"));
            }
            let status = machine.status(id).expect("a group");
            if status.address != by {
                return Err(format!("{host:?}: {id:?} by {by:?}, not {status:?}"));
            }
            // Where most answers are lost, a host may still be joining the context's address again.
            let context = self.members(CONTEXT) == self.live() && self.scenario.manager.lost < 0.2;
            if group.hosts.len() >= 3 && by.is_none() && context && !alone {
                return Err(format!(
                    "{host:?}: {id:?} has no way, but the context has one"
                ));
            }
            if group.hosts.len() < 3 && by.is_some() {
                return Err(format!("{host:?}: {id:?} has one receiver, and an address"));
            }
            // A host that is left alone has no other to probe, and none to send to.
            let several = group.hosts.common(&self.live()).len() > 1;
            if let (Some(address), true, false, true) = (by, status.own, alone, several)
                && self.members(address) != group.hosts.without(&self.judge.crashed)
            {
                let members = self.members(address);
                return Err(format!("{address:?} of {:?} has {members:?}", group.hosts));
            }
        }
        if let (Some(coordinator), 0) = (&self.hosts[0], self.scenario.crashes) {
            let alive = self.judge.groups.values();
            let alive = alive.filter(|group| group.hosts.len() >= 3).count();
            let snapshot = coordinator.snapshot();
            if snapshot.alive as usize != alive {
                return Err(format!("{alive} groups are alive: {snapshot:?}"));
            }
            if snapshot.taken > self.scenario.addresses + 1 {
                return Err(format!("too many addresses: {snapshot:?}"));
            }
        }
        let faults = self.scenario.crashes + self.scenario.losses;
        let whole = faults == 0 && self.scenario.groups < 100;
        let able = self.scenario.addresses >= 40;
        if whole && able && !self.scenario.is_scarce() {
            for &(host, id) in self.judge.by.keys() {
                let machine = self.hosts[host.0 as usize].as_ref().expect("a host");
                let status = machine.status(id).expect("a group");
                let many = self.judge.groups[&id].hosts.len();
                let all = many == self.scenario.hosts && !self.scenario.context_address;
                if many >= 3 && !status.own && !all {
                    return Err(format!(
                        "{host:?}: {id:?} has no address of its own: {status:?}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Checks a world in which all groups have ended: addresses are free or in the pool.
    pub(super) fn returned(&self) -> Result<(), String> {
        if !self.judge.groups.is_empty() {
            return Err("groups that do not end".to_string());
        }
        for machine in self.hosts.iter().flatten() {
            let snapshot = machine.snapshot();
            if snapshot.groups != 0 || snapshot.in_use != 0 {
                return Err(format!("groups are left: {snapshot:?}"));
            }
        }
        let Some(coordinator) = &self.hosts[0] else {
            return Ok(());
        };
        let snapshot = coordinator.snapshot();
        let context = u32::from(self.scenario.context_address);
        let kept = snapshot.taken - context - snapshot.spare;
        // A manager with few addresses is asked for one more now and then. Where many answers are
        // lost, hosts are set aside and tried by an address of their own.
        let manager = &self.scenario.manager;
        let tried = u32::from(manager.limit < u32::MAX) + u32::from(manager.lost > 0.2);
        if snapshot.alive != 0 || snapshot.waiting != 0 || kept > tried {
            return Err(format!("addresses are not returned: {snapshot:?}"));
        }
        let pool = match self.scenario.strategy {
            Strategy::Pool { size, .. } => size,
            _ => 0,
        };
        if snapshot.spare > pool {
            return Err(format!("the pool is too large: {snapshot:?}"));
        }
        let able = !self.scenario.is_scarce() && self.live().len() >= 3;
        let shares = self
            .hosts
            .iter()
            .flatten()
            .map(|host| host.snapshot().share);
        let shares = shares.sum::<u32>();
        if shares != snapshot.dealt {
            return Err(format!(
                "no host has them: {shares} in shares, {snapshot:?}"
            ));
        }
        let undealt = snapshot.spare - shares;
        if able && undealt > snapshot.target / 4 {
            return Err(format!("no host has {undealt} of the pool: {snapshot:?}"));
        }
        if self.messages > self.messages_most() {
            return Err(format!("the coordinator sent {} messages", self.messages));
        }
        let (mut whole, mut partly) = (0, 0);
        let able = self.able();
        for &address in self.manager.members.keys() {
            let members = self.members(address);
            if members == self.live() || members == able {
                whole += u32::from(address != CONTEXT);
            } else if address != CONTEXT && !members.is_empty() && self.live().len() >= 3 {
                partly += 1;
                if partly <= tried {
                    continue;
                }
                return Err(format!("{address:?} still has {members:?}"));
            }
        }
        let manager = &self.scenario.manager;
        let plenty = manager.limit == u32::MAX && manager.denied.is_none() && manager.lost == 0.0;
        let plenty = plenty && self.scenario.addresses > 8 && able.len() >= 3;
        if plenty && snapshot.spare < pool {
            return Err(format!("the pool is not full: {snapshot:?}"));
        }
        let most = if self.live().len() < 3 {
            u32::MAX
        } else {
            pool
        };
        match whole > most {
            true => Err(format!("{whole} addresses are joined by all hosts")),
            false => Ok(()),
        }
    }

    /// Checks that little happens when nothing is to do.
    pub(super) fn silent(&self, before: u64) -> Result<(), String> {
        // The manager may have fewer addresses than the pool wants: one is tried now and then.
        let hosts = u64::from(self.scenario.hosts);
        // One address and some hosts are tried now and then; where answers are lost, they are asked
        // again.
        let most = match self.scenario.is_scarce() {
            true if self.scenario.manager.lost > 0.2 => 80 * hosts,
            true => 40 * hosts,
            false => 0,
        };
        // A host goes on to ask the manager to leave when nobody needs that any more.
        let unheard = self.scenario.manager.unheard.is_some();
        let most = match self.judge.crashed.contains(HostId(0)) {
            true if unheard => 4 * u64::from(self.scenario.addresses),
            true => 0,
            false => most,
        };
        let outputs = self.outputs - before;
        match self.unrest > most || outputs > most + 800 {
            true => Err(format!(
                "{} joins or messages, {outputs} outputs in silence",
                self.unrest
            )),
            false => Ok(()),
        }
    }

    /// The context ends: everything is returned.
    pub(super) fn close(&mut self) -> Result<(), String> {
        let now = self.now;
        for id in 0..self.scenario.hosts {
            if let Some(host) = self.host(HostId(id)) {
                host.close(now);
                self.drain(HostId(id))?;
            }
        }
        self.until(now + Duration::from_secs(400))?;
        for machine in self.hosts.iter().flatten() {
            // The manager does not say that the host has left.
            let unheard = self.scenario.manager.unheard.is_some();
            if !machine.is_closed() && !unheard {
                return Err(format!("a host is not closed: {machine:?}"));
            }
        }
        for &address in self.manager.members.keys() {
            let members = self.members(address);
            if !members.is_empty() {
                return Err(format!("{address:?} has {members:?} after the end"));
            }
        }
        Ok(())
    }
}
