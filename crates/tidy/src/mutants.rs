//! CONTRIBUTING's table of mutants equals the code.

use crate::tree::{Finding, Tree};

const CODE: &str = "crates/proto/src/mutant.rs";
const TABLE: &str = "CONTRIBUTING.md";

/// Finds mutants that the table lacks, and rows of the table that are no mutants.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let Some(code) = tree.file(CODE) else {
        return vec![Finding::new(CODE, 1, "is not there")];
    };
    let code = match syn::parse_file(&code.text) {
        Ok(code) => code,
        Err(error) => return vec![Finding::new(CODE, 1, error.to_string())],
    };
    let variants: Vec<String> = code
        .items
        .iter()
        .filter_map(|item| match item {
            syn::Item::Enum(item) if item.ident == "Mutant" => Some(&item.variants),
            _ => None,
        })
        .flatten()
        .map(|variant| variant.ident.to_string())
        .collect();
    let Some(table) = tree.file(TABLE) else {
        return vec![Finding::new(TABLE, 1, "is not there")];
    };
    let begin = table
        .lines()
        .find(|(_, text)| text.starts_with("| mutant |"));
    let begin = begin.map(|(line, _)| line);
    let rows: Vec<(usize, &str)> = table
        .lines()
        .skip_while(|&(line, _)| begin.is_none_or(|begin| line < begin))
        .take_while(|(_, text)| text.starts_with('|'))
        .filter_map(|(line, text)| Some((line, text.strip_prefix("| `")?.split('`').next()?)))
        .collect();
    for name in &variants {
        if !rows.iter().any(|(_, row)| row == name) {
            let what = format!("the table of mutants lacks {name}");
            findings.push(Finding::new(TABLE, begin.unwrap_or(1), what));
        }
    }
    for (line, row) in rows {
        if !variants.iter().any(|name| name == row) {
            let what = format!("{row} is in the table of mutants, but not in {CODE}");
            findings.push(Finding::new(TABLE, line, what));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_and_the_code_are_compared_both_ways() {
        let code = "pub enum Mutant { One, Two }";
        let table = "| mutant | what |\n|---|---|\n| `One` | x |\n| `Three` | x |\n\n| `Two` |\n";
        let found = check(&Tree::of(&[(TABLE, table), (CODE, code)]));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].what.contains("lacks Two"));
        assert!(found[1].what.contains("Three"));
        let table = "| mutant | what |\n|---|---|\n| `One` | x |\n| `Two` | x |\n";
        assert_eq!(check(&Tree::of(&[(TABLE, table), (CODE, code)])), []);
    }
}
