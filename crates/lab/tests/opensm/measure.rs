//! `fabricast-lab subnet measure` at a real OpenSM.

use serde_json::Value;

use super::fabric::Fabric;

#[test]
fn operations_are_measured_until_the_tables_are_right() {
    let Some(fabric) = Fabric::up(8, &[]) else {
        return;
    };
    let args = ["subnet", "measure", "--members", "2,8", "--repeat", "2"];
    let lines: Vec<Value> = (fabric.lab("h1", &args).lines())
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let told = |line: &Value| {
        let name = line["operation"].as_str().unwrap().to_owned();
        (name, line["members"].as_u64(), line["requests"].as_u64())
    };
    let told: Vec<_> = lines.iter().map(told).collect();
    let expected = [2, 8].into_iter().flat_map(|members| {
        let all = [
            ("create", 1),
            ("join all others", members - 1),
            ("leave", 1),
            ("join", 1),
            ("leave all", members),
        ];
        all.map(|(name, requests)| (name.to_owned(), Some(members), Some(requests)))
    });
    assert_eq!(told, expected.collect::<Vec<_>>());
    for line in &lines {
        // A group of one host has no entries in the tables.
        let has_tables = line["operation"] != "create";
        assert_eq!(line["tables_us"].is_object(), has_tables, "{line}");
        assert!(line["last_answer_us"]["min"].as_f64() > Some(0.0), "{line}");
    }
    // Everything is returned: no table has an entry.
    let tables = fabric.lab("h1", &["subnet", "tables"]);
    assert!(
        tables.contains("switch leaf1") && !tables.contains(" to "),
        "{tables}"
    );
}
