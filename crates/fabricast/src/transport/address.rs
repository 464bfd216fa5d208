//! How networks name nodes and groups.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use serde::{Deserialize, Serialize};

/// Where one node receives datagrams. The kind says which networks understand it. Nodes tell each
/// other their addresses in descriptors and control messages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NodeAddress {
    /// An IP address and a port.
    Ip(SocketAddr),
    /// A number on which the nodes have agreed: of a process in its host's shared memory, or of a
    /// host in a simulated network.
    Number(u32),
}

/// Where all members of a group receive datagrams. The kind says which networks understand it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum GroupAddress {
    /// An IP multicast address and a port.
    Ip(SocketAddr),
    /// A number on which the members have agreed.
    Number(u32),
    /// The numbers of all members, in a network that has no addresses for groups.
    Members(Vec<u32>),
}

impl NodeAddress {
    /// The IP address and the port, if the address is of that kind.
    pub fn ip(&self) -> Option<SocketAddr> {
        match self {
            NodeAddress::Ip(address) => Some(*address),
            NodeAddress::Number(_) => None,
        }
    }

    /// The number, if the address is of that kind.
    pub fn number(&self) -> Option<u32> {
        match self {
            NodeAddress::Number(number) => Some(*number),
            NodeAddress::Ip(_) => None,
        }
    }

    /// Whether one network can have nodes at both addresses.
    pub fn is_like(&self, other: &NodeAddress) -> bool {
        match (self, other) {
            (NodeAddress::Ip(a), NodeAddress::Ip(b)) => a.is_ipv4() == b.is_ipv4(),
            (NodeAddress::Number(_), NodeAddress::Number(_)) => true,
            _ => false,
        }
    }

    /// Whether both addresses are on one host, as far as they tell.
    pub fn shares_host(&self, other: &NodeAddress) -> bool {
        let host = |address: &NodeAddress| address.ip().map(|a| a.ip());
        host(self).is_some() && host(self) == host(other)
    }

    /// The same address with an IP address that stands for no host (0.0.0.0, ::), if its host is
    /// `host`: then who connects from there need not name it.
    pub fn without_host(self, host: IpAddr) -> NodeAddress {
        let nowhere: IpAddr = match host {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        match self {
            NodeAddress::Ip(a) if a.ip() == host => (nowhere, a.port()).into(),
            other => other,
        }
    }

    /// The same address without what only this host understands: its own number of a link.
    pub fn for_others(self) -> NodeAddress {
        match self {
            NodeAddress::Ip(SocketAddr::V6(mut a)) => {
                a.set_scope_id(0);
                SocketAddr::from(a).into()
            }
            other => other,
        }
    }
}

impl GroupAddress {
    /// The IP address and the port, if the address is of that kind.
    pub fn ip(&self) -> Option<SocketAddr> {
        match self {
            GroupAddress::Ip(address) => Some(*address),
            GroupAddress::Number(_) | GroupAddress::Members(_) => None,
        }
    }
}

impl From<SocketAddr> for NodeAddress {
    fn from(address: SocketAddr) -> NodeAddress {
        NodeAddress::Ip(address)
    }
}

impl From<(IpAddr, u16)> for NodeAddress {
    fn from(address: (IpAddr, u16)) -> NodeAddress {
        NodeAddress::Ip(address.into())
    }
}

impl From<SocketAddr> for GroupAddress {
    fn from(address: SocketAddr) -> GroupAddress {
        GroupAddress::Ip(address)
    }
}

impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeAddress::Ip(address) => address.fmt(f),
            NodeAddress::Number(number) => number.fmt(f),
        }
    }
}

impl fmt::Display for GroupAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GroupAddress::Ip(address) => address.fmt(f),
            GroupAddress::Number(number) => number.fmt(f),
            GroupAddress::Members(members) => write!(f, "{} members", members.len()),
        }
    }
}
