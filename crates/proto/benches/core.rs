//! What the core costs for one data packet, its share of feedback and repairs included: the
//! sender's side and a receiver's side, each by itself, without sockets and without payload bytes.
//!
//! A broadcast is run once and recorded; then one node is told the same again and timed. What is
//! counted is the processor's time, so that others on the machine disturb it less.

#[path = "../tests/cable/mod.rs"]
mod cable;

use std::hint::black_box;
use std::time::Duration;

use cable::{Batch, Plan, Record};
use criterion::{Criterion, criterion_group, criterion_main};
use rustix::time::{ClockId, clock_gettime};

const PACKETS: u32 = 40_000;

fn core(c: &mut Criterion) {
    for (link, rate) in [("1 Gbit/s", 125_000_000), ("200 Mbit/s", 25_000_000)] {
        let plan = Plan {
            receivers: 8,
            packets: PACKETS,
            loss: 0.01,
            rate,
        };
        let records = plan.run(&mut |_, _, step| step());
        let mut group =
            c.benchmark_group(format!("a data packet to 8 receivers, 1 % loss, {link}"));
        for (side, i) in [("sender", 0), ("receiver", 1)] {
            let record = &records[i as usize];
            group.bench_function(side, |b| b.iter_custom(|n| time(&plan, i, record, n)));
        }
        group.finish();
    }
}

/// How long node `i` takes for `wanted` data packets.
fn time(plan: &Plan, i: u32, record: &Record, wanted: u64) -> Duration {
    let (mut took, mut done) = (Duration::ZERO, 0);
    let mut sent = Batch::roomy();
    while done < wanted {
        let mut peer = plan.peer(i);
        let began = processor_time();
        record.replay(&mut peer, &mut sent);
        took += processor_time() - began;
        assert_eq!(
            peer.node.counters(),
            record.counters,
            "it did the same again"
        );
        black_box(&sent);
        done += u64::from(PACKETS);
    }
    took.mul_f64(wanted as f64 / done as f64)
}

/// What this thread has used of a processor.
fn processor_time() -> Duration {
    let t = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

criterion_group!(benches, core);
criterion_main!(benches);
