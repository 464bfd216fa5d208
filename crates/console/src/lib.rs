//! The parts that the project's commands share at a terminal: numbers with units, tables, a
//! progress bar, signals.
#![forbid(unsafe_code)]

mod bar;
mod signals;
mod table;
pub mod units;

pub use bar::{bar, endless_bar};
pub use signals::{watch_signals, watch_signals_then};
pub use table::{markdown, table};
