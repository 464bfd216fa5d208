//! Members that multicast did not reach are tried again by it, ever more patiently, and join the
//! group's lane again when they have answered and caught up (P4.6).

use super::*;
use crate::nonce::Nonces;
use crate::wire::Probe;

/// How long after multicast was found not to reach a member it is tried again; doubled each time in
/// vain.
const TRY_MIN: Duration = Duration::from_millis(200);
/// It is tried this often at least. Who was reached again for longer than this begins anew.
const TRY_MAX: Duration = Duration::from_secs(5);

/// When a member is tried again.
#[derive(Clone, Copy, Debug)]
pub struct Trial {
    /// When it is tried next, while multicast does not reach it.
    at: Option<Time>,
    wait: Duration,
    /// When it was last reached again.
    reached: Time,
    /// The nonce of its last probe, unless that has been answered.
    nonce: Option<u32>,
}

impl Trial {
    /// It has never been tried.
    pub const NEW: Trial = Trial {
        at: None,
        wait: TRY_MIN,
        reached: Time::ZERO,
        nonce: None,
    };
}

impl Root {
    /// Chooses a member that is to be tried now, if there is one.
    pub(super) fn try_again(&mut self, now: Time) {
        if self.relay.is_some() || self.members.len() == 1 {
            return;
        }
        let end = self.end;
        let mut first = None::<(Time, usize)>;
        for (i, m) in self.members.iter_mut().enumerate() {
            if m.reach != Reach::Unicast || !m.owes(end) {
                continue;
            }
            let trial = &mut m.trial;
            let at = *trial.at.get_or_insert_with(|| {
                if now.since(trial.reached) > TRY_MAX {
                    trial.wait = TRY_MIN;
                }
                now + trial.wait
            });
            if at <= now && first.is_none_or(|f| at < f.0) {
                first = Some((at, i));
            }
        }
        if let Some((_, i)) = first {
            let m = &mut self.members[i];
            m.trial.wait = (m.trial.wait * 2).min(TRY_MAX);
            m.trial.at = Some(now + m.trial.wait);
            self.tries.push_back(m.node);
        }
    }

    /// The probe for a member that is tried again: it alone answers.
    pub fn trial(&mut self, nonces: &mut Nonces) -> Option<Send> {
        let node = self.tries.pop_front()?;
        let i = self.index_of(node)?;
        let nonce = nonces.multicast();
        self.members[i].trial.nonce = Some(nonce);
        Some(Send::Probe(Probe {
            group: self.group,
            nonce,
            flags: flag::MULTICAST | flag::ALONE,
            only: Some(node),
        }))
    }

    /// A member has answered the probe with this nonce: multicast reaches it again. False if that
    /// is not its last probe, or not the first answer.
    pub fn regained(
        &mut self,
        now: Time,
        (node, nonce): (NodeId, u32),
        out: &mut VecDeque<Output>,
    ) -> bool {
        let Some(i) = self.index_of(node) else {
            return false;
        };
        let sent = self.lanes[GROUP_LANE].as_ref().map_or(0, |l| l.fresh);
        let m = &mut self.members[i];
        if m.reach != Reach::Unicast || !m.is_mine() || m.trial.nonce != Some(nonce) {
            return false;
        }
        m.reach = Reach::Multicast;
        (m.trial.at, m.trial.reached, m.trial.nonce) = (None, now, None);
        m.hearing.start(now, m.seen.3, sent);
        let (cum, limit, ready) = (m.cum, m.limit, m.is_ready());
        if let Some(l) = &mut self.lanes[m.lane] {
            l.follows = true;
        }
        self.follow_group();
        self.advance(i, cum, limit, ready);
        out.push_back(Output::Event(Event::Path {
            group: self.group,
            node,
            reach: Reach::Multicast,
        }));
        true
    }

    /// Whether multicast reaches this member, as far as is known.
    pub fn hears(&self, node: NodeId) -> bool {
        let found = self.index_of(node);
        found.is_some_and(|i| !self.members[i].gone && self.members[i].reach == Reach::Multicast)
    }

    /// Member `i`, which has a lane of its own, joins the group's.
    pub(super) fn rejoin(&mut self, i: usize) {
        let alone = self.lanes[self.members[i].lane].as_ref();
        let sent = alone.map(|l| l.window.next());
        let mut others = self.members.iter().filter(|m| m.lane == GROUP_LANE);
        // If nobody waits for what the group has not been sent, it need not be sent what this one
        // has been.
        if let Some(sent) = sent
            && !others.any(Member::is_mine)
            && let Some(group) = &mut self.lanes[GROUP_LANE]
        {
            group.window.skip_to(sent);
            self.follow_group();
        }
        self.move_to(i, GROUP_LANE);
    }

    /// What the group has been sent, lanes of members that hear it need not send: if it is missing
    /// there, they repair it.
    pub(super) fn follow_group(&mut self) {
        let Some(next) = self.lanes[GROUP_LANE].as_ref().map(|l| l.window.next()) else {
            return;
        };
        for lane in self.lanes.iter_mut().flatten().filter(|l| l.follows) {
            lane.window.skip_to(next);
        }
    }
}
