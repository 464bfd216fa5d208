//! The repository keeps its own rules.

use std::process::Command;

use cargo_metadata::{Metadata, MetadataCommand};
use fabricast_tidy::packages::{Policy, needed};
use fabricast_tidy::{Exceptions, RULES, Tree, exceptions_path, root};

#[test]
fn the_repository_keeps_its_rules() {
    let tree = Tree::read(&root()).unwrap();
    let exceptions = std::fs::read_to_string(exceptions_path()).unwrap();
    let exceptions = Exceptions::parse(&exceptions).unwrap();
    let wrong: Vec<String> = RULES
        .iter()
        .flat_map(|(name, rule)| exceptions.judge(name, &rule(&tree)))
        .collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// A new rule may begin with exceptions. Once they are gone they do not come back.
#[test]
fn no_rule_has_exceptions() {
    let exceptions = std::fs::read_to_string(exceptions_path()).unwrap();
    let exceptions = Exceptions::parse(&exceptions).unwrap();
    assert!(exceptions.0.is_empty(), "{:?}", exceptions.0);
}

fn metadata() -> Metadata {
    let mut command = MetadataCommand::new();
    command.manifest_path(root().join("Cargo.toml"));
    command.exec().unwrap()
}

#[test]
fn licences_and_versions_are_those_of_deny_toml() {
    let policy = std::fs::read_to_string(root().join("deny.toml")).unwrap();
    let policy = Policy::parse(&policy).unwrap();
    let metadata = metadata();
    let packages = needed(&metadata);
    assert!(packages.len() > 10, "{packages:?}");
    let wrong = policy.judge(packages);
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn the_product_does_not_carry_the_laboratory() {
    let metadata = metadata();
    for (name, ..) in needed(&metadata) {
        let laboratory = ["fabricast-sim", "fabricast-lab", "plotters"].contains(&name);
        assert!(!laboratory, "the product depends on {name}");
    }
}

#[test]
fn cargo_deny_agrees() {
    let installed = Command::new("cargo").args(["deny", "--version"]).output();
    if !installed.is_ok_and(|output| output.status.success()) {
        println!("skipped: cargo deny is not installed");
        return;
    }
    let checks = ["deny", "--offline", "check", "licenses", "bans"];
    let status = Command::new("cargo")
        .args(checks)
        .current_dir(root())
        .status();
    assert!(status.unwrap().success());
}
