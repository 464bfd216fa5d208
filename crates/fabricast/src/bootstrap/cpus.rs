//! Lists of CPUs, as users write them.

use std::fmt;
use std::io;
use std::str::FromStr;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// A list of CPUs by number, at least one, such as `0-3,8`. The order counts, and a CPU may be
/// there more than once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cpus(Vec<usize>);

impl Cpus {
    /// The CPUs that this thread may use.
    fn usable() -> io::Result<Cpus> {
        let set = sched_getaffinity(None)?;
        Ok(Cpus(
            (0..CpuSet::MAX_CPU)
                .filter(|cpu| set.is_set(*cpu))
                .collect(),
        ))
    }

    /// Checks that this thread may use all of them.
    ///
    /// # Errors
    /// A text that names the first CPU that is not there, and those that are.
    pub fn check(&self) -> Result<(), String> {
        let usable = Cpus::usable().map_err(|e| format!("the usable CPUs are unknown: {e}"))?;
        match self.0.iter().find(|cpu| !usable.0.contains(cpu)) {
            Some(cpu) => Err(format!(
                "there is no CPU {cpu} that this process may use; it may use {usable}"
            )),
            None => Ok(()),
        }
    }

    /// The CPU of the worker with this number: they take turns.
    pub fn nth(&self, number: usize) -> usize {
        self.0[number % self.0.len()]
    }

    /// Binds this thread to a CPU of a list.
    pub fn bind(cpu: usize) -> io::Result<()> {
        let mut set = CpuSet::new();
        set.set(cpu);
        Ok(sched_setaffinity(None, &set)?)
    }
}

impl FromStr for Cpus {
    type Err = String;

    fn from_str(text: &str) -> Result<Cpus, String> {
        let number = |text: &str| match text.parse::<usize>() {
            Ok(cpu) if cpu < CpuSet::MAX_CPU => Ok(cpu),
            _ => Err(format!(
                "{text:?} is no CPU: write numbers up to {} and ranges, such as 0-3,8",
                CpuSet::MAX_CPU - 1
            )),
        };
        let mut cpus = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(format!("the range {part} ends before it begins"));
            }
            cpus.extend(first..=last);
        }
        Ok(Cpus(cpus))
    }
}

impl fmt::Display for Cpus {
    /// Writes the list as users write it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = self.0.chunk_by(|a, b| a + 1 == *b);
        let runs = runs.map(|run| match run {
            [first, .., last] => format!("{first}-{last}"),
            one => one.iter().map(usize::to_string).collect(),
        });
        f.write_str(&runs.collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus() {
        for (text, cpus) in [
            ("0", vec![0]),
            ("0-3,8", vec![0, 1, 2, 3, 8]),
            ("5,1-2", vec![5, 1, 2]),
            ("2,2", vec![2, 2]),
        ] {
            let parsed: Cpus = text.parse().unwrap();
            assert_eq!(parsed, Cpus(cpus));
            assert_eq!(parsed.to_string(), text);
            let turns: Vec<usize> = (0..2 * parsed.0.len()).map(|n| parsed.nth(n)).collect();
            assert_eq!(turns, [&parsed.0[..], &parsed.0[..]].concat());
        }
        for bad in [
            "",
            "a",
            "1,",
            "-1",
            "3-1",
            "1-",
            "1024",
            "0-99999999999999999999",
        ] {
            assert!(bad.parse::<Cpus>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_cpu_that_is_not_there_is_named_with_those_that_are() {
        let usable = Cpus::usable().unwrap();
        assert_eq!(usable.check(), Ok(()));
        let why = Cpus(vec![usable.0[0], CpuSet::MAX_CPU - 1]).check();
        let why = why.unwrap_err();
        assert!(
            why.contains("1023") && why.ends_with(&usable.to_string()),
            "{why}"
        );
    }
}
