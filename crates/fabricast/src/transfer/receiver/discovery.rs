//! How a receiver finds the sender: by the address that it was given, or by announcements.
//!
//! A sender that was found by its announcement may be anybody, and the announcement may be forged.
//! So nothing that this sender does before the start ends the receiver. The receiver ignores its
//! address for a while, tells why, and continues to listen ([`Discovery::give_up`]).

mod ear;
mod trouble;

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};

use self::ear::{Ear, Hears};
use self::trouble::{Trouble, why};
use crate::bootstrap::announce::Offer;
use crate::bootstrap::message::Welcome;
use crate::bootstrap::{self, Control};
use crate::config::{Accept, RecvOptions};
use crate::error::Error;
use crate::setting::{FROM, START_TIMEOUT};
use crate::text::{first_of, spoken};
use crate::transfer::check;
use crate::transfer::events::RecvEvent;
use crate::waker::Waker;

/// The pause before a sender that does not answer is tried again, as a part of the time that the
/// receiver has waited: 1/100, so that the pause adds little to the wait.
const RETRY_PART: u32 = 100;
/// The shortest pause between two attempts to connect.
const RETRY_MIN: Duration = Duration::from_millis(5);
/// The longest pause between two attempts to connect; many receivers may wait long.
const RETRY_MAX: Duration = Duration::from_millis(200);

/// How often the receiver tells that it is still looking for a sender.
const TRYING: Duration = Duration::from_secs(5);
/// When the receiver tells so for the first time.
const TRYING_FIRST: Duration = Duration::from_secs(2);
/// The shortest time between two urgent reports, which anybody on the network can cause.
const AT_ONCE: Duration = Duration::from_secs(1);

/// Looks for the sender, and continues when what it has found is not the sender.
pub struct Discovery<'a> {
    options: &'a RecvOptions,
    deadline: Instant,
    /// Listens for announcements; `None` if the receiver was given an address.
    ear: Option<Ear>,
    began: Instant,
    /// When a trouble was last told.
    told: Instant,
    /// When an urgent trouble was last told.
    alarmed: Option<Instant>,
    trouble: Trouble,
    /// The last urgent trouble of each kind that has not been told yet. They wait here for their
    /// turn, because `trouble` may change meanwhile.
    urgent: VecDeque<Trouble>,
    /// Whether the receiver has told that there are several senders; it tells that once.
    several_told: bool,
    /// The sender that was given up last, and why.
    given_up: Option<Trouble>,
}

impl<'a> Discovery<'a> {
    /// Starts a search that gives up at `deadline`.
    pub fn new(
        options: &'a RecvOptions,
        deadline: Instant,
        tell: &mut dyn FnMut(RecvEvent),
    ) -> Result<Discovery<'a>, Error> {
        let ear = match options.from {
            Some(_) => None,
            None => Some(Ear::new(options)?),
        };
        tell(RecvEvent::Searching {
            from: options.from.clone(),
        });
        if let Some(why) = ear.as_ref().and_then(|ear| ear.deaf()) {
            let text = format!(
                "announcements cannot be heard here ({why}): only a sender that answers queries \
                 is found; name the sender with {FROM} HOST"
            );
            tell(RecvEvent::Notice { text });
        }
        let began = Instant::now();
        Ok(Discovery {
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

    /// The receiver's options.
    pub fn options(&self) -> &'a RecvOptions {
        self.options
    }

    /// Connects to the sender, and waits until it appears or the deadline passes. Without a given
    /// address, also returns what the sender has announced.
    pub fn find(
        &mut self,
        waker: &Waker,
        tell: &mut dyn FnMut(RecvEvent),
    ) -> Result<(Control, Option<Offer>), Error> {
        let is_over = || check(&self.options.interrupt).is_err();
        loop {
            check(&self.options.interrupt)?;
            if Instant::now() >= self.deadline {
                return Err(self.late());
            }
            self.tell(tell);
            let (tried, offer) = match (&self.options.from, &mut self.ear) {
                (Some(from), _) => {
                    let addresses = resolve(from)?;
                    let tried =
                        bootstrap::connect(&addresses, self.deadline, &is_over, waker.clone());
                    let is_refused = |e: &io::Error| e.kind() == io::ErrorKind::ConnectionRefused;
                    if self.options.is_there && tried.as_ref().is_err_and(is_refused) {
                        let text = format!("{from} does not listen any more: it has ended");
                        return Err(Error::PeerLost(text));
                    }
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
                    let tried =
                        bootstrap::connect_found(address, self.deadline, &is_over, waker.clone());
                    (tried.map_err(|e| why(&[address], &e)), Some(offer))
                }
                (None, None) => unreachable!("without a name we listen"),
            };
            match (tried, offer) {
                (Ok(control), offer) => return Ok((control, offer)),
                // The deadline cut this attempt short, so its error says nothing new.
                (Err(_), _) if Instant::now() >= self.deadline => {}
                (Err(why), None) => self.is(Trouble::Unreachable(why)),
                (Err(why), Some(offer)) => self.let_alone(offer, why),
            }
            let pause = (self.began.elapsed() / RETRY_PART).clamp(RETRY_MIN, RETRY_MAX);
            let left = self.deadline.saturating_duration_since(Instant::now());
            thread::sleep(pause.min(left));
        }
    }

    /// Checks that the user accepts what the sender offers over TCP. That may differ from the
    /// announcement, because anybody can announce something in a sender's name. Then the offer must
    /// be one that the options accept.
    pub fn check_offer(&mut self, announced: &Offer, welcome: &Welcome) -> Result<(), Error> {
        let offered = Offer {
            address: announced.address,
            name: welcome.name.clone(),
            len: welcome.len,
            tops: welcome.tops,
        };
        let as_announced = offered.name == announced.name
            && offered.tops == announced.tops
            && announced.len.is_none_or(|len| Some(len) == welcome.len);
        let accepted = match &self.options.accept {
            _ if as_announced => true,
            Accept::Any => true,
            Accept::Named(pattern) => offered.tops == 1 && pattern.matches(&offered.name),
            Accept::Asked(_) | Accept::Nobody => false,
        };
        if accepted {
            return Ok(());
        }
        let text = format!(
            "it offers {} of {} over TCP, which is not what was announced",
            first_of(&offered.name, offered.tops as usize),
            match welcome.len {
                Some(len) => format!("{len} bytes"),
                None => "unknown length".into(),
            }
        );
        // The user is asked again, now about what is really offered.
        if let (Accept::Asked(_), Some(ear)) = (&self.options.accept, &mut self.ear) {
            ear.correct(offered);
        }
        Err(Error::Refused(text))
    }

    /// Gives up a sender that was found, because of this error, and continues to listen.
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

    /// Notes the present trouble, and queues it if it is urgent.
    fn is(&mut self, trouble: Trouble) {
        let several = matches!(trouble, Trouble::Several(_));
        if trouble.is_urgent() && !(several && self.several_told) {
            self.urgent
                .retain(|u| mem::discriminant(u) != mem::discriminant(&trouble));
            self.urgent.push_back(trouble.clone());
        }
        self.trouble = trouble;
    }

    /// Tells the present trouble, if it is time to.
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
            "{what} within {waited} ({START_TIMEOUT}): {trouble}{before}"
        ))
    }
}

/// The addresses of a sender that the user has named: a host with or without a port.
pub fn resolve(from: &str) -> Result<Vec<SocketAddr>, Error> {
    if from.is_empty() {
        return Err(Error::Usage("the sender's name is empty".into()));
    }
    // An IPv6 address must not be parsed as a host and a port.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The reasons that `discovery` tells now.
    fn told(discovery: &mut Discovery<'_>) -> Vec<String> {
        let mut reasons = Vec::new();
        discovery.tell(&mut |event| match event {
            RecvEvent::Trying { reason, .. } => reasons.push(reason),
            other => panic!("{other:?}"),
        });
        reasons
    }

    #[test]
    fn why_a_sender_was_given_up_is_told_even_if_the_trouble_is_another_by_then() {
        let mut options = RecvOptions::new("copy");
        options.from = Some("192.0.2.1".into());
        let deadline = Instant::now() + Duration::from_secs(600);
        let mut discovery = Discovery::new(&options, deadline, &mut |_| ()).unwrap();
        let offer = Offer {
            address: "192.0.2.1:7".parse().unwrap(),
            name: "file".into(),
            len: None,
            tops: 1,
        };
        assert_eq!(told(&mut discovery).len(), 0);
        discovery.give_up(offer.clone(), &Error::Refused("the first".into()));
        let first = told(&mut discovery);
        assert!(first[0].contains("the first"), "{first:?}");
        // It is too soon after the first one.
        discovery.give_up(offer.clone(), &Error::Refused("the second".into()));
        assert_eq!(told(&mut discovery).len(), 0);
        discovery.is(Trouble::Several(vec![offer.clone(), offer.clone()]));
        discovery.is(Trouble::OtherFiles(offer));
        for why in ["the second", "several senders"] {
            discovery.alarmed = Instant::now().checked_sub(AT_ONCE);
            let told = told(&mut discovery);
            assert!(told[0].contains(why), "{told:?}");
        }
        // Several senders are told once.
        discovery.alarmed = Instant::now().checked_sub(AT_ONCE);
        assert_eq!(told(&mut discovery).len(), 0);
    }
}
