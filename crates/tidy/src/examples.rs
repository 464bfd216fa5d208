//! Examples in documentation are tested.

use crate::tree::{Finding, Tree};

/// Languages of code blocks that are no examples.
const OTHER: [&str; 4] = ["text", "toml", "console", "ignore"];

/// Finds examples in crates whose `Cargo.toml` says that they have none (`doctest = false`), which
/// saves the time to look for them.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let untested = |path: &str| {
        let folder = path.split_once("/src/").map(|(folder, _)| folder);
        let manifest = folder.and_then(|folder| tree.file(&format!("{folder}/Cargo.toml")));
        manifest.is_some_and(|manifest| manifest.text.contains("doctest = false"))
    };
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| untested(&file.path)) {
        let mut within = false;
        for (line, text) in file.lines() {
            let text = text.trim_start();
            let text = text.strip_prefix("//!").or(text.strip_prefix("///"));
            let Some(language) = text.and_then(|text| text.trim_start().strip_prefix("```")) else {
                continue;
            };
            within = !within;
            if within && !OTHER.contains(&language) {
                let what = "an example that no test runs: take doctest = false out of Cargo.toml";
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
    fn an_example_that_no_test_runs_is_found() {
        let without = "[lib]\ndoctest = false\n";
        let text = "//! ```text\n//! a table\n//! ```\n\n    /// ```\n    /// f();\n    /// ```\n";
        let found = check(&Tree::of(&[
            ("crates/a/Cargo.toml", without),
            ("crates/a/src/b.rs", text),
            ("crates/c/Cargo.toml", "[package]\n"),
            ("crates/c/src/d.rs", text),
        ]));
        let places: Vec<_> = found.iter().map(|f| (f.path.as_str(), f.line)).collect();
        assert_eq!(places, [("crates/a/src/b.rs", 5)]);
    }
}
