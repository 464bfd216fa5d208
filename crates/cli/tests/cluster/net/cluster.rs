//! Network namespaces as hosts for one test. Tests of several crates use this file.

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;

const TOOL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testbed/cluster/cluster");

fn tool(args: &[&str]) -> Output {
    let output = Command::new(TOOL).args(args).output();
    output.expect("the testbed's script runs")
}

/// Hosts h1, h2 … on one switch. They are removed on drop, and also when the test is killed.
pub struct Cluster {
    name: String,
    /// Waits for the end of its standard input, which this process alone holds open.
    keeper: Child,
    /// Held while the cluster exists: two clusters at once would compete for the processors.
    _turn: MutexGuard<'static, ()>,
}

impl Cluster {
    /// One sender and this many receivers. `None`, with a printed reason, where no cluster can run.
    pub fn up(receivers: usize, options: &[&str]) -> Option<Cluster> {
        static TURN: Mutex<()> = Mutex::new(());
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let check = tool(&["check"]);
        if !check.status.success() {
            let reason = String::from_utf8_lossy(&check.stdout);
            println!("skipped: no cluster can run here: {}", reason.trim());
            return None;
        }
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("t{}n{n}", std::process::id());
        let mut keeper = Command::new("setsid");
        keeper.args([
            "sh",
            "-c",
            r#"cat; exec "$0" down --name "$1""#,
            TOOL,
            &name,
        ]);
        keeper.stdin(Stdio::piped());
        let cluster = Cluster {
            keeper: keeper.spawn().unwrap(),
            name,
            _turn: turn,
        };
        let hosts = (receivers + 1).to_string();
        let fixed = ["up", &hosts, "--offload", "off"];
        cluster.run(&[&fixed, options].concat());
        Some(cluster)
    }

    /// Runs a command of the testbed. Returns its output.
    #[track_caller]
    pub fn run(&self, args: &[&str]) -> String {
        let output = tool(&[&["--name", &self.name], args].concat());
        assert!(output.status.success(), "cluster {args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The command that runs this program on a host, to which its arguments are added.
    pub fn exec(&self, host: &str, program: &str) -> Command {
        let mut command = Command::new(TOOL);
        command.args(["--name", &self.name, "exec", host, "--", program]);
        command
    }

    /// The cluster's name for the testbed's tools.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file that stands for a host's network namespace.
    pub fn namespace(&self, host: &str) -> PathBuf {
        format!("/run/netns/fc-{}-{host}", self.name).into()
    }

    /// A host's address in this family (4 or 6).
    pub fn address(&self, host: &str, family: u8) -> String {
        let hosts: Value = serde_json::from_str(&self.run(&["hosts", "--json"])).unwrap();
        let ip = &hosts[host][format!("ip{family}")];
        ip.as_str().unwrap().to_owned()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}
