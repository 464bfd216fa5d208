//! The command line of `fabricast copy`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use fabricast_console::units;

use super::sending::Sending;

/// The long text of `--help`.
pub const LONG: &str = "\
Copy files and directories to many hosts at once.

The command starts `fabricast recv --dir DEST` on each host, sends the data to all of them once, \
by UDP multicast, and ends when all have them or have failed. It leaves nothing running: receivers \
end when this command ends, however it ends.

HOSTS is a list such as node[01-32,40],head. @FILE reads a list from a file, one or more names a \
line. With no HOSTS (:DEST) the list is $SLURM_JOB_NODELIST. An IPv6 address stands in brackets.

DEST is a directory, which is made if it does not exist; with ssh it is relative to the remote \
home directory. Each host needs `fabricast` of the same version, and must reach this host by TCP \
and UDP.

Hosts are reached by ssh, which must not ask for anything; within a Slurm job by srun; or by any \
command (--launch).";

/// The usage line. Sources and hosts are one argument, so that options may stand between them.
pub const USAGE: &str = "fabricast copy [OPTIONS] <SOURCE>... <HOSTS:DEST>";

/// The examples of `--help`.
pub const EXAMPLES: &str = "\
Examples:
  fabricast copy image.iso 'node[1-32,40]:/scratch'
      copy a file into /scratch of 33 hosts; quote the brackets from the shell
  fabricast copy dataset @hosts.txt:data --force
      copy a tree into ~/data/dataset of the hosts in a file, and replace what is there
  fabricast copy weights.bin :/tmp
      within a Slurm job: into /tmp of all its nodes
  fabricast copy big.tar 'node[1-8]:' --min-receivers 6 --start-timeout 30s
      wait at most 30 s for the hosts, and go on if six are there
  fabricast copy big.tar 'node[1-8]:/tmp' --launch 'ssh -o BatchMode=yes -p 2222 {host}'
      start the receivers by another command

Exit codes: as those of `fabricast send`. 4 if a host does not have the files, 3 if too few \
receivers came; the table names the exit code of each host's launcher and its last lines.

Values:
  TIME   500ms, 10s, 2m or 1h; a bare number means seconds
  BYTES  1472, 64K, 256M or 1G (powers of 1024), or 1GB (powers of 1000)
  RATE   500Mbit or 60MB/s; a bare 500M means bits per second
  PCT    1 or 1%, at most 90";

#[derive(clap::Args, Debug)]
pub struct Copy {
    /// SOURCE...: the files and directories to copy; last HOSTS:DEST, the hosts and the directory
    /// there
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Name of the file that is sent from standard input, for the receivers [default: stdin]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// The command that runs another command on a host [default: ssh; within a Slurm job: srun]
    ///
    /// It is split into words as a shell does, but no shell runs it. {host} stands for the host's
    /// name. The receiver's command is added as further words: as they are, or, if the command is
    /// called ssh, quoted for the remote shell, since ssh joins them. The command must pass its
    /// standard input on.
    #[arg(long, value_name = "COMMAND", help_heading = "Hosts")]
    pub launch: Option<String>,
    /// The command `fabricast` on the hosts [default: found by the PATH there]
    #[arg(
        long,
        value_name = "PATH",
        default_value = "fabricast",
        hide_default_value = true,
        help_heading = "Hosts"
    )]
    pub remote_fabricast: OsString,
    /// Send only if this many receivers come
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..),
        help_heading = "Hosts",
    )]
    pub min_receivers: u32,
    /// Wait at most this long for receivers; then go on with those that are there
    #[arg(
        long,
        value_name = "TIME",
        value_parser = units::duration,
        default_value = "1m",
        help_heading = "Hosts",
    )]
    pub start_timeout: Duration,
    /// TCP port where receivers connect; 0 takes any free port
    #[arg(long, default_value_t = 0, help_heading = "Hosts")]
    pub port: u16,
    /// On the hosts, replace files that exist
    ///
    /// What all hosts have already is not sent again: files with the sender's length and time are
    /// read there, and compared by hashes. If one host has nothing of the set, all of it is sent.
    #[arg(short, long, help_heading = "Receivers")]
    pub force: bool,
    /// Delete what is in the directories that are sent and is not sent, when all is there
    #[arg(long, help_heading = "Receivers")]
    pub delete: bool,
    /// On the hosts, do not wait until the files are on the disk (fsync)
    #[arg(long, help_heading = "Receivers")]
    pub no_sync: bool,
    /// On the hosts, give receivers that come late what is there already
    #[arg(long, help_heading = "Receivers")]
    pub serve: bool,
    /// On the hosts, free space that must remain on the file system [default: 1 % of it, and at
    /// least 64M]
    #[arg(long, value_name = "BYTES", value_parser = units::size, help_heading = "Receivers")]
    pub reserve: Option<u64>,
    /// On the hosts, give up if no data has arrived for this long; 0 waits for ever
    #[arg(
        long,
        value_name = "TIME",
        value_parser = units::duration,
        default_value = "10m",
        help_heading = "Receivers",
    )]
    pub receive_timeout: Duration,
    #[command(flatten)]
    pub how: Sending,
}
