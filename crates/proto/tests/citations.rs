//! Checks that `spec/papers.md` lists every requirement of the papers that the code cites.

use std::collections::BTreeSet;
use std::path::Path;

/// The requirements that a text cites: `P1.4` and the like.
fn cited(text: &str) -> BTreeSet<&str> {
    let begins = |at: usize| {
        let before = text[..at].chars().next_back();
        !before.is_some_and(char::is_alphanumeric)
    };
    let citation = |(at, _): (usize, &str)| {
        let rest = &text[at..];
        let (paper, number) = (rest.get(1..2)?, rest.get(3..)?);
        let digits = number.bytes().take_while(u8::is_ascii_digit).count();
        let is_one = begins(at) && "12345".contains(paper) && rest.get(2..3) == Some(".");
        (is_one && digits > 0).then(|| &rest[..3 + digits])
    };
    text.match_indices('P').filter_map(citation).collect()
}

/// Calls `each` with every source file in a directory and its subdirectories.
fn sources(directory: &Path, each: &mut dyn FnMut(&Path, &str)) {
    for entry in std::fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, each);
        } else if path.extension().is_some_and(|e| e == "rs" || e == "md") {
            each(&path, &std::fs::read_to_string(&path).expect("a text"));
        }
    }
}

#[test]
fn what_is_cited_is_listed() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let table = std::fs::read_to_string(root.join("spec/papers.md")).expect("the table");
    let first = |row: &str| row.split('|').nth(1).unwrap_or_default().to_string();
    let names: String = table.lines().map(first).collect();
    let listed = cited(&names);
    assert!(listed.contains("P1.1"), "{listed:?}");
    let mut all = BTreeSet::new();
    for directory in ["crates", "spec"] {
        sources(&root.join(directory), &mut |path, text| {
            for citation in cited(text) {
                all.insert(citation.to_string());
                let known = listed.contains(citation);
                assert!(known, "{citation}, cited in {}", path.display());
            }
        });
    }
    assert!(all.len() > 20, "{all:?}");
}
