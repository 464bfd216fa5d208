//! What is sent that no node sends: a member's lies, and forged datagrams.

use std::rc::Rc;

use fabricast::proto::{Seq, Time};

use super::{Cluster, alarm, group_id};
use crate::fabric::{Packet, Target};
use crate::liar::{Heard, Liar};
use crate::workload::Kind;

impl Cluster<'_> {
    /// From now on the liar's own node is silent, and nothing is expected of it.
    pub(super) fn begin_to_lie(&mut self) {
        let Some((host, mean)) = self.scenario.faults.liar else {
            return;
        };
        self.hosts[host].dead = true;
        for role in &self.hosts[host].roles {
            self.left -= self.scenario.streams[role.stream].lens.len() - role.over;
        }
        if let Some(judge) = &mut self.judge {
            judge.lies(host as u32);
        }
        let streams = self.scenario.streams.iter();
        let heard = streams.filter(|s| s.root != host).map(|s| {
            let group = &self.scenario.groups[s.group];
            Heard {
                group: group_id(s.group),
                target: s.group as u32,
                host: s.root as u32,
                sender: self.numbering.node(s.root as u32),
                payload_size: group.payload_size,
                front: Seq(group.start),
                cum: Seq(group.start),
                burst: 0,
                received: 0,
            }
        });
        let (node, window) = (
            self.numbering.node(host as u32),
            self.scenario.scheme.window,
        );
        let me = (node, self.session);
        let mut liar = Liar::new(me, self.scenario.seed, window, heard.collect());
        let first = liar.pause(mean.as_nanos() as u64);
        self.liar = Some(liar);
        self.fabric.alarm(Time(first), alarm::LIAR, 0);
    }

    pub(super) fn lie(&mut self) {
        let now = self.now();
        let (Some(liar), Some((host, mean))) = (&mut self.liar, self.scenario.faults.liar) else {
            return;
        };
        // The liar stops once no operation is left that it could mislead.
        if self.left == 0 {
            return;
        }
        let (to, bytes) = liar.says(self.hosts.len() as u32);
        let next = now + liar.pause(mean.as_nanos() as u64);
        if to != Target::Host(host as u32) {
            let packet = Packet {
                from: host as u32,
                to,
                kind: Kind::Message,
                way_ns: 0,
                bytes,
            };
            self.fabric.send(Time(now), Rc::new(packet));
        }
        self.fabric.alarm(Time(next), alarm::LIAR, 0);
    }

    pub(super) fn be_hostile(&mut self) {
        let now = self.now();
        let f = &self.scenario.faults;
        let (Some(mean), heal) = (f.hostile_every, f.heal_at.as_nanos() as u64) else {
            return;
        };
        if now >= heal {
            return;
        }
        let (host, packet) = self.hostile.make(self.hosts.len() as u32);
        self.fabric.inject(Time(now), host, packet);
        let next = now + self.hostile.pause(mean.as_nanos() as u64);
        self.fabric.alarm(Time(next), alarm::HOSTILE, 0);
    }
}
