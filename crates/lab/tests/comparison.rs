//! `auto` against the papers' schemes: a subset of the cells of `fabricast-lab sim compare`.

use std::sync::atomic::{AtomicU32, Ordering};

use fabricast::proto::wire::DATA_OVERHEAD;
use fabricast_lab::compare::{Cell, Comparison, Fate, Loss, Named, Standing, compare};

fn cell(nodes: usize, len: u64, loss: &str) -> Cell {
    Cell {
        nodes,
        len,
        loss: loss.parse().unwrap(),
        payload_size: 1440,
    }
}

fn compared(cell: Cell, presets: &[Named], threads: usize) -> Comparison {
    compare(cell, presets, 5, threads, &|| true, &mut || ()).unwrap()
}

#[test]
fn auto_is_as_good_as_the_best() {
    for nodes in [8, 64] {
        for len in [4, 2 << 10, 64 << 10] {
            for loss in ["0", "1"] {
                let cell = cell(nodes, len, loss);
                let c = compared(cell, &cell.presets(), 2);
                let verdicts = c.verdicts();
                assert!(verdicts.is_some(), "{c:#?}");
                assert!(c.standing() < Standing::Worse, "{cell:?}: {verdicts:#?}");
            }
        }
    }
}

#[test]
fn bursts_and_many_receivers_change_nothing_of_that() {
    let cells = [cell(64, 64 << 10, "5x8"), cell(200, 64 << 10, "0.1")];
    for cell in cells {
        let presets = ["nack+multicast", "window+multicast"].map(|s| s.parse().unwrap());
        let c = compared(cell, &presets, 2);
        assert!(c.standing() < Standing::Worse, "{cell:?}: {c:#?}");
    }
}

/// Repairs do not grow with the number of receivers. By unicast they would be several times the
/// payload here, by plain multicast once the payload.
#[test]
fn parity_packets_keep_the_roots_bytes_few() {
    let len = 1 << 20;
    let c = compare(cell(256, len, "1"), &[], 1, 1, &|| true, &mut || ()).unwrap();
    let cost = c.auto.fate.cost().copied().expect("it is not given up");
    assert!(cost.root_bytes * 100 < len * 115, "{cost:?}");
}

#[test]
fn threads_change_nothing() {
    let cell = cell(8, 64 << 10, "5x8");
    let presets = cell.presets();
    assert_eq!(compared(cell, &presets, 1), compared(cell, &presets, 3));
}

/// Only the scheme differs: where no scheme has anything to repair, all take the same time.
#[test]
fn without_a_loss_a_packet_takes_as_long_under_every_scheme() {
    let cell = cell(8, 1000, "0");
    let c = compared(cell, &cell.presets(), 2);
    let cost = |f: &Fate| f.cost().copied().unwrap();
    for preset in &c.presets {
        assert_eq!(
            cost(&preset.fate).slowest,
            cost(&c.auto.fate).slowest,
            "{}",
            preset.scheme
        );
    }
    // One packet in an Ethernet frame; the warm-up is not counted.
    let bytes = 1000 + DATA_OVERHEAD as u64 + 42;
    assert_eq!(cost(&c.auto.fate).root_bytes, bytes);
}

/// A sender that repairs one packet at a time knows what each receiver lacks, and serves all
/// receivers at once, however many there are.
#[test]
fn repairs_one_by_one_do_not_wait_for_one_another() {
    let [few, many] = [64, 250].map(|nodes| {
        let c = compared(cell(nodes, 4, "5"), &["window".parse().unwrap()], 2);
        c.presets[0]
            .fate
            .cost()
            .expect("it is not given up")
            .slowest
    });
    assert!(many < few * 2, "{many:?} with 250 nodes, {few:?} with 64");
}

/// Most of many receivers lose something, and this scheme sends thousands of packets, one to each.
#[test]
fn a_hopeless_scheme_is_given_up() {
    let cell = Cell {
        payload_size: 64,
        ..cell(100, 60_000, "40")
    };
    let c = compared(cell, &["window".parse().unwrap()], 2);
    let Fate::GivenUp(after) = c.presets[0].fate else {
        panic!("{c:#?}");
    };
    let auto = c.auto.fate.cost().unwrap();
    assert!(after > auto.slowest);
    assert_eq!(c.standing(), Standing::Better);
}

#[test]
fn losses_are_read_as_they_are_written() {
    for text in ["0", "0.1", "5", "1x8", "0.1x8.5"] {
        let loss: Loss = text.parse().unwrap();
        let shown = loss.to_string().replace(" %", "").replace(' ', "");
        assert_eq!(shown, text);
    }
    for bad in ["", "x", "1x", "-1", "60", "1x0", "one", "nan"] {
        let error = bad.parse::<Loss>().unwrap_err();
        assert!(error.contains("bursts"), "{error}");
    }
}

#[test]
fn nothing_is_compared_once_it_is_interrupted() {
    let cell = cell(3, 4, "0");
    let none = compare(cell, &cell.presets(), 5, 2, &|| false, &mut || ());
    assert_eq!(none, None);
}

#[test]
fn a_run_that_has_begun_ends_when_it_is_interrupted() {
    // Only a run calls `go_on` this often, and the run has not ended when it is told to stop.
    let asked = AtomicU32::new(0);
    let go_on = || asked.fetch_add(1, Ordering::Relaxed) < 3;
    let mut ended = 0;
    let none = compare(cell(64, 1 << 20, "0"), &[], 1, 1, &go_on, &mut || {
        assert!(asked.load(Ordering::Relaxed) > 3);
        ended += 1;
    });
    assert_eq!((none, ended), (None, 1));
}
