//! Requests to the manager, their timeouts, and reports of what groups have sent.

use std::collections::BTreeSet;

use core::time::Duration;

use super::held::Held;
use super::{CONTEXT, Holder};
use crate::group::address::{Input, Refusal, State};
use crate::group::message::{Message, SENT_MAX};
use crate::id::AddressId;
use crate::time::Time;

/// Most requests of a host that the manager has not answered.
const REQUESTS_MAX: u32 = 16;
/// Most requests to leave that the manager has not answered, while hosts wait to join.
const LEAVES_MAX: u32 = 12;
/// How long a host waits for the manager's first answer. The layer below repeats single datagrams;
/// this timeout is for answers that never come.
const ANSWER_MIN: Duration = Duration::from_secs(1);
/// Largest wait for the manager's answer.
const ANSWER_MAX: Duration = Duration::from_secs(60);
/// Requests for one join without an answer before the host gives up.
const TRIES: u32 = 5;
/// Time between two reports of the bytes sent, in a context of up to [`REPORT_HOSTS`] hosts.
const REPORT: Duration = Duration::from_secs(1);
/// Hosts above which reports become rarer in proportion.
const REPORT_HOSTS: u32 = 64;

impl Holder {
    /// Does what is due, and returns when something is due next.
    pub(in crate::group) fn tick(&mut self, now: Time) -> Time {
        let due = |held: &Held| held.asked && held.due <= now;
        let late = (self.held.iter()).filter(|(_, held)| due(held));
        let late: Vec<_> = late.map(|(&address, _)| address).collect();
        for address in late {
            self.timeout(now, address);
        }
        if self.requests < REQUESTS_MAX {
            let due = |held: &Held| held.deadline(true) <= now && !held.asked;
            let next = (self.held.iter()).filter(|(_, held)| due(held));
            // A host that is to leave receives in vain, so its request goes first.
            let stays = |held: &Held| held.state != State::Leaving;
            let mut next: Vec<_> = next.map(|(&a, held)| (stays(held), a)).collect();
            next.sort_unstable();
            // A manager that answers no leave keeps no join waiting.
            let leave = |held: &&Held| held.asked && held.state == State::Leaving;
            let leaves = self.held.values().filter(leave).count();
            let most = (LEAVES_MAX as usize).saturating_sub(leaves);
            let joins = next.iter().filter(|(stays, _)| *stays).count();
            if joins > 0 && next.len() - joins > most {
                next.drain(most..next.len() - joins);
            }
            next.truncate((REQUESTS_MAX - self.requests) as usize);
            for (_, address) in next {
                self.request(now, address);
            }
        }
        if self.report <= now {
            self.report(now);
        }
        while let Some(&(until, id)) = self.early.first()
            && until <= now
        {
            self.early.remove(&(until, id));
            self.has_none(id, Refusal::NoAnswer);
        }
        while let Some(&(until, id)) = self.untold.first()
            && until <= now
        {
            self.untold.pop_first();
            self.tell_created(id);
        }
        let until = |set: &BTreeSet<(Time, _)>| set.first().map_or(Time::NEVER, |&(at, _)| at);
        let groups = until(&self.early).min(until(&self.untold));
        let turn = self.requests < REQUESTS_MAX;
        let first = self.held.values().map(|held| held.deadline(turn)).min();
        first.unwrap_or(Time::NEVER).min(self.report).min(groups)
    }

    /// Sends a request to the manager.
    fn request(&mut self, now: Time, address: AddressId) {
        let Some(held) = self.held.get_mut(&address) else {
            return;
        };
        held.asked = true;
        held.tries += 1;
        held.due = now + backoff(held.tries);
        self.requests += 1;
        let (next, action) = held.state.next(Input::Turn);
        held.state = next;
        self.act(now, address, action);
    }

    /// The manager has not answered in time.
    fn timeout(&mut self, now: Time, address: AddressId) {
        let Some(held) = self.held.get_mut(&address) else {
            return;
        };
        held.asked = false;
        held.due = now;
        self.requests -= 1;
        let give_up = held.tries >= TRIES && address != CONTEXT;
        let input = match give_up {
            true => Input::GiveUp,
            false => Input::Timeout,
        };
        self.input(now, address, input);
    }

    /// Plans the next report, unless it is planned already.
    pub(super) fn arm_report(&mut self, now: Time) {
        if self.report == Time::NEVER {
            self.report = now + REPORT * self.hosts.div_ceil(REPORT_HOSTS).max(1);
        }
    }

    /// Reports the bytes that groups have sent, those that sent most first.
    fn report(&mut self, now: Time) {
        let mut counts = Vec::new();
        for &id in &self.unreported {
            counts.extend(self.groups.get(&id).map(|group| (id, group.bytes)));
        }
        counts.sort_by_key(|&(id, bytes)| (core::cmp::Reverse(bytes), id));
        counts.truncate(SENT_MAX);
        for (id, _) in &counts {
            self.unreported.remove(id);
            if let Some(group) = self.groups.get_mut(id) {
                group.bytes = 0;
            }
        }
        self.report = Time::NEVER;
        if !self.unreported.is_empty() {
            self.arm_report(now);
        }
        if !counts.is_empty() {
            self.tell(Message::Sent(counts));
        }
    }
}

/// How long a host waits for the manager's answer to this request.
fn backoff(tries: u32) -> Duration {
    let factor = 1 << tries.saturating_sub(1).min(6);
    (ANSWER_MIN * factor).min(ANSWER_MAX)
}
