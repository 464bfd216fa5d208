//! Files do not import each other in a circle, and no room imports from a higher one.
//!
//! A room is a module directly below a crate's root, with everything in it.

use std::collections::BTreeMap;

use petgraph::algo::tarjan_scc;
use petgraph::graph::DiGraph;

use crate::rust::Crate;
use crate::tree::{Finding, Tree};

/// The rooms of each crate, the lowest first.
const ROOMS: &str = "crates/tidy/rooms.toml";

/// An import: the module that imports, the line, and the module that is imported from.
struct Import {
    from: usize,
    line: usize,
    to: usize,
}

fn imports(of: &Crate) -> Vec<Import> {
    let mut all = Vec::new();
    for (from, module) in of.modules.iter().enumerate() {
        for (line, path) in &module.uses {
            let line = *line;
            all.extend(of.resolve(path).map(|to| Import { from, line, to }));
        }
    }
    all.retain(|import| import.from != import.to);
    all.sort_by_key(|import| (import.from, import.to, import.line));
    all.dedup_by_key(|import| (import.from, import.to));
    all
}

/// Finds the imports that are part of a circle of files.
pub fn circles(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for of in Crate::all(tree) {
        let imports = imports(&of);
        let edges = imports
            .iter()
            .map(|import| (import.from as u32, import.to as u32));
        let graph = DiGraph::<(), ()>::from_edges(edges);
        let mut circle = vec![usize::MAX; of.modules.len()];
        for (number, nodes) in tarjan_scc(&graph).into_iter().enumerate() {
            for node in nodes {
                circle[node.index()] = number;
            }
        }
        for Import { from, line, to } in imports {
            if circle[from] == circle[to] {
                let what = format!("a circle: {} imports this file, too", of.modules[to].file);
                findings.push(Finding::new(&of.modules[from].file, line, what));
            }
        }
    }
    findings
}

/// Finds imports from a lower room to a higher one, and rooms without a place.
pub fn rooms(tree: &Tree) -> Vec<Finding> {
    type Rooms = BTreeMap<String, Vec<String>>;
    let Some(rooms) = tree
        .file(ROOMS)
        .and_then(|f| toml::from_str::<Rooms>(&f.text).ok())
    else {
        return vec![Finding::new(
            ROOMS,
            1,
            "is not there, or is no table of lists",
        )];
    };
    let mut findings = Vec::new();
    for of in Crate::all(tree) {
        let Some(order) = rooms.get(&of.name) else {
            continue;
        };
        let place = |module: usize| {
            let room = of.modules[module].path.first()?;
            order.iter().position(|name| name == room)
        };
        for module in &of.modules {
            if let Some(room) = module.path.first()
                && !order.contains(room)
            {
                let what = format!("{ROOMS} gives the room {room} no place");
                findings.push(Finding::new(&module.file, 1, what));
            }
        }
        for Import { from, line, to } in imports(&of) {
            if let (Some(here), Some(there)) = (place(from), place(to))
                && there > here
            {
                let what = format!(
                    "{} imports from the higher room {}",
                    order[here], order[there]
                );
                findings.push(Finding::new(&of.modules[from].file, line, what));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIB: (&str, &str) = ("crates/x/src/lib.rs", "mod low; mod high;");

    #[test]
    fn a_circle_is_found_on_each_of_its_imports() {
        let there = ("crates/x/src/low.rs", "\nuse crate::high::H; pub struct L;");
        let back = ("crates/x/src/high.rs", "use crate::low::L; pub struct H;");
        let found = circles(&Tree::of(&[LIB, there, back]));
        let places: Vec<_> = found.iter().map(|f| (f.path.as_str(), f.line)).collect();
        assert_eq!(places, [(there.0, 2), (back.0, 1)]);
        let free = ("crates/x/src/low.rs", "pub struct L;");
        assert_eq!(circles(&Tree::of(&[LIB, free, back])), []);
    }

    #[test]
    fn an_import_from_a_higher_room_is_found() {
        let order = (ROOMS, "x = [\"low\", \"high\"]");
        let up = ("crates/x/src/low.rs", "fn f(_: crate::high::H) {}");
        let high = ("crates/x/src/high.rs", "pub struct H;");
        let found = rooms(&Tree::of(&[order, LIB, up, high]));
        assert_eq!(found.len(), 1);
        assert!(
            found[0]
                .what
                .contains("low imports from the higher room high")
        );
        let down = ("crates/x/src/high.rs", "use crate::low::L; pub struct H;");
        let low = ("crates/x/src/low.rs", "pub struct L;");
        assert_eq!(rooms(&Tree::of(&[order, LIB, low, down])), []);
        let more = ("crates/x/src/new.rs", "");
        assert_eq!(rooms(&Tree::of(&[order, LIB, low, down, more])).len(), 1);
    }
}
