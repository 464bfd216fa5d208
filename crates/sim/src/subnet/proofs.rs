//! Proofs of addresses, by full-size probes over the network that are answered by the address.

use std::time::Duration;

use fabricast::proto::group::{HostId, HostSet};
use fabricast::proto::{AddressId, Command, GroupId, NodeId, Seq};

use super::Subnet;

/// The group of all hosts in which addresses are proven; communicators have lower numbers.
const PROOF: GroupId = GroupId(1 << 24);
/// How long probes are sent, at least.
const PATIENCE: Duration = Duration::from_millis(20);

impl Subnet<'_> {
    /// Every host takes part in proofs.
    pub(super) fn add_proof(&mut self) {
        let numbering = self.numbering;
        for h in 0..self.scenario.hosts {
            let members = (0..self.scenario.hosts).map(|host| numbering.node(host));
            let add = Command::GroupAdd {
                group: PROOF,
                address: None,
                members: members.collect(),
                payload_size: self.scenario.payload_size,
                start: Seq(0),
            };
            self.command(h, add);
        }
    }

    /// A machine wants an address to be proven.
    pub(super) fn prove(&mut self, h: u32, address: AddressId, hosts: HostSet) {
        let members = hosts.iter().map(|host| self.numbering.node(host.0));
        let prove = Command::ProveAddress {
            group: PROOF,
            address,
            members: members.collect(),
            patience: PATIENCE,
        };
        self.proofs.insert((h, address), (hosts, HostSet::new()));
        self.command(h, prove);
        self.step_when_free(h);
    }

    /// Gives a host's driver a command that it cannot refuse.
    pub(super) fn command(&mut self, h: u32, command: Command) {
        let now = self.fabric.now();
        let text = format!("{command:?}");
        if let Err(refused) = self.hosts[h as usize].driver.command(now, command) {
            self.complain(|| format!("host {h}: {text}: {refused}"));
        }
    }

    /// A host has not answered a proof.
    pub(super) fn is_silent(&mut self, h: u32, address: AddressId, node: NodeId) {
        if let Some((_, silent)) = self.proofs.get_mut(&(h, address))
            && let Some(host) = self.numbering.host(node)
        {
            silent.insert(HostId(host));
        }
    }

    /// A proof has ended.
    pub(super) fn proof_ends(&mut self, h: u32, address: AddressId) {
        let Some((hosts, silent)) = self.proofs.remove(&(h, address)) else {
            return;
        };
        let answered = hosts.without(&silent);
        for host in answered.iter() {
            self.judge.proved(address, host);
        }
        if !answered.is_empty() || hosts.is_empty() {
            self.judge.proved(address, HostId(h));
        }
        let now = self.fabric.now();
        let numbers = [
            3 << 32 | u64::from(h),
            address.0.into(),
            silent.len().into(),
        ];
        self.trace.note(now.0, numbers, || {
            format!("h{h} {address:?}: silent {silent:?}")
        });
        self.hosts[h as usize].machine.proved(now, address, &silent);
        self.drain(h);
    }
}
