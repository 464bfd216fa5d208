//! Our client at a real OpenSM, on a simulated fabric of 32 hosts. It needs the Debian packages
//! that `testbed/opensm/fabric check` names, and no root.
//!
//! After each step the switches' multicast tables are read and followed: from every member one copy
//! to every other member, none to anybody else. `SEED=N` repeats other steps.

mod fabric;
mod folder;
mod measure;

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv6Addr;
use std::time::{Duration, Instant};

use fabric::{Agents, Fabric, left};
use fabricast::proto::rng::Rng;
use fabricast_lab::subnet::fabric::{self as found, Tables};
use fabricast_lab::subnet::walk::{self, Groups, judge};
use serde_json::Value;

/// Hosts h1 to h32.
const HOSTS: usize = 32;
/// Hosts with an agent, two on each leaf switch. The simulator has room for ten programs.
const AGENTS: [usize; 8] = [1, 2, 9, 10, 17, 18, 25, 26];
/// The agent that reads the tables.
const READER: usize = 1;
const STEPS: usize = 200;
/// Addresses of the random steps: 239.0.0.1 and so on.
const ADDRESSES: u64 = 12;
/// A group that the manager's configuration names, as an IP address and as it is there.
const PERMANENT: (&str, &str) = ("239.0.8.1", "ff12:401b:ffff::f00:801");
/// How long an answer may take, and the tables after it. It is milliseconds on a quiet machine, and
/// seconds where the simulator gets no processor.
const BOUND: Duration = Duration::from_secs(20);
/// Within this time of its start the manager must know all memberships again.
const BACK: Duration = Duration::from_secs(10);
/// Groups that the switches' tables have room for, and the manager's own.
const MLIDS: usize = 1024;
/// The last multicast LID of the random steps, and of all.
const SOME: &str = "c01f";
const ALL: &str = "c3ff";

/// A membership: a host and an address.
type Member = (usize, String);

struct World {
    fabric: Fabric,
    agents: Agents,
    /// GIDs of the hosts' ports.
    gids: BTreeMap<usize, String>,
    /// How often each member has joined, as it should be.
    wanted: BTreeMap<Member, u32>,
    /// Multicast LIDs, as the agents told them last.
    mlids: BTreeMap<Member, u16>,
    /// The members of each multicast LID when the tables matched last, and those told since.
    told: BTreeSet<(u16, String)>,
    /// Hosts whose link is down.
    cut: BTreeSet<usize>,
    nodes: found::Fabric,
    /// Longest time from an answer until the tables matched.
    lag_max: Duration,
}

/// The host that an agent speaks for beside its own: three others of its leaf.
fn agent_of(host: usize) -> usize {
    if AGENTS.contains(&host) {
        return host;
    }
    let leaf = (host - 1) / 8;
    AGENTS[2 * leaf + host % 2]
}

fn address(n: u64) -> String {
    format!("239.0.{}.{}", n / 250, n % 250 + 1)
}

fn gid_of(guid: u64) -> String {
    Ipv6Addr::from(0xfe80_u128 << 112 | u128::from(guid)).to_string()
}

/// Each host of each group, with the group's multicast LID.
fn pairs(groups: Groups) -> impl Iterator<Item = (u16, String)> {
    let hosts = groups.into_iter();
    hosts.flat_map(|(mlid, hosts)| hosts.into_iter().map(move |host| (mlid, host)))
}

impl World {
    fn up() -> Option<World> {
        let fabric = Fabric::up(HOSTS, &["--permanent", PERMANENT.1])?;
        let mut world = World {
            fabric,
            agents: Agents::new(),
            gids: BTreeMap::new(),
            wanted: BTreeMap::new(),
            mlids: BTreeMap::new(),
            told: BTreeSet::new(),
            cut: BTreeSet::new(),
            nodes: found::Fabric::default(),
            lag_max: Duration::ZERO,
        };
        for host in AGENTS {
            world.agents.start(&world.fabric, host, &[]);
            world.event("port", |_, _| true);
        }
        world.look();
        for node in world.nodes.nodes.iter().filter(|node| !node.is_switch) {
            let number = node.name.strip_prefix('h').and_then(|n| n.parse().ok());
            if let Some(host) = number {
                world.gids.insert(host, gid_of(node.guid));
            }
        }
        assert_eq!(world.gids.len(), HOSTS);
        Some(world)
    }

    /// Looks for hosts and links again.
    fn look(&mut self) {
        self.agents.say(READER, "fabric");
        let event = self.event("fabric", |_, _| true);
        self.nodes = serde_json::from_value(event["fabric"].clone()).unwrap();
    }

    /// Waits for an event of this kind that `is_it` recognises; the host is the agent's. Takes note
    /// of all memberships told meanwhile.
    #[track_caller]
    fn event(&mut self, kind: &str, is_it: impl Fn(usize, &Value) -> bool) -> Value {
        let deadline = Instant::now() + BOUND;
        while let Some((agent, event)) = self.agents.next(left(deadline)) {
            self.note(&event);
            if event["event"] == kind && is_it(agent, &event) {
                return event;
            }
            assert_ne!(event["event"], "error", "{event}");
        }
        panic!("no event {kind} within {BOUND:?}; this test needs some of a processor");
    }

    fn note(&mut self, event: &Value) {
        let (Some(port), Some(address)) = (event["port"].as_str(), event["address"].as_str())
        else {
            return;
        };
        let host = self.gids.iter().find(|(_, gid)| *gid == port);
        let member = (*host.expect("a port of a host").0, address.to_owned());
        match (event["event"].as_str(), event["mlid"].as_u64()) {
            (Some("joined"), Some(mlid)) => {
                self.told.insert((mlid as u16, format!("h{}", member.0)));
                self.mlids.insert(member, mlid as u16);
            }
            (Some("lost"), _) => {
                self.mlids.remove(&member);
            }
            _ => {}
        }
    }

    /// Sends a request for a host to its agent.
    #[track_caller]
    fn ask(&mut self, verb: &str, host: usize, address: &str) {
        let agent = agent_of(host);
        let port = match agent == host {
            true => String::new(),
            false => format!(" for {}", self.gids[&host]),
        };
        self.agents.say(agent, &format!("{verb} {address}{port}"));
    }

    /// Sends a request for a host and waits for this answer.
    #[track_caller]
    fn answered(&mut self, verb: &str, host: usize, address: &str, kind: &str) -> Value {
        self.ask(verb, host, address);
        let gid = self.gids[&host].clone();
        self.event(kind, |_, event| {
            event["port"] == *gid && event["address"] == address
        })
    }

    #[track_caller]
    fn join(&mut self, verb: &str, host: usize, address: &str) {
        self.answered(verb, host, address, "joined");
        *self.wanted.entry((host, address.into())).or_default() += 1;
    }

    #[track_caller]
    fn leave(&mut self, host: usize, address: &str) {
        self.answered("leave", host, address, "left");
        self.unwant(host, address);
    }

    fn unwant(&mut self, host: usize, address: &str) {
        let member = (host, address.to_owned());
        let uses = self.wanted.get_mut(&member).unwrap();
        *uses -= 1;
        if *uses == 0 {
            self.wanted.remove(&member);
        }
    }

    fn exists(&self, address: &str) -> bool {
        address == PERMANENT.0 || self.has_members(address)
    }

    fn has_members(&self, address: &str) -> bool {
        self.wanted.keys().any(|(_, other)| other == address)
    }

    /// The members of each multicast LID, as it should be. An error: members of one address know
    /// different ones, or none yet.
    fn groups(&self) -> Result<Groups, String> {
        let mut groups = Groups::new();
        let mut addresses: BTreeMap<u16, &str> = BTreeMap::new();
        for member in self.wanted.keys() {
            let (host, address) = member;
            if self.cut.contains(host) {
                continue;
            }
            let mlid = *self
                .mlids
                .get(member)
                .ok_or_else(|| format!("{member:?} is no member"))?;
            if *addresses.entry(mlid).or_insert(address) != address {
                return Err(format!("{mlid:#06x} is of two addresses"));
            }
            let members = groups.entry(mlid).or_default();
            members.insert(format!("h{host}"));
        }
        match addresses.values().collect::<BTreeSet<_>>().len() == addresses.len() {
            true => Ok(groups),
            false => Err("an address has two multicast LIDs".into()),
        }
    }

    #[track_caller]
    fn tables(&mut self, last: &str) -> Tables {
        self.agents.say(READER, &format!("tables {last}"));
        let event = self.event("tables", |_, _| true);
        serde_json::from_value(event["tables"].clone()).unwrap()
    }

    /// Reads the tables until they are as they should be, and looks for what they should not have
    /// been before: no table leads to a host that has not been told since the tables matched last,
    /// or then, that it is a member.
    #[track_caller]
    fn settle(&mut self, last: &str, bound: Duration) -> Duration {
        let begun = Instant::now();
        let mut reached = BTreeSet::new();
        loop {
            let tables = self.tables(last);
            let groups = self.groups();
            let verdict = groups
                .as_ref()
                .map_err(Clone::clone)
                .and_then(|groups| judge(&self.nodes, &tables, groups));
            let took = begun.elapsed();
            reached.extend(pairs(walk::reached(&self.nodes, &tables)));
            if let (Ok(()), Ok(groups)) = (&verdict, groups) {
                let outsiders: Vec<_> = reached.difference(&self.told).collect();
                assert!(outsiders.is_empty(), "never were members: {outsiders:x?}");
                self.told = pairs(groups).collect();
                self.lag_max = self.lag_max.max(took);
                return took;
            }
            assert!(took < bound, "after {took:?}: {verdict:?}");
        }
    }

    /// One random create, join or leave.
    fn step(&mut self, rng: &mut Rng) {
        let address = match rng.below(ADDRESSES + 1) {
            ADDRESSES => PERMANENT.0.into(),
            n => address(n),
        };
        let host = 1 + rng.below(HOSTS as u64) as usize;
        let of_address = self.wanted.keys().filter(|(_, a)| *a == address);
        let members: Vec<usize> = of_address.map(|(host, _)| *host).collect();
        let verb = match address == PERMANENT.0 {
            true => "join",
            false => ["create", "join"][rng.below(2) as usize],
        };
        match rng.below(5) {
            0..=1 if !members.is_empty() => {
                let member = members[rng.below(members.len() as u64) as usize];
                self.leave(member, &address);
            }
            _ if verb == "join" && !self.exists(&address) => {
                let refused = self.answered("join", host, &address, "refused");
                let reason = refused["reason"].as_str().unwrap();
                assert!(reason.ends_with("0x0600"), "{reason}");
            }
            _ => self.join(verb, host, &address),
        }
        self.settle(SOME, BOUND);
    }

    /// The manager dies and comes back, having forgotten everything.
    fn restart(&mut self) {
        let (before, _) = self.wanted.first_key_value().unwrap();
        let (leaver, left_address) = before.clone();
        self.fabric.run(&["kill-manager"]);
        // What is asked of nobody is done when the manager is back.
        self.ask("create", 5, "239.0.9.1");
        self.ask("create", 26, "239.0.9.1");
        for host in [5, 26] {
            self.wanted.insert((host, "239.0.9.1".into()), 1);
        }
        self.ask("leave", leaver, &left_address);
        self.unwant(leaver, &left_address);
        self.fabric.run(&["start-manager"]);
        let took = self.settle(SOME, BACK);
        println!("memberships were there again {took:?} after the manager");
        for host in [5, 26] {
            self.leave(host, "239.0.9.1");
        }
        self.settle(SOME, BOUND);
    }

    /// The links of two hosts go down and come up again: one with an agent, one without.
    fn cut_links(&mut self) {
        let hosts = [18, 20];
        for host in hosts {
            self.join("create", host, "239.0.9.2");
        }
        self.join("create", 3, "239.0.9.2");
        self.settle(SOME, BOUND);
        let begun = Instant::now();
        for host in hosts {
            self.fabric
                .run(&["console", &format!("unlink \"h{host}\"")]);
            self.cut.insert(host);
        }
        self.look();
        self.settle(SOME, BACK);
        let took = begun.elapsed();
        println!("two hosts were out of the tables {took:?} after their links went down");
        let begun = Instant::now();
        for host in hosts {
            self.fabric
                .run(&["console", &format!("relink \"h{host}\"")]);
            self.cut.remove(&host);
            self.mlids.retain(|(other, _), _| *other != host);
        }
        self.look();
        self.settle(SOME, BACK);
        let took = begun.elapsed();
        println!("they were back {took:?} after their links came up");
        for host in hosts.into_iter().chain([3]) {
            self.leave(host, "239.0.9.2");
        }
        self.settle(SOME, BOUND);
    }

    /// A group of a partition that does not exist is refused, and addresses of IPv6 are granted.
    fn partitions(&mut self) {
        // One program more, for a port that another agent speaks for.
        let host = 4;
        self.agents
            .start(&self.fabric, host, &["--p-key", "0x8123"]);
        self.event("port", |agent, _| agent == host);
        self.agents.say(host, "create 239.0.9.3");
        let refused = self.event("refused", |agent, _| agent == host);
        let reason = refused["reason"].as_str().unwrap();
        assert!(reason.ends_with("status 0x0200"), "{reason}");
        self.agents.finish(host);
        for host in [3, 25] {
            self.join("create", host, "ff15::7:1");
        }
        self.settle(SOME, BOUND);
        for host in [3, 25] {
            self.leave(host, "ff15::7:1");
        }
        self.settle(SOME, BOUND);
    }

    /// One host creates addresses until there are no more, and returns them. The host `other`
    /// joins one of them.
    fn exhaust(&mut self, other: usize) {
        let host = 2;
        let permanent = usize::from(!self.has_members(PERMANENT.0));
        let groups = self.groups().unwrap().len() + permanent;
        let room = MLIDS - 1 - groups;
        let over = 20;
        let many: Vec<String> = (4000..).map(address).take(room + over).collect();
        for address in &many {
            self.ask("create", host, address);
        }
        let (mut joined, mut refused) = (Vec::new(), 0);
        while joined.len() + refused < many.len() {
            let (_, event) = self.agents.next(BOUND).expect("an answer");
            self.note(&event);
            let address = event["address"].as_str().unwrap_or_default();
            if !many.iter().any(|a| a == address) {
                continue;
            }
            match event["event"].as_str().unwrap() {
                "joined" => joined.push(address.to_owned()),
                "refused" => {
                    assert_eq!(event["reason"], "no more addresses");
                    refused += 1;
                }
                other => panic!("{other}: {event}"),
            }
        }
        assert_eq!((joined.len(), refused), (room, over), "{groups} groups");
        for address in &joined {
            self.wanted.insert((host, address.clone()), 1);
        }
        // Groups that exist have room for more members, also the one with the last number.
        let last = joined
            .iter()
            .max_by_key(|a| self.mlids[&(host, (*a).clone())]);
        let last = last.unwrap().clone();
        self.join("join", other, &last);
        let took = self.settle(ALL, BOUND);
        println!(
            "{room} addresses more were joined, {over} refused; tables matched after {took:?}"
        );
        self.leave(other, &last);
        for address in &joined {
            self.ask("leave", host, address);
        }
        for address in &joined {
            self.wanted.remove(&(host, address.clone()));
        }
        let gid = self.gids[&host].clone();
        for _ in &joined {
            self.event("left", |_, event| event["port"] == *gid);
        }
        self.settle(ALL, BOUND);
    }

    /// Everybody leaves everything. Then all addresses can be had again.
    fn end(mut self) {
        let wanted = std::mem::take(&mut self.wanted);
        println!("{} memberships are returned at the end", wanted.len());
        for host in AGENTS.into_iter().filter(|host| *host != READER) {
            if host != 2 {
                self.agents.finish(host);
            }
        }
        for ((host, address), uses) in wanted {
            // The reader and the host that exhausts the addresses leave by request.
            if [READER, 2].contains(&agent_of(host)) {
                for _ in 0..uses {
                    self.ask("leave", host, &address);
                }
            }
        }
        self.settle(ALL, BOUND);
        // Its agent is the reader.
        self.exhaust(4);
        let tables = self.tables(ALL);
        assert!(tables.values().all(BTreeMap::is_empty), "{tables:?}");
        self.agents.finish(2);
        self.agents.finish(READER);
    }
}

#[test]
fn memberships_and_tables_match_at_a_real_opensm() {
    let seed = std::env::var("SEED").map_or(19, |seed| seed.parse().unwrap());
    println!("SEED={seed}");
    let Some(mut world) = World::up() else {
        return;
    };
    let mut rng = Rng::new(seed);
    for _ in 0..STEPS {
        world.step(&mut rng);
    }
    println!(
        "{STEPS} steps; tables matched at most {:?} after the answer",
        world.lag_max
    );
    world.restart();
    world.cut_links();
    world.exhaust(30);
    world.partitions();
    world.end();
}
