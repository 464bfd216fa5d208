//! `fabricast-lab model`: predictions of the papers' models, as tables or JSON lines.

use std::fmt::Write as _;

use fabricast::error::Error;
use fabricast_lab::calibration::{Calibration, Kind, Testbed};
use fabricast_lab::model::claims::{self, outcomes};
use fabricast_lab::model::predict::Measure;
use fabricast_lab::model::{Grid, Outcome, Prediction, Says, Standing, predict};
use serde_json::{Value, json};

use super::{fail, print};
use crate::args::{Calibrated, Model};

/// Runs the command and returns the exit code.
pub fn run(args: &Model) -> u8 {
    let text = match (calibration(args), grid(args)) {
        (Ok(c), Ok(grid)) => match args.json {
            true => lines(args, &c, &grid),
            false => tables(args, &c, &grid),
        },
        (Err(e), _) | (_, Err(e)) => return fail(&e),
    };
    print(&text)
}

fn testbed(args: &Model) -> Testbed {
    match args.calibration {
        Calibrated::P1 => Testbed::P1,
        Calibrated::P2 => Testbed::P2,
        Calibrated::P4 => Testbed::P4,
    }
}

/// The calibrated values, replaced by the user's where given.
fn calibration(args: &Model) -> Result<Calibration, Error> {
    let mut c = Calibration::of(testbed(args));
    for (name, value) in &args.set {
        c.set(name, *value).map_err(|e| {
            let key = c.testbed().key();
            Error::Usage(format!(
                "--set {name}={value}: {e}. `fabricast-lab model --calibration {key} --values` \
                 says what each is"
            ))
        })?;
    }
    Ok(c)
}

/// The requested grid. An option that would have no effect is an error.
fn grid(args: &Model) -> Result<Grid, Error> {
    let testbed = testbed(args);
    let mut grid = Grid::of(testbed);
    let lists = [
        ("--nodes", &args.nodes, &mut grid.nodes, &Testbed::ALL[..]),
        (
            "--sizes",
            &args.sizes,
            &mut grid.bytes,
            &[Testbed::P1, Testbed::P4],
        ),
        ("--groups", &args.groups, &mut grid.groups, &[Testbed::P1]),
        (
            "--channels",
            &args.channels,
            &mut grid.channels,
            &[Testbed::P4],
        ),
        ("--ways", &args.ways, &mut grid.ways, &[Testbed::P2]),
    ];
    for (option, given, list, used_by) in lists {
        if given.is_empty() {
            continue;
        }
        used(option, testbed, used_by)?;
        list.clone_from(given);
    }
    if let Some(per_node) = args.per_node {
        used("--per-node", testbed, &[Testbed::P4])?;
        grid.per_node = per_node;
    }
    let most = grid.nodes.iter().copied().max().unwrap_or(0);
    if let Some(groups) = args.groups.iter().find(|&&k| k > most) {
        return Err(Error::Usage(format!(
            "{groups} groups are more than there are nodes ({most}): each group has a node at \
             least. Ask for \
             fewer --groups or more --nodes"
        )));
    }
    if let Some(ways) = args.ways.iter().find(|&&n| n >= most) {
        return Err(Error::Usage(format!(
            "{ways} partners are more than the others there are ({}). Ask for fewer --ways or \
             more --nodes",
            most.saturating_sub(1)
        )));
    }
    Ok(grid)
}

fn used(option: &str, testbed: Testbed, by: &[Testbed]) -> Result<(), Error> {
    if by.contains(&testbed) {
        return Ok(());
    }
    let keys: Vec<&str> = by.iter().map(|t| t.key()).collect();
    Err(Error::Usage(format!(
        "{option} means nothing with --calibration {}; use it with {}",
        testbed.key(),
        keys.join(" or ")
    )))
}

/// The output for people.
fn tables(args: &Model, c: &Calibration, grid: &Grid) -> String {
    let mut text = format!("{}\n", c.testbed().title());
    for (name, v) in c.values().filter(|(_, v)| v.kind == Kind::Given) {
        let _ = writeln!(text, "{name} = {} {}, {}", v.value, v.unit, v.origin);
    }
    if args.values {
        text.push('\n');
        text.push_str(&values(c));
        return text;
    }
    if !args.claims {
        let cells = predict(c, grid);
        // The cells of a table follow each other.
        for table in cells.chunk_by(|a, b| a.quantity == b.quantity) {
            let _ = write!(text, "\n{}\n{}", table[0].quantity, pivot(table));
        }
        text.push_str(
            "\n* calibrated: values were fitted to this very number. All others are predicted.\n",
        );
    }
    text.push_str("\nThe paper's results beside the model's\n");
    text.push_str(&claims(c));
    for (what, why) in not_modelled(c) {
        let _ = writeln!(text, "not modelled: {what}: {why}");
    }
    text
}

/// Claims about which the model says nothing, and why.
fn not_modelled(c: &Calibration) -> impl Iterator<Item = (&'static str, &'static str)> {
    claims::claims(c.testbed()).filter_map(|claim| match claim.model {
        Says::Number(_) => None,
        Says::Nothing(why) => Some((claim.text, why)),
    })
}

/// Formats one table: a row for each number of nodes and bytes, a column for each name.
fn pivot(cells: &[Prediction]) -> String {
    let mut columns: Vec<&str> = Vec::new();
    for cell in cells {
        if !columns.contains(&cell.column.as_str()) {
            columns.push(&cell.column);
        }
    }
    // Columns that only some rows have come in the order of the row with the most columns.
    let rows: Vec<&[Prediction]> = cells
        .chunk_by(|a, b| (a.nodes, a.bytes) == (b.nodes, b.bytes))
        .collect();
    if let Some(full) = rows.iter().find(|row| row.len() == columns.len()) {
        columns = full.iter().map(|cell| cell.column.as_str()).collect();
    }
    let mut head = vec!["nodes", "bytes"];
    head.extend(&columns);
    let line = |row: &&[Prediction]| {
        let mut line = vec![row[0].nodes.to_string(), row[0].bytes.to_string()];
        line.extend(columns.iter().map(|column| {
            let cell = row.iter().find(|cell| cell.column == *column);
            cell.map_or("- ".to_owned(), number)
        }));
        line
    };
    let body: Vec<Vec<String>> = rows.iter().map(line).collect();
    fabricast_console::table(&head, &body)
}

/// Formats a cell: marked if it is calibrated, otherwise with room for the mark.
fn number(cell: &Prediction) -> String {
    let mark = match cell.standing {
        Standing::Calibrated => '*',
        Standing::Predicted => ' ',
    };
    let number = match cell.measure {
        Measure::Us => digits(cell.value),
        Measure::Ratio => format!("{:.2}x", cell.value),
        Measure::Count => format!("{:.0}", cell.value),
    };
    format!("{number}{mark}")
}

fn digits(value: f64) -> String {
    match value {
        v if v < 100.0 => format!("{v:.2}"),
        v if v.fract() == 0.0 => format!("{v:.0}"),
        v if v < 10_000.0 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

fn claims(c: &Calibration) -> String {
    let row = |o: &Outcome| {
        vec![
            o.claim.id.to_owned(),
            o.claim.text.to_owned(),
            o.claim.figure.to_string(),
            digits(o.model),
            o.standing.to_string(),
            verdict(o).to_owned(),
        ]
    };
    let rows: Vec<Vec<String>> = outcomes(c).iter().map(row).collect();
    fabricast_console::table(&["name", "result", "paper", "model", "", ""], &rows)
}

fn verdict(o: &Outcome) -> &'static str {
    match o.held {
        true => "held",
        false => "NOT HELD",
    }
}

fn values(c: &Calibration) -> String {
    let mut text = String::new();
    for (name, v) in c.values() {
        let amount = format!("{} {}", v.value, v.unit);
        let _ = writeln!(
            text,
            "{name:<22}  {amount:<14}  {:<8}  {}",
            v.kind, v.origin
        );
        if !v.fits.is_empty() {
            let _ = writeln!(text, "{:<50}calibrates {}", "", v.fits.join(", "));
        }
    }
    text
}

/// The output for programs.
fn lines(args: &Model, c: &Calibration, grid: &Grid) -> String {
    let mut all: Vec<Value> = Vec::new();
    if args.values || !args.claims {
        for (name, v) in c.values() {
            all.push(event("value", json!({"name": name}), v));
        }
    }
    if !args.values && !args.claims {
        all.extend(
            predict(c, grid)
                .iter()
                .map(|p| event("prediction", json!({}), p)),
        );
    }
    if !args.values {
        for o in outcomes(c) {
            let about = json!({
                "name": o.claim.id, "text": o.claim.text, "paper": o.claim.figure.to_string(),
                "model": o.model, "standing": o.standing, "held": o.held,
            });
            all.push(event("claim", about, &json!({})));
        }
        for (what, why) in not_modelled(c) {
            all.push(event(
                "not_modelled",
                json!({"text": what, "reason": why}),
                &json!({}),
            ));
        }
    }
    let mut text = String::new();
    for line in all {
        let _ = writeln!(text, "{line}");
    }
    text
}

/// A line of JSON: an event of this name with the fields of `known` and those of `value`.
fn event(name: &str, mut known: Value, value: &impl serde::Serialize) -> Value {
    known["event"] = json!(name);
    if let (Value::Object(known), Ok(Value::Object(fields))) =
        (&mut known, serde_json::to_value(value))
    {
        known.extend(fields);
    }
    known
}
