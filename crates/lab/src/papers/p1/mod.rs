//! P1's experiments: broadcast over InfiniBand's multicast, on 8 nodes and on 1024 (P1.12, P1.14).

use crate::calibration::Testbed;

use super::experiment::Experiment;

mod bed;
mod eight;
mod late;
mod thousand;

/// P1's experiments, in the paper's order.
pub(super) const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        name: "p1-latency",
        testbed: Testbed::P1,
        title: "Latency of small messages on 8 nodes",
        reproduces: "figure 6, section 6.2",
        method: "The root broadcasts, one receiver answers with a message; the receivers take \
             turns. The time of a turn less that of a message, at the receiver that is reached \
             last. Original by one clock: it has no acknowledgements in the background that turns \
             could meet.",
        run: eight::latency,
    },
    Experiment {
        name: "p1-large",
        testbed: Testbed::P1,
        title: "Latency of large messages on 8 nodes",
        reproduces: "figure 7, section 6.2.1",
        method: "As for small messages. Window sends buffers of 1836 bytes, Original whole \
             messages by rendezvous.",
        run: eight::large,
    },
    Experiment {
        name: "p1-throughput",
        testbed: Testbed::P1,
        title: "Broadcasts back to back on 8 nodes",
        reproduces: "figure 8, section 6.3",
        method: "Broadcasts of one length without a pause; the time of each after 20 warm-ups, \
             until the root knows that all \
                 have them.",
        run: eight::throughput,
    },
    Experiment {
        name: "p1-skew",
        testbed: Testbed::P1,
        title: "Process skew on 8 nodes",
        reproduces: "figure 9, section 6.4",
        method: "A barrier; the root broadcasts 4 bytes at once, each receiver enters after a \
             random delay from 0 to the skew, and until then neither looks at the network nor \
             passes anything on. The mean time that the 8 processes spend in the broadcast.",
        run: late::skewed,
    },
    Experiment {
        name: "p1-model",
        testbed: Testbed::P1,
        title: "Model against simulation on 8 nodes",
        reproduces: "figure 10, section 7.1",
        method: "One broadcast each, by one clock, as the model has it, beside the model's \
             equations.",
        run: eight::model,
    },
    Experiment {
        name: "p1-1024",
        testbed: Testbed::P1,
        title: "Latency on 1024 nodes",
        reproduces: "figure 11, section 7.1",
        method: "One broadcast each, by one clock, on a fat tree of 8-port switches. The paper's \
             figure is its model's; here the \
                 protocol runs on all 1024 nodes.",
        run: thousand::on_1024,
    },
    Experiment {
        name: "p1-coroots",
        testbed: Testbed::P1,
        title: "The number of co-roots on 1024 nodes",
        reproduces: "figure 12, section 7.2",
        method: "Broadcasts of 4 bytes back to back, and one alone by one clock, for each number \
             of delivery groups (the root's \
                 own included).",
        run: thousand::coroots,
    },
    Experiment {
        name: "p1-false",
        testbed: Testbed::P1,
        title: "False retransmissions: a tree of acknowledgements against co-roots",
        reproduces: "section 4.3's argument (P1.5)",
        method: "400 broadcasts of 1 KB, half a millisecond apart, to 31 receivers each of which \
             computes half of the time in stretches of up to 30 ms, without looking at the \
             network. Nothing is lost. Gigabit Ethernet, not the paper's testbed: what counts is \
             whether time-outs (10 ms) strike.",
        run: late::false_repairs,
    },
];
