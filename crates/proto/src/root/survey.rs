//! Who owes an answer is asked, what a sender notices to be lost is sent again, and who keeps the
//! others waiting for too long is reported.

use super::*;

/// More time between two surveys than this is the root's own absence (it was stopped), and members
/// are not to blame.
const ABSENCE: Duration = Duration::from_secs(1);

impl Root {
    /// A packet has been sent: who does not answer will be asked.
    pub(super) fn arm_survey(&mut self, now: Time, scheme: &Scheme) {
        if self.survey_at.is_none() || self.has_sent_all() {
            let at = now + self.patience(scheme);
            self.survey_at = Some(self.survey_at.map_or(at, |s| s.min(at)));
        }
    }

    /// Whether nothing is left to be sent for the first time, by any way.
    pub(super) fn has_sent_all(&self) -> bool {
        match self.relay {
            None => self.front == self.end,
            Some(_) => {
                let group = self.lanes[GROUP_LANE].as_ref();
                group.is_some_and(|l| l.window.next() == self.end)
            }
        }
    }

    /// How long a member may be silent before it is asked: at the end until it should have answered
    /// at its turn.
    fn patience(&self, scheme: &Scheme) -> Duration {
        let detect = &scheme.detect;
        let Some(rtt) = self.rtt else {
            return detect.ask_min;
        };
        let there_and_back = (rtt * 2 + self.rtt_var * 4).min(detect.ask_max);
        let turns = scheme.feedback.turn * self.members.len() as u32;
        let unhurried = match self.ops.back() {
            Some(op) if !op.awaited => scheme.feedback.unhurried,
            _ => Duration::ZERO,
        };
        match self.has_sent_all() {
            true => there_and_back.max(detect.tail_min) + turns + unhurried,
            false => there_and_back.max(detect.ask_min),
        }
    }

    /// Looks for members that owe an answer, asks them, and reports those that are too slow.
    pub(super) fn survey(&mut self, now: Time, config: &Config, out: &mut VecDeque<Output>) {
        let detect = &config.scheme.detect;
        let first = self.patience(&config.scheme);
        self.survey_at = (!self.ops.is_empty()).then(|| now + first);
        let end = self.end;
        let (mut singly, mut together) = (0, false);
        let (mut again, mut count_again) = ([0; ASK_SINGLY], 0);
        let asks = self.asks.len();
        let (from, count) = (self.ask_from, self.members.len());
        if self.relay.is_none() {
            self.blame(now, config, out);
        }
        self.try_again(now);
        if self.by_sender && !mutant::active(Mutant::SenderNoticesNothing) {
            self.send_again(now, first, detect);
        }
        let sent = self.lanes[GROUP_LANE].as_ref().map(|l| l.window.next());
        let owes = |m: &Member| {
            let sent = sent.filter(|_| m.lane == GROUP_LANE && m.is_ready());
            let unaware = |sent| m.is_unaware(now, sent, detect);
            m.owes(end) && (m.is_silent(now, first, detect) || sent.is_some_and(unaware))
        };
        let owing = self.members.iter().filter(|m| owes(m)).count();
        for k in 0..if owing > 0 { count } else { 0 } {
            let i = (from + k) % count;
            let m = &mut self.members[i];
            if !owes(m) {
                continue;
            }
            // Who is served alone has a lane of which the group knows nothing, and who did not
            // answer the group's question may not hear the group at all.
            let group = self.relay.is_none() && m.lane == GROUP_LANE;
            if group && m.unanswered < 2 && owing > ASK_SINGLY {
                together = true;
            } else if singly < ASK_SINGLY {
                singly += 1;
                self.asks.push_back(Dest::Node(m.node));
                self.ask_from = i + 1;
                if m.losses.tries() > 1 && m.is_ready() {
                    again[count_again] = i;
                    count_again += 1;
                }
            } else {
                continue; // its turn comes with the next survey
            }
            m.asked = now;
            m.unanswered += 1;
        }
        if together {
            self.asks.push_back(Dest::Group(self.group));
        }
        // Where much is lost, what the question is about goes with it.
        for &i in &again[..count_again] {
            let m = &self.members[i];
            let lacks = m.seen.2.max(m.cum);
            let upto = self.repairable(m);
            let noted = self.note(now, i, (lacks, 1), upto, (None, Duration::ZERO));
            self.members[i].repairs += noted;
        }
        debug_assert!(self.asks.len() <= asks + ASK_SINGLY + 1);
        // A silent required receiver must not stop the pacer's rounds.
        let newest = self.flights.newest();
        for lane in self.lanes.iter_mut().flatten() {
            lane.pacer.tick(now, newest);
        }
    }

    /// Takes for lost what members have not acknowledged in time (P1.2), and with
    /// [`Told::Tree`] for lost by all below them (P1.5).
    fn send_again(&mut self, now: Time, first: Duration, detect: &Detect) {
        for i in 0..self.members.len() {
            let m = &self.members[i];
            let Some(l) = &self.lanes[m.lane] else {
                continue;
            };
            // What has been seen there may still be on its way to the disk.
            let oldest = m.missing.first().map_or(m.unseen, |r| r.0).max(m.cum);
            if !m.owes(self.end) || !oldest.before(l.window.next()) || !m.is_ready() {
                continue;
            }
            let waited = now.since(l.window.sent_at(oldest).max(m.asked).max(m.advanced));
            if waited < m.patience(first, detect) {
                continue;
            }
            let upto = l.window.next().min(self.repairable(m));
            let tail = (m.unseen, upto.from(m.unseen).max(0) as u32);
            let missing = core::mem::take(&mut self.members[i].missing);
            let mut noted = 0;
            for &range in missing.iter().chain([&tail]) {
                noted += self.note(now, i, range, upto, (None, Duration::ZERO));
            }
            let m = &mut self.members[i];
            m.missing = missing;
            // Who has been sent everything is asked, as any other.
            if noted > 0 {
                (m.asked, m.unanswered) = (now, m.unanswered + 1);
                m.repairs += noted;
            }
        }
    }

    /// Reports those who have not got on for too long while the root waited for them: of those that
    /// are ready the furthest behind, for the others wait as it does.
    fn blame(&mut self, now: Time, config: &Config, out: &mut VecDeque<Output>) {
        let end = self.end;
        let since = now.since(core::mem::replace(&mut self.surveyed, now));
        let since = since.min(ABSENCE);
        let ready = self.members.iter().filter(|m| m.owes(end) && m.is_ready());
        let last = ready
            .map(|m| m.cum)
            .reduce(|a, b| if a.before(b) { a } else { b });
        for i in 0..self.members.len() {
            let m = &self.members[i];
            if !m.owes(end) {
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

    /// Whether the root waits for a member that is ready: it has not placed what was sent, and new
    /// packets cannot be sent before it does.
    fn waits_for(&self, m: &Member) -> bool {
        let lane = self.lanes[m.lane].as_ref();
        lane.is_some_and(|l| m.cum.before(l.window.next())) && !self.is_open(m.lane)
    }
}
