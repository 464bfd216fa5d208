//! Scenarios of a seed, with something added: addresses that change, a network that reads late,
//! members that join and leave, a member that lies.

use std::collections::BTreeSet;
use std::time::Duration;

use fabricast::proto::Scheme;
use fabricast::proto::rng::Rng;
use fabricast::proto::scheme::{Copied, FeedbackTopology};

use super::{Change, Draw, Readdress, Scenario, SendsBy, SlowRule, Step, ms, us};
use crate::fault::RateChange;
use crate::topology::{LinkSpec, Topology};
use crate::workload::{GroupPlan, Sending, StreamPlan};

impl Scenario {
    /// A scenario with a file to several receivers, of which the last lies in everything that it
    /// says. The root soon drops a receiver that holds up the others.
    pub fn lied_to(seed: u64) -> Scenario {
        let mut draw = Draw {
            rng: Rng::new(seed ^ 0x11a5_0f11),
        };
        let (rate, payload_size) = draw.one(&[(25_000_000, 1440), (125_000_000, 8900)]);
        let hosts = draw.between(3, 24) as usize;
        let mut s = Scenario::bulk(hosts, rate, payload_size);
        s.seed = seed;
        s.topology = Topology::single(LinkSpec {
            rate,
            ..LinkSpec::GIGABIT
        });
        s.receive_buffer = 4 << 20;
        s.scheme.window = draw.one(&[512, 2048, 16_384]);
        s.faults.down.loss = draw.one(&[0.0, 0.0, 0.01]);
        s.faults.heal_at = Duration::from_secs(3600);
        s.faults.liar = Some((hosts - 1, us(draw.one(&[100, 500, 2000]))));
        s.slow = SlowRule::Drop;
        s.patience = ms(50);
        s
    }

    /// The scenario that a seed stands for, in which hosts begin to send by other addresses again
    /// and again.
    pub fn readdressed(seed: u64) -> Scenario {
        let mut draw = Draw {
            rng: Rng::new(seed ^ 0x0add_4e55),
        };
        let mut s = Scenario::from_seed(seed);
        s.shared_addresses = 2;
        let until = s.faults.heal_at.as_micros() as u64;
        for group in 0..s.groups.len() {
            // Nothing is sent to the address of a group of two.
            if s.groups[group].members.len() == 2 || s.baseline.is_some() {
                continue;
            }
            for host in s.groups[group].members.clone() {
                for _ in 0..draw.rng.below(6) {
                    s.readdressed.push(Readdress {
                        at: us(1 + draw.rng.below(until)),
                        host,
                        group,
                        by: draw.one(&[
                            SendsBy::Own,
                            SendsBy::Shared(0),
                            SendsBy::Shared(1),
                            SendsBy::Nothing,
                        ]),
                    });
                }
            }
        }
        s
    }

    /// A scenario with a file to several receivers, a few of which may be slow all the time, a
    /// little slower than the others, or slow for a moment. The root removes those that hold the
    /// others at less than half of what they could take.
    pub fn outpaced(seed: u64) -> Scenario {
        let mut draw = Draw {
            rng: Rng::new(seed ^ 0x0ace_0ace),
        };
        let (rate, payload_size) = draw.one(&[(25_000_000, 1440), (125_000_000, 8900)]);
        let receivers = draw.between(3, 10) as usize;
        let mut s = Scenario::bulk(receivers + 1, 2 * rate, payload_size);
        s.seed = seed;
        s.topology = Topology::single(LinkSpec {
            rate,
            queue: draw.one(&[256 << 10, 1 << 20]),
            ..LinkSpec::GIGABIT
        });
        s.receive_buffer = 4 << 20;
        s.scheme.window = 16_384;
        s.patience = ms(draw.one(&[200, 400]));
        s.faults.down.loss = draw.one(&[0.0, 0.0, 0.01]);
        s.faults.heal_at = Duration::from_secs(60);
        let slow = draw.one(&[0, 1, receivers as u64 / 2]) as usize;
        let share = draw.one(&[0.1, 0.2, 0.35, 0.75, 0.95]);
        let moment = draw.rarely(4).then(|| s.patience * 2 / 3);
        let mut outpaced = BTreeSet::new();
        for host in receivers + 1 - slow..=receivers {
            let mut change = |at, share: f64| {
                let rate = (rate as f64 * share) as u64;
                s.faults.rates.push(RateChange { host, at, rate });
            };
            let at = draw.one(&[1, 100, 500]);
            change(ms(at), share);
            if let Some(moment) = moment {
                change(ms(at) + moment, 1.0);
            } else if share < 0.4 {
                outpaced.insert(host);
            }
        }
        s.outpaced = Some(outpaced);
        s
    }

    /// A scenario in which one host has several streams of different weights and a fixed rate. Some
    /// have less to send than their share, or pause.
    pub fn weighted(seed: u64) -> Scenario {
        let mut draw = Draw {
            rng: Rng::new(seed ^ 0x3e19_47ed),
        };
        let hosts = draw.between(3, 9) as usize;
        let mut s = Scenario::new(hosts);
        s.seed = seed;
        // Otherwise the checker of shares would see datagrams after the node has counted them.
        s.delay = Some(Duration::ZERO);
        let rate = draw.one(&[2_000_000, 10_000_000, 50_000_000]);
        s.topology = Topology::single(LinkSpec {
            rate: 4 * rate,
            delay: us(draw.one(&[5, 200, 2000])),
            queue: 1 << 20,
        });
        s.receive_buffer = 4 << 20;
        s.rate = Some(rate);
        s.scheme.window = draw.one(&[64, 1024, 16_384]);
        s.faults.down.loss = draw.one(&[0.0, 0.0, 0.01, 0.1]);
        s.faults.heal_at = Duration::from_secs(60);
        for group in 0..draw.between(2, 5) as usize {
            let mut members: Vec<usize> = (1..hosts).filter(|_| draw.rarely(2)).collect();
            if members.is_empty() {
                members.push(1);
            }
            members.insert(0, 0);
            s.groups.push(GroupPlan {
                members,
                payload_size: draw.one(&[1440, 8900]),
                start: 0,
            });
            let lens = (0..draw.between(1, 20)).map(|_| draw.rng.below(rate / 20));
            let mut plan = StreamPlan::new(group, 0, lens.collect());
            plan.weight = draw.one(&[1, 1, 2, 5, 20, 1000]);
            plan.start = us(draw.one(&[0, 1000, 100_000]));
            plan.sending = match draw.rng.below(3) {
                0 => Sending::Ahead(1),
                1 => Sending::Every(us(draw.one(&[1000, 20_000, 100_000]))),
                _ => Sending::Ahead(usize::MAX),
            };
            s.streams.push(plan);
        }
        for _ in 0..draw.one(&[0, 0, 4]) {
            s.rate_changes.push(RateChange {
                host: 0,
                at: us(draw.rng.below(500_000)),
                rate: rate / draw.between(1, 10),
            });
        }
        s.rate_changes.sort_by_key(|change| change.at);
        s
    }

    /// The scenario that a seed stands for, over a network that reads datagrams late and gives
    /// their memory back late and out of order.
    pub fn delayed(seed: u64) -> Scenario {
        let mut draw = Draw {
            rng: Rng::new(seed ^ 0x1a7e_0de1),
        };
        let mut s = Scenario::from_seed(seed);
        s.delay = Some(us(draw.one(&[1, 20, 200, 2000])));
        // Half of the runs read all objects where they are.
        if draw.rarely(2) {
            s.scheme.copied = Copied::Never;
        }
        s
    }

    /// The scenario that a seed stands for, in which receivers join and leave a group again and
    /// again, and decline operations. Each group has one stream.
    pub fn joined(seed: u64) -> Scenario {
        let mut draw = Draw {
            rng: Rng::new(seed ^ 0x0901_ed00),
        };
        let mut s = Scenario::from_seed(seed);
        if s.scheme.topology != FeedbackTopology::Direct {
            let checksum = s.scheme.checksum;
            s.scheme = Scheme {
                checksum,
                ..Scheme::auto()
            };
        }
        (s.prove, s.slow) = (None, SlowRule::Wait);
        s.barriers.clear();
        s.special.iter_mut().for_each(|p| p.disk.full_after = None);
        let mut groups: Vec<usize> = Vec::new();
        s.streams.retain(|stream| {
            let first = !groups.contains(&stream.group);
            groups.push(stream.group);
            first
        });
        // A packet whose bytes come late leaves together with all its repairs. With so many small
        // objects, the judge would take most repairs for idle ones.
        let roots: Vec<usize> = s.streams.iter().map(|stream| stream.root).collect();
        s.special.retain(|p| !roots.contains(&p.host));
        let until = s.faults.heal_at.as_micros() as u64;
        for stream in 0..s.streams.len() {
            let plan = &mut s.streams[stream];
            plan.posting.last.clear();
            let payload_size = u64::from(s.groups[plan.group].payload_size);
            while plan.lens.len() < 12 || draw.rng.chance(0.9) && plan.lens.len() < 100 {
                let most = draw.one(&[1, 4, 40]) * payload_size;
                plan.lens.push(draw.rng.below(most));
            }
            if draw.rarely(2) {
                plan.sending = Sending::Every(us(until / plan.lens.len() as u64));
            }
            let (root, group) = (plan.root, plan.group);
            for host in (0..s.hosts).filter(|h| *h != root) {
                draw.comes_and_goes(&mut s, (stream, group, host), until);
            }
        }
        s.changes.sort_by_key(|c| c.at);
        s.declined_one_in = draw.one(&[0, 2, 2, 5]);
        let changes = &s.changes;
        s.faults
            .crashes
            .retain(|crash| changes.iter().all(|c| c.host != crash.host));
        s
    }
}

impl Draw {
    /// Draws when a receiver joins and leaves a stream, and whether it is there from the start.
    fn comes_and_goes(
        &mut self,
        s: &mut Scenario,
        (stream, group, host): (usize, usize, usize),
        until: u64,
    ) {
        let members = &mut s.groups[group].members;
        let mut there = members.contains(&host);
        if there && self.rarely(3) {
            members.retain(|m| *m != host);
            there = false;
        }
        let mut at = self.rng.below(until);
        for _ in 0..self.rng.below(5) {
            let (root, receiver) = match there {
                true => (Step::Remove, Step::Leave),
                false => (Step::Admit, Step::Join),
            };
            let mut change = |at: u64, step| {
                let at = us(1 + at);
                s.changes.push(Change {
                    at,
                    stream,
                    host,
                    step,
                });
            };
            // Either end may be the first to know that the receiver leaves.
            let apart = self.one(&[0, 50, 2000, 20_000]);
            let apart = self.rng.below(apart + 1);
            let later = there && self.rarely(2);
            change(at + if later { apart } else { 0 }, root);
            change(at + if later { 0 } else { apart }, receiver);
            there = !there;
            let pause = self.one(&[1, 1000, 100_000]);
            at += apart + 1 + self.rng.below(pause);
        }
    }
}
