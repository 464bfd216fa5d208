//! `fabricast-lab sim`: the protocol under virtual time.

use std::io::{self, BufWriter, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fabricast::error::exit;
use fabricast_lab::bench::{Goal, workloads};
use fabricast_sim::{Network, run_seed, soak, table};
use rustix::time::{ClockId, clock_gettime};

use super::{at_once, compare, written};
use crate::args::{Kind, Sim, SimCommand};

/// Runs the command and returns the exit code.
pub fn run(args: &Sim, interrupt: &AtomicBool) -> u8 {
    match args.command {
        SimCommand::Compare(ref args) => compare::run(args, interrupt),
        SimCommand::Run { seed, kind } => {
            let mut out = BufWriter::new(std::io::stdout().lock());
            let verdict = run_seed(seed, network(kind), &mut out);
            // If a write has failed, the rest is still in the buffer, and `flush` fails again.
            written(out.flush(), code(verdict.result.is_ok()))
        }
        SimCommand::Table { full } => match table::table(full, &mut std::io::stdout().lock()) {
            Ok(holds) => code(holds),
            Err(e) => written(Err(e), exit::OK),
        },
        SimCommand::Bench { times } => {
            written(bench(times, &mut std::io::stdout().lock()), exit::OK)
        }
        SimCommand::Soak {
            seeds,
            from,
            threads,
            kind,
        } => {
            let threads = at_once(threads).min(usize::try_from(seeds).unwrap_or(usize::MAX));
            let began = Instant::now();
            let mut told = began;
            let every = match std::io::stderr().is_terminal() {
                true => Duration::from_secs(1),
                false => Duration::from_secs(30),
            };
            let report = soak(network(kind), from, seeds, threads, &mut |verdict, done| {
                // The core's panic has been printed; this names the seed.
                if verdict.result.is_err() {
                    eprintln!("{verdict}\n  again: {}", verdict.repeat());
                }
                if told.elapsed() >= every {
                    told = Instant::now();
                    eprintln!("{done} of {seeds} seeds");
                }
                !interrupt.load(Ordering::Relaxed)
            });
            let seconds = began.elapsed().as_secs_f64();
            let rate = report.events as f64 / seconds / 1e6;
            let said = writeln!(
                io::stdout(),
                "{report} in {seconds:.1} s: {rate:.2} million events/s on {threads} threads, \
                 checked"
            );
            let code = match interrupt.load(Ordering::Relaxed) {
                true => exit::INTERRUPTED,
                false => code(report.is_clean()),
            };
            written(said, code)
        }
    }
}

fn network(kind: Kind) -> Network {
    match kind {
        Kind { delayed: true, .. } => Network::Delayed,
        Kind {
            readdressed: true, ..
        } => Network::Readdressed,
        Kind { joined: true, .. } => Network::Joined,
        Kind { outpaced: true, .. } => Network::Outpaced,
        Kind { weighted: true, .. } => Network::Weighted,
        Kind { files: true, .. } => Network::Files,
        Kind { subnet: true, .. } => Network::Subnet,
        _ => Network::Prompt,
    }
}

/// Times each workload and prints whether it reaches its goal.
fn bench(times: u32, out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "Simulating one broadcast, its set-up included, in seconds of one core. An event is a \
         packet or a timer\n\
         given to a node. No checkers and no deep invariants but where \"checked\" says so.\n\
         {:<30} {:>9} {:>10} {:>10} {:>17}",
        "", "events", "median", "best", "events/s"
    )?;
    let mut goals = Vec::new();
    for workload in workloads() {
        let mut took = Vec::new();
        let mut events = 0;
        for _ in 0..times {
            let began = processor_seconds();
            (events, _) = workload.run().map_err(io::Error::other)?;
            took.push(processor_seconds() - began);
        }
        took.sort_by(f64::total_cmp);
        let (best, median) = (took[0], took[took.len() / 2]);
        let million = events as f64 / median / 1e6;
        let name = workload.name;
        writeln!(
            out,
            "{name:<30} {events:>9} {median:>8.4} s {best:>8.4} s {million:>9.2} million"
        )?;
        let verdict = |met| if met { "met" } else { "NOT MET" };
        goals.extend(match workload.goal {
            Some(Goal::Seconds(most)) => Some(format!(
                "{name}: {median:.4} s; the goal is at most {most} s: {}",
                verdict(median <= most)
            )),
            Some(Goal::MillionPerSecond(least)) => Some(format!(
                "{name}: {million:.2} million events/s on one core; the goal is at least {least} \
                 million: {}",
                verdict(million >= least)
            )),
            None => None,
        });
    }
    for goal in goals {
        writeln!(out, "{goal}")?;
    }
    Ok(())
}

/// Processor time of this thread: other processes disturb it less than they disturb a clock.
fn processor_seconds() -> f64 {
    let t = clock_gettime(ClockId::ThreadCPUTime);
    t.tv_sec as f64 + t.tv_nsec as f64 / 1e9
}

fn code(good: bool) -> u8 {
    if good { exit::OK } else { exit::IO }
}
