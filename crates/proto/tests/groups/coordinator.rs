//! The coordinator alone: its hosts say what a test has them say.

use std::time::Duration;

use fabricast_proto::group::{Config, Host, HostId, HostSet, Message, Output, Refusal, Strategy};
use fabricast_proto::{AddressId, Time};

/// The context's address, and the first one that groups may have.
const CONTEXT: AddressId = AddressId(0);
const FIRST: AddressId = AddressId(1);

/// Host 0 of four hosts. The manager grants it what it asks for at once.
struct Coordinator {
    machine: Host,
    now: Time,
}

impl Coordinator {
    /// The proof of the context's address has reached the first hosts only.
    fn new(reached: u32, strategy: Strategy) -> Coordinator {
        let config = Config {
            host: HostId(0),
            hosts: 4,
            strategy,
            addresses: 1,
            first: FIRST.0,
            reached: Some(HostSet::first_hosts(reached)),
        };
        let now = Time::ZERO;
        let machine = Host::new(now, &config);
        Coordinator { machine, now }
    }

    fn wait(&mut self, ms: u64) {
        self.now = self.now + Duration::from_millis(ms);
    }

    /// What it wants done.
    fn outputs(&mut self) -> Vec<Output> {
        let mut all = Vec::new();
        loop {
            match self.machine.poll(self.now) {
                Output::Wait(_) => return all,
                Output::Join(address) | Output::JoinAnew(address) => {
                    self.machine.joined(self.now, address);
                }
                output => all.push(output),
            }
        }
    }

    /// Another host says something. Returns what that makes the coordinator do.
    fn hear(&mut self, from: u32, message: Message) -> Vec<Output> {
        self.machine.message(self.now, HostId(from), message);
        self.outputs()
    }

    /// These hosts have not answered the probes of host 0.
    fn proved(&mut self, address: AddressId, silent: &[u32]) -> Vec<Output> {
        self.machine.proved(self.now, address, &set(silent));
        self.outputs()
    }
}

fn set(hosts: &[u32]) -> HostSet {
    hosts.iter().map(|&host| HostId(host)).collect()
}

fn proves(address: AddressId, hosts: &[u32]) -> Output {
    let hosts = set(hosts);
    Output::Prove { address, hosts }
}

fn tells(to: u32, message: Message) -> Output {
    let to = HostId(to);
    Output::Tell { to, message }
}

/// A host joins the context's address while the others are being proven. It is proven next.
#[test]
fn a_host_that_joins_during_a_proof_is_proven_after_it() {
    let mut c = Coordinator::new(3, Strategy::Lazy);
    c.outputs();
    c.wait(2000);
    assert_eq!(
        c.hear(1, Message::Unreached(CONTEXT)),
        [proves(CONTEXT, &[1, 2])]
    );
    assert_eq!(c.hear(3, Message::Joined(CONTEXT)), []);
    assert_eq!(c.proved(CONTEXT, &[]), [proves(CONTEXT, &[1, 2, 3])]);
    let proven = [tells(3, Message::Proven(CONTEXT))];
    assert_eq!(c.proved(CONTEXT, &[]), proven);
    assert_eq!(c.machine.set_aside(), []);
}

/// A membership that is made anew comes into the switches' tables later. So the host does not join
/// again after each proof that it does not answer.
#[test]
fn a_host_that_stays_silent_joins_again_after_each_fifth_proof() {
    let mut c = Coordinator::new(3, Strategy::Lazy);
    let again = tells(3, Message::Rejoin(CONTEXT));
    c.outputs();
    let mut orders = Vec::new();
    let mut said = c.hear(3, Message::Joined(CONTEXT));
    for proof in 1..=12 {
        assert!(said.contains(&proves(CONTEXT, &[1, 2, 3])), "{said:?}");
        said = c.proved(CONTEXT, &[3]);
        c.wait(2000);
        if said.contains(&again) {
            orders.push(proof);
            // The others are proven while it joins.
            said = c.outputs();
            assert!(said.contains(&proves(CONTEXT, &[1, 2])), "{said:?}");
            c.proved(CONTEXT, &[]);
            said = c.hear(3, Message::Joined(CONTEXT));
        } else {
            said = c.outputs();
        }
    }
    assert_eq!(orders, [5, 10]);
}

/// While a host is being proven, another loses the context's address. Nobody sends by it then.
#[test]
fn nobody_sends_before_all_have_answered_a_new_proof() {
    let mut c = Coordinator::new(3, Strategy::Lazy);
    c.outputs();
    let said = c.hear(3, Message::Joined(CONTEXT));
    assert_eq!(said, [proves(CONTEXT, &[1, 2, 3])]);
    let said = c.hear(1, Message::Lost(CONTEXT));
    let unproven = tells(2, Message::Unproven(CONTEXT));
    assert!(said.contains(&unproven), "{said:?}");
    assert_eq!(c.proved(CONTEXT, &[]), []);
    c.hear(1, Message::Joined(CONTEXT));
    c.wait(2000);
    // The others do not wait for host 3.
    assert_eq!(c.outputs(), [proves(CONTEXT, &[1, 2])]);
    let told = [1, 2].map(|host| tells(host, Message::Proven(CONTEXT)));
    assert_eq!(c.proved(CONTEXT, &[]), told);
    c.wait(1000);
    assert_eq!(c.outputs(), [proves(CONTEXT, &[1, 2, 3])]);
    let told = [tells(3, Message::Proven(CONTEXT))];
    assert_eq!(c.proved(CONTEXT, &[]), told);
}

/// All hosts have lost the context's address. The manager refuses it to one; another says nothing
/// more. The others do not wait for these.
#[test]
fn no_host_keeps_the_contexts_address_from_the_others() {
    let mut c = Coordinator::new(4, Strategy::Lazy);
    c.outputs();
    for host in 1..4 {
        c.hear(host, Message::Lost(CONTEXT));
    }
    let refused = Message::Refused(CONTEXT, Refusal::Denied);
    assert_eq!(c.hear(1, refused), []);
    assert_eq!(c.hear(2, Message::Joined(CONTEXT)), []);
    c.wait(5000);
    let late = tells(3, Message::Rejoin(CONTEXT));
    assert_eq!(c.outputs(), [late, proves(CONTEXT, &[2])]);
    let told = [tells(2, Message::Proven(CONTEXT))];
    assert_eq!(c.proved(CONTEXT, &[]), told);
    // The host that was refused asks again.
    c.wait(55_000);
    let again = tells(1, Message::Rejoin(CONTEXT));
    assert!(c.outputs().contains(&again));
}

/// No host answers a proof of the context's address once a host has lost it. In the end, the others
/// do not wait for the one that is silent.
#[test]
fn a_silent_host_does_not_keep_the_contexts_address_from_the_others() {
    let mut c = Coordinator::new(4, Strategy::Lazy);
    c.outputs();
    c.hear(1, Message::Lost(CONTEXT));
    c.hear(1, Message::Joined(CONTEXT));
    let mut told = Vec::new();
    for proof in 1..=14 {
        c.wait(2000);
        let said = c.outputs();
        assert!(
            said.contains(&proves(CONTEXT, &[1, 2, 3])),
            "{proof}: {said:?}"
        );
        told = c.proved(CONTEXT, &[3]);
        if told.contains(&tells(3, Message::Rejoin(CONTEXT))) && proof < 14 {
            c.hear(3, Message::Joined(CONTEXT));
        }
    }
    let proven = [1, 2].map(|host| tells(host, Message::Proven(CONTEXT)));
    assert!(
        proven.iter().all(|proven| told.contains(proven)),
        "{told:?}"
    );
}

/// Two hosts answer no proof of the context's address, and join it again one after the other. After
/// 14 proofs they are told so once a minute.
#[test]
fn hosts_that_stay_silent_join_again_once_a_minute_at_last() {
    let mut c = Coordinator::new(2, Strategy::Lazy);
    c.outputs();
    let mut said = c.hear(2, Message::Joined(CONTEXT));
    said.extend(c.hear(3, Message::Joined(CONTEXT)));
    let mut minutes = [0; 10];
    for step in 0..40_000 {
        while let Some(output) = said.pop() {
            if let Output::Prove { hosts, .. } = &output {
                let silent: Vec<_> = hosts.iter().map(|h| h.0).filter(|&h| h >= 2).collect();
                said.extend(c.proved(CONTEXT, &silent));
            } else if let Output::Tell { to, message } = output
                && message == Message::Rejoin(CONTEXT)
            {
                minutes[step / 4000] += 1;
                said.extend(c.hear(to.0, Message::Joined(CONTEXT)));
            }
        }
        c.wait(15);
        said = c.outputs();
    }
    assert!(
        minutes[0] > 2 && minutes[1..].iter().all(|&told| told <= 2),
        "{minutes:?}"
    );
}

/// A host answers no proof of one address, which was proven. All that it has joined are proven
/// again only when it stays silent.
#[test]
fn an_answer_that_is_lost_does_not_prove_all_addresses_again() {
    let mut c = Coordinator::new(4, Strategy::pool(1));
    c.outputs();
    for host in 1..4 {
        c.hear(host, Message::Joined(FIRST));
    }
    let told = c.proved(FIRST, &[]);
    assert!(told.contains(&tells(3, Message::Proven(FIRST))), "{told:?}");
    c.wait(5000);
    assert_eq!(
        c.hear(3, Message::Unreached(FIRST)),
        [proves(FIRST, &[1, 2, 3])]
    );
    c.proved(FIRST, &[3]);
    c.hear(3, Message::Joined(FIRST));
    c.wait(20);
    assert_eq!(c.outputs(), [proves(FIRST, &[1, 2, 3])]);
    let said = c.proved(FIRST, &[3]);
    assert_eq!(said, [proves(CONTEXT, &[1, 2, 3])]);
}

/// Of 14 proofs each host has answered one. Those that did not answer the last are set aside.
#[test]
fn if_each_host_has_answered_one_the_last_proof_decides() {
    let mut c = Coordinator::new(4, Strategy::pool(1));
    c.outputs();
    for host in 1..4 {
        c.hear(host, Message::Joined(FIRST));
    }
    for proof in 0..14 {
        assert_eq!(c.machine.set_aside(), [], "{proof}");
        let silent = [1 + proof % 2];
        let said = c.proved(FIRST, &silent);
        if said.contains(&tells(silent[0], Message::Rejoin(FIRST))) {
            c.hear(silent[0], Message::Joined(FIRST));
        }
        c.wait(2000);
        c.outputs();
    }
    assert_eq!(c.machine.set_aside(), [(HostId(2), Refusal::Unproven)]);
}
