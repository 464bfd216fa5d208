//! `fabricast-lab subnet`: an agent that joins multicast addresses, and the switches' tables.

use std::fmt::Write as _;
use std::io;

use fabricast::error::Error;
use fabricast_lab::subnet::fabric::{Fabric, MLID_MIN, Tables};
use fabricast_lab::subnet::smp::Smi;
use fabricast_lab::subnet::walk::{self, Members};

use super::{fail, print};
use crate::args::{Subnet, SubnetCommand};
use crate::{agent, measure};

/// Multicast LIDs that are printed: those of the first 1024 groups.
const MLIDS: u16 = 1024;

/// Runs the command.
pub fn run(args: &Subnet) -> u8 {
    let result = match &args.command {
        SubnetCommand::Agent { p_key } => agent::run(*p_key).map(|()| String::new()),
        SubnetCommand::Measure { members, repeat } => {
            measure::run(members, *repeat).map(|()| String::new())
        }
        SubnetCommand::Tables => tables(),
        SubnetCommand::Check { groups } => match check(groups) {
            Ok(Ok(())) => Ok("the tables lead to these groups and to nobody else\n".into()),
            Ok(Err(what)) => {
                eprintln!("error: the tables do not match: {what}");
                return 1;
            }
            Err(error) => Err(error),
        },
    };
    match result {
        Ok(text) => print(&text),
        Err(e) => fail(&Error::io("using the InfiniBand port", e)),
    }
}

/// All hosts and switches, and the switches' tables.
fn read() -> io::Result<(Fabric, Tables)> {
    let mut smi = Smi::open()?;
    let fabric = Fabric::discover(&mut smi)?;
    let tables = fabric.tables(&mut smi, MLID_MIN + (MLIDS - 1))?;
    Ok((fabric, tables))
}

/// Compares the tables with groups, each a list of hosts' names. The inner error says what differs.
fn check(groups: &[String]) -> io::Result<Result<(), String>> {
    let members = |group: &String| group.split(',').map(str::to_owned).collect();
    let groups: Vec<Members> = groups.iter().map(members).collect();
    let (fabric, tables) = read()?;
    Ok(walk::judge_all(&fabric, &tables, &groups))
}

fn tables() -> io::Result<String> {
    let (fabric, tables) = read()?;
    let mut text = String::new();
    for (number, node) in fabric.nodes.iter().enumerate() {
        let kind = ["host", "switch"][usize::from(node.is_switch)];
        let _ = writeln!(text, "{kind} {}, GUID {:#018x}", node.name, node.guid);
        for (mlid, ports) in tables.get(&number).into_iter().flatten() {
            let ports = ports.iter().map(|port| match node.links.get(port) {
                Some((other, _)) => fabric.nodes[*other].name.clone(),
                None => format!("port {port}"),
            });
            let ports: Vec<_> = ports.collect();
            let _ = writeln!(text, "  {mlid:#06x} to {}", ports.join(", "));
        }
    }
    Ok(text)
}
