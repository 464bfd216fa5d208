//! Benchmark of the core: its cost for one data packet, with the packet's share of feedback and
//! repairs. It measures a sender and a receiver separately, without sockets and payload bytes.
//!
//! The benchmark runs a broadcast once and records it; then it replays one node's inputs and times
//! them. It counts processor time, so that other processes on the machine disturb it less.

#[path = "../tests/cable/mod.rs"]
mod cable;

use std::hint::black_box;
use std::time::Duration;

use cable::{Batch, Plan, Record};
use criterion::{Criterion, criterion_group, criterion_main};
use rustix::time::{ClockId, clock_gettime};

const PACKETS: u32 = 40_000;
/// Data packets to the group of 64, whose recorded inputs take eight times the memory.
const PACKETS_OF_64: u32 = 10_000;

fn core(c: &mut Criterion) {
    for (link, rate) in [("1 Gbit/s", 125_000_000), ("200 Mbit/s", 25_000_000)] {
        let plan = Plan {
            receivers: 8,
            packets: PACKETS,
            loss: 0.01,
            rate,
            streams: 0,
        };
        both_sides(
            c,
            &plan,
            format!("a data packet to 8 receivers, 1 % loss, {link}"),
        );
    }
    for (streams, name) in [(1, "1 stream"), (64, "64 streams")] {
        let plan = Plan {
            receivers: 63,
            packets: PACKETS_OF_64,
            loss: 0.01,
            rate: 125_000_000,
            streams,
        };
        let group = format!("a data packet in a group of 64 with {name}, 1 % loss, 1 Gbit/s");
        both_sides(c, &plan, group);
    }
}

/// Measures a plan's sender and one of its receivers.
fn both_sides(c: &mut Criterion, plan: &Plan, name: String) {
    let records = plan.run(&mut |_, _, step| step());
    let mut group = c.benchmark_group(name);
    for (side, i) in [("sender", 0), ("receiver", 1)] {
        let record = &records[i as usize];
        group.bench_function(side, |b| b.iter_custom(|n| time(plan, i, record, n)));
    }
    group.finish();
}

/// The processor time that node `i` takes for `wanted` data packets.
fn time(plan: &Plan, i: u32, record: &Record, wanted: u64) -> Duration {
    let (mut took, mut done) = (Duration::ZERO, 0);
    let mut sent = Batch::roomy();
    while done < wanted {
        let mut peer = plan.peer(i);
        record.prepare(plan, i, &mut peer, &mut sent);
        let began = processor_time();
        record.replay(&mut peer, &mut sent);
        took += processor_time() - began;
        assert_eq!(
            peer.node.counters(),
            record.counters,
            "it did the same again"
        );
        black_box(&sent);
        done += u64::from(plan.packets);
    }
    took.mul_f64(wanted as f64 / done as f64)
}

/// The processor time that this thread has used.
fn processor_time() -> Duration {
    let t = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

criterion_group!(benches, core);
criterion_main!(benches);
