//! The event queue and the clock of the simulated world.
//!
//! Events come out by time. Events of the same time come out in the order of their insertion, so
//! that a run is a function of its seed alone.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Index that stands for no event.
const NONE: u32 = u32::MAX;

/// Events for the same time that were inserted one after another. The heap moves them as one run. A
/// switch that copies a multicast to its idle links makes such a run.
#[derive(Clone, Copy, Debug)]
struct Run {
    at: u64,
    /// Order of insertion.
    order: u64,
    /// The run's first event.
    first: u32,
}

impl PartialEq for Run {
    fn eq(&self, other: &Run) -> bool {
        self.order == other.order
    }
}

impl Eq for Run {}

impl PartialOrd for Run {
    fn partial_cmp(&self, other: &Run) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Run {
    /// Reversed order: the heap yields its greatest element, but the earliest is wanted.
    fn cmp(&self, other: &Run) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

/// An event that has come due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Due {
    /// A packet (slot `b`) reaches the end of a link (`a`).
    Packet { link: u32, slot: u32 },
    /// An alarm that somebody has set.
    Alarm { a: u32, b: u32 },
}

/// An event and the next one of its run (or of the list of free slots).
#[derive(Clone, Copy, Debug)]
struct Event {
    due: Due,
    next: u32,
}

/// Events in the order in which they happen.
#[derive(Debug)]
pub(crate) struct Queue {
    heap: BinaryHeap<Run>,
    events: Vec<Event>,
    /// The first free slot among the events.
    free: u32,
    /// The next event of the run that is coming out.
    rest: u32,
    /// The event inserted last, as long as it waits, and its time.
    last: (u32, u64),
    runs: u64,
    now: u64,
}

impl Default for Queue {
    fn default() -> Queue {
        Queue {
            heap: BinaryHeap::new(),
            events: Vec::new(),
            free: NONE,
            rest: NONE,
            last: (NONE, 0),
            runs: 0,
            now: 0,
        }
    }
}

impl Queue {
    /// Time of the event that came out last, in nanoseconds.
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    /// Inserts an event; an event in the past happens now.
    pub(crate) fn push(&mut self, at: u64, due: Due) {
        let at = at.max(self.now);
        let event = self.store(due);
        let (last, last_at) = self.last;
        if last != NONE && last_at == at {
            // Nothing was inserted in between, so this event comes out right after the last one.
            self.events[last as usize].next = event;
        } else {
            self.heap.push(Run {
                at,
                order: self.runs,
                first: event,
            });
            self.runs += 1;
        }
        self.last = (event, at);
    }

    /// Takes out the next event and sets the clock to it.
    pub(crate) fn pop(&mut self) -> Option<Due> {
        let event = if self.rest != NONE {
            self.rest
        } else {
            let run = self.heap.pop()?;
            debug_assert!(run.at >= self.now, "time ran backwards");
            self.now = run.at;
            run.first
        };
        let Event { due, next } = self.events[event as usize];
        self.rest = next;
        if self.last.0 == event {
            self.last.0 = NONE;
        }
        self.events[event as usize].next = self.free;
        self.free = event;
        Some(due)
    }

    fn store(&mut self, due: Due) -> u32 {
        let event = Event { due, next: NONE };
        if self.free == NONE {
            self.events.push(event);
            return self.events.len() as u32 - 1;
        }
        let place = self.free;
        self.free = self.events[place as usize].next;
        self.events[place as usize] = event;
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_times_come_out_in_the_order_of_insertion() {
        let mut q = Queue::default();
        for i in 0..1000u32 {
            q.push(u64::from(i % 7), Due::Alarm { a: i % 7, b: i });
        }
        let mut last = (0, 0);
        while let Some(due) = q.pop() {
            let Due::Alarm { a, b } = due else {
                panic!("only alarms were put in")
            };
            assert!((a, b) >= last);
            assert_eq!(q.now(), u64::from(a));
            last = (a, b);
        }
    }

    /// Covers runs that are interrupted, runs that grow while they come out, and times out of
    /// order. The result equals that of a sorted list.
    #[test]
    fn events_come_out_as_from_a_sorted_list() {
        let mut rng = fabricast::proto::rng::Rng::new(1);
        let mut q = Queue::default();
        let mut list: Vec<(u64, u32)> = Vec::new();
        let (mut n, mut at) = (0u32, 0u64);
        for _ in 0..20_000 {
            if rng.chance(0.5) {
                if rng.chance(0.3) {
                    at = q.now() + rng.below(4);
                }
                // Some times lie in the past; those events happen now.
                q.push(at, Due::Alarm { a: 0, b: n });
                list.push((at.max(q.now()), n));
                n += 1;
            } else {
                let first = list.iter().min().copied();
                let got = q.pop();
                assert_eq!(got, first.map(|(_, b)| Due::Alarm { a: 0, b }));
                list.retain(|e| Some(*e) != first);
            }
        }
        assert!(q.events.len() < 500, "places are used again");
    }
}
