//! Receivers that follow a feed while their time of day is wrong, and is set.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::common::feed::{
    ends, feed_in, follow, follow_by, publish, serve, until_all, wait_until,
};
use crate::common::{FABRICAST, Run, Scratch, built};
use serde_json::{Value, json};

/// A library that adds the seconds in a file to the time of day.
const CLOCK: &str = r#"
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int status = syscall(SYS_clock_gettime, clock, now);
    long ahead = 0;
    FILE *file = clock == CLOCK_REALTIME ? fopen(getenv("TEST_AHEAD"), "r") : NULL;
    if (file) {
        if (fscanf(file, "%ld", &ahead) == 1)
            now->tv_sec += ahead;
        fclose(file);
    }
    return status;
}
"#;

/// The time of day of a receiver.
struct Clock {
    library: PathBuf,
    ahead: PathBuf,
}

impl Clock {
    fn new(dir: &Scratch) -> Clock {
        Clock {
            library: built(dir, "clock", CLOCK),
            ahead: dir.path(".clock"),
        }
    }

    /// From now on it is so many seconds ahead.
    fn set(&self, ahead: i64) {
        let new = self.ahead.with_extension("new");
        fs::write(&new, ahead.to_string()).unwrap();
        fs::rename(new, &self.ahead).unwrap();
    }

    /// A receiver with this time of day.
    fn follow(&self, address: &str, dest: &Path, args: &[&str]) -> Run {
        let mut command = Command::new(FABRICAST);
        command.env("LD_PRELOAD", &self.library);
        command.env("TEST_AHEAD", &self.ahead);
        follow_by(command, address, dest, args)
    }
}

fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap().as_secs()
}

/// The file in which a receiver notes what it has.
struct Noted(PathBuf);

impl Noted {
    fn read(&self) -> Value {
        serde_json::from_slice(&fs::read(&self.0).unwrap()).unwrap()
    }

    fn times(&self) -> Vec<u64> {
        let noted = self.read();
        let entries = noted["entries"].as_array().unwrap().iter();
        entries
            .map(|entry| entry["time"].as_u64().unwrap())
            .collect()
    }

    fn note(&self, times: &[(&str, u64)]) {
        let mut noted = self.read();
        for entry in noted["entries"].as_array_mut().unwrap() {
            let named = times.iter().find(|(name, _)| entry["name"] == *name);
            entry["time"] = json!(named.unwrap().1);
        }
        fs::write(&self.0, noted.to_string()).unwrap();
    }
}

/// What came while the clock was wrong has the right age from the moment in which it is set, also
/// for the next start.
#[test]
fn to_set_the_time_of_day_makes_nothing_old() {
    let dir = Scratch::new();
    let feed = feed_in(&dir);
    let (sender, address) = serve(&feed, "0", &[]);
    publish(&feed, "a", b"kept");
    let (clock, to) = (Clock::new(&dir), dir.path("to"));
    let begun = now();
    clock.set(-100 * 86_400);
    let mut run = clock.follow(&address, &to, &[]);
    until_all(&mut run, 1);
    clock.set(0);
    let noted = Noted(to.join("feed/.fabricast-feed.json"));
    wait_until(|| noted.times()[0] + 5 >= begun);
    ends(run);
    let mut run = follow(&address, &to, &["--keep-for", "720h"]);
    until_all(&mut run, 1);
    assert_eq!(ends(run).all("removed").count(), 0);
    ends(sender);
}

/// A host without a battery notes times of 1970 until its clock is set. Nobody knows how old the
/// entries of an earlier start are then, and they are not removed for their age.
#[test]
fn entries_of_1970_are_not_old() {
    let dir = Scratch::new();
    let feed = feed_in(&dir);
    let (sender, address) = serve(&feed, "0", &[]);
    for name in ["early", "late", "old"] {
        publish(&feed, name, b"bytes");
    }
    let (clock, to) = (Clock::new(&dir), dir.path("to"));
    let mut run = follow(&address, &to, &[]);
    until_all(&mut run, 3);
    ends(run);
    let noted = Noted(to.join("feed/.fabricast-feed.json"));
    // The clock is right when the last one comes, and wrong again at the next start.
    noted.note(&[("early", 7), ("late", 500_000), ("old", now() - 7200)]);
    clock.set(60 - now() as i64);
    let mut run = clock.follow(&address, &to, &["--keep-for", "1h"]);
    until_all(&mut run, 3);
    clock.set(0);
    let removed = run.until("removed", |_| true);
    let path = removed["path"].as_str().unwrap();
    assert!(path.ends_with("/old"), "{removed}");
    assert_eq!(ends(run).all("removed").count(), 1);
    ends(sender);
}
