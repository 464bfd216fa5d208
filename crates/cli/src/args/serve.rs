//! The command line of `fabricast serve`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Arg;
use fabricast::bootstrap::PORT;
use fabricast::config::PER_HOST;
use fabricast::feed::AT_ONCE_MAX;
use fabricast::pattern::Pattern;
use fabricast_console::units;

use super::follow::metrics_address;
use super::sending::{IBRMP_ONLY, Sending, streams_help};

/// The long text of `--help`.
pub const LONG: &str = "\
Send what is published in a directory to all hosts that follow it, until stopped.

Each file or directory directly in DIR is an entry of the feed. When an entry is new or has \
changed, and then been quiet for --settle, it is sent to the followers that are there \
(`fabricast recv --follow`), once to all of them. A follower that comes later, or was away, gets \
what it lacks as soon as there is a place for it (--at-once). What all followers have is not sent.

Publish by rename: write to a hidden name (.new) or NAME.part in DIR, then rename. The feed leaves \
out names that begin with a dot or end in .part or .partial, also within directories, so rsync's \
temporary files do not matter.

A slow follower does not hold the others back: without --slow the rule is demote. A failed \
receiver, no receiver, or a file that changes while it is sent does not end the feed: it is \
reported, and the entry is sent again. The first Ctrl-C or SIGTERM ends the feed in order, with \
exit code 0.";

/// The examples of `--help`.
pub const EXAMPLES: &str = "\
Examples:
  fabricast serve /srv/images
      the feed `images`; on each host: fabricast recv --dir /srv --from HOST --follow
  fabricast serve /srv/images --interface eth1 --rate 500Mbit --metrics 9641
      use this interface and at most this rate; metrics at http://127.0.0.1:9641/metrics
  mv /srv/images/.new /srv/images/node.img
      publish a file that is complete

Values:
  TIME   500ms, 10s, 2m or 1h; a bare number means seconds
  BYTES  1472, 64K, 256M or 1G (powers of 1024), or 1GB (powers of 1000)
  RATE   500Mbit or 60MB/s; a bare 500M means bits per second
  PCT    1 or 1%, at most 90";

/// An option of a sender as a feed has it. Those that it refuses are not listed.
fn of_a_feed(arg: Arg) -> Arg {
    match arg.get_id().as_str() {
        "slow" => slow_of_a_feed(arg),
        "scheme" => arg.long_help(streams_help()),
        "rate" => {
            let text = "Fixed rate of all transfers together, data and repairs [default: as fast \
                        as the slowest receiver can take]";
            let long = format!(
                "{text}\n\nGive it to leave the rest of a link to others. A transfer that is alone \
                 has the whole rate. Those that have something to send at the same time share it; \
                 one with an entry that --first names has four times the share of another. A rate \
                 above the slowest link's only causes losses."
            );
            arg.help(text).long_help(long)
        }
        name if IBRMP_ONLY.contains(&name) => arg.hide(true),
        _ => arg,
    }
}

/// The help of `--slow`, with the default of a feed in place of that of one transfer.
fn slow_of_a_feed(arg: Arg) -> Arg {
    let text = arg.get_long_help().or(arg.get_help());
    let text = text.map(ToString::to_string).unwrap_or_default();
    let (before, default) = text.split_once("[default:").unwrap_or((&text, ""));
    let after = default.split_once(']').map_or("", |(_, after)| after);
    let text = format!("{before}[default: demote]{after}");
    let short = text.split("\n\n").next().unwrap_or_default().to_owned();
    arg.help(short).long_help(text)
}

#[derive(clap::Args, Debug)]
#[command(mut_args(of_a_feed))]
pub struct Serve {
    /// The directory whose files and directories are published
    pub dir: PathBuf,
    /// The feed's name: that of its directory at the followers [default: DIR's name]
    #[arg(long, value_name = "NAME", help_heading = "Feed")]
    pub name: Option<String>,
    /// How long an entry must be quiet before it is sent
    #[arg(
        long,
        value_name = "TIME",
        value_parser = units::duration,
        default_value = "1s",
        help_heading = "Feed",
    )]
    pub settle: Duration,
    /// How often to look for changes that the kernel does not tell of, such as those that other
    /// hosts make on a network file system
    #[arg(
        long,
        value_name = "TIME",
        value_parser = units::duration,
        default_value = "1m",
        help_heading = "Feed",
    )]
    pub rescan: Duration,
    /// TCP port where followers connect; 0 takes any free port
    #[arg(long, default_value_t = PORT, help_heading = "Feed")]
    pub port: u16,
    /// Send up to N publications at the same time, one of them short
    ///
    /// A publication is short if its entries have at most 4 MiB each, and long otherwise. One place
    /// is kept for short ones, so that they do not wait for long ones; the others are for long
    /// ones, which share the network. With 1 every publication waits for the one before. A follower
    /// takes part in as many as its own --at-once says: raise that, too.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 2,
        value_parser = clap::value_parser!(u8).range(1..=AT_ONCE_MAX as i64),
        help_heading = "Feed",
    )]
    pub at_once: u8,
    /// Entries whose names match go before others of their class, short or long; may be repeated
    ///
    /// Quote the pattern, which is as that of --exclude. What is under way is not interrupted.
    #[arg(long, value_name = "PATTERN", help_heading = "Feed")]
    pub first: Vec<Pattern>,
    /// TCP port of the transfers, the first of as many as --at-once says; 0 takes any free ports
    ///
    /// Give it if a firewall lets only certain ports pass.
    #[arg(long, default_value_t = 0, help_heading = "Feed")]
    pub data_port: u16,
    /// Admit at most this many followers from one address
    #[arg(
        long,
        value_name = "N",
        default_value_t = PER_HOST as u32,
        value_parser = clap::value_parser!(u32).range(1..),
        help_heading = "Feed",
    )]
    pub per_host: u32,
    /// Serve metrics for Prometheus by HTTP at this address; a port alone: on the loopback
    #[arg(
        long,
        value_name = "[ADDR:]PORT",
        value_parser = metrics_address,
        help_heading = "Feed",
    )]
    pub metrics: Option<SocketAddr>,
    #[command(flatten)]
    pub how: Sending,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    /// A feed lists neither P3's protocol nor the options for that, which it refuses.
    #[test]
    fn what_a_feed_refuses_is_not_listed() {
        let mut command = crate::args::Args::command();
        command.build();
        let mut help = |name| {
            let command = command.find_subcommand_mut(name).unwrap();
            let help = command.render_long_help().to_string();
            help.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        let (serve, send) = (help("serve"), help("send"));
        assert!(send.contains("ibrmp") && send.contains("--workers"));
        assert!(!serve.contains("--workers") && !serve.contains("--file-timeout"));
        assert!(!serve.contains("With --scheme ibrmp:") && !serve.contains("P3's protocol"));
        let shares = "at the same time share it";
        assert!(serve.contains(shares) && !send.contains(shares));
    }

    /// Each command tells its own default, in the list of options and in the long text.
    #[test]
    fn a_feed_has_another_rule_for_slow_receivers() {
        let mut command = crate::args::Args::command();
        command.build();
        for (name, default) in [
            ("serve", "[default: demote]"),
            ("send", "[default: wait if"),
        ] {
            let command = command.find_subcommand(name).unwrap();
            let mut arguments = command.get_arguments();
            let slow = arguments.find(|a| a.get_long() == Some("slow")).unwrap();
            for text in [slow.get_help(), slow.get_long_help()] {
                let text = text.unwrap().to_string().replace('\n', " ");
                assert!(text.contains(default), "{name}: {text}");
                assert_eq!(text.matches("[default").count(), 1, "{name}: {text}");
            }
            let text = slow.get_long_help().unwrap().to_string();
            assert!(text.contains("drop    drop it at once"), "{text}");
        }
    }
}
