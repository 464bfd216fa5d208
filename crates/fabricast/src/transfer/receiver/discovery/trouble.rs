//! What keeps a receiver from its sender, in words.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use crate::bootstrap::announce::Offer;
use crate::setting::{ACCEPT, FROM};
use crate::text::escaped;

const UNREACHABLE: &str = "is the address right, is there a route, and does a firewall there let \
                           the TCP port in?";

/// What keeps a receiver from its sender.
#[derive(Clone, PartialEq, Debug)]
pub enum Trouble {
    /// No sender announces itself.
    Unheard,
    /// The sender that is named has not answered yet.
    Unanswered,
    /// The sender that is named cannot be reached: what was tried, and what came of that.
    Unreachable(String),
    /// Only files that are not wanted are announced, for example this one.
    OtherFiles(Offer),
    /// Several senders announce a file that may be taken.
    Several(Vec<Offer>),
    /// A sender was found and given up, for this reason.
    GivenUp(Offer, String),
}

impl Trouble {
    /// Whether the user should know of this at once.
    pub fn is_urgent(&self) -> bool {
        matches!(self, Trouble::Several(_) | Trouble::GivenUp(..))
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Unheard => write!(
                f,
                "nobody announces a transfer here by IPv4 multicast (one that has started is \
                 announced no longer); name the sender with {FROM} HOST"
            ),
            Trouble::Unanswered => write!(f, "it does not answer; {UNREACHABLE}"),
            Trouble::Unreachable(why) => f.write_str(why),
            Trouble::OtherFiles(offer) => {
                write!(f, "only other files are announced: {}", listed(&[offer]))
            }
            Trouble::Several(offers) => write!(
                f,
                "several senders announce a transfer: {}; choose one with {FROM} HOST, or by the \
                 name of its file with {ACCEPT} PATTERN",
                listed(&offers.iter().collect::<Vec<_>>())
            ),
            Trouble::GivenUp(offer, why) => {
                write!(f, "{} cannot be used: {why}", listed(&[offer]))
            }
        }
    }
}

fn listed(offers: &[&Offer]) -> String {
    let each = offers
        .iter()
        .map(|o| format!("{} ({})", o.address, escaped(&o.name)));
    each.collect::<Vec<_>>().join(", ")
}

/// The words for a failed attempt to connect: what was tried, what came of it, and what may help.
pub fn why(addresses: &[SocketAddr], error: &io::Error) -> String {
    let tried: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
    let hint = match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            "is `fabricast send` running there, and does it listen at this address and port?"
        }
        _ => UNREACHABLE,
    };
    format!("{}: {error}; {hint}", tried.join(", "))
}
