//! How many repairs a receiver gets: a report is only a claim (spec 2.5).
//!
//! A receiver earns a repair with each packet that it has more than before, and has some in
//! advance, so that losses can be repaired before it gets on. When everything has been sent for the
//! first time and nobody waits for new packets, it earns as many as a packet needs tries on the way
//! to it. What a receiver asks for beyond that shares, with all other such receivers, one fifth of
//! the pace. A receiver that has told numbers that cannot be true earns nothing, and has half the
//! share.

use super::*;

/// A receiver can have earned a repair for one of so many packets of the window.
const EARNED: u32 = 8;
/// It can always have earned so many.
const EARNED_MIN: u32 = 64;
/// The share of the pace for repairs that nobody has earned.
const SHARE: f64 = 0.2;
/// What a repair takes of the share for a receiver that is not believed.
const PRICE_DOUBTED: u32 = 2;
/// What the share amounts to in this time can be saved up.
const SAVED: Duration = Duration::from_millis(50);
/// So many packets can always be saved up.
const SAVED_MIN: f64 = 8.0;

/// What a root can spend on repairs that receivers have not earned.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    /// Repairs that a member can have earned.
    most: u32,
    /// Bytes of a packet.
    packet: f64,
    /// Whether each member that lacks a packet is sent one of its own.
    singly: bool,
    /// Packets of the share that are saved up, and as of when; less than nothing after a block that
    /// cost more than there was.
    saved: f64,
    at: Time,
}

impl Budget {
    pub(super) fn new(config: &Config, relay: bool, chunk: u32) -> Budget {
        let scheme = &config.scheme;
        Budget {
            most: (scheme.window / EARNED).max(EARNED_MIN),
            packet: f64::from(chunk + scheme.data_overhead() as u32),
            singly: relay || scheme.repair.how == How::Unicast,
            saved: SAVED_MIN,
            at: Time::ZERO,
        }
    }

    /// Repairs that a member can have earned.
    pub(super) fn most(&self) -> u32 {
        self.most
    }

    /// Saves up what the share has amounted to, of a lane with this pace (bytes per second).
    fn save(&mut self, now: Time, pace: u64) {
        let share = pace as f64 * SHARE / self.packet;
        let most = (share * SAVED.as_secs_f64()).max(SAVED_MIN);
        let more = share * now.since(self.at).as_secs_f64();
        (self.saved, self.at) = ((self.saved + more).min(most), now);
    }
}

impl Root {
    /// What member `i` tells has been counted: it has as many packets as lie before `had`. A member
    /// that is not believed earns nothing.
    pub(super) fn earn(&mut self, i: usize, had: Seq) {
        let m = &mut self.members[i];
        let lane = self.lanes[m.lane].as_ref();
        let all_sent = lane.is_some_and(|l| l.window.next() == self.end);
        if !m.is_believed() {
            m.credit = 0;
            return;
        }
        // What a member has had is not missing there again: it earns once, whatever it tells.
        if m.had.before(had) {
            let more = had.from(m.had) as u32;
            m.had = had;
            let each = if all_sent { m.losses.tries() } else { 1 };
            let earned = more.saturating_mul(each);
            m.credit = m.credit.saturating_add(earned).min(self.budget.most);
        }
    }

    /// Repairs that member `i` may ask for now.
    pub(super) fn affordable(&mut self, now: Time, i: usize) -> u32 {
        let m = &self.members[i];
        if mutant::active(Mutant::RepairsWithoutLimit) {
            return u32::MAX;
        }
        if m.credit >= self.budget.most {
            return m.credit;
        }
        if let Some(lane) = &self.lanes[m.lane] {
            self.budget.save(now, lane.pacer.rate());
        }
        // Where nothing limits the pace, as in memory, the share is more than there are packets.
        m.credit.saturating_add(self.budget.saved as u32)
    }

    /// So many repairs are queued because member `i` has asked.
    pub(super) fn charge(&mut self, i: usize, repairs: u32) {
        let m = &mut self.members[i];
        let beyond = repairs.saturating_sub(m.credit);
        m.credit -= repairs - beyond;
        if beyond > 0 {
            let price = if m.is_believed() { 1 } else { PRICE_DOUBTED };
            self.budget.saved -= f64::from(beyond * price);
        }
    }

    /// Whether a packet that is queued for others costs one more for this member.
    pub(super) fn is_served_singly(&self, i: usize) -> bool {
        self.budget.singly || self.members[i].lane != GROUP_LANE
    }
}
