//! `fabricast sim compare`: a cell as JSON, as a table, and what it says of mistakes.

use std::process::{Command, Output};

/// The smallest comparison there is, with more options.
fn compare(args: &[&str]) -> Output {
    let cell = [
        "--nodes", "3", "--sizes", "4", "--loss", "0", "--seeds", "1",
    ];
    let mut command = Command::new(env!("CARGO_BIN_EXE_fabricast"));
    let command = command.args(["sim", "compare"]).args(cell).args(args);
    command.output().unwrap()
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
    assert!(text.contains("`fabricast sim compare --nodes 3 "), "{text}");
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
