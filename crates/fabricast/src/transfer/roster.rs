//! Who takes part, and how far each has come, as the sender knows it.

use std::net::SocketAddr;
use std::time::Instant;

use fabricast_proto::{NodeId, Reach};

use super::events::{ReceiverReport, State};
use crate::bootstrap::PeerKey;
use crate::bootstrap::message::{Hello, Tally};

/// Where a receiver stands.
#[derive(Clone, PartialEq, Debug)]
pub enum Stage {
    /// It has been welcomed, and makes room for the file.
    Preparing,
    /// It waits for the start, or joins.
    Joining,
    /// It has joined and posted.
    Receiving,
    /// It has everything, and was heard proving or storing it at this time.
    Storing(Instant),
    /// It is over for this receiver.
    Over {
        /// How it ended.
        state: State,
        /// Why, if it failed.
        reason: Option<String>,
        /// When, in seconds since the start.
        seconds: f64,
    },
}

/// A receiver.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its control connection.
    pub peer: PeerKey,
    /// Its number.
    pub node: NodeId,
    /// Its address at the control connection.
    pub address: SocketAddr,
    /// Ours there.
    pub local: SocketAddr,
    /// What it has said of itself.
    pub hello: Hello,
    /// Where it stands.
    pub stage: Stage,
    /// Since when it is here.
    pub since: Instant,
    /// How it is reached.
    pub reach: Reach,
    /// Bytes placed there.
    pub placed: u64,
    /// Data packets sent again that it had asked for, by unicast or because it asked first.
    pub repairs: u64,
    /// Since when the core waits for it no more: it has placed everything that there will be.
    pub complete: Option<Instant>,
    /// Whether its slowness has been told.
    pub slow: bool,
    /// What it has counted.
    pub tally: Tally,
}

impl Member {
    /// Where datagrams for it go.
    pub fn udp(&self) -> SocketAddr {
        let mut address = self.address; // the only one that it may have
        address.set_port(self.hello.udp_port);
        address
    }

    /// What it is called.
    pub fn name(&self) -> String {
        self.hello.name.clone()
    }

    /// Whether it is still waited for.
    pub fn active(&self) -> bool {
        !matches!(self.stage, Stage::Over { .. })
    }

    /// Whether it has the file.
    pub fn verified(&self) -> bool {
        matches!(&self.stage, Stage::Over { state, .. } if *state == State::Verified)
    }

    /// Its line of the table.
    pub fn report(&self) -> ReceiverReport {
        let (state, reason, seconds) = match &self.stage {
            Stage::Over {
                state,
                reason,
                seconds,
            } => (*state, reason.clone(), *seconds),
            _ => (State::Lost, None, 0.0),
        };
        ReceiverReport {
            receiver: self.name(),
            address: self.address,
            state,
            reason,
            reach: reach_name(self.reach),
            seconds,
            repairs: self.repairs,
            tally: self.tally,
        }
    }
}

/// A word for how a member is reached.
pub fn reach_name(reach: Reach) -> &'static str {
    match reach {
        Reach::Multicast => "multicast",
        Reach::Unicast => "unicast",
        Reach::Nothing => "nothing",
    }
}

/// A name from the network, fit for a terminal and a table.
pub fn clean_name(name: &str) -> String {
    const NAME_MAX: usize = 64;
    let printable = name.chars().filter(|c| !c.is_control());
    match printable.take(NAME_MAX).collect::<String>() {
        name if name.is_empty() => "?".into(),
        name => name,
    }
}
