//! A checker: streams of a host share its fixed rate by their weights, and together are not faster.

use std::rc::Rc;

use fabricast::proto::GroupId;
use fabricast::proto::wire::{self, Frame, Origin};

use crate::object::World;
use crate::scenario::Scenario;

/// Bytes of a turn, after which another stream sends that waits.
const TURN_BYTES: f64 = 65_536.0;
/// Time whose bytes may leave at once, in seconds: a quantum, and what a late wake-up catches up
/// with.
const AT_ONCE: f64 = 0.0045;

/// Checks what hosts send that have a fixed rate, whose objects lie in memory, and whose networks
/// read at once. What waits for a disk leaves all at once, and what a network reads late leaves
/// after the node has counted it.
#[derive(Debug)]
pub(crate) struct ShareJudge {
    world: Rc<World>,
    hosts: Vec<HostSent>,
    streams: Vec<StreamSent>,
    /// For two streams of a host, the first after the other, that have both had something to send
    /// since then: the least and the largest of what the first has sent by weight less what the
    /// other has.
    apart: Vec<Option<[f64; 2]>>,
    datagram_max: f64,
    /// Bytes of a datagram beside its payload that count.
    overhead: f64,
}

/// What a host has sent.
#[derive(Debug)]
struct HostSent {
    /// Bytes per second.
    rate: f64,
    /// The largest rate so far.
    rate_max: f64,
    /// Bytes beyond what the rate has allowed so far, and the time of this value in nanoseconds.
    ahead: f64,
    at: u64,
}

/// What a stream has sent.
#[derive(Debug)]
struct StreamSent {
    root: usize,
    group: GroupId,
    weight: f64,
    bytes: f64,
    /// Whether only the rate and other streams have held it back at the end of the last step.
    waits: bool,
}

impl ShareJudge {
    /// The checker of a scenario with a fixed rate; `None` if its networks read late. `group`: the
    /// group with this number in it.
    pub(crate) fn new(
        scenario: &Scenario,
        group: impl Fn(usize) -> GroupId,
        world: Rc<World>,
    ) -> Option<ShareJudge> {
        let rate = scenario.rate.filter(|_| scenario.delays(0).is_none())? as f64;
        let sent = |_| HostSent {
            rate,
            rate_max: rate,
            ahead: 0.0,
            at: 0,
        };
        let streams = scenario.streams.iter().map(|plan| StreamSent {
            root: plan.root,
            group: group(plan.group),
            weight: f64::from(plan.weight),
            bytes: 0.0,
            waits: false,
        });
        Some(ShareJudge {
            world,
            hosts: (0..scenario.hosts).map(sent).collect(),
            streams: streams.collect(),
            apart: vec![None; scenario.streams.len() * scenario.streams.len()],
            datagram_max: scenario.datagram_max() as f64,
            overhead: scenario.scheme.data_overhead() as f64,
        })
    }

    /// Notes that a host has been told its new fixed rate.
    pub(crate) fn rate_changes(&mut self, host: usize, rate: u64) {
        let sent = &mut self.hosts[host];
        sent.passes(self.world.now_ns.get());
        sent.rate = rate as f64;
        sent.rate_max = sent.rate_max.max(sent.rate);
    }

    /// Counts a datagram that a host sends, if it has data of a stream of the host.
    pub(crate) fn departs(&mut self, host: usize, bytes: &[u8]) {
        let Ok(datagram) = wire::decode(bytes) else {
            return;
        };
        let data = datagram.frames().find_map(|frame| match frame {
            Frame::Data(d) => {
                matches!(d.origin, Origin::Source(_)).then_some((d.group, d.payload.len()))
            }
            Frame::Xor(xor) => Some((xor.group, xor.payload.len())),
            Frame::Parity(parity) => Some((parity.group, parity.payload.len())),
            _ => None,
        });
        let Some((group, payload)) = data else {
            return;
        };
        // Feedback that shares the datagram does not count.
        let len = payload as f64 + self.overhead;
        let mut streams = self.streams.iter_mut();
        if let Some(stream) = streams.find(|s| s.root == host && s.group == group) {
            stream.bytes += len;
        }
        let sent = &mut self.hosts[host];
        sent.passes(self.world.now_ns.get());
        sent.ahead += len;
        if sent.ahead > sent.rate_max * AT_ONCE + 2.0 * self.datagram_max {
            let (ahead, rate) = (sent.ahead, sent.rate);
            self.world.complain(|| {
                format!("host {host} sends {ahead:.0} bytes more than its rate of {rate} allows")
            });
        }
    }

    /// Notes at the end of a host's step which of its streams only the rate and other streams hold
    /// back. Two streams that are held back so throughout must have sent by their weights.
    pub(crate) fn waits(&mut self, host: usize, waits: impl Fn(GroupId) -> bool) {
        for stream in self.streams.iter_mut().filter(|s| s.root == host) {
            stream.waits = waits(stream.group);
        }
        let count = self.streams.len();
        for (a, b) in (0..count).flat_map(|a| (0..a).map(move |b| (a, b))) {
            let [one, other] = [a, b].map(|i| &self.streams[i]);
            if one.root != host || other.root != host {
                continue;
            }
            let apart = &mut self.apart[a * count + b];
            if !one.waits || !other.waits {
                *apart = None;
                continue;
            }
            let differ = one.bytes / one.weight - other.bytes / other.weight;
            let [low, high] = apart.unwrap_or([differ; 2]);
            let [low, high] = [low.min(differ), high.max(differ)];
            *apart = Some([low, high]);
            let most = TURN_BYTES + 2.0 * self.datagram_max;
            if high - low > most / one.weight + most / other.weight {
                let weights = [one.weight, other.weight];
                self.world.complain(|| {
                    format!("streams {a} and {b} of host {host} do not share by {weights:?}")
                });
            }
        }
    }
}

impl HostSent {
    fn passes(&mut self, now: u64) {
        let passed = (now - self.at) as f64 / 1e9 * self.rate;
        (self.ahead, self.at) = ((self.ahead - passed).max(0.0), now);
    }
}
