//! What a transport tells its owner, beside datagrams.

use std::fmt;
use std::io;

use fabricast_proto::AddressId;

/// Something that has happened to a transport.
#[derive(Debug)]
#[non_exhaustive]
pub enum News {
    /// This node receives what is sent to the address, or may send there: [`Transport::join`] has
    /// ended well. Switches may learn of it later.
    ///
    /// [`Transport::join`]: super::Transport::join
    Joined(AddressId),
    /// The node could not join the address.
    JoinFailed(AddressId, io::Error),
    /// The port (interface, adapter) carries nothing any more.
    PortDown {
        /// The port's name.
        port: String,
    },
    /// The port carries datagrams again.
    PortUp {
        /// The port's name.
        port: String,
    },
    /// A queue of the device has failed: nothing is sent or received by it any more.
    QueueFailed {
        /// The port's name.
        port: String,
        /// What the device says.
        error: io::Error,
    },
    /// Something that a user may want to know or fix. The transport continues.
    Notice(String),
}

impl News {
    /// What ends the use of the transport, if this news does.
    pub fn failure(&self) -> Option<io::Error> {
        match self {
            News::PortDown { port } => Some(io::Error::new(
                io::ErrorKind::NetworkDown,
                format!("port {port} is down"),
            )),
            News::QueueFailed { port, error } => Some(io::Error::new(
                error.kind(),
                format!("a queue of port {port} has failed: {error}"),
            )),
            _ => None,
        }
    }
}

impl fmt::Display for News {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            News::Joined(id) => write!(f, "joined address {}", id.0),
            News::JoinFailed(id, error) => write!(f, "cannot join address {}: {error}", id.0),
            News::PortDown { port } => write!(f, "port {port} is down"),
            News::PortUp { port } => write!(f, "port {port} is up"),
            News::QueueFailed { port, error } => {
                write!(f, "a queue of port {port} has failed: {error}")
            }
            News::Notice(text) => f.write_str(text),
        }
    }
}
