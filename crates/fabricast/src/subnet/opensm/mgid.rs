//! From IP multicast addresses to those of InfiniBand, as IP over InfiniBand has it.
//!
//! RFC 4391, section 4: `ff1S:401b:PPPP::` with the lowest 28 bits of an IPv4 address, and
//! `ff1S:601b:PPPP::` with the lowest 80 bits of an IPv6 address; S is the scope, PPPP the P_Key. A
//! socket that joins the IP address on an IPoIB interface makes the kernel join the same group.

use std::net::IpAddr;

use super::mad::Gid;

/// Signature of IPv4 in the address.
const IPV4: u16 = 0x401b;
/// Signature of IPv6 in the address.
const IPV6: u16 = 0x601b;

/// The group of an IP multicast address. `None`: the address is not one of multicast.
pub fn group(address: IpAddr, p_key: u16, scope: u8) -> Option<Gid> {
    if !address.is_multicast() {
        return None;
    }
    let mut gid = [0; 16];
    gid[0] = 0xff;
    gid[1] = 0x10 | scope & 0xf;
    let signature = match address {
        IpAddr::V4(v4) => {
            gid[12..].copy_from_slice(&v4.octets());
            gid[12] &= 0x0f;
            IPV4
        }
        IpAddr::V6(v6) => {
            gid[6..].copy_from_slice(&v6.octets()[6..]);
            IPV6
        }
    };
    gid[2..4].copy_from_slice(&signature.to_be_bytes());
    gid[4..6].copy_from_slice(&p_key.to_be_bytes());
    Some(Gid(gid))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapped(address: &str, p_key: u16, scope: u8) -> Option<String> {
        let group = group(address.parse().unwrap(), p_key, scope);
        group.map(|gid| gid.to_string())
    }

    #[test]
    fn addresses_map_as_rfc_4391_says() {
        let some = |text: &str| Some(text.to_string());
        assert_eq!(
            mapped("224.0.0.1", 0xffff, 2),
            some("ff12:401b:ffff::1"),
            "all hosts"
        );
        assert_eq!(
            mapped("239.254.1.2", 0x8001, 5),
            some("ff15:401b:8001::ffe:102")
        );
        assert_eq!(
            mapped("ff15:1:2:3:4:5:6:7", 0xffff, 2),
            some("ff12:601b:ffff:3:4:5:6:7")
        );
        assert_eq!(mapped("10.0.0.1", 0xffff, 2), None);
        assert_eq!(mapped("fe80::1", 0xffff, 2), None);
    }
}
