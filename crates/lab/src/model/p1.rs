//! P1's testbed: the model's six times for any size and number of nodes, and messages of more than
//! one buffer, which the paper measures but has no equation for.
//!
//! `claims::CLAIMS` lists what the paper reports and the model does not know.

use std::time::Duration;

use crate::calibration::Calibration;
use fabricast_sim::topology::{LinkSpec, Topology};
use fabricast_sim::workload::{Cost, Costs};

use super::{Loggp, Simulated, Times, bytes_us, switches_passed};

/// Queue of a link in bytes. InfiniBand hardly drops for want of buffers, since its links have flow
/// control.
const QUEUE_BYTES: u64 = 16 << 20;

/// Costs of P1's cluster.
#[derive(Clone, PartialEq, Debug)]
pub struct P1 {
    /// The six times for an empty message on as many nodes as were measured.
    pub empty: Times,
    /// Time of a hop of an empty message by rendezvous.
    pub rendezvous_us: f64,
    /// Time of a byte of a message, end to end: the inverse of the bandwidth.
    pub byte_ns: f64,
    /// Time to copy a byte in memory.
    pub copy_byte_ns: f64,
    /// Time of a switch on the way.
    pub switch_us: f64,
    /// The receiver's part of the time of a message or a multicast.
    pub recv_us: f64,
    /// A receiver's part of the time of an ACK: posting a write of a word.
    pub ack_us: f64,
    /// Length of the longest eager message.
    pub eager_bytes: u64,
    /// Payload of one multicast, which is one buffer.
    pub payload_bytes: u64,
    /// Number of children of a switch.
    pub switch_down: u64,
    /// Number of children of a switch at the top.
    pub switch_top: u64,
    /// Number of nodes in the measurements.
    pub nodes_measured: u64,
    /// The M of the scheme "Aggregate": broadcasts per ACK.
    pub acks_every: u64,
}

impl P1 {
    /// The cluster with calibrated values.
    pub fn new(c: &Calibration) -> P1 {
        P1 {
            empty: Times {
                pp_us: c.value("t_pp_us"),
                cc_us: c.value("t_cc_us"),
                ud_us: c.value("t_ud_us"),
                mc_us: c.value("t_mc_us"),
                um_us: c.value("t_um_us"),
                pack_us: c.value("t_pack_us"),
            },
            rendezvous_us: c.value("rendezvous_us"),
            byte_ns: c.value("byte_ns"),
            copy_byte_ns: c.value("copy_byte_ns"),
            switch_us: c.value("switch_us"),
            recv_us: c.value("t_recv_us"),
            ack_us: c.value("t_ack_us"),
            eager_bytes: c.count("eager_bytes"),
            payload_bytes: c.count("payload_bytes").max(1),
            switch_down: c.count("switch_down"),
            switch_top: c.count("switch_top"),
            nodes_measured: c.count("nodes_measured"),
            acks_every: c.count("acks_every"),
        }
    }

    /// The model's times (P1 section 7) for a message of one buffer. Each byte costs a copy where
    /// there is one; it costs the way once for a multicast, and once per hop for a message. Eager
    /// messages are copied at both ends, rendezvous messages at neither. A multicast passes more
    /// switches in a larger network; `T_pp` is an average and does not grow.
    pub fn times(&self, bytes: u64, nodes: u64) -> Times {
        let (way, copy) = (
            bytes_us(bytes, self.byte_ns),
            bytes_us(bytes, self.copy_byte_ns),
        );
        let switches = |n| f64::from(switches_passed(n, self.switch_down, self.switch_top));
        let further = switches(nodes) - switches(self.nodes_measured);
        Times {
            pp_us: match bytes <= self.eager_bytes {
                true => self.empty.pp_us + 2.0 * copy + way,
                false => self.rendezvous_us + way,
            },
            cc_us: self.empty.cc_us + copy,
            ud_us: self.empty.ud_us,
            mc_us: (self.empty.mc_us + way + further * self.switch_us).max(0.0),
            um_us: self.empty.um_us + copy,
            pack_us: self.empty.pack_us,
        }
    }

    /// Latency of the original broadcast, of any size: `T_pp · log2 n`.
    pub fn original_us(&self, nodes: u64, bytes: u64) -> f64 {
        self.times(bytes, nodes).original_us(nodes)
    }

    /// Latency by multicast, of any size. For one buffer: P1 section 7.1. For more, the first
    /// buffer takes the time of one. Each further buffer adds the time of the slowest stage: the
    /// root (P1 section 7.2, with its ACKs), a receiver, or the way. The stages are ours: P1
    /// measures this and has no equation.
    pub fn multicast_us(&self, nodes: u64, bytes: u64, groups: u64) -> f64 {
        let first = bytes.min(self.payload_bytes);
        let mut us = self.times(first, nodes).latency_us(nodes, groups);
        let rest = bytes - first;
        let (full, last) = (rest / self.payload_bytes, rest % self.payload_bytes);
        us += full as f64 * self.stage_us(nodes, self.payload_bytes, groups);
        if last > 0 {
            us += self.stage_us(nodes, last, groups);
        }
        us
    }

    fn stage_us(&self, nodes: u64, bytes: u64, groups: u64) -> f64 {
        let times = self.times(bytes, nodes);
        let way = bytes_us(bytes, self.byte_ns);
        times
            .root_us(nodes, groups)
            .max(self.recv_us + times.cc_us)
            .max(way)
    }

    /// LogGP's parameters: `o_s = T_um`, `L` is what is left of `T_pp`, and `g = o_s`. LogGP knows
    /// neither copies nor rendezvous, so its times are too short between a few hundred bytes and
    /// some kilobytes.
    pub fn loggp(&self) -> Loggp {
        let t = &self.empty;
        Loggp {
            latency_us: (t.pp_us - t.um_us - self.recv_us).max(0.0),
            send_us: t.um_us,
            recv_us: self.recv_us,
            gap_us: t.um_us,
            byte_us: self.byte_ns / 1e3,
        }
    }

    /// The same network for the simulator. An empty message between two neighbours takes `T_pp`, an
    /// empty multicast `T_sr`, and a byte costs each of them as much as in the model. The sender of
    /// a message is busy for `T_um`, the receiver of an ACK for `T_pack`. A rendezvous message has
    /// a longer way and is not copied.
    pub fn simulated(&self) -> Simulated {
        let t = &self.empty;
        let copy_ps = (self.copy_byte_ns * 1e3) as u64;
        let cables_us = self.loggp().latency_us;
        let message = Cost {
            send: micros(t.um_us),
            way: micros(0.0),
            receive: micros(self.recv_us),
            byte_ps: copy_ps,
        };
        let host = LinkSpec {
            rate: rate(self.byte_ns),
            delay: micros(cables_us / 2.0),
            queue: QUEUE_BYTES,
        };
        let levels = (switches_passed(1 << 20, self.switch_down, self.switch_top) - 1) / 2;
        let down = self.switch_down.max(2);
        Simulated {
            costs: Costs {
                message,
                long: Cost {
                    way: micros(self.rendezvous_us - t.pp_us),
                    byte_ps: 0,
                    ..message
                },
                long_from: self.eager_bytes + 1,
                group: Cost {
                    send: micros(t.cc_us + t.ud_us),
                    way: micros(t.mc_us - self.recv_us - cables_us),
                    receive: micros(self.recv_us + t.cc_us),
                    byte_ps: copy_ps,
                },
                word: Cost {
                    send: micros(self.ack_us),
                    way: micros(0.0),
                    receive: micros(t.pack_us),
                    byte_ps: 0,
                },
                start: Duration::ZERO,
            },
            topology: fat_tree(host, self.switch_us, down, self.switch_top, levels),
            payload_bytes: self.payload_bytes as u32,
        }
    }
}

/// A fat tree as a tree for the simulator: a cable between switches is as fast as all hosts below
/// the lower switch together.
pub(crate) fn fat_tree(
    host: LinkSpec,
    switch_us: f64,
    down: u64,
    top: u64,
    levels: u32,
) -> Topology {
    let mut fanout = vec![down as usize; levels as usize];
    // A network that fits one switch of the top has only that switch.
    if let Some(first) = fanout.first_mut() {
        *first = top.max(2) as usize;
    }
    Topology {
        fanout,
        host,
        trunk: LinkSpec {
            rate: host.rate.saturating_mul(top.max(2)),
            delay: micros(switch_us),
            queue: host.queue,
        },
        cut_through: true,
    }
}

/// Rate in bytes per second.
pub(crate) fn rate(byte_ns: f64) -> u64 {
    (1e9 / byte_ns.max(1e-3)) as u64
}

/// A time in the form that the simulator needs.
pub(crate) fn micros(us: f64) -> Duration {
    Duration::from_nanos((us.max(0.0) * 1e3).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibration::Testbed;

    fn p1() -> P1 {
        P1::new(&Calibration::of(Testbed::P1))
    }

    #[test]
    fn times_grow_with_bytes_as_their_copies_do() {
        let p = p1();
        let (empty, kilo) = (p.times(0, 8), p.times(1000, 8));
        assert_eq!(empty, p.empty);
        let grown = |a: f64, b: f64| ((b - a) * 1e3).round() as i64;
        assert_eq!(grown(empty.cc_us, kilo.cc_us), 1250);
        assert_eq!(grown(empty.mc_us, kilo.mc_us), 1148);
        assert_eq!(grown(empty.pp_us, kilo.pp_us), 3648);
        assert_eq!(grown(empty.um_us, kilo.um_us), 1250);
        assert_eq!(empty.pack_us, kilo.pack_us);
        // 1024 nodes are eight switches further apart.
        assert_eq!(grown(p.times(0, 8).mc_us, p.times(0, 1024).mc_us), 1600);
        assert_eq!(p.times(0, 8).mc_us, p.times(0, 2).mc_us);
    }

    #[test]
    fn more_bytes_never_cost_less() {
        let p = p1();
        for nodes in [2, 8, 64, 1024] {
            for bytes in 0..6000 {
                assert!(p.original_us(nodes, bytes) <= p.original_us(nodes, bytes + 1));
                let (this, next) = (
                    p.multicast_us(nodes, bytes, 1),
                    p.multicast_us(nodes, bytes + 1, 1),
                );
                assert!(this <= next, "{bytes} bytes to {nodes}: {this} {next}");
            }
        }
    }

    #[test]
    fn one_buffer_is_the_papers_equation() {
        let p = p1();
        for bytes in [0, 4, 1836] {
            let sr = p.times(bytes, 8).single_root_us();
            assert_eq!(p.multicast_us(8, bytes, 1), sr);
            assert_eq!(p.multicast_us(8, bytes, 2), sr);
        }
        assert!(p.multicast_us(8, 1837, 1) > p.multicast_us(8, 1836, 1));
    }

    #[test]
    fn loggp_adds_up_to_a_message() {
        let p = p1();
        assert!((p.loggp().message_us(1) - p.empty.pp_us).abs() < 1e-9);
    }

    #[test]
    fn the_simulated_ways_are_the_models() {
        let p = p1();
        let s = p.simulated();
        for bytes in [4, 1024, 8192] {
            let way = |cost: &Cost| {
                let cables = 2 * s.topology.host.delay;
                let bytes_ns = bytes * 1_000_000_000 / s.topology.host.rate;
                let ns = cost.send_ns(bytes) + bytes_ns + cost.receive_ns(bytes);
                (Duration::from_nanos(ns) + cables + cost.way).as_secs_f64() * 1e6
            };
            let times = p.times(bytes, 8);
            let message = match bytes < s.costs.long_from {
                true => &s.costs.message,
                false => &s.costs.long,
            };
            assert!((way(message) - times.pp_us).abs() < 0.02);
            assert!((way(&s.costs.group) - times.single_root_us()).abs() < 0.02);
        }
        // One switch for 8 hosts, then four switches below each further one.
        assert_eq!(s.topology.spans(8), [8]);
        assert_eq!(s.topology.spans(1024), [8, 32, 128, 512, 1024]);
    }
}
