//! The command line, as people see it with `--help`.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Parser, Subcommand, ValueEnum};
use fabricast::bootstrap::PORT;
use fabricast::config::PER_HOST;
use fabricast::pattern::Pattern;
use fabricast::proto::Scheme;
use fabricast::proto::scheme::{PRESETS, UnknownScheme};
use fabricast::transport::udp::Interface;
use fabricast_console::units;

const EXAMPLES: &str = "\
Examples:
  fabricast send image.iso                 offer a file; prints what to run on the receivers
  fabricast recv . --from 10.0.0.5         receive it there, on as many hosts as you like
  fabricast demo                           see it work on this machine alone: no root, no network
  fabricast run -- mpirun -n 8 ./program   an MPI program's broadcasts and barriers

Exit codes:
  0 every receiver has verified the file    6 the data are not those that were sent
  1 a local file or socket failed           7 no space for the file, or too long
  2 wrong usage                             8 the other end is gone
  3 no receiver, or too few, came           9 refused: too late, too slow, another version
  4 some receivers failed, others did not  10 the source changed while it was sent
  5 something took too long               130 interrupted";

const SEND_LONG: &str = "\
Send one file to many receivers at once.

Receivers connect to the TCP port of this sender (--port), where all that proves the data is said; \
the data themselves go out once, by UDP multicast, at the speed that the slowest receiver takes. A \
receiver that multicast does not reach is served by unicast.

When it starts: on a terminal, when you press Enter, unless one of the start options is given. \
Otherwise as soon as --min-receivers are connected and --min-wait has passed since the first of \
them came; or when --max-wait has passed since then, however many there are; or when there are \
--max-receivers. If nothing has started it after --start-timeout, it gives up.";

const SEND_EXAMPLES: &str = "\
Examples:
  fabricast send image.iso --min-receivers 8
      wait for eight receivers, then send
  fabricast send image.iso --min-receivers 8 --max-wait 2m --slow drop
      begin after two minutes with those who are there; go on without one that stalls
  fabricast send image.iso --interface eth1 --rate 500Mbit
      by this interface, at this fixed rate (without --rate it finds the pace itself)
  fabricast send image.iso --min-receivers 8 --json | jq .
      one event per line, for programs";

const RECV_EXAMPLES: &str = "\
Examples:
  fabricast recv . --from 10.0.0.5         into this directory, under the sender's name for it
  fabricast recv disk.img                  find the sender, ask, receive under this name
  fabricast recv . --name 'image-*.iso'    in scripts: a file of such a name, from whoever offers it
  fabricast recv . --any                   or whatever the only sender on this network offers
  fabricast recv disk.img --from head:9000 --force --receive-timeout 1m

Without --from a receiver listens for senders that announce themselves on this network, which \
anybody there can do. On a terminal it asks before it takes a file. Elsewhere --name or --any says \
what may be taken; while several senders offer such a file, or when one fails before the start, \
the receiver goes on listening. A file from a sender that was found so is not executable.

The file appears under its name only when every byte has been proven by its hash and is on the \
disk; until then it has no name, or, where the file system needs one, NAME.XXXXXX.partial.";

const DEMO_LONG: &str = "\
Send a file from one sender to several receivers on this machine, by multicast and then by \
unicast, and compare.

All are real processes that talk by UDP and TCP over the loopback. The loopback copies packets at \
the speed of memory; so that time shows what a network would, the sender's packets go by an \
emulated link (--link): a token bucket charges each packet that the sender sends. By multicast, \
one packet serves all receivers, since a switch makes the copies; by unicast, each receiver's copy \
is sent and charged.";

const RUN_LONG: &str = "\
Start an MPI program whose MPI_Bcast and MPI_Barrier are Fabricast's. The program is not changed, \
whether it is C, Fortran or Python (mpi4py).

Behind -- comes the launcher's command as it would be without Fabricast: mpirun, mpiexec or srun, \
of Open MPI or MPICH. Each rank is made to preload a library, which `mpi/build` builds for every \
MPI that is here: it is looked for beside this program and in ../lib, on all hosts at the same \
path. Every variable whose name begins with FABRICAST goes to the ranks, too.

What Fabricast cannot serve (inter-communicators, a communicator that all ranks cannot agree on) \
the MPI library does as ever, and also what it does faster: the first job of so many ranks on so \
many hosts measures that when it ends, for later jobs of the same shape.";

const RUN_EXAMPLES: &str = "\
Examples:
  fabricast run -- mpirun -n 8 ./program
      as `mpirun -n 8 ./program`, with Fabricast
  fabricast run --stats -- mpiexec -n 8 python3 train.py
      and tell at the end what was served: communicators, bytes, losses, repairs
  fabricast run --tune -- mpirun -n 8 ./program
      and measure first which broadcasts and barriers the MPI library does faster: those are \
left to it
  fabricast run --interface eth1 --verbose -- mpirun -n 8 --hostfile hosts ./program
      by this interface of every host, and say what is left to the MPI library
  FABRICAST_MPI=openmpi fabricast run -- srun -n 64 ./program
      Slurm starts programs of any MPI, so say which
  fabricast run --dry-run -- mpirun -n 8 ./program
      print the command that would be started

Environment:
  FABRICAST=on|off|verbose      on by default; off: the MPI library does everything
  FABRICAST_STATS=1             as --stats
  FABRICAST_INTERFACE=IF|ADDR   as --interface
  FABRICAST_TUNE=on|off|now     when it is measured who is faster; now: as --tune
  FABRICAST_CACHE=DIR|off       where that is kept [default: fabricast in the user's cache \
directory]
  FABRICAST_MPI=openmpi|mpich   whose launcher it is, if that cannot be seen
  FABRICAST_LIB=DIRECTORY       where the libraries are";

/// Sends a file from one host to many, once, on the multicast that the network already has.
#[derive(Parser, Debug)]
#[command(name = "fabricast", version, after_help = EXAMPLES, max_term_width = 100)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Send one file to many receivers at once
    #[command(long_about = SEND_LONG, after_help = SEND_EXAMPLES)]
    Send(Send),
    /// Receive the file that a sender offers
    #[command(after_help = RECV_EXAMPLES)]
    Recv(Recv),
    /// Show multicast beside unicast on this machine, over an emulated link: one sender, seven
    /// receivers, lost packets; no root, no network
    #[command(long_about = DEMO_LONG)]
    Demo(Demo),
    /// Start an MPI program whose broadcasts and barriers are Fabricast's
    #[command(long_about = RUN_LONG, after_help = RUN_EXAMPLES)]
    Run(Run),
}

/// Options of both sides.
#[derive(clap::Args, Debug, Clone)]
pub struct Net {
    /// Interface for the data: its name or its address [default: the one receivers connect by]
    #[arg(
        long,
        value_name = "IF|ADDR",
        default_value = "auto",
        hide_default_value = true
    )]
    pub interface: Interface,
    /// Largest datagram in bytes, 512 to 65507 [default: what the interfaces' MTU allows]
    #[arg(long, value_name = "BYTES", value_parser = units::size)]
    pub datagram: Option<u64>,
    /// Do not let the kernel cut and join datagrams (GSO, GRO)
    #[arg(long)]
    pub no_offload: bool,
    /// Drop this share of datagrams on purpose, both ways, to see the repair at work
    #[arg(
        long,
        value_name = "PCT",
        default_value = "0",
        hide_default_value = true,
        value_parser = units::percent,
    )]
    pub inject_loss: f64,
    /// Change a bit in this share of the datagrams that come in
    #[arg(
        long,
        value_name = "PCT",
        default_value = "0",
        hide = true,
        value_parser = units::percent,
    )]
    pub inject_corruption: f64,
    /// Send by an emulated link of this rate
    #[arg(long, value_name = "RATE", hide = true, value_parser = units::rate)]
    pub emulate_link: Option<u64>,
    /// Tell events as JSON, one per line, on standard output
    #[arg(long)]
    pub json: bool,
    /// Say nothing but errors
    #[arg(short, long)]
    pub quiet: bool,
    /// Tell on standard error how receivers are reached and who comes and goes (-vv: also what is
    /// retransmitted); FABRICAST_LOG=FILTER tells more precisely what, such as
    /// info,fabricast::driver=debug
    #[arg(short, long, action = ArgAction::Count)]
    pub verbose: u8,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Slow {
    /// Wait for it
    Wait,
    /// Wait for it while it gets on at times: for at most six times --patience, and three times if
    /// it is silent or has not joined
    Alive,
    /// Go on without it
    Drop,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Reach {
    /// Multicast, and unicast for those that it does not reach
    Auto,
    /// Unicast for all
    Unicast,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Checksum {
    /// What the network checks by itself
    None,
    /// The sum of its words
    Additive,
    /// CRC-32C
    Crc32c,
}

#[derive(clap::Args, Debug)]
pub struct Send {
    /// The file to send
    pub source: PathBuf,
    /// TCP port at which receivers connect; 0: any free one
    #[arg(long, default_value_t = PORT)]
    pub port: u16,
    /// Multicast address [default: one of local scope, at random] and UDP port [default: 7641]
    #[arg(long, value_name = "ADDR[:PORT]", value_parser = group)]
    pub group: Option<(IpAddr, Option<u16>)>,
    /// Routers that multicasts may pass, plus one
    #[arg(long, default_value_t = 1)]
    pub ttl: u8,
    /// How to reach receivers
    #[arg(long, value_enum, default_value = "auto")]
    pub reach: Reach,
    /// Start when so many receivers are connected [default: 1; on a terminal: Enter]
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..),
        help_heading = "Start",
    )]
    pub min_receivers: Option<u32>,
    /// Start at once when so many are connected, and admit no more
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..),
        help_heading = "Start",
    )]
    pub max_receivers: Option<u32>,
    /// Even with --min-receivers, wait so long since the first came
    #[arg(long, value_name = "TIME", value_parser = units::duration, help_heading = "Start")]
    pub min_wait: Option<Duration>,
    /// Start with fewer than --min-receivers, so long after the first came
    #[arg(long, value_name = "TIME", value_parser = units::duration, help_heading = "Start")]
    pub max_wait: Option<Duration>,
    /// Give up if it has not started by then
    #[arg(
        long,
        value_name = "TIME",
        value_parser = units::duration,
        default_value = "10m",
        help_heading = "Start",
    )]
    pub start_timeout: Duration,
    /// How multicast is made reliable: auto, or one of the papers' schemes, for comparison
    #[arg(
        long,
        value_name = "NAME",
        default_value = "auto",
        value_parser = scheme,
        long_help = schemes_help(),
    )]
    pub scheme: String,
    /// What each datagram carries to prove that memory and network cards left it as it was; the
    /// file is proven by its hashes in any case, and with this only what was damaged comes again
    #[arg(long, value_enum, default_value = "none")]
    pub checksum: Checksum,
    /// Send everything at this fixed rate, e.g. 500Mbit, whatever is lost; faster than the link it
    /// only causes losses [default: as fast as the slowest receiver takes it]
    #[arg(long, value_name = "RATE", value_parser = units::rate)]
    pub rate: Option<u64>,
    /// Admit so many receivers from one address (with IPv6: from one /64, unless it is the link of
    /// the sender, whose hosts share it)
    #[arg(
        long,
        value_name = "N",
        default_value_t = PER_HOST as u32,
        value_parser = clap::value_parser!(u32).range(1..),
        help_heading = "Start",
    )]
    pub per_host: u32,
    /// Refuse receivers whose datagrams are smaller, for everybody's packets are as small as the
    /// smallest receiver's [default: 1200, or --datagram if that is less]
    #[arg(long, value_name = "BYTES", value_parser = units::size, help_heading = "Start")]
    pub datagram_min: Option<u64>,
    /// What to do about a receiver that keeps the others waiting [default: wait if standard error
    /// is a terminal, else alive]
    #[arg(long, value_enum)]
    pub slow: Option<Slow>,
    /// How long a receiver may keep the others waiting
    #[arg(long, value_name = "TIME", value_parser = units::duration, default_value = "10s")]
    pub patience: Duration,
    /// Do not announce the transfer; receivers need --from
    #[arg(long)]
    pub no_announce: bool,
    #[command(flatten)]
    pub net: Net,
}

#[derive(clap::Args, Debug)]
pub struct Recv {
    /// Where the file goes: a file name, or an existing directory
    pub dest: PathBuf,
    /// The sender [default: on a terminal, listen for senders on this network and ask]
    #[arg(long, value_name = "HOST[:PORT]")]
    pub from: Option<String>,
    /// Find a sender on this network that offers a file of such a name (*, ?, [a-z]), and do not
    /// ask
    #[arg(long, value_name = "PATTERN", conflicts_with = "from")]
    pub name: Option<Pattern>,
    /// Find the only sender on this network, and take whatever it offers without asking
    #[arg(long, conflicts_with_all = ["from", "name"])]
    pub any: bool,
    /// Take part by this scheme alone [default: by any with --from, else by any in which receivers
    /// send to the sender alone]
    #[arg(long, value_name = "NAME", value_parser = scheme)]
    pub scheme: Option<String>,
    /// Replace the destination if it exists
    #[arg(short, long)]
    pub force: bool,
    /// Refuse a file that is longer than this
    #[arg(long, value_name = "BYTES", value_parser = units::size)]
    pub max_size: Option<u64>,
    /// How much stays free on the file system [default: 1 % of it, and at least 64M]
    #[arg(long, value_name = "BYTES", value_parser = units::size)]
    pub reserve: Option<u64>,
    /// Do not wait until the file is on the disk (fsync)
    #[arg(long)]
    pub no_sync: bool,
    /// What to be called in the sender's table [default: host and destination; without --from, host
    /// and process]
    #[arg(long = "as", value_name = "NAME")]
    pub called: Option<String>,
    /// Give up if the transfer has not started by then
    #[arg(long, value_name = "TIME", value_parser = units::duration, default_value = "10m")]
    pub start_timeout: Duration,
    /// Give up if nothing has arrived for so long; 0: never
    #[arg(long, value_name = "TIME", value_parser = units::duration, default_value = "10m")]
    pub receive_timeout: Duration,
    /// Damage every n-th block after it has arrived
    #[arg(long, value_name = "N", default_value_t = 0, hide = true)]
    pub inject_damage: u64,
    #[command(flatten)]
    pub net: Net,
}

#[derive(clap::Args, Debug)]
pub struct Run {
    /// Let the MPI library do everything, as without Fabricast
    #[arg(long, conflicts_with = "verbose")]
    pub off: bool,
    /// Say what is left to the MPI library, and why
    #[arg(long)]
    pub verbose: bool,
    /// Tell at the end what was served, and what that took
    #[arg(long)]
    pub stats: bool,
    /// Measure at the start who is faster, Fabricast or the MPI library, even if an earlier job has
    #[arg(long, conflicts_with = "off")]
    pub tune: bool,
    /// Interface for the data, on every host: its name or its address [default: that by which the
    /// host sends multicasts]
    #[arg(long, value_name = "IF|ADDR")]
    pub interface: Option<OsString>,
    /// Drop this share of datagrams on purpose, both ways, to see the repair at work
    #[arg(long, value_name = "PCT", value_parser = units::percent)]
    pub inject_loss: Option<f64>,
    /// Print the command instead of starting it
    #[arg(long)]
    pub dry_run: bool,
    /// The launcher's command
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "LAUNCHER"
    )]
    pub command: Vec<OsString>,
}

#[derive(clap::Args, Debug)]
pub struct Demo {
    /// How many receivers
    #[arg(
        long,
        value_name = "N",
        default_value_t = 7,
        value_parser = clap::value_parser!(u32).range(1..=64),
    )]
    pub receivers: u32,
    /// Rate of the emulated link that the sender sends by, or off: as fast as this machine can
    #[arg(long, value_name = "RATE|off", default_value = "500Mbit", value_parser = units::link)]
    pub link: units::Link,
    /// Length of the file [default: 64M, or less if there is less space]
    #[arg(long, value_name = "BYTES", value_parser = units::size)]
    pub size: Option<u64>,
    /// Share of datagrams that are dropped at each end
    #[arg(long, value_name = "PCT", default_value = "1%", value_parser = units::percent)]
    pub loss: f64,
    /// Where to work [default: the system's temporary directory]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

/// `239.1.2.3`, `239.1.2.3:5000`, `ff15::1`, `[ff15::1]:5000`.
fn group(s: &str) -> Result<(IpAddr, Option<u16>), String> {
    let (ip, port) = match s.parse::<std::net::SocketAddr>() {
        Ok(address) => (address.ip(), Some(address.port())),
        Err(_) => match s.parse::<IpAddr>() {
            Ok(ip) => (ip, None),
            Err(_) => return Err("not an address, nor an address and a port".into()),
        },
    };
    if !ip.is_multicast() {
        return Err(format!(
            "{ip} is not a multicast address (239.0.0.0/8 and ff15::/16 are for local use)"
        ));
    }
    match port {
        Some(0) => Err("port 0 is no port to send to".into()),
        port => Ok((ip, port)),
    }
}

/// What `--scheme` takes.
fn schemes_help() -> String {
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

/// A scheme's name, if it means one.
fn scheme(name: &str) -> Result<String, UnknownScheme> {
    name.parse::<Scheme>().map(|_| name.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        use clap::CommandFactory;
        Args::command().debug_assert();
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
