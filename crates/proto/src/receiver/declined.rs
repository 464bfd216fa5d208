//! The packets that a receiver declines and that the sender may not know to be declined.

use std::collections::VecDeque;

use crate::limits::OPS_MAX;
use crate::seq::Seq;

/// Runs of declined packets that the sender may not know of.
#[derive(Default)]
pub struct Declines {
    /// The runs, as first packet and number of packets, in rising order. Runs do not touch.
    runs: VecDeque<(Seq, u32)>,
}

impl Declines {
    /// Whether there is room for no other run.
    pub fn is_full(&self) -> bool {
        self.runs.len() >= OPS_MAX
    }

    /// The runs, in rising order.
    pub fn runs(&self) -> impl Iterator<Item = (Seq, u32)> + '_ {
        self.runs.iter().copied()
    }

    /// Adds the packets of an operation, which lie behind all others.
    pub fn push(&mut self, first: Seq, packets: u32) {
        match self.runs.back_mut() {
            Some(run) if run.0 + run.1 == first => run.1 += packets,
            _ => self.runs.push_back((first, packets)),
        }
    }

    /// Forgets runs that the sender is past: this node has placed a packet behind them.
    pub fn forget_before(&mut self, cum: Seq) {
        while self
            .runs
            .front()
            .is_some_and(|run| (run.0 + run.1).before(cum))
        {
            self.runs.pop_front();
        }
    }
}
