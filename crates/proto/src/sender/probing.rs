//! Probing: the sender probes silent receivers, retransmits packets that are not acknowledged in
//! time (where the sender detects losses), and reports stragglers.

use core::time::Duration;
use std::collections::VecDeque;

use super::Sender;
use super::member::{GROUP_PATH, Member};
use crate::border::{Config, Event, Output};
use crate::mutant::{self, Mutant};
use crate::path::Target;
use crate::scheme::{Detect, Scheme};
use crate::time::Time;

/// Members that the sender probes one by one; if more owe an answer, it probes the group.
const PROBE_SINGLY: usize = 8;
/// Longest time since the sender last looked that counts as waiting. If more has passed, the sender
/// itself was stopped, and members are not to blame.
const ABSENCE: Duration = Duration::from_secs(1);

impl Sender {
    /// Sets the time of the next probes, since a packet has been sent: the sender probes members
    /// that do not answer.
    pub(super) fn arm_probe_timer(&mut self, now: Time, scheme: &Scheme) {
        if self.probing.due.is_none() || self.has_sent_all() {
            let at = now + self.probe_timeout(scheme);
            self.probing.due = Some(self.probing.due.map_or(at, |s| s.min(at)));
        }
    }

    /// Whether every packet has been sent for the first time, by any path.
    pub(super) fn has_sent_all(&self) -> bool {
        match self.relay {
            None => self.ops.sent == self.ops.end,
            Some(_) => {
                let group = self.paths[GROUP_PATH].as_ref();
                group.is_some_and(|l| l.window.next() == self.ops.end)
            }
        }
    }

    /// How long a member may be silent before the sender probes it. After the last packet: until
    /// the member should have answered at its turn.
    pub(super) fn probe_timeout(&self, scheme: &Scheme) -> Duration {
        let detect = &scheme.detect;
        let Some(answer) = self.rtt.answer_timeout() else {
            return detect.rto_min;
        };
        let there_and_back = answer.min(detect.rto_max);
        let turns = scheme.feedback.turn * self.members.len() as u32;
        let ack_delay = match self.ops.queue.back() {
            Some(op) if !op.awaited => scheme.feedback.ack_delay,
            _ => Duration::ZERO,
        };
        match self.has_sent_all() {
            true => there_and_back.max(detect.tail_min) + turns + ack_delay,
            false => there_and_back.max(detect.rto_min),
        }
    }

    /// Looks for members that owe an answer, probes them, and reports those that are too slow.
    pub(super) fn probe_silent(&mut self, now: Time, config: &Config, out: &mut VecDeque<Output>) {
        let detect = &config.scheme.detect;
        let first = self.probe_timeout(&config.scheme);
        self.probing.due = (!self.ops.queue.is_empty()).then(|| now + first);
        let end = self.ops.end;
        let (mut singly, mut together) = (0, false);
        let (mut again, mut count_again) = ([0; PROBE_SINGLY], 0);
        let probes = self.probing.queue.len();
        let (from, count) = (self.probing.next, self.members.len());
        if self.relay.is_none() {
            self.report_stragglers(now, config, out);
        }
        self.reprobe_paths(now);
        if self.by_sender && !mutant::active(Mutant::SenderNoticesNothing) {
            self.retransmit_unacknowledged(now, first, detect);
        }
        let sent = self.paths[GROUP_PATH].as_ref().map(|l| l.window.next());
        let silent = |m: &Member| {
            let sent = sent.filter(|_| m.path == GROUP_PATH && m.is_ready());
            let unaware = |sent| m.is_behind_high(now, sent, detect);
            m.is_behind(end) && (m.is_silent(now, first, detect) || sent.is_some_and(unaware))
        };
        let owing = self.members.iter().filter(|m| silent(m)).count();
        for k in 0..if owing > 0 { count } else { 0 } {
            let i = (from + k) % count;
            let m = &mut self.members[i];
            if !silent(m) {
                continue;
            }
            // The group's path knows nothing of a member with a path of its own, and a member that
            // did not answer the probe of the group may not hear the group at all.
            let group = self.relay.is_none() && m.path == GROUP_PATH;
            if group && m.unanswered < 2 && owing > PROBE_SINGLY {
                together = true;
            } else if singly < PROBE_SINGLY {
                singly += 1;
                self.probing.queue.push_back(Target::Node(m.node));
                self.probing.next = i + 1;
                if m.losses.tries() > 1 && m.is_ready() {
                    again[count_again] = i;
                    count_again += 1;
                }
            } else {
                continue; // this member's turn comes the next time
            }
            m.probed = now;
            m.unanswered += 1;
        }
        if together {
            self.probing.queue.push_back(Target::All);
        }
        // If much is lost on the way to a member, the packet that the probe is about goes along
        // with the probe.
        for &i in &again[..count_again] {
            let m = &self.members[i];
            let lacks = m.seen.2.max(m.cum);
            let upto = self.repairable(m);
            let noted =
                self.queue_retransmissions(now, i, (lacks, 1), upto, (None, Duration::ZERO));
            self.members[i].repairs += noted;
        }
        debug_assert!(self.probing.queue.len() <= probes + PROBE_SINGLY + 1);
        // A required receiver that is silent must not stop the pacer's rounds.
        let newest = self.bursts.newest();
        for path in self.paths.iter_mut() {
            path.pacer.tick(now, newest);
        }
        self.report_outpaced(out);
    }

    /// Retransmits what members have not acknowledged in time (P1.2). With
    /// [`FeedbackTopology::Tree`] the packets count as lost for all receivers below the member, too
    /// (P1.5).
    pub(super) fn retransmit_unacknowledged(
        &mut self,
        now: Time,
        first: Duration,
        detect: &Detect,
    ) {
        for i in 0..self.members.len() {
            let m = &self.members[i];
            let Some(l) = &self.paths[m.path] else {
                continue;
            };
            // A packet that the member has seen may still be on its way to the disk.
            let oldest = m.missing.first().map_or(m.unseen, |r| r.0).max(m.cum);
            if !m.is_behind(self.ops.end) || !oldest.before(l.window.next()) || !m.is_ready() {
                continue;
            }
            let waited = now.since(l.window.sent_at(oldest).max(m.probed).max(m.advanced));
            if waited < m.rto_with_backoff(first, detect) {
                continue;
            }
            let upto = l.window.next().min(self.repairable(m));
            let tail = (m.unseen, upto.from(m.unseen).max(0) as u32);
            let missing = core::mem::take(&mut self.members[i].missing);
            let mut noted = 0;
            for &range in missing.iter().chain([&tail]) {
                noted += self.queue_retransmissions(now, i, range, upto, (None, Duration::ZERO));
            }
            let m = &mut self.members[i];
            m.missing = missing;
            // A member that has been sent everything is probed like any other.
            if noted > 0 {
                (m.probed, m.unanswered) = (now, m.unanswered + 1);
                m.repairs += noted;
            }
        }
    }

    /// Reports members that have made no progress for too long while the sender waited for them.
    /// Among members that are ready only the furthest behind count: the others wait for them, as
    /// the sender does.
    pub(super) fn report_stragglers(
        &mut self,
        now: Time,
        config: &Config,
        out: &mut VecDeque<Output>,
    ) {
        let end = self.ops.end;
        let since = now.since(core::mem::replace(&mut self.probing.checked, now));
        let since = since.min(ABSENCE);
        let ready = self
            .members
            .iter()
            .filter(|m| m.is_behind(end) && m.is_ready());
        let last = ready
            .map(|m| m.cum)
            .reduce(|a, b| if a.before(b) { a } else { b });
        for i in 0..self.members.len() {
            let m = &self.members[i];
            if !m.is_behind(end) {
                continue;
            }
            if m.is_ready() && !(Some(m.cum) == last && self.waits_for(m)) {
                continue;
            }
            let m = &mut self.members[i];
            m.waited += since.min(now.since(m.got_on));
            if m.slow || m.waited < config.patience {
                continue;
            }
            m.slow = true;
            out.push_back(Output::Event(Event::Slow {
                group: self.group,
                node: m.node,
            }));
        }
    }

    /// Whether the sender waits for a member that is ready: the member has not placed what was
    /// sent, and the sender cannot send new packets before it does.
    pub(super) fn waits_for(&self, m: &Member) -> bool {
        let path = self.paths[m.path].as_ref();
        path.is_some_and(|l| m.cum.before(l.window.next())) && !self.window_is_open(m.path)
    }
}
