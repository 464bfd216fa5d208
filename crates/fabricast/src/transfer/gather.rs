//! The time before the start: receivers come and go, until the start rule has its way.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabricast_proto::{NodeId, Reach};

use super::events::SendEvent;
use super::roster::{Member, Stage, clean_name};
use super::{TICK, check};
use crate::bootstrap::announce::{Announcement, Announcer};
use crate::bootstrap::message::{Hello, Tally, ToReceiver, ToSender, VERSION, Welcome};
use crate::bootstrap::{Event, PeerKey, Rendezvous};
use crate::config::{DATAGRAM_MIN, SendOptions, Verdict};
use crate::error::{Error, spoken};
use crate::object::{BLOCK, Content};
use crate::transport::udp::{self, Family, Interface};

/// Less than this is no window: 64 of the largest packets.
pub const WINDOW_BYTES_MIN: u64 = 64 * fabricast_proto::limits::CHUNK_MAX as u64;

/// How long a receiver may take to make room for the file, and how many may be at it at once.
const PREPARE: Duration = Duration::from_secs(10);
const PREPARING: usize = 1024;

/// What those are told who come after the start.
pub const LATE: &str = "the transfer has begun already, and late receivers cannot join yet: ask \
                        for another one";

/// What a rendezvous has come to.
pub struct Gathering<'a> {
    /// The connections.
    pub rendezvous: Rendezvous,
    /// Those who are there, in the order in which they came, which is that of their numbers.
    pub members: Vec<Member>,
    /// Connections that made no sense.
    pub strangers: u64,
    content: Arc<Content>,
    name: String,
    session: u64,
    next: u32,
    options: &'a SendOptions,
    announcer: Option<Announcer>,
}

impl<'a> Gathering<'a> {
    /// Opens the rendezvous.
    pub fn open(
        content: Arc<Content>,
        name: String,
        session: u64,
        options: &'a SendOptions,
        bell: crate::bell::Bell,
        tell: &mut dyn FnMut(SendEvent),
    ) -> Result<Gathering<'a>, Error> {
        let places = places(&options.net.interface, options.group.map(Family::of))?;
        let rendezvous =
            Rendezvous::open(&places, options.port, content.clone(), bell).map_err(|e| {
                let hint = match e.kind() {
                    std::io::ErrorKind::AddrInUse => {
                        " (another sender? choose another port with --port, or --port 0 for any)"
                    }
                    _ => "",
                };
                Error::io(format!("listening at TCP port {}{hint}", options.port), e)
            })?;
        let announcement = Announcement {
            fabricast: VERSION,
            session,
            port: rendezvous.address().port(),
            name: name.clone(),
            len: Some(content.len()),
            answers: None,
        };
        let mut announcer = None;
        let mut silent = None;
        if options.announce {
            // A convenience: where it cannot be had, receivers are told the address.
            match announce(&options.net.interface, &places, &announcement) {
                Ok(it) => announcer = Some(it),
                Err(why) => silent = Some(why),
            }
        }
        tell(SendEvent::Listening {
            address: rendezvous.address(),
            name: name.clone(),
            len: content.len(),
            announced: announcer.is_some(),
        });
        if let Some(why) = silent {
            let text = format!("nothing is announced ({why}): receivers need --from");
            tell(SendEvent::Notice { text });
        }
        Ok(Gathering {
            rendezvous,
            members: Vec::new(),
            strangers: 0,
            content,
            name,
            session,
            next: 1,
            options,
            announcer,
        })
    }

    /// Waits until the start rule says so.
    pub fn gather(&mut self, tell: &mut dyn FnMut(SendEvent)) -> Result<(), Error> {
        let began = Instant::now();
        let mut first = None;
        loop {
            check(&self.options.interrupt)?;
            let now = Instant::now();
            self.expire(now);
            let present = self.present();
            if present == 0 {
                first = None;
            } else if first.is_none() {
                first = Some(now);
            }
            let since_first = first.map_or_else(Default::default, |t| now - t);
            let rule = &self.options.start;
            match rule.decide(now - began, since_first, present) {
                Verdict::Start => {
                    self.close_doors();
                    return Ok(());
                }
                Verdict::GiveUp => return Err(self.too_few()),
                Verdict::Wait => {}
            }
            if let Some(event) = self.rendezvous.event_until(now + TICK) {
                self.take(event, tell);
            }
        }
    }

    /// How many wait for the start.
    fn present(&self) -> usize {
        let present = |m: &&Member| m.stage == Stage::Joining;
        self.members.iter().filter(present).count()
    }

    /// Those who are not prepared are too late, and nobody else is invited.
    fn close_doors(&mut self) {
        self.announcer = None;
        for member in self.members.extract_if(.., |m| m.stage != Stage::Joining) {
            refuse(&self.rendezvous, member.peer, LATE.into());
        }
    }

    fn too_few(&self) -> Error {
        let rule = &self.options.start;
        let waited = spoken(rule.timeout);
        let port = self.rendezvous.address().port();
        Error::NoReceivers(match self.present() {
            0 => format!(
                "no receiver connected within {waited}; is `fabricast recv` running on the \
                 receivers, and does a firewall let them reach TCP port {port} here?"
            ),
            n => format!(
                "only {n} of {} receivers connected within {waited}; start the others, or let it \
                 begin without them with --max-wait",
                rule.min_receivers
            ),
        })
    }

    fn take(&mut self, event: Event, tell: &mut dyn FnMut(SendEvent)) {
        match event {
            Event::Hello {
                peer,
                address,
                local,
                hello,
            } => match self.objection(address, &hello) {
                Some(reason) => refuse(&self.rendezvous, peer, reason),
                None => {
                    let member = Member {
                        peer,
                        node: NodeId(self.next),
                        address,
                        local,
                        stage: Stage::Preparing,
                        since: Instant::now(),
                        reach: Reach::Multicast,
                        placed: 0,
                        repairs: 0,
                        complete: None,
                        slow: false,
                        tally: Tally::default(),
                        hello: Hello {
                            name: clean_name(&hello.name),
                            ..hello
                        },
                    };
                    self.next += 1;
                    self.make_room();
                    self.admit(member);
                }
            },
            Event::Said { peer, message } => match message {
                ToSender::Prepared if self.is_preparing(peer) => self.prepared(peer, tell),
                ToSender::Failed { .. } => self.leave(peer, tell),
                // Nothing else can be said before the start.
                other => {
                    refuse(&self.rendezvous, peer, other.out_of_turn());
                    self.leave(peer, tell);
                }
            },
            Event::Lost { peer, .. } => self.leave(peer, tell),
            Event::Strangers(n) => self.strangers = n,
        }
    }

    fn objection(&self, address: SocketAddr, hello: &Hello) -> Option<String> {
        if hello.version != VERSION {
            return Some(format!(
                "the sender speaks version {VERSION} of the control protocol, not {}; install the \
                 same version of fabricast on both",
                hello.version
            ));
        }
        if (hello.datagram as usize) < DATAGRAM_MIN || hello.window_bytes < WINDOW_BYTES_MIN {
            return Some("its datagrams or its window are too small".into());
        }
        let group = self.options.group.map(Family::of);
        let first = || self.members.first().map(|m| Family::of(m.address.ip()));
        let (family, its) = (group.or_else(first), Family::of(address.ip()));
        if let Some(family) = family.filter(|f| *f != its) {
            return Some(format!(
                "it connects by {its}, and this transfer goes by {family}: name the sender's \
                 {family} address with --from"
            ));
        }
        // Whoever may connect could otherwise have the data sent to anybody.
        let control = address.ip().to_canonical();
        if let Some(ip) = hello.udp_address
            && ip.to_canonical() != control
        {
            return Some(format!(
                "it wants its datagrams at {ip} and connects from {control}; connect by the \
                 interface that the data are to take (--from names the sender's address there)"
            ));
        }
        if hello.udp_port == 0 {
            return Some("it has no port for datagrams".into());
        }
        let taken =
            |m: &Member| m.address.ip() == address.ip() && m.hello.udp_port == hello.udp_port;
        if self.members.iter().any(taken) {
            return Some("another receiver has its address and port for datagrams already".into());
        }
        (self.present() >= self.options.start.max_receivers)
            .then(|| "there are as many receivers as the sender admits".into())
    }

    fn is_preparing(&self, peer: PeerKey) -> bool {
        let mut members = self.members.iter();
        members.any(|m| m.peer == peer && m.stage == Stage::Preparing)
    }

    /// Only who is prepared has its seat for certain: of the others the oldest makes room.
    fn make_room(&mut self) {
        let preparing = self.members.len() - self.present();
        if preparing >= PREPARING || self.members.len() >= self.options.start.max_receivers {
            let oldest = self
                .members
                .iter()
                .position(|m| m.stage == Stage::Preparing);
            if let Some(at) = oldest {
                let gone = self.members.remove(at);
                let reason = "it was not prepared when others came".into();
                refuse(&self.rendezvous, gone.peer, reason);
            }
        }
    }

    /// Who takes too long to prepare gives its seat back.
    fn expire(&mut self, now: Instant) {
        let late =
            |m: &mut Member| m.stage == Stage::Preparing && now.duration_since(m.since) > PREPARE;
        for gone in self.members.extract_if(.., late) {
            let reason = format!("it was not prepared within {}", spoken(PREPARE));
            refuse(&self.rendezvous, gone.peer, reason);
        }
    }

    fn admit(&mut self, member: Member) {
        let welcome = Welcome {
            version: VERSION,
            session: self.session,
            node: member.node.0,
            name: self.name.clone(),
            len: self.content.len(),
            mode: self.content.mode(),
            block: BLOCK as u32,
        };
        self.rendezvous
            .say(member.peer, ToReceiver::Welcome(welcome));
        self.members.push(member);
    }

    fn prepared(&mut self, peer: PeerKey, tell: &mut dyn FnMut(SendEvent)) {
        let receivers = self.present() + 1;
        let mut members = self.members.iter_mut();
        if let Some(member) = members.find(|m| m.peer == peer && m.stage == Stage::Preparing) {
            member.stage = Stage::Joining;
            tell(SendEvent::Connected {
                receiver: member.name(),
                address: member.address,
                receivers,
            });
        }
    }

    fn leave(&mut self, peer: PeerKey, tell: &mut dyn FnMut(SendEvent)) {
        let Some(at) = self.members.iter().position(|m| m.peer == peer) else {
            return;
        };
        let gone = self.members.remove(at);
        self.rendezvous.close(peer);
        if gone.stage == Stage::Joining {
            tell(SendEvent::Left {
                receiver: gone.name(),
                receivers: self.present(),
            });
        }
    }

    /// Our address as most receivers see it: datagrams go out there.
    pub fn near(&self) -> Option<IpAddr> {
        let mut counts = BTreeMap::new();
        for member in &self.members {
            *counts.entry(member.local.ip()).or_insert(0) += 1;
        }
        let most = counts.into_iter().max_by_key(|(_, count)| *count);
        most.map(|(ip, _)| ip)
    }

    /// Tells everybody who is still there that the transfer has failed.
    pub fn abort(&self, error: &Error) {
        let (code, reason) = (error.exit_code(), error.to_string());
        self.say_active(&ToReceiver::Aborted { code, reason });
        for member in self.members.iter().filter(|m| m.active()) {
            self.rendezvous.close(member.peer);
        }
    }

    /// Says the same to all who are still there.
    pub fn say_active(&self, message: &ToReceiver) {
        let active = self.members.iter().filter(|m| m.active());
        self.rendezvous.say_all(active.map(|m| m.peer), message);
    }
}

/// Turns somebody away.
pub fn refuse(rendezvous: &Rendezvous, peer: PeerKey, reason: String) {
    rendezvous.say(peer, ToReceiver::Refused { reason });
    rendezvous.close(peer);
}

/// Where to listen, the best first; none: everywhere. An interface that is named is listened at
/// with all its addresses, because receivers may know any of them; with a group, with those of its
/// family alone, because others could not take part.
fn places(choice: &Interface, family: Option<Family>) -> Result<Vec<SocketAddr>, Error> {
    let usage = |e: std::io::Error| Error::Usage(e.to_string());
    let (device, address) = match (choice, family) {
        (Interface::Auto, None) => return Ok(Vec::new()),
        (Interface::Auto, Some(Family::V4)) => {
            return Ok(vec![(Ipv4Addr::UNSPECIFIED, 0).into()]);
        }
        (Interface::Auto, Some(Family::V6)) => {
            return Ok(vec![(Ipv6Addr::UNSPECIFIED, 0).into()]);
        }
        (chosen, family) => udp::choose(chosen, family).map_err(usage)?,
    };
    let mut addresses = vec![address];
    match choice {
        Interface::Name(_) => addresses.extend(device.addresses.iter().filter(|a| **a != address)),
        Interface::Address(given) if *given != address => {
            return Err(Error::Usage(format!(
                "the interface's address {given} and the group are of different families"
            )));
        }
        _ => {}
    }
    addresses.retain(|a| family.is_none_or(|f| Family::of(*a) == f));
    let place = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => SocketAddr::from((ip, 0)),
        IpAddr::V6(ip) if ip.is_unicast_link_local() => {
            SocketAddrV6::new(ip, 0, 0, device.index).into()
        }
        IpAddr::V6(ip) => SocketAddr::from((ip, 0)),
    };
    Ok(addresses.into_iter().map(place).collect())
}

/// Announces where receivers may connect; the error says why that cannot be.
fn announce(
    choice: &Interface,
    places: &[SocketAddr],
    what: &Announcement,
) -> Result<Announcer, String> {
    if !places.is_empty() && !places.iter().any(SocketAddr::is_ipv4) {
        return Err("announcements go by IPv4, and this transfer does not".into());
    }
    let chosen = udp::choose(choice, Some(Family::V4)).map_err(|e| e.to_string())?;
    match chosen.1 {
        IpAddr::V4(address) => {
            Announcer::new(address, chosen.0.index, what).map_err(|e| e.to_string())
        }
        IpAddr::V6(_) => Err("there is no IPv4 address".into()),
    }
}
