//! `fabricast-lab model`: tables, JSON lines, and messages about mistakes.

mod common;

use std::process::Output;

use common::{Lines, lines, run};

/// Runs the command with its output for people.
fn words(args: &[&str]) -> Output {
    run(&[&["model"], args].concat())
}

fn text(args: &[&str]) -> String {
    let out = words(args);
    assert!(out.status.success(), "{out:?}");
    String::from_utf8(out.stdout).unwrap()
}

/// Runs the command with its output for programs.
fn told(args: &[&str]) -> Lines {
    lines(&[&["model"], args].concat())
}

/// The message about a mistake.
fn refused(args: &[&str]) -> String {
    let out = words(args);
    assert_eq!(out.status.code(), Some(2), "{out:?}");
    assert!(out.stdout.is_empty());
    String::from_utf8(out.stderr).unwrap()
}

#[test]
fn predictions_tell_whether_they_were_calibrated() {
    let end = told(&["--nodes", "8,1024", "--sizes", "1K", "--groups", "2"]);
    let gain = |nodes: u64| {
        let mut all = end
            .all("prediction")
            .filter(|e| e["nodes"] == nodes && e["column"] == "gain" && e["quantity"] == "latency");
        all.next().unwrap()
    };
    assert_eq!(gain(8)["standing"], "calibrated");
    assert_eq!(gain(8)["measure"], "ratio");
    assert!((gain(8)["value"].as_f64().unwrap() - 1.58).abs() < 0.01);
    assert_eq!(gain(1024)["standing"], "predicted");
    assert!((gain(1024)["value"].as_f64().unwrap() - 4.86).abs() < 0.05);
    let claim = end
        .all("claim")
        .find(|e| e["name"] == "p1-latency-1024")
        .unwrap();
    assert_eq!(claim["standing"], "predicted");
    assert_eq!(claim["held"], true);
    for value in end.all("value") {
        for key in ["name", "unit", "kind", "origin"] {
            assert!(value[key].is_string(), "{value}");
        }
    }
    assert!(end.all("not_modelled").count() > 0);
}

#[test]
fn a_value_that_is_given_replaces_the_calibrated_one() {
    let end = told(&[
        "--calibration",
        "p4",
        "--nodes",
        "8",
        "--sizes",
        "8",
        "--set",
        "broadcast_us=10",
    ]);
    let value = end
        .all("value")
        .find(|e| e["name"] == "broadcast_us")
        .unwrap();
    assert_eq!(value["kind"], "given");
    assert_eq!(value["value"], 10.0);
    let sixteen = end
        .all("prediction")
        .find(|e| e["column"] == "16 channels")
        .unwrap();
    assert!(sixteen["value"].as_f64().unwrap() > 10.0);
    let tables = text(&["--calibration", "p4", "--set", "broadcast_us=10"]);
    assert!(
        tables.contains("broadcast_us = 10 µs, given instead of 3.41 (fitted)"),
        "{tables}"
    );
    assert!(tables.contains("NOT HELD"), "{tables}");
}

#[test]
fn tables_for_people() {
    let tables = text(&["--nodes", "8,1024", "--sizes", "1024"]);
    for part in [
        "co-root 128",
        "1.58x*",
        "4.88x",
        "best groups",
        "* calibrated",
        "held",
        "not modelled",
    ] {
        assert!(tables.contains(part), "no {part:?} in\n{tables}");
    }
    assert!(!tables.contains("4.88x*"), "{tables}");
    let p2 = text(&["--calibration", "p2", "--ways", "1,3", "--nodes", "64"]);
    for part in ["library", "n = 3", "best n", "LogP"] {
        assert!(p2.contains(part), "no {part:?} in\n{p2}");
    }
    let p4 = text(&[
        "--calibration",
        "p4",
        "--channels",
        "2,16",
        "--per-node",
        "4",
    ]);
    for part in ["2 channels", "16 channels", "generic", "8.91*"] {
        assert!(p4.contains(part), "no {part:?} in\n{p4}");
    }
    let values = text(&["--values"]);
    for part in ["t_pp_us", "ns/byte", "assumed", "calibrates p1-latency-8"] {
        assert!(values.contains(part), "no {part:?} in\n{values}");
    }
    assert!(!values.contains("best groups"));
    let claims = text(&["--claims"]);
    assert!(
        claims.contains("p1-large-2k") && !claims.contains("best groups"),
        "{claims}"
    );
}

#[test]
fn mistakes_are_told_with_the_next_step() {
    let unknown = refused(&["--set", "t_xx=1"]);
    assert!(
        unknown.contains("t_pp_us") && unknown.contains("--calibration p1 --values"),
        "{unknown}"
    );
    let negative = refused(&["--set", "t_pp_us=-1"]);
    assert!(negative.contains("from 0"), "{negative}");
    let no_number = refused(&["--set", "t_pp_us=fast"]);
    assert!(no_number.contains("t_pp_us=7"), "{no_number}");
    let elsewhere = refused(&["--channels", "4"]);
    assert!(elsewhere.contains("use it with p4"), "{elsewhere}");
    let groups = refused(&["--nodes", "8", "--groups", "9"]);
    assert!(groups.contains("fewer --groups"), "{groups}");
    let ways = refused(&["--calibration", "p2", "--nodes", "8", "--ways", "8"]);
    assert!(ways.contains("fewer --ways"), "{ways}");
    let one = refused(&["--nodes", "1"]);
    assert!(one.contains("2..=1048576"), "{one}");
    let paper = refused(&["--calibration", "p3"]);
    assert!(paper.contains("p1, p2, p4"), "{paper}");
}
