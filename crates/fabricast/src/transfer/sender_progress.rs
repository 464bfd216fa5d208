//! How far the receivers are: what the sender tells while a transfer runs.

use std::time::{Duration, Instant};

use super::ALL;
use super::events::{Part, SendEvent, State};
use super::receiver_table::Stage;
use super::sender_session::SenderSession;

impl SenderSession<'_> {
    /// Asks the core how far each receiver is.
    pub(super) fn count_receivers(&mut self) {
        for status in self.driver.node().members(ALL) {
            let members = &mut self.admission.members;
            if let Ok(at) = members.binary_search_by_key(&status.node, |m| m.node) {
                let m = &mut members[at];
                m.repairs = status.repairs;
                if let Some(heard) = status.heard {
                    let heard = self.clock.0 + Duration::from_nanos(heard.0);
                    m.heard = m.heard.max(heard);
                }
                if !status.gone && m.in_group() {
                    let due = m.sent.saturating_sub(status.placed);
                    let placed = match m.part {
                        // What is sent again comes after the stream.
                        Part::Whole => status.placed,
                        Part::Late | Part::Demoted => {
                            let lacking = due + self.catch_up.lacking(&m.lacks);
                            self.packs.1.saturating_sub(lacking)
                        }
                    };
                    m.placed = placed.min(self.set.len().unwrap_or(u64::MAX));
                    m.waited = status.waited;
                    if self.total.is_some() && m.is_served() && due == 0 {
                        m.complete.get_or_insert_with(Instant::now);
                    }
                }
            }
        }
    }

    pub(super) fn progress(&mut self) {
        self.count_receivers();
        let members = &self.admission.members;
        let mut placed: Vec<u64> = members
            .iter()
            .filter(|m| m.active() && m.stage != Stage::Preparing || m.is_complete())
            .map(|m| m.placed)
            .collect();
        placed.sort_unstable();
        let counters = self.driver.node().counters();
        let at = |i: usize| placed.get(i).copied().unwrap_or(0);
        let count = |state| members.iter().filter(|m| m.ended(state)).count();
        (self.tell)(SendEvent::Progress {
            seconds: self.clock.0.elapsed().as_secs_f64(),
            slowest: at(0),
            median: at(placed.len() / 2),
            fastest: at(placed.len().saturating_sub(1)),
            len: self.set.len(),
            rate: self.driver.node().rate(ALL),
            repairs: counters.repairs_multicast + counters.repairs_unicast,
            verified: count(State::Verified),
            received: count(State::Received),
            failed: members
                .iter()
                .filter(|m| !m.active() && !m.is_complete())
                .count(),
        });
    }
}
