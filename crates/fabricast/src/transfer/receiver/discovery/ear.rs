//! How a receiver without a given address listens for senders, and asks its user about them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use super::trouble::Trouble;
use crate::bootstrap::announce::{Found, Listener, Offer};
use crate::config::{Accept, Question, RecvOptions};
use crate::error::Error;
use crate::interface::{self, Interface};
use crate::net::random;
use crate::setting::{FROM, START_TIMEOUT};
use crate::text::spoken;
use crate::transfer::{TICK, check};

/// How long a receiver ignores an address after its first failure there. The time doubles with each
/// further failure.
const ALONE_MIN: Duration = Duration::from_secs(2);
/// How long a receiver ignores an address at most.
const ALONE_MAX: Duration = Duration::from_secs(30);
/// The number of addresses that are ignored at most. When there are more, the one whose time ends
/// first is dropped.
const ALONE: usize = 64;

/// What was heard in one call of [`Ear::offer`].
pub enum Hears {
    /// No sender.
    Nobody,
    /// A sender, and there may be others.
    Unsure,
    /// An offer that the options accept.
    Offer(Offer),
    /// Why no offer can be taken.
    Trouble(Trouble),
}

/// Listens for announcements when the receiver was given no address.
pub struct Ear {
    listener: Listener,
    /// The offer that the user has accepted.
    agreed: Option<Offer>,
    /// What a sender offers over TCP that announced something else. The user is asked about it
    /// next.
    corrected: Option<Offer>,
    /// Addresses at which a sender failed: until when each is ignored, and how long that pause is.
    alone: BTreeMap<SocketAddr, (Instant, Duration)>,
}

impl Ear {
    /// Listens on the chosen interfaces.
    pub fn new(options: &RecvOptions) -> Result<Ear, Error> {
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

    /// Why announcements cannot be heard, if they cannot.
    pub fn deaf(&self) -> Option<&str> {
        self.listener.deaf()
    }

    /// Has the user asked about this offer next, because its sender announced something else.
    pub fn correct(&mut self, offer: Offer) {
        self.corrected = Some(offer);
    }

    /// Ignores an address at which a sender failed, unless the user is about to be asked about it.
    pub fn let_alone(&mut self, address: SocketAddr) {
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

    /// Listens for at most one tick, and asks the user if the options say so.
    pub fn offer(&mut self, options: &RecvOptions, deadline: Instant) -> Result<Hears, Error> {
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

    /// Listens for `moment` to senders that `accept` allows and that are not ignored. Also returns
    /// one of the offers that are not wanted, if there are any.
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

    /// Asks the user, and waits for the answer.
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
                    "the question was not answered within {waited} ({START_TIMEOUT})"
                )));
            }
            match answer.recv_timeout(TICK) {
                Ok(Some(chosen)) if chosen < offers.len() => return Ok(offers[chosen].clone()),
                Ok(_) | Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::Refused("you have declined the offer".into()));
                }
                // Keeps listening, so that announcements do not become stale while the user thinks.
                Err(RecvTimeoutError::Timeout) => {
                    self.listen(Duration::ZERO, &options.accept)?;
                }
            }
        }
    }
}

fn listener(choice: &Interface) -> Result<Listener, Error> {
    let fails = |e| {
        Error::io(
            format!("listening for announcements (name the sender with {FROM})"),
            e,
        )
    };
    let indices: Vec<u32> = match choice {
        Interface::Auto => {
            let devices = interface::devices().map_err(fails)?;
            let usable = devices
                .iter()
                .filter(|d| d.up && (d.multicast || d.loopback));
            usable.map(|d| d.index).collect()
        }
        chosen => {
            let usage = |e: io::Error| Error::Usage(e.to_string());
            let (device, address) = interface::choose(chosen, None).map_err(usage)?;
            if address.is_ipv6() {
                return Err(Error::Usage(format!(
                    "a sender is found by IPv4 alone, and {address} on interface {} is IPv6: name \
                     the sender with {FROM}",
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

    /// An address without a sender is tried less and less often, and the number of such addresses
    /// is bounded.
    #[test]
    fn where_a_sender_was_found_in_vain_is_let_alone_ever_longer() {
        let offer = |port: u16| Offer {
            address: (Ipv4Addr::new(192, 0, 2, 1), port).into(),
            name: "file".into(),
            len: None,
            tops: 1,
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
        // The pause of the first address ends last.
        for port in 2..200 {
            ear.let_alone(offer(port).address);
        }
        assert_eq!(ear.alone.len(), ALONE);
        assert!(ear.alone.contains_key(&first));
    }
}
