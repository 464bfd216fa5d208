//! Receivers that do not answer at the address that the sender told, and when to report each.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fabricast_proto::NodeId;

/// How long another receiver may not answer before this one first reports it to the sender. The
/// pause doubles with each report.
const AGAIN_MIN: Duration = Duration::from_millis(100);
/// The longest pause between two reports that another receiver does not answer.
const AGAIN_MAX: Duration = Duration::from_secs(3);
/// The number of receivers that do not answer and are reported in one tick, at most.
const REPORTED: usize = 16;

/// When to report each receiver next that does not answer, and the pause after that.
#[derive(Default)]
pub struct Unanswered(BTreeMap<NodeId, (Instant, Duration)>);

impl Unanswered {
    /// The receivers to report now, of those that do not answer.
    pub fn due(&mut self, silent: Vec<NodeId>, now: Instant) -> std::vec::IntoIter<NodeId> {
        self.0.retain(|node, _| silent.contains(node));
        let mut is_due = |node: &NodeId| {
            let next = self.0.entry(*node);
            let (due, pause) = next.or_insert((now + AGAIN_MIN, AGAIN_MIN));
            if now < *due {
                return false;
            }
            *pause = (*pause * 2).min(AGAIN_MAX);
            *due = now + *pause;
            true
        };
        let some = silent.into_iter().take(REPORTED);
        some.filter(|node| is_due(node))
            .collect::<Vec<_>>()
            .into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_doubles_until_it_answers() {
        let (mut unanswered, start) = (Unanswered::default(), Instant::now());
        let mut at = |ms: u64, silent: &[u32]| -> usize {
            let silent = silent.iter().copied().map(NodeId).collect();
            unanswered
                .due(silent, start + Duration::from_millis(ms))
                .len()
        };
        let told = [0, 99, 100, 299, 300, 700].map(|ms| at(ms, &[1]));
        assert_eq!(told, [0, 0, 1, 0, 1, 1]);
        // It has answered, and falls silent again.
        assert_eq!([at(800, &[]), at(900, &[1]), at(1000, &[1])], [0, 0, 1]);
        let many: Vec<u32> = (0..40).collect();
        assert_eq!((at(1100, &many), at(9000, &many)), (0, REPORTED));
    }
}
