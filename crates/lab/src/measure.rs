//! `fabricast-lab subnet measure`: how long operations on groups take at a real subnet manager.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::thread;
use std::time::{Duration, Instant};

use fabricast::proto::Time;
use fabricast::subnet::opensm::mad::Gid;
use fabricast::subnet::opensm::{Config, OpenSm};
use fabricast::subnet::{News, Subnet};
use fabricast::transport::GroupAddress;
use fabricast_lab::subnet::fabric::{Fabric, MLID_MIN};
use fabricast_lab::subnet::smp::Smi;
use fabricast_lab::subnet::walk::{Groups, judge};
use serde_json::{Value, json};

/// How long answers, and then the tables, may take.
const BOUND: Duration = Duration::from_secs(20);

/// What is measured, in the order of a repetition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Operation {
    /// The first member creates the group.
    Create,
    /// All others join at once.
    JoinAll,
    /// One member leaves.
    LeaveOne,
    /// It joins again.
    JoinOne,
    /// All leave at once.
    LeaveAll,
}

impl Operation {
    const ALL: [Operation; 5] = [
        Operation::Create,
        Operation::JoinAll,
        Operation::LeaveOne,
        Operation::JoinOne,
        Operation::LeaveAll,
    ];

    fn name(self) -> &'static str {
        match self {
            Operation::Create => "create",
            Operation::JoinAll => "join all others",
            Operation::LeaveOne => "leave",
            Operation::JoinOne => "join",
            Operation::LeaveAll => "leave all",
        }
    }
}

/// A member: its name in the fabric, and its port.
type Member = (String, Gid);

/// Times of one operation, from the first request.
#[derive(Clone, Default, Debug)]
struct Course {
    /// Until each answer, in their order.
    answers: Vec<Duration>,
    /// Until the tables were seen to be right.
    tables: Duration,
    /// The last reading of the tables.
    reading: Duration,
}

struct Bench {
    start: Instant,
    subnet: OpenSm,
    smi: Smi,
    fabric: Fabric,
    /// All hosts, this one first.
    hosts: Vec<Member>,
    /// Groups that were created.
    groups: u16,
}

/// Measures each size of group `repeat` times and prints the results.
pub fn run(sizes: &[u32], repeat: u32) -> io::Result<()> {
    let mut bench = Bench::open()?;
    for &size in sizes {
        let mut all = vec![Vec::new(); Operation::ALL.len()];
        for _ in 0..repeat {
            let courses = bench.repetition(size as usize)?;
            for (all, course) in all.iter_mut().zip(courses) {
                all.push(course);
            }
        }
        let mut out = io::stdout().lock();
        for (operation, courses) in Operation::ALL.into_iter().zip(&all) {
            writeln!(out, "{}", summary(size, operation, courses))?;
        }
        out.flush()?;
    }
    Ok(())
}

impl Bench {
    fn open() -> io::Result<Bench> {
        let subnet = OpenSm::open(Config::default())?;
        let mut smi = Smi::open()?;
        let fabric = Fabric::discover(&mut smi)?;
        let own = subnet.port().gid;
        let nodes = fabric.nodes.iter().filter(|node| !node.is_switch);
        let mut hosts: Vec<Member> = nodes
            .map(|node| (node.name.clone(), own.of_guid(node.guid)))
            .collect();
        hosts.sort_by_key(|(name, gid)| (*gid != own, name.len(), name.clone()));
        Ok(Bench {
            start: Instant::now(),
            subnet,
            smi,
            fabric,
            hosts,
            groups: 0,
        })
    }

    fn repetition(&mut self, size: usize) -> io::Result<Vec<Course>> {
        if size > self.hosts.len() {
            let text = format!("the fabric has {} hosts, not {size}", self.hosts.len());
            return Err(io::Error::other(text));
        }
        self.groups += 1;
        let [high, low] = self.groups.to_be_bytes();
        let address = GroupAddress::from(std::net::SocketAddr::from((
            Ipv4Addr::new(239, 1, high, low),
            0,
        )));
        // The hosts are spread over the leaf switches: those that are named one after another
        // stand at one.
        let step = self.hosts.len() / size;
        let members: Vec<Member> = self
            .hosts
            .iter()
            .step_by(step)
            .take(size)
            .cloned()
            .collect();
        let (first, last) = (&members[..1], &members[size - 1..]);
        let (rest, others) = (&members[..size - 1], &members[1..]);
        let mut courses = Vec::new();
        for operation in Operation::ALL {
            let (who, left) = match operation {
                Operation::Create => (first, first),
                Operation::JoinAll => (others, &members[..]),
                Operation::LeaveOne => (last, rest),
                Operation::JoinOne => (last, &members[..]),
                Operation::LeaveAll => (&members[..], &[][..]),
            };
            courses.push(self.measure(operation, &address, who, left)?);
        }
        Ok(courses)
    }

    fn now(&self) -> Time {
        Time(self.start.elapsed().as_nanos() as u64)
    }

    /// Has members do something, and waits until the tables lead to those that are then left.
    fn measure(
        &mut self,
        operation: Operation,
        address: &GroupAddress,
        who: &[Member],
        left: &[Member],
    ) -> io::Result<Course> {
        let own = self.hosts[0].1;
        let mlid = self.subnet.mlid(own, address);
        let begun = Instant::now();
        let leaves = matches!(operation, Operation::LeaveOne | Operation::LeaveAll);
        for (_, port) in who {
            match leaves {
                true => self.subnet.leave_for(*port, address),
                false => {
                    let creates = operation == Operation::Create;
                    self.subnet.join_for(*port, address, creates);
                }
            }
        }
        let mut course = Course::default();
        while course.answers.len() < who.len() {
            let now = self.now();
            self.subnet.step(now)?;
            while let Some((port, news)) = self.subnet.news_of_all() {
                match news {
                    News::Joined(_) | News::Left(_) => course.answers.push(begun.elapsed()),
                    other => {
                        let text = format!("{} at {port}: {other}", operation.name());
                        return Err(io::Error::other(text));
                    }
                }
            }
            if begun.elapsed() > BOUND {
                return Err(io::Error::other("the subnet manager does not answer"));
            }
            // Nothing is slept: the answer's time is wanted.
            thread::yield_now();
        }
        let mlid = mlid.or_else(|| self.subnet.mlid(own, address));
        let mlid = mlid.unwrap_or(MLID_MIN);
        let members: BTreeSet<String> = left.iter().map(|(name, _)| name.clone()).collect();
        let groups = match members.is_empty() {
            true => Groups::new(),
            false => Groups::from([(mlid, members)]),
        };
        loop {
            let reading = Instant::now();
            let tables = self.fabric.entries(&mut self.smi, mlid)?;
            course.reading = reading.elapsed();
            course.tables = begun.elapsed();
            match judge(&self.fabric, &tables, &groups) {
                Ok(()) => return Ok(course),
                Err(what) if course.tables > BOUND => {
                    let text = format!("{}: the tables stay wrong: {what}", operation.name());
                    return Err(io::Error::other(text));
                }
                Err(_) => {}
            }
        }
    }
}

/// The line of JSON for an operation's repetitions.
fn summary(size: u32, operation: Operation, courses: &[Course]) -> Value {
    let last = |course: &Course| course.answers.last().copied().unwrap_or_default();
    let mut line = json!({
        "event": "operation",
        "operation": operation.name(),
        "members": size,
        "repeats": courses.len(),
        "requests": courses.first().map_or(0, |course| course.answers.len()),
        "answer_us": of(courses.iter().flat_map(|course| course.answers.iter().copied())),
        "last_answer_us": of(courses.iter().map(last)),
        "reading_us": of(courses.iter().map(|course| course.reading)),
    });
    // A group of one host has no entries.
    if operation != Operation::Create {
        line["tables_us"] = of(courses.iter().map(|course| course.tables));
        let after = |course: &Course| course.tables.saturating_sub(last(course));
        line["tables_after_answer_us"] = of(courses.iter().map(after));
    }
    line
}

/// Least, median and greatest of some times, in microseconds.
fn of(times: impl Iterator<Item = Duration>) -> Value {
    let mut times: Vec<Duration> = times.collect();
    times.sort_unstable();
    let us = |time: Option<&Duration>| time.map(|time| time.as_nanos() as f64 / 1e3);
    json!({
        "min": us(times.first()),
        "median": us(times.get(times.len() / 2)),
        "max": us(times.last()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_times_of_all_repetitions() {
        let ms = Duration::from_millis;
        let course = |last, tables| Course {
            answers: vec![ms(1), ms(last)],
            tables: ms(tables),
            reading: ms(1),
        };
        let courses = [course(2, 5), course(4, 6), course(3, 9)];
        let line = summary(3, Operation::JoinAll, &courses);
        assert_eq!(
            (&line["requests"], &line["repeats"]),
            (&json!(2), &json!(3))
        );
        assert_eq!(line["answer_us"]["median"], 2000.0);
        assert_eq!(line["last_answer_us"]["median"], 3000.0);
        assert_eq!(line["tables_us"]["max"], 9000.0);
        assert_eq!(line["tables_after_answer_us"]["min"], 2000.0);
        let create = summary(3, Operation::Create, &courses);
        assert_eq!(create["tables_us"], Value::Null);
    }
}
