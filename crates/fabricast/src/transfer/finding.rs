//! The receiver's first steps: is the destination sound, and where is the sender?
//!
//! A sender that was found by its announcement may be anybody, and the announcement may be forged.
//! So nothing that such a sender does before the start ends the receiver: the receiver lets that
//! address alone for a while, tells why, and goes on listening ([`Finder::give_up`]).

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::mem;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::sync::mpsc::RecvTimeoutError;
use std::thread;
use std::time::{Duration, Instant};

use super::events::RecvEvent;
use super::{TICK, check};
use crate::bell::Bell;
use crate::bootstrap::announce::{Found, Listener, Offer};
use crate::bootstrap::message::Welcome;
use crate::bootstrap::{self, Control};
use crate::config::{Accept, Question, RecvOptions};
use crate::error::{Error, spoken};
use crate::net::random;
use crate::text::escaped;
use crate::transport::udp::{self, Interface};

/// How soon a sender that does not answer is tried again: after one part in [`RETRY_PART`] of the
/// time that the receiver has waited for it, so that the pause adds little to the wait, and within
/// these bounds, since many receivers may wait long.
const RETRY_PART: u32 = 100;
const RETRY_MIN: Duration = Duration::from_millis(5);
const RETRY_MAX: Duration = Duration::from_millis(200);

/// How often it is told that a sender is still looked for; the first time sooner.
const TRYING: Duration = Duration::from_secs(5);
const TRYING_FIRST: Duration = Duration::from_secs(2);
/// What is told at once is told no more often than this: anybody can cause it.
const AT_ONCE: Duration = Duration::from_secs(1);

/// How long an address at which a sender was found in vain is let alone: at first, and, as the time
/// doubles with each further failure, at most.
const ALONE_MIN: Duration = Duration::from_secs(2);
const ALONE_MAX: Duration = Duration::from_secs(30);
/// Addresses that are let alone, at most. The one whose time ends first goes when there are more.
const ALONE: usize = 64;

const UNREACHABLE: &str = "is the address right, is there a route, and does a firewall there let \
                           the TCP port in?";

/// What keeps a receiver from its sender.
#[derive(Clone, PartialEq, Debug)]
enum Trouble {
    /// Nobody announces anything.
    Unheard,
    /// The sender that is named has not answered yet.
    Unanswered,
    /// The sender that is named cannot be reached; what was tried and what came of it.
    Unreachable(String),
    /// Only files that are not wanted are announced, such as this one.
    OtherFiles(Offer),
    /// Several senders announce a file that may be taken.
    Several(Vec<Offer>),
    /// A sender was found and given up, for this reason.
    GivenUp(Offer, String),
}

impl Trouble {
    /// Whether somebody should know of it at once.
    fn is_urgent(&self) -> bool {
        matches!(self, Trouble::Several(_) | Trouble::GivenUp(..))
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Unheard => f.write_str(
                "nobody announces a transfer here by IPv4 multicast (one that has started is \
                 announced no longer); name the sender with --from HOST",
            ),
            Trouble::Unanswered => write!(f, "it does not answer; {UNREACHABLE}"),
            Trouble::Unreachable(why) => f.write_str(why),
            Trouble::OtherFiles(offer) => {
                write!(f, "only other files are announced: {}", listed(&[offer]))
            }
            Trouble::Several(offers) => write!(
                f,
                "several senders announce a transfer: {}; choose one with --from HOST, or by the \
                 name of its file with --name PATTERN",
                listed(&offers.iter().collect::<Vec<_>>())
            ),
            Trouble::GivenUp(offer, why) => {
                write!(f, "{} cannot be used: {why}", listed(&[offer]))
            }
        }
    }
}

fn listed(offers: &[&Offer]) -> String {
    let each = offers
        .iter()
        .map(|o| format!("{} ({})", o.address, escaped(&o.name)));
    each.collect::<Vec<_>>().join(", ")
}

/// What can be known to be wrong before anybody is asked.
pub fn check_dest(options: &RecvOptions) -> Result<(), Error> {
    let dest = &options.dest;
    match std::fs::metadata(dest) {
        Ok(meta) if meta.is_dir() => Ok(()),
        Ok(meta) if !meta.is_file() => Err(Error::Usage(format!(
            "{} is neither a file nor a directory; only files can be received yet",
            dest.display()
        ))),
        Ok(_) if !options.overwrite => Err(Error::Exists(dest.clone())),
        Ok(_) => Ok(()),
        Err(_) => {
            let parent = match dest.parent() {
                Some(p) if !p.as_os_str().is_empty() => p,
                _ => Path::new("."),
            };
            let slash = dest.as_os_str().as_encoded_bytes().ends_with(b"/");
            if slash || !parent.is_dir() {
                let missing = if slash { dest } else { parent };
                let what = missing.display();
                return Err(Error::Usage(match missing.exists() {
                    true => format!("{what} is a file, not a directory"),
                    false => format!("there is no directory {what}; make it first"),
                }));
            }
            Ok(())
        }
    }
}

/// Looks for the sender, and goes on when what it has found is none.
pub struct Finder<'a> {
    options: &'a RecvOptions,
    deadline: Instant,
    /// Listens if no address was told.
    ear: Option<Ear>,
    began: Instant,
    /// When the trouble was told last.
    told: Instant,
    /// When the last urgent trouble was told.
    alarmed: Option<Instant>,
    trouble: Trouble,
    /// The last urgent troubles of each kind that have not been told. They wait here for their
    /// turn, for meanwhile `trouble` may become another.
    urgent: VecDeque<Trouble>,
    /// Whether it was told that there are several senders. Once is enough.
    several_told: bool,
    /// The last sender that was given up.
    given_up: Option<Trouble>,
}

impl<'a> Finder<'a> {
    /// One that gives up at `deadline`.
    pub fn new(
        options: &'a RecvOptions,
        deadline: Instant,
        tell: &mut dyn FnMut(RecvEvent),
    ) -> Result<Finder<'a>, Error> {
        let ear = match options.from {
            Some(_) => None,
            None => Some(Ear::new(options)?),
        };
        tell(RecvEvent::Searching {
            from: options.from.clone(),
        });
        if let Some(why) = ear.as_ref().and_then(|ear| ear.listener.deaf()) {
            let text = format!(
                "announcements cannot be heard here ({why}): only a sender that answers queries \
                 is found; name the sender with --from HOST"
            );
            tell(RecvEvent::Notice { text });
        }
        let began = Instant::now();
        Ok(Finder {
            options,
            deadline,
            trouble: match ear {
                Some(_) => Trouble::Unheard,
                None => Trouble::Unanswered,
            },
            ear,
            began,
            told: began,
            alarmed: None,
            urgent: VecDeque::new(),
            several_told: false,
            given_up: None,
        })
    }

    /// What was chosen.
    pub fn options(&self) -> &'a RecvOptions {
        self.options
    }

    /// Connects to the sender, however long it takes to appear. Without an address, also what it
    /// has announced.
    pub fn find(
        &mut self,
        bell: &Bell,
        tell: &mut dyn FnMut(RecvEvent),
    ) -> Result<(Control, Option<Offer>), Error> {
        loop {
            check(&self.options.interrupt)?;
            if Instant::now() >= self.deadline {
                return Err(self.late());
            }
            self.tell(tell);
            let (tried, offer) = match (&self.options.from, &mut self.ear) {
                (Some(from), _) => {
                    let addresses = resolve(from)?;
                    let tried = bootstrap::connect(&addresses, self.deadline, bell.clone());
                    (tried.map_err(|e| why(&addresses, &e)), None)
                }
                (None, Some(ear)) => {
                    let heard = ear.offer(self.options, self.deadline)?;
                    let offer = match heard {
                        Hears::Offer(offer) => offer,
                        Hears::Trouble(trouble) => {
                            self.is(trouble);
                            continue;
                        }
                        Hears::Nobody => {
                            if matches!(self.trouble, Trouble::Several(_)) {
                                self.is(self.given_up.clone().unwrap_or(Trouble::Unheard));
                            }
                            continue;
                        }
                        Hears::Unsure => continue,
                    };
                    let address = offer.address;
                    let tried = bootstrap::connect_found(address, self.deadline, bell.clone());
                    (tried.map_err(|e| why(&[address], &e)), Some(offer))
                }
                (None, None) => unreachable!("without a name we listen"),
            };
            match (tried, offer) {
                (Ok(control), offer) => return Ok((control, offer)),
                // Cut short: it says nothing new.
                (Err(_), _) if Instant::now() >= self.deadline => {}
                (Err(why), None) => self.is(Trouble::Unreachable(why)),
                (Err(why), Some(offer)) => self.let_alone(offer, why),
            }
            let pause = (self.began.elapsed() / RETRY_PART).clamp(RETRY_MIN, RETRY_MAX);
            let left = self.deadline.saturating_duration_since(Instant::now());
            thread::sleep(pause.min(left));
        }
    }

    /// Whether what the sender offers over TCP may be taken. It need not be what was announced, for
    /// anybody can announce something in a sender's name; what was accepted counts.
    pub fn check_offer(&mut self, announced: &Offer, welcome: &Welcome) -> Result<(), Error> {
        let offered = Offer {
            address: announced.address,
            name: welcome.name.clone(),
            len: Some(welcome.len),
        };
        let as_announced =
            offered.name == announced.name && announced.len.is_none_or(|len| len == welcome.len);
        let accepted = match &self.options.accept {
            _ if as_announced => true,
            Accept::Any => true,
            Accept::Named(pattern) => pattern.matches(&offered.name),
            Accept::Asked(_) | Accept::Nobody => false,
        };
        if accepted {
            return Ok(());
        }
        let text = format!(
            "it offers {:?} of {} bytes over TCP, which is not what was announced",
            offered.name, welcome.len
        );
        // Somebody is asked again, about the truth.
        if let (Accept::Asked(_), Some(ear)) = (&self.options.accept, &mut self.ear) {
            ear.corrected = Some(offered);
        }
        Err(Error::Refused(text))
    }

    /// Gives up a sender that was found, because of this error, and goes on listening.
    pub fn give_up(&mut self, offer: Offer, error: &Error) {
        self.let_alone(offer, error.to_string());
    }

    fn let_alone(&mut self, offer: Offer, why: String) {
        if let Some(ear) = &mut self.ear {
            ear.let_alone(offer.address);
        }
        let trouble = Trouble::GivenUp(offer, why);
        self.given_up = Some(trouble.clone());
        self.is(trouble);
    }

    /// From now on this is the matter.
    fn is(&mut self, trouble: Trouble) {
        let several = matches!(trouble, Trouble::Several(_));
        if trouble.is_urgent() && !(several && self.several_told) {
            self.urgent
                .retain(|u| mem::discriminant(u) != mem::discriminant(&trouble));
            self.urgent.push_back(trouble.clone());
        }
        self.trouble = trouble;
    }

    /// Tells what is the matter, if it is time to.
    fn tell(&mut self, tell: &mut dyn FnMut(RecvEvent)) {
        let pause = match self.began == self.told {
            true => TRYING_FIRST,
            false => TRYING,
        };
        let urgent =
            !self.urgent.is_empty() && self.alarmed.is_none_or(|at| at.elapsed() >= AT_ONCE);
        if !urgent && self.told.elapsed() < pause {
            return;
        }
        self.told = Instant::now();
        let urgent = self.urgent.pop_front();
        if urgent.is_some() {
            self.alarmed = Some(self.told);
        }
        let trouble = urgent.as_ref().unwrap_or(&self.trouble);
        self.several_told |= matches!(trouble, Trouble::Several(_));
        tell(RecvEvent::Trying {
            from: self.options.from.clone(),
            seconds: self.began.elapsed().as_secs_f64(),
            reason: trouble.to_string(),
        });
    }

    /// The error at the deadline.
    fn late(&self) -> Error {
        let waited = spoken(self.options.start_timeout);
        let trouble = &self.trouble;
        let what = match (&self.options.from, trouble) {
            (Some(from), _) => format!("could not reach {from}"),
            (None, Trouble::Unheard) => "found no sender".into(),
            (None, _) => "found no sender that can be used".into(),
        };
        let before = match &self.given_up {
            Some(before) if before != trouble => format!("; before that, {before}"),
            _ => String::new(),
        };
        Error::Timeout(format!(
            "{what} within {waited} (--start-timeout): {trouble}{before}"
        ))
    }
}

/// What a moment of listening has brought.
enum Hears {
    Nobody,
    /// Somebody, and there may be others.
    Unsure,
    /// An offer that may be taken.
    Offer(Offer),
    /// Why none may.
    Trouble(Trouble),
}

/// A receiver that was told no address listens.
struct Ear {
    listener: Listener,
    /// What somebody has said yes to.
    agreed: Option<Offer>,
    /// What a sender offers over TCP that had announced something else: to be asked about.
    corrected: Option<Offer>,
    /// Where a sender was found in vain: until when the address is let alone, and for how long that
    /// was.
    alone: BTreeMap<SocketAddr, (Instant, Duration)>,
}

impl Ear {
    fn new(options: &RecvOptions) -> Result<Ear, Error> {
        if matches!(options.accept, Accept::Nobody) {
            return Err(Error::Usage(
                "no sender is named, and none may be taken that announces itself".into(),
            ));
        }
        Ok(Ear {
            listener: listener(&options.net.interface)?,
            agreed: None,
            corrected: None,
            alone: BTreeMap::new(),
        })
    }

    /// A sender was found at this address in vain.
    fn let_alone(&mut self, address: SocketAddr) {
        self.agreed = None;
        if self
            .corrected
            .as_ref()
            .is_some_and(|o| o.address == address)
        {
            return;
        }
        self.listener.forget(address);
        let before = self.alone.get(&address);
        let pause = before.map_or(ALONE_MIN, |(_, pause)| (*pause * 2).min(ALONE_MAX));
        if self.alone.len() >= ALONE && before.is_none() {
            let first = self.alone.iter().min_by_key(|(_, (until, _))| *until);
            if let Some(first) = first.map(|(address, _)| *address) {
                self.alone.remove(&first);
            }
        }
        self.alone.insert(address, (Instant::now() + pause, pause));
    }

    /// Listens for a moment to what there is to take.
    fn offer(&mut self, options: &RecvOptions, deadline: Instant) -> Result<Hears, Error> {
        if let Some(corrected) = self.corrected.take() {
            return self.ask(options, deadline, &[corrected]).map(Hears::Offer);
        }
        let moment = TICK.min(deadline.saturating_duration_since(Instant::now()));
        let (found, other) = self.listen(moment, &options.accept)?;
        let offers = match (found, &options.accept) {
            (Found::Nobody, _) => {
                let other = other.map(Trouble::OtherFiles);
                return Ok(other.map_or(Hears::Nobody, Hears::Trouble));
            }
            (Found::Unsure, _) => return Ok(Hears::Unsure),
            (Found::One(offer), Accept::Asked(_)) => vec![offer],
            (Found::One(offer), _) => return Ok(Hears::Offer(offer)),
            (Found::Several(all), Accept::Asked(_)) => all,
            (Found::Several(all), _) => return Ok(Hears::Trouble(Trouble::Several(all))),
        };
        let agreed = self.agreed.take().filter(|o| offers.contains(o));
        let agreed = match agreed {
            Some(agreed) => agreed,
            None => self.ask(options, deadline, &offers)?,
        };
        self.agreed = Some(agreed.clone());
        Ok(Hears::Offer(agreed))
    }

    /// Listens for a moment to senders that `accept` may take and that are not let alone; one of
    /// the offers that are not wanted, too.
    fn listen(
        &mut self,
        moment: Duration,
        accept: &Accept,
    ) -> Result<(Found, Option<Offer>), Error> {
        let (other, now) = (RefCell::new(None), Instant::now());
        let alone = &self.alone;
        let wanted = |offer: &Offer| match accept {
            _ if alone
                .get(&offer.address)
                .is_some_and(|(until, _)| now < *until) =>
            {
                false
            }
            Accept::Named(pattern) if !pattern.matches(&offer.name) => {
                *other.borrow_mut() = Some(offer.clone());
                false
            }
            _ => true,
        };
        let found = self.listener.listen(moment, &wanted);
        let found = found.map_err(|e| Error::io("listening for announcements", e))?;
        Ok((found, other.take()))
    }

    /// Asks somebody, and waits for the answer.
    fn ask(
        &mut self,
        options: &RecvOptions,
        deadline: Instant,
        offers: &[Offer],
    ) -> Result<Offer, Error> {
        let Accept::Asked(Question(question)) = &options.accept else {
            unreachable!("only then somebody is asked");
        };
        let answer = question(offers);
        loop {
            check(&options.interrupt)?;
            if Instant::now() >= deadline {
                let waited = spoken(options.start_timeout);
                return Err(Error::Timeout(format!(
                    "the question was not answered within {waited} (--start-timeout)"
                )));
            }
            match answer.recv_timeout(TICK) {
                Ok(Some(chosen)) if chosen < offers.len() => return Ok(offers[chosen].clone()),
                Ok(_) | Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::Refused("you have declined the offer".into()));
                }
                // What is announced meanwhile is not to wait until it is stale.
                Err(RecvTimeoutError::Timeout) => {
                    self.listen(Duration::ZERO, &options.accept)?;
                }
            }
        }
    }
}

/// What was tried, what came of it, and what may help.
fn why(addresses: &[SocketAddr], error: &io::Error) -> String {
    let tried: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
    let hint = match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            "is `fabricast send` running there, and does it listen at this address and port?"
        }
        _ => UNREACHABLE,
    };
    format!("{}: {error}; {hint}", tried.join(", "))
}

fn resolve(from: &str) -> Result<Vec<SocketAddr>, Error> {
    if from.is_empty() {
        return Err(Error::Usage("the sender's name is empty".into()));
    }
    // An IPv6 address must not be taken for a host and a port.
    if let Ok(ip) = from.trim_matches(['[', ']']).parse::<IpAddr>() {
        return Ok(vec![(ip, bootstrap::PORT).into()]);
    }
    if let Some((_, port)) = from.rsplit_once(':')
        && port.bytes().all(|b| b.is_ascii_digit())
        && port.parse::<u16>().map_or(true, |port| port == 0)
    {
        return Err(Error::Usage(format!(
            "cannot look up the sender {from}: its port is no number from 1 to 65535"
        )));
    }
    let named = from.to_socket_addrs();
    let plain = || (from.trim_matches(['[', ']']), bootstrap::PORT).to_socket_addrs();
    match named.or_else(|_| plain()) {
        Ok(addresses) => Ok(addresses.collect()),
        Err(e) => Err(Error::Usage(format!(
            "cannot look up the sender {from}: {e}"
        ))),
    }
}

fn listener(choice: &Interface) -> Result<Listener, Error> {
    let fails = |e| {
        Error::io(
            "listening for announcements (name the sender with --from)",
            e,
        )
    };
    let indices: Vec<u32> = match choice {
        Interface::Auto => {
            let devices = udp::devices().map_err(fails)?;
            let usable = devices
                .iter()
                .filter(|d| d.up && (d.multicast || d.loopback));
            usable.map(|d| d.index).collect()
        }
        chosen => {
            let usage = |e: io::Error| Error::Usage(e.to_string());
            let (device, address) = udp::choose(chosen, None).map_err(usage)?;
            if address.is_ipv6() {
                return Err(Error::Usage(format!(
                    "a sender is found by IPv4 alone, and {address} on interface {} is IPv6: name \
                     the sender with --from",
                    device.name
                )));
            }
            vec![device.index]
        }
    };
    Listener::new(&indices, random()?).map_err(fails)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    /// Reasons that `finder` tells now.
    fn told(finder: &mut Finder<'_>) -> Vec<String> {
        let mut reasons = Vec::new();
        finder.tell(&mut |event| match event {
            RecvEvent::Trying { reason, .. } => reasons.push(reason),
            other => panic!("{other:?}"),
        });
        reasons
    }

    /// An address at which there is no sender is tried ever less often, and few are kept in mind.
    #[test]
    fn where_a_sender_was_found_in_vain_is_let_alone_ever_longer() {
        let offer = |port: u16| Offer {
            address: (Ipv4Addr::new(192, 0, 2, 1), port).into(),
            name: "file".into(),
            len: None,
        };
        let mut options = RecvOptions::new("copy");
        options.accept = Accept::Any;
        options.net.interface = Interface::Address(Ipv4Addr::LOCALHOST.into());
        let mut ear = Ear::new(&options).unwrap();
        let first = offer(1).address;
        let pauses = (0..6).map(|_| {
            ear.let_alone(first);
            ear.alone[&first].1.as_secs()
        });
        assert_eq!(pauses.collect::<Vec<_>>(), [2, 4, 8, 16, 30, 30]);
        // The time of this one ends last.
        for port in 2..200 {
            ear.let_alone(offer(port).address);
        }
        assert_eq!(ear.alone.len(), ALONE);
        assert!(ear.alone.contains_key(&first));
    }

    #[test]
    fn why_a_sender_was_given_up_is_told_even_if_the_trouble_is_another_by_then() {
        let mut options = RecvOptions::new("copy");
        options.from = Some("192.0.2.1".into());
        let deadline = Instant::now() + Duration::from_secs(600);
        let mut finder = Finder::new(&options, deadline, &mut |_| ()).unwrap();
        let offer = Offer {
            address: "192.0.2.1:7".parse().unwrap(),
            name: "file".into(),
            len: None,
        };
        assert_eq!(told(&mut finder).len(), 0);
        finder.give_up(offer.clone(), &Error::Refused("the first".into()));
        let first = told(&mut finder);
        assert!(first[0].contains("the first"), "{first:?}");
        // Too soon after the first one.
        finder.give_up(offer.clone(), &Error::Refused("the second".into()));
        assert_eq!(told(&mut finder).len(), 0);
        finder.is(Trouble::Several(vec![offer.clone(), offer.clone()]));
        finder.is(Trouble::OtherFiles(offer));
        for why in ["the second", "several senders"] {
            finder.alarmed = Instant::now().checked_sub(AT_ONCE);
            let told = told(&mut finder);
            assert!(told[0].contains(why), "{told:?}");
        }
        // Once is enough.
        finder.alarmed = Instant::now().checked_sub(AT_ONCE);
        assert_eq!(told(&mut finder).len(), 0);
    }
}
