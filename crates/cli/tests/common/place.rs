//! The place of an attack: addresses of the loopback, or hosts of a cluster.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::process::Command;

use super::{FABRICAST, Run};

/// Three hosts or more. Host 1 sends, host 2 receives, and host 3 attacks or is attacked.
pub trait Place: Sync {
    /// The address of this host.
    fn ip(&self, host: usize) -> Ipv4Addr;

    /// The address of this host by IPv6.
    fn ip6(&self, host: usize) -> Ipv6Addr;

    /// The interface that has both addresses.
    fn interface(&self) -> &'static str;

    /// Runs this in a thread on the host, so that its sockets are on the host.
    fn on<T: Send>(&self, host: usize, act: impl FnOnce() -> T + Send) -> T;

    /// The command that runs this program on the host, to which its arguments are added.
    fn launch(&self, host: usize, program: &str) -> Command;

    /// Starts the command on the host.
    fn start(&self, host: usize, args: &[&str]) -> Run {
        let mut command = self.launch(host, FABRICAST);
        command.args(args);
        Run::spawn(command)
    }

    /// A listening sender on host 1, and its address for `--from`.
    fn sender(&self, source: &Path, args: &[&str]) -> (Run, String) {
        self.sender_by(&self.ip(1).to_string(), source, args)
    }

    /// A listening sender on host 1 that uses this interface, and its address for `--from`.
    fn sender_by(&self, interface: &str, source: &Path, args: &[&str]) -> (Run, String) {
        let file = ["send", source.to_str().unwrap(), "--json", "--port", "0"];
        let fixed = [&file[..], &["--interface", interface]].concat();
        let mut run = self.start(1, &[&fixed[..], args].concat());
        let listening = run.until("listening", |_| true);
        let address = listening["address"].as_str().unwrap().to_owned();
        (run, address)
    }

    /// A receiver called `name` on host 2 that writes to `dest`.
    fn receiver(&self, from: &str, name: &str, dest: &Path, args: &[&str]) -> Run {
        self.receiver_on(2, from, name, dest, args)
    }

    /// A receiver called `name` on this host that writes to `dest`.
    fn receiver_on(&self, host: usize, from: &str, name: &str, dest: &Path, args: &[&str]) -> Run {
        let dest = dest.to_str().unwrap();
        let fixed = ["recv", dest, "--json", "--from", from, "--as", name];
        self.start(host, &[&fixed, args].concat())
    }
}

/// One machine. Hosts 1 and 2 share an address.
pub struct Loopback;

impl Place for Loopback {
    fn ip(&self, host: usize) -> Ipv4Addr {
        match host {
            3 => Ipv4Addr::new(127, 0, 0, 99),
            _ => Ipv4Addr::LOCALHOST,
        }
    }

    fn ip6(&self, _: usize) -> Ipv6Addr {
        Ipv6Addr::LOCALHOST
    }

    fn interface(&self) -> &'static str {
        "lo"
    }

    fn on<T: Send>(&self, _: usize, act: impl FnOnce() -> T + Send) -> T {
        act()
    }

    fn launch(&self, _: usize, program: &str) -> Command {
        Command::new(program)
    }
}
