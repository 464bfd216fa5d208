//! `fabricast sim`: the protocol under virtual time.

use std::io::{BufWriter, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fabricast::error::exit;
use fabricast_sim::{run_seed, soak, table};

use crate::args::{Sim, SimCommand};

/// Runs it; the exit code.
pub fn run(args: &Sim, interrupt: Arc<AtomicBool>) -> u8 {
    match args.command {
        SimCommand::Run { seed } => {
            let mut out = BufWriter::new(std::io::stdout().lock());
            let verdict = run_seed(seed, &mut out);
            let _ = out.flush();
            code(verdict.result.is_ok())
        }
        SimCommand::Table { full } => match table::table(full, &mut std::io::stdout().lock()) {
            Ok(holds) => code(holds),
            Err(e) => {
                eprintln!("fabricast: writing the table: {e}");
                exit::IO
            }
        },
        SimCommand::Soak {
            seeds,
            from,
            threads,
        } => {
            let threads = match threads {
                0 => std::thread::available_parallelism().map_or(1, usize::from),
                n => n,
            };
            let began = Instant::now();
            let mut told = began;
            let every = match std::io::stderr().is_terminal() {
                true => Duration::from_secs(1),
                false => Duration::from_secs(30),
            };
            let report = soak(from, seeds, threads, &mut |verdict, done| {
                // The panic of a core in trouble has been printed; this says which seed it was.
                if verdict.result.is_err() {
                    eprintln!("{verdict}\n  again: {}", verdict.repeat());
                }
                if told.elapsed() >= every {
                    told = Instant::now();
                    eprintln!("{done} of {seeds} seeds");
                }
                !interrupt.load(Ordering::Relaxed)
            });
            println!("{report} in {:.1} s", began.elapsed().as_secs_f64());
            match interrupt.load(Ordering::Relaxed) {
                true => exit::INTERRUPTED,
                false => code(report.is_clean()),
            }
        }
    }
}

fn code(good: bool) -> u8 {
    if good { exit::OK } else { exit::IO }
}
