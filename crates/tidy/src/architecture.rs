//! The tree in ARCHITECTURE.md equals the folders.

use std::collections::BTreeSet;

use crate::tree::{Finding, Tree};

const TEXT: &str = "ARCHITECTURE.md";
/// Deepest indent of an entry, in columns. A line that is indented further continues the
/// description above it.
const DEEPEST: usize = 10;

/// Finds folders that the tree lacks, and entries that name neither a file nor a folder.
///
/// An entry is a line of the tree: names, two spaces or more, a description. A name that ends with
/// `/` is a folder. Any other name is a file, whose extension `.rs` or `.md` may be left out, or a
/// module's folder.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let Some(text) = tree.file(TEXT) else {
        return vec![Finding::new(TEXT, 1, "is not there")];
    };
    let mut folders = BTreeSet::new();
    let mut files = BTreeSet::new();
    for file in &tree.files {
        files.insert(file.path.as_str());
        for (end, _) in file.path.match_indices('/') {
            folders.insert(&file.path[..end]);
        }
    }
    let mut findings = Vec::new();
    let mut named = BTreeSet::new();
    // The entries above the present one that may contain it: their indents and paths.
    let mut above: Vec<(usize, String)> = Vec::new();
    let block = text
        .lines()
        .skip_while(|(_, line)| *line != "## The tree")
        .skip_while(|(_, line)| *line != "```")
        .skip(1)
        .take_while(|(_, line)| *line != "```");
    let mut first = 1;
    for (number, line) in block {
        first = if named.is_empty() { number } else { first };
        let indent = line.len() - line.trim_start().len();
        if indent > DEEPEST || line.trim().is_empty() {
            continue;
        }
        above.retain(|(other, _)| *other < indent);
        let parent = above
            .last()
            .map_or("", |(_, path)| path.as_str())
            .to_string();
        let names = line.trim().split("  ").next().unwrap_or("");
        for name in names.split(' ') {
            let path = format!("{parent}{}", name.trim_end_matches('/'));
            let there = match name.ends_with('/') {
                true => folders.contains(path.as_str()),
                false => ["", ".rs", ".md", "/mod.rs"]
                    .iter()
                    .any(|end| files.contains(format!("{path}{end}").as_str())),
            };
            if !there {
                let what = format!("the tree names {path}, which is not there");
                findings.push(Finding::new(TEXT, number, what));
            }
            above.retain(|(other, _)| *other < indent);
            above.push((indent, format!("{path}/")));
            named.extend(
                path.match_indices('/')
                    .map(|(end, _)| path[..end].to_string()),
            );
            named.insert(path);
        }
    }
    for folder in folders {
        if !named.contains(folder) {
            let what = format!("the tree lacks the folder {folder}/");
            findings.push(Finding::new(TEXT, first, what));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(tree: &str) -> Vec<String> {
        let text = format!("# A\n\n## The tree\n\n```\n{tree}```\n");
        let files = [
            (TEXT, text.as_str()),
            ("crates/proto/src/node.rs", ""),
            ("crates/proto/src/wire/mod.rs", ""),
            ("crates/proto/src/wire/read.rs", ""),
        ];
        check(&Tree::of(&files))
            .into_iter()
            .map(|finding| finding.what)
            .collect()
    }

    #[test]
    fn the_tree_and_the_folders_are_compared_both_ways() {
        let all = "\
ARCHITECTURE           this
crates/
  proto/src/           the core,
                       without I/O
    node                 the machine
    wire/  datagrams
      read  one
";
        assert_eq!(found(all), [""; 0]);
        let less = all.replace("    wire/  datagrams\n      read  one\n", "");
        assert_eq!(
            found(&less),
            ["the tree lacks the folder crates/proto/src/wire/"]
        );
        let more = all.replace("node ", "node gone ");
        assert_eq!(
            found(&more),
            ["the tree names crates/proto/src/gone, which is not there"]
        );
    }
}
