//! The end of a transfer, for `send` and `copy`: the table, the summary, the exit code.

use fabricast::bootstrap::message::ReceiverStatistics;
use fabricast::error::exit;
use fabricast::text::escaped;
use fabricast::transfer::{Part, SendFailure, SendReport, State};
use fabricast_console::{table, units};
use serde_json::{Value, json};

use crate::output::Output;
use crate::sending::share;
use crate::settings::with_options;

/// What has become of a host on which `copy` was to start a receiver.
#[derive(serde::Serialize, Debug)]
pub struct Host {
    /// The host's name.
    pub host: String,
    /// Whether no receiver came from it.
    #[serde(rename = "absent")]
    pub is_absent: bool,
    /// Exit code of its launcher, if it has ended with one.
    pub code: Option<i32>,
    /// The signal that ended its launcher, if one did.
    pub signal: Option<i32>,
    /// What is wrong with it, in words; `None` if it has the files.
    pub reason: Option<String>,
    /// The last lines that its launcher and its receiver have printed.
    pub lines: Vec<String>,
}

/// Prints what has become of each receiver, the summary, and why the transfer failed if it did.
/// Returns the exit code. `hosts` are those of a copy: all of them must have the files.
pub fn conclude(out: &mut Output, result: Result<SendReport, SendFailure>, hosts: &[Host]) -> u8 {
    let mut report = match result {
        Ok(report) => report,
        Err(SendFailure { error, report }) => {
            if let Some(mut report) = report {
                results(out, &mut report, hosts, error.exit_code());
            }
            return out.error(&error);
        }
    };
    let (complete, all) = (report.complete(), expected(&report, hosts));
    let code = match report.exit_code() {
        exit::OK if complete < hosts.len() => exit::PARTIAL,
        code => code,
    };
    results(out, &mut report, hosts, code);
    if let Some(how) = &report.changed {
        out.complain(&format!(
            "{how}; {complete} of {all} receivers have the file as it was before"
        ));
        return code;
    }
    if !report.failed.is_empty() {
        out.complain(&format!(
            "{} of the files and directories could not be sent to all; the others were",
            report.failed.len()
        ));
    }
    if complete < all {
        let failed = all - complete;
        match code {
            exit::OK => out.complain(&format!(
                "all required receivers have the files; {failed} of {all} receivers do not"
            )),
            _ => out.complain(&format!(
                "{failed} of {all} receivers do not have all of it"
            )),
        }
    }
    out.code(code)
}

/// Number of receivers that should have the files: all hosts of a copy, or all that came.
fn expected(report: &SendReport, hosts: &[Host]) -> usize {
    report.receivers.len().max(hosts.len())
}

/// Prints the state of each receiver and each host, and the summary.
fn results(out: &mut Output, report: &mut SendReport, hosts: &[Host], code: u8) {
    out.finish();
    for receiver in report.receivers.iter_mut().chain(&mut report.refused) {
        receiver.reason = receiver.reason.as_deref().map(with_options);
    }
    for receiver in report.receivers.iter().chain(&report.refused) {
        out.result("result", receiver);
    }
    for host in hosts {
        out.result("host", host);
    }
    out.result("summary", &summary(report, hosts, code));
    out.print(&describe(report, hosts));
    for line in errors(report, hosts) {
        out.complain_alone(&line);
    }
}

/// What is wrong with files, receivers and hosts: a line for each, and the last lines of a host.
fn errors(report: &SendReport, hosts: &[Host]) -> Vec<String> {
    let of_files = report.failed.iter();
    let mut lines: Vec<String> = of_files
        .map(|failure| format!("not sent: {}", escaped(&failure.reason)))
        .collect();
    for r in report.receivers.iter().chain(&report.refused) {
        if r.reason.is_none() && !r.state.is_complete() {
            lines.push(format!("{}: {}", r.receiver, state(r.state)));
        }
    }
    lines.extend(reasons(report, hosts));
    lines
}

/// Why receivers and hosts do not have the files: a line for each, and the last lines of a host,
/// unless these repeat what its receiver has told.
fn reasons(report: &SendReport, hosts: &[Host]) -> Vec<String> {
    let told: Vec<(&str, &str)> = report
        .receivers
        .iter()
        .chain(&report.refused)
        .filter_map(|r| Some((&*r.receiver, r.reason.as_deref()?)))
        .collect();
    let mut lines: Vec<String> = told.iter().map(|(r, why)| format!("{r}: {why}")).collect();
    let repeats = |host: &Host| {
        let is_last = |why: &str| host.lines.iter().any(|line| line.ends_with(why));
        told.iter().any(|(r, why)| *r == host.host && is_last(why))
    };
    for host in hosts.iter().filter(|host| !repeats(host)) {
        if let Some(why) = &host.reason {
            lines.push(format!("{}: {why}", host.host));
            lines.extend(host.lines.iter().map(|line| format!("    | {line}")));
        }
    }
    if report.refused_more > 0 {
        lines.push(format!("{} more were refused", report.refused_more));
    }
    lines
}

/// A state in the table.
fn state(state: State) -> &'static str {
    match state {
        State::Verified => "verified",
        State::Received => "received",
        State::Failed => "FAILED",
        State::Lost => "LOST",
        State::Dropped => "DROPPED",
        State::Refused => "REFUSED",
    }
}

fn summary(report: &SendReport, hosts: &[Host], code: u8) -> Value {
    let t = &report.traffic;
    let mut summary = json!({
        "name": report.name,
        "len": report.len,
        "root": report.root,
        "changed": report.changed,
        "failed": report.failed,
        "seconds": report.seconds,
        "receivers": report.receivers.len(),
        "verified": report.verified(),
        "received": report.complete() - report.verified(),
        "code": code,
        "traffic": t,
        "strangers": report.pending,
        "refused": report.refused.len() as u64 + report.refused_more,
    });
    if let Some(messages) = &report.messages {
        summary["messages"] = json!(messages);
        summary["workers"] = json!(report.workers);
    }
    if !hosts.is_empty() {
        summary["hosts"] = json!(hosts.len());
        summary["absent"] = json!(hosts.iter().filter(|h| h.is_absent).count());
    }
    summary
}

/// The rate at which a receiver got files of `len` bytes, in brackets. The `before` bytes that it
/// had before do not count; empty if it had all of them.
pub fn rate(len: u64, before: u64, seconds: f64) -> String {
    let came = len.saturating_sub(before);
    match (before, came) {
        (1.., 0) => String::new(),
        _ => format!(" ({})", units::bits(came as f64 / seconds.max(1e-9))),
    }
}

/// What a receiver had before the transfer: bytes of files that were present, and bytes that an
/// earlier run had kept. Empty if it had nothing.
pub fn before(counts: &ReceiverStatistics) -> String {
    let parts = [
        (counts.present_bytes, "present"),
        (counts.kept_bytes, "kept from an earlier run"),
    ];
    let parts = parts.iter().filter(|(bytes, _)| *bytes > 0);
    parts
        .map(|(bytes, what)| format!("; {} {what}", units::bytes(*bytes)))
        .collect()
}

fn describe(report: &SendReport, hosts: &[Host]) -> String {
    let refused = report.refused.len() as u64 + report.refused_more;
    if report.receivers.is_empty() && refused == 0 && hosts.is_empty() {
        return String::new(); // no receiver came
    }
    let absent = hosts.iter().filter(|h| h.is_absent).map(|h| {
        let cells = [&*h.host, "ABSENT", "nothing", "", "", "", ""];
        cells.map(String::from).to_vec()
    });
    let rows: Vec<Vec<String>> = report
        .receivers
        .iter()
        .chain(&report.refused)
        .map(|r| {
            vec![
                r.receiver.clone(),
                state(r.state).into(),
                match r.part {
                    Part::Whole => r.reach.into(),
                    Part::Late => format!("{}, late", r.reach),
                    Part::Demoted => format!("{}, demoted", r.reach),
                },
                match report.len {
                    Some(len) => share(r.placed, len),
                    None => units::bytes(r.placed),
                },
                format!("{:.2} s", r.seconds),
                r.repairs.to_string(),
                r.statistics.mended.to_string(),
            ]
        })
        .chain(absent)
        .collect();
    let head = [
        "receiver", "state", "reach", "has", "time", "resent", "mended",
    ];
    let mut text = table(&head, &rows);
    for line in reasons(report, hosts) {
        text.push_str(&format!("{line}\n"));
    }
    let t = &report.traffic;
    let len = report.len.unwrap_or(0);
    if report.complete() > 0 {
        let refused = match refused {
            0 => String::new(),
            n => format!("; {n} refused;"),
        };
        let multiple = match len {
            0 => String::new(),
            len => format!(" ({:.3} x)", t.wire_bytes as f64 / len as f64),
        };
        let complete = report.receivers.iter().filter(|r| r.state.is_complete());
        // What came is counted at the receiver that got most.
        let most = complete.min_by_key(|r| r.statistics.bytes_before());
        let (has, counts) = most.map(|r| (r.placed, r.statistics)).unwrap_or_default();
        text.push_str(&format!(
            "{} to {} of {}{refused} in {:.2} s{}{}; sent {} on the wire{multiple}, {} repairs\n",
            units::bytes(has),
            report.complete(),
            expected(report, hosts),
            report.seconds,
            rate(has, counts.bytes_before(), report.seconds),
            before(&counts),
            units::bytes(t.wire_bytes),
            t.repairs_multicast + t.repairs_unicast,
        ));
    }
    text
}
