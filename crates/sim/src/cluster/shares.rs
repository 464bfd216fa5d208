//! Hosts whose streams share a fixed rate.

use fabricast::proto::{Command, Time};

use super::{Cluster, group_id};

impl Cluster<'_> {
    /// Tells the roots the weights of their streams.
    pub(super) fn weigh_streams(&mut self) {
        for plan in self.scenario.streams.iter().filter(|plan| plan.weight != 1) {
            let (group, weight) = (group_id(plan.group), plan.weight);
            let weigh = Command::Weight { group, weight };
            if let Err(e) = self.hosts[plan.root].driver.command(Time::ZERO, weigh) {
                self.world
                    .complain(|| format!("host {}: weight refused: {e}", plan.root));
            }
        }
    }

    /// Tells a host its new fixed rate.
    pub(super) fn change_rate(&mut self, change: usize) {
        let now = Time(self.now());
        let change = self.scenario.rate_changes[change];
        let host = &mut self.hosts[change.host];
        if let Err(e) = host.driver.command(now, Command::Rate(change.rate)) {
            self.world
                .complain(|| format!("host {}: rate refused: {e}", change.host));
        }
        if let Some(judge) = &mut self.share_judge {
            judge.rate_changes(change.host, change.rate);
        }
        self.step_when_free(change.host);
    }

    /// Tells the checker which of a host's streams have something to send, now that it waits.
    pub(super) fn look_who_shares(&mut self, h: usize) {
        if let Some(judge) = &mut self.share_judge {
            let node = self.hosts[h].driver.node();
            judge.waits(h, |group| node.takes_turns(group));
        }
    }
}
