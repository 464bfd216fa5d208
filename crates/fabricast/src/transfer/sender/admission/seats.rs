//! Seats of a transfer: how many receivers one host may have, and how many there may be in all.

use std::net::{IpAddr, Ipv6Addr};

use crate::bootstrap::pending_max;
use crate::setting::PER_HOST;
use crate::transfer::sender::receiver_table::{Member, ReceiverTable};

/// File descriptors that receivers must leave to the rest of the transfer.
const RESERVE: u64 = 64;

/// Why there is no seat for this receiver beside those that are there, if there is none.
/// `per_host`: seats of one host. `seats`: seats in all.
pub fn no_seat(
    new: &Member,
    receivers: &ReceiverTable,
    per_host: usize,
    seats: usize,
) -> Option<String> {
    // The scope of an IPv6 address is this host's number of a link, which datagrams do not carry.
    let place = |m: &Member| m.datagrams().for_others();
    if receivers.active().any(|m| place(m) == place(new)) {
        return Some("another receiver has its address and port for datagrams already".into());
    }
    let address = new.address;
    let host = host(address.ip(), new.local.ip());
    let here = |m: &&Member| self::host(m.address.ip(), m.local.ip()) == host;
    if receivers.active().filter(here).count() >= per_host {
        let what = match host {
            IpAddr::V6(_) if host != address.ip() => format!("{host}/64"),
            _ => host.to_string(),
        };
        let here = match per_host {
            1 => format!("1 receiver of {what} is"),
            n => format!("{n} receivers of {what} are"),
        };
        return Some(format!(
            "{here} here already, and the sender admits no more of one address (its \
             {PER_HOST})"
        ));
    }
    if receivers.active().count() >= seats {
        return Some(format!(
            "the sender has file descriptors for {seats} receivers: raise its limit (ulimit -n)"
        ));
    }
    None
}

/// The host that a receiver's seat counts for: its address, or with IPv6 its prefix of 64 bits. A
/// remote host may take any address of its prefix. The hosts of one link share a prefix, so
/// addresses count one by one where the sender has this prefix itself (`local`, its own address on
/// that connection), where they are link-local, and on the loopback.
pub fn host(ip: IpAddr, local: IpAddr) -> IpAddr {
    let prefix = |v6: Ipv6Addr| Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64);
    match (ip.to_canonical(), local.to_canonical()) {
        (IpAddr::V6(v6), IpAddr::V6(own)) if prefix(v6) == prefix(own) => v6.into(),
        (IpAddr::V6(v6), _) if !v6.is_unicast_link_local() && !v6.is_loopback() => {
            prefix(v6).into()
        }
        (other, _) => other,
    }
}

/// How many receivers there may be, so that descriptors are left for the rest of the transfer and
/// for pending connections.
pub fn seats() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let Some(limit) = limit.current else {
        return usize::MAX;
    };
    let open = std::fs::read_dir("/proc/self/fd").map_or(16, |all| all.count() as u64);
    let others = open + pending_max() as u64 + RESERVE.min(limit / 4);
    (limit.saturating_sub(others) as usize).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_one_host_can_have_count_as_one() {
        let host = |ip: &str| host(ip.parse().unwrap(), "2001:db8:0:7::7".parse().unwrap());
        let same = |a: &str, b: &str| host(a) == host(b);
        assert!(same("2001:db8::1", "2001:db8::ffff:0:0:1"));
        assert!(same("10.0.0.1", "::ffff:10.0.0.1"));
        for (a, b) in [
            ("10.0.0.1", "10.0.0.2"),
            ("2001:db8::1", "2001:db8:0:1::1"),
            ("2001:db8:0:7::1", "2001:db8:0:7::2"),
            ("fe80::1", "fe80::2"),
            ("::1", "::2"),
        ] {
            assert!(!same(a, b), "{a} {b}");
        }
    }
}
