//! The receiver's first steps: is the destination sound, and where is the sender?

use std::cell::RefCell;
use std::io;
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

/// How soon a sender that does not answer is tried again: often at first, since who starts both
/// ends together wants no pause, then seldom, since many receivers may wait long.
const RETRY_MIN: Duration = Duration::from_millis(20);
const RETRY_MAX: Duration = Duration::from_millis(200);

/// How often it is told that a sender is still looked for; the first time sooner.
const TRYING: Duration = Duration::from_secs(5);
const TRYING_FIRST: Duration = Duration::from_secs(2);
const UNREACHABLE: &str = "is the address right, is there a route, and does a firewall there let \
                           the TCP port in?";
const UNHEARD: &str = "nobody announces a transfer here by IPv4 multicast; name the sender with \
                       --from HOST";
const SEVERAL: &str = "several senders announce a transfer";
const CHOOSE: &str = "choose one with --from HOST, or by the name of its file with --name PATTERN";

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
                return Err(Error::Usage(format!(
                    "there is no directory {}; make it first",
                    missing.display()
                )));
            }
            Ok(())
        }
    }
}

/// Connects to the sender, however long it takes to appear. Without an address, also what it has
/// announced.
pub fn find(
    options: &RecvOptions,
    deadline: Instant,
    bell: &Bell,
    tell: &mut dyn FnMut(RecvEvent),
) -> Result<(Control, Option<Offer>), Error> {
    let mut ear = match options.from {
        Some(_) => None,
        None => Some(Ear::new(options)?),
    };
    tell(RecvEvent::Searching {
        from: options.from.clone(),
    });
    let began = Instant::now();
    let (mut told, mut warned) = (began, false);
    let mut last = match options.from {
        Some(_) => "it does not answer; ".to_string() + UNREACHABLE,
        None => UNHEARD.to_string(),
    };
    loop {
        check(&options.interrupt)?;
        if Instant::now() >= deadline {
            let waited = spoken(options.start_timeout);
            let whom = options.from.as_deref().unwrap_or("any sender");
            return Err(Error::Timeout(format!(
                "could not reach {whom} within {waited} (--start-timeout): {last}"
            )));
        }
        let pause = if began == told { TRYING_FIRST } else { TRYING };
        // That there are several is told at once: somebody has to do something about it.
        let several = !warned && last.starts_with(SEVERAL);
        if told.elapsed() >= pause || several {
            warned |= several;
            told = Instant::now();
            tell(RecvEvent::Trying {
                from: options.from.clone(),
                seconds: began.elapsed().as_secs_f64(),
                reason: last.clone(),
            });
        }
        let (addresses, offer) = match (&options.from, &mut ear) {
            (Some(from), _) => (resolve(from)?, None),
            (None, Some(ear)) => match ear.offer(options, deadline, &mut last)? {
                Some(offer) => (vec![offer.address], Some(offer)),
                None => continue,
            },
            (None, None) => unreachable!("without a name we listen"),
        };
        match bootstrap::connect(&addresses, deadline, bell.clone()) {
            Ok(control) => return Ok((control, offer)),
            Err(_) if Instant::now() >= deadline => {} // cut short: it says nothing new
            Err(e) => last = why(&addresses, &e),
        }
        let pause = (began.elapsed() / 20).clamp(RETRY_MIN, RETRY_MAX);
        thread::sleep(pause.min(deadline.saturating_duration_since(Instant::now())));
    }
}

/// A receiver that was told no address listens.
struct Ear {
    listener: Listener,
    /// What somebody has said yes to.
    agreed: Option<Offer>,
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
        })
    }

    /// Listens for a moment; an offer that may be taken, if there is one. `last` becomes what is
    /// the matter.
    fn offer(
        &mut self,
        options: &RecvOptions,
        deadline: Instant,
        last: &mut String,
    ) -> Result<Option<Offer>, Error> {
        let moment = TICK.min(deadline.saturating_duration_since(Instant::now()));
        let (found, other) = self.listen(moment, &options.accept)?;
        let offers = match (found, &options.accept) {
            (Found::Nobody, _) => {
                match other {
                    Some(other) => *last = format!("only other files are announced: {other}"),
                    None if last.starts_with(SEVERAL) => *last = UNHEARD.to_string(),
                    None => {}
                }
                return Ok(None);
            }
            (Found::Unsure, _) => return Ok(None),
            (Found::One(offer), Accept::Asked(_)) => vec![offer],
            (Found::One(offer), _) => return Ok(Some(offer)),
            (Found::Several(all), Accept::Asked(_)) => all,
            (Found::Several(all), _) => {
                *last = format!("{SEVERAL}: {}; {CHOOSE}", listed(&all));
                return Ok(None);
            }
        };
        if self.agreed.as_ref().is_none_or(|o| !offers.contains(o)) {
            self.agreed = Some(self.ask(options, deadline, &offers)?);
        }
        Ok(self.agreed.clone())
    }

    /// Listens for a moment to senders that `accept` may take; one of the others, too.
    fn listen(
        &mut self,
        moment: Duration,
        accept: &Accept,
    ) -> Result<(Found, Option<String>), Error> {
        let other = RefCell::new(None);
        let wanted = |offer: &Offer| match accept {
            Accept::Named(pattern) if !pattern.matches(&offer.name) => {
                *other.borrow_mut() = Some(listed(std::slice::from_ref(offer)));
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
                    return Err(Error::Refused("no offer was taken".into()));
                }
                // What is announced meanwhile is not to wait until it is stale.
                Err(RecvTimeoutError::Timeout) => {
                    self.listen(Duration::ZERO, &options.accept)?;
                }
            }
        }
    }
}

fn listed(offers: &[Offer]) -> String {
    let each = offers
        .iter()
        .map(|o| format!("{} ({})", o.address, escaped(&o.name)));
    each.collect::<Vec<_>>().join(", ")
}

/// Whether the sender offers over TCP what it has announced, and what was accepted.
pub fn check_offer(announced: &Offer, welcome: &Welcome) -> Result<(), Error> {
    let name = &welcome.name;
    if *name == announced.name && announced.len.is_none_or(|len| len == welcome.len) {
        return Ok(());
    }
    Err(Error::Refused(format!(
        "{} offers another file than the one that it has announced: {name:?} of {} bytes instead \
         of {:?}",
        announced.address, welcome.len, announced.name
    )))
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
    // An IPv6 address must not be taken for a host and a port.
    if let Ok(ip) = from.trim_matches(['[', ']']).parse::<IpAddr>() {
        return Ok(vec![(ip, bootstrap::PORT).into()]);
    }
    if let Some((_, port)) = from.rsplit_once(':')
        && port.bytes().all(|b| b.is_ascii_digit())
        && port.parse::<u16>().is_err()
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
