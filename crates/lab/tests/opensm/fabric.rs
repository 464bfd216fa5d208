//! A simulated fabric with a real OpenSM, and agents on its hosts.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// The testbed's script.
pub const TOOL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testbed/opensm/fabric");

/// Fabrics that this process has made.
static UP: AtomicU32 = AtomicU32::new(0);

fn tool(args: &[&str]) -> Output {
    let output = Command::new(TOOL).args(args).output();
    output.expect("the testbed's script runs")
}

/// Hosts h1, h2 … of a fabric. They are removed on drop, and also when the test is killed.
pub struct Fabric {
    name: String,
    /// Waits for the end of its standard input, which this process alone holds open.
    keeper: Child,
}

impl Fabric {
    /// `None`, with a printed reason, where no fabric can run.
    pub fn up(hosts: usize, options: &[&str]) -> Option<Fabric> {
        let check = tool(&["check"]);
        if !check.status.success() {
            let reason = String::from_utf8_lossy(&check.stdout);
            println!("skipped: no fabric can run here: {}", reason.trim());
            return None;
        }
        let number = UP.fetch_add(1, Ordering::Relaxed);
        let name = format!("t{}n{number}", std::process::id());
        let mut keeper = Command::new("setsid");
        let script = r#"cat; exec "$0" --name "$1" down"#;
        keeper.args(["sh", "-c", script, TOOL, &name]);
        keeper.stdin(Stdio::piped());
        let keeper = keeper.spawn().unwrap();
        let fabric = Fabric { name, keeper };
        fabric.run(&[&["up", &hosts.to_string()], options].concat());
        Some(fabric)
    }

    /// Runs a command of the testbed. Returns its output.
    #[track_caller]
    pub fn run(&self, args: &[&str]) -> String {
        let output = tool(&[&["--name", &self.name], args].concat());
        assert!(output.status.success(), "fabric {args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs `fabricast-lab` as a program of a host until it ends. Returns its output.
    #[track_caller]
    pub fn lab(&self, host: &str, args: &[&str]) -> String {
        let program = env!("CARGO_BIN_EXE_fabricast-lab");
        let output = self.exec(host, program).args(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn exec(&self, host: &str, program: &str) -> Command {
        let mut command = Command::new(TOOL);
        command.args(["--name", &self.name, "exec", host, "--", program]);
        command
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        if thread::panicking() {
            for what in ["log", "simulator-log"] {
                let output = tool(&["--name", &self.name, what]);
                let text = String::from_utf8_lossy(&output.stdout).into_owned();
                let lines: Vec<_> = text.lines().rev().take(30).collect();
                println!("-- {what}, the last lines:");
                lines.iter().rev().for_each(|line| println!("{line}"));
            }
        }
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

/// `fabricast-lab subnet agent` as a program of one host.
struct Agent {
    host: usize,
    child: Child,
    requests: ChildStdin,
}

/// Agents, and what they print.
pub struct Agents {
    agents: Vec<Agent>,
    lines: Receiver<(usize, Value)>,
    tell: Sender<(usize, Value)>,
}

impl Agents {
    pub fn new() -> Agents {
        let (tell, lines) = channel();
        Agents {
            agents: Vec::new(),
            lines,
            tell,
        }
    }

    /// Starts an agent on a host. Its first line is the event "port".
    pub fn start(&mut self, fabric: &Fabric, host: usize, options: &[&str]) {
        let program = env!("CARGO_BIN_EXE_fabricast-lab");
        let mut command = fabric.exec(&format!("h{host}"), program);
        command.args(["subnet", "agent"]).args(options);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let requests = child.stdin.take().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let tell = self.tell.clone();
        thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                let event = serde_json::from_str(&line).expect("an agent prints JSON");
                let _ = tell.send((host, event));
            }
        });
        self.agents.push(Agent {
            host,
            child,
            requests,
        });
    }

    /// Sends a request to the agent on a host.
    #[track_caller]
    pub fn say(&mut self, host: usize, request: &str) {
        let agent = self.agents.iter_mut().find(|agent| agent.host == host);
        writeln!(agent.unwrap().requests, "{request}").unwrap();
    }

    /// The next line of any agent, and its host. `None`: nothing was printed in this time.
    pub fn next(&self, timeout: Duration) -> Option<(usize, Value)> {
        match self.lines.recv_timeout(timeout) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => unreachable!("a sender is held"),
        }
    }

    /// Ends the input of the agent on a host. It returns all of its addresses and must end well.
    #[track_caller]
    pub fn finish(&mut self, host: usize) {
        let at = self.agents.iter().position(|agent| agent.host == host);
        let mut agent = self.agents.remove(at.unwrap());
        drop(agent.requests);
        let status = agent.child.wait().unwrap();
        assert!(status.success(), "agent of h{host}: {status}");
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        for agent in &mut self.agents {
            let _ = agent.child.kill();
            let _ = agent.child.wait();
        }
    }
}

/// Time left until `deadline`.
pub fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}
