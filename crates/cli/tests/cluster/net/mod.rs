//! A cluster of network namespaces for one test, and the command on its hosts: h1 sends, h2 and the
//! following hosts receive.

use std::fs::File;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;

use crate::common::place::Place;
use crate::common::{End, FABRICAST, Run, Scratch, same};

mod cluster;

pub use cluster::Cluster;

impl Cluster {
    /// Starts the command on a host.
    pub fn start(&self, host: &str, args: &[&str]) -> Run {
        Run::spawn(self.command(host, args))
    }

    /// Builds the command for a host, without starting it.
    pub fn command(&self, host: &str, args: &[&str]) -> Command {
        let mut command = self.exec(host, FABRICAST);
        command.args(args);
        command
    }

    /// Runs another program on a host to its end. Returns its output.
    #[track_caller]
    pub fn program(&self, host: &str, args: &[&str]) -> String {
        self.run(&[&["exec", host, "--"], args].concat())
    }

    /// Runs this in a thread on a host, so that its sockets are on the host.
    pub fn on<T: Send>(&self, host: &str, act: impl FnOnce() -> T + Send) -> T {
        let place = File::open(self.namespace(host)).unwrap();
        let enter = || {
            let kind = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(place.as_fd(), kind).unwrap();
            act()
        };
        std::thread::scope(|scope| scope.spawn(enter).join().unwrap())
    }

    /// A host that joins the group and forges datagrams of this kind in the sender's name, as soon
    /// as it hears the sender.
    pub fn forge(&self, host: &str, kind: &str, (group, port): (&str, &str)) -> Run {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cluster/net/forge.py");
        let address = self.address(host, 4);
        let mut command = self.exec(host, "python3");
        command.args([script, kind, group, port, &address]);
        let mut run = Run::spawn(command);
        run.until("hears", |_| true);
        run
    }

    /// A sender on h1.
    pub fn send(&self, source: &Path, args: &[&str]) -> Run {
        let source = source.to_str().unwrap();
        let mut fixed = vec!["send", source, "--json"];
        if !args.contains(&"--interface") {
            fixed.extend(["--interface", "eth0"]);
        }
        self.start("h1", &[&fixed, args].concat())
    }

    /// A receiver on a host, with the host's name. It receives from `h1` in `family` (4 or 6), or
    /// from any announced sender (0). It does not flush the data to the disk, which is no matter of
    /// the network.
    pub fn recv(&self, host: &str, dest: &Path, family: u8) -> Run {
        self.recv_with(host, dest, family, &[])
    }

    /// Like [`Cluster::recv`], with further options.
    pub fn recv_with(&self, host: &str, dest: &Path, family: u8, options: &[&str]) -> Run {
        let mut args = vec!["recv", dest.to_str().unwrap(), "--json", "--no-sync"];
        args.extend(["--as", host]);
        let address = (family != 0).then(|| self.address("h1", family));
        if let Some(address) = &address {
            args.extend(["--from", address]);
        } else {
            args.push("--any");
        }
        args.extend(options);
        self.start(host, &args)
    }

    pub fn stat(&self) -> Stat {
        Stat(serde_json::from_str(&self.run(&["stat", "--json"])).unwrap())
    }
}

impl Place for Cluster {
    fn ip(&self, host: usize) -> Ipv4Addr {
        self.address(&format!("h{host}"), 4).parse().unwrap()
    }

    fn ip6(&self, host: usize) -> Ipv6Addr {
        self.address(&format!("h{host}"), 6).parse().unwrap()
    }

    fn interface(&self) -> &'static str {
        "eth0"
    }

    fn on<T: Send>(&self, host: usize, act: impl FnOnce() -> T + Send) -> T {
        Cluster::on(self, &format!("h{host}"), act)
    }

    fn launch(&self, host: usize, program: &str) -> Command {
        self.exec(&format!("h{host}"), program)
    }
}

/// Counters of hosts and ports.
pub struct Stat(Value);

impl Stat {
    fn get(&self, host: &str, key: &str) -> u64 {
        self.0[host][key].as_u64().unwrap()
    }

    /// Ethernet bytes that h1 has sent.
    pub fn root_bytes(&self) -> u64 {
        self.get("h1", "tx_bytes")
    }

    /// Ethernet bytes that have entered this host's port.
    pub fn entered(&self, host: &str) -> u64 {
        self.get(host, "rx_bytes")
    }

    pub fn root_packets(&self) -> u64 {
        self.get("h1", "tx_packets")
    }

    /// Packets that queues dropped on the way from h1 to the host with the most losses.
    pub fn worst_drops(&self) -> u64 {
        let hosts = self.0.as_object().unwrap().keys();
        let ports = hosts.map(|h| self.get(h, "port_drops")).max();
        self.get("h1", "eth0_drops") + ports.unwrap()
    }
}

/// A running transfer from h1 to h2 and the following hosts.
pub struct Transfer<'a> {
    pub cluster: &'a Cluster,
    pub dir: Scratch,
    pub source: PathBuf,
    pub len: u64,
    pub send: Run,
    pub hosts: Vec<String>,
    pub recv: Vec<Run>,
    before: Stat,
    /// The counters when [`Transfer::settle`] had waited.
    settled: Option<Stat>,
}

impl<'a> Transfer<'a> {
    /// Starts a transfer over IPv4.
    pub fn start(cluster: &'a Cluster, receivers: usize, len: usize, send: &[&str]) -> Self {
        Transfer::over(4, cluster, receivers, len, send)
    }

    /// Starts a transfer over IPv4 to receivers that serve others.
    pub fn serving(cluster: &'a Cluster, receivers: usize, len: usize, send: &[&str]) -> Self {
        Transfer::with(4, cluster, receivers, len, send, &["--serve"])
    }

    /// Adds a receiver on this host, which comes late.
    pub fn add(&mut self, host: &str) {
        let run = self.cluster.recv(host, &self.dir.path(host), 4);
        self.hosts.push(host.to_owned());
        self.recv.push(run);
    }

    /// Starts a transfer; `family` is as in [`Cluster::recv`].
    pub fn over(
        family: u8,
        cluster: &'a Cluster,
        receivers: usize,
        len: usize,
        send: &[&str],
    ) -> Self {
        Transfer::with(family, cluster, receivers, len, send, &[])
    }

    fn with(
        family: u8,
        cluster: &'a Cluster,
        receivers: usize,
        len: usize,
        send: &[&str],
        recv: &[&str],
    ) -> Self {
        let dir = Scratch::new();
        let source = dir.file("source", len);
        let hosts: Vec<String> = (2..receivers + 2).map(|i| format!("h{i}")).collect();
        let before = cluster.stat();
        let count = receivers.to_string();
        let mut run = cluster.send(&source, &[&["--min-receivers", &count], send].concat());
        run.until("listening", |_| true);
        let recv = hosts
            .iter()
            .map(|h| cluster.recv_with(h, &dir.path(h), family, recv));
        Transfer {
            recv: recv.collect(),
            cluster,
            source,
            len: len as u64,
            send: run,
            hosts,
            before,
            settled: None,
            dir,
        }
    }

    /// Waits for one second of the transfer. Earlier drops do not count then.
    pub fn settle(&mut self) {
        let since = Instant::now();
        let second = Duration::from_secs(1);
        self.send.until("progress", |_| since.elapsed() >= second);
        self.settled = Some(self.cluster.stat());
    }

    pub fn receiver(&mut self, host: &str) -> &mut Run {
        let at = self.hosts.iter().position(|h| h == host).unwrap();
        &mut self.recv[at]
    }

    /// Waits for the end. Checks that all hosts but `without` have the file, and the sender's exit
    /// code. Returns the sender's output and the receivers of `without`.
    #[track_caller]
    pub fn end(self, without: &[&str]) -> Done {
        let code = if without.is_empty() { 0 } else { 4 };
        let sent = self.send.end().expect(code);
        let after = self.cluster.stat();
        let mut others = Vec::new();
        for (host, run) in self.hosts.iter().zip(self.recv) {
            let copy = self.dir.path(host);
            let state = &sent.result(host)["state"];
            if without.contains(&host.as_str()) {
                assert_ne!(state, "verified", "{host}: {sent:#?}");
                assert!(!copy.exists(), "{host} has a file");
                others.push(run);
            } else {
                assert_eq!(state, "verified", "{host}: {sent:#?}");
                run.end().expect(0);
                same(&self.source, &copy);
            }
        }
        let sum = sent.one("summary");
        assert_eq!(sum["verified"], (self.hosts.len() - without.len()) as u64);
        assert_eq!(sum["code"], code);
        let bytes = after.root_bytes() - self.before.root_bytes();
        let since = self.settled.as_ref().unwrap_or(&self.before);
        let packets = after.root_packets() - since.root_packets();
        let dropped = after.worst_drops() - since.worst_drops();
        let done = Done {
            multiple: bytes as f64 / self.len as f64,
            dropped: dropped as f64 / packets as f64,
            hosts: self.hosts,
            dir: self.dir,
            sent,
            others,
        };
        println!("{}", done.describe());
        done
    }
}

/// A finished transfer.
pub struct Done {
    pub hosts: Vec<String>,
    pub dir: Scratch,
    pub sent: End,
    /// The receivers of `without`; they may still run.
    pub others: Vec<Run>,
    /// Ethernet bytes that h1 sent for each byte of the file.
    pub multiple: f64,
    /// Packets that queues dropped per packet that h1 sent, since [`Transfer::settle`] if that was
    /// called.
    pub dropped: f64,
}

impl Done {
    /// The figures of the transfer, for the message of a failed test.
    pub fn describe(&self) -> String {
        let sum = self.sent.one("summary");
        let statistics = |key: &str| {
            let all = self.sent.all("result");
            let each = all.map(|r| format!("{} ", r["tally"][key]));
            each.collect::<String>()
        };
        format!(
            "{:.3} x the file; dropped by queues {:.2} %, by the receivers' kernels {}; \
             duplicates {}; \
             repairs {}; {}",
            self.multiple,
            self.dropped * 100.0,
            statistics("dropped"),
            statistics("duplicates"),
            self.sent
                .all("result")
                .map(|r| format!("{} ", r["repairs"]))
                .collect::<String>(),
            sum["traffic"]
        )
    }

    /// The hosts that the sender's table lists with this reach.
    pub fn reached_by(&self, reach: &str) -> Vec<&str> {
        let hosts = self.hosts.iter().map(String::as_str);
        hosts
            .filter(|h| self.sent.result(h)["reach"] == reach)
            .collect()
    }

    /// The hosts that events named as reached by unicast during the transfer, sorted.
    pub fn told_unicast(&self) -> Vec<&str> {
        told_unicast(&self.sent)
    }
}

/// The hosts that a sender's events named as reached by unicast during the transfer, sorted.
pub fn told_unicast(sent: &End) -> Vec<&str> {
    let paths = sent.all("path").filter(|e| e["reach"] == "unicast");
    let mut hosts: Vec<&str> = paths.map(|e| e["receiver"].as_str().unwrap()).collect();
    hosts.sort_unstable();
    hosts.dedup();
    hosts
}
