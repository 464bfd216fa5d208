//! Retired words of the glossary are not used.

use std::collections::BTreeMap;

use crate::tree::{Finding, Tree};

const GLOSSARY: &str = "docs/glossary.md";
/// Files whose words are checked, by extension.
const EXTENSIONS: [&str; 5] = ["rs", "md", "c", "h", "toml"];
/// Files that tell of the past, the glossary itself, and this crate.
const LEFT_OUT: [&str; 4] = [GLOSSARY, "CHANGELOG.md", "bench/results/", "crates/tidy/"];

/// Finds retired words in comments, documents and names. A name is read word by word, so that
/// `ask_min` and `AskMin` contain the word *ask*.
///
/// The glossary's tables have the columns *word*, *instead of* and *meaning*. The words in
/// backquotes of the second column are retired. A name that stands on the wire or in an option
/// stays as it is: a retired word is allowed by itself in quotes or backquotes, or after `--`, if
/// the glossary's table of frozen names, which has the columns *name* and *where*, lists it.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let Some(glossary) = tree.file(GLOSSARY) else {
        return vec![Finding::new(GLOSSARY, 1, "is not there")];
    };
    let mut retired: BTreeMap<&str, &str> = BTreeMap::new();
    let mut frozen = Vec::new();
    let mut is_frozen = false;
    for (_, line) in glossary.lines() {
        is_frozen = is_frozen && line.starts_with('|') || line.starts_with("| name |");
        let mut cells = line.split('|').skip(1).map(str::trim);
        if is_frozen {
            frozen.extend(cells.next().into_iter().flat_map(written));
            continue;
        }
        if let (Some(word), Some(instead_of)) = (cells.next(), cells.next()) {
            let names = instead_of.split('`').skip(1).step_by(2);
            retired.extend(names.map(|name| (name, word)));
        }
    }
    let mut findings = Vec::new();
    for file in &tree.files {
        if !EXTENSIONS.contains(&file.extension())
            || LEFT_OUT.iter().any(|path| file.path.starts_with(path))
        {
            continue;
        }
        for (line, text) in file.lines() {
            let text = frozen
                .iter()
                .fold(text.to_string(), |text, name| text.replace(name, ""));
            for word in words(&text) {
                if let Some(better) = retired.get(word.as_str()) {
                    let what = format!("instead of {word} the glossary has {better}");
                    findings.push(Finding::new(&file.path, line, what));
                }
            }
        }
    }
    findings
}

/// How a frozen name is written in a text that means the name.
fn written(name: &str) -> Vec<String> {
    let name = name.trim_matches('`');
    match name.contains('_') {
        true => vec![name.to_string()],
        false => ["\"N\"", "`N`", "--N"]
            .map(|form| form.replace('N', name))
            .to_vec(),
    }
}

/// The words of a line in lower case; names are divided at `_` and before capitals.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut small = false;
    for letter in line.chars() {
        if !letter.is_alphabetic() || (small && letter.is_uppercase()) {
            words.extend((!word.is_empty()).then(|| std::mem::take(&mut word)));
        }
        if letter.is_alphabetic() {
            word.extend(letter.to_lowercase());
        }
        small = letter.is_lowercase();
    }
    words.extend((!word.is_empty()).then_some(word));
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retired_words_are_found_in_names_and_sentences() {
        let glossary = "| word | instead of | meaning |\n|---|---|---|\n| probe | `ask` | x |\n";
        let text = "// We ask; a task.\nlet ask_min = AskMin;\n";
        let found = check(&Tree::of(&[
            (GLOSSARY, glossary),
            ("CHANGELOG.md", text),
            ("crates/proto/src/a.rs", text),
        ]));
        let lines: Vec<_> = found.iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [1, 2, 2]);
    }
    #[test]
    fn frozen_names_stay_where_they_are_names() {
        let glossary = "| word | instead of | meaning |\n|---|---|---|\n| probe | `ask` | x |\n\n\
                        | name | where |\n|---|---|\n| `ask` | JSON |\n\n| `ask` |\n";
        let text = "\"ask\" `ask` --ask\nask\n\"we ask\"\n";
        let found = check(&Tree::of(&[
            (GLOSSARY, glossary),
            ("crates/proto/src/a.rs", text),
        ]));
        let lines: Vec<_> = found.iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [2, 3]);
    }
}
