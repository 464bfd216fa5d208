//! `fabricast-lab sim compare`: a cell as JSON and as a table, and messages about mistakes. Also
//! how the other `sim` commands end.

mod common;

use std::fs::File;
use std::io::Read;
use std::process::{Output, Stdio};

use common::{lab, run};
use rustix::process::{Pid, Signal};

/// Runs the smallest possible comparison, with more options.
fn compare(args: &[&str]) -> Output {
    let cell = [
        "--nodes", "3", "--sizes", "4", "--loss", "0", "--seeds", "1",
    ];
    run(&[&["sim", "compare"], &cell[..], args].concat())
}

#[test]
fn a_cell_is_a_line_for_programs() {
    let out = compare(&["--schemes", "basic,coroot(2)+aggregate(10)", "--json"]);
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    let line: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(line["verdict"], "better");
    assert_eq!(line["by_time"]["against"], "basic");
    let schemes = line["schemes"].as_array().unwrap();
    let names: Vec<_> = schemes
        .iter()
        .map(|s| s["scheme"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["auto", "basic", "coroot(2)+aggregate(10)"]);
    assert!(
        schemes
            .iter()
            .all(|s| s["result"]["seconds"].as_f64() > Some(0.0))
    );
}

#[test]
fn tables_end_with_a_count() {
    let out = compare(&["--markdown"]);
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(
        text.contains("`fabricast-lab sim compare --nodes 3 "),
        "{text}"
    );
    assert!(text.contains("\n| 3 nodes, 4 B, 0 % | better | "), "{text}");
    assert!(
        text.ends_with(
            "auto in 1 of 1 cells: better in 1, within 5 % in 0, worse in 0 (median of 1 seed)\n"
        ),
        "{text}"
    );
}

#[test]
fn an_unknown_scheme_is_refused() {
    let out = compare(&["--schemes", "basics"]);
    assert_eq!(out.status.code(), Some(2), "{out:?}");
    assert!(
        String::from_utf8(out.stderr)
            .unwrap()
            .contains("no scheme 'basics'")
    );
}

#[test]
fn what_cannot_be_simulated_is_refused() {
    for (args, said) in [
        (["--sizes", "99999999999G"], "at most 1G"),
        (["--loss", "100"], "at most 50 %"),
        (["--threads", "100000"], "1024"),
    ] {
        let command = ["sim", "compare", args[0], args[1]];
        assert_refused(&command, said);
    }
    assert_refused(&["sim", "soak", "--seeds", "0"], "0 is not in 1");
}

fn assert_refused(args: &[&str], said: &str) {
    let out = run(args);
    assert_eq!(out.status.code(), Some(2), "{out:?}");
    let text = String::from_utf8(out.stderr).unwrap();
    assert!(text.contains(said), "{text}");
}

#[test]
fn what_cannot_be_written_is_an_error_and_a_closed_pipe_is_none() {
    for args in [&["run", "3"][..], &["soak", "--seeds", "2"]] {
        let lab = || {
            let mut command = lab(&[&["sim"], args].concat());
            command.stderr(Stdio::piped());
            command
        };
        let full = File::options().write(true).open("/dev/full").unwrap();
        let out = lab().stdout(full).output().unwrap();
        assert_eq!(out.status.code(), Some(1), "{out:?}");
        let text = String::from_utf8(out.stderr).unwrap();
        assert!(text.contains("writing to standard output"), "{text}");

        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let out = lab().stdout(writer).output().unwrap();
        assert_eq!(out.status.code(), Some(0), "{out:?}");
    }
}

#[test]
fn a_table_is_left_at_once() {
    let mut command = lab(&["sim", "bench", "--times", "1000000"]);
    let mut run = command.stdout(Stdio::piped()).spawn().unwrap();
    // The command prints its first words only after it watches signals.
    let mut word = [0];
    run.stdout.as_mut().unwrap().read_exact(&mut word).unwrap();
    rustix::process::kill_process(Pid::from_child(&run), Signal::INT).unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(130));
}
