//! The `demo` command.

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::common::{self, FABRICAST, Scratch, Terminal};
use rustix::process::Signal;

/// The loopback has no link. Without the emulated link multicast would be slower than unicast.
#[test]
fn the_demo_charges_each_copy_to_its_link() {
    let args = ["demo", "--size", "2M", "--receivers", "3"];
    let link = ["--link", "50Mbit", "--loss", "0"];
    let mut command = Command::new(FABRICAST);
    let output = command.args(args).args(link).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let row = |way: &str| {
        let mut lines = text.lines().filter(|l| l.starts_with(way));
        let line = lines.find(|l| l.contains("x the file")).unwrap();
        let (seconds, rest) = line[way.len()..].trim().split_once(" s ").unwrap();
        let (_, multiple) = rest.split_once('(').unwrap();
        let multiple = multiple.split(' ').next().unwrap();
        (seconds.parse::<f64>().unwrap(), multiple.parse().unwrap())
    };
    let (_, once): (_, f64) = row("multicast");
    let (seconds, each): (_, f64) = row("unicast");
    assert!(once < 1.5 && each > 2.9, "{text}");
    // The link's limit: three copies of 2 MiB at 50 Mbit/s.
    assert!(seconds > 0.95, "{text}");
}

/// Ctrl-C is reported once, and a closed standard output causes no panic.
#[test]
fn the_demo_ends_quietly() {
    let end = common::shell(&format!(
        "{FABRICAST} demo --receivers 1 --size 64K | head -1"
    ))
    .end();
    assert_eq!((end.code, end.stderr.as_str()), (Some(0), ""));
    // A process group of its own, as a terminal creates one; the last signal goes to the whole
    // group.
    let dir = Scratch::new();
    let mut command = Command::new(FABRICAST);
    command.args(["demo", "--link", "1Mbit", "--size", "8M", "--dir"]);
    command.arg(dir.path(""));
    command.process_group(0);
    let mut demo = Terminal::start(command);
    demo.until("slowest 0%");
    demo.signal_group(Signal::INT);
    let said = demo.until("interrupted").to_owned();
    assert!(!said.contains("null"), "{said}");
    assert_eq!(said.matches("interrupted").count(), 1, "{said}");
    assert_eq!(demo.end(), Some(130));
    assert!(dir.names().is_empty());
}
