//! A transport of any kind, chosen while the program runs.

use std::io;
use std::time::Duration;

use fabricast_proto::{AddressId, NodeId, Time};

use super::{
    Arrival, Caps, Counters, DatagramId, GroupAddress, News, NodeAddress, Outgoing, Ready, Sleeper,
    Slots, Transport, Watch,
};

/// A transport whose kind only the code knows that has opened it.
pub struct AnyTransport {
    chosen: Box<dyn Transport + Send>,
}

impl AnyTransport {
    /// Forgets what kind `transport` is of.
    pub fn new(transport: impl Transport + Send + 'static) -> AnyTransport {
        AnyTransport {
            chosen: Box::new(transport),
        }
    }
}

impl Transport for AnyTransport {
    forward! {
        chosen: caps names members news slots send completions cancel recv is_drained due wait sleep
    }
}
