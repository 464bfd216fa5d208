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

/// The imports between the files of a crate, one for each pair. With `reexports`, re-exports are
/// imports, too.
fn imports(of: &Crate, reexports: bool) -> Vec<Import> {
    let mut all = Vec::new();
    for (from, module) in of.modules.iter().enumerate() {
        let more = module.reexports.values().filter(|_| reexports);
        for (line, path) in module.uses.iter().chain(more) {
            let line = *line;
            all.extend(of.resolve(path).map(|to| Import { from, line, to }));
        }
    }
    all.retain(|import| import.from != import.to);
    all.sort_by_key(|import| (import.from, import.to, import.line));
    all.dedup_by_key(|import| (import.from, import.to));
    all
}

/// Finds the imports that are part of a circle of files, and files that cannot be read as Rust. A
/// re-export alone makes no circle: a module may show what its children define.
pub fn circles(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for of in Crate::all(tree) {
        for module in &of.modules {
            let error = module.error.as_ref();
            findings.extend(error.map(|error| Finding::new(&module.file, 1, error)));
        }
        let imports = imports(&of, false);
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
                let what = format!("part of a circle, by {}", of.modules[to].file);
                findings.push(Finding::new(&of.modules[from].file, line, what));
            }
        }
    }
    findings
}

/// Finds imports from a lower room to a higher one, rooms that the list lacks, and listed rooms
/// that do not exist. Crates that the list leaves out have no rooms.
pub fn rooms(tree: &Tree) -> Vec<Finding> {
    type Rooms = BTreeMap<String, Vec<String>>;
    let Some(file) = tree.file(ROOMS) else {
        return vec![Finding::new(ROOMS, 1, "is not there")];
    };
    let rooms = match toml::from_str::<Rooms>(&file.text) {
        Ok(rooms) => rooms,
        Err(error) => return vec![Finding::new(ROOMS, 1, error.to_string())],
    };
    let all = Crate::all(tree);
    let mut findings = Vec::new();
    for (name, order) in &rooms {
        let Some(of) = all.iter().find(|of| of.name == *name) else {
            findings.push(Finding::new(ROOMS, 1, format!("there is no crate {name}")));
            continue;
        };
        for room in order {
            if !of
                .modules
                .iter()
                .any(|module| module.path.first() == Some(room))
            {
                findings.push(Finding::new(ROOMS, 1, format!("{name} has no room {room}")));
            }
        }
        for module in &of.modules {
            if let Some(room) = module.path.first()
                && !order.contains(room)
            {
                let what = format!("{ROOMS} gives the room {room} no place");
                findings.push(Finding::new(&module.file, 1, what));
            }
        }
        let place = |module: usize| {
            let room = of.modules[module].path.first()?;
            order.iter().position(|name| name == room)
        };
        for Import { from, line, to } in imports(of, true) {
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
        let far = ("crates/x/src/high.rs", "use crate::third::T; pub struct H;");
        let third = ("crates/x/src/third.rs", "use crate::low::L; pub struct T;");
        assert_eq!(circles(&Tree::of(&[LIB, there, far, third])).len(), 3);
        assert_eq!(
            circles(&Tree::of(&[LIB, ("crates/x/src/low.rs", "no Rust")])).len(),
            1
        );
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
        let shows = (
            "crates/x/src/low.rs",
            "pub use crate::high::H; pub struct L;",
        );
        let high = ("crates/x/src/high.rs", "pub struct H;");
        assert_eq!(rooms(&Tree::of(&[order, LIB, shows, high])).len(), 1);
        let gone = (ROOMS, "x = [\"low\", \"high\", \"gone\"]\ny = []");
        assert_eq!(rooms(&Tree::of(&[gone, LIB, low, down])).len(), 2);
        let more = ("crates/x/src/new.rs", "");
        assert_eq!(rooms(&Tree::of(&[order, LIB, low, down, more])).len(), 1);
    }
}
