//! Proofs of addresses, by full-size probes over the network.
//!
//! The prover probes all hosts by the address. Each host answers by the address, too, which a node
//! does by a probe of its own: so the proof holds for every sender in a tree of switches.

use std::time::Duration;

use fabricast::proto::group::{HostId, HostSet};
use fabricast::proto::{AddressId, Command, GroupId, NodeId, Seq};

use super::{Event, Proof, Subnet, phantom};

/// Number of the first group for a proof; communicators have lower numbers.
const PROOFS: u32 = 1 << 24;
/// Groups of one proof: the prover's, and one for each host.
const GROUPS: u32 = 128;
/// How long probes are sent.
const PATIENCE: Duration = Duration::from_millis(20);
/// The node's own patience with multicast, which never ends before [`PATIENCE`].
const LONG: Duration = Duration::from_secs(3600);

fn forward(proof: u32) -> GroupId {
    GroupId(PROOFS + proof * GROUPS)
}

fn back(proof: u32, host: u32) -> GroupId {
    GroupId(forward(proof).0 + 1 + host)
}

impl Subnet<'_> {
    /// A machine wants an address to be proven.
    pub(super) fn prove(&mut self, h: u32, address: AddressId, hosts: HostSet) {
        let n = self.next_proof;
        self.next_proof += 1;
        let mut all = hosts.clone();
        all.insert(HostId(h));
        self.proof_group(h, forward(n), &all, Some(address));
        let message_max = self.scenario.message.1;
        for host in hosts.iter() {
            let two = [HostId(h), host].into_iter().collect();
            self.proof_group(h, back(n, host.0), &two, None);
            self.tell(h, host.0, Event::ProveBack(host.0, n));
        }
        let proof = Proof {
            prover: h,
            address,
            hosts,
            forward: false,
            back: HostSet::new(),
        };
        self.proofs.insert(n, proof);
        // Hosts that do not know the group yet would not answer.
        self.after(message_max, Event::ProofStart(n));
        self.after(2 * message_max + PATIENCE, Event::ProofOver(n));
    }

    fn proof_group(&mut self, h: u32, group: GroupId, hosts: &HostSet, by: Option<AddressId>) {
        let numbering = self.numbering;
        let members = hosts.iter().map(|host| numbering.node(host.0));
        let members: Vec<NodeId> = members.chain([phantom(numbering)]).collect();
        let add = Command::GroupAdd {
            group,
            address: by,
            members,
            payload_size: self.scenario.payload_size,
            start: Seq(0),
        };
        self.command(h, add);
    }

    /// Gives a host's driver a command that it cannot refuse.
    pub(super) fn command(&mut self, h: u32, command: Command) {
        let now = self.fabric.now();
        let text = format!("{command:?}");
        if let Err(refused) = self.hosts[h as usize].driver.command(now, command) {
            self.complain(|| format!("host {h}: {text}: {refused}"));
        }
    }

    pub(super) fn proof_start(&mut self, n: u32) {
        let Some(proof) = self.proofs.get(&n) else {
            return;
        };
        let h = proof.prover;
        if !self.hosts[h as usize].dead {
            self.start_probes(h, forward(n));
        }
    }

    fn start_probes(&mut self, h: u32, group: GroupId) {
        let prove = Command::Prove {
            group,
            multicast: LONG,
            unicast: Duration::ZERO,
        };
        self.command(h, prove);
        self.step_when_free(h);
    }

    /// A host answers the prover by a probe of its own.
    pub(super) fn prove_back(&mut self, h: u32, n: u32) {
        let Some(proof) = self.proofs.get(&n) else {
            return;
        };
        let (prover, address) = (proof.prover, proof.address);
        let mut all = proof.hosts.clone();
        all.insert(HostId(prover));
        let two = [HostId(prover), HostId(h)].into_iter().collect();
        self.proof_group(h, forward(n), &all, None);
        self.proof_group(h, back(n, h), &two, Some(address));
        match self.scenario.answers_by_address {
            true => self.start_probes(h, back(n, h)),
            false => self.tell(h, prover, Event::ProvenBack(h, n)),
        }
        let message_max = self.scenario.message.1;
        self.after(2 * message_max + PATIENCE, Event::ProofGone(h, n));
    }

    /// A host's part in a proof is over.
    pub(super) fn proof_gone(&mut self, h: u32, n: u32) {
        for group in [forward(n), back(n, h)] {
            self.command(h, Command::GroupRemove(group));
        }
        self.step_when_free(h);
    }

    /// A node says that its probes are answered. Returns false if the group is no proof's.
    pub(super) fn probes_answered(&mut self, h: u32, group: GroupId) -> bool {
        let Some(number) = group.0.checked_sub(PROOFS) else {
            return false;
        };
        let (n, of) = (number / GROUPS, number % GROUPS);
        let Some(proof) = self.proofs.get_mut(&n) else {
            return true;
        };
        if of == 0 {
            proof.forward = true;
            self.proof_ends(n, false);
        } else {
            let prover = proof.prover;
            self.tell(h, prover, Event::ProvenBack(h, n));
        }
        true
    }

    pub(super) fn proven_back(&mut self, h: u32, n: u32) {
        if let Some(proof) = self.proofs.get_mut(&n) {
            proof.back.insert(HostId(h));
            self.proof_ends(n, false);
        }
    }

    /// Ends a proof once all hosts have answered both ways, or its time is over.
    pub(super) fn proof_ends(&mut self, n: u32, late: bool) {
        let Some(proof) = self.proofs.get(&n) else {
            return;
        };
        let h = proof.prover;
        if self.hosts[h as usize].dead {
            self.proofs.remove(&n);
            return;
        }
        let complete = proof.forward && proof.back.includes(&proof.hosts);
        if !late && !complete {
            return;
        }
        let Some(proof) = self.proofs.remove(&n) else {
            return;
        };
        let mut answered = proof.hosts.common(&proof.back);
        if !proof.forward {
            let node = self.hosts[h as usize].driver.node();
            let silent: Vec<NodeId> = node.unanswered(forward(n)).collect();
            for host in silent
                .into_iter()
                .filter_map(|node| self.numbering.host(node))
            {
                answered.remove(HostId(host));
            }
        }
        for host in answered.iter() {
            self.judge.proved(proof.address, host);
        }
        if !answered.is_empty() || proof.hosts.is_empty() {
            self.judge.proved(proof.address, HostId(h));
        }
        self.command(h, Command::GroupRemove(forward(n)));
        for host in proof.hosts.iter() {
            self.command(h, Command::GroupRemove(back(n, host.0)));
        }
        let silent = proof.hosts.without(&answered);
        let now = self.fabric.now();
        let numbers = [
            3 << 32 | u64::from(h),
            proof.address.0.into(),
            silent.len().into(),
        ];
        self.trace.note(now.0, numbers, || {
            format!("h{h} {:?}: silent {silent:?}", proof.address)
        });
        let machine = &mut self.hosts[h as usize].machine;
        machine.proved(now, proof.address, &silent);
        self.drain(h);
    }
}
