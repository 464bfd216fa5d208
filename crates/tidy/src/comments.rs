//! A comment neither begins nor ends with an ellipsis: each one stands alone.

use crate::tree::{Finding, Tree};

/// Extensions of files with comments, and the marks that begin a comment in them.
const MARKS: [(&str, &[&str]); 8] = [
    ("rs", &["// ", "/// ", "//! "]),
    ("c", &["/* ", "// "]),
    ("h", &["/* ", "// "]),
    ("toml", &["# "]),
    ("py", &["# "]),
    ("sh", &["# "]),
    ("F90", &["! "]),
    ("", &["# "]),
];

/// Finds comments that go on in the comment of another item, as an ellipsis shows: alone in a line
/// or behind code. `WORD...`, as in a synopsis, is no ellipsis.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &tree.files {
        let Some((_, marks)) = MARKS
            .iter()
            .find(|(extension, _)| *extension == file.extension())
        else {
            continue;
        };
        for (line, text) in file.lines() {
            let Some((_, comment)) = marks.iter().find_map(|mark| text.split_once(mark)) else {
                continue;
            };
            let words = comment.trim_end_matches("*/").trim();
            let begins = words.starts_with("...") || words.starts_with('…');
            if begins || words.ends_with(" ...") || words.ends_with(" …") {
                let what = "the comment goes on elsewhere; each comment stands alone";
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
    fn a_comment_that_goes_on_elsewhere_is_found() {
        let text = "/// At most this, ...\nconst A: u8 = 1;\n/// ... and at least this.\n";
        let lines = |text| -> Vec<usize> {
            let found = check(&Tree::of(&[("a.rs", text)]));
            found.iter().map(|finding| finding.line).collect()
        };
        assert_eq!(lines(text), [1, 3]);
        assert_eq!(lines("//! Three dots (`...`) within are good.\n"), [0; 0]);
        assert_eq!(lines("// agent HOST COMMAND...\n"), [0; 0]);
        assert_eq!(lines(&format!("let x = 1; // {} of these\n", "...")), [1]);
        let c = check(&Tree::of(&[(
            "a.h",
            "int a; /* at most, ... */\n/* both */\n",
        )]));
        assert_eq!(c.len(), 1);
    }
}
