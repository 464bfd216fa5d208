//! `fabricast-lab sim compare`: `auto` beside the papers' schemes, cell by cell.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use fabricast::error::exit;
use fabricast_console::units;
use fabricast_lab::compare::{AUTO, Cell, Comparison, Entry, Fate, Standing, Verdict, compare};
use serde_json::{Value, json};

use super::{at_once, written};
use crate::args::Compare;

/// Runs the command and returns the exit code.
pub fn run(args: &Compare, interrupt: &AtomicBool) -> u8 {
    match compare_all(args, interrupt) {
        Ok(code) => code,
        Err(e) => written(Err(e), exit::OK),
    }
}

fn compare_all(args: &Compare, interrupt: &AtomicBool) -> io::Result<u8> {
    let mut out = io::stdout().lock();
    let cells = cells(args);
    let schemes = |cell: &Cell| match args.schemes.is_empty() {
        true => cell.presets(),
        false => args.schemes.clone(),
    };
    let runs = cells
        .iter()
        .map(|c| (1 + schemes(c).len() as u64) * args.seeds);
    let bar = fabricast_console::bar(runs.sum());
    let mut done = Vec::new();
    for &cell in &cells {
        let text = format!("{} nodes, {} B, {}", cell.nodes, cell.len, cell.loss);
        bar.set_message(text);
        let go_on = || !interrupt.load(Ordering::Relaxed);
        let threads = at_once(args.threads);
        let Some(c) = compare(
            cell,
            &schemes(&cell),
            args.seeds,
            threads,
            &go_on,
            &mut || {
                bar.inc(1);
            },
        ) else {
            break; // interrupted: the cells that are known are printed
        };
        if args.json {
            writeln!(out, "{}", line(&c))?;
            out.flush()?;
        } else if !io::stderr().is_terminal() {
            eprintln!("{}", sentence(&c));
        }
        done.push(c);
    }
    bar.finish_and_clear();
    if !args.json {
        out.write_all(report(args, &done).as_bytes())?;
    }
    out.flush()?;
    Ok(match interrupt.load(Ordering::Relaxed) {
        true => exit::INTERRUPTED,
        false if done.iter().all(|c| c.standing() < Standing::Worse) => exit::OK,
        false => exit::IO,
    })
}

fn cells(args: &Compare) -> Vec<Cell> {
    let mut cells = Vec::new();
    for &nodes in &args.nodes {
        for &len in &args.sizes {
            cells.extend(args.loss.iter().map(|&loss| Cell {
                nodes: nodes as usize,
                len,
                loss,
                payload_size: args.payload_size,
            }));
        }
    }
    cells
}

/// The report: the verdicts, then the times and bytes of each scheme.
fn report(args: &Compare, done: &[Comparison]) -> String {
    let mut text = String::new();
    if args.markdown {
        // Parentheses have a meaning in a shell.
        let quoted = |word: String| match word.contains('(') {
            true => format!("'{word}'"),
            false => word,
        };
        let words: Vec<String> = std::env::args().skip(1).map(quoted).collect();
        text += &format!(
            "# auto beside the papers' schemes\n\n`fabricast-lab {}`, version {}\n\n",
            words.join(" "),
            env!("CARGO_PKG_VERSION")
        );
    }
    let mut part = |title: &str, head: &[&str], rows: &[Vec<String>]| {
        text += &match args.markdown {
            true => format!(
                "## {title}\n\n{}\n",
                fabricast_console::markdown(head, rows)
            ),
            false => format!("{title}\n{}\n", fabricast_console::table(head, rows)),
        };
    };
    let head = [
        "cell",
        "verdict",
        "time",
        "best other",
        "ratio",
        "bytes",
        "best as fast",
        "ratio",
    ];
    let rows: Vec<_> = done.iter().map(verdict_row).collect();
    part("Verdicts on auto", &head, &rows);
    type Show = fn(&Fate) -> String;
    let measures: [(&str, Show); 3] = [
        ("Time until the last receiver has it", time),
        ("Bytes that the root sends", |f| {
            f.cost().map_or("-".into(), |c| units::bytes(c.root_bytes))
        }),
        ("Feedback that the root reads", |f| {
            f.cost().map_or("-".into(), |c| c.root_feedback.to_string())
        }),
    ];
    for (title, show) in measures {
        for group in done.chunk_by(|a, b| a.cell.nodes == b.cell.nodes) {
            let entries = |c: &Comparison| -> Vec<Entry> {
                std::iter::once(&c.auto)
                    .chain(&c.presets)
                    .cloned()
                    .collect()
            };
            let names = entries(&group[0]);
            let names = names.iter().map(|e| e.scheme.as_str());
            let head: Vec<&str> = ["size", "loss"].into_iter().chain(names).collect();
            let rows: Vec<Vec<String>> = group
                .iter()
                .map(|c| {
                    let cell = [units::bytes(c.cell.len), c.cell.loss.to_string()];
                    let shown = entries(c);
                    let shown = shown.iter().map(|e| show(&e.fate));
                    cell.into_iter().chain(shown).collect()
                })
                .collect();
            part(
                &format!("{title}, {} nodes", group[0].cell.nodes),
                &head,
                &rows,
            );
        }
    }
    text + &closing(args, done)
}

/// The closing line: how often `auto` was better, equal or worse.
fn closing(args: &Compare, done: &[Comparison]) -> String {
    let count = |s: Standing| done.iter().filter(|c| c.standing() == s).count();
    let [better, equal, worse] = [Standing::Better, Standing::Equal, Standing::Worse].map(count);
    format!(
        "{AUTO} in {} of {} cells: better in {better}, within 5 % in {equal}, worse in {worse} \
         (median of {} {})\n",
        done.len(),
        cells(args).len(),
        args.seeds,
        if args.seeds == 1 { "seed" } else { "seeds" }
    )
}

fn cell_name(c: &Cell) -> String {
    format!("{} nodes, {}, {}", c.nodes, units::bytes(c.len), c.loss)
}

fn verdict_row(c: &Comparison) -> Vec<String> {
    let mut row = vec![cell_name(&c.cell), c.standing().word().to_string()];
    let cost = c.auto.fate.cost();
    let ours = [
        time(&c.auto.fate),
        cost.map_or("-".into(), |c| units::bytes(c.root_bytes)),
    ];
    let verdicts = c.verdicts().map(|v| v.map(|v| v.against));
    for (ours, against) in ours.into_iter().zip(verdicts.unwrap_or_default()) {
        let (name, ratio) = against.map_or(("none".into(), "-".into()), |(name, ratio)| {
            (name, format!("{ratio:.3}"))
        });
        row.extend([ours, name, ratio]);
    }
    row
}

/// The result of a cell, in a sentence.
fn sentence(c: &Comparison) -> String {
    let tell = |what: &str, v: Verdict| match v.against {
        None => format!("{what} {}", v.standing.word()),
        Some((name, ratio)) => format!("{what} {} ({ratio:.3} x {name})", v.standing.word()),
    };
    let verdicts = match c.verdicts() {
        Some([t, b]) => format!("{}; {}", tell("time", t), tell("bytes", b)),
        None => time(&c.auto.fate),
    };
    format!("{}: {verdicts}", cell_name(&c.cell))
}

fn time(fate: &Fate) -> String {
    match fate {
        Fate::Cost(cost, 0) => units::time(cost.slowest),
        Fate::Cost(cost, given_up) => {
            format!("{} ({given_up} given up)", units::time(cost.slowest))
        }
        Fate::GivenUp(after) => format!("> {}", units::time(*after)),
        Fate::Wrong(failure) => format!("WRONG {failure}"),
    }
}

fn line(c: &Comparison) -> Value {
    let entry = |e: &Entry| {
        let fate = match &e.fate {
            Fate::Cost(cost, given_up) => json!({
                "seconds": cost.slowest.as_secs_f64(),
                "root_bytes": cost.root_bytes,
                "root_feedback": cost.root_feedback,
                "events": cost.events,
                "given_up": given_up,
            }),
            Fate::GivenUp(after) => json!({"given_up_after_seconds": after.as_secs_f64()}),
            Fate::Wrong(failure) => json!({"wrong": failure.to_string()}),
        };
        json!({"scheme": e.scheme, "result": fate})
    };
    let verdict = |v: Verdict| {
        let (against, ratio) = v.against.unzip();
        json!({"verdict": v.standing.word(), "against": against, "ratio": ratio})
    };
    let verdicts = c.verdicts().map(|v| v.map(verdict));
    let [time, bytes] = verdicts.unwrap_or_default();
    let schemes: Vec<Value> = std::iter::once(&c.auto)
        .chain(&c.presets)
        .map(entry)
        .collect();
    json!({
        "nodes": c.cell.nodes,
        "bytes": c.cell.len,
        "loss": c.cell.loss.mean,
        "burst": c.cell.loss.burst,
        "chunk": c.cell.payload_size,
        "verdict": c.standing().word(),
        "by_time": time,
        "by_root_bytes": bytes,
        "schemes": schemes,
    })
}
