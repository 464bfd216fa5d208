//! A small world exhaustively: two receivers, few blocks, every pattern of lost multicast messages.

use fabricast_proto::ibrmp::{Credits, ReceiverId, Type};

use crate::world::{BLOCK, End, Shape, TIMEOUT, World};

/// The orders in which what is under way arrives.
#[derive(Clone, Copy, Debug)]
pub enum Order {
    /// Each multicast message at once, the channels at the end.
    Prompt,
    /// The channels first, as soon as they carry something; multicast messages at the end.
    Late,
    /// Each multicast message at once, the last of all that are under way first; channels between.
    Mixed,
}

const ORDERS: [Order; 3] = [Order::Prompt, Order::Late, Order::Mixed];

/// Sends files of `blocks` blocks to two receivers. Bit `i` of `lost` says whether the i-th copy of
/// a multicast message is lost. If `expires` is a number, everything expires after so many
/// deliveries by the channels.
fn run(files: usize, blocks: u64, lost: u32, credits: u32, order: Order, expires: Option<usize>) {
    let credits = Credits {
        messages: credits,
        batch: credits.div_ceil(2),
    };
    let shape = Shape {
        slots: 1,
        credits,
        ..Shape::default()
    };
    let mut world = World::new(shape, 2);
    let mut copies = 0;
    for _ in 0..files {
        let len = blocks * u64::from(BLOCK) - 30;
        let (_, file) = world.open(len).expect("a slot");
        let mut reaches = |_: ReceiverId, _: &_| {
            copies += 1;
            lost >> (copies - 1) & 1 == 0
        };
        while world.multicast(&mut reaches) {
            for receiver in world.receivers() {
                match order {
                    Order::Prompt => drop(world.deliver_multicast(receiver, 0)),
                    Order::Late => while world.deliver_down(receiver) {},
                    Order::Mixed => {
                        let waiting = world.stations[&receiver].multicast.len();
                        if waiting > 1 {
                            world.deliver_multicast(receiver, waiting - 1);
                        }
                        world.deliver_down(receiver);
                        world.deliver_up(receiver);
                    }
                }
            }
        }
        let mut left = expires.unwrap_or(usize::MAX);
        let mut moves = true;
        while moves && left > 0 {
            moves = false;
            for receiver in world.receivers() {
                moves |= world.deliver_down(receiver) | world.deliver_up(receiver);
                left = left.saturating_sub(1);
            }
            if !moves && expires.is_none() {
                // The channels are silent: what was multicast late arrives now.
                for receiver in world.receivers() {
                    moves |= world.deliver_multicast(receiver, 0);
                }
            }
        }
        if expires.is_some() {
            world.pass(TIMEOUT);
        } else {
            let ends = world.stations.values().map(|station| station.ends[&file]);
            assert!(ends.into_iter().all(|end| end == End::Complete));
            assert_eq!(world.closed[&file], (2, vec![]));
        }
    }
    world.end();
    if expires.is_none() && lost == 0 && matches!(order, Order::Prompt) {
        for receiver in world.receivers() {
            assert_eq!(world.sent(receiver, Type::DataRequest), 0);
            assert_eq!(world.sent(receiver, Type::BofRequest), 0);
        }
    }
}

#[test]
fn every_pattern_of_losses_is_mended() {
    // BOF and three blocks to two receivers are eight copies.
    for lost in 0..1 << 8 {
        for credits in [1, 2, 5] {
            for order in ORDERS {
                run(1, 3, lost, credits, order, None);
            }
        }
    }
}

#[test]
fn every_pattern_of_losses_of_two_files_in_a_slot_is_mended() {
    for lost in 0..1 << 12 {
        for order in ORDERS {
            run(2, 2, lost, 2, order, None);
        }
    }
}

#[test]
fn every_pattern_of_losses_with_expiry_at_every_moment_ends() {
    for lost in 0..1 << 8 {
        for credits in [1, 3] {
            for order in ORDERS {
                for expires in 0..16 {
                    run(1, 3, lost, credits, order, Some(expires));
                    // The same twice, in one slot: the second file replaces what is left.
                    run(2, 1, lost, credits, order, Some(expires));
                }
            }
        }
    }
}
