//! The data path does not allocate: neither at the root nor at a receiver, once their queues have
//! grown, with losses, feedback and coded repairs.

mod cable;

use cable::Plan;

/// Data packets before which allocations are not counted, and all of them.
const WARM: u64 = 20_000;
const PACKETS: u32 = 60_000;

#[test]
fn nothing_is_allocated_on_the_data_path() {
    let plan = Plan {
        receivers: 8,
        packets: PACKETS,
        loss: 0.01,
        rate: 125_000_000,
    };
    // Steps, and allocations in them, of the root and of the receivers.
    let mut counted = [(0u64, 0u64); 2];
    let mut warm = false;
    let records = plan.run(&mut |peer, counters, step| {
        warm |= counters.data >= WARM;
        let allocations = allocation_counter::measure(step).count_total;
        // What comes with the end of the object is no data path.
        if warm && counters.data < u64::from(PACKETS) && counters.received < u64::from(PACKETS) {
            let side = &mut counted[usize::from(peer != 0)];
            side.0 += 1;
            side.1 += allocations;
        }
    });
    let root = records[0].counters;
    assert!(root.repairs_coded > 500, "{root:?}");
    assert!(root.feedback_received > 1_000, "{root:?}");
    let [(root, at_root), (receivers, at_receivers)] = counted;
    assert!(root > 1_000 && receivers > 100_000, "{counted:?}");
    assert_eq!(at_root, 0, "allocations in {root} steps of the root");
    assert_eq!(
        at_receivers, 0,
        "allocations in {receivers} steps of receivers"
    );
}
