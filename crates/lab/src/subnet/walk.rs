//! Follows multicast tables from every member of a group, and counts the copies that arrive.

use std::collections::{BTreeMap, BTreeSet};

use super::fabric::{Fabric, Tables};

/// Switches that a packet may cross. More are taken for a loop.
const HOPS_MAX: usize = 16;

/// Members of a group: the names of the hosts.
pub type Members = BTreeSet<String>;

/// Groups by their multicast LIDs.
pub type Groups = BTreeMap<u16, Members>;

/// Like [`judge`], where the multicast LIDs of the groups are not known: each LID in the tables
/// must lead to the hosts of one group, and each group must have one. Returns the first thing that
/// is wrong.
pub fn judge_all(fabric: &Fabric, tables: &Tables, groups: &[Members]) -> Result<(), String> {
    let mut waiting = groups.to_vec();
    let mut found = Groups::new();
    for (mlid, hosts) in reached(fabric, tables) {
        let Some(at) = waiting.iter().position(|group| *group == hosts) else {
            return Err(format!("{mlid:#06x} leads to {hosts:?}, which is no group"));
        };
        found.insert(mlid, waiting.swap_remove(at));
    }
    match waiting.first() {
        Some(group) => Err(format!("no multicast LID leads to {group:?}")),
        None => judge(fabric, tables, &found),
    }
}

/// The hosts that the entries of each multicast LID lead to.
pub fn reached(fabric: &Fabric, tables: &Tables) -> Groups {
    let mut reached = Groups::new();
    for (switch, table) in tables {
        let links = &fabric.nodes[*switch].links;
        for (mlid, ports) in table {
            let nodes = ports.iter().filter_map(|port| links.get(port));
            let nodes = nodes.map(|(node, _)| &fabric.nodes[*node]);
            let hosts = nodes.filter(|node| !node.is_switch);
            let names = hosts.map(|host| host.name.clone());
            reached.entry(*mlid).or_default().extend(names);
        }
    }
    reached
}

/// Checks that a packet from each member of each group reaches every other member once and nobody
/// else, that no table leads to a host that is no member, and that groups without members have no
/// entry. Returns the first thing that is wrong.
pub fn judge(fabric: &Fabric, tables: &Tables, groups: &Groups) -> Result<(), String> {
    let nobody = BTreeSet::new();
    for (switch, table) in tables {
        for (mlid, ports) in table {
            let members = groups.get(mlid).unwrap_or(&nobody);
            outsiders(fabric, *switch, ports, members)
                .map_err(|what| format!("{mlid:#06x}: {what}"))?;
        }
    }
    for (mlid, members) in groups {
        for sender in members {
            let copies = copies(fabric, tables, *mlid, sender)
                .map_err(|what| format!("{mlid:#06x} from {sender}: {what}"))?;
            let others = members.iter().filter(|member| *member != sender);
            let expected: BTreeMap<&str, u32> = others.map(|m| (m.as_str(), 1)).collect();
            if copies != expected {
                return Err(format!(
                    "{mlid:#06x} from {sender}: {copies:?} of {members:?}"
                ));
            }
        }
    }
    Ok(())
}

/// Checks the ports of one entry: each leads to a switch or to a member.
fn outsiders(
    fabric: &Fabric,
    switch: usize,
    ports: &BTreeSet<u8>,
    members: &Members,
) -> Result<(), String> {
    let node = &fabric.nodes[switch];
    if members.is_empty() {
        return Err(format!(
            "{} has an entry, but the group no member",
            node.name
        ));
    }
    for port in ports.iter().filter(|port| **port != 0) {
        let Some((other, _)) = node.links.get(port) else {
            return Err(format!(
                "{} sends by port {port}, which has no link",
                node.name
            ));
        };
        let other = &fabric.nodes[*other];
        if !other.is_switch && !members.contains(&other.name) {
            return Err(format!("{} sends to {}, no member", node.name, other.name));
        }
    }
    Ok(())
}

/// The copies that each host gets of a packet that `sender` sends.
fn copies<'fabric>(
    fabric: &'fabric Fabric,
    tables: &Tables,
    mlid: u16,
    sender: &str,
) -> Result<BTreeMap<&'fabric str, u32>, String> {
    let sender = fabric.find(sender).ok_or("the sender is not there")?;
    let mut copies = BTreeMap::new();
    // Where a packet is about to arrive: the node, its port, the switches crossed.
    let first = fabric.nodes[sender].links.values();
    let mut ahead: Vec<(usize, u8, usize)> = first.map(|(n, p)| (*n, *p, 0)).collect();
    if ahead.is_empty() {
        return Err("the sender has no link".into());
    }
    while let Some((number, entrance, hops)) = ahead.pop() {
        let node = &fabric.nodes[number];
        if !node.is_switch {
            *copies.entry(node.name.as_str()).or_default() += 1;
            continue;
        }
        if hops == HOPS_MAX {
            return Err("the tables have a loop".into());
        }
        let ports = tables.get(&number).and_then(|table| table.get(&mlid));
        for port in ports.into_iter().flatten() {
            if let Some((next, port)) = node.links.get(port).filter(|_| *port != entrance) {
                ahead.push((*next, *port, hops + 1));
            }
        }
    }
    Ok(copies)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subnet::fabric::Node;

    /// Hosts a and b on switch 0, c on switch 1; the switches have two links, by ports 8 and 9.
    fn fabric() -> Fabric {
        let node = |name: &str, links: &[(u8, (usize, u8))]| Node {
            name: name.into(),
            is_switch: name.starts_with('s'),
            guid: 0,
            ports: 9,
            route: Vec::new(),
            links: links.iter().copied().collect(),
        };
        let nodes = vec![
            node("s0", &[(1, (2, 1)), (2, (3, 1)), (8, (1, 8)), (9, (1, 9))]),
            node("s1", &[(1, (4, 1)), (8, (0, 8)), (9, (0, 9))]),
            node("a", &[(1, (0, 1))]),
            node("b", &[(1, (0, 2))]),
            node("c", &[(1, (1, 1))]),
        ];
        Fabric { nodes }
    }

    fn verdict(tables: &[(usize, &[u8])], members: &[&str]) -> Result<(), String> {
        let entry = |ports: &[u8]| BTreeMap::from([(0xc001, ports.iter().copied().collect())]);
        let tables = tables.iter().map(|(n, ports)| (*n, entry(ports))).collect();
        let members: BTreeSet<_> = members.iter().map(|m| m.to_string()).collect();
        let groups = match members.is_empty() {
            true => Groups::new(),
            false => Groups::from([(0xc001, members)]),
        };
        judge(&fabric(), &tables, &groups)
    }

    #[test]
    fn a_tree_is_right() {
        assert_eq!(verdict(&[(0, &[1, 8]), (1, &[1, 8])], &["a", "c"]), Ok(()));
        assert_eq!(verdict(&[(0, &[1, 2])], &["a", "b"]), Ok(()));
        assert_eq!(verdict(&[(0, &[1])], &["a"]), Ok(()));
        assert_eq!(verdict(&[], &["a"]), Ok(()));
        assert_eq!(verdict(&[], &[]), Ok(()));
    }

    #[test]
    fn groups_are_found_by_their_hosts() {
        type Entries<'a> = &'a [(usize, u16, &'a [u8])];
        let found = |entries: Entries, groups: &[&str]| {
            let mut tables = Tables::new();
            for (switch, mlid, ports) in entries {
                let table = tables.entry(*switch).or_default();
                table.insert(*mlid, ports.iter().copied().collect());
            }
            let members = |group: &&str| group.split(',').map(str::to_owned).collect();
            let groups: Vec<Members> = groups.iter().map(members).collect();
            judge_all(&fabric(), &tables, &groups)
        };
        let all: Entries = &[
            (0, 0xc001, &[1, 8]),
            (1, 0xc001, &[1, 8]),
            (0, 0xc003, &[1, 2]),
        ];
        assert_eq!(found(all, &["a,b", "a,c"]), Ok(()));
        assert_eq!(found(&[], &[]), Ok(()));
        let wrong = |entries: Entries, groups: &[&str], what: &str| {
            let wrong = found(entries, groups).unwrap_err();
            assert!(wrong.contains(what), "{wrong}");
        };
        wrong(all, &["a,b"], "0xc001 leads to");
        wrong(all, &["a,c"], "0xc003 leads to");
        wrong(all, &["a,b", "a,c", "a,c"], "no multicast LID leads to");
        // Twice the same hosts, where one group has them.
        let twice: Entries = &[(0, 0xc001, &[1, 2]), (0, 0xc002, &[1, 2])];
        wrong(twice, &["a,b"], "0xc002 leads to");
        assert_eq!(found(twice, &["a,b", "a,b"]), Ok(()));
        // The right hosts, and no way between them.
        wrong(&[(0, 0xc001, &[1]), (1, 0xc001, &[1])], &["a,c"], "from a");
        wrong(&[(0, 0xc001, &[8])], &[], "0xc001 leads to");
    }

    #[test]
    fn what_is_wrong_is_found() {
        let found = |tables: &[(usize, &[u8])], members: &[&str], what: &str| {
            let wrong = verdict(tables, members).unwrap_err();
            assert!(wrong.contains(what), "{wrong}");
        };
        found(&[(0, &[1, 8]), (1, &[1])], &["a", "c"], "from c");
        found(
            &[(0, &[1, 2, 8]), (1, &[1, 8])],
            &["a", "c"],
            "b, no member",
        );
        found(&[(0, &[1])], &[], "no member");
        found(&[(1, &[8])], &[], "no member");
        found(&[(0, &[1, 8, 9]), (1, &[1, 8, 9])], &["a", "c"], "loop");
        found(&[(0, &[1, 8, 9]), (1, &[1])], &["a", "c"], "\"c\": 2");
        found(&[(0, &[1, 5])], &["a"], "no link");
        found(&[], &["d"], "not there");
    }
}
