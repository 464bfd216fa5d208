//! Checks of a sender's start message. What answers at the control connection says where datagrams
//! come from and where other receivers are, and may lie.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use fabricast_proto::scheme::{FeedbackTopology, UnknownScheme};
use fabricast_proto::{Scheme, limits};

use crate::bootstrap::PORT_MIN;
use crate::bootstrap::message::Start;
use crate::config::RecvOptions;
use crate::error::Error;
use crate::ibrmp;
use crate::setting::{FROM, INTERFACE, SCHEME};
use crate::text::escaped;
use crate::transfer::WINDOW_BYTES;

/// Checks the start message of the sender at this address of the control connection.
pub fn check(start: &Start, sender: SocketAddr, options: &RecvOptions) -> Result<(), Error> {
    check_root(start, sender)?;
    check_group(start)?;
    check_window(start)?;
    check_scheme(start, options)?;
    check_comparison(start)?;
    check_addresses(start)
}

/// Checks the window, which this receiver must be able to hold.
fn check_window(start: &Start) -> Result<(), Error> {
    let bytes = start.window_bytes();
    let is_known = (limits::WINDOW_MIN..=limits::WINDOW_MAX).contains(&start.window);
    if start.window.is_power_of_two() && is_known && bytes <= WINDOW_BYTES {
        return Ok(());
    }
    Err(Error::PeerLost(format!(
        "the sender's window of {} packets of {} bytes makes no sense",
        start.window, start.payload_size
    )))
}

/// Checks that files are compared only where a receiver can decline what comes, and was there from
/// the start.
fn check_comparison(start: &Start) -> Result<(), Error> {
    let is_possible = !start.late && start.reports_to_sender() && start.scheme != ibrmp::NAME;
    match is_possible || start.compares.is_none() {
        true => Ok(()),
        false => Err(Error::PeerLost(
            "the sender wants to compare files, and cannot in such a transfer".into(),
        )),
    }
}

/// Checks the root's address. Otherwise, what answers at the control connection could have this
/// receiver believe, and write to, a third host.
fn check_root(start: &Start, sender: SocketAddr) -> Result<(), Error> {
    let control = sender.ip().to_canonical();
    let is_there = |root: SocketAddr| root.ip().to_canonical() == control && root.port() != 0;
    if start.root.ip().is_some_and(is_there) {
        return Ok(());
    }
    Err(Error::PeerLost(format!(
        "the sender says that its datagrams come from {}, and it was found at {control}: name that \
         address with {FROM} if it is the sender's, or the interface of {control} with {INTERFACE} \
         at the sender",
        start.root
    )))
}

/// Checks the group's address. A sender could otherwise have its receivers join, and write to, what
/// serves the hosts of a link themselves.
fn check_group(start: &Start) -> Result<(), Error> {
    let Some(group) = &start.group else {
        return Ok(());
    };
    let may = |at: SocketAddr| {
        let local = match at.ip() {
            IpAddr::V4(ip) => ip.octets()[..3] == [224, 0, 0],
            IpAddr::V6(ip) => matches!(ip.segments()[0], 0xff01 | 0xff02 | 0xff11),
        };
        let is_like_root = start.root.ip().is_some_and(|r| r.is_ipv4() == at.is_ipv4());
        at.ip().is_multicast() && !local && at.port() >= PORT_MIN && is_like_root
    };
    match group.ip().is_some_and(may) {
        true => Ok(()),
        false => Err(Error::PeerLost(
            "the sender's group is no multicast address that a transfer may use".into(),
        )),
    }
}

/// Checks the other receivers' addresses: receivers ask each other whether they are where the
/// sender says (spec 6.10). No true sender names an address twice, and no receiver has a port of a
/// service. A sender that says so would have the receivers send to a third host.
fn check_addresses(start: &Start) -> Result<(), Error> {
    if !shares(start)? {
        return Ok(());
    }
    let mut seen = BTreeSet::new();
    for address in &start.addresses {
        let new = address.ip().is_some_and(|a| {
            a.port() >= PORT_MIN && seen.insert((a.ip().to_canonical(), a.port()))
        });
        if !new {
            return Err(Error::PeerLost(format!(
                "the sender says that a receiver is at {address}, which is another's address, or \
                 has a port below {PORT_MIN}"
            )));
        }
    }
    Ok(())
}

/// Checks the scheme: a sender that the user has not named cannot have receivers send to each
/// other.
fn check_scheme(start: &Start, options: &RecvOptions) -> Result<(), Error> {
    let says = format!("the sender's scheme is {}", escaped(&start.scheme));
    match &options.scheme {
        Some(wanted) => {
            let rest = start.scheme.strip_prefix(wanted.as_str());
            let right = rest.is_some_and(|r| r.is_empty() || r.starts_with('+'));
            let text = || format!("{says}, and only {wanted} is wanted ({SCHEME})");
            right.then_some(()).ok_or_else(|| Error::Refused(text()))
        }
        None if options.from.is_none() && shares(start)? => Err(Error::Refused(format!(
            "{says}, by which receivers send to each other: name the sender with {FROM}, or \
                 the scheme with {SCHEME}"
        ))),
        None => Ok(()),
    }
}

/// Whether receivers send to each other. With P3's protocol they do not know each other.
fn shares(start: &Start) -> Result<bool, Error> {
    Ok(start.scheme != ibrmp::NAME && is_shared(&scheme_of(start)?))
}

/// The scheme that the sender has chosen.
pub fn scheme_of(start: &Start) -> Result<Scheme, Error> {
    let mut scheme: Scheme = start.scheme.parse().map_err(|e: UnknownScheme| {
        Error::PeerLost(format!("the sender speaks of what we don't know: {e}"))
    })?;
    scheme.window = start.window;
    Ok(scheme)
}

/// Whether receivers send to each other.
pub fn is_shared(scheme: &Scheme) -> bool {
    scheme.topology != FeedbackTopology::Direct
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::GroupAddress;

    #[test]
    fn receivers_send_to_each_other_only_for_a_sender_or_a_scheme_that_was_named() {
        let asked = |scheme: &str, from: Option<&str>, wanted: Option<&str>| {
            let start = Start {
                group: None,
                root: SocketAddr::from(([127, 0, 0, 1], 9)).into(),
                payload_size: 1000,
                window: 64,
                members: vec![0, 1],
                scheme: scheme.into(),
                addresses: Vec::new(),
                compares: None,
                late: false,
            };
            let options = RecvOptions {
                from: from.map(Into::into),
                scheme: wanted.map(Into::into),
                ..RecvOptions::new(".")
            };
            check_scheme(&start, &options).is_ok()
        };
        for shared in [
            "coroot(2)",
            "tree(2)+multicast",
            "channels(4)",
            "coroot(2)+crc32c",
        ] {
            assert!(!asked(shared, None, None), "{shared}");
            assert!(asked(shared, Some("head"), None));
        }
        for alone in ["auto", "auto+crc32c", "window", "ibrmp"] {
            assert!(asked(alone, None, None), "{alone}");
        }
        assert!(asked("coroot(2)+crc32c", None, Some("coroot(2)")));
        assert!(!asked("tree(2)", None, Some("coroot(2)")));
        assert!(!asked("coroot(24)", Some("head"), Some("coroot(2")));
    }

    #[test]
    fn a_group_of_the_link_or_of_another_kind_is_refused() {
        let checked = |group: GroupAddress, root: &str| {
            let root: SocketAddr = root.parse().unwrap();
            let start = Start {
                group: Some(group),
                root: root.into(),
                payload_size: 1000,
                window: 64,
                members: vec![0, 1],
                scheme: "auto".into(),
                addresses: Vec::new(),
                compares: None,
                late: false,
            };
            check_group(&start).is_ok()
        };
        let ip = |text: &str| GroupAddress::Ip(text.parse().unwrap());
        let (four, six) = ("10.0.0.1:4000", "[fd00::1]:4000");
        assert!(checked(ip("239.255.1.2:7641"), four) && checked(ip("[ff15::1]:7641"), six));
        for (group, root) in [
            (ip("224.0.0.251:5353"), four),
            (ip("[ff02::1]:5353"), six),
            (ip("239.255.1.2:53"), four),
            (ip("239.255.1.2:7641"), six),
            (ip("10.0.0.7:7641"), four),
            (GroupAddress::Number(7), four),
            (GroupAddress::Members(vec![1; 1000]), four),
        ] {
            assert!(!checked(group, root));
        }
    }

    #[test]
    fn a_window_is_a_power_of_two_that_the_receiver_can_hold() {
        let checked = |window, payload_size| {
            let root: SocketAddr = ([127, 0, 0, 1], 9).into();
            let start = Start {
                group: None,
                root: root.into(),
                payload_size,
                window,
                members: vec![0, 1],
                scheme: "auto".into(),
                addresses: Vec::new(),
                compares: None,
                late: false,
            };
            check_window(&start).is_ok()
        };
        assert!(checked(64, 1440) && checked(limits::WINDOW_MIN, 1440));
        for window in [0, 1, 63, 65, 2 * limits::WINDOW_MAX, u32::MAX] {
            assert!(!checked(window, 1440), "{window}");
        }
        assert!(!checked(limits::WINDOW_MAX, limits::PAYLOAD_MAX));
    }
}
