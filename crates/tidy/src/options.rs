//! The library names neither options of the command line nor environment variables.

use regex::Regex;

use crate::rust;
use crate::tree::{Finding, Tree};

const LIBRARY: [&str; 2] = ["crates/fabricast/src/", "crates/proto/src/"];

/// Finds options (`--name`) and variables (`FABRICAST_NAME`) in the library's sources, in code and
/// comments. Files of tests may name them.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let named = Regex::new(r"(?:^|[^-\w])(--[a-z][a-z-]+)|\b(FABRICAST_[A-Z_]+)").expect("valid");
    let mut findings = Vec::new();
    for file in &tree.files {
        if !LIBRARY.iter().any(|path| file.path.starts_with(path)) || rust::is_test(&file.path) {
            continue;
        }
        for (line, text) in file.lines() {
            for found in named.captures_iter(text) {
                let name = found.get(1).or(found.get(2)).expect("one of both").as_str();
                let what = format!("{name} is the command line's; say what it sets");
                findings.push(Finding::new(&file.path, line, what));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_and_variables_are_found_in_the_library_alone() {
        let text = "// `--from` or\nlet x = \"FABRICAST_RATE\"; // a -- b, x--\n";
        let found = check(&Tree::of(&[
            ("crates/fabricast/src/a.rs", text),
            ("crates/fabricast/src/a/tests.rs", text),
            ("crates/cli/src/main.rs", text),
        ]));
        let what: Vec<_> = found.iter().map(|f| (f.line, &f.what[..6])).collect();
        assert_eq!(what, [(1, "--from"), (2, "FABRIC")]);
    }
}
