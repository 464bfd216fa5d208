//! The hand-over between callers and the progress thread, in every order of steps and with every
//! value that the memory model allows.

#[path = "../src/communicator/progress/hand_over.rs"]
mod hand_over;
#[path = "../src/communicator/operations/left.rs"]
mod left;

use std::time::Duration;

use fabricast_proto::Time;
use loom::sync::{Arc, Mutex, atomic};
use loom::thread;

use hand_over::{BUSY_MAX, HandOver, TURN};
use left::Left;

const NOW: Time = Time(100_000_000);
/// Far longer than work may wait.
const LONG: Duration = Duration::from_millis(50);

/// Looks and decides as the progress thread does. Returns how long it rests.
fn look_and_rest(hand_over: &HandOver) -> Duration {
    hand_over.works();
    let seen = hand_over.look();
    let rest = match seen.copies {
        true => TURN,
        false => LONG,
    };
    match hand_over.rests(NOW + rest, seen) {
        true => TURN,
        false => rest,
    }
}

#[test]
fn a_caller_that_leaves_copies_wakes_the_thread_or_is_seen() {
    loom::model(|| {
        let hand_over = Arc::new(HandOver::default());
        let theirs = hand_over.clone();
        let caller = thread::spawn(move || theirs.returns(NOW, Left::Copies, false));
        let rest = look_and_rest(&hand_over);
        let woken = caller.join().unwrap();
        assert!(woken || rest <= TURN, "{rest:?}");
    });
}

#[test]
fn a_caller_that_leaves_nothing_lets_the_thread_sleep_but_not_rest_long() {
    loom::model(|| {
        let hand_over = HandOver::default();
        let returns = |left| hand_over.returns(NOW, left, false);
        hand_over.sleeps(|| (), |()| None);
        assert!(!returns(Left::Nothing));
        assert!(returns(Left::Due(NOW)));
        assert!(!returns(Left::Due(NOW)), "it was woken for the first");
        hand_over.sleeps(|| (), |()| Some(NOW + BUSY_MAX));
        assert!(!returns(Left::Due(NOW)) && returns(Left::Copies));
        let seen = hand_over.look();
        assert!(!hand_over.rests(NOW + LONG, seen));
        assert!(returns(Left::Nothing), "other nodes may probe");
        hand_over.enters();
        assert!(hand_over.look().inside);
        hand_over.leaves();
        assert!(!hand_over.look().inside);
    });
}

/// A caller leaves copies and returns under the engine's lock, under which the thread takes its
/// last step before it sleeps.
#[test]
fn a_thread_that_falls_asleep_is_woken_or_has_seen_what_is_left() {
    loom::model(|| {
        let shared = Arc::new((HandOver::default(), Mutex::new(false)));
        let theirs = shared.clone();
        let caller = thread::spawn(move || {
            let (hand_over, copies) = &*theirs;
            let mut copies = copies.lock().unwrap();
            *copies = true;
            hand_over.returns(NOW, Left::Copies, false)
        });
        let (hand_over, copies) = &*shared;
        hand_over.works();
        let saw = hand_over.sleeps(|| *copies.lock().unwrap(), |&saw| saw.then_some(NOW + TURN));
        let woken = caller.join().unwrap();
        assert!(woken || saw);
    });
}

/// The thread stops looking for broadcasts that wait only under the engine's lock, and the caller
/// leaves one under that lock.
#[test]
fn a_broadcast_that_waits_is_looked_for() {
    loom::model(|| {
        let shared = Arc::new((HandOver::default(), Mutex::new(false)));
        assert!(shared.0.returns(Time::ZERO, Left::Nothing, true));
        assert!(!shared.0.returns(Time::ZERO, Left::Nothing, true));
        let theirs = shared.clone();
        let thread = thread::spawn(move || {
            let (hand_over, waits) = &*theirs;
            let waits = waits.lock().unwrap();
            if !*waits {
                hand_over.calms_down(NOW);
            }
        });
        let (hand_over, waits) = &*shared;
        *waits.lock().unwrap() = true;
        let woken = hand_over.returns(NOW, Left::Nothing, true);
        thread.join().unwrap();
        assert!(woken || hand_over.is_hurried());
    });
}
