//! P3's protocol for files under virtual time: losses, receivers that come late, expiry.

use std::time::Duration;

use fabricast::proto::ibrmp::Type;
use fabricast_sim::fault::LinkFaults;
use fabricast_sim::ibrmp::{FileExperiment, FileResult, transfer_files};

fn lossy(loss: f64) -> FileExperiment {
    FileExperiment {
        files: vec![200_000; 20],
        faults: LinkFaults {
            loss,
            ..LinkFaults::NONE
        },
        ..FileExperiment::default()
    }
}

fn run(experiment: &FileExperiment) -> FileResult {
    match transfer_files(experiment) {
        Ok(result) => result,
        Err(why) => panic!("{why}: {experiment:?}"),
    }
}

fn count(result: &FileResult, kind: Type) -> u64 {
    result.messages[kind as usize]
}

#[test]
fn files_arrive_whatever_is_lost_of_multicast() {
    let clean = run(&lossy(0.0));
    let all = 20 * 200_000;
    assert_eq!((clean.multicast, clean.by_channel), (all, 0));
    assert_eq!(count(&clean, Type::TransferDone), 5 * 20);
    for loss in [0.0, 0.1, 0.5, 0.9] {
        let result = run(&lossy(loss));
        println!("{loss}: {result:?}");
        assert_eq!((result.complete, result.unfinished), (5 * 20, 0));
        assert_eq!(result.multicast, all, "each file is multicast once");
        let share = result.by_channel as f64 / (5 * all) as f64;
        assert!((share - loss).abs() < 0.02, "{share} at {loss}");
        // The ACKs of both directions are for batches.
        let acknowledged = result.messages.iter().sum::<u64>() - count(&result, Type::Ack);
        assert!(count(&result, Type::Ack) <= acknowledged / 16);
        // P3.10: with 90 % loss about the sum of both clean times.
        let alone = Duration::from_secs_f64(clean.time.as_secs_f64() * 5.0);
        assert!(
            result.time < (clean.time + alone).mul_f64(1.1),
            "{:?}",
            result.time
        );
    }
}

#[test]
fn receivers_that_come_late_delay_nothing() {
    let clean = run(&lossy(0.0));
    let late = FileExperiment {
        late: vec![clean.time / 3, clean.time / 2, clean.time * 2],
        ..lossy(0.0)
    };
    let result = run(&late);
    assert_eq!(result.unfinished, 0);
    assert!(result.complete >= clean.complete);
    assert_eq!(count(&result, Type::FileTimeout), 0);
}

#[test]
fn equal_seeds_give_equal_runs() {
    assert_eq!(run(&lossy(0.3)), run(&lossy(0.3)));
}

#[test]
fn random_experiments_end() {
    let (mut unfinished, mut timeouts, mut complete) = (0, 0, 0);
    for seed in 0..300 {
        let experiment = FileExperiment::from_seed(seed);
        let result = run(&experiment);
        unfinished += result.unfinished;
        timeouts += count(&result, Type::FileTimeout);
        complete += result.complete;
    }
    println!("complete {complete}, unfinished {unfinished}, FILE_TIMEOUT {timeouts}");
    assert!(complete > 1000 && unfinished > 100 && timeouts > 100);
}
