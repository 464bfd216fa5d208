//! `fabricast-lab subnet agent`: requests from standard input, news to standard output.

use std::io::{self, BufRead, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use fabricast::proto::Time;
use fabricast::subnet::opensm::mad::Gid;
use fabricast::subnet::opensm::{Config, OpenSm};
use fabricast::subnet::{News, Subnet};
use fabricast::transport::{GroupAddress, Sleeper};
use fabricast_lab::subnet::fabric::Fabric;
use fabricast_lab::subnet::smp::Smi;
use serde_json::{Value, json};

/// How long the agent waits at its end for the manager.
const END: Duration = Duration::from_secs(20);

/// Joins groups of a partition until the end of standard input, and then returns everything.
pub fn run(p_key: u16) -> io::Result<()> {
    let start = Instant::now();
    let now = || Time(start.elapsed().as_nanos() as u64);
    let sleeper = Sleeper::new()?;
    let mut agent = Agent::open(p_key, &sleeper)?;
    let lines = lines(&sleeper);
    let mut end = None;
    loop {
        while end.is_none() {
            match lines.try_recv() {
                Ok(line) => {
                    let answer = agent.request(now(), &line)?;
                    answer.map_or(Ok(()), |answer| print(&answer))?;
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    agent.leave_all();
                    end = Some(now() + END);
                }
            }
        }
        agent.step(now())?;
        match end {
            Some(_) if agent.leaving == 0 => return Ok(()),
            Some(end) if now() >= end => {
                return Err(io::Error::other("the subnet manager does not answer"));
            }
            _ => {}
        }
        let due = agent.subnet.due();
        sleeper.sleep(due.map(|due| due.since(now())))?;
    }
}

/// Hands over the lines of standard input, and wakes the sleeper for each and for the end.
fn lines(sleeper: &Sleeper) -> Receiver<String> {
    let (tell, lines) = channel();
    let waker = sleeper.waker().clone();
    thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            if tell.send(line).is_err() {
                return;
            }
            waker.wake();
        }
        drop(tell);
        waker.wake();
    });
    lines
}

fn print(event: &Value) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{event}")?;
    out.flush()
}

/// The memberships of this process, and the fabric that it has found.
struct Agent {
    subnet: OpenSm,
    smi: Option<Smi>,
    fabric: Fabric,
    /// Creates and joins that are neither refused nor undone.
    held: Vec<(Gid, GroupAddress)>,
    /// Leaves that are not confirmed.
    leaving: usize,
}

impl Agent {
    fn open(p_key: u16, sleeper: &Sleeper) -> io::Result<Agent> {
        let mut subnet = OpenSm::open(Config {
            p_key,
            ..Config::default()
        })?;
        subnet.attach(sleeper)?;
        let port = subnet.port();
        print(&json!({
            "event": "port",
            "name": port.name(),
            "gid": port.gid.to_string(),
            "lid": port.lid,
            "sm_lid": port.sm_lid,
        }))?;
        Ok(Agent {
            subnet,
            smi: None,
            fabric: Fabric::default(),
            held: Vec::new(),
            leaving: 0,
        })
    }

    fn request(&mut self, now: Time, line: &str) -> io::Result<Option<Value>> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let done = match words[..] {
            [verb @ ("create" | "join" | "leave"), address] => self.membership(verb, address, None),
            [verb @ ("create" | "join" | "leave"), address, "for", port] => {
                self.membership(verb, address, Some(port))
            }
            ["fabric"] => {
                self.fabric = Fabric::discover(self.smi()?)?;
                return Ok(Some(json!({"event": "fabric", "fabric": self.fabric})));
            }
            ["tables", last] => {
                let last = last.trim_start_matches("0x");
                let Ok(last) = u16::from_str_radix(last, 16) else {
                    return Ok(Some(error(line)));
                };
                let fabric = std::mem::take(&mut self.fabric);
                let tables = fabric.tables(self.smi()?, last);
                self.fabric = fabric;
                let ns = now.0;
                return Ok(Some(match tables {
                    Ok(tables) => json!({"event": "tables", "ns": ns, "tables": tables}),
                    Err(e) => json!({"event": "error", "text": e.to_string()}),
                }));
            }
            _ => None,
        };
        Ok(done.is_none().then(|| error(line)))
    }

    fn smi(&mut self) -> io::Result<&mut Smi> {
        if self.smi.is_none() {
            self.smi = Some(Smi::open()?);
        }
        Ok(self.smi.as_mut().expect("opened above"))
    }

    /// `None`: the request is not understood.
    fn membership(&mut self, verb: &str, address: &str, port: Option<&str>) -> Option<()> {
        let address: IpAddr = address.parse().ok()?;
        let address = GroupAddress::from(SocketAddr::from((address, 0)));
        let port = match port {
            Some(gid) => Gid(gid.parse::<Ipv6Addr>().ok()?.octets()),
            None => self.subnet.port().gid,
        };
        match verb {
            "leave" => self.leave(port, &address),
            _ => {
                self.held.push((port, address.clone()));
                self.subnet.join_for(port, &address, verb == "create");
            }
        }
        Some(())
    }

    fn leave(&mut self, port: Gid, address: &GroupAddress) {
        self.forget(port, address);
        self.leaving += 1;
        self.subnet.leave_for(port, address);
    }

    fn forget(&mut self, port: Gid, address: &GroupAddress) {
        let mut held = self.held.iter();
        if let Some(at) = held.position(|(p, a)| *p == port && a == address) {
            self.held.swap_remove(at);
        }
    }

    fn leave_all(&mut self) {
        for (port, address) in self.held.clone() {
            self.leave(port, &address);
        }
    }

    fn step(&mut self, now: Time) -> io::Result<()> {
        self.subnet.step(now)?;
        while let Some((port, news)) = self.subnet.news_of_all() {
            let mut event = match &news {
                News::Joined(address) => {
                    let mlid = self.subnet.mlid(port, address);
                    json!({"event": "joined", "address": ip(address), "mlid": mlid})
                }
                News::Refused(address, refusal) => {
                    self.forget(port, address);
                    let reason = refusal.to_string();
                    json!({"event": "refused", "address": ip(address), "reason": reason})
                }
                News::Left(address) => {
                    self.leaving -= 1;
                    json!({"event": "left", "address": ip(address)})
                }
                News::Lost(address) => json!({"event": "lost", "address": ip(address)}),
                other => json!({"event": "notice", "text": other.to_string()}),
            };
            event["port"] = port.to_string().into();
            event["ns"] = now.0.into();
            print(&event)?;
        }
        Ok(())
    }
}

fn error(line: &str) -> Value {
    json!({"event": "error", "text": format!("the request is not understood: {line}")})
}

fn ip(address: &GroupAddress) -> String {
    address.ip().map_or(String::new(), |a| a.ip().to_string())
}
