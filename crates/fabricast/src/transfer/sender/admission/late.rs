//! Admission while the transfer runs: receivers that come late, and what those say that take part
//! (spec 5.10).

use std::net::IpAddr;
use std::ops::ControlFlow;

use fabricast_proto::NodeId;
use fabricast_proto::ibrmp::Frame;

use super::Admission;
use super::authentication::Step;
use super::objections::{LATE, LATE_STREAM, wrong_family};
use super::seats::host;
use crate::bootstrap::Event;
use crate::bootstrap::message::{Start, ToReceiver, ToSender};
use crate::error::Error;
use crate::interface::Family;
use crate::transfer::events::SendEvent;
use crate::transfer::sender::plan::Plan;
use crate::transfer::sender::receiver_table::{Member, Stage};

/// Late receivers of one host that are admitted in one transfer, at most. Otherwise a host that
/// comes again and again would keep the sender for ever.
const PER_HOST: usize = 64;

/// Events of control connections that a sender handles in one step, so that they do not hold up the
/// data.
pub const HEARD: usize = 256;

/// What an event of a control connection means for a receiver that takes part.
pub enum Heard {
    /// The receiver is not prepared yet.
    Prepares(Event),
    Said(ToSender),
    Frame(Frame),
    /// The connection is closed, and why.
    Lost(String),
}

fn host_of(member: &Member) -> IpAddr {
    host(member.address.ip(), member.local.ip())
}

/// Why a receiver cannot join the transfer, if it cannot.
fn objection(member: &Member, admission: &Admission<'_>, plan: &Plan) -> Option<String> {
    let (start, options) = (&plan.start, admission.options);
    // When only receivers are left that are not prepared, the sender waits for these, and for no
    // others.
    let is_over = admission.receivers.taking_part().next().is_none();
    if is_over || !plan.admits_late || member.hello.stream {
        let is_stream = member.hello.stream || admission.set.is_stream();
        return Some(if is_stream { LATE_STREAM } else { LATE }.into());
    }
    let family = start.root.ip().map(|at| Family::of(at.ip()));
    let its = Family::of(member.address.ip());
    if let Some(family) = family.filter(|family| *family != its) {
        return Some(wrong_family(its, family));
    }
    let active = admission.receivers.active().count();
    let came = admission.came_late.get(&host_of(member)).copied();
    let window = start.window_bytes();
    let datagram = start.payload_size + plan.overhead;
    admission
        .unfit(member, family, datagram as usize)
        .or_else(|| {
            (active >= options.start.max_receivers)
                .then(|| "there are as many receivers as the sender admits".into())
        })
        .or_else(|| {
            (came.unwrap_or(0) >= PER_HOST).then(|| "too many late receivers of its host".into())
        })
        .or_else(|| {
            (member.hello.window_bytes < window).then(|| {
                let its = member.hello.window_bytes;
                format!("the window of the transfer has {window} bytes, and it can hold {its}")
            })
        })
}

impl Admission<'_> {
    /// Handles a receiver that says hello when the transfer runs already.
    fn comes_late(
        &mut self,
        member: Member,
        plan: &Plan,
        tell: &mut dyn FnMut(SendEvent),
    ) -> Result<(), Error> {
        // A key is good for one admission, and none follows here.
        let step = match plan.admits_late {
            true => self.greet(member)?,
            false => Step::Consider(member, None),
        };
        self.step_late(step, plan, tell);
        Ok(())
    }

    /// Handles an event of a client that has to show its key when the transfer runs already, and
    /// gives back that of any other.
    fn shows_key(
        &mut self,
        event: Event,
        plan: &Plan,
        tell: &mut dyn FnMut(SendEvent),
    ) -> Option<Event> {
        match self.authenticator.hear(event, &self.rendezvous) {
            ControlFlow::Break(step) => {
                self.step_late(step, plan, tell);
                None
            }
            ControlFlow::Continue(event) => Some(event),
        }
    }

    /// Handles an event of a control connection while the transfer runs. Gives back what it means
    /// for a receiver that takes part, and the receiver's index.
    pub fn hear(
        &mut self,
        event: Event,
        plan: &Plan,
        tell: &mut dyn FnMut(SendEvent),
    ) -> Result<Option<(usize, Heard)>, Error> {
        if let Event::Lost { peer, .. } | Event::Said { peer, .. } = &event
            && self.is_preparing(*peer)
            && let Some(at) = self.receivers.by_peer(*peer)
        {
            return Ok(Some((at, Heard::Prepares(event))));
        }
        let Some(event) = self.shows_key(event, plan, tell) else {
            return Ok(None);
        };
        let (peer, heard) = match event {
            Event::Hello {
                peer,
                address,
                local,
                hello,
            } => {
                let member = Member::new(peer, address, local, hello, self.clock.now());
                self.comes_late(member, plan, tell)?;
                return Ok(None);
            }
            // These mean the same before the start.
            event @ (Event::Refused { .. } | Event::Pending(_) | Event::Guest { .. }) => {
                return self.take(event, tell).map(|()| None);
            }
            Event::Lost { peer, reason } => (peer, Heard::Lost(reason)),
            Event::Said { peer, message } => (peer, Heard::Said(message)),
            Event::Frame { peer, frame } => (peer, Heard::Frame(frame)),
        };
        Ok(self.receivers.by_peer(peer).map(|at| (at, heard)))
    }

    /// Takes the next step with a client that shows its key, or needs none, when the transfer runs
    /// already.
    fn step_late(&mut self, step: Step, plan: &Plan, tell: &mut dyn FnMut(SendEvent)) {
        match step {
            Step::Wait => {}
            Step::Refuse(member, reason) => self.refuse(member, reason, tell),
            Step::Consider(member, mac) => match objection(&member, self, plan) {
                Some(reason) => self.refuse(member, reason, tell),
                None => {
                    let late = self.count_late(member);
                    self.admit(late, mac, tell);
                }
            },
        }
    }

    /// Counts a late receiver at its host.
    fn count_late(&mut self, member: Member) -> Member {
        *self.came_late.entry(host_of(&member)).or_default() += 1;
        member.late()
    }

    /// Takes the receivers for late that were not prepared at the start.
    pub fn admit_unprepared(&mut self, plan: &Plan, tell: &mut dyn FnMut(SendEvent)) {
        for member in std::mem::take(&mut self.unprepared) {
            match objection(&member, self, plan) {
                Some(reason) => self.refuse(member, reason, tell),
                None => {
                    let late = self.count_late(member);
                    self.receivers.insert(late);
                }
            }
        }
    }

    /// Handles an event of the receiver `node`, which is not prepared. Once it is, it may join the
    /// group's address.
    pub fn prepares(
        &mut self,
        event: Event,
        node: NodeId,
        plan: &Plan,
        tell: &mut dyn FnMut(SendEvent),
    ) -> Result<(), Error> {
        self.take(event, tell)?;
        let mut members = self.receivers.iter_mut();
        let joins = |m: &&mut Member| m.node == node && m.stage == Stage::Joining;
        let Some(member) = members.find(joins) else {
            return Ok(());
        };
        let now = self.clock.now();
        (member.since, member.heard) = (now, now);
        let start = Start {
            members: vec![0, node.0],
            compares: None,
            late: true,
            ..plan.start.clone()
        };
        // One that has come back is one receiver, with one line in the table.
        let came = member.clone();
        self.rendezvous.say(came.peer, ToReceiver::Start(start));
        self.receivers.extract(|m| came.replaces(m));
        Ok(())
    }
}
