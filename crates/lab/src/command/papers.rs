//! `fabricast-lab papers`: the papers' experiments in the simulator, and verdicts on the papers'
//! claims.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use fabricast::error::{Error, exit};
use fabricast_lab::calibration::Testbed;
use fabricast_lab::papers::{
    Effort, Stopped, Study, Table, Verdict, experiments, html, run as run_all, verdicts,
};
use indicatif::ProgressBar;
use serde_json::json;

use crate::args::{Paper, Papers};
use crate::live;

use super::{at_once, fail, print};

/// Runs the command and returns the exit code.
pub fn run(args: &Papers, interrupt: &AtomicBool) -> u8 {
    let go_on = || !interrupt.load(Ordering::Relaxed);
    if let Some(asker) = args.answer {
        return live::answer(asker, &go_on).map_or_else(|e| fail(&e), |()| exit::OK);
    }
    let prepared = prepare(args).and_then(|()| live::ask(&args.live));
    let live = match prepared {
        Ok(live) => live,
        Err(e) => return fail(&e),
    };
    let testbed = args.paper.map(|paper| match paper {
        Paper::P1 => Testbed::P1,
        Paper::P2 => Testbed::P2,
        Paper::P3 => Testbed::P3,
        Paper::P4 => Testbed::P4,
        Paper::P5 => Testbed::P5,
    });
    let chosen = experiments(testbed);
    let bar = match args.json {
        true => ProgressBar::hidden(),
        false => fabricast_console::bar(chosen.len() as u64),
    };
    let effort = Effort {
        quick: args.quick,
        threads: at_once(0),
        go_on: &go_on,
        live: &live,
    };
    let mut begun = 0;
    let studies = run_all(&chosen, &effort, &mut |name| {
        bar.set_position(begun);
        bar.set_message(name);
        begun += 1;
    });
    bar.finish_and_clear();
    let studies = match studies {
        Ok(studies) => studies,
        Err((_, Stopped::Interrupted)) => return exit::INTERRUPTED,
        Err((name, Stopped::Failed(failure))) => {
            eprintln!("fabricast-lab: {name}: {failure}");
            return exit::IO;
        }
    };
    let text = match args.json {
        true => lines(&studies),
        false => words(&studies),
    };
    match write(args, &studies) {
        Ok(()) => print(&text),
        Err(e) => fail(&e),
    }
}

fn put(path: &Path, text: &str) -> Result<(), Error> {
    fs::write(path, text).map_err(|e| Error::io(format!("writing {}", path.display()), e))
}

/// Checks the arguments and the place for the report, so that an error shows before the
/// simulations.
fn prepare(args: &Papers) -> Result<(), Error> {
    if !args.live.is_empty()
        && matches!(
            args.paper,
            Some(Paper::P1 | Paper::P3 | Paper::P4 | Paper::P5)
        )
    {
        let text = "--live is of an experiment of P2: `fabricast-lab papers p2 --live ADDR,…`";
        return Err(Error::Usage(text.into()));
    }
    if let Some(dir) = &args.out {
        fs::create_dir_all(dir).map_err(|e| Error::io(format!("making {}", dir.display()), e))?;
    }
    let Some(file) = &args.html else {
        return Ok(());
    };
    // An older report stays as it is until the new one is written.
    let is_new = !file.exists();
    let opened = OpenOptions::new().append(true).create(true).open(file);
    opened
        .and_then(|_| {
            if is_new {
                fs::remove_file(file)
            } else {
                Ok(())
            }
        })
        .map_err(|e| Error::io(format!("writing {}", file.display()), e))
}

fn write(args: &Papers, studies: &[Study]) -> Result<(), Error> {
    let report = || html::report(studies, args.quick);
    if let Some(dir) = &args.out {
        put(&dir.join("report.html"), &report())?;
        for plot in studies.iter().flat_map(|s| &s.findings.plots) {
            put(&dir.join(plot.name).with_extension("svg"), &plot.svg())?;
        }
    }
    if let Some(file) = &args.html {
        put(file, &report())?;
    }
    Ok(())
}

/// The output for people: each experiment's tables, then the verdicts.
fn words(studies: &[Study]) -> String {
    let mut text = String::new();
    for e in experiments(None) {
        for study in studies.iter().filter(|s| s.name == e.name) {
            let paper = e.testbed.key().to_uppercase();
            let _ = writeln!(text, "{}: {} ({paper} {})", e.name, e.title, e.reproduces);
            for table in &study.findings.tables {
                let _ = writeln!(text, "{}\n{}", table.title, cells(table));
            }
        }
    }
    let number = |n: Option<f64>| n.map_or("-".to_owned(), |n| format!("{n:.2}"));
    let row = |v: &Verdict| {
        let (claim, figure) = (v.claim.text.to_owned(), v.claim.figure.to_string());
        let (model, simulated) = (number(v.model), number(v.simulated));
        vec![
            v.claim.id.to_owned(),
            claim,
            figure,
            model,
            simulated,
            v.ruling.to_string(),
        ]
    };
    let all = verdicts(studies);
    let rows: Vec<Vec<String>> = all.iter().map(row).collect();
    let head = ["name", "result", "paper", "model", "simulated", "verdict"];
    let _ = writeln!(text, "Verdicts\n{}", fabricast_console::table(&head, &rows));
    for v in all.iter().filter(|v| !v.remark.is_empty()) {
        let _ = writeln!(text, "{} ({}): {}", v.claim.id, v.ruling, v.remark);
    }
    text
}

fn cells(table: &Table) -> String {
    let head: Vec<&str> = table.head.iter().map(String::as_str).collect();
    fabricast_console::table(&head, &table.rows)
}

/// The output for programs: a line for each table, then one for each verdict.
fn lines(studies: &[Study]) -> String {
    let mut text = String::new();
    for study in studies {
        for table in &study.findings.tables {
            let line = json!({"event": "table", "experiment": study.name, "title": table.title,
                "head": table.head, "rows": table.rows});
            let _ = writeln!(text, "{line}");
        }
    }
    for v in verdicts(studies) {
        let line = json!({"event": "verdict", "name": v.claim.id, "text": v.claim.text,
            "paper": v.claim.figure.to_string(), "model": v.model, "simulated": v.simulated,
            "verdict": v.ruling, "remark": v.remark});
        let _ = writeln!(text, "{line}");
    }
    text
}
