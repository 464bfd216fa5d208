//! Runs seeds without the options of the command line: `seeds run SEED`, `seeds soak FIRST COUNT`,
//! `seeds table` or `seeds bulk RECEIVERS BYTES TIMES`.

use std::io::Write;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let number = |i: usize| args.get(i).and_then(|a| a.parse().ok()).unwrap_or(0u64);
    match args.get(1).map(String::as_str) {
        Some("run") => {
            let mut out = std::io::BufWriter::new(std::io::stdout());
            let verdict =
                fabricast_sim::run_seed(number(2), fabricast_sim::Network::Prompt, &mut out);
            let _ = out.flush();
            std::process::exit(i32::from(verdict.result.is_err()));
        }
        Some("soak") => {
            std::panic::set_hook(Box::new(|_| {}));
            let report = fabricast_sim::soak(
                fabricast_sim::Network::Prompt,
                number(2),
                number(3),
                2,
                &mut |v, _| {
                    if v.result.is_err() {
                        println!("{v}");
                    }
                    true
                },
            );
            println!(
                "{} seeds, {} failed; {} events",
                report.seeds,
                report.failures.len(),
                report.events
            );
        }
        Some("table") => {
            let full = args.get(2).is_some_and(|a| a == "full");
            match fabricast_sim::table(full, &mut std::io::stdout()) {
                Ok(good) => std::process::exit(i32::from(!good)),
                Err(e) => eprintln!("{e}"),
            }
        }
        Some("bulk") => {
            let mut s = fabricast_sim::Scenario::bulk(number(2) as usize + 1, number(3), 1440);
            s.topology.fanout = vec![32];
            s.judged = false;
            s.rate = Some(100_000_000);
            for _ in 0..number(4).max(1) {
                match fabricast_sim::Cluster::new(&s, fabricast_sim::Trace::silent()).run() {
                    Ok(o) => println!("{} events, done at {:?}", o.events, o.done_at),
                    Err(e) => println!("{e}"),
                }
            }
        }
        _ => eprintln!(
            "seeds run SEED | soak FIRST COUNT | table [full] | bulk RECEIVERS BYTES TIMES"
        ),
    }
}
