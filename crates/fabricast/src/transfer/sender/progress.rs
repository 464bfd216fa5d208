//! How far the receivers are: what the sender tells while a transfer runs, and at its end.

use std::time::{Duration, Instant};

use fabricast_proto::NodeId;

use super::comparing::uncompared;
use super::session::{Phase, SenderSession};
use super::telling::Sent;
use crate::net::Net;
use crate::setting::PATIENCE;
use crate::transfer::ALL;
use crate::transfer::events::{Part, SendEvent, SendReport, Traffic};
use crate::transport::Transport;

/// How long receivers may answer no probe until the sender names them, because all wait for them.
const TELL_UNANSWERED: Duration = Duration::from_secs(2);

impl SenderSession<'_> {
    /// Asks the core how far each receiver is.
    pub(super) fn count_receivers(&mut self) {
        let has_ended = self.ended().is_some();
        let now = self.admission.clock.now();
        for status in self.driver.node().members(ALL) {
            let members = &mut self.admission.receivers;
            if let Some(at) = members.by_node(status.node) {
                let m = &mut members[at];
                m.repairs = status.repairs;
                if let Some(heard) = status.heard {
                    let heard = self.admission.clock.instant(heard);
                    m.heard = m.heard.max(heard);
                }
                if !status.gone && m.in_group() {
                    let due = m.sent.saturating_sub(status.placed);
                    m.due = due;
                    // What is sent again comes after the stream.
                    let lacking = match m.part {
                        Part::Whole => uncompared(m, &self.announced),
                        Part::Late | Part::Demoted => self.announced.lacking(&m.missed),
                    };
                    let placed = self.announced.bytes().saturating_sub(due + lacking);
                    let placed = placed.min(self.set.known_len().unwrap_or(u64::MAX));
                    m.placed = match m.part {
                        Part::Whole => placed,
                        // It may not have said yet what it has, and has what was known before.
                        Part::Late | Part::Demoted => placed.max(m.placed),
                    };
                    m.waited = status.waited;
                    m.lacks_sent = status.lacks;
                    if has_ended && m.missed.is_nothing() && due == 0 {
                        m.complete.get_or_insert(now);
                    }
                }
            }
        }
    }

    pub(super) fn progress(&mut self) {
        let counters = self.driver.node().counters();
        (self.tell)(self.admission.progress(Sent {
            seconds: self.admission.clock.seconds(),
            len: self.set.known_len(),
            rate: match &self.share {
                Some(share) => share.rate(),
                None => self.driver.node().rate(ALL),
            },
            repairs: counters.repairs_multicast + counters.repairs_unicast,
        }));
    }

    /// What has become of every receiver, and what was sent.
    pub fn report(&mut self) -> SendReport {
        let core = self.driver.node().counters();
        let driver = self.driver.counters();
        let net: &Net = self.driver.net();
        let (sent, faults) = (net.counters(), net.fault_counters());
        let datagrams = sent.datagrams_sent + faults.send_lost;
        let overhead = net.caps().overhead;
        // Datagrams that were dropped on purpose would have been on the wire. Nearly all were data.
        let dropped = faults.send_lost * u64::from(self.plan.start.payload_size);
        SendReport {
            root: self.ended().map(|stream| stream.root.clone()),
            changed: self.failed.changed(),
            failed: self.failed.report(),
            seconds: self.last,
            traffic: Traffic {
                data: core.data,
                data_unicast: core.data_unicast,
                repairs_multicast: core.repairs_multicast,
                repairs_coded: core.repairs_coded,
                repairs_unicast: core.repairs_unicast,
                feedback: core.feedback_received,
                datagrams,
                wire_bytes: sent.bytes_sent + dropped + datagrams * overhead,
                foreign: core.foreign + driver.malformed + driver.foreign,
                corrupt: driver.corrupt,
                injected: faults.send_lost + faults.receive_lost,
            },
            ..self.admission.report()
        }
    }

    /// Tells, once, which receivers answer no probe while all wait for them.
    pub(super) fn tell_unanswered(&mut self, now: Instant) {
        let late = |since: &mut Instant| now.duration_since(*since) > TELL_UNANSWERED;
        let Phase::Proving(since) = &mut self.phase else {
            return;
        };
        if since.take_if(late).is_none() {
            return;
        }
        let silent: Vec<NodeId> = self.driver.node().unanswered(ALL).collect();
        let members = silent.into_iter().filter_map(|node| self.member(node));
        let members = members.map(|at| self.admission.receivers[at].name.clone());
        match &members.collect::<Vec<_>>()[..] {
            [] => {}
            [first, rest @ ..] => {
                let who = match rest.len() {
                    0 => format!("{first}, which has"),
                    n => format!("{first} and {n} more, which have"),
                };
                let text = format!("waiting for {who} answered no datagram yet ({PATIENCE})");
                (self.tell)(SendEvent::Notice { text });
            }
        }
    }
}
