//! The sender's admission: receivers connect and leave until the start rule is met.
//!
//! Anyone that can connect can ask for a seat. So what one host may take is bounded: seats, names
//! of other receivers, descriptors, and how small it makes everybody's packets.

pub mod authentication;
mod families;
pub mod late;
mod listening;
pub mod objections;
mod refusals;
mod required;
pub mod seats;

pub(crate) use self::listening::places;
pub(crate) use self::seats::host;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fabricast_proto::NodeId;

use self::authentication::{Authenticator, Step};
use self::listening::announce;
use self::objections::{contradiction, small_datagrams, unverified, wrong_family};
use self::refusals::Refusals;
use self::seats::{no_seat, seats};
use super::clock::SenderClock;
use super::receiver_table::{Member, ReceiverTable, Stage};
use crate::bootstrap::announce::{Announcement, Announcer};
use crate::bootstrap::message::{ToReceiver, ToSender, VERSION, Welcome};
use crate::bootstrap::psk::Mac;
use crate::bootstrap::{Blocks, Event, PeerKey, Rendezvous};
use crate::config::{NetworkKind, SendOptions, Verdict};
use crate::error::{Error, exit};
use crate::ibrmp::digest;
use crate::interface::{Family, Interface};
use crate::net::{self, Net};
use crate::object::{BLOCK, SourceSet};
use crate::setting::{FROM, PORT};
use crate::text::spoken;
use crate::transfer::events::{By, SendEvent, SendReport, State, Traffic};
use crate::transfer::{TICK, check};
use crate::transport::Transport;
use crate::waker::Waker;

/// How long a receiver may take to make room for the file.
const PREPARE: Duration = Duration::from_secs(10);
/// The least speed at which a receiver proves what it has, in bytes per second.
pub const PROVING_SPEED_MIN: u64 = 20_000_000;
/// How many receivers may make room for the file at once.
const PREPARING: usize = 1024;

/// The sender's state before the start, and its connections until the end.
pub struct Admission<'a> {
    /// The connections.
    pub rendezvous: Rendezvous,
    /// By what time the sender judges its receivers.
    pub(super) clock: SenderClock,
    /// The receivers that are there, and since the start those that were there.
    pub receivers: ReceiverTable,
    /// Receivers that were not prepared at the start. They come late.
    pub unprepared: Vec<Member>,
    /// How many late receivers of each host were admitted, also if they are gone.
    came_late: BTreeMap<IpAddr, usize>,
    /// Connections that were given up while they were pending.
    pub pending: u64,
    /// Receivers that connected and do not take part.
    pub refusals: Refusals,
    authenticator: Authenticator,
    /// The sender's address by which the network was to be reached, and the network. The network is
    /// opened before the first receiver is admitted.
    net: Option<(IpAddr, Net)>,
    /// The number of receivers that there are descriptors for.
    seats: usize,
    pub(super) set: Arc<SourceSet>,
    name: String,
    pub session: u64,
    next: u32,
    pub(super) options: &'a SendOptions,
    /// Whether the user knows which required receivers are missing.
    pub(super) has_told_missing: bool,
    announcer: Option<Announcer>,
    /// What ends the waits of the thread that sends.
    waker: Waker,
}

impl<'a> Admission<'a> {
    /// Opens the rendezvous.
    pub fn open(
        set: Arc<SourceSet>,
        blocks: Arc<dyn Blocks>,
        session: u64,
        options: &'a SendOptions,
        waker: Waker,
        tell: &mut dyn FnMut(SendEvent),
    ) -> Result<Admission<'a>, Error> {
        let name = set.name();
        let places = places(&options.net.interface, options.group.map(Family::of))?;
        let workers = options.workers.clone();
        let opened = Rendezvous::open(&places, options.port, blocks, workers, waker.clone());
        let rendezvous = opened.map_err(|e| {
            let hint = match e.kind() {
                std::io::ErrorKind::AddrInUse => format!(
                    " (another sender? choose another port with {PORT}, or {PORT} 0 for any)"
                ),
                _ => String::new(),
            };
            Error::io(format!("listening at TCP port {}{hint}", options.port), e)
        })?;
        let announcement = Announcement {
            fabricast: VERSION,
            session,
            port: rendezvous.address().port(),
            name: name.clone(),
            len: set.known_len(),
            answers: None,
        };
        let mut announcer = None;
        let mut silent = None;
        if options.announce {
            // Announcing is a convenience: without it, the user gives receivers the address.
            match announce(&options.net.interface, &places, &announcement) {
                Ok(it) => announcer = Some(it),
                Err(why) => silent = Some(why),
            }
        }
        tell(SendEvent::Listening {
            address: rendezvous.address(),
            name: name.clone(),
            tops: set.manifest().tops(),
            len: set.known_len(),
            announced: announcer.is_some(),
        });
        if let Some(why) = silent {
            let text = format!("nothing is announced ({why}): receivers need {FROM}");
            tell(SendEvent::Notice { text });
        }
        if let Some(why) = announcer.as_ref().and_then(Announcer::deaf) {
            let text = format!(
                "queries for a sender cannot be heard here ({why}): receivers without {FROM} wait \
                 for the next announcement"
            );
            tell(SendEvent::Notice { text });
        }
        Ok(Admission {
            rendezvous,
            clock: SenderClock::new(),
            receivers: ReceiverTable::default(),
            unprepared: Vec::new(),
            came_late: BTreeMap::new(),
            pending: 0,
            refusals: Refusals::default(),
            authenticator: Authenticator::new(session, options.keys.clone()),
            net: None,
            seats: seats(),
            set,
            name,
            session,
            next: 1,
            options,
            has_told_missing: false,
            announcer,
            waker,
        })
    }

    /// Admits receivers until the start rule says to start or to give up.
    pub fn gather(&mut self, tell: &mut dyn FnMut(SendEvent)) -> Result<(), Error> {
        let began = self.clock.now();
        let mut first = None;
        loop {
            check(&self.options.interrupt)?;
            let now = self.clock.now();
            self.expire(now, tell);
            let present = self.present();
            if present == 0 {
                first = None;
                let by_hand = self.options.start.by_hand.as_ref();
                if by_hand.is_some_and(|pressed| pressed.swap(false, Ordering::Relaxed)) {
                    let text = "nobody is connected yet, so there is nothing to start".into();
                    tell(SendEvent::Notice { text });
                }
            } else if first.is_none() {
                first = Some(now);
            }
            let since_first = first.map_or_else(Default::default, |t| now - t);
            match self.decide(now - began, since_first, tell) {
                Verdict::Start => {
                    self.close_doors(tell);
                    return Ok(());
                }
                // One that proves what it has has a limit of its own.
                Verdict::GiveUp if self.receivers.preparing().next().is_some() => {}
                Verdict::GiveUp => return Err(self.too_few()),
                Verdict::Wait => {}
            }
            if let Some(event) = self.rendezvous.event_until(Instant::now() + TICK) {
                self.take(event, tell)?;
            }
        }
    }

    /// Ends admission: sets receivers aside that are not prepared, refuses those of the other
    /// family, and stops announcing.
    fn close_doors(&mut self, tell: &mut dyn FnMut(SendEvent)) {
        self.announcer = None;
        let late = |m: &Member| m.stage != Stage::Joining;
        self.unprepared = self.receivers.extract(late);
        let Some(family) = self.family() else { return };
        let other = |m: &Member| Family::of(m.address.ip()) != family;
        for member in self.receivers.extract(other) {
            let reason = wrong_family(Family::of(member.address.ip()), family);
            self.refuse(member, reason, tell);
        }
    }

    /// Refuses a receiver, and notes that for the table.
    pub fn refuse(&mut self, member: Member, reason: String, tell: &mut dyn FnMut(SendEvent)) {
        let reason = (self.options.net.wording)(&reason);
        let refused = ToReceiver::Refused {
            reason: reason.clone(),
        };
        self.rendezvous.say(member.peer, refused);
        self.rendezvous.close(member.peer);
        let name = self.authenticator.name(&member);
        self.note((name, member.address), By::Sender, reason, tell);
    }

    /// Notes for the table that a receiver does not take part, which side decided that, and why.
    pub fn note(
        &mut self,
        (name, address): (String, SocketAddr),
        by: By,
        reason: String,
        tell: &mut dyn FnMut(SendEvent),
    ) {
        self.refusals.add(name, address, by, reason).map(tell);
    }

    /// Handles an event of a control connection before the start, or of a receiver that is not
    /// prepared.
    pub fn take(&mut self, event: Event, tell: &mut dyn FnMut(SendEvent)) -> Result<(), Error> {
        let event = match self.authenticator.hear(event, &self.rendezvous) {
            ControlFlow::Break(step) => return self.step(step, tell),
            ControlFlow::Continue(event) => event,
        };
        match event {
            Event::Hello {
                peer,
                address,
                local,
                hello,
            } => {
                let step =
                    self.greet(Member::new(peer, address, local, hello, self.clock.now()))?;
                self.step(step, tell)?;
            }
            Event::Refused {
                name,
                address,
                reason,
            } => self.note((name, address), By::Sender, reason, tell),
            Event::Said { peer, message } => match message {
                ToSender::Prepared { may_have } if self.is_preparing(peer) => {
                    self.prepared(peer, may_have, tell);
                }
                ToSender::Preparing if self.is_preparing(peer) => self.preparing(peer),
                ToSender::Failed { code, reason } => {
                    if let Some(gone) = self.remove(peer, tell) {
                        self.rendezvous.close(peer);
                        // If its user interrupted the receiver, nothing kept it from taking part.
                        if code != exit::INTERRUPTED {
                            let who = (gone.hello.name, gone.address);
                            self.note(who, By::Receiver, reason, tell);
                        }
                    }
                }
                // A receiver can say nothing else before the start.
                other => {
                    if let Some(gone) = self.remove(peer, tell) {
                        self.refuse(gone, other.out_of_turn(), tell);
                    }
                }
            },
            Event::Lost { peer, .. } => {
                if self.remove(peer, tell).is_some() {
                    self.rendezvous.close(peer);
                }
            }
            // No receiver has a reliable channel yet, and none is a guest.
            Event::Frame { .. } | Event::Guest { .. } => {}
            Event::Pending(n) => self.pending = n,
        }
        Ok(())
    }

    /// Takes a client that has said hello, and has it show its key if receivers have keys.
    fn greet(&mut self, member: Member) -> Result<Step, Error> {
        let free = self.seats.saturating_sub(self.receivers.active().count());
        self.authenticator.greet(member, free, &self.rendezvous)
    }

    /// Takes the next step with a client that shows its key, or needs none.
    fn step(&mut self, step: Step, tell: &mut dyn FnMut(SendEvent)) -> Result<(), Error> {
        match step {
            Step::Wait => Ok(()),
            Step::Consider(member, mac) => self.consider(member, mac, tell),
            Step::Refuse(member, reason) => {
                self.refuse(member, reason, tell);
                Ok(())
            }
        }
    }

    /// Admits a receiver, unless there is an objection. `mac` shows it that the sender knows its
    /// key.
    fn consider(
        &mut self,
        member: Member,
        mac: Option<Mac>,
        tell: &mut dyn FnMut(SendEvent),
    ) -> Result<(), Error> {
        // The network is opened before any receiver is admitted, so that receivers cannot take its
        // descriptors.
        let objection = match self.network(member.local.ip()) {
            Ok(datagram_max) => self.objection(&member, datagram_max),
            // A pending connection may come by an interface that the sender cannot use.
            Err(error) if matches!(self.options.net.interface, Interface::Auto) => {
                Some(format!("the sender cannot serve it: {error}"))
            }
            Err(error) => return Err(error),
        };
        match objection {
            Some(reason) => self.refuse(member, reason, tell),
            None => self.admit(member, mac, tell),
        }
        Ok(())
    }

    /// Why this receiver cannot take part, if it cannot. `datagram_max`: the sender's largest
    /// datagram.
    fn objection(&self, member: &Member, datagram_max: usize) -> Option<String> {
        let group = self.options.group.map(Family::of);
        let least = datagram_max.min(self.options.datagram_min);
        self.unfit(member, group, least)
            .or_else(|| self.no_free_seat(member))
    }

    /// Why this receiver could take part at no time, if it could not: by what it says of itself, or
    /// for want of a seat. `group`: the family of the group's address. `least`: bytes that its
    /// datagrams must have.
    fn unfit(&self, member: &Member, group: Option<Family>, least: usize) -> Option<String> {
        contradiction(member.address, &member.hello, group)
            .or_else(|| no_seat(member, &self.receivers, self.options.per_host, self.seats))
            .or_else(|| unverified(&member.hello, self.options.verified_only))
            .or_else(|| small_datagrams(member.hello.datagram, least))
    }

    /// Opens the network by which `near` is reached, unless one is open. Returns the largest
    /// datagram.
    fn network(&mut self, near: IpAddr) -> Result<usize, Error> {
        let net = match self.net.take() {
            Some((at, net)) => (at, net),
            None => {
                let options = &self.options;
                (
                    near,
                    net::open(
                        &NetworkKind::Udp,
                        &options.net,
                        near,
                        options.ttl,
                        self.session,
                        &self.waker,
                    )?,
                )
            }
        };
        let (_, net) = self.net.insert(net);
        Ok(net.caps().datagram_max)
    }

    /// The network by which most receivers come, and the sender's address there.
    pub fn take_network(&mut self) -> Result<(IpAddr, Net), Error> {
        let near = self.near().unwrap_or(Ipv4Addr::UNSPECIFIED.into());
        self.net.take_if(|(at, _)| *at != near);
        self.network(near)?;
        Ok(self.net.take().expect("it was opened"))
    }

    /// Whether this receiver has been offered the set and is not prepared.
    pub fn is_preparing(&self, peer: PeerKey) -> bool {
        self.receivers.preparing().any(|m| m.peer == peer)
    }

    /// Makes room for one more receiver: refuses the oldest that is not prepared if there are too
    /// many. Only a prepared receiver has its seat for certain.
    fn make_room(&mut self, tell: &mut dyn FnMut(SendEvent)) {
        let preparing = self.receivers.preparing().count();
        // Receivers of the other family take no seat from these.
        let taken = self.present() + preparing;
        if preparing >= PREPARING || taken >= self.options.start.max_receivers {
            let oldest = self
                .receivers
                .iter()
                .position(|m| m.stage == Stage::Preparing);
            if let Some(at) = oldest {
                let gone = self.receivers.remove(at);
                self.refuse(gone, "it was not prepared when others came".into(), tell);
            }
        }
    }

    /// Refuses receivers that take too long to prepare, which frees their seats.
    pub fn expire(&mut self, now: Instant, tell: &mut dyn FnMut(SendEvent)) {
        let late =
            |m: &Member| m.stage == Stage::Preparing && now.duration_since(m.since) > PREPARE;
        let late = self.receivers.extract(late);
        for client in self.authenticator.expire(now) {
            self.refuse(client, "it did not show its key in time".into(), tell);
        }
        for gone in late {
            let reason = format!("it was not prepared within {}", spoken(PREPARE));
            self.refuse(gone, reason, tell);
        }
    }

    /// Offers a receiver the set. `mac` shows it that the sender knows its key.
    pub fn admit(&mut self, mut member: Member, mac: Option<Mac>, tell: &mut dyn FnMut(SendEvent)) {
        member.node = NodeId(self.next);
        self.next += 1;
        self.make_room(tell);
        // Names are unique. A client that takes another receiver's name does not keep that receiver
        // out.
        while self
            .receivers
            .iter()
            .any(|m| m.name == member.name && !member.replaces(m))
        {
            member.name = format!("{}@{}", member.name, member.datagrams());
        }
        let welcome = Welcome {
            version: VERSION,
            session: self.session,
            node: member.node.0,
            name: self.name.clone(),
            len: self.set.manifest().known_len(),
            tops: self.set.manifest().tops(),
            entries: self.set.manifest().entries().len() as u32,
            manifest: digest(&self.options.scheme, &self.set),
            block: BLOCK as u32,
            mac,
        };
        self.rendezvous
            .say(member.peer, ToReceiver::Welcome(welcome));
        self.receivers.push(member);
    }

    /// Gives a receiver more time that proves what it has, as long as that may take.
    fn preparing(&mut self, peer: PeerKey) {
        let most = PREPARE + Duration::from_secs(self.set.manifest().len() / PROVING_SPEED_MIN);
        let now = self.clock.now();
        let mut members = self.receivers.iter_mut();
        if let Some(member) = members.find(|m| m.peer == peer)
            && now.duration_since(member.heard) < most
        {
            member.since = now;
        }
    }

    fn prepared(&mut self, peer: PeerKey, may_have: bool, tell: &mut dyn FnMut(SendEvent)) {
        let mut members = self.receivers.iter_mut();
        let prepared = |m: &&mut Member| m.peer == peer && m.stage == Stage::Preparing;
        let Some(member) = members.find(prepared) else {
            return;
        };
        (member.stage, member.may_have) = (Stage::Joining, may_have);
        self.refusals.forget(&member.hello.name, member.address);
        let (receiver, address) = (member.name.clone(), member.address);
        let receivers = self.present();
        let others = self.receivers.taking_part().count() - receivers;
        tell(SendEvent::Connected {
            receiver,
            address,
            receivers,
        });
        if let Some(family) = self.family()
            && others > 0
        {
            let text = format!(
                "{others} of the receivers connect by another family of addresses than {family}, \
                 and cannot take part together with the others: if that is so at the start, they \
                 are refused"
            );
            tell(SendEvent::Notice { text });
        }
    }

    /// Removes a receiver that is gone, and tells so if it waited for the start.
    fn remove(&mut self, peer: PeerKey, tell: &mut dyn FnMut(SendEvent)) -> Option<Member> {
        let at = self.receivers.iter().position(|m| m.peer == peer)?;
        let gone = self.receivers.remove(at);
        if gone.stage == Stage::Joining {
            tell(SendEvent::Left {
                receiver: gone.name.clone(),
                receivers: self.present(),
            });
        }
        Some(gone)
    }

    /// Tells all receivers that are still there that the transfer has failed, `seconds` after its
    /// start.
    pub fn abort(&mut self, error: &Error, seconds: f64) {
        let (code, reason) = (
            error.exit_code(),
            (self.options.net.wording)(&error.to_string()),
        );
        self.say_active(&ToReceiver::Aborted { code, reason });
        // Receivers that are not prepared were never counted.
        self.receivers.extract(|m| m.stage == Stage::Preparing);
        for member in self.receivers.iter_mut().filter(|m| m.active()) {
            self.rendezvous.close(member.peer);
            let (state, reason) = match &member.stage {
                Stage::Storing(_) => (
                    State::Lost,
                    "the sender gave up while it proved and stored the file, and does not know \
                     whether it has it",
                ),
                _ => (State::Failed, "the sender gave up before it had the file"),
            };
            member.stage = Stage::Over {
                state,
                reason: Some(reason.into()),
                seconds,
            };
        }
    }

    /// The report of a transfer that sent nothing; that of any other begins with it.
    pub fn report(&self) -> SendReport {
        let (refused, refused_more) = self.refusals.report();
        SendReport {
            name: self.name.clone(),
            len: self.set.known_len(),
            root: None,
            changed: None,
            failed: Vec::new(),
            seconds: 0.0,
            traffic: Traffic::default(),
            messages: None,
            workers: Vec::new(),
            pending: self.pending,
            required: self.options.required.clone(),
            receivers: self.receivers.iter().map(Member::report).collect(),
            refused,
            refused_more,
        }
    }

    /// Sends one message to all members of the group.
    pub fn say_group(&self, message: &ToReceiver) {
        let members = self.receivers.in_group();
        self.rendezvous.say_all(members.map(|m| m.peer), message);
    }

    /// Sends one message to all receivers that are still there.
    pub fn say_active(&self, message: &ToReceiver) {
        let active = self.receivers.active();
        self.rendezvous.say_all(active.map(|m| m.peer), message);
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::object::testing::scratch;
    use crate::object::{PackIndex, Selection};
    use crate::transfer::sender::receiver_table::testing::receiver;

    /// Calls `act` with a sender that listens and that no receiver has connected to.
    fn admission(mut options: SendOptions, act: impl FnOnce(Admission<'_>)) {
        let dir = scratch();
        std::fs::write(dir.join("f"), "bytes").unwrap();
        (options.announce, options.port) = (false, 0);
        options.net.interface = Interface::Address(Ipv4Addr::LOCALHOST.into());
        let set = SourceSet::list(&[dir.join("f")], &Selection::default(), &mut |_| ()).unwrap();
        let set = Arc::new(set);
        let index = Arc::new(PackIndex::new(set.clone()));
        let waker = Waker::new().unwrap();
        let open = Admission::open(set, index, 7, &options, waker, &mut |_| ());
        act(open.unwrap());
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn one_host_chooses_no_network_for_others() {
        admission(SendOptions::default(), |mut admission| {
            let mut come = |address: &str, local: &str, family, near: &str| {
                let member = receiver(address, local, Stage::Joining);
                admission.receivers.push(member);
                assert_eq!(admission.family(), Some(family));
                assert_eq!(admission.near(), Some(near.parse().unwrap()));
            };
            // Clients on the sender's host do not count, however many they are, once another host
            // is there.
            come("127.0.0.1", "127.0.0.1", Family::V4, "127.0.0.1");
            come("127.0.0.2", "127.0.0.1", Family::V4, "127.0.0.1");
            come("10.0.0.2", "10.0.0.1", Family::V4, "10.0.0.1");
            // Four seats of one host count once.
            for _ in 0..4 {
                come("10.1.0.2", "10.1.0.1", Family::V4, "10.1.0.1");
            }
            come("10.0.0.3", "10.0.0.1", Family::V4, "10.0.0.1");
            // The addresses of a /64 count once, too.
            for ip in ["2001:db8::2", "2001:db8::3", "2001:db8::4", "2001:db8::5"] {
                come(ip, "2001:db8:0:1::1", Family::V4, "10.0.0.1");
            }
        });
    }

    /// Receivers of the other family cannot take part, so their seats must not fill the transfer.
    #[test]
    fn who_prepares_is_not_put_out_for_the_other_family() {
        let mut options = SendOptions::default();
        options.start.max_receivers = 4;
        admission(options, |mut admission| {
            let four = |stage| receiver("10.0.0.2", "10.0.0.1", stage);
            let six = || receiver("2001:db8::2", "2001:db8:0:1::1", Stage::Joining);
            let members = [four(Stage::Joining), six(), six(), six()];
            members
                .into_iter()
                .for_each(|m| admission.receivers.push(m));
            admission.receivers.push(four(Stage::Preparing));
            admission.make_room(&mut |_| ());
            assert_eq!(admission.receivers.len(), 5);
            // With two more receivers of its own family, the preparing one makes room.
            let members = [(); 2].map(|()| four(Stage::Joining));
            members
                .into_iter()
                .for_each(|m| admission.receivers.push(m));
            admission.make_room(&mut |_| ());
            assert_eq!(admission.receivers.len(), 6);
        });
    }

    /// Receivers that were lost have left their seats to those that come back.
    #[test]
    fn who_prepares_is_not_put_out_for_lost_ones() {
        let mut options = SendOptions::default();
        options.start.max_receivers = 4;
        admission(options, |mut admission| {
            let lost = || Stage::Over {
                state: State::Lost,
                reason: None,
                seconds: 0.0,
            };
            let stages = [Stage::Receiving, lost(), lost(), lost(), Stage::Preparing];
            let members = stages.map(|stage| receiver("10.0.0.2", "10.0.0.1", stage));
            members
                .into_iter()
                .for_each(|m| admission.receivers.push(m));
            admission.make_room(&mut |_| ());
            assert_eq!(admission.receivers.len(), 5);
        });
    }
}
