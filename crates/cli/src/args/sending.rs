//! Options of a sender, of one transfer or of a feed.

use std::net::IpAddr;
use std::time::Duration;

use clap::ValueEnum;
use fabricast::bootstrap::Cpus;
use fabricast::config::{FILES_AT_ONCE_MAX, Slow};
use fabricast::ibrmp;
use fabricast::pattern::Pattern;
use fabricast::proto::scheme::PRESETS;
use fabricast_console::units;

use super::net::{Net, scheme};

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Reach {
    /// Multicast, and unicast for receivers that multicast does not reach
    Auto,
    /// Unicast for all receivers
    Unicast,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Checksum {
    /// None; the network has its own checks
    None,
    /// The sum of the datagram's words
    Additive,
    /// CRC-32C
    Crc32c,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Late {
    /// It joins the others, and gets afterwards what it has missed
    Admit,
    /// It is refused
    Refuse,
}

/// Options that `send`, `copy` and `serve` share.
#[derive(clap::Args, Debug)]
pub struct Sending {
    /// Do not send what has such a name (*, ?, [a-z]) within a directory; may be repeated
    ///
    /// Quote the pattern. A directory that is not sent leaves out all that it holds.
    #[arg(long, value_name = "PATTERN")]
    pub exclude: Vec<Pattern>,
    /// Compare no files: send each, however often it is there, and whatever receivers have
    #[arg(long)]
    pub no_compare: bool,
    /// Send extended attributes (user.* and, as far as they can be read, others); receivers set
    /// them if they are asked to
    #[arg(long)]
    pub xattrs: bool,
    /// Send devices and FIFOs in directories; receivers make them, and set set-user-ID,
    /// set-group-ID and sticky bits, if they are asked to
    #[arg(long)]
    pub privileged: bool,
    /// List what would be sent, and send nothing
    #[arg(long)]
    pub dry_run: bool,
    /// What to do about a receiver that comes when the transfer runs already
    #[arg(long, value_enum, default_value = "admit")]
    pub late: Late,
    /// Multicast address [default: a random one of local scope] and UDP port [default: 7641]
    ///
    /// Give it if routers or firewalls let only certain groups pass.
    #[arg(long, value_name = "ADDR[:PORT]", value_parser = group)]
    pub group: Option<(IpAddr, Option<u16>)>,
    /// Hop limit of multicasts: 1 stays in the sender's network, N passes N-1 routers
    #[arg(long, default_value_t = 1, value_parser = ttl)]
    pub ttl: u8,
    /// How to send to receivers
    #[arg(long, value_enum, default_value = "auto")]
    pub reach: Reach,
    /// How multicast is made reliable: auto, or one of the papers' schemes, for comparison
    #[arg(
        long,
        value_name = "NAME",
        default_value = "auto",
        value_parser = scheme,
        long_help = schemes_help(),
    )]
    pub scheme: String,
    /// With --scheme ibrmp: how long a file stays open after its multicast has ended [default: 60s]
    ///
    /// Receivers that lack some of it by then do not get it. One that has said nothing since then,
    /// and for --patience, is dropped.
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub file_timeout: Option<Duration>,
    /// With --scheme ibrmp: how many files are sent at once, 1 to 256 [default: 128]
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..=i64::from(FILES_AT_ONCE_MAX)),
    )]
    pub files_at_once: Option<u16>,
    /// With --scheme ibrmp: how many receivers a worker serves [default: 8]
    ///
    /// A worker is a thread that reads what its receivers lack and sends it by TCP. When all
    /// workers have so many receivers, another one starts. With a smaller number, more CPUs work at
    /// once, and a slow read holds up fewer receivers.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub receivers_per_worker: Option<u16>,
    /// With --scheme ibrmp: most workers [default: as many as there are CPUs]
    ///
    /// No receiver is refused for that: those beyond share the workers with the fewest receivers.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub workers: Option<u16>,
    /// With --scheme ibrmp: bind workers to these CPUs, in turn, such as 0-3,8 [default: any CPU]
    #[arg(long, value_name = "LIST")]
    pub worker_cpus: Option<Cpus>,
    /// Checksum in each datagram, against damage by memory or network cards
    ///
    /// The file's hashes prove it in any case. With a checksum only the damaged datagrams are sent
    /// again, without it whole blocks.
    #[arg(long, value_enum, default_value = "none")]
    pub checksum: Checksum,
    /// Fixed rate for everything sent, data and repairs [default: as fast as the slowest receiver
    /// can take]
    ///
    /// Give it to leave the rest of a link to others. A rate above the slowest link's only causes
    /// losses.
    #[arg(long, value_name = "RATE", value_parser = units::rate)]
    pub rate: Option<u64>,
    /// Refuse receivers whose largest datagram is smaller [default: 1200, or --datagram if that is
    /// less]
    ///
    /// All packets are as small as the smallest receiver's, so one such receiver slows all others.
    #[arg(long, value_name = "BYTES", value_parser = units::size, help_heading = "Start")]
    pub datagram_min: Option<u64>,
    /// What to do about a slow receiver, or about one with this name; may be repeated [default:
    /// wait if standard error is a terminal, else alive]
    ///
    /// A receiver is slow that makes the others wait for --patience. With demote and drop a
    /// receiver is also slow that holds the others for --patience at less than half the speed that
    /// they could take, or is far behind the fastest; with demote that takes about a second,
    /// whatever the patience.
    ///
    ///   wait    wait for it, and print a notice
    ///   alive   wait for it while it makes progress at times; drop it after six times --patience
    ///           without progress, or after three times if it is silent or has not joined
    ///   demote  go on without it, and let it catch up when the others have everything; if it is
    ///           slow again then, as with alive; drop it if it catches up for twenty times as long
    ///           as the others took, and six times --patience
    ///   drop    drop it at once, and go on without it
    ///
    /// With demote and drop a receiver is also dropped that is behind for so long when half of the
    /// receivers have everything: twenty times as long as these took, and six times --patience.
    #[arg(long, value_name = "[NAME=]RULE", value_parser = slow, verbatim_doc_comment)]
    pub slow: Vec<(Option<String>, Slow)>,
    /// How long a receiver may make the others wait before it counts as slow
    #[arg(long, value_name = "TIME", value_parser = units::duration, default_value = "10s")]
    pub patience: Duration,
    #[command(flatten)]
    pub net: Net,
}

/// Parses a hop limit.
fn ttl(s: &str) -> Result<u8, String> {
    match s.parse() {
        Ok(0) => {
            Err("with 0 no multicast leaves this host: give 1 for the sender's network".into())
        }
        Ok(ttl) => Ok(ttl),
        Err(_) => Err("not a number from 1 to 255".into()),
    }
}

/// Parses `239.1.2.3`, `239.1.2.3:5000`, `ff15::1` or `[ff15::1]:5000`.
fn group(s: &str) -> Result<(IpAddr, Option<u16>), String> {
    let (ip, port) = match s.parse::<std::net::SocketAddr>() {
        Ok(address) => (address.ip(), Some(address.port())),
        Err(_) => match s.parse::<IpAddr>() {
            Ok(ip) => (ip, None),
            Err(_) => return Err("neither an address nor ADDR:PORT".into()),
        },
    };
    if !ip.is_multicast() {
        return Err(format!(
            "{ip} is not a multicast address (239.0.0.0/8 and ff15::/16 are for local use)"
        ));
    }
    match port {
        Some(0) => Err("port 0 cannot be sent to: choose 1 to 65535".into()),
        port => Ok((ip, port)),
    }
}

/// Parses `demote` or `NAME=demote`. A name may contain `=`.
fn slow(s: &str) -> Result<(Option<String>, Slow), String> {
    let (name, rule) = match s.rsplit_once('=') {
        Some(("", _)) => return Err("a receiver's name goes before '='".into()),
        Some((name, rule)) => (Some(name.to_owned()), rule),
        None => (None, s),
    };
    let rule = match rule {
        "wait" => Slow::Wait,
        "alive" => Slow::Alive,
        "demote" => Slow::Demote,
        "drop" => Slow::Drop,
        _ => return Err("the rules are wait, alive, demote and drop".into()),
    };
    Ok((name, rule))
}

/// Options for P3's protocol alone, by their names.
pub const IBRMP_ONLY: [&str; 5] = [
    "file_timeout",
    "files_at_once",
    "receivers_per_worker",
    "workers",
    "worker_cpus",
];

/// The long help of `--scheme`, which lists all schemes.
fn schemes_help() -> String {
    let more = format!(
        "\nOr, alone:\n  {:13} P3's protocol for files: each file is multicast once, receivers \
         get by TCP what they lack; a file is closed --file-timeout after its multicast; files \
         alone, with their permissions and times, and nothing is kept for a later run",
        ibrmp::NAME
    );
    streams_help() + &more
}

/// The long help of `--scheme` without P3's protocol.
pub fn streams_help() -> String {
    let mut text = String::from(
        "How multicast is made reliable: auto, or one of the papers' schemes, for comparison. One \
         base, and modifiers \
         joined to it by '+', such as coroot(2)+aggregate(10); N is 1 or more:",
    );
    for preset in PRESETS {
        text += &format!("\n  {:13} {}", preset.name, preset.about);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_for_slow_receivers() {
        assert_eq!(slow("drop"), Ok((None, Slow::Drop)));
        assert!(slow("=drop").is_err());
        assert_eq!(slow("h5=demote"), Ok((Some("h5".into()), Slow::Demote)));
        assert_eq!(slow("a=b=wait"), Ok((Some("a=b".into()), Slow::Wait)));
        for bad in ["", "h5=", "h5", "h5=demoted"] {
            assert!(slow(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_hop_limit_lets_multicasts_leave_the_host() {
        assert_eq!((ttl("1"), ttl("255")), (Ok(1), Ok(255)));
        assert!(ttl("0").unwrap_err().contains("leaves this host"));
        for bad in ["", "256", "-1", "x"] {
            assert!(ttl(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn groups() {
        let v4: IpAddr = "239.1.2.3".parse().unwrap();
        let v6: IpAddr = "ff15::1".parse().unwrap();
        assert_eq!(group("239.1.2.3"), Ok((v4, None)));
        assert_eq!(group("239.1.2.3:99"), Ok((v4, Some(99))));
        assert_eq!(group("[ff15::1]:99"), Ok((v6, Some(99))));
        assert_eq!(group("ff15::1"), Ok((v6, None)));
        for bad in ["10.0.0.1", "239.1.2.3:0", "x", "239.1.2.3:"] {
            assert!(group(bad).is_err(), "{bad}");
        }
    }
}
