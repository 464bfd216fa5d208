//! Multicast tables that a manager writes, switch by switch, instead of memberships that all
//! switches follow at once.

use super::{End, Fabric, Table};

impl Fabric {
    /// From now on the switches forward what is sent to `group` by the tables that
    /// [`Fabric::set_table`] writes, which are empty at first.
    pub fn manage(&mut self, group: u32) {
        let tables = vec![Table::default(); self.switches.len()];
        self.groups[group as usize].tables = Some(tables);
    }

    /// Number of switches.
    pub fn switches(&self) -> usize {
        self.switches.len()
    }

    /// The tables, one for each switch, that connect these hosts to each other.
    pub fn tables_for(&self, hosts: impl Iterator<Item = u32>) -> Vec<Table> {
        let mut tables = vec![Table::default(); self.switches.len()];
        let mut below = vec![0u32; self.switches.len()];
        let mut count = 0;
        for host in hosts {
            count += 1;
            let mut up = self.host_up[host as usize];
            loop {
                let End::Switch(s) = self.links[up as usize].to else {
                    unreachable!("a link upwards ends at a switch")
                };
                let s = s as usize;
                below[s] += 1;
                if !tables[s].down.contains(&(up ^ 1)) {
                    tables[s].down.push(up ^ 1);
                }
                match self.switches[s].up {
                    Some(next) => up = next,
                    None => break,
                }
            }
        }
        for (s, table) in tables.iter_mut().enumerate() {
            table.up = below[s] > 0 && below[s] < count && self.switches[s].up.is_some();
            let leaf = self.switches[s].child_span == 1;
            // Above the lowest switch that has all hosts below it there is nothing to forward.
            if !leaf && below[s] == count && table.down.len() == 1 {
                *table = Table::default();
            }
            table.down.sort_unstable();
        }
        tables
    }

    /// Writes a switch's table for a group.
    ///
    /// # Panics
    ///
    /// If the group is not managed.
    pub fn set_table(&mut self, group: u32, switch: usize, table: Table) {
        let tables = self.groups[group as usize].tables.as_mut();
        tables.expect("a managed group")[switch] = table;
    }

    /// The hosts, in order, that a datagram of `host` to a managed group reaches by the tables as
    /// they are now.
    pub fn reached(&self, group: u32, host: u32) -> Vec<u32> {
        let mut reached = Vec::new();
        let mut links = vec![self.host_up[host as usize]];
        while let Some(link) = links.pop() {
            match self.links[link as usize].to {
                End::Host(to) => reached.push(to),
                End::Switch(s) => links.extend(self.copies(group, s as usize, link)),
            }
        }
        reached.sort_unstable();
        reached
    }

    /// Whether the table of a host's own switch leads to the host.
    pub fn is_attached(&self, group: u32, host: u32) -> bool {
        let End::Switch(leaf) = self.links[self.host_up[host as usize] as usize].to else {
            unreachable!("a link upwards ends at a switch")
        };
        let tables = self.groups[group as usize].tables.as_ref();
        tables.is_some_and(|tables| tables[leaf as usize].down.contains(&self.downlink(host)))
    }

    /// The links to which a switch copies a datagram of a managed group that came by `link`.
    pub(super) fn copies(&self, group: u32, switch: usize, link: u32) -> Vec<u32> {
        let Some(tables) = &self.groups[group as usize].tables else {
            return Vec::new();
        };
        let table = &tables[switch];
        let up = self.switches[switch].up.filter(|_| table.up);
        let all = table.down.iter().copied().chain(up);
        all.filter(|&next| next != link ^ 1).collect()
    }
}
