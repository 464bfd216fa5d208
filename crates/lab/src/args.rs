//! The command line, as users see it with `--help`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use fabricast_console::units;
use fabricast_lab::compare::{Loss, Named};

const EXAMPLES: &str = "\
Examples:
  fabricast-lab papers --quick             the papers' experiments, and what became of their claims
  fabricast-lab model --claims             what the papers' models say, beside what they measured
  fabricast-lab sim soak --seeds 1000      the protocol under a thousand kinds of faults, judged
  fabricast-lab sim run 7                  one of them, line by line

Exit codes:
  0 all went well        2 wrong usage
  1 something failed   130 interrupted";

const COMPARE_LONG: &str = "\
Compare auto with the papers' schemes: every number of nodes with every size and every loss, each \
a cell, on a simulated tree of switches with 1 Gbit/s everywhere.

After a small broadcast to warm up and a pause, one broadcast is measured: the time until the last \
receiver has all of it, and the bytes that the root sends from its beginning until all is silent. \
All schemes send at one pace, just below the links'. Of several seeds the median counts. A scheme \
that takes 20 times as long as auto, or gives the nodes 3 times as much to do, is given up.

Each cell has two verdicts, by time and by the root's bytes, the latter against those schemes \
alone that are no slower than auto by more than 5 %: better (or the same), within 5 %, or worse. \
The exit code is 1 if any is worse.";

const COMPARE_EXAMPLES: &str = "\
Examples:
  fabricast-lab sim compare --nodes 8,64 --sizes 4,2K,64K
      minutes become seconds
  fabricast-lab sim compare --nodes 1024 --sizes 16M --loss 1,1x8 --chunk 8900 --seeds 1
      one large broadcast, in jumbo frames, on one seed
  fabricast-lab sim compare --nodes 16384 --sizes 64K --schemes 'window,coroot(2048)' --markdown
      against two schemes, as a table to be kept";

const PAPERS_LONG: &str = "\
Run the papers' experiments in the simulator, each by its paper's own method, and judge their \
claims.

Prints a table for each experiment and a verdict for each claim: the paper's number, its model's, \
the simulation's, and whether the claim is held (within 10 %, or its bound kept), calibrated \
(held, and values were fitted to it, or the place was searched that the text does not name) or \
not held, with the reason. The same protocol code and \
schemes as live, on hosts that cost what the calibration says (`fabricast-lab model --values`). \
Deterministic: the same numbers every time.";

const PAPERS_EXAMPLES: &str = "\
Examples:
  fabricast-lab papers                     everything: a minute or so
  fabricast-lab papers p4 --quick          a look at P4's, in seconds
  fabricast-lab papers p3                  P3's protocol for files beside unicast
  fabricast-lab papers p5                  a new communicator's first broadcasts, by how it gets
                                           its multicast address
  fabricast-lab papers --html report.html  verdicts, plots, methods and calibration in one file
  fabricast-lab papers --answer 10.0.0.1   on 10.0.0.2 and 10.0.0.3; then, on 10.0.0.1:
  fabricast-lab papers p2 --live 10.0.0.2,10.0.0.3
                                           P2's round trips here beside simulated ones";

const MODEL_LONG: &str = "\
Print what the papers' models say about broadcasts and barriers, without simulating anything.

The values come from one calibration for each paper's cluster (--values prints them with unit and \
origin). A number marked * is calibrated: values were fitted to that very number, so it shows \
nothing. All others are predictions, some of them from fitted values. After the tables stand the \
papers' own results beside the model's; --claims prints those alone.";

const MODEL_EXAMPLES: &str = "\
Examples:
  fabricast-lab model
      broadcast on InfiniBand as the first paper models it, on 8, 64 and 1024 nodes
  fabricast-lab model --nodes 16,256,4096 --sizes 4,1K --groups 2,32,512
      other nodes, sizes and numbers of groups (the root's own included)
  fabricast-lab model --calibration p4 --channels 2,16,64 --per-node 4
      broadcasts over channels, four processes on a node
  fabricast-lab model --calibration p2 --nodes 64,4096 --ways 1,3,7
      barriers with that many partners in a round
  fabricast-lab model --set t_pp_us=5 --set switch_us=0.1
      what if; --values lists the names";

const AGENT_LONG: &str = "\
Read requests from standard input, one a line, and print news as JSON, one a line.

Needs libibumad and an InfiniBand port, or a simulated one (testbed/opensm). At the end of the \
input the agent leaves every address, and ends when the manager has confirmed that.

Requests:
  create ADDRESS [for GID]   join an IP multicast address; create its group if need be
  join ADDRESS [for GID]     join an address whose group exists
  leave ADDRESS [for GID]    undo one of these
  fabric                     look for all hosts and switches
  tables MLID                read the switches' multicast tables up to this multicast LID
GID is another host's port; without it the request is for this host's.";

const AGENT_EXAMPLE: &str = "\
Example:
  { echo create 239.1.1.1; sleep 1; } | fabricast-lab subnet agent";

const MEASURE_LONG: &str = "\
Measure how long creates, joins and leaves take at an InfiniBand subnet manager (P5.5): until the \
manager's answer, and until the switches' tables lead from every member to every other one and to \
nobody else.

This host creates a group and joins all other members by proxy, at once. Then one member leaves \
and joins again, and all leave. After the last answer the tables are read again and again by \
subnet management packets, all switches at once, until they are right: so a time of tables is too \
long by up to one reading, whose length is printed. One line of JSON for each size and operation, \
times in microseconds.

Needs libibumad and an InfiniBand port, or a simulated one (testbed/opensm). No other host may \
join groups meanwhile.";

const MEASURE_EXAMPLE: &str = "\
Example:
  testbed/opensm/fabric up 32
  testbed/opensm/fabric exec h1 -- $PWD/target/release/fabricast-lab subnet measure";

const CHECK_LONG: &str = "\
Check that the switches' multicast tables lead to these groups of hosts and to nobody else.

Each multicast LID in the tables must lead to exactly the hosts of one group, and each group must \
have a multicast LID of its own. From every host of a group the tables are followed: they must \
deliver one copy to every other host of the group, and none to anybody else. Without groups the \
tables must be empty. Exits 0 if that is so, else 1 with what is wrong.

Needs libibumad and an InfiniBand port, or a simulated one (testbed/opensm). A group of one host \
has no entries at OpenSM, so give none.";

const CHECK_EXAMPLE: &str = "\
Example:
  fabricast-lab subnet check h1,h2,h9 h3,h4";

/// Models, simulations and comparisons of what Fabricast does, and the papers' results beside them.
#[derive(Parser, Debug)]
#[command(name = "fabricast-lab", version, after_help = EXAMPLES, max_term_width = 100)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run the protocol in the simulator
    Sim(Sim),
    /// Print what the papers' models predict, and what they were calibrated with
    #[command(long_about = MODEL_LONG, after_help = MODEL_EXAMPLES)]
    Model(Model),
    /// Run the papers' experiments in the simulator, and judge their claims
    #[command(long_about = PAPERS_LONG, after_help = PAPERS_EXAMPLES)]
    Papers(Papers),
    /// Join multicast addresses at an InfiniBand subnet manager, and read the switches' tables
    Subnet(Subnet),
}

#[derive(clap::Args, Debug)]
pub struct Subnet {
    #[command(subcommand)]
    pub command: SubnetCommand,
}

#[derive(Clone, Subcommand, Debug)]
pub enum SubnetCommand {
    /// Read requests from standard input, one a line, and print news as JSON, one a line
    #[command(long_about = AGENT_LONG, after_help = AGENT_EXAMPLE)]
    Agent {
        /// Partition of the groups, with the bit of full members (0x8000)
        #[arg(long, value_name = "KEY", default_value = "0xffff", value_parser = p_key)]
        p_key: u16,
    },
    /// Measure how long creates, joins and leaves take, until the manager's answer and until the
    /// last switch's table is right
    #[command(long_about = MEASURE_LONG, after_help = MEASURE_EXAMPLE)]
    Measure {
        /// Sizes of groups, this host included
        #[arg(
            long,
            value_name = "N,…",
            value_delimiter = ',',
            default_value = "2,4,8,16,32",
            value_parser = clap::value_parser!(u32).range(2..=1024),
        )]
        members: Vec<u32>,
        /// How often each size is measured
        #[arg(
            long,
            value_name = "N",
            default_value_t = 20,
            value_parser = clap::value_parser!(u32).range(1..=1000),
        )]
        repeat: u32,
    },
    /// Print the hosts and switches of the fabric, and the switches' multicast tables
    Tables,
    /// Check that the switches' multicast tables lead to these groups of hosts and to nobody else
    #[command(long_about = CHECK_LONG, after_help = CHECK_EXAMPLE)]
    Check {
        /// Hosts of a group, by name; a set that is given twice is two groups
        #[arg(value_name = "HOST,…")]
        groups: Vec<String>,
    },
}

/// Parses the key of a partition, in hex.
fn p_key(s: &str) -> Result<u16, String> {
    let digits = s.trim_start_matches("0x");
    u16::from_str_radix(digits, 16).map_err(|_| "needs up to four hex digits, e.g. 0x8001".into())
}

#[derive(clap::Args, Debug)]
pub struct Sim {
    #[command(subcommand)]
    pub command: SimCommand,
}

#[derive(Subcommand, Debug)]
pub enum SimCommand {
    /// Print what the protocol costs and reaches: packets, goodput by loss, convergence, a late
    /// receiver
    Table {
        /// More cells and longer transfers (minutes)
        #[arg(long)]
        full: bool,
    },
    /// Measure how fast the simulator is on this machine: seconds for a broadcast, events per
    /// second
    Bench {
        /// How often each run is timed; the median counts
        #[arg(
            long,
            value_name = "N",
            default_value_t = 11,
            value_parser = clap::value_parser!(u32).range(1..),
        )]
        times: u32,
    },
    /// Run one seed and print what happens, one line per transition
    Run {
        /// The seed
        seed: u64,
        #[command(flatten)]
        kind: Kind,
    },
    /// Run many seeds with all kinds of faults, each judged by the checkers
    Soak {
        /// How many seeds
        #[arg(
            long,
            value_name = "N",
            default_value_t = 1000,
            value_parser = clap::value_parser!(u64).range(1..),
        )]
        seeds: u64,
        /// The first seed
        #[arg(long, value_name = "SEED", default_value_t = 0)]
        from: u64,
        /// How many runs at once; 0: as many as there are processors
        #[arg(
            long,
            value_name = "N",
            default_value_t = 0,
            value_parser = clap::value_parser!(u16).range(..=THREADS_MAX),
        )]
        threads: u16,
        #[command(flatten)]
        kind: Kind,
    },
    /// Compare auto with the papers' schemes by nodes, size and loss
    #[command(long_about = COMPARE_LONG, after_help = COMPARE_EXAMPLES)]
    Compare(Compare),
}

/// What is special about the runs of seeds.
#[derive(clap::Args, Clone, Copy, Debug)]
#[group(multiple = false)]
pub struct Kind {
    /// Over a network that reads datagrams late and gives their memory back out of order
    #[arg(long)]
    pub delayed: bool,
    /// With hosts that begin to send by other multicast addresses again and again
    #[arg(long)]
    pub readdressed: bool,
    /// With receivers that join and leave in the midst of broadcasts
    #[arg(long)]
    pub joined: bool,
    /// With receivers that take less than the others, of which the sender leaves some behind
    #[arg(long)]
    pub outpaced: bool,
    /// With streams of one host that share its fixed rate by weights
    #[arg(long)]
    pub weighted: bool,
    /// With files by P3's protocol, to receivers that join and leave while files expire
    #[arg(long)]
    pub files: bool,
    /// With communicators that get their multicast addresses from a subnet manager
    #[arg(long)]
    pub subnet: bool,
}

/// Largest number of threads: every run has memory and a thread of its own.
const THREADS_MAX: i64 = 1024;

/// Parses the size of a broadcast. It is limited: the simulator keeps a state for each packet at
/// each node.
fn simulated_size(s: &str) -> Result<u64, String> {
    match units::size(s)? {
        n if n <= 1 << 30 => Ok(n),
        _ => Err("at most 1G can be simulated".into()),
    }
}

#[derive(clap::Args, Debug)]
pub struct Compare {
    /// Numbers of hosts, the root among them
    #[arg(
        long,
        value_name = "N,…",
        value_delimiter = ',',
        default_value = "8,64,1024",
        value_parser = clap::value_parser!(u32).range(3..=65_536),
    )]
    pub nodes: Vec<u32>,
    /// Sizes of the broadcast
    #[arg(
        long,
        value_name = "BYTES,…",
        value_delimiter = ',',
        default_value = "4,2K,64K,16M",
        value_parser = simulated_size,
    )]
    pub sizes: Vec<u64>,
    /// Losses in per cent; 1x8: in bursts of 8 packets on average
    #[arg(
        long,
        value_name = "PCT,…",
        value_delimiter = ',',
        default_value = "0,0.1,1,5,0.1x8,1x8,5x8"
    )]
    pub loss: Vec<Loss>,
    /// Schemes beside auto, as `send --scheme` has them [default: ten of the papers']
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub schemes: Vec<Named>,
    /// Runs of each scheme; the median counts
    #[arg(
        long,
        value_name = "N",
        default_value_t = 5,
        value_parser = clap::value_parser!(u64).range(1..=1000),
    )]
    pub seeds: u64,
    /// Payload of a data packet in bytes
    #[arg(
        long = "chunk",
        value_name = "BYTES",
        default_value_t = 1440,
        value_parser = clap::value_parser!(u32).range(64..=8900),
    )]
    pub payload_size: u32,
    /// How many runs at once; 0: as many as there are processors
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        value_parser = clap::value_parser!(u16).range(..=THREADS_MAX),
    )]
    pub threads: u16,
    /// Tables as Markdown, with the command that made them
    #[arg(long, conflicts_with = "json")]
    pub markdown: bool,
    /// A line of JSON for each cell, as soon as it is known
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Calibrated {
    /// Broadcast over InfiniBand's multicast, 8 nodes
    P1,
    /// The n-way dissemination barrier, 64 nodes
    P2,
    /// LA-MPI's broadcast over Quadrics, 8 and 64 nodes
    P4,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Paper {
    /// Broadcast over InfiniBand's multicast
    P1,
    /// The n-way dissemination barrier
    P2,
    /// Files by multicast and reliable connections
    P3,
    /// LA-MPI's broadcast over Quadrics
    P4,
    /// Multicast groups of a subnet manager for new communicators
    P5,
}

#[derive(clap::Args, Debug)]
pub struct Papers {
    /// Paper whose experiments run [default: all]
    #[arg(value_enum)]
    pub paper: Option<Paper>,
    /// Fewer sizes, nodes and repetitions: seconds instead of a minute
    #[arg(long)]
    pub quick: bool,
    /// Write the report (report.html) and every plot (NAME.svg) into this directory
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Write the report to this file, which contains its plots and needs no other file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Tables and verdicts as JSON, one line each
    #[arg(long)]
    pub json: bool,
    /// With P2's experiments: its ping-pong on the real network, too, with these hosts, on each of
    /// which `fabricast-lab papers --answer` runs
    #[arg(long, value_name = "ADDR,…", value_delimiter = ',')]
    pub live: Vec<IpAddr>,
    /// Instead of all that: answer the host at this address, which runs --live, until interrupted
    #[arg(long, value_name = "ADDR", exclusive = true)]
    pub answer: Option<IpAddr>,
}

#[derive(clap::Args, Debug)]
pub struct Model {
    /// Paper whose cluster is modelled
    #[arg(long, value_enum, value_name = "PAPER", default_value = "p1")]
    pub calibration: Calibrated,
    /// Numbers of nodes [default: those that the paper looks at]
    #[arg(
        long,
        value_name = "N,…",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u64).range(2..=1 << 20),
    )]
    pub nodes: Vec<u64>,
    /// Sizes, e.g. 4,2K,1M (p1, p4) [default: those that the paper looks at]
    #[arg(long, value_name = "BYTES,…", value_delimiter = ',', value_parser = units::size)]
    pub sizes: Vec<u64>,
    /// Numbers of groups, co-roots and the root (p1) [default: 2,8,128]
    #[arg(
        long,
        value_name = "K,…",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u64).range(1..=1 << 20),
    )]
    pub groups: Vec<u64>,
    /// Numbers of channels (p4) [default: 2,4,8,16,32]
    #[arg(
        long,
        value_name = "C,…",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u64).range(1..=1 << 20),
    )]
    pub channels: Vec<u64>,
    /// Processes on each node (p4) [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub per_node: Option<u64>,
    /// Partners in a round of the barrier (p2) [default: 1,2,3,7,15]
    #[arg(
        long,
        value_name = "N,…",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u64).range(1..=1 << 20),
    )]
    pub ways: Vec<u64>,
    /// Use this value instead of the calibrated one; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = assignment)]
    pub set: Vec<(String, f64)>,
    /// Print the calibrated values, each with unit, kind and origin, and nothing else
    #[arg(long, conflicts_with = "claims")]
    pub values: bool,
    /// Print the paper's results beside the model's, and nothing else
    #[arg(long)]
    pub claims: bool,
    /// Everything as JSON, one line each
    #[arg(long)]
    pub json: bool,
}

/// Parses an assignment such as `t_pp_us=7.5`.
fn assignment(s: &str) -> Result<(String, f64), String> {
    let Some((name, value)) = s.split_once('=') else {
        return Err("needs a name and a value, e.g. t_pp_us=7".into());
    };
    match value.trim().parse() {
        Ok(value) => Ok((name.trim().to_owned(), value)),
        Err(_) => Err(format!("{value:?} is not a number, e.g. t_pp_us=7")),
    }
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
    fn assignments() {
        assert_eq!(assignment("t_pp_us=7.5"), Ok(("t_pp_us".into(), 7.5)));
        for bad in ["t_pp_us", "t_pp_us=", "t_pp_us=x"] {
            assert!(assignment(bad).is_err(), "{bad}");
        }
    }
}
