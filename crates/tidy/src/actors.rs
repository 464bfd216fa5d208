//! Sentences in comments and documents name who acts: the sender, the receiver, the caller.

use regex::Regex;

use crate::tree::{Finding, Tree};

/// Files whose sentences are checked, by extension; scripts have none.
const EXTENSIONS: [&str; 8] = ["rs", "c", "h", "md", "toml", "py", "hex", ""];
/// Files that tell of the past, and this rule's own.
const LEFT_OUT: [&str; 3] = ["bench/results/", "crates/tidy/src/actors.rs", "LICENSE-"];

/// Finds words that stand for an actor without a name: *whoever*, *that one*, *of whom*, and
/// sentences that begin with *Who is* and the like.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let nameless = [
        r"\b[Ww]hoever\b",
        r"\bthat one(?:[.,;:)]|$)",
        r"\bof whom\b",
        r"(?:^|[.:;] |/ |\* |[^#]# )[Ww]ho [a-z]+s\b[^?]*$",
    ];
    let nameless = Regex::new(&nameless.join("|")).expect("valid");
    let mut findings = Vec::new();
    for file in &tree.files {
        if !EXTENSIONS.contains(&file.extension())
            || LEFT_OUT.iter().any(|path| file.path.starts_with(path))
        {
            continue;
        }
        for (line, text) in file.lines() {
            for found in nameless.find_iter(text) {
                let words = found
                    .as_str()
                    .trim_start_matches(|c: char| !c.is_alphabetic());
                let words: Vec<_> = words.split(' ').take(2).collect();
                let what = format!("'{}': name who acts", words.join(" "));
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
    fn an_actor_without_a_name_is_found() {
        let lines = |text: &str| -> Vec<usize> {
            let found = check(&Tree::of(&[("a.rs", text)]));
            found.iter().map(|finding| finding.line).collect()
        };
        assert_eq!(lines("/// Whoever comes late waits.\n"), [1]);
        assert_eq!(lines("// The sender, then that one.\n"), [1]);
        assert_eq!(
            lines("/// Waits. Who is late loses.\n/// who lacks it asks\n"),
            [1, 2]
        );
        assert_eq!(
            lines("// A receiver who is late?\n/// Who reports to whom?\n"),
            [0; 0]
        );
    }
}
