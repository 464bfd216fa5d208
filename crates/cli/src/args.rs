//! The command line. The doc comments of options are their `--help` texts.

mod copy;
mod follow;
mod net;
mod sending;
mod serve;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use clap::error::{ContextKind, ContextValue};
use clap::{Arg, CommandFactory, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use fabricast::bootstrap::PORT;
use fabricast::config::PER_HOST;
use fabricast::pattern::Pattern;
use fabricast_console::units;

pub use self::copy::Copy;
pub use self::follow::Follow;
pub use self::net::Net;
use self::net::scheme;
pub use self::sending::{Checksum, Late, Reach, Sending};
pub use self::serve::Serve;

const EXAMPLES: &str = "\
Examples:
  fabricast send image.iso                 offer a file; prints the command for the receivers
  fabricast recv . --from 10.0.0.5         receive it on another host; works on many at once
  fabricast copy image.iso 'node[1-8]:dir' start the receivers, too: from one terminal
  fabricast serve /srv/images              send what is put there to hosts that `recv --follow`
  fabricast demo                           try it on this machine alone: no root, no network
  fabricast run -- mpirun -n 8 ./program   serve an MPI program's broadcasts and barriers

Exit codes:
  0 every receiver that took part has it    6 the data differ from those that were sent
  1 a local file or socket failed           7 no space for the file, or too long
  2 wrong usage                             8 the other end is gone
  3 no receiver, or too few, came           9 refused: too late, too slow, another version
  4 some or all receivers failed           10 some files were not sent, or came too late
  5 something took too long               130 interrupted";

const SEND_LONG: &str = "\
Send files and directories to many receivers at once.

Receivers connect to the sender's TCP port (--port) and stay connected. The sender sends the data \
once, by UDP multicast, at the speed of the slowest receiver. It serves a receiver that multicast \
does not reach by unicast. The hashes that prove the data go over the TCP connections.

When the transfer starts: on a terminal, when you press Enter. In a script, or with any of \
--min-receivers, --max-receivers, --min-wait and --max-wait, it starts as soon as one of these \
holds:
  - --min-receivers (or one) are connected, and --min-wait has passed since the first came
  - --max-wait has passed since the first receiver came, however many are connected
  - --max-receivers are connected
If nothing has started it within --start-timeout, the sender gives up.";

const SEND_EXAMPLES: &str = "\
Examples:
  fabricast send image.iso --min-receivers 8
      start when eight receivers are connected
  fabricast send image.iso --min-receivers 8 --max-wait 2m --slow drop
      start after two minutes even with fewer; drop a receiver that holds the others up
  fabricast send image.iso --interface eth1 --rate 500Mbit
      use this interface and this fixed rate (without --rate the sender finds the rate itself)
  fabricast send dir file --min-receivers 8 --exclude '*.o'
      send a tree and a file, without what matches the pattern
  tar c dir | fabricast send - --name dir.tar --min-receivers 8
      send standard input, as one file of unknown length
  fabricast send image.iso --min-receivers 8 --json | jq .
      print one event per line, for programs

Values:
  TIME   500ms, 10s, 2m or 1h; a bare number means seconds
  BYTES  1472, 64K, 256M or 1G (powers of 1024), or 1GB (powers of 1000)
  RATE   500Mbit or 60MB/s; a bare 500M means bits per second
  PCT    1 or 1%, at most 90";

const RECV_EXAMPLES: &str = "\
Examples:
  fabricast recv . --from 10.0.0.5         into this directory, under the sender's name for it
  fabricast recv --dir copy --from head    into this directory, which is made if need be
  fabricast recv disk.img                  find a sender, ask you, receive under this name
  fabricast recv . --name 'image-*.iso'    in scripts: a file with such a name, from any sender
  fabricast recv . --any                   in scripts: any file, from the only sender
  fabricast recv disk.img --from head:9000 --force --receive-timeout 1m
  fabricast recv - --from head | tar x     to standard output; be there from the start
  fabricast recv . --from head --force --delete
      make the directories here equal to the sender's
  fabricast recv /srv --from head --follow --keep 3 --hook /usr/local/bin/unpack
      follow a feed (`fabricast serve`): keep the newest three, run a program with each new one

Values:
  TIME   500ms, 10s, 2m or 1h; a bare number means seconds
  BYTES  1472, 64K, 256M or 1G (powers of 1024), or 1GB (powers of 1000)
  PCT    1 or 1%, at most 90

Without --from the receiver listens for senders that announce themselves. Any host on this \
network can announce a file. On a terminal the receiver asks before it takes one. In scripts, give \
--name or --any. While several senders offer such a file, or if one fails before the start, the \
receiver goes on listening. A file from a sender found this way is never executable.

The file gets its name when its hashes have proven every byte and it is on the disk. Until then it \
has none, or a hidden one (.fabricast-*). A directory that is new appears at the end, with all \
that it holds. To go on after an interruption, run the same again: only \
what is missing comes. A receiver with --from may also come when the transfer runs already.";

const DEMO_LONG: &str = "\
Send a file from one sender to several receivers on this machine, first by multicast, then by \
unicast, and compare.

Sender and receivers are real processes. They use UDP and TCP over the loopback, which copies \
packets at the speed of memory. To show the times of a network, the sender's packets pass an \
emulated link (--link): a token bucket that charges each packet the sender sends. A multicast \
packet is charged once for all receivers, since a switch makes the copies. By unicast each \
receiver's copy is charged.";

const RUN_LONG: &str = "\
Start an MPI program so that Fabricast serves its MPI_Bcast and MPI_Barrier. The program stays \
unchanged, in C, Fortran or Python (mpi4py).

After -- comes the launcher's command as without Fabricast: mpirun, mpiexec or srun, of Open MPI \
or MPICH. Each rank preloads a library, which `mpi/build` builds for each installed MPI. The \
library must be at the same path on all hosts: beside this program, or in ../lib. The ranks also \
get every variable whose name begins with FABRICAST.

The MPI library still serves what Fabricast cannot (inter-communicators, a communicator on which \
not all ranks can agree), and what the library does faster. The first job with a given number of \
ranks and hosts measures that at its end, for later jobs of the same shape.";

const RUN_EXAMPLES: &str = "\
Examples:
  fabricast run -- mpirun -n 8 ./program
      run `mpirun -n 8 ./program` with Fabricast
  fabricast run --stats -- mpiexec -n 8 python3 train.py
      report at the end what was served: communicators, bytes, losses, repairs
  fabricast run --tune -- mpirun -n 8 ./program
      measure first which broadcasts and barriers the MPI library does faster, and leave those \
to it
  fabricast run --interface eth1 --verbose -- mpirun -n 8 --hostfile hosts ./program
      use eth1 on every host, and report what is left to the MPI library
  FABRICAST_MPI=openmpi fabricast run -- srun -n 64 ./program
      Slurm starts programs of any MPI, so tell which
  fabricast run --dry-run -- mpirun -n 8 ./program
      print the command without starting it

Environment:
  FABRICAST=on|off|verbose      default on; off: as --off; verbose: as --verbose
  FABRICAST_STATS=1             as --stats
  FABRICAST_INTERFACE=IF|ADDR   as --interface
  FABRICAST_SCHEME=NAME         the scheme, the same on all ranks (docs/usage.md) [default: auto]
  FABRICAST_BROADCAST=NAME      how broadcasts go, the same on all ranks: multicast (default), or by
                                messages: tree, chain, scatter-allgather
  FABRICAST_GROUPS=NAME         when communicators get multicast addresses of their own, the same on
                                all ranks: pool (default), pool(N) or pool(N),max=M: in advance;
                                lazy: later; basic: broadcasts wait; shared: never
  FABRICAST_SUBNET=NAME         what grants them: igmp (the kernel), opensm (InfiniBand), auto
                                (default)
  FABRICAST_ADDRESSES=N         most addresses that communicators get of their own at the same time
  FABRICAST_TUNE=on|off|now     when to measure which is faster; now: as --tune
  FABRICAST_CACHE=DIR|off       where to keep the results [default: fabricast in the user's cache \
directory]
  FABRICAST_INIT_TIMEOUT=SECS   how long to wait in MPI_Init for ranks without Fabricast
                                (default 60)
  FABRICAST_LOG=FILTER          events on standard error: info, debug, or modules with levels
  FABRICAST_MPI=openmpi|mpich   the launcher's MPI, if its name and version do not show it
  FABRICAST_LIB=DIRECTORY       where the libraries to preload are";

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  source <(fabricast completions bash)
      for this shell alone
  fabricast completions bash >~/.local/share/bash-completion/completions/fabricast
      for all later shells; `mpi/build --prefix DIR` installs the files of bash, zsh and fish";

const MANUAL_EXAMPLES: &str = "\
Example:
  fabricast manual ~/.local/share/man/man1
      then read `man fabricast`, `man fabricast-send` and so on";

/// Reliable multicast for clusters: sends a file to many hosts at once, and serves the broadcasts
/// of MPI programs
#[derive(Parser, Debug)]
#[command(name = "fabricast", version, after_help = EXAMPLES, max_term_width = 100)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Send files and directories, or standard input, to many receivers at once
    #[command(long_about = SEND_LONG, after_help = SEND_EXAMPLES)]
    Send(Send),
    /// Receive what a sender offers
    #[command(after_help = RECV_EXAMPLES)]
    Recv(Recv),
    /// Copy files to many hosts: send, and start the receivers there
    #[command(
        override_usage = copy::USAGE,
        long_about = copy::LONG,
        after_help = copy::EXAMPLES
    )]
    Copy(Copy),
    /// Send what is published in a directory to all hosts that follow it, until it is stopped
    #[command(long_about = serve::LONG, after_help = serve::EXAMPLES)]
    Serve(Serve),
    /// Compare multicast with unicast on this machine: one sender, seven receivers, an emulated
    /// link, lost packets; no root, no network
    #[command(long_about = DEMO_LONG)]
    Demo(Demo),
    /// Start an MPI program and serve its broadcasts and barriers
    #[command(long_about = RUN_LONG, after_help = RUN_EXAMPLES)]
    Run(Run),
    /// Print a file that lets a shell complete this command's options
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions {
        /// The shell that reads the file
        shell: Shell,
    },
    /// Write this command's manual pages into a directory
    #[command(after_help = MANUAL_EXAMPLES)]
    Manual {
        /// The directory, which is made if it does not exist
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
}

#[derive(Clone, Copy, PartialEq, Debug, ValueEnum)]
pub enum Accept {
    /// It has received the files: also one that writes to standard output or stores nothing
    Received,
    /// It has verified what it has stored; others are refused
    Verified,
}

#[derive(clap::Args, Debug)]
pub struct Send {
    /// The files and directories to send, or - for standard input
    #[arg(required = true, value_name = "SOURCE")]
    pub sources: Vec<PathBuf>,
    /// Name of the file that is sent from standard input, for the receivers [default: stdin]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// TCP port where receivers connect; 0 takes any free port
    #[arg(long, default_value_t = PORT)]
    pub port: u16,
    /// Start when this many receivers are connected [default: 1; on a terminal: when you press
    /// Enter]
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..),
        help_heading = "Start",
    )]
    pub min_receivers: Option<u32>,
    /// Start at once when this many receivers are connected, and admit no more [default: no limit]
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..),
        help_heading = "Start",
    )]
    pub max_receivers: Option<u32>,
    /// Earliest start: this long after the first receiver came, even with --min-receivers [default:
    /// 0]
    #[arg(long, value_name = "TIME", value_parser = units::duration, help_heading = "Start")]
    pub min_wait: Option<Duration>,
    /// Latest start: this long after the first receiver came, even with fewer than --min-receivers
    /// [default: wait for --min-receivers]
    #[arg(long, value_name = "TIME", value_parser = units::duration, help_heading = "Start")]
    pub max_wait: Option<Duration>,
    /// Give up if the transfer has not started by then
    #[arg(
        long,
        value_name = "TIME",
        value_parser = units::duration,
        default_value = "10m",
        help_heading = "Start",
    )]
    pub start_timeout: Duration,
    /// Admit at most this many receivers from one address
    ///
    /// With IPv6 the addresses of one /64 count as one, unless the sender has an address in it: the
    /// hosts of its link share the prefix.
    #[arg(
        long,
        value_name = "N",
        default_value_t = PER_HOST as u32,
        value_parser = clap::value_parser!(u32).range(1..),
        help_heading = "Start",
    )]
    pub per_host: u32,
    /// Receivers, by name, that must be there at the start and complete at the end (recv --as)
    ///
    /// Then exit code 0 means that these have the files, whatever becomes of others.
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        value_parser = NonEmptyStringValueParser::new(),
        help_heading = "Start"
    )]
    pub require: Vec<String>,
    /// When a receiver counts as complete
    #[arg(long, value_enum, default_value = "received")]
    pub accept: Accept,
    /// Do not announce the transfer on the network; receivers then need --from
    #[arg(long)]
    pub no_announce: bool,
    #[command(flatten)]
    pub how: Sending,
}

#[derive(clap::Args, Debug)]
pub struct Recv {
    /// Where it goes: an existing directory, or a name for the one file or directory that is sent,
    /// or - for standard output
    #[arg(required_unless_present_any = ["dir", "discard"])]
    pub dest: Option<PathBuf>,
    /// Where it goes: a directory, which is made if it does not exist
    #[arg(long, value_name = "DEST", conflicts_with = "dest")]
    pub dir: Option<PathBuf>,
    /// Prove everything and store nothing, to measure; the sender's table says received
    #[arg(
        long,
        conflicts_with_all = [
            "dest", "dir", "force", "delete", "privileged", "xattrs", "reserve", "no_sync",
        ],
    )]
    pub discard: bool,
    /// Give late receivers what is here already, while the sender sends the rest
    ///
    /// They get by TCP what they have missed. Nobody else gets it: the sender tells them a number
    /// that they have to show. Not by the scheme ibrmp.
    #[arg(long, conflicts_with_all = ["discard", "dry_run"])]
    pub serve: bool,
    /// Set set-user-ID, set-group-ID and sticky bits; make devices and FIFOs that the sender sends;
    /// with --xattrs, set also extended attributes that only root may set
    #[arg(long)]
    pub privileged: bool,
    /// Set the extended attributes that the sender sends: user.*
    #[arg(long)]
    pub xattrs: bool,
    /// The sender, by name or address [default: on a terminal, listen for senders and ask]
    #[arg(long, value_name = "HOST[:PORT]")]
    pub from: Option<String>,
    /// Take a file whose name matches PATTERN (*, ?, [a-z]) from any sender on this network,
    /// without asking
    ///
    /// For scripts. Quote the pattern. Any host on the network can offer such a file; only --from
    /// names a host.
    #[arg(long, value_name = "PATTERN", conflicts_with = "from")]
    pub name: Option<Pattern>,
    /// Take any file from the only sender on this network, without asking
    ///
    /// For scripts. Any host on the network can offer a file; only --from names a host.
    #[arg(long, conflicts_with_all = ["from", "name"])]
    pub any: bool,
    /// Refuse a sender that uses another scheme [default: with --from any scheme, else schemes in
    /// which receivers send to the sender alone]
    #[arg(long, value_name = "NAME", value_parser = scheme)]
    pub scheme: Option<String>,
    /// Replace files that exist
    ///
    /// With --from, what all receivers have already is not sent again: files with the sender's
    /// length and time are read, and compared by hashes. If one receiver has nothing of the set, or
    /// has not both options, all of it is sent.
    #[arg(short, long)]
    pub force: bool,
    /// Delete what is in the directories that are sent and is not sent, when all is there
    ///
    /// Only within these directories, never beside them in DEST. What the sender leaves out
    /// (--exclude) is deleted, too. With --force also what is a directory here and none there; and,
    /// at the beginning, what is no directory here and one there.
    #[arg(long, requires = "from", conflicts_with_all = ["any", "name"])]
    pub delete: bool,
    /// List what --delete would delete, and receive nothing
    #[arg(long, requires = "delete")]
    pub dry_run: bool,
    /// Refuse what is longer than this, all files together [default: no limit but the free space]
    #[arg(long, value_name = "BYTES", value_parser = units::size)]
    pub max_size: Option<u64>,
    /// Free space that must remain on the file system [default: 1 % of it, and at least 64M]
    #[arg(long, value_name = "BYTES", value_parser = units::size)]
    pub reserve: Option<u64>,
    /// Do not wait until the file is on the disk (fsync)
    ///
    /// Faster, but a power failure may then lose a file that was reported as received.
    #[arg(long)]
    pub no_sync: bool,
    /// This receiver's name in the sender's table [default: host and destination; without --from,
    /// host and process]
    #[arg(long = "as", value_name = "NAME")]
    pub called: Option<String>,
    #[command(flatten)]
    pub feed: Follow,
    /// Started by `fabricast copy`: read the key of this receiver from standard input, and end when
    /// standard input ends
    #[arg(long, requires = "from")]
    pub launched: bool,
    /// Give up if the transfer has not started by then
    #[arg(long, value_name = "TIME", value_parser = units::duration, default_value = "10m")]
    pub start_timeout: Duration,
    /// Give up if no data has arrived for this long; 0 waits for ever
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
    /// Do not use Fabricast: the MPI library serves everything
    ///
    /// For comparison, or for programs with buffers in a GPU's memory.
    #[arg(long, conflicts_with = "verbose")]
    pub off: bool,
    /// Report which calls are left to the MPI library, and why
    #[arg(long)]
    pub verbose: bool,
    /// Report at the end what was served: broadcasts, barriers, packets, losses
    #[arg(long)]
    pub stats: bool,
    /// Measure at the start whether Fabricast or the MPI library is faster, even if an earlier job
    /// has
    ///
    /// Takes at most six seconds. Give it when the network has changed. Without it the first job of
    /// a shape measures at its end.
    #[arg(long, conflicts_with = "off")]
    pub tune: bool,
    /// Interface for the data on every host, by name or address [default: the one for the host's
    /// multicasts]
    #[arg(long, value_name = "IF|ADDR")]
    pub interface: Option<OsString>,
    /// Drop this percentage of datagrams on purpose, both sent and received, to see repairs at work
    /// [default: 0]
    #[arg(long, value_name = "PCT", value_parser = units::percent)]
    pub inject_loss: Option<f64>,
    /// Print the launcher's command instead of starting it
    #[arg(long)]
    pub dry_run: bool,
    /// The launcher's command: mpirun, mpiexec or srun, with its arguments and the program
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
    /// Number of receivers, 1 to 64
    #[arg(
        long,
        value_name = "N",
        default_value_t = 7,
        value_parser = clap::value_parser!(u32).range(1..=64),
    )]
    pub receivers: u32,
    /// Rate of the emulated link behind the sender; off: no link, as fast as this machine can
    #[arg(long, value_name = "RATE|off", default_value = "500Mbit", value_parser = units::link)]
    pub link: units::Link,
    /// Length of the file [default: 64M, or less if there is less space]
    #[arg(long, value_name = "BYTES", value_parser = units::size)]
    pub size: Option<u64>,
    /// Percentage of datagrams that each process drops, sent and received
    #[arg(long, value_name = "PCT", default_value = "1%", value_parser = units::percent)]
    pub loss: f64,
    /// Directory for the source and the copies [default: the system's temporary directory]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

/// Parses the command line of this process. Ends the process if that is wrong, and after `--help`.
pub fn parsed() -> Args {
    Args::try_parse().unwrap_or_else(|error| without_hidden(error).exit())
}

/// A wrong command line's error without the tip, if that names an option that no command shows.
fn without_hidden(mut error: clap::Error) -> clap::Error {
    let named = match error.get(ContextKind::SuggestedArg) {
        Some(ContextValue::String(named)) => named.trim_start_matches('-').to_owned(),
        _ => return error,
    };
    let shows = |arg: &Arg| !arg.is_hide_set() && arg.get_long() == Some(&named);
    let command = Args::command();
    let mut commands = command.get_subcommands();
    if !commands.any(|command| command.get_arguments().any(shows)) {
        error.remove(ContextKind::SuggestedArg);
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Args::command().debug_assert();
    }

    #[test]
    fn no_tip_names_a_hidden_option() {
        let told = |command: &str, option: &str| {
            let words = ["fabricast", command, option, "x"];
            let error = Args::try_parse_from(words).unwrap_err();
            without_hidden(error).to_string()
        };
        let hidden = told("send", "--inject-corruptio");
        assert!(!hidden.contains("inject-corruption"), "{hidden}");
        assert!(told("send", "--inject-los").contains("--inject-loss"));
        // `serve` hides this one.
        assert!(told("send", "--file-timeou").contains("--file-timeout"));
    }
}
