//! Options of every transfer.

use std::time::Duration;

use clap::ArgAction;
use fabricast::ibrmp;
use fabricast::interface::Interface;
use fabricast::proto::Scheme;
use fabricast_console::units;

/// Options that `send`, `copy` and `recv` share.
#[derive(clap::Args, Debug, Clone)]
pub struct Net {
    /// Interface for the data, by name or address [default: the one of the control connection]
    ///
    /// On the sender it also selects where receivers can connect. Give it on hosts with several
    /// networks.
    #[arg(
        long,
        value_name = "IF|ADDR",
        default_value = "auto",
        hide_default_value = true
    )]
    pub interface: Interface,
    /// Largest datagram in bytes, 512 to 65507 [default: what the interfaces' MTU allows]
    ///
    /// Give it (for example 1472) if a link on the way has a smaller MTU than the interfaces.
    #[arg(long, value_name = "BYTES", value_parser = units::size)]
    pub datagram: Option<u64>,
    /// Do not let the kernel split and join datagrams (GSO, GRO)
    ///
    /// Offload saves CPU time, so this is for tests and comparisons.
    #[arg(long)]
    pub no_offload: bool,
    /// Drop this percentage of datagrams on purpose, both sent and received, to see repairs at work
    /// [default: 0]
    #[arg(
        long,
        value_name = "PCT",
        default_value = "0",
        hide_default_value = true,
        value_parser = units::percent,
    )]
    pub inject_loss: f64,
    /// Change a bit in this percentage of the received datagrams
    #[arg(
        long,
        value_name = "PCT",
        default_value = "0",
        hide = true,
        value_parser = units::percent,
    )]
    pub inject_corruption: f64,
    /// Read each datagram up to this late, and give its memory back as late again, as a device does
    #[arg(long, value_name = "TIME", hide = true, value_parser = units::duration)]
    pub inject_delay: Option<Duration>,
    /// Send over an emulated link of this rate
    #[arg(long, value_name = "RATE", hide = true, value_parser = units::rate)]
    pub emulate_link: Option<u64>,
    /// Print events as JSON on standard output, one per line, for scripts
    ///
    /// The lines for people are not printed, and nothing is asked.
    #[arg(long)]
    pub json: bool,
    /// Print nothing but errors; nothing is asked
    #[arg(short, long)]
    pub quiet: bool,
    /// Print path changes and membership on standard error; -vv: also retransmissions; -vvv: also
    /// each message of --scheme ibrmp
    ///
    /// The variable FABRICAST_LOG chooses more precisely and goes before this option: a level (info
    /// or debug), or modules with levels, such as info,fabricast::driver=debug.
    #[arg(short, long, action = ArgAction::Count, conflicts_with = "quiet")]
    pub verbose: u8,
}

/// Checks the name of a scheme, or of P3's protocol.
pub fn scheme(name: &str) -> Result<String, String> {
    if !ibrmp::is_meant(name) {
        name.parse::<Scheme>()
            .map_err(|e| format!("{e}, or {} alone", ibrmp::NAME))?;
    }
    Ok(name.to_string())
}
