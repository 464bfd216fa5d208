//! The senders that a receiver has heard lately.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use super::announcement::{Announcement, EVERY, Offer};
use crate::bootstrap::PORT_MIN;
use crate::bootstrap::message::VERSION;

/// How long a receiver that has heard a first sender waits for others; it asks for them meanwhile.
pub const OTHERS: Duration = Duration::from_millis(40);
/// How long a sender is remembered after it was last heard: three of its announcements are missing.
const GONE: Duration = Duration::from_millis(1500);
/// Senders that are remembered at most.
const SENDERS_MAX: usize = 16;
/// Longest name of a file in bytes.
const NAME_MAX: usize = 255;

const _: () = assert!(GONE.as_millis() == 3 * EVERY.as_millis());

/// The senders that were heard lately, by address. The session number is not the key: anybody can
/// repeat the number that another sender announces, and would take that sender's place.
#[derive(Default)]
pub struct Senders {
    heard: BTreeMap<SocketAddr, (Offer, Instant)>,
    /// Since when at least one sender has been heard without a pause.
    since: Option<Instant>,
}

/// What a [`Listener`](super::Listener) has found.
#[derive(PartialEq, Debug)]
pub enum Found {
    /// No sender.
    Nobody,
    /// At least one sender, and there may be others.
    Unsure,
    /// One sender.
    One(Offer),
    /// Several senders.
    Several(Vec<Offer>),
}

impl Senders {
    /// Takes a datagram from this address, if its offer is `wanted`. With `asks`, the datagram came
    /// to this receiver alone and must answer the query of that number.
    pub fn take(
        &mut self,
        bytes: &[u8],
        from: IpAddr,
        asks: Option<u64>,
        now: Instant,
        wanted: &dyn Fn(&Offer) -> bool,
    ) {
        let Ok(a) = serde_json::from_slice::<Announcement>(bytes) else {
            return;
        };
        if a.fabricast != VERSION
            || a.port < PORT_MIN
            || a.name.len() > NAME_MAX
            || asks.is_some() && a.answers != asks
        {
            return;
        }
        self.expire(now);
        let address = SocketAddr::new(from, a.port);
        let offer = Offer {
            address,
            name: a.name,
            len: a.len,
            tops: 1,
        };
        if !wanted(&offer) {
            return;
        }
        if self.heard.len() >= SENDERS_MAX && !self.heard.contains_key(&address) {
            let oldest = self.heard.iter().min_by_key(|(_, (_, heard))| *heard);
            if let Some(oldest) = oldest.map(|(address, _)| *address) {
                self.heard.remove(&oldest);
            }
        }
        // The sender that was at this address before has ended.
        self.heard.insert(address, (offer, now));
        self.since.get_or_insert(now);
    }

    /// The senders that are there, once others have had time to answer. A sender that has ended, or
    /// that a single forged datagram announced, is forgotten after [`GONE`].
    pub fn found(&mut self, now: Instant) -> Found {
        self.expire(now);
        let sure = self.sure().is_some_and(|at| now >= at);
        let mut all: Vec<Offer> = self.heard.values().map(|(o, _)| o.clone()).collect();
        match all.len() {
            0 => Found::Nobody,
            _ if !sure => Found::Unsure,
            1 => Found::One(all.remove(0)),
            _ => Found::Several(all),
        }
    }

    /// Forgets what the sender at this address has announced.
    pub fn forget(&mut self, address: SocketAddr) {
        self.heard.remove(&address);
    }

    /// Whether there is a sender, or was one within [`GONE`].
    pub fn is_any(&self) -> bool {
        self.since.is_some()
    }

    /// When others have had time to answer; `None` without a first sender.
    pub fn sure(&self) -> Option<Instant> {
        self.since.map(|since| since + OTHERS)
    }

    fn expire(&mut self, now: Instant) {
        self.heard.retain(|_, (_, heard)| now - *heard < GONE);
        if self.heard.is_empty() {
            self.since = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// An announcement for tests; ports are counted from [`PORT_MIN`].
    fn announcement(session: u64, port: u16) -> Announcement {
        Announcement {
            fabricast: VERSION,
            session,
            port: PORT_MIN.saturating_add(port),
            name: session.to_string(),
            len: Some(session),
            answers: None,
        }
    }

    fn offer(session: u64, port: u16) -> Offer {
        Offer {
            address: (Ipv4Addr::LOCALHOST, PORT_MIN + port).into(),
            name: session.to_string(),
            len: Some(session),
            tops: 1,
        }
    }

    /// Hears (milliseconds, session, port) in this order, and looks each 20 ms until `end`. Returns
    /// what was found for certain, with the time at which it was found first.
    fn heard(all: &[(u32, u64, u16)], end: u32) -> Vec<(u32, Found)> {
        let (start, mut senders) = (Instant::now(), Senders::default());
        let mut found: Vec<(u32, Found)> = Vec::new();
        for at in (0..=end).step_by(20) {
            let now = start + at * MS;
            for &(_, session, port) in all.iter().filter(|a| a.0 == at) {
                let bytes = serde_json::to_vec(&announcement(session, port)).unwrap();
                let from = Ipv4Addr::LOCALHOST.into();
                senders.take(&bytes, from, None, now, &|o| o.name != "unwanted");
            }
            let new = senders.found(now);
            let certain = matches!(new, Found::One(_) | Found::Several(_));
            if certain && found.last().is_none_or(|(_, f)| *f != new) {
                found.push((at, new));
            }
        }
        found
    }

    fn every_500(from: u32, to: u32, session: u64, port: u16) -> Vec<(u32, u64, u16)> {
        let times = (from..=to).step_by(500);
        times.map(|at| (at, session, port)).collect()
    }

    #[test]
    fn two_senders_are_told_until_one_remains() {
        let all = [every_500(0, 5000, 1, 1), every_500(20, 2020, 2, 2)].concat();
        let both = Found::Several(vec![offer(1, 1), offer(2, 2)]);
        let found = [(40, both), (3520, Found::One(offer(1, 1)))];
        assert_eq!(heard(&all, 5000), found);
    }

    #[test]
    fn a_sender_that_has_ended_is_forgotten() {
        // The next sender comes at another port or at the same one.
        for (port, since) in [(2, 2000), (1, 800)] {
            let all = [every_500(0, 500, 1, 1), every_500(800, 9000, 2, port)].concat();
            let found = heard(&all, 9000);
            let last = (since, Found::One(offer(2, port)));
            assert_eq!(found.last(), Some(&last), "{found:?}");
        }
        let all = every_500(0, 2000, 1, 1);
        assert_eq!(heard(&all, 3400), [(40, Found::One(offer(1, 1)))]);
        let mut late = every_500(0, 2000, 1, 1);
        late.push((5000, 2, 2));
        // The receiver waits for others again.
        let found = [
            (40, Found::One(offer(1, 1))),
            (5040, Found::One(offer(2, 2))),
        ];
        assert_eq!(heard(&late, 6400), found);
    }

    #[test]
    fn one_forged_datagram_holds_up_and_confuses_nobody() {
        let mut all = every_500(0, 5000, 1, 1);
        all.push((20, 2, 2));
        let found = heard(&all, 5000);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(matches!(found[0], (40, Found::Several(_))));
        assert_eq!(found[1], (1520, Found::One(offer(1, 1))));
    }

    #[test]
    fn who_repeats_the_session_of_another_is_a_second_sender() {
        let all = [every_500(0, 2000, 1, 1), every_500(20, 1020, 1, 2)].concat();
        let both = Found::Several(vec![offer(1, 1), offer(1, 2)]);
        let found = [(40, both), (2520, Found::One(offer(1, 1)))];
        assert_eq!(heard(&all, 3000), found);
    }

    #[test]
    fn many_senders_replace_the_oldest() {
        let mut all: Vec<_> = (2..40).map(|n| (0, n, n as u16)).collect();
        all.extend(every_500(100, 5000, 1, 1));
        let found = heard(&all, 5000);
        let last = found.last().map(|(_, found)| found);
        assert_eq!(last, Some(&Found::One(offer(1, 1))), "{found:?}");
    }

    /// Forged announcements must not take more memory than this.
    #[test]
    fn so_many_senders_are_kept_and_no_more() {
        let (now, mut senders) = (Instant::now(), Senders::default());
        let from = Ipv4Addr::LOCALHOST.into();
        for port in 2000..2100 {
            let bytes = serde_json::to_vec(&announcement(1, port)).unwrap();
            senders.take(&bytes, from, None, now, &|_| true);
        }
        assert_eq!(senders.heard.len(), SENDERS_MAX);
    }

    #[test]
    fn who_is_not_wanted_or_answers_another_query_is_not_heard() {
        let (now, mut senders) = (Instant::now(), Senders::default());
        let from = Ipv4Addr::LOCALHOST.into();
        let mut take = |what: &Announcement, asks, wanted: &dyn Fn(&Offer) -> bool| {
            let bytes = serde_json::to_vec(what).unwrap();
            senders.take(&bytes, from, asks, now, wanted);
            senders.heard.len()
        };
        let mut what = announcement(1, 1);
        assert_eq!(take(&what, None, &|_| false), 0);
        assert_eq!(take(&what, Some(7), &|_| true), 0);
        what.answers = Some(8);
        assert_eq!(take(&what, Some(7), &|_| true), 0);
        what.answers = Some(7);
        what.port = PORT_MIN - 1;
        assert_eq!(take(&what, Some(7), &|_| true), 0);
        what.port = PORT_MIN;
        assert_eq!(take(&what, Some(7), &|o| o.name == "1"), 1);
    }
}
