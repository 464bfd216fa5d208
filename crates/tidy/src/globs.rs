//! A module names what it uses of the module above it. Tests may take everything.

use crate::rust;
use crate::tree::{Finding, Tree};

/// Finds `use super::*` outside tests: a file that takes everything belongs to no idea of its own.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &tree.files {
        if file.extension() != "rs" || rust::is_test(&file.path) {
            continue;
        }
        let mut in_tests = false;
        for (line, text) in file.lines() {
            in_tests |= text.starts_with("mod tests {");
            if !in_tests && text.trim() == "use super::*;" {
                let what = "use super::*: name what is used";
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
    fn a_module_that_takes_everything_from_above_is_found() {
        let tests = "fn f() {}\n\n#[cfg(test)]\nmod tests {\n    use super::*;\n}\n";
        let found = check(&Tree::of(&[
            ("crates/a/src/b.rs", "use super::*;\n"),
            ("crates/a/src/c.rs", tests),
            ("crates/a/tests/d.rs", "use super::*;\n"),
        ]));
        let places: Vec<_> = found.iter().map(|f| (f.path.as_str(), f.line)).collect();
        assert_eq!(places, [("crates/a/src/b.rs", 1)]);
    }
}
