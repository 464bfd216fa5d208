//! Lines are at most 100 columns wide.

use crate::tree::{Finding, Tree};

const COLUMNS: usize = 100;

/// Generated files: results of measurements, test vectors, lock files, and the C header that is
/// made from doc comments.
const GENERATED: [&str; 4] = [
    "bench/results/",
    "spec/vectors/",
    "Cargo.lock",
    "crates/capi/fabricast.h",
];

/// Finds lines of more than 100 characters. A row of a Markdown table and a line that ends with a
/// URL may be longer, since neither can be wrapped.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &tree.files {
        if GENERATED.iter().any(|path| file.path.starts_with(path)) {
            continue;
        }
        let markdown = file.extension() == "md";
        for (line, text) in file.lines() {
            let width = text.chars().count();
            let row = markdown && text.trim_start().starts_with('|');
            let address = text
                .rsplit(' ')
                .next()
                .is_some_and(|word| word.contains("://"));
            if width > COLUMNS && !row && !address {
                let what = format!("{width} columns; {COLUMNS} are the most");
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
    fn a_long_line_is_found() {
        let long = format!("short\n{}\n", "x".repeat(101));
        let found = check(&Tree::of(&[("a.rs", &long), ("bench/results/a.md", &long)]));
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].path.as_str(), found[0].line), ("a.rs", 2));
        let most = "ä".repeat(100);
        assert_eq!(check(&Tree::of(&[("a.rs", &most)])), []);
    }

    #[test]
    fn a_row_of_a_table_and_an_address_may_be_long() {
        let row = format!("| {} |", "x".repeat(100));
        let address = format!("// https://{}", "x".repeat(100));
        assert_eq!(check(&Tree::of(&[("a.md", &row), ("a.rs", &address)])), []);
        assert_eq!(check(&Tree::of(&[("a.rs", &row)])).len(), 1);
    }
}
