//! The sender's table of receivers: which take part, and how far each has come.

use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use fabricast_proto::{NodeId, PathState};

use super::balance::Balance;
use super::member_comparing::MemberComparing;
use super::missed::Missed;
use super::waits::Work;
use crate::bootstrap::PeerKey;
use crate::bootstrap::message::{Hello, ReceiverStatistics, harmless};
use crate::transfer::events::{Part, ReceiverReport, State};
use crate::transfer::kept_packs::ToldPacks;
use crate::transport::NodeAddress;

/// Stage of a receiver, as the sender knows it.
#[derive(Clone, PartialEq, Debug)]
pub enum Stage {
    /// The receiver has been welcomed, and makes room for the file.
    Preparing,
    /// The receiver is prepared and waits for the start, or joins the group.
    Joining,
    /// The receiver has joined and posted.
    Receiving,
    /// The receiver has all bytes, and proves or stores them.
    Storing(Work),
    /// The transfer is over for this receiver.
    Over {
        /// How it ended.
        state: State,
        /// Why, if it failed.
        reason: Option<String>,
        /// When it ended, in seconds since the start.
        seconds: f64,
    },
}

/// What a receiver has to do with the group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// It is no member, and is admitted when it has joined the group's address.
    Outside,
    /// It is no member, and waits to be admitted.
    Waiting,
    /// It was demoted, and is admitted when all packs have been announced.
    Aside,
    /// It is a member.
    Member,
    /// It is no member any more, since it has everything.
    Done,
}

/// A receiver, as the sender knows it.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its control connection.
    pub peer: PeerKey,
    /// Its node number; zero until it is admitted.
    pub node: NodeId,
    /// Its address on the control connection.
    pub address: SocketAddr,
    /// The sender's address on the control connection.
    pub local: SocketAddr,
    /// The receiver's hello; the name in it is made fit for a terminal.
    pub hello: Hello,
    /// Its name in reports: as it says, unless another receiver has that name.
    pub name: String,
    /// Its stage.
    pub stage: Stage,
    /// Whether something of the set may be in its place there.
    pub may_have: bool,
    /// How far it is with comparing what it has, if it takes part in that.
    pub comparing: Option<MemberComparing>,
    /// When it connected, was prepared, or was admitted again.
    pub since: Instant,
    /// How it is reached.
    pub path_state: PathState,
    /// Bytes of the file that it has placed.
    pub placed: u64,
    /// How long the core has waited for this receiver since it last placed more.
    pub waited: Duration,
    /// Data packets sent again for this receiver: by unicast, or because it was the first to
    /// request them.
    pub repairs: u64,
    /// When the receiver had placed all bytes. From then on the core does not wait for it.
    pub complete: Option<Instant>,
    /// Whether the sender has told that it is slow.
    pub slow: bool,
    /// When the sender last heard anything from it.
    pub heard: Instant,
    /// What it has counted.
    pub statistics: ReceiverStatistics,
    /// Since when it takes part.
    pub part: Part,
    /// What it has to do with the group.
    pub place: Place,
    /// What it lacks of the packs that are not broadcast to it.
    pub missed: Missed,
    /// Packs of a stream that it has proven: all before this number.
    pub proven: u32,
    /// Since when the sender keeps as much of a stream as it may because this receiver has not
    /// proven it.
    pub unproven: Option<Instant>,
    /// Packs that it keeps from an earlier run, as it has said.
    pub keeps: ToldPacks,
    /// Bytes of the packs that were sent since it was admitted to the group.
    pub sent: u64,
    /// Bytes of the packs that were sent since it was admitted and that it has not placed.
    pub due: u64,
    /// Whether it lacks packets that have been sent.
    pub lacks_sent: bool,
    /// How long it has held the others up, less the time in which it has not.
    pub holds: Balance,
    /// How long it has been far behind the fastest receiver, less the time in which it was not.
    pub behind: Balance,
    /// Whether the others have gone on without it because it was slower than they were.
    pub left_behind: bool,
    /// Whether it was told that all packs have been announced.
    pub knows_end: bool,
}

impl Member {
    /// Creates the entry of a receiver that says hello `now`.
    pub fn new(
        peer: PeerKey,
        address: SocketAddr,
        local: SocketAddr,
        hello: Hello,
        now: Instant,
    ) -> Member {
        let name = clean_name(&hello.name);
        let hello = Hello {
            name: name.clone(),
            ..hello
        };
        Member {
            peer,
            node: NodeId(0),
            address,
            local,
            hello,
            name,
            stage: Stage::Preparing,
            may_have: false,
            comparing: None,
            since: now,
            path_state: PathState::Multicast,
            placed: 0,
            waited: Duration::ZERO,
            repairs: 0,
            complete: None,
            slow: false,
            heard: now,
            statistics: ReceiverStatistics::default(),
            part: Part::Whole,
            place: Place::Member,
            missed: Missed::nothing(),
            proven: 0,
            unproven: None,
            keeps: ToldPacks::default(),
            sent: 0,
            due: 0,
            lacks_sent: false,
            holds: Balance::default(),
            behind: Balance::default(),
            left_behind: false,
            knows_end: false,
        }
    }

    /// The entry of a receiver that comes when the transfer runs already.
    pub fn late(self) -> Member {
        Member {
            part: Part::Late,
            place: Place::Outside,
            missed: Missed::unknown(),
            ..self
        }
    }

    /// Whether the sender waits for this receiver and it is a member of the group.
    pub fn in_group(&self) -> bool {
        self.active() && self.place == Place::Member
    }

    /// Whether it can compare what it has, as it has said before the start.
    pub fn may_compare(&self) -> bool {
        self.may_have && self.hello.verifies()
    }

    /// Whether it takes part in comparing: it was there from the start, and is a member of the
    /// group.
    pub fn compares(&self) -> bool {
        self.in_group() && self.part == Part::Whole && self.comparing.is_some()
    }

    /// Since when it has a pack to compare, if it takes part in comparing.
    pub(super) fn has_to_compare_since(&self) -> Option<Instant> {
        let comparing = self.comparing.as_ref().filter(|_| self.compares());
        comparing.and_then(MemberComparing::waits_since)
    }

    /// Whether it takes part in comparing, and has a pack to compare.
    pub fn has_to_compare(&self) -> bool {
        self.has_to_compare_since().is_some()
    }

    /// Whether this receiver is another one that is gone, and has come back: from the same host,
    /// under the same name.
    pub fn replaces(&self, gone: &Member) -> bool {
        let is_same = gone.hello.name == self.hello.name && gone.address.ip() == self.address.ip();
        is_same && !gone.active() && !gone.is_complete()
    }

    /// The address that datagrams for it go to.
    pub fn datagrams(&self) -> NodeAddress {
        let mut address = self.address; // `contradiction` refuses any other
        address.set_port(self.hello.address.ip().map_or(0, |a| a.port()));
        address.into()
    }

    /// Whether the sender still waits for this receiver.
    pub fn active(&self) -> bool {
        !matches!(self.stage, Stage::Over { .. })
    }

    /// Whether the transfer has ended like this for the receiver.
    pub fn ended(&self, state: State) -> bool {
        matches!(&self.stage, Stage::Over { state: ended, .. } if *ended == state)
    }

    /// Whether the receiver has got everything.
    pub fn is_complete(&self) -> bool {
        matches!(&self.stage, Stage::Over { state, .. } if state.is_complete())
    }

    /// The receiver's line of the table.
    pub fn report(&self) -> ReceiverReport {
        let (state, reason, seconds) = match &self.stage {
            Stage::Over {
                state,
                reason,
                seconds,
            } => (*state, reason.clone(), *seconds),
            _ => (State::Lost, None, 0.0),
        };
        ReceiverReport {
            receiver: self.name.clone(),
            address: self.address,
            state,
            reason,
            reach: path_name(self.path_state),
            seconds,
            repairs: self.repairs,
            part: self.part,
            placed: self.placed,
            statistics: self.statistics,
        }
    }
}

/// The receivers of a transfer, in the order of their node numbers, which is that of their arrival.
#[derive(Default)]
pub struct ReceiverTable(Vec<Member>);

impl ReceiverTable {
    /// The receivers that are still there.
    pub fn active(&self) -> impl Iterator<Item = &Member> + Clone {
        self.iter().filter(|m| m.active())
    }

    /// The receivers that are offered the set and are not prepared for it.
    pub fn preparing(&self) -> impl Iterator<Item = &Member> + Clone {
        self.iter().filter(|m| m.stage == Stage::Preparing)
    }

    /// The receivers that wait for the start, or take part since then.
    pub fn taking_part(&self) -> impl Iterator<Item = &Member> + Clone {
        self.active().filter(|m| m.stage != Stage::Preparing)
    }

    /// The members of the group.
    pub fn in_group(&self) -> impl Iterator<Item = &Member> + Clone {
        self.iter().filter(|m| m.in_group())
    }

    /// The members of the group, to be changed.
    pub fn in_group_mut(&mut self) -> impl Iterator<Item = &mut Member> {
        self.iter_mut().filter(|m| m.in_group())
    }

    /// The index of the receiver with this node number.
    pub fn by_node(&self, node: NodeId) -> Option<usize> {
        self.binary_search_by_key(&node, |m| m.node).ok()
    }

    /// The index of the receiver that is still there and has this control connection.
    pub fn by_peer(&self, peer: PeerKey) -> Option<usize> {
        self.iter().position(|m| m.peer == peer && m.active())
    }

    /// Adds the receiver that has come last.
    pub fn push(&mut self, member: Member) {
        self.0.push(member);
    }

    /// Adds a receiver that had its node number before others came.
    pub fn insert(&mut self, member: Member) {
        let at = self.partition_point(|m| m.node < member.node);
        self.0.insert(at, member);
    }

    /// Removes the receiver with this index.
    pub fn remove(&mut self, at: usize) -> Member {
        self.0.remove(at)
    }

    /// Removes these receivers.
    pub fn extract(&mut self, takes: impl Fn(&Member) -> bool) -> Vec<Member> {
        self.0.extract_if(.., |m| takes(m)).collect()
    }
}

impl Deref for ReceiverTable {
    type Target = [Member];

    fn deref(&self) -> &[Member] {
        &self.0
    }
}

impl DerefMut for ReceiverTable {
    fn deref_mut(&mut self) -> &mut [Member] {
        &mut self.0
    }
}

/// The word for how a member is reached.
pub fn path_name(path_state: PathState) -> &'static str {
    match path_state {
        PathState::Multicast => "multicast",
        PathState::Unicast => "unicast",
        PathState::Nothing => "nothing",
    }
}

/// A name from the network, fit for a terminal and a table.
pub fn clean_name(name: &str) -> String {
    const NAME_MAX: usize = 64;
    let printable = name.chars().filter(|c| harmless(*c));
    match printable.take(NAME_MAX).collect::<String>() {
        name if name.is_empty() => "?".into(),
        name => name,
    }
}

#[cfg(test)]
pub mod testing {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::time::Instant;

    use super::{Member, Stage};
    use crate::bootstrap::PeerKey;
    use crate::bootstrap::message::{Hello, VERSION};

    /// A receiver that connects from `address` to the sender's address `local`.
    pub fn receiver(address: &str, local: &str, stage: Stage) -> Member {
        let hello = Hello {
            version: VERSION,
            name: "x".into(),
            address: (Ipv4Addr::UNSPECIFIED.into(), 1).into(),
            datagram: 1472,
            window_bytes: 1 << 24,
            stream: false,
            discard: false,
            nonce: None,
        };
        let at = |ip: &str| SocketAddr::new(ip.parse().unwrap(), 1);
        let (address, local) = (at(address), at(local));
        Member {
            stage,
            ..Member::new(PeerKey::default(), address, local, hello, Instant::now())
        }
    }

    /// A receiver to which data are sent.
    pub fn receiving() -> Member {
        receiver("127.0.0.1", "127.0.0.1", Stage::Receiving)
    }
}
