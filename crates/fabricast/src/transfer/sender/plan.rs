//! What sender and receivers agree on at the start: addresses, payload size, window.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use fabricast_proto::scheme::{FeedbackTopology, UnknownScheme};
use fabricast_proto::{Command, Config, Node, Scheme, Time, limits};

use super::admission::Admission;
use super::receiver_table::Member;
use crate::bootstrap::message::Start;
use crate::config::{ReachRule, SendOptions};
use crate::driver::Driver;
use crate::error::Error;
use crate::net;
use crate::setting::MAX_RECEIVERS;
use crate::transfer::comparing::time_for_a_pack;
use crate::transfer::{ADDRESS, ROOT, SendDriver, group_add};
use crate::transport::Transport;

/// The plan that sender and receivers have agreed on.
pub struct Plan {
    /// The start message for the receivers.
    pub start: Start,
    /// Bytes that a data packet adds to its payload.
    pub overhead: u32,
    /// Name of the interface in use.
    pub interface: String,
    /// Whether receivers may come when the transfer runs already.
    pub admits_late: bool,
}

/// Opens the network for the receivers that are there, and creates the driver and the plan.
pub fn open(
    admission: &mut Admission<'_>,
    is_stream: bool,
    session: u64,
    options: &SendOptions,
) -> Result<(SendDriver, Plan), Error> {
    let (near, net) = admission.take_network()?;

    let members = &admission.receivers;
    let datagram = members
        .iter()
        .map(|m| m.hello.datagram)
        .fold(net.caps().datagram_max as u32, u32::min);
    let mut scheme: Scheme = options
        .scheme
        .parse()
        .map_err(|e: UnknownScheme| Error::Usage(e.to_string()))?;
    let overhead = scheme.data_overhead() as u32;
    let payload_size = (datagram - overhead).min(limits::PAYLOAD_MAX);
    // Receivers that report to other receivers, or repair for them, must know their addresses.
    let addresses = match scheme.topology {
        FeedbackTopology::Direct => Vec::new(),
        FeedbackTopology::Coroots(_) | FeedbackTopology::Tree(_) => {
            members.iter().map(|m| m.datagrams().for_others()).collect()
        }
    };
    let bytes = members.iter().map(|m| m.hello.window_bytes).min();
    let window = window(bytes.unwrap_or(u64::MAX), payload_size, scheme.window);
    scheme.window = window;
    let root = net.address().for_others();
    // What was sent of a stream cannot be sent again.
    let admits_late = !is_stream && options.admits_late();
    let group = match options.reach {
        // A single receiver needs no multicast: the core sends to it by unicast. But another one
        // may come later.
        ReachRule::Auto if members.len() > 1 || admits_late => {
            Some(group_address(options, near, session)?.into())
        }
        ReachRule::Auto | ReachRule::Unicast => None,
    };
    // What one receiver lacks comes to all, so nothing is compared then.
    let can_compare = options.compares && !is_stream && addresses.is_empty();
    let compares = can_compare && members.iter().all(Member::may_compare);
    let start = Start {
        group,
        root,
        payload_size,
        window,
        members: [ROOT.0]
            .into_iter()
            .chain(members.iter().map(|m| m.node.0))
            .collect(),
        scheme: options.scheme.clone(),
        addresses,
        compares: compares.then(|| time_for_a_pack(options.patience).as_millis() as u64),
        late: false,
    };
    check_length(&start)?;
    let node = Config {
        rate: options
            .shared_rate
            .as_ref()
            .map_or(options.rate, |shared| Some(shared.rate())),
        patience: options.patience,
        ..net::node_config(ROOT, session, scheme, payload_size, &net)
    };
    let mut driver: SendDriver = Driver::new(Node::new(node, net::random()?), net);
    if let Some(group) = &start.group {
        let joined = driver.join(ADDRESS, group, false);
        joined.map_err(|e| Error::io(format!("sending to {group}"), e))?;
    }
    for member in members.iter() {
        let address = member.datagrams();
        driver.transport().peer(member.node, &address);
    }
    let refused = |r| Error::Usage(format!("this cannot be sent: {r}"));
    driver
        .command(Time::ZERO, group_add(&start, session))
        .map_err(refused)?;
    if options.shared_rate.is_some() {
        // It begins without a share.
        driver
            .command(Time::ZERO, Command::Rate(1))
            .map_err(refused)?;
    }
    let interface = driver.net().port().to_owned();
    Ok((
        driver,
        Plan {
            start,
            overhead,
            interface,
            admits_late,
        },
    ))
}

/// Checks that the message `start` is no longer than a receiver takes.
pub fn check_length(start: &Start) -> Result<(), Error> {
    if start.fits() {
        return Ok(());
    }
    let receivers = start.members.len() - 1;
    Err(Error::Usage(match start.reports_to_sender() {
        true => format!(
            "{receivers} receivers are more than one message can name: admit fewer \
             ({MAX_RECEIVERS})"
        ),
        false => format!(
            "by the scheme {} each receiver must know the addresses of all, and {receivers} are \
             too many for one message: admit at most {} ({MAX_RECEIVERS}), or choose a scheme by \
             which receivers report to the sender alone, such as auto",
            start.scheme,
            Start::ADDRESSES_MAX
        ),
    }))
}

/// Number of packets that may be under way, for receivers that can hold `bytes` and a scheme with a
/// window of `most` packets. The core's windows are powers of two, and the result must not exceed
/// what any receiver can hold.
fn window(bytes: u64, payload_size: u32, most: u32) -> u32 {
    let fits = (bytes / u64::from(payload_size)).clamp(1, u64::from(most)) as u32;
    1 << fits.ilog2()
}

/// The group's address. Unless it is chosen, it is at random in the range of local scope, so that
/// two transfers hardly ever share one. (If they do, the session tells them apart.)
pub fn group_address(
    options: &SendOptions,
    near: IpAddr,
    session: u64,
) -> Result<SocketAddr, Error> {
    let [a, b, c, d, ..] = session.to_be_bytes();
    let ip = match (options.group, near) {
        (Some(ip), _) => ip,
        (None, IpAddr::V4(_)) => Ipv4Addr::new(239, 255, a, b).into(),
        (None, IpAddr::V6(_)) => {
            let word = |x, y| u16::from_be_bytes([x, y]);
            Ipv6Addr::new(0xff15, 0, 0, 0, 0, 0, word(a, b), word(c, d)).into()
        }
    };
    if ip.is_ipv4() != near.is_ipv4() {
        return Err(Error::Usage(format!(
            "the group {ip} and the receivers, which connect to {near}, are of different families"
        )));
    }
    Ok((ip, options.group_port).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transfer::WINDOW_BYTES;
    use crate::transfer::sender::admission::objections::WINDOW_BYTES_MIN;

    /// The start message for this many receivers, with the longest numbers and addresses.
    fn start(receivers: usize, is_shared: bool) -> Start {
        let address: SocketAddr = ([0xfdff; 8], 65_535).into();
        let addresses = if is_shared { receivers } else { 0 };
        Start {
            group: Some(address.into()),
            root: address.into(),
            payload_size: limits::PAYLOAD_MAX,
            window: limits::WINDOW_MAX,
            members: vec![u32::MAX; receivers + 1],
            scheme: "tree(4294967295)+aggregate(4294967295)+piggyback+crc32c".into(),
            addresses: vec![address.into(); addresses],
            compares: None,
            late: false,
        }
    }

    #[test]
    fn a_start_that_no_message_takes_is_a_usage_error() {
        assert!(check_length(&start(Start::ADDRESSES_MAX, true)).is_ok());
        let error = check_length(&start(15_000, true)).unwrap_err();
        assert!(matches!(error, Error::Usage(_)), "{error:?}");
        let (text, most) = (error.to_string(), Start::ADDRESSES_MAX.to_string());
        assert!(
            text.contains("scheme tree(") && text.contains("15000 are too many"),
            "{text}"
        );
        assert!(
            text.contains(&most) && text.contains(MAX_RECEIVERS),
            "{text}"
        );
        assert!(check_length(&start(40_000, false)).is_ok());
        let error = check_length(&start(limits::MEMBERS_MAX - 1, false)).unwrap_err();
        assert!(
            error.to_string().contains("more than one message can name"),
            "{error}"
        );
    }

    #[test]
    fn no_window_is_more_than_a_receiver_holds() {
        for bytes in [WINDOW_BYTES_MIN, WINDOW_BYTES, u64::MAX] {
            for payload_size in limits::PAYLOAD_MIN..=limits::PAYLOAD_MAX {
                let window = window(bytes, payload_size, Scheme::auto().window);
                assert!(window.is_power_of_two() && window >= 64);
                assert!(u64::from(window) * u64::from(payload_size) <= bytes);
            }
        }
    }
}
