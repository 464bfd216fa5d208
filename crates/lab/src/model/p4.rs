//! P4's testbed: broadcasts over channels, back to back as in its benchmark (P4.11), with several
//! processes on a node (P4.9), and the generic tree beside them.
//!
//! P4 has no equations; this module puts its description (sections 4.3, 5 and 6) into arithmetic.

use std::time::Duration;

use crate::calibration::Calibration;
use fabricast_sim::topology::LinkSpec;
use fabricast_sim::workload::{Cost, Costs};

use super::p1::{fat_tree, micros, rate};
use super::{Channels, Loggp, Simulated, bytes_us, levels, switches_passed};

/// Queue of a link in bytes. Quadrics' links have flow control, too.
const QUEUE_BYTES: u64 = 16 << 20;

/// Costs of P4's cluster.
#[derive(Clone, PartialEq, Debug)]
pub struct P4 {
    /// Time of an empty broadcast without synchronisation, on as many nodes as were measured.
    pub broadcast_us: f64,
    /// Time of a synchronisation on these nodes.
    pub synchronisation_us: f64,
    /// Number of channels that broadcasts cannot use.
    pub channels_reserved: u64,
    /// Usual number of channels.
    pub channels: u64,
    /// Number of children of a node in the tree of the UP phase.
    pub sync_arity: u64,
    /// Time of the hand-over to the other processes of a node.
    pub shared_memory_us: f64,
    /// Cost of end-to-end reliability for a short message.
    pub reliability_us: f64,
    /// Length up to which a message counts as short for that cost.
    pub reliability_flat_bytes: u64,
    /// Time of the checksum of each further byte.
    pub checksum_byte_ns: f64,
    /// Time to copy a byte in memory.
    pub copy_byte_ns: f64,
    /// Time of a byte through the network card.
    pub link_byte_ns: f64,
    /// Length from which on messages are not copied and wait for a synchronisation.
    pub payload_bytes: u64,
    /// Time of a message's hop.
    pub pp_us: f64,
    /// The sender's part of this time.
    pub send_us: f64,
    /// The receiver's part of this time.
    pub recv_us: f64,
    /// Time of a switch on the way.
    pub switch_us: f64,
    /// Number of children of a switch.
    pub switch_down: u64,
    /// Number of children of a switch at the top.
    pub switch_top: u64,
    /// Number of nodes in the measurements.
    pub nodes_measured: u64,
    /// Number of processes on a node of the larger cluster.
    pub processes_per_node: u64,
}

/// A broadcast as P4 measures it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Broadcast {
    /// Number of nodes.
    pub nodes: u64,
    /// Number of processes on each node.
    pub per_node: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// Number of channels.
    pub channels: u64,
    /// Whether the broadcast has checksums.
    pub reliable: bool,
}

impl P4 {
    /// The cluster with calibrated values.
    pub fn new(c: &Calibration) -> P4 {
        P4 {
            broadcast_us: c.value("broadcast_us"),
            synchronisation_us: c.value("synchronisation_us"),
            channels_reserved: c.count("channels_reserved"),
            channels: c.count("channels"),
            sync_arity: c.count("sync_arity"),
            shared_memory_us: c.value("shared_memory_us"),
            reliability_us: c.value("reliability_us"),
            reliability_flat_bytes: c.count("reliability_flat_bytes"),
            checksum_byte_ns: c.value("checksum_byte_ns"),
            copy_byte_ns: c.value("copy_byte_ns"),
            link_byte_ns: c.value("link_byte_ns"),
            payload_bytes: c.count("payload_bytes"),
            pp_us: c.value("t_pp_us"),
            send_us: c.value("t_send_us"),
            recv_us: c.value("t_recv_us"),
            switch_us: c.value("switch_us"),
            switch_down: c.count("switch_down"),
            switch_top: c.count("switch_top"),
            nodes_measured: c.count("nodes_measured"),
            processes_per_node: c.count("processes_per_node"),
        }
    }

    /// Time of an empty broadcast without synchronisation. In a larger network it passes more
    /// switches, and so does the combined acknowledgment on its way back (P4 section 2).
    pub fn empty_us(&self, nodes: u64) -> f64 {
        let switches = |n| f64::from(switches_passed(n, self.switch_down, self.switch_top));
        let further = switches(nodes) - switches(self.nodes_measured);
        (self.broadcast_us + 2.0 * further * self.switch_us).max(0.0)
    }

    /// Time of a synchronisation. UP is a message for each level of a balanced tree, and DOWN an
    /// empty broadcast (P4 section 5). The time of a level follows from the measured
    /// synchronisation.
    pub fn synchronisation_us(&self, nodes: u64) -> f64 {
        let depth = |n| f64::from(levels(n, self.sync_arity));
        let up = (self.synchronisation_us - self.broadcast_us).max(0.0);
        up * depth(nodes) / depth(self.nodes_measured).max(1.0) + self.empty_us(nodes)
    }

    /// Cost of reliability: about 1 µs for short messages, and the checksum of every further byte
    /// (P4 sections 4.4 and 6.4).
    pub fn reliability_us(&self, bytes: u64) -> f64 {
        let further = bytes.saturating_sub(self.reliability_flat_bytes);
        self.reliability_us + bytes_us(further, self.checksum_byte_ns)
    }

    /// The channels' costs for this broadcast. Bytes are copied into the channel and out of it
    /// while the network card moves those of another broadcast; the slower of the two counts.
    pub fn channels(&self, b: &Broadcast) -> Channels {
        let byte_ns = self.link_byte_ns.max(self.copy_byte_ns);
        let mut broadcast_us = self.empty_us(b.nodes) + bytes_us(b.bytes, byte_ns);
        broadcast_us += self.on_host_us(b);
        if b.reliable {
            broadcast_us += self.reliability_us(b.bytes);
        }
        Channels {
            broadcast_us,
            synchronisation_us: self.synchronisation_us(b.nodes),
            reserved: self.channels_reserved,
        }
    }

    /// Mean time of broadcasts back to back (P4 section 6). A broadcast that is not copied is done
    /// only when a synchronisation has confirmed it, so it pays a whole synchronisation (P4 section
    /// 5).
    pub fn broadcast_us(&self, b: &Broadcast) -> f64 {
        let channels = match b.bytes < self.payload_bytes {
            true => b.channels,
            false => 1,
        };
        self.channels(b).per_broadcast_us(channels)
    }

    /// Time of LA-MPI's generic broadcast: a binomial tree of messages between the nodes, then
    /// shared memory (P4 sections 1 and 5). This is the time of one broadcast alone: back to back
    /// they overlap, and each takes less.
    pub fn generic_us(&self, b: &Broadcast) -> f64 {
        self.loggp().binomial_us(b.nodes, b.bytes) + self.on_host_us(b)
    }

    /// Time of the hand-over to the other processes of a node, through shared memory (P4.9).
    pub fn on_host_us(&self, b: &Broadcast) -> f64 {
        match b.per_node {
            0 | 1 => 0.0,
            _ => self.shared_memory_us + bytes_us(b.bytes, self.copy_byte_ns),
        }
    }

    /// LogGP's parameters of point-to-point messages; `g = o_s`.
    pub fn loggp(&self) -> Loggp {
        Loggp {
            latency_us: (self.pp_us - self.send_us - self.recv_us).max(0.0),
            send_us: self.send_us,
            recv_us: self.recv_us,
            gap_us: self.send_us,
            byte_us: self.link_byte_ns / 1e3,
        }
    }

    /// The same network for the simulator, for broadcasts like `b`. The root is busy with an empty
    /// broadcast for as long as the model says that it takes, and with bytes while the network card
    /// moves other bytes. A synchronisation takes as long as in the model on the measured nodes,
    /// but has other parts: here the root is the manager, so that no verdict is sent, and the last
    /// broadcast has to arrive before a word goes up the tree. The root pays for end-to-end
    /// reliability. Broadcasts that are not copied cost no copy.
    pub fn simulated(&self, b: &Broadcast) -> Simulated {
        let copied = b.bytes < self.payload_bytes;
        let way_us = (self.pp_us - self.send_us - self.recv_us).max(0.0);
        let depth = f64::from(levels(self.nodes_measured, self.sync_arity)).max(1.0);
        let arrival_us = way_us + self.recv_us;
        let word_us = (self.synchronisation_us - arrival_us) / depth - way_us;
        let packets = b.bytes.div_ceil(self.payload_bytes).max(1);
        let reliable_us = match b.reliable {
            true => self.reliability_us(b.bytes) / packets as f64,
            false => 0.0,
        };
        let host = LinkSpec {
            rate: rate(self.link_byte_ns),
            delay: micros(way_us / 2.0),
            queue: QUEUE_BYTES,
        };
        let levels = (switches_passed(1 << 20, self.switch_down, self.switch_top) - 1) / 2;
        let down = self.switch_down.max(2);
        let cost = |send_us, receive_us, byte_ns: f64| Cost {
            send: micros(send_us),
            way: micros(0.0),
            receive: micros(receive_us),
            byte_ps: (byte_ns * 1e3) as u64,
        };
        let copy_byte_ns = match copied {
            true => self.copy_byte_ns,
            false => 0.0,
        };
        Simulated {
            costs: Costs {
                message: cost(self.send_us, self.recv_us, 0.0),
                long: cost(self.send_us, self.recv_us, 0.0),
                long_from: u64::MAX,
                group: cost(self.broadcast_us + reliable_us, self.recv_us, copy_byte_ns),
                word: cost(word_us / 2.0, word_us / 2.0, 0.0),
                start: Duration::ZERO,
            },
            topology: fat_tree(host, self.switch_us, down, self.switch_top, levels),
            payload_bytes: self.payload_bytes as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use crate::calibration::Testbed;
    use crate::model::claims::EIGHT;

    fn p4() -> P4 {
        P4::new(&Calibration::of(Testbed::P4))
    }

    #[test]
    fn on_the_measured_nodes_it_is_what_was_measured() {
        let p = p4();
        assert!((p.synchronisation_us(8) - 13.0).abs() < 1e-9);
        assert_eq!(p.empty_us(8), p.broadcast_us);
        let channels = p.channels(&EIGHT);
        assert_eq!(channels.per_broadcast_us(16), p.broadcast_us(&EIGHT));
    }

    #[test]
    fn a_synchronisation_grows_with_the_levels_of_its_tree() {
        let p = p4();
        // 64 nodes: twice the levels of 8 nodes, and two more switches each way.
        let expected = 2.0 * (13.0 - p.broadcast_us) + p.broadcast_us + 4.0 * p.switch_us;
        assert!((p.synchronisation_us(64) - expected).abs() < 1e-9);
        for nodes in 2..300 {
            assert!(p.synchronisation_us(nodes) <= p.synchronisation_us(nodes + 1));
        }
    }

    #[test]
    fn reliability_is_flat_and_then_is_not() {
        let p = p4();
        assert_eq!(p.reliability_us(4), 1.0);
        assert_eq!(p.reliability_us(256), 1.0);
        assert!(p.reliability_us(65536) > 100.0);
        let reliable = Broadcast {
            reliable: true,
            ..EIGHT
        };
        assert!((p.broadcast_us(&reliable) - p.broadcast_us(&EIGHT) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn large_messages_pay_a_whole_synchronisation() {
        let p = p4();
        let of = |bytes| p.broadcast_us(&Broadcast { bytes, ..EIGHT });
        let step = of(16384) - of(16383);
        assert!((step - 13.0 * 14.0 / 15.0).abs() < 0.01, "{step}");
    }

    #[test]
    fn one_process_of_a_node_takes_part_and_the_others_are_served() {
        let p = p4();
        let of = |per_node| p.broadcast_us(&Broadcast { per_node, ..EIGHT });
        assert!(of(4) > of(1));
        assert_eq!(of(4), of(2));
        let more = Broadcast { nodes: 32, ..EIGHT };
        assert!(p.generic_us(&more) > p.generic_us(&EIGHT));
        assert!((p.loggp().message_us(1) - p.pp_us).abs() < 1e-9);
    }

    #[test]
    fn the_simulated_ways_are_a_message_and_a_level_of_the_tree() {
        let s = p4().simulated(&EIGHT);
        let way = |cost: &Cost| cost.send + 2 * s.topology.host.delay + cost.receive;
        assert_eq!(way(&s.costs.message), micros(5.0));
        let level = micros((13.0 - 4.0) / 3.0);
        assert!(way(&s.costs.word).abs_diff(level) < Duration::from_nanos(2));
        assert_eq!(s.topology.spans(256), [4, 16, 64, 256]);
    }
}
