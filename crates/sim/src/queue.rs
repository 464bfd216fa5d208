//! What happens when: the event queue and the clock of the simulated world.
//!
//! Events come out by time and, at the same time, in the order in which they were put in, so that
//! a run is a function of its seed alone.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// An event: 16 bytes of key and two words that mean something to whoever put it in.
#[derive(Clone, Copy, Debug)]
struct Entry {
    at: u64,
    /// Order of insertion, shifted left by one; the lowest bit says what kind of event it is.
    order: u64,
    a: u32,
    b: u32,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        self.order == other.order
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    /// Reversed: the heap gives its greatest, and the earliest is wanted.
    fn cmp(&self, other: &Entry) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

/// An event that has come due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Due {
    /// A packet (slot `b`) reaches the end of a link (`a`).
    Packet { link: u32, slot: u32 },
    /// What somebody asked to be woken for.
    Alarm { a: u32, b: u32 },
}

/// Events in the order in which they happen.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    heap: BinaryHeap<Entry>,
    inserted: u64,
    now: u64,
}

impl Queue {
    /// The time of the event that came out last, in nanoseconds.
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    /// Puts in an event; one that lies in the past happens now.
    pub(crate) fn push(&mut self, at: u64, due: Due) {
        let (kind, a, b) = match due {
            Due::Packet { link, slot } => (0, link, slot),
            Due::Alarm { a, b } => (1, a, b),
        };
        let order = self.inserted << 1 | kind;
        self.inserted += 1;
        let at = at.max(self.now);
        self.heap.push(Entry { at, order, a, b });
    }

    /// Takes out the next event and sets the clock to it.
    pub(crate) fn pop(&mut self) -> Option<Due> {
        let e = self.heap.pop()?;
        debug_assert!(e.at >= self.now, "time ran backwards");
        self.now = e.at;
        Some(if e.order & 1 == 0 {
            Due::Packet {
                link: e.a,
                slot: e.b,
            }
        } else {
            Due::Alarm { a: e.a, b: e.b }
        })
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
}
