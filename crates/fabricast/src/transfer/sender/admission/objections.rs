//! Objections: why a receiver cannot take part, by what it says of itself; why too few came.

use std::net::SocketAddr;

use crate::bootstrap::PORT_MIN;
use crate::bootstrap::message::Hello;
use crate::config::{DATAGRAM_MIN, StartRule};
use crate::interface::Family;
use crate::setting::{ADMITTED_DATAGRAM, FROM, MAX_WAIT, MIN_RECEIVERS, VERIFIED_ONLY};
use crate::text::spoken;

/// Reason that the sender gives to receivers that come too late.
pub const LATE: &str = "the transfer has begun already: ask for another one";

/// Reason that the sender gives to receivers that come too late for a stream.
pub const LATE_STREAM: &str = "the transfer has begun already, and a stream is sent once: what has \
                               gone by cannot be sent again. Be there at the start the next time";

/// The smallest window that a receiver may offer, in bytes. The window of all receivers is as large
/// as the smallest one, and a smaller one would slow all of them down on fast links. (Receivers of
/// this version offer [`crate::transfer::WINDOW_BYTES`].)
pub const WINDOW_BYTES_MIN: u64 = 16 << 20;
const _: () = assert!(WINDOW_BYTES_MIN <= crate::transfer::WINDOW_BYTES);
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

/// Why a receiver cannot take part that cannot verify what it has, if the sender's user wants
/// nothing less.
pub fn unverified(hello: &Hello, verified_only: bool) -> Option<String> {
    (verified_only && !hello.verifies()).then(|| {
        let what = match hello.stream {
            true => "it writes to a stream",
            false => "it stores nothing",
        };
        format!(
            "{what}, so it cannot verify what it has, and the sender wants that ({VERIFIED_ONLY})"
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

/// Why the sender gives up before the start. The counts are of receivers that wait for the start,
/// of those that connect by the other family of addresses, and of those that were refused.
pub fn too_few(
    rule: &StartRule,
    (present, others, refused): (usize, usize, u64),
    port: u16,
) -> String {
    let waited = spoken(rule.timeout);
    let refused = match refused {
        0 => String::new(),
        1 => "1 came and was refused".into(),
        n => format!("{n} came and were refused"),
    };
    let others = match others {
        0 => String::new(),
        1 => ", and 1 came by the other of IPv4 and IPv6, which does not count".into(),
        n => format!(", and {n} came by the other of IPv4 and IPv6, which do not count"),
    };
    let and = if refused.is_empty() { "" } else { ", and " };
    let least = rule.min_receivers;
    match present {
        0 if rule.expected.is_some() && least <= 1 => {
            format!("no receiver came{others}{and}{refused}")
        }
        n if rule.expected.is_some() => format!(
            "{n} receivers came, and at least {least} are needed \
             ({MIN_RECEIVERS}){others}{and}{refused}"
        ),
        0 if !refused.is_empty() => {
            format!("no receiver is there after {waited}: {refused}, none is left")
        }
        0 => format!(
            "no receiver connected within {waited}; is `fabricast recv` running on the receivers, \
             and does a firewall let them reach TCP port {port} here?"
        ),
        n => format!(
            "only {n} of {least} receivers connected within {waited}{others}{and}{refused}; start \
             the others, or let it begin without them with {MAX_WAIT}"
        ),
    }
}
