//! The coordinator alone: its hosts say what a test has them say.

use std::time::Duration;

use fabricast_proto::group::{Config, Host, HostId, HostSet, Message, Output, Refusal, Strategy};
use fabricast_proto::{AddressId, GroupId, Time};

/// The context's address, and the first one that groups may have.
const CONTEXT: AddressId = AddressId(0);
const FIRST: AddressId = AddressId(1);

/// Host 0 of four hosts. The manager does at once what it asks for.
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
            addresses: 2,
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
                Output::Leave(address) => self.machine.left(self.now, address),
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

/// The context's address is refused to a host that it did not reach at the start.
#[test]
fn a_host_that_is_refused_the_contexts_address_asks_again() {
    let mut c = Coordinator::new(3, Strategy::Lazy);
    c.outputs();
    assert_eq!(c.hear(3, Message::Refused(CONTEXT, Refusal::Denied)), []);
    c.wait(59_000);
    let again = tells(3, Message::Rejoin(CONTEXT));
    assert!(!c.outputs().contains(&again));
    c.wait(1000);
    assert!(c.outputs().contains(&again));
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
    let said = c.proved(CONTEXT, &[]);
    let told = [1, 2].map(|host| tells(host, Message::Proven(CONTEXT)));
    assert_eq!(said[..2], told);
    assert_eq!(said[2..], [proves(CONTEXT, &[1, 2, 3])]);
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
        // An answer of host 2 is lost by chance.
        let silent: &[u32] = if proof < 14 { &[3] } else { &[2, 3] };
        told = c.proved(CONTEXT, silent);
        if told.contains(&tells(3, Message::Rejoin(CONTEXT))) && proof < 14 {
            c.hear(3, Message::Joined(CONTEXT));
        }
    }
    assert_eq!(told, [tells(3, Message::Rejoin(CONTEXT))]);
    c.wait(2000);
    assert_eq!(c.outputs(), [proves(CONTEXT, &[1, 2])]);
    let proven = [1, 2].map(|host| tells(host, Message::Proven(CONTEXT)));
    assert_eq!(c.proved(CONTEXT, &[]), proven);
}

/// Two hosts have lost the context's address, and one of them says nothing more. Another host, for
/// which nobody waits, loses it again and again.
#[test]
fn a_host_that_nobody_waits_for_gives_the_others_no_more_time() {
    let mut c = Coordinator::new(3, Strategy::Lazy);
    c.outputs();
    c.hear(1, Message::Lost(CONTEXT));
    c.hear(2, Message::Lost(CONTEXT));
    c.hear(1, Message::Joined(CONTEXT));
    for _ in 0..2 {
        c.hear(3, Message::Joined(CONTEXT));
        c.wait(2000);
        c.hear(3, Message::Lost(CONTEXT));
    }
    c.wait(1000);
    let said = c.outputs();
    assert!(said.contains(&proves(CONTEXT, &[1])), "{said:?}");
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

/// No creation of a group waits while a host is tried that was set aside. A group whose address is
/// proven sends by it, all the same.
#[test]
fn no_creation_waits_for_the_trial_of_a_host() {
    let mut c = Coordinator::new(4, Strategy::Basic);
    c.outputs();
    let created = |group, of: &[u32]| Message::Created {
        group: GroupId(group),
        hosts: set(of),
        grant: None,
    };
    let none = |to, group| {
        let denied = Refusal::Denied;
        tells(to, Message::NoAddress(GroupId(group), denied))
    };
    c.hear(1, created(1, &[1, 2, 3]));
    for host in 1..4 {
        c.hear(host, Message::Joined(FIRST));
    }
    let told = c.hear(1, Message::Proved(FIRST, set(&[])));
    assert!(told.contains(&tells(1, Message::Proven(FIRST))), "{told:?}");
    // Host 3 is denied the address of other hosts, which the manager gives to one of them.
    c.hear(2, created(2, &[0, 2, 3]));
    let second = AddressId(2);
    c.hear(2, Message::Joined(second));
    let told = c.hear(3, Message::Refused(second, Refusal::Denied));
    assert!(told.contains(&none(2, 2)), "{told:?}");
    for left in [Message::Withdrawn(second), Message::Left(second)] {
        c.hear(2, left.clone());
        c.hear(3, left);
    }
    assert_eq!(c.hear(1, created(3, &[1, 2, 3])), []);
    c.wait(3000);
    let of_3 = |output: &Output| {
        let Output::Tell { to, message } = output else {
            return false;
        };
        *to == HostId(3) && matches!(message, Message::Join { .. })
    };
    let trial = c.outputs();
    assert!(trial.iter().any(of_3), "{trial:?}");
    assert_eq!(c.hear(2, created(4, &[0, 2, 3])), [none(2, 4)]);
}
