//! The facts that rules read from Rust sources: modules, and the paths that a module uses.

use std::collections::BTreeMap;

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};

use crate::tree::{File, Tree};

/// Whether the file at `path` is compiled only for tests.
pub fn is_test(path: &str) -> bool {
    let stem = path.strip_suffix(".rs").unwrap_or(path);
    path.split('/').any(|part| part == "tests")
        || stem.ends_with("tests")
        || stem.ends_with("testing")
}

/// A module's path from the crate's root, without `crate`.
pub type ModulePath = Vec<String>;

/// One source file of a crate.
pub struct Module {
    /// Path of the file from the repository's root.
    pub file: String,
    /// The module's path in the crate.
    pub path: ModulePath,
    /// Paths within the crate that the file uses, each with its line. A name that is re-exported
    /// counts where the file uses it itself. Paths within calls of macros are not seen.
    pub uses: Vec<(usize, ModulePath)>,
    /// Paths of several names that begin with a name from elsewhere (another crate's, or one that
    /// was imported), and all paths within calls of macros, as they are written. Each has its line.
    pub outside: Vec<(usize, ModulePath)>,
    /// Names that the file re-exports, each with its line and the path that it stands for.
    pub reexports: BTreeMap<String, (usize, ModulePath)>,
    /// Why the file cannot be read as Rust, if it cannot.
    pub error: Option<String>,
}

/// The modules of one crate, without its tests.
pub struct Crate {
    /// The folder's name below `crates/`.
    pub name: String,
    /// The modules, sorted by file.
    pub modules: Vec<Module>,
}

impl Crate {
    /// All crates of the repository.
    pub fn all(tree: &Tree) -> Vec<Crate> {
        let mut files: BTreeMap<String, Vec<&File>> = BTreeMap::new();
        for file in &tree.files {
            let Some((name, inner)) = file
                .path
                .strip_prefix("crates/")
                .and_then(|path| path.split_once("/src/"))
            else {
                continue;
            };
            if inner.ends_with(".rs") && !is_test(inner) {
                files.entry(name.into()).or_default().push(file);
            }
        }
        let parse = |(name, files): (String, Vec<&File>)| {
            let paths: Vec<_> = files.iter().map(|file| module_path(&file.path)).collect();
            let modules = files.iter().map(|file| Module::parse(file, &paths));
            Crate {
                name,
                modules: modules.collect(),
            }
        };
        files.into_iter().map(parse).collect()
    }

    /// The module that defines the item at `path`. Re-exports are followed.
    pub fn resolve(&self, path: &[String]) -> Option<usize> {
        self.resolve_within(path, 8)
    }

    fn resolve_within(&self, path: &[String], most: usize) -> Option<usize> {
        let at = (0..=path.len()).rev().find_map(|len| self.at(&path[..len]));
        let at = at?;
        let module = &self.modules[at];
        let Some(name) = path.get(module.path.len()).filter(|_| most > 0) else {
            return Some(at);
        };
        if let Some((_, target)) = module.reexports.get(name) {
            return self.resolve_within(target, most - 1);
        }
        Some(at)
    }

    fn at(&self, path: &[String]) -> Option<usize> {
        self.modules.iter().position(|module| module.path == path)
    }
}

/// The module of the file at `path`.
fn module_path(path: &str) -> ModulePath {
    let inner = path.split_once("/src/").map_or(path, |(_, inner)| inner);
    let inner = inner.strip_suffix(".rs").unwrap_or(inner);
    let mut parts: ModulePath = inner.split('/').map(String::from).collect();
    let last = parts.last().map(String::as_str);
    if last == Some("mod") || (parts.len() == 1 && matches!(last, Some("lib" | "main"))) {
        parts.pop();
    }
    parts
}

impl Module {
    fn parse(file: &File, all: &[ModulePath]) -> Module {
        let mut module = Module {
            file: file.path.clone(),
            path: module_path(&file.path),
            uses: Vec::new(),
            outside: Vec::new(),
            reexports: BTreeMap::new(),
            error: None,
        };
        let parsed = match syn::parse_file(&file.text) {
            Ok(parsed) => parsed,
            Err(error) => {
                module.error = Some(error.to_string());
                return module;
            }
        };
        let here = module.path.clone();
        let mut reader = Reader {
            module: &mut module,
            here,
            all,
            names: Vec::new(),
        };
        reader.visit_file(&parsed);
        let names = reader.names;
        for (line, name) in names {
            let target = module
                .reexports
                .get(&name)
                .map(|(_, target)| target.clone());
            module.uses.extend(target.map(|target| (line, target)));
        }
        module
    }
}

/// Collects a file's paths. `here` is the module that the visitor is in: the file's own, or an
/// inline module of the file.
struct Reader<'a> {
    module: &'a mut Module,
    here: ModulePath,
    all: &'a [ModulePath],
    /// First names of the paths in the file, with their lines.
    names: Vec<(usize, String)>,
}

impl Reader<'_> {
    /// The path from the crate's root, if `path` leads into the crate.
    fn absolute(&self, path: &[String]) -> Option<ModulePath> {
        let mut base = self.here.clone();
        let rest = match path.first().map(String::as_str)? {
            "crate" => {
                base.clear();
                &path[1..]
            }
            "self" => &path[1..],
            "super" => {
                let up = path.iter().take_while(|part| *part == "super").count();
                base.truncate(base.len().saturating_sub(up));
                &path[up..]
            }
            _ => {
                let child = [base.as_slice(), &path[..1]].concat();
                self.all.contains(&child).then_some(path)?
            }
        };
        base.extend(rest.iter().cloned());
        Some(base)
    }

    fn outside(&mut self, line: usize, path: Vec<String>) {
        if path.len() > 1 {
            self.module.outside.push((line, path));
        }
    }

    /// Takes the paths of a macro's call, which is not parsed.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: (usize, Vec<String>) = (0, Vec::new());
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(name) => {
                    if colons != 2 {
                        let (line, path) = std::mem::take(&mut path);
                        self.outside(line, path);
                    }
                    path.0 = name.span().start().line;
                    path.1.push(name.to_string());
                    colons = 0;
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' => colons += 1,
                TokenTree::Group(group) => {
                    colons = 0;
                    self.tokens(group.stream());
                }
                _ => colons = 0,
            }
        }
        self.outside(path.0, path.1);
    }

    fn tree(&mut self, tree: &syn::UseTree, path: &mut Vec<String>, public: bool) {
        match tree {
            syn::UseTree::Path(part) => {
                path.push(part.ident.to_string());
                self.tree(&part.tree, path, public);
                path.pop();
            }
            syn::UseTree::Group(group) => {
                for tree in &group.items {
                    self.tree(tree, path, public);
                }
            }
            syn::UseTree::Name(leaf) => {
                let name = leaf.ident.to_string();
                self.leaf(path, &leaf.ident, Some(name), public);
            }
            syn::UseTree::Rename(leaf) => {
                let name = leaf.rename.to_string();
                self.leaf(path, &leaf.ident, Some(name), public);
            }
            syn::UseTree::Glob(leaf) => {
                let line = leaf.star_token.spans[0].start().line;
                if public && self.absolute(path).is_some() {
                    self.module.error = Some(format!("line {line}: re-exports must be named"));
                } else if let Some(target) = self.absolute(path) {
                    self.module.uses.push((line, target));
                } else {
                    self.outside(line, path.clone());
                }
            }
        }
    }

    fn leaf(&mut self, path: &[String], ident: &syn::Ident, name: Option<String>, public: bool) {
        let mut full = path.to_vec();
        if ident != "self" {
            full.push(ident.to_string());
        }
        let line = ident.span().start().line;
        let Some(target) = self.absolute(&full) else {
            return self.outside(line, full);
        };
        match name.filter(|_| public && self.here == self.module.path) {
            Some(name) => {
                self.module.reexports.insert(name, (line, target));
            }
            None => self.module.uses.push((line, target)),
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if !for_tests(item) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item(&mut self, item: &'ast syn::ImplItem) {
        let attributes = match item {
            syn::ImplItem::Const(item) => &item.attrs,
            syn::ImplItem::Fn(item) => &item.attrs,
            _ => return visit::visit_impl_item(self, item),
        };
        if !only_tests(attributes) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if item.content.is_some() {
            self.here.push(item.ident.to_string());
            visit::visit_item_mod(self, item);
            self.here.pop();
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let public = !matches!(item.vis, syn::Visibility::Inherited);
        self.tree(&item.tree, &mut Vec::new(), public);
    }

    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let parts: Vec<String> = path
            .segments
            .iter()
            .map(|part| part.ident.to_string())
            .collect();
        let line = path.segments[0].ident.span().start().line;
        match self.absolute(&parts).filter(|_| parts.len() > 1) {
            Some(target) => self.module.uses.push((line, target)),
            None => {
                self.names.push((line, parts[0].clone()));
                self.outside(line, parts);
            }
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        visit::visit_macro(self, call);
        self.tokens(call.tokens.clone());
    }
}

/// Whether `item` is compiled only for tests.
fn for_tests(item: &syn::Item) -> bool {
    only_tests(match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Enum(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Trait(item) => &item.attrs,
        syn::Item::Type(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => return false,
    })
}

/// Whether one of the attributes is `cfg(test)` or `cfg(all(test, …))`.
fn only_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let only = |list: &syn::MetaList| {
            let condition = list.tokens.to_string();
            condition == "test" || condition.starts_with("all (test ,")
        };
        attribute.path().is_ident("cfg") && attribute.meta.require_list().is_ok_and(only)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_are_resolved_through_reexports() {
        let tree = Tree::of(&[
            ("crates/x/src/lib.rs", "mod a; mod b; pub use a::Thing;"),
            (
                "crates/x/src/a/mod.rs",
                "mod c; pub use c::Thing; pub struct Own;",
            ),
            ("crates/x/src/a/c.rs", "use super::Own; pub struct Thing;"),
            (
                "crates/x/src/b.rs",
                "use crate::{a::Own, Thing as T};\n\
                 #[cfg(test)] mod tests { use crate::a::Own; }\n\
                 fn f() { crate::a::g() }",
            ),
        ]);
        let all = Crate::all(&tree);
        let b = all[0].modules.iter().find(|m| m.path == ["b"]).unwrap();
        let files: Vec<_> = b
            .uses
            .iter()
            .map(|(line, path)| {
                (
                    *line,
                    all[0].modules[all[0].resolve(path).unwrap()].file.as_str(),
                )
            })
            .collect();
        let (a, c) = ("crates/x/src/a/mod.rs", "crates/x/src/a/c.rs");
        assert_eq!(files, [(1, a), (1, c), (3, a)]);
    }

    #[test]
    fn a_name_that_a_file_re_exports_and_uses_is_a_use() {
        let uses = |text| {
            let tree = Tree::of(&[
                ("crates/x/src/lib.rs", "mod a;"),
                ("crates/x/src/a/mod.rs", text),
                ("crates/x/src/a/c.rs", "pub struct Thing;"),
            ]);
            let mut all = Crate::all(&tree);
            let at = all[0].modules.iter().position(|m| m.path == ["a"]).unwrap();
            all.remove(0).modules.remove(at)
        };
        assert_eq!(uses("mod c;\npub use c::Thing;").uses, []);
        let used = uses("mod c;\npub use c::Thing;\nfn f(_: Thing) {}\nfn g() { Thing::h() }");
        let thing = ["a", "c", "Thing"].map(String::from).to_vec();
        assert_eq!(used.uses, [(3, thing.clone()), (4, thing)]);
        assert!(uses("mod c;\npub use c::*;").error.is_some());
        assert!(uses("this is not Rust").error.is_some());
    }
}
