//! Rules for the repository itself, checked by a test.
//!
//! A rule is a function from a [`Tree`] (the repository's text files) to [`Finding`]s. [`RULES`]
//! lists all rules. `exceptions.toml` allows a number of findings for each rule and file. The
//! number must be exact, so that a file that improves does not get worse again unseen:
//! `cargo run -p fabricast-tidy -- --lower` lowers the numbers. A contributor who raises a number
//! by hand says why in the review.

use std::path::{Path, PathBuf};

mod actors;
mod architecture;
mod comments;
mod examples;
mod exceptions;
mod globs;
mod imports;
mod length;
mod mutants;
mod networks;
mod options;
pub mod packages;
mod rust;
mod tree;
mod width;
mod words;

pub use exceptions::Exceptions;
pub use tree::{File, Finding, Tree};

/// A rule: finds all places of a tree that break it.
pub type Rule = fn(&Tree) -> Vec<Finding>;

/// All rules by name, as `exceptions.toml` names them.
pub const RULES: [(&str, Rule); 13] = [
    ("actors", actors::check),
    ("architecture", architecture::check),
    ("circles", imports::circles),
    ("comments", comments::check),
    ("examples", examples::check),
    ("globs", globs::check),
    ("length", length::check),
    ("mutants", mutants::check),
    ("networks", networks::check),
    ("options", options::check),
    ("rooms", imports::rooms),
    ("width", width::check),
    ("words", words::check),
];

/// The repository's root folder.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The path of `exceptions.toml`.
pub fn exceptions_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("exceptions.toml")
}
