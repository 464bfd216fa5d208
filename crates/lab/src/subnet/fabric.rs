//! The nodes and links of a fabric, and the multicast tables of its switches, as they answer.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;

use fabricast::subnet::opensm::mad::read;
use serde::{Deserialize, Serialize};

use super::smp::{Attribute, Data, Smi};

/// The lowest multicast LID.
pub const MLID_MIN: u16 = 0xc000;
/// Entries of a multicast table in one packet.
const BLOCK: u16 = 32;
/// Ports of an entry in one packet.
const PORTS: u8 = 16;
/// Largest number of nodes that are looked for.
const NODES_MAX: usize = 4096;

/// A host's port or a switch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Node {
    /// Its name (`NodeDescription`).
    pub name: String,
    /// Whether it forwards.
    pub is_switch: bool,
    /// GUID of the port, or of the switch.
    pub guid: u64,
    /// Number of ports.
    pub ports: u8,
    /// Route to it.
    pub route: Vec<u8>,
    /// What its ports are linked to: a node, by its number, and a port of that node.
    pub links: BTreeMap<u8, (usize, u8)>,
}

/// All nodes that this host reaches. The first is this host.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Fabric {
    /// The nodes, those that are nearer first.
    pub nodes: Vec<Node>,
}

/// Multicast tables: of each switch, by its number, and each multicast LID, the ports by which
/// packets leave. Entries without ports are left out.
pub type Tables = BTreeMap<usize, BTreeMap<u16, BTreeSet<u8>>>;

/// What `NodeInfo` says.
struct Info {
    is_switch: bool,
    ports: u8,
    node_guid: u64,
    port_guid: u64,
    /// The port by which the packet came.
    entrance: u8,
}

impl Info {
    fn of(data: &Data) -> Info {
        Info {
            is_switch: data[2] == 2,
            ports: data[3],
            node_guid: read(data, 12, u64::from_be_bytes),
            port_guid: read(data, 20, u64::from_be_bytes),
            entrance: data[36],
        }
    }
}

impl Fabric {
    /// Looks for all nodes, from this host outwards.
    pub fn discover(smi: &mut Smi) -> io::Result<Fabric> {
        let mut fabric = Fabric::default();
        let mut known = BTreeMap::new();
        // Routes to follow: from which node and by which of its ports.
        let mut ahead = VecDeque::from([(None, Vec::new())]);
        while let Some((from, route)) = ahead.pop_front() {
            let Some(data) = smi.ask(&route, Attribute::NodeInfo, 0)? else {
                continue;
            };
            let info = Info::of(&data);
            let is_new = !known.contains_key(&info.node_guid);
            let number = *known.entry(info.node_guid).or_insert(fabric.nodes.len());
            if is_new {
                if number == NODES_MAX {
                    return Err(io::Error::other("the fabric has more than 4096 nodes"));
                }
                let node = describe(smi, &info, &route)?;
                // This host sends by its own port alone; other hosts do not forward.
                let exits: Vec<u8> = match (info.is_switch, from) {
                    (true, _) => (1..=info.ports).collect(),
                    (false, None) => vec![info.entrance],
                    (false, Some(_)) => Vec::new(),
                };
                for port in exits {
                    if has_link(smi, &route, port)? {
                        let next = [&route[..], &[port]].concat();
                        ahead.push_back((Some((number, port)), next));
                    }
                }
                fabric.nodes.push(node);
            }
            if let Some((other, port)) = from {
                let entrance = info.entrance;
                fabric.nodes[other].links.insert(port, (number, entrance));
                fabric.nodes[number].links.insert(entrance, (other, port));
            }
        }
        Ok(fabric)
    }

    /// The number of the node with this name.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.nodes.iter().position(|node| node.name == name)
    }

    /// Reads the multicast tables of all switches, up to the multicast LID `last`.
    pub fn tables(&self, smi: &mut Smi, last: u16) -> io::Result<Tables> {
        let mut tables = Tables::new();
        for (number, node) in self.nodes.iter().enumerate() {
            if !node.is_switch {
                continue;
            }
            let table = tables.entry(number).or_default();
            for block in 0..=last.saturating_sub(MLID_MIN) / BLOCK {
                for group in 0..=node.ports / PORTS {
                    let what = Attribute::MulticastForwardingTable;
                    let data = smi.ask(&node.route, what, modifier(block, group))?;
                    let data = data.ok_or_else(|| silent(node))?;
                    enter(table, &data, block, group);
                }
            }
        }
        Ok(tables)
    }

    /// Reads the 32 entries around a multicast LID, of all switches at once.
    pub fn entries(&self, smi: &mut Smi, mlid: u16) -> io::Result<Tables> {
        let block = mlid.saturating_sub(MLID_MIN) / BLOCK;
        let switches = self.nodes.iter().enumerate().filter(|(_, n)| n.is_switch);
        let asked: Vec<_> = switches
            .flat_map(|(number, node)| {
                (0..=node.ports / PORTS).map(move |group| (number, node, group))
            })
            .collect();
        let questions: Vec<(&[u8], u32)> = asked
            .iter()
            .map(|(_, node, group)| (&node.route[..], modifier(block, *group)))
            .collect();
        let answers = smi.ask_all(&questions, Attribute::MulticastForwardingTable)?;
        let mut tables = Tables::new();
        for ((number, node, group), data) in asked.into_iter().zip(answers) {
            let data = data.ok_or_else(|| silent(node))?;
            enter(tables.entry(number).or_default(), &data, block, group);
        }
        Ok(tables)
    }
}

fn modifier(block: u16, group: u8) -> u32 {
    u32::from(group) << 28 | u32::from(block)
}

fn silent(node: &Node) -> io::Error {
    io::Error::other(format!("switch {} does not tell its table", node.name))
}

fn describe(smi: &mut Smi, info: &Info, route: &[u8]) -> io::Result<Node> {
    let data = smi.ask(route, Attribute::NodeDescription, 0)?;
    let name = data.unwrap_or([0; 64]);
    let name = name.split(|b| *b == 0).next().unwrap_or_default();
    Ok(Node {
        name: String::from_utf8_lossy(name).trim().to_owned(),
        is_switch: info.is_switch,
        guid: info.port_guid,
        ports: info.ports,
        route: route.to_vec(),
        links: BTreeMap::new(),
    })
}

/// Whether a port has a neighbour: its state is not "down".
fn has_link(smi: &mut Smi, route: &[u8], port: u8) -> io::Result<bool> {
    let info = smi.ask(route, Attribute::PortInfo, port.into())?;
    Ok(info.is_some_and(|data| data[32] & 0xf > 1))
}

/// Enters 32 entries of 16 ports each into a table.
fn enter(table: &mut BTreeMap<u16, BTreeSet<u8>>, data: &Data, block: u16, group: u8) {
    for at in 0..BLOCK {
        let mask = read(data, 2 * usize::from(at), u16::from_be_bytes);
        let ports = (0..PORTS).filter(|bit| mask & 1 << bit != 0);
        let ports = ports.map(|bit| group * PORTS + bit);
        if mask != 0 {
            let mlid = MLID_MIN + block * BLOCK + at;
            table.entry(mlid).or_default().extend(ports);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_become_ports() {
        let mut table = BTreeMap::new();
        let mut data = [0; 64];
        data[2..4].copy_from_slice(&[0x80, 0x02]);
        enter(&mut table, &data, 1, 0);
        enter(&mut table, &data, 1, 1);
        let ports = BTreeSet::from([1, 15, 17, 31]);
        assert_eq!(table, BTreeMap::from([(0xc021, ports)]));
    }
}
