//! Only what opens networks knows which networks there are.

use regex::Regex;

use crate::rust;
use crate::tree::{Finding, Tree};

/// Where the networks are.
const TRANSPORTS: &str = "crates/fabricast/src/transport/";
/// What may name one: the opening of networks, and the laboratory's experiment on bare sockets.
const OPENERS: [&str; 2] = ["crates/fabricast/src/net.rs", "crates/lab/src/live.rs"];

/// Finds the names of transports in sources outside of them. Tests may name one.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let named = Regex::new(r"\btransport::(?:\{[^}]*?\b)?(?:udp|shm)\b|\b(?:Udp|UdpConfig|Shm)\b");
    let named = named.expect("valid");
    let comments = Regex::new(r"(?m)^\s*//.*$").expect("valid");
    let mut findings = Vec::new();
    for file in &tree.files {
        let is_source = file.path.starts_with("crates/") && file.path.contains("/src/");
        let may = |path: &&str| file.path.starts_with(path);
        if !is_source
            || !file.path.ends_with(".rs")
            || [TRANSPORTS, "crates/tidy/"].iter().any(may)
            || OPENERS.iter().any(may)
            || rust::is_test(&file.path)
        {
            continue;
        }
        let code = file.text.split("#[cfg(test)]\nmod tests").next();
        let code = code.unwrap_or_default();
        let code = comments.replace_all(code, "");
        for found in named.find_iter(&code) {
            let line = 1 + code[..found.start()].matches('\n').count();
            let what = format!("only {} may name a transport", OPENERS.join(", "));
            findings.push(Finding::new(&file.path, line, what));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transport_is_named_by_openers_alone() {
        let text = "use crate::transport::{\n    Caps, udp::Udp,\n};\nfn f(_: Shm) {}\n\
                    #[cfg(test)]\nmod tests { use crate::transport::udp::Udp; }\n";
        let found = check(&Tree::of(&[
            ("crates/fabricast/src/transfer/a.rs", text),
            ("crates/fabricast/src/transport/mod.rs", text),
            ("crates/fabricast/src/net.rs", text),
            ("crates/fabricast/tests/a.rs", text),
        ]));
        let lines: Vec<_> = found.iter().map(|f| f.line).collect();
        assert_eq!(lines, [1, 2, 4]);
        assert!(found.iter().all(|f| f.path.contains("transfer")));
    }
}
