//! What a transfer that runs takes of a rate which it shares with others.

use std::time::Instant;

use fabricast_proto::Command;

use super::plan::Plan;
use super::rate_share::Outgoing;
use super::session::SenderSession;
use crate::net::Net;
use crate::transfer::{ALL, SendDriver};
use crate::transport::Transport;

impl SenderSession<'_> {
    /// Takes the transfer's share of a rate that several transfers share, if it has changed.
    pub(super) fn take_share(&mut self) {
        let Some(share) = &mut self.share else {
            return;
        };
        // What has something to send waits for its turn, since without a share the rate is a byte
        // in a second.
        if share.is_idle() && self.driver.node().takes_turns(ALL) {
            share.begins();
        }
        let outgoing = || outgoing(&self.driver, &self.plan);
        if let Some(rate) = share.take(outgoing) {
            self.command(Command::Rate(rate.max(1)));
        }
    }

    /// Finds out how much the transfer can send, if it shares a rate with others.
    pub(super) fn look_at_share(&mut self) {
        if let Some(share) = &mut self.share {
            let size = self.plan.start.payload_size;
            let is_held = self.driver.node().takes_turns(ALL);
            share.look(outgoing(&self.driver, &self.plan), size.into(), is_held);
        }
    }
}

/// What the sender has sent so far. Datagrams that were dropped on purpose count: they would have
/// left.
fn outgoing(driver: &SendDriver, plan: &Plan) -> Outgoing {
    let core = driver.node().counters();
    let net: &Net = driver.net();
    let dropped = net.fault_counters().send_lost * u64::from(plan.start.payload_size);
    let repairs = core.repairs_multicast + core.repairs_unicast;
    Outgoing {
        at: Instant::now(),
        packets: core.data + core.data_unicast + repairs,
        bytes: net.counters().bytes_sent + dropped,
    }
}
