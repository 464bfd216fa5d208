//! Random worlds: several files in slots, losses, late joiners, leavers, expiry, forged multicast.
//!
//! `IBRMP_SEED=N cargo test -p fabricast-proto --test ibrmp one_seed -- --nocapture` runs one seed
//! again and prints its messages.

use fabricast_proto::ibrmp::{Body, Credits, Fd, FileId, ReceiverId};
use fabricast_proto::rng::Rng;

use crate::seeds::{caught, variable};
use crate::world::{BLOCK, End, Shape, TIMEOUT, World};

/// The number of a file that no world has.
const NEVER: u64 = 1000;
/// Worlds of one run; the variable `IBRMP_SEEDS` asks for more.
const SEEDS: u64 = 3000;

/// What a world has shown.
#[derive(Default)]
pub struct Shown {
    complete: usize,
    failed: usize,
    late: usize,
}

/// Runs the world of a seed.
pub fn run(seed: u64, trace: bool) -> Result<Shown, String> {
    let mut rng = Rng::new(seed);
    let messages = 1 + rng.below(16) as u32;
    let shape = Shape {
        slots: 1 + rng.below(4) as u16,
        credits: Credits {
            messages,
            batch: 1 + rng.below(u64::from(messages)) as u32,
        },
        holes_max: 1 + rng.below(12) as usize,
    };
    // A third each without loss, with a little, and with up to 90 %.
    let loss = match rng.below(3) {
        0 => 0.0,
        1 => 0.05,
        _ => 0.9 * rng.unit(),
    };
    let expires = rng.chance(0.5);
    let comes_and_goes = rng.chance(0.5);
    let reorders = rng.chance(0.5);
    let forges = rng.chance(0.3);
    let mut world = World::new(shape, 1 + rng.below(4) as usize);
    world.trace = trace;
    let files = 1 + rng.below(12);
    let mut opened = 0;
    let mut shown = Shown::default();
    let mut open = Vec::new();
    for _ in 0..200 + rng.below(1500) {
        let receivers = world.receivers();
        let receiver = match receivers.len() {
            0 => world.join(),
            n => receivers[rng.below(n as u64) as usize],
        };
        match rng.below(100) {
            0..3 if opened < files => {
                let len = rng.below(30 * u64::from(BLOCK));
                if let Some(file) = world.open(len) {
                    open.push(file);
                    opened += 1;
                }
            }
            3..30 => {
                world.multicast(|_, _| !rng.chance(loss));
            }
            30..55 => {
                let waiting = world.stations[&receiver].multicast.len() as u64;
                let ahead = if reorders { waiting.min(3) } else { 1 };
                if waiting > 0 {
                    world.deliver_multicast(receiver, rng.below(ahead) as usize);
                }
            }
            55..75 => drop(world.deliver_down(receiver)),
            75..95 => drop(world.deliver_up(receiver)),
            95 if comes_and_goes && receivers.len() < 8 => {
                world.join();
                shown.late += 1;
            }
            96 if comes_and_goes && rng.chance(0.5) => world.leave(receiver),
            97 if expires => world.pass(TIMEOUT / 4),
            98 if expires && rng.chance(0.2) && !open.is_empty() => {
                let (fd, file) = open.swap_remove(rng.below(open.len() as u64) as usize);
                if !world.closed.contains_key(&file) {
                    world.abandon(fd, file);
                }
            }
            99 if forges => {
                // DATA of a file of the sender, or of one that there never is.
                let fd = rng.below(u64::from(shape.slots)) as u16;
                let newest = world.sender.tuple(Fd(fd)).0.map_or(1, |file| file.0);
                let file = if rng.chance(0.5) { newest } else { NEVER };
                let (offset, len) = (rng.below(40 * u64::from(BLOCK)), BLOCK);
                world.forge(receiver, fd, file, Body::Data { offset, len });
            }
            _ => {}
        }
    }
    world.end();
    for station in world.stations.values() {
        let complete = station.ends.values().filter(|&&end| end == End::Complete);
        shown.complete += complete.count();
        shown.failed += station.ends.len();
    }
    shown.failed -= shown.complete;
    let is_unfinished = |(noted, unfinished): &(usize, Vec<ReceiverId>)| {
        let stays = |receiver: &&ReceiverId| world.stations.contains_key(receiver);
        *noted > 0 && unfinished.iter().any(|receiver| stays(&receiver))
    };
    let unfinished: Vec<FileId> = world
        .closed
        .iter()
        .filter(|(_, closed)| is_unfinished(closed))
        .map(|(&file, _)| file)
        .collect();
    if !expires && !unfinished.is_empty() {
        return Err(format!(
            "not complete although nothing expires: {unfinished:?}"
        ));
    }
    Ok(shown)
}

#[test]
fn random_worlds_obey_the_judge() {
    std::panic::set_hook(Box::new(|_| {}));
    let seeds = variable("IBRMP_SEEDS").and_then(|seeds| seeds.parse().ok());
    let mut all = Shown::default();
    let mut failed = Vec::new();
    for seed in 0..seeds.unwrap_or(SEEDS) {
        match caught(|| run(seed, false)) {
            Ok(shown) => {
                all.complete += shown.complete;
                all.failed += shown.failed;
                all.late += shown.late;
            }
            Err(why) => failed.push(format!("seed {seed}: {why}")),
        }
    }
    let _ = std::panic::take_hook();
    let first: Vec<_> = failed.iter().take(12).collect();
    let command = "IBRMP_SEED=N cargo test -p fabricast-proto --test ibrmp one_seed";
    assert!(
        failed.is_empty(),
        "{} failed, see {command}: {first:#?}",
        failed.len()
    );
    println!(
        "complete {}, failed {}, late {}",
        all.complete, all.failed, all.late
    );
    assert!(all.complete > 1000 && all.failed > 100 && all.late > 1000);
}

#[test]
fn one_seed_again() {
    let Some(seed) = variable("IBRMP_SEED").and_then(|seed| seed.parse().ok()) else {
        return;
    };
    let result = run(seed, true);
    assert!(result.is_ok(), "{:?}", result.err());
}
