//! Objections: why a receiver cannot take part, by what it says of itself.

use std::net::SocketAddr;

use crate::bootstrap::PORT_MIN;
use crate::bootstrap::message::Hello;
use crate::config::DATAGRAM_MIN;
use crate::interface::Family;
use crate::setting::{ADMITTED_DATAGRAM, FROM};

/// The smallest window that a receiver may offer, in bytes. The window of all receivers is as large
/// as the smallest one, and a smaller one would slow all of them down on fast links. (Receivers of
/// this version offer [`super::WINDOW_BYTES`].)
pub const WINDOW_BYTES_MIN: u64 = 16 << 20;
const _: () = assert!(WINDOW_BYTES_MIN <= super::WINDOW_BYTES);
const _: () = assert!(WINDOW_BYTES_MIN >= 64 * fabricast_proto::limits::PAYLOAD_MAX as u64);

/// What this receiver says that cannot be true or cannot work, if anything. `group`: the family of
/// the group, if a group is chosen.
pub fn contradiction(address: SocketAddr, hello: &Hello, group: Option<Family>) -> Option<String> {
    if (hello.datagram as usize) < DATAGRAM_MIN || hello.window_bytes < WINDOW_BYTES_MIN {
        return Some(format!(
            "its datagrams or its window are too small: {} and {} bytes, and {DATAGRAM_MIN} \
             and {WINDOW_BYTES_MIN} are needed",
            hello.datagram, hello.window_bytes
        ));
    }
    let its = Family::of(address.ip());
    if let Some(family) = group.filter(|f| *f != its) {
        return Some(wrong_family(its, family));
    }
    // Otherwise anyone that can connect could have the data sent to a third host.
    let control = address.ip().to_canonical();
    let Some(datagrams) = hello.address.ip() else {
        let its = hello.address;
        return Some(format!("{its} is no IP address, and this transfer uses IP"));
    };
    let ip = datagrams.ip();
    if !ip.is_unspecified() && ip.to_canonical() != control {
        return Some(format!(
            "it wants its datagrams at {ip} and connects from {control}; connect by the \
             interface that the data are to take ({FROM} names the sender's address there)"
        ));
    }
    // Other receivers are told of this port and send to it, so it must not be a service's.
    let port = datagrams.port();
    (port < PORT_MIN).then(|| format!("its port for datagrams is {port}, below {PORT_MIN}"))
}

/// Why a receiver whose largest datagram has `its` bytes cannot take part, if the sender admits
/// none below `least`.
pub fn small_datagrams(its: u32, least: usize) -> Option<String> {
    ((its as usize) < least).then(|| {
        format!(
            "its datagrams of at most {its} bytes would make the packets of all others so \
             small, and the sender admits no less than {least} (its {ADMITTED_DATAGRAM})"
        )
    })
}

/// Why a receiver of one family of addresses cannot take part in a transfer of the other.
pub fn wrong_family(its: Family, family: Family) -> String {
    format!(
        "it connects by {its}, and this transfer goes by {family}: name the sender's {family} \
         address with {FROM}"
    )
}
