//! The coordinator alone: its hosts say what a test has them say.

use std::time::Duration;

use fabricast_proto::group::{Config, Host, HostId, HostSet, Message, Output, Refusal, Strategy};
use fabricast_proto::{AddressId, GroupId, Time};

/// The context's address, and the first one that groups may have.
const CONTEXT: AddressId = AddressId(0);
const FIRST: AddressId = AddressId(1);

/// Host 0. The manager does at once what it asks for.
struct Coordinator {
    machine: Host,
    now: Time,
}

impl Coordinator {
    /// Of four hosts, the proof of the context's address has reached the first ones only.
    fn new(reached: u32, strategy: Strategy) -> Coordinator {
        Coordinator::of(4, reached, strategy)
    }

    fn of(hosts: u32, reached: u32, strategy: Strategy) -> Coordinator {
        let config = Config {
            host: HostId(0),
            hosts,
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

    /// Lets time pass. These hosts answer no probe, and hear no answer. All join again at once when
    /// they are told to. Returns the orders, and after how many milliseconds they came.
    fn run(&mut self, mut said: Vec<Output>, ms: u64, deaf: &[u32]) -> Vec<(u64, Output)> {
        let deaf = set(deaf);
        let mut orders = Vec::new();
        let step = 5;
        for at in (0..=ms).step_by(step as usize) {
            while let Some(output) = said.pop() {
                said.extend(match &output {
                    Output::Prove { address, hosts } => {
                        self.machine
                            .proved(self.now, *address, &hosts.common(&deaf));
                        self.outputs()
                    }
                    Output::Tell { to, message } => match message {
                        Message::Prove(address, hosts) => {
                            let silent = match deaf.contains(*to) {
                                true => hosts.clone(),
                                false => hosts.common(&deaf),
                            };
                            self.hear(to.0, Message::Proved(*address, silent))
                        }
                        Message::Rejoin(address) => self.hear(to.0, Message::Joined(*address)),
                        _ => Vec::new(),
                    },
                    _ => Vec::new(),
                });
                orders.push((at, output));
            }
            if at < ms {
                self.wait(step);
                said = self.outputs();
            }
        }
        orders
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

/// The context's address is refused to a host that it did not reach at the start. The host asks
/// again, soon if it was only not answered.
#[test]
fn a_host_that_is_refused_the_contexts_address_asks_again() {
    for (why, ms) in [(Refusal::Denied, 60_000), (Refusal::NoAnswer, 5000)] {
        let mut c = Coordinator::new(3, Strategy::Lazy);
        c.outputs();
        assert_eq!(c.hear(3, Message::Refused(CONTEXT, why)), []);
        c.wait(ms - 1000);
        let again = tells(3, Message::Rejoin(CONTEXT));
        assert!(!c.outputs().contains(&again));
        c.wait(1000);
        assert!(c.outputs().contains(&again));
    }
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

/// A host loses the context's address, again and again. It is proven a second after each loss. The
/// others notice nothing: neither those that send by the address nor one that joins it late.
#[test]
fn a_host_that_loses_the_contexts_address_keeps_it_from_nobody() {
    for (ms, regained) in [(500, 0), (1500, 20)] {
        let mut c = Coordinator::new(3, Strategy::Lazy);
        c.outputs();
        let mut told = [0; 4];
        for turn in 0..20 {
            let mut said = c.hear(1, Message::Lost(CONTEXT));
            said.extend(c.hear(1, Message::Joined(CONTEXT)));
            if turn == 10 {
                said.extend(c.hear(3, Message::Joined(CONTEXT)));
            }
            for (_, order) in c.run(said, ms, &[]) {
                if let Output::Tell { to, message } = order
                    && !matches!(message, Message::Prove(..))
                {
                    assert_eq!(message, Message::Proven(CONTEXT));
                    told[to.0 as usize] += 1;
                }
            }
        }
        assert_eq!(told, [0, regained, 0, 1]);
    }
}

/// All hosts have lost the context's address. The manager refuses it to one; another says nothing
/// more. The others do not wait for these.
#[test]
fn no_host_keeps_the_contexts_address_from_the_others() {
    let mut c = Coordinator::new(4, Strategy::Lazy);
    c.outputs();
    for host in 1..4 {
        assert_eq!(c.hear(host, Message::Lost(CONTEXT)), []);
    }
    let refused = Message::Refused(CONTEXT, Refusal::Denied);
    assert_eq!(c.hear(1, refused), []);
    assert_eq!(c.hear(2, Message::Joined(CONTEXT)), []);
    c.wait(1000);
    assert_eq!(c.outputs(), [proves(CONTEXT, &[2])]);
    let told = [tells(2, Message::Proven(CONTEXT))];
    assert_eq!(c.proved(CONTEXT, &[]), told);
}

/// The prover of the context's address hears nothing. Another host proves, and is answered.
#[test]
fn a_prover_that_hears_nothing_takes_the_contexts_address_from_nobody() {
    let mut c = Coordinator::new(4, Strategy::Lazy);
    c.outputs();
    c.wait(2000);
    let proves = [proves(CONTEXT, &[1, 2, 3])];
    assert_eq!(c.hear(1, Message::Unreached(CONTEXT)), proves);
    assert_eq!(c.proved(CONTEXT, &[1, 2, 3]), []);
    c.wait(1);
    let other = Message::Prove(CONTEXT, set(&[0, 2, 3]));
    assert_eq!(c.outputs(), [tells(1, other.clone())]);
    // Only host 0 is silent again. It joins again, and is proven.
    assert_eq!(
        c.hear(1, Message::Proved(CONTEXT, set(&[0]))),
        [tells(1, other)]
    );
    assert_eq!(c.machine.unreached_by_context(), set(&[0]));
    assert_eq!(c.hear(1, Message::Proved(CONTEXT, set(&[]))), []);
    assert_eq!(c.machine.unreached_by_context(), set(&[]));
}

/// A host that was late is proven soon, though another one answers no proof for minutes.
#[test]
fn a_host_that_stays_silent_does_not_delay_the_proof_of_another() {
    let mut c = Coordinator::new(2, Strategy::Lazy);
    c.outputs();
    let said = c.hear(2, Message::Joined(CONTEXT));
    c.run(said, 600_000, &[2]);
    let said = c.hear(3, Message::Joined(CONTEXT));
    // The switches' tables lead to host 3 some milliseconds later.
    c.run(said, 10, &[2, 3]);
    let said = c.run(Vec::new(), 100, &[2]);
    let told = tells(3, Message::Proven(CONTEXT));
    assert!(said.iter().any(|(_, order)| *order == told), "{said:?}");
}

/// A sender notices during a proof that the address does not reach a host. The proof may have begun
/// before that.
#[test]
fn what_is_noticed_during_a_proof_is_proven_after_it() {
    let mut c = Coordinator::new(4, Strategy::Lazy);
    c.outputs();
    c.wait(2000);
    let proves = [proves(CONTEXT, &[1, 2, 3])];
    assert_eq!(c.hear(1, Message::Unreached(CONTEXT)), proves);
    assert_eq!(c.hear(2, Message::Unreached(CONTEXT)), []);
    assert_eq!(c.proved(CONTEXT, &[]), []);
    c.wait(1000);
    assert_eq!(c.outputs(), proves);
}

/// An order to join again crosses the host's answer, so that the host joins twice.
#[test]
fn a_host_that_has_joined_twice_is_told_of_a_proof() {
    let mut c = Coordinator::new(3, Strategy::Lazy);
    c.outputs();
    let proves = [proves(CONTEXT, &[1, 2, 3])];
    assert_eq!(c.hear(3, Message::Joined(CONTEXT)), proves);
    let told = [tells(3, Message::Proven(CONTEXT))];
    assert_eq!(c.proved(CONTEXT, &[]), told);
    assert_eq!(c.hear(3, Message::Joined(CONTEXT)), proves);
    assert_eq!(c.proved(CONTEXT, &[]), told);
}

/// A host loses an address and has it again, while another one is silent. No proof begins by the
/// tables of before.
#[test]
fn a_silent_host_does_not_shorten_the_rest_of_another() {
    let mut c = Coordinator::new(4, Strategy::pool(1));
    c.outputs();
    for host in 1..4 {
        c.hear(host, Message::Joined(FIRST));
    }
    c.hear(1, Message::Lost(FIRST));
    c.hear(1, Message::Joined(FIRST));
    assert_eq!(c.proved(FIRST, &[3]), []);
    c.wait(999);
    assert_eq!(c.outputs(), []);
    c.wait(1);
    assert_eq!(c.outputs(), [proves(FIRST, &[1, 2, 3])]);
}

/// A host loses its membership in an address of the pool three times. The others have the address
/// without that host.
#[test]
fn a_host_that_loses_its_membership_again_and_again_is_set_aside() {
    for (ms, aside) in [(2000, true), (61_000, false)] {
        let mut c = Coordinator::new(4, Strategy::pool(1));
        c.outputs();
        for host in 1..4 {
            c.hear(host, Message::Joined(FIRST));
        }
        let told = c.proved(FIRST, &[]);
        assert!(told.contains(&tells(1, Message::Proven(FIRST))), "{told:?}");
        for _ in 0..3 {
            assert_eq!(c.machine.set_aside(), []);
            c.hear(3, Message::Lost(FIRST));
            c.hear(3, Message::Joined(FIRST));
            c.wait(ms);
        }
        let expected: &[_] = if aside {
            &[(HostId(3), Refusal::Unproven)]
        } else {
            &[]
        };
        assert_eq!(c.machine.set_aside(), expected);
    }
}

/// Eight hosts answer no proof of the context's address, and join it again one after the other.
/// After 14 proofs they are told so once a minute.
#[test]
fn hosts_that_stay_silent_join_again_once_a_minute_at_last() {
    let mut c = Coordinator::of(10, 2, Strategy::Lazy);
    c.outputs();
    let mut said = Vec::new();
    for host in 2..10 {
        said.extend(c.hear(host, Message::Joined(CONTEXT)));
    }
    let mut minutes = [0; 10];
    let deaf: Vec<_> = (2..10).collect();
    for (ms, order) in c.run(said, 600_000, &deaf) {
        if let Output::Tell { message, .. } = order {
            minutes[(ms as usize / 60_000).min(9)] +=
                u32::from(message == Message::Rejoin(CONTEXT));
        }
    }
    assert!(
        minutes[0] > 8 && minutes[1..].iter().all(|&told| told <= 8),
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
