//! Checks licences and versions of the product's dependencies against `deny.toml`.

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::{DependencyKind, Metadata, PackageId};

/// The parts of `deny.toml` that this crate checks, too, since `cargo deny` is not installed
/// everywhere.
#[derive(Debug)]
pub struct Policy {
    /// SPDX names of the licences that a dependency may have.
    allow: BTreeSet<String>,
    /// Names of packages that may occur in several versions.
    skip: BTreeSet<String>,
}

impl Policy {
    /// Reads the text of `deny.toml`.
    ///
    /// # Errors
    /// Text that is not TOML.
    pub fn parse(text: &str) -> Result<Policy, toml::de::Error> {
        let table: toml::Table = text.parse()?;
        let list = |section: &str, key: &str| -> BTreeSet<String> {
            let entries = table
                .get(section)
                .and_then(|s| s.get(key))
                .and_then(|l| l.as_array());
            let name = |entry: &toml::Value| {
                let entry = entry.get("crate").unwrap_or(entry);
                entry.as_str().map(String::from)
            };
            entries.into_iter().flatten().filter_map(name).collect()
        };
        Ok(Policy {
            allow: list("licenses", "allow"),
            skip: list("bans", "skip"),
        })
    }

    /// Whether the SPDX expression allows a licence of the list. Of `A OR B` one is enough, of
    /// `A AND B` both are needed; `/` is an older spelling of `OR`.
    fn allows(&self, expression: &str) -> bool {
        let plain = expression.replace(['(', ')'], "").replace('/', " OR ");
        plain.split(" AND ").all(|needed| {
            needed
                .split(" OR ")
                .any(|name| self.allow.contains(name.trim()))
        })
    }

    /// Says which of the packages have a licence that is not allowed, or several versions.
    /// `packages` are names, versions and licences.
    pub fn judge<'a>(
        &self,
        packages: impl IntoIterator<Item = (&'a str, String, Option<&'a str>)>,
    ) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut versions: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for (name, version, licence) in packages {
            if !licence.is_some_and(|licence| self.allows(licence)) {
                let licence = licence.unwrap_or("no licence");
                wrong.push(format!("{name} {version}: {licence} is not in deny.toml"));
            }
            versions.entry(name).or_default().push(version);
        }
        for (name, versions) in versions {
            if versions.len() > 1 && !self.skip.contains(name) {
                wrong.push(format!("{name} is there in {}", versions.join(" and ")));
            }
        }
        wrong
    }
}

/// The packages that users install.
const PRODUCT: [&str; 2] = ["fabricast-cli", "fabricast-capi"];

/// The packages that the product is built from, without those that only tests and builds need. Each
/// has a name, a version and a licence.
pub fn needed(metadata: &Metadata) -> Vec<(&str, String, Option<&str>)> {
    let Some(resolve) = &metadata.resolve else {
        return Vec::new();
    };
    let nodes: BTreeMap<&PackageId, _> =
        resolve.nodes.iter().map(|node| (&node.id, node)).collect();
    let mut found: BTreeSet<&PackageId> = BTreeSet::new();
    let products = metadata.workspace_packages().into_iter();
    let products = products.filter(|package| PRODUCT.contains(&package.name.as_str()));
    let mut next: Vec<&PackageId> = products.map(|package| &package.id).collect();
    while let Some(id) = next.pop() {
        if !found.insert(id) {
            continue;
        }
        let normal = |dep: &&cargo_metadata::NodeDep| {
            dep.dep_kinds
                .iter()
                .any(|kind| kind.kind == DependencyKind::Normal)
        };
        let deps = nodes.get(id).into_iter().flat_map(|node| &node.deps);
        next.extend(deps.filter(normal).map(|dep| &dep.pkg));
    }
    let packages = metadata
        .packages
        .iter()
        .filter(|package| found.contains(&package.id));
    packages
        .map(|package| {
            let licence = package.license.as_deref();
            (package.name.as_str(), package.version.to_string(), licence)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licences_and_versions_are_judged() {
        let text = "[licenses]\nallow = [\"MIT\", \"Apache-2.0\"]\n\
                    [bans]\nskip = [{ crate = \"twice\" }]\n";
        let policy = Policy::parse(text).unwrap();
        let package = |name, version: &str, licence| (name, version.to_string(), licence);
        let good = [
            package("a", "1", Some("MIT/Apache-2.0")),
            package("b", "1", Some("(BSD-3-Clause OR MIT) AND Apache-2.0")),
            package("twice", "1", Some("MIT")),
            package("twice", "2", Some("MIT")),
        ];
        assert_eq!(policy.judge(good), [""; 0]);
        let bad = [
            package("c", "1", Some("GPL-3.0")),
            package("d", "1", Some("MIT AND GPL-3.0")),
            package("e", "1", None),
            package("f", "1", Some("MIT")),
            package("f", "2", Some("MIT")),
        ];
        assert_eq!(policy.judge(bad).len(), 4);
    }
}
