//! Files have less than 700 lines, and functions at most 100.

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::tree::{Finding, Tree};

const FILE_LINES: usize = 699;
const FUNCTION_LINES: usize = 100;
/// Files of code, by extension; scripts without one are code, too.
const EXTENSIONS: [&str; 5] = ["rs", "c", "h", "py", ""];
/// Files that are generated, or that only list.
const LEFT_OUT: [&str; 4] = [
    "crates/capi/fabricast.h",
    "LICENSE",
    "bench/results/",
    ".gitignore",
];

/// Finds files and Rust functions that are too long.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &tree.files {
        if !EXTENSIONS.contains(&file.extension())
            || LEFT_OUT.iter().any(|path| file.path.starts_with(path))
        {
            continue;
        }
        let lines = file.lines().count();
        if lines > FILE_LINES {
            let what = format!("{lines} lines; {FILE_LINES} are the most");
            findings.push(Finding::new(&file.path, 1, what));
        }
        // A file that is not valid Rust is reported by the rule "circles".
        if file.extension() == "rs"
            && let Ok(code) = syn::parse_file(&file.text)
        {
            let mut functions = Functions(Vec::new());
            functions.visit_file(&code);
            for (line, name, lines) in functions.0 {
                let what = format!("{name} has {lines} lines; {FUNCTION_LINES} are the most");
                findings.push(Finding::new(&file.path, line, what));
            }
        }
    }
    findings
}

/// Functions that are too long: first line, name, lines.
struct Functions(Vec<(usize, String, usize)>);

impl Functions {
    /// Notes a function that begins with `signature` and has this body.
    fn note(&mut self, signature: &syn::Signature, body: &syn::Block) {
        let first = signature.span().start().line;
        let lines = body.span().end().line + 1 - first;
        if lines > FUNCTION_LINES {
            self.0.push((first, signature.ident.to_string(), lines));
        }
    }
}

impl<'code> Visit<'code> for Functions {
    fn visit_item_fn(&mut self, function: &'code syn::ItemFn) {
        self.note(&function.sig, &function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'code syn::ImplItemFn) {
        self.note(&function.sig, &function.block);
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'code syn::TraitItemFn) {
        if let Some(body) = &function.default {
            self.note(&function.sig, body);
        }
        visit::visit_trait_item_fn(self, function);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_file_and_a_long_function_are_found() {
        let long = format!("fn f() {{\n{}}}\n", "    g();\n".repeat(99));
        let found = check(&Tree::of(&[
            ("a.rs", &long),
            ("b.py", &"x\n".repeat(701)),
            ("c.md", &"x\n".repeat(701)),
        ]));
        let places: Vec<_> = found.iter().map(|f| (f.path.as_str(), f.line)).collect();
        assert_eq!(places, [("a.rs", 1), ("b.py", 1)]);
        let most = format!("fn f() {{\n{}}}\n", "    g();\n".repeat(98));
        assert_eq!(
            check(&Tree::of(&[("a.rs", &most), ("b.py", &"x\n".repeat(699))])),
            []
        );
    }
}
