//! The HTML report, one file that needs no other: verdicts first, then method and calibration, then
//! each experiment.

use std::fmt::Write;

use crate::calibration::{Calibration, Testbed};

use super::{Experiment, Ruling, Study, Table, Verdict, experiments, verdicts};

const STYLE: &str = "\
body{font:15px/1.45 sans-serif;color:#222;max-width:72em;margin:2em auto;padding:0 1em}\
table{border-collapse:collapse;margin:.8em 0;font-size:13px}\
th,td{border-bottom:1px solid #ddd;padding:.25em .7em;text-align:right;vertical-align:top}\
th:first-child,td:first-child,td.w,th.w{text-align:left}\
.held{color:#060}.calibrated{color:#555}.not-held{color:#a00;font-weight:bold}.open{color:#888}\
svg{max-width:100%;height:auto}h2{margin-top:2em;border-bottom:2px solid #ddd}";

const METHOD: &str = "\
<p>Every experiment runs the protocol that also runs over UDP, on simulated hosts and switches \
under virtual time; a scheme is a value and has no code of its own. <em>Original</em> and the \
<em>generic tree</em> are a binomial tree of messages between two. Nothing is lost in these tests, \
virtual time has no noise, and the same command gives the same numbers: where a paper takes \
thousands of samples, one run with its warm-ups says the same.</p>\
<p>A host's processor is busy for each datagram that it sends or receives, by kind: a message to \
one host, a long message (by rendezvous), a multicast, and a word (feedback without a payload, \
which the papers write into memory one-sidedly). Switches pass a packet on as soon as it begins to \
arrive. These costs follow from the values below and from nothing else: one set for all of P1, one \
for all of P4. A host looks for arrivals between any two packets that it sends.</p>\
<p>What is modelled and not simulated: the rendezvous of long messages is a longer way; P4's other \
processes on a host are served by shared memory, a time that is added; P4's checksum is computed \
and checked, its cost is charged to the root's processor; one of P4's channels is taken by the \
verdict, which is not sent here, because the root is the manager.</p>\
<p>P3's hosts cost nothing. Their links have the rate of the values below, and the headers that \
InfiniBand's specification gives reliable connections and multicast datagrams.</p>\
<p>P5's hosts have links of 8 Gbit/s and processors that take 0.5 &micro;s to send a datagram and \
1 &micro;s to receive one, which are assumed. Its subnet manager answers joins one by one and \
writes the switches' tables afterwards, by packets (SMPs) of which a number may be under way, with \
times measured at a real OpenSM. All messages between hosts take 20 to 50 &micro;s.</p>\
<p><b>held</b>: the simulation is within 10 % of the paper's number, or keeps its bound, and \
no value was fitted to it. <b>calibrated</b>: it is, and values were fitted to this very \
number, so that agreement shows no more than that the simulation is the model's equal; or the \
text does not name the place of the number (\"somewhere\"), and the place was searched where \
the simulation comes nearest. <b>not held</b>: it is not, and the reason is given. \
<b>open</b>: the text names no number. Of the papers' plots only what their texts say is \
known.</p>";

/// The whole report.
pub fn report(studies: &[Study], quick: bool) -> String {
    let mut out = String::new();
    // Results are ignored, since writing to a string cannot fail.
    let _ = write!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <title>Fabricast: the papers' experiments</title><style>{STYLE}</style></head><body>\n\
         <h1>The papers' experiments, simulated</h1>\n"
    );
    if quick {
        out.push_str("<p><b>Quick run</b>: fewer sizes, nodes and repetitions than usual.</p>\n");
    }
    let verdicts = verdicts(studies);
    let count = |r| verdicts.iter().filter(|v| v.ruling == r).count();
    let _ = writeln!(
        out,
        "<h2 id=\"verdicts\">Verdicts</h2><p>{} held, {} calibrated, {} not held, {} open.</p>",
        count(Ruling::Held),
        count(Ruling::Calibrated),
        count(Ruling::NotHeld),
        count(Ruling::Open)
    );
    verdict_table(&mut out, &verdicts);
    let _ = writeln!(out, "<h2 id=\"method\">Method</h2>{METHOD}");
    let run: Vec<&Experiment> = experiments(None)
        .into_iter()
        .filter(|e| studies.iter().any(|s| s.name == e.name))
        .collect();
    for testbed in Testbed::ALL {
        if run.iter().any(|e| e.testbed == testbed) {
            calibration(&mut out, testbed);
        }
    }
    for (experiment, study) in run.iter().flat_map(|e| {
        studies
            .iter()
            .filter(|s| s.name == e.name)
            .map(move |s| (e, s))
    }) {
        section(&mut out, experiment, study);
    }
    out.push_str("</body></html>\n");
    out
}

fn verdict_table(out: &mut String, verdicts: &[Verdict]) {
    out.push_str(
        "<table><tr><th>claim</th><th \
         class=w>result</th><th>paper</th><th>model</th><th>simulated</th>\
         <th class=w>verdict</th><th class=w>remark</th></tr>\n",
    );
    for v in verdicts {
        let class = match v.ruling {
            Ruling::Held => "held",
            Ruling::Calibrated => "calibrated",
            Ruling::NotHeld => "not-held",
            Ruling::Open => "open",
        };
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td class=w>{}</td><td>{}</td><td>{}</td><td>{}</td><td class=\"w \
             {class}\">{}</td>\
             <td class=w>{}</td></tr>",
            v.claim.id,
            escaped(v.claim.text),
            escaped(&v.claim.figure.to_string()),
            number(v.model),
            number(v.simulated),
            v.ruling,
            escaped(v.remark)
        );
    }
    out.push_str("</table>\n");
}

fn calibration(out: &mut String, testbed: Testbed) {
    let _ = writeln!(
        out,
        "<h2 id=\"calibration-{0}\">Calibration of \
         {0}</h2><p>{1}</p>\n<table><tr><th>value</th><th></th>\
         <th class=w>kind</th><th class=w>origin</th><th class=w>calibrates</th></tr>",
        testbed.key(),
        escaped(testbed.title())
    );
    for (name, v) in Calibration::of(testbed).values() {
        let _ = writeln!(
            out,
            "<tr><td>{name}</td><td>{} {}</td><td class=w>{}</td><td class=w>{}</td><td \
             class=w>{}</td></tr>",
            v.value,
            v.unit,
            v.kind,
            escaped(&v.origin),
            v.fits.join(", ")
        );
    }
    out.push_str("</table>\n");
}

fn section(out: &mut String, experiment: &Experiment, study: &Study) {
    let _ = writeln!(
        out,
        "<h2 id=\"{}\">{}</h2><p>Reproduces {} {}. {}</p>",
        experiment.name,
        escaped(experiment.title),
        experiment.testbed.key().to_uppercase(),
        escaped(experiment.reproduces),
        escaped(experiment.method)
    );
    for plot in &study.findings.plots {
        // In HTML an image needs no name space.
        let svg = plot.svg();
        let _ = writeln!(
            out,
            "{}",
            svg.replace(" xmlns=\"http://www.w3.org/2000/svg\"", "")
        );
    }
    for table in &study.findings.tables {
        rows(out, table);
    }
}

fn rows(out: &mut String, table: &Table) {
    let _ = write!(out, "<p>{}</p>\n<table><tr>", escaped(&table.title));
    for name in &table.head {
        let _ = write!(out, "<th>{}</th>", escaped(name));
    }
    out.push_str("</tr>\n");
    for row in &table.rows {
        out.push_str("<tr>");
        for cell in row {
            let _ = write!(out, "<td>{}</td>", escaped(cell));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</table>\n");
}

fn number(n: Option<f64>) -> String {
    n.map_or("-".into(), |n| format!("{n:.2}"))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::papers::{Findings, Found, Plot, Points, Series};

    #[test]
    fn it_has_every_section_and_needs_nothing_else() {
        let study = |e: &&'static Experiment| Study {
            name: e.name,
            findings: Findings {
                tables: vec![Table {
                    title: "µs".into(),
                    head: vec!["bytes".into()],
                    rows: vec![vec!["<4".into()]],
                }],
                plots: vec![Plot {
                    name: e.name,
                    title: e.title.into(),
                    x: "bytes",
                    y: "µs",
                    log_y: false,
                    series: vec![Series {
                        name: "window".into(),
                        points: Points::Simulated,
                        at: vec![(4.0, 1.0), (8.0, 2.0)],
                    }],
                }],
                found: vec![Found {
                    claim: "p1-latency-8",
                    number: 1.5,
                    remark: "a < b",
                }],
            },
        };
        let all = experiments(None);
        let studies: Vec<Study> = all.iter().map(study).collect();
        let text = report(&studies, false);
        let verdicts = text.find("id=\"verdicts\"").unwrap();
        for e in all {
            let section = text.find(&format!("id=\"{}\"", e.name));
            assert!(section.is_some_and(|at| at > verdicts), "{}", e.name);
        }
        for part in [
            "id=\"method\"",
            "id=\"calibration-p1\"",
            "t_pp_us",
            "&lt;4",
            "a &lt; b",
        ] {
            assert!(text.contains(part), "no {part}");
        }
        for outside in ["http", "src=", "href=", "url(", "@import"] {
            assert!(!text.contains(outside), "{outside}");
        }
    }
}
