//! `fabricast-lab papers`: tables, verdicts, the report, and messages about mistakes.

mod common;

use std::fs;
use std::process::Output;

use common::{lines, run, scratch};

fn papers(args: &[&str]) -> Output {
    run(&[&["papers"], args].concat())
}

#[test]
fn the_report_stands_alone_and_plots_are_files() {
    let scratch = scratch("the_report_stands_alone");
    let (out, html) = (scratch.join("out"), scratch.join("report.html"));
    let (out_arg, html_arg) = (out.to_str().unwrap(), html.to_str().unwrap());
    let run = papers(&["p4", "--quick", "--out", out_arg, "--html", html_arg]);
    assert!(run.status.success(), "{run:?}");
    let text = String::from_utf8(run.stdout).unwrap();
    for part in [
        "figure 7",
        "16 channels",
        "Verdicts",
        "p4-channels-2",
        "17.1",
        "calibrated",
    ] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    assert!(!text.contains("p1-"), "{text}");
    let report = fs::read_to_string(&html).unwrap();
    assert_eq!(report, fs::read_to_string(out.join("report.html")).unwrap());
    assert!(report.contains("id=\"p4-scale\"") && report.contains("<svg"));
    for outside in ["http", "src=", "href=", "url("] {
        assert!(!report.contains(outside), "{outside}");
    }
    let plot = fs::read_to_string(out.join("p4-channels.svg")).unwrap();
    assert!(plot.starts_with("<svg") && plot.contains("paper"), "{plot}");
}

#[test]
fn programs_get_a_line_for_each_verdict() {
    let end = lines(&["papers", "p4", "--quick"]);
    let verdict = |name: &str| {
        let mut all = end.all("verdict").filter(|e| e["name"] == name);
        all.next().unwrap()
    };
    let two = verdict("p4-channels-2");
    assert_eq!(two["verdict"], "calibrated");
    assert_eq!(two["paper"], "17.1");
    assert!(
        (two["simulated"].as_f64().unwrap() - 17.1).abs() < 1.0,
        "{two}"
    );
    let generic = verdict("p4-generic");
    assert_eq!(generic["verdict"], "not_held");
    assert!(generic["remark"].as_str().unwrap().contains("overlap"));
    assert_eq!(
        verdict("p4-libraries")["simulated"],
        serde_json::Value::Null
    );
    assert!(end.all("table").count() >= 4);
}

#[test]
fn mistakes_are_told() {
    let said = |args: &[&str], code| {
        let out = papers(args);
        assert_eq!(out.status.code(), Some(code), "{out:?}");
        String::from_utf8(out.stderr).unwrap()
    };
    let paper = said(&["p6"], 2);
    assert!(paper.contains("p1, p2, p3, p4"), "{paper}");
    // The error comes before anything is simulated.
    let nowhere = said(&["--html", "/dev/null/report.html"], 1);
    assert!(nowhere.contains("/dev/null/report.html"), "{nowhere}");
    let other = said(&["p4", "--live", "127.0.0.1"], 2);
    assert!(other.contains("p2 --live"), "{other}");
    let both = said(&["p2", "--answer", "127.0.0.1"], 2);
    assert!(both.contains("--answer"), "{both}");
    let no_dir = said(&["--out", "/dev/null/x"], 1);
    assert!(no_dir.contains("/dev/null/x"), "{no_dir}");
}

#[test]
fn a_run_that_fails_leaves_the_older_report() {
    let scratch = scratch("a_run_that_fails");
    let (older, dir) = (scratch.join("older.html"), scratch.join("plots"));
    fs::write(&older, "older").unwrap();
    // The command cannot write its report at the place of the first one: a directory is there.
    fs::create_dir_all(dir.join("report.html")).unwrap();
    let [older_name, dir] = [&older, &dir].map(|p| p.to_str().unwrap());
    let out = papers(&["p4", "--quick", "--html", older_name, "--out", dir]);
    assert_eq!(out.status.code(), Some(1), "{out:?}");
    assert_eq!(fs::read_to_string(&older).unwrap(), "older");
}
