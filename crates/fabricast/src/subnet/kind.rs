//! Which subnet grants addresses.

use std::fmt;
use std::io;
use std::str::FromStr;

use tracing::info;

use super::Subnet;
use super::igmp::Igmp;
use super::opensm::{Config, OpenSm};

/// Which subnet grants addresses, by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum SubnetKind {
    /// `auto`: an InfiniBand subnet manager if the interface is IP over InfiniBand and this process
    /// may use its port, else `igmp`.
    #[default]
    Auto,
    /// `igmp`: the kernel joins, and nobody refuses.
    Igmp,
    /// `opensm`: the InfiniBand subnet manager of the first active port.
    OpenSm,
}

impl SubnetKind {
    /// Opens the subnet for what goes by this network interface.
    ///
    /// # Errors
    /// The port of an InfiniBand subnet cannot be opened, and [`SubnetKind::OpenSm`] asks for it.
    pub fn open(self, interface: &str) -> io::Result<Box<dyn Subnet + Send>> {
        Ok(match self {
            SubnetKind::OpenSm => Box::new(OpenSm::open(Config::default())?),
            SubnetKind::Auto if is_infiniband(interface) => match OpenSm::open(Config::default()) {
                Ok(opensm) => Box::new(opensm),
                Err(error) => {
                    info!(%error, "no InfiniBand port: the kernel joins multicast addresses");
                    Box::new(Igmp::new())
                }
            },
            SubnetKind::Auto | SubnetKind::Igmp => Box::new(Igmp::new()),
        })
    }

    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            SubnetKind::Auto => "auto",
            SubnetKind::Igmp => "igmp",
            SubnetKind::OpenSm => "opensm",
        }
    }
}

/// Whether an interface is IP over InfiniBand, as the kernel counts kinds of hardware.
fn is_infiniband(interface: &str) -> bool {
    const ARPHRD_INFINIBAND: &str = "32";
    let kind = std::fs::read_to_string(format!("/sys/class/net/{interface}/type"));
    kind.is_ok_and(|kind| kind.trim() == ARPHRD_INFINIBAND)
}

impl FromStr for SubnetKind {
    type Err = UnknownSubnet;

    fn from_str(name: &str) -> Result<SubnetKind, UnknownSubnet> {
        let all = [SubnetKind::Auto, SubnetKind::Igmp, SubnetKind::OpenSm];
        let named = all.into_iter().find(|kind| kind.name() == name);
        named.ok_or_else(|| UnknownSubnet(name.into()))
    }
}

/// No subnet has this name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownSubnet(String);

impl fmt::Display for UnknownSubnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown subnet '{}'; known: auto, igmp, opensm", self.0)
    }
}

impl std::error::Error for UnknownSubnet {}
