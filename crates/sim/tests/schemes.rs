//! Values of a scheme, one at a time: what each is good for, shown by what happens without it.

use fabricast::proto::scheme::Checksum;
use fabricast_sim::fault::LinkFaults;
use fabricast_sim::{Cluster, Failure, Outcome, Scenario, Trace};

fn run(s: &Scenario) -> Result<Outcome, Failure> {
    Cluster::new(s, Trace::silent()).run()
}

/// One object to eight, over cables that change a bit in one of a hundred datagrams.
fn corrupting(checksum: Checksum) -> Scenario {
    let mut s = Scenario::bulk(9, 2_000_000, 1440);
    s.scheme.checksum = checksum;
    s.faults.down = LinkFaults {
        loss: 0.01,
        corrupt: 0.01,
        ..LinkFaults::NONE
    };
    if checksum != Checksum::Additive {
        s.faults.up = s.faults.down; // two changes may cancel out in a sum
    }
    s.faults.heal_at = std::time::Duration::from_secs(3600);
    s.complete_within = std::time::Duration::ZERO;
    s
}

#[test]
fn damaged_datagrams_are_found_by_a_checksum_alone() {
    let e = run(&corrupting(Checksum::None)).unwrap_err();
    assert!(e.what.starts_with("wrong bytes"), "{e}");
    for checksum in [Checksum::Additive, Checksum::Crc32c] {
        match run(&corrupting(checksum)) {
            Ok(o) => assert!(o.corrupt > 50, "{checksum:?}: {}", o.corrupt),
            Err(e) => panic!("{checksum:?}: {e}"),
        }
    }
}
