//! `fabricast sim`.

/// Runs it; the exit code.
pub fn run(_args: &crate::args::Sim) -> u8 {
    eprintln!("fabricast: not yet");
    fabricast::error::exit::USAGE
}
