//! Only what opens networks knows which networks there are.

use std::collections::BTreeSet;

use crate::rust::{Crate, Module};
use crate::tree::{Finding, Tree};

/// The crate with the networks, and how other crates call it.
const LIBRARY: &str = "fabricast";
const CALLED: [&str; 2] = [LIBRARY, "fabricast_lib"];
/// The module whose folders are networks, and the folder that it is.
const ROOM: &str = "transport";
const TRANSPORTS: &str = "crates/fabricast/src/transport/";
/// What may name one: the opening of networks, and the laboratory's experiment on bare sockets.
const OPENERS: [&str; 2] = ["crates/fabricast/src/net.rs", "crates/lab/src/live.rs"];

/// Finds paths that lead into a network, in sources outside of it. A path is followed through
/// re-exports. Tests may name a network. A wrapper of a type of a network is no re-export.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let networks: BTreeSet<&str> = tree
        .files
        .iter()
        .filter_map(|file| Some(file.path.strip_prefix(TRANSPORTS)?.split_once('/')?.0))
        .collect();
    let all = Crate::all(tree);
    let Some(library) = all.iter().find(|of| of.name == LIBRARY) else {
        return Vec::new();
    };
    // The network of a module in the library.
    let network = |module: &Module| match module.path.as_slice() {
        [room, name, ..] if room == ROOM => networks.get(name.as_str()).copied(),
        _ => None,
    };
    let leads = |path: &[String]| library.resolve(path).map(|at| &library.modules[at]);
    let mut findings = Vec::new();
    for of in all.iter().filter(|of| of.name != "tidy") {
        let is_library = of.name == LIBRARY;
        for module in &of.modules {
            let inside = is_library.then(|| network(module)).flatten();
            if inside.is_some() || OPENERS.contains(&module.file.as_str()) {
                continue;
            }
            let here = module.uses.iter().chain(module.reexports.values());
            let here =
                here.filter(|(_, path)| is_library && leads(path).and_then(network).is_some());
            // A name that was imported, or another crate's.
            let outside = module.outside.iter().filter(|(_, path)| {
                let named = path.iter().any(|part| networks.contains(part.as_str()));
                let first = path[0].as_str();
                let library = CALLED.contains(&first) || is_library && first == "crate";
                named || library && leads(&path[1..]).and_then(network).is_some()
            });
            let mut lines: Vec<usize> = here.chain(outside).map(|(line, _)| *line).collect();
            lines.sort_unstable();
            lines.dedup();
            let what = format!("only {} may name a transport", OPENERS.join(", "));
            let finding = |line| Finding::new(&module.file, line, what.clone());
            findings.extend(lines.into_iter().map(finding));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODULES: [(&str, &str); 6] = [
        (
            "crates/fabricast/src/lib.rs",
            "mod transport; mod net; mod transfer;",
        ),
        (
            "crates/fabricast/src/transport/mod.rs",
            "pub mod fault; pub mod pipe; pub mod udp;",
        ),
        (
            "crates/fabricast/src/transport/fault.rs",
            "pub struct Fault;",
        ),
        (
            "crates/fabricast/src/transport/pipe/mod.rs",
            "pub struct Pipe;",
        ),
        (
            "crates/fabricast/src/transport/udp/mod.rs",
            "pub mod sys; pub struct Udp; use sys::f;",
        ),
        ("crates/fabricast/src/transport/udp/sys.rs", "pub fn f() {}"),
    ];

    /// The files and lines that are found with these files beside the modules, or instead of them.
    fn found(files: &[(&str, &str)]) -> Vec<(String, usize)> {
        let is_there = |path| files.iter().any(|(given, _)| *given == path);
        let rest = MODULES.iter().filter(|(path, _)| !is_there(*path));
        let all: Vec<_> = files.iter().chain(rest).copied().collect();
        let found = check(&Tree::of(&all)).into_iter();
        found.map(|f| (f.path.to_string(), f.line)).collect()
    }

    /// The lines that are found in this text of a module above the networks.
    fn lines(text: &str) -> Vec<usize> {
        let path = "crates/fabricast/src/transfer/mod.rs";
        let found = found(&[(path, text), ("crates/fabricast/src/net.rs", text)]);
        assert!(found.iter().all(|(file, _)| file == path), "{found:?}");
        found.into_iter().map(|(_, line)| line).collect()
    }

    #[test]
    fn a_transport_is_named_by_openers_alone() {
        assert_eq!(lines("use crate::transport::udp::Udp;"), [1]);
        assert_eq!(lines("use crate::transport::pipe::Pipe;"), [1]);
        assert_eq!(lines("\nfn f() { crate::transport::udp::sys::f() }"), [2]);
        assert_eq!(lines("use crate::transport::fault::Fault;"), [0; 0]);
        assert_eq!(
            found(&[(
                "crates/fabricast/tests/a.rs",
                "use fabricast::transport::udp;"
            )]),
            []
        );
    }

    #[test]
    fn a_nested_import_is_read() {
        let text =
            "use crate::{\n    transport::{\n        fault::{Fault},\n        udp,\n    },\n};";
        assert_eq!(lines(text), [4]);
        let text = "use crate::transport::{fault::{Fault}, udp::{sys::{f as g}}};";
        assert_eq!(lines(text), [1]);
    }

    #[test]
    fn other_names_of_the_module_hide_nothing() {
        assert_eq!(
            lines("use crate::transport as t;\nfn f() { t::udp::sys::f() }"),
            [2]
        );
        assert_eq!(lines("use crate::transport::*;\nfn f(_: udp::Udp) {}"), [2]);
        let call = "fn f() {\n    println!(\"{}\", crate::transport::udp::sys::f());\n}";
        assert_eq!(lines(call), [2]);
    }

    #[test]
    fn only_an_inline_module_of_tests_is_left_out() {
        let text = "#[cfg(test)]\nmod tests;\nuse crate::transport::udp::Udp;";
        assert_eq!(lines(text), [3]);
        let text = "#[cfg(test)]\nmod tests { use crate::transport::udp::Udp; }\n\
                    fn f(_: crate::transport::udp::Udp) {}";
        assert_eq!(lines(text), [3]);
    }

    #[test]
    fn a_reexport_is_found_where_it_is_used() {
        let user = (
            "crates/fabricast/src/transfer/mod.rs",
            "\nuse crate::net::Udp;",
        );
        let opener = (
            "crates/fabricast/src/net.rs",
            "pub(crate) use crate::transport::udp::Udp;",
        );
        assert_eq!(found(&[user, opener]), [(user.0.to_string(), 2)]);
        let alias = (
            "crates/fabricast/src/net.rs",
            "pub type Net = crate::transport::udp::Udp;",
        );
        assert_eq!(
            found(&[
                (
                    "crates/fabricast/src/transfer/mod.rs",
                    "use crate::net::Net;"
                ),
                alias
            ]),
            []
        );
        // A module beside the networks shows nothing of them either.
        let shows = (
            "crates/fabricast/src/transport/fault.rs",
            "pub use super::udp::sys::f;",
        );
        let user = (
            "crates/cli/src/main.rs",
            "\n\nuse fabricast_lib::transport::fault::f;",
        );
        let expected = [(user.0.to_string(), 3), (shows.0.to_string(), 1)];
        assert_eq!(found(&[user, shows]), expected);
    }

    #[test]
    fn another_crate_names_none() {
        let user = (
            "crates/sim/src/lib.rs",
            "use fabricast::{transport::{fault, udp::Udp}};",
        );
        assert_eq!(found(&[user]), [(user.0.to_string(), 1)]);
        let lab = (
            "crates/lab/src/live.rs",
            "use fabricast::transport::udp::Udp;",
        );
        assert_eq!(found(&[lab]), []);
    }
}
