//! Options of senders and receivers; every option has a default that works.

mod shared_rate;

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;
use std::time::Duration;

pub use crate::bootstrap::announce::Offer;
use fabricast_proto::Scheme;
use fabricast_proto::scheme::FeedbackTopology;

use crate::bootstrap::{self, PreSharedKey, WorkerPlan};
use crate::error::{Error, NetworkError};
use crate::interface::Interface;
use crate::object::{Received, Selection};
use crate::pattern::Pattern;
use crate::setting::{
    DATAGRAM, INJECT_CORRUPTION, INJECT_DELAY, INJECT_LOSS, MAX_RECEIVERS, MAX_WAIT, MIN_RECEIVERS,
    MIN_WAIT, REQUIRED, Wording,
};
use crate::transport::AnyTransport;
use crate::waker::Waker;
pub(crate) use shared_rate::RateShare;
pub use shared_rate::SharedRate;

/// Smallest datagram in bytes. Feedback of any length fits into it, and so does a payload worth its
/// headers. Every IPv4 host takes it.
pub const DATAGRAM_MIN: usize = 512;
/// Largest datagram in bytes: what an IPv4 packet carries after its headers.
pub const DATAGRAM_MAX: usize = 65_507;
/// Default for [`SendOptions::datagram_min`], in bytes: links that carry IPv6 carry packets of 1280
/// bytes. All packets are as small as the smallest receiver's.
pub const ADMITTED_MIN: usize = 1200;
/// Default for [`SendOptions::per_host`].
pub const PER_HOST: usize = 4;
/// Most files that are open at once with P3's protocol: each takes two descriptors of a receiver.
pub const FILES_AT_ONCE_MAX: u16 = 256;
/// Largest share of datagrams that may be dropped or damaged on purpose.
pub const INJECT_MAX: f64 = 0.9;
/// Longest time after which a datagram is read late on purpose.
pub const INJECT_DELAY_MAX: Duration = Duration::from_secs(1);

/// Opens a node's end of a network that is not one of Fabricast's own.
pub trait OpenNetwork: Send + Sync {
    /// Opens the end. `waker` ends its waits ([`Transport::wait`](crate::transport::Transport)).
    fn open(&self, waker: &Waker) -> io::Result<AnyTransport>;
}

/// Which network carries the datagrams.
#[derive(Clone, Default)]
pub enum NetworkKind {
    /// UDP, over IP multicast.
    #[default]
    Udp,
    /// Another one.
    Other(Arc<dyn OpenNetwork>),
}

impl fmt::Debug for NetworkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NetworkKind::Udp => "Udp",
            NetworkKind::Other(_) => "Other",
        })
    }
}

/// Network options of a sender or a receiver.
#[derive(Clone, Debug)]
pub struct NetOptions {
    /// Interface that datagrams leave and enter by. [`Interface::Auto`] chooses the one that the
    /// control connections use.
    pub interface: Interface,
    /// Largest datagram in bytes, from [`DATAGRAM_MIN`] to [`DATAGRAM_MAX`]; by default what the
    /// interfaces' MTU allows.
    pub datagram: Option<usize>,
    /// Whether the kernel may split and join datagrams (segmentation offload).
    pub offload: bool,
    /// Share of datagrams to drop on purpose, each way, from 0 to [`INJECT_MAX`]: for tests.
    pub inject_loss: f64,
    /// Share of received datagrams in which a bit is changed on purpose, from 0 to [`INJECT_MAX`]:
    /// for tests.
    pub inject_corruption: f64,
    /// Longest time after which the transport reads a datagram that it was given, and as long again
    /// until it gives the memory back: for tests, of what depends on a device that reads memory by
    /// itself. `None`: at once.
    pub inject_delay: Option<Duration>,
    /// Rate in bytes per second of an emulated link that all sent datagrams are charged to; see
    /// [`crate::transport::link`]. For the demo.
    pub emulate_link: Option<u64>,
    /// Rewords a message before it is sent to the other end of a transfer; by default the message
    /// stays as it is.
    pub wording: Wording,
}

impl Default for NetOptions {
    fn default() -> NetOptions {
        NetOptions {
            interface: Interface::Auto,
            datagram: None,
            offload: true,
            inject_loss: 0.0,
            inject_corruption: 0.0,
            inject_delay: None,
            emulate_link: None,
            wording: str::to_owned,
        }
    }
}

impl NetOptions {
    /// Checks that the options make sense, whatever the network is like.
    pub fn check(&self) -> Result<(), NetworkError> {
        if let Some(d) = self.datagram
            && !(DATAGRAM_MIN..=DATAGRAM_MAX).contains(&d)
        {
            return Err(NetworkError::Options(format!(
                "a datagram of {d} bytes is none that this protocol can use: choose \
                 {DATAGRAM_MIN} to {DATAGRAM_MAX} ({DATAGRAM})"
            )));
        }
        if let Some(delay) = self.inject_delay.filter(|&delay| delay > INJECT_DELAY_MAX) {
            return Err(NetworkError::Options(format!(
                "{delay:?} is too long for datagrams to be read late on purpose ({INJECT_DELAY}): \
                 choose at most {INJECT_DELAY_MAX:?}, such as 0.5 ms"
            )));
        }
        let faults = [
            (self.inject_loss, "lost", INJECT_LOSS),
            (self.inject_corruption, "changed", INJECT_CORRUPTION),
        ];
        match faults.iter().find(|f| !(0.0..=INJECT_MAX).contains(&f.0)) {
            Some((share, fault, setting)) => Err(NetworkError::Options(format!(
                "{share} is no share of datagrams to be {fault} on purpose ({setting}): choose 0 \
                 to {INJECT_MAX}, such as 0.02, for some must arrive"
            ))),
            None => Ok(()),
        }
    }
}

/// What to do about a receiver that keeps the others waiting beyond the patience.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Slow {
    /// Wait for the receiver, and report that it is slow.
    Wait,
    /// Wait for the receiver and report that it is slow, as long as it sends anything and makes
    /// progress at times. Go on without it, and count it as failed, if it has been silent for three
    /// times the patience, has not joined by then, or has made no progress for six times what
    /// [`Slow::Drop`] grants.
    Alive,
    /// Remove the receiver from the group, so that the others go on at full speed. It gets what it
    /// has missed when they have everything. It is also slow if, for as long as the patience, it is
    /// far behind the fastest, or holds the others back; or if the rate follows it for 0.3 s, and
    /// the others could take more than twice as much. If it
    /// is slow again while it catches up, or the others have everything, the rule is that of
    /// [`Slow::Alive`]. It is given up if it catches up for more than six times the patience and
    /// twenty times as long as the others took, for each receiver that catches up.
    Demote,
    /// Go on without the receiver, which counts as failed. It is slow as with [`Slow::Demote`], but
    /// always for as long as the patience.
    Drop,
}

/// What becomes of receivers that come when the transfer runs already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Late {
    /// They join the group, and get afterwards what they have missed.
    Admit,
    /// They are refused.
    Refuse,
}

/// How the sender reaches receivers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReachRule {
    /// By multicast; by unicast where multicast does not reach a receiver.
    Auto,
    /// By unicast only.
    Unicast,
}

/// When a sender starts the transfer: the rules of udpcast.
#[derive(Clone, Debug)]
pub struct StartRule {
    /// Start when this many receivers are there and [`StartRule::min_wait`] has passed.
    pub min_receivers: usize,
    /// Least time between the first receiver's arrival and a start by [`StartRule::min_receivers`].
    pub min_wait: Duration,
    /// Start with the receivers that are there this long after the first one came, even if they are
    /// few.
    pub max_wait: Option<Duration>,
    /// Start at once when this many receivers are there; no more are admitted.
    pub max_receivers: usize,
    /// Give up if no rule has started the transfer after this long.
    pub timeout: Duration,
    /// Start only when this becomes true, because the user has pressed Enter, or when
    /// [`StartRule::max_receivers`] are there.
    pub by_hand: Option<Arc<AtomicBool>>,
    /// The number of receivers that may still come or are there, which the caller lowers as it
    /// learns that some will not come. Then the sender starts when all of them are there, and at
    /// the timeout, but never with fewer than [`StartRule::min_receivers`]; it gives up as soon as
    /// these cannot come any more. `min_wait`, `max_wait` and `by_hand` have no effect.
    pub expected: Option<Arc<AtomicUsize>>,
}

impl Default for StartRule {
    fn default() -> StartRule {
        StartRule {
            min_receivers: 1,
            min_wait: Duration::ZERO,
            max_wait: None,
            max_receivers: fabricast_proto::limits::MEMBERS_MAX - 1,
            timeout: Duration::from_secs(600),
            by_hand: None,
            expected: None,
        }
    }
}

/// Decision of a start rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Do not start yet.
    Wait,
    /// Start with the receivers that are there.
    Start,
    /// Give up: the timeout has passed.
    GiveUp,
}

impl StartRule {
    /// Refuses rules that can never be met: fewer receivers at most than at least, or a longest
    /// wait below the shortest.
    pub fn check(&self) -> Result<(), Error> {
        if self.max_receivers < self.min_receivers {
            return Err(Error::Usage(format!(
                "at most {} receivers ({MAX_RECEIVERS}) are fewer than at least {} \
                 ({MIN_RECEIVERS})",
                self.max_receivers, self.min_receivers
            )));
        }
        match self.max_wait {
            Some(max) if max < self.min_wait => Err(Error::Usage(format!(
                "the longest wait ({MAX_WAIT}) is below the shortest one ({MIN_WAIT})"
            ))),
            _ => Ok(()),
        }
    }

    /// Decides whether to start. `elapsed`: time since the sender began to listen. `receivers`:
    /// receivers that are there now. `since_first`: time since the first of them came.
    pub fn decide(&self, elapsed: Duration, since_first: Duration, receivers: usize) -> Verdict {
        if let Some(expected) = &self.expected {
            let expected = expected.load(Ordering::Relaxed);
            let is_time = receivers >= expected || elapsed >= self.timeout;
            return match receivers >= self.min_receivers.max(1) {
                true if is_time => Verdict::Start,
                false if is_time || expected < self.min_receivers => Verdict::GiveUp,
                _ => Verdict::Wait,
            };
        }
        let enough = match &self.by_hand {
            Some(pressed) => pressed.load(Ordering::Relaxed),
            None => {
                receivers >= self.min_receivers && since_first >= self.min_wait
                    || self.max_wait.is_some_and(|max| since_first >= max)
            }
        };
        if receivers > 0 && (enough || receivers >= self.max_receivers) {
            Verdict::Start
        } else if elapsed >= self.timeout {
            Verdict::GiveUp
        } else {
            Verdict::Wait
        }
    }
}

/// Options of a sender.
#[derive(Clone, Debug)]
pub struct SendOptions {
    /// Network options.
    pub net: NetOptions,
    /// TCP port of the rendezvous; 0: any free port.
    pub port: u16,
    /// Multicast address of the group; by default a random one of local scope.
    pub group: Option<IpAddr>,
    /// UDP port of the group.
    pub group_port: u16,
    /// Time to live of multicasts: the number of routers that they may pass, plus one.
    pub ttl: u8,
    /// How the sender reaches receivers.
    pub reach: ReachRule,
    /// When to start.
    pub start: StartRule,
    /// Receivers that the sender admits from one address; with IPv6 from one prefix of 64 bits,
    /// unless it is the prefix of the sender's own link.
    pub per_host: usize,
    /// Least size in bytes of the largest datagram that a receiver takes. The sender refuses
    /// smaller ones, because all packets must fit the smallest receiver. If the sender's own
    /// [`NetOptions::datagram`] is smaller, that is the limit.
    pub datagram_min: usize,
    /// Scheme that makes multicast reliable: a name that [`fabricast_proto::Scheme`] parses.
    pub scheme: String,
    /// A fixed rate in bytes per second for everything that is sent, without the pacer; by default
    /// the pacer finds the rate.
    pub rate: Option<u64>,
    /// A fixed rate that several transfers of this process share, in place of `rate`. Not with P3's
    /// protocol.
    pub shared_rate: Option<SharedRate>,
    /// What to do about slow receivers.
    pub slow: Slow,
    /// What to do about slow receivers with these names, instead.
    pub slow_by_name: BTreeMap<String, Slow>,
    /// Names of receivers that must be there at the start, and must have everything at the end.
    /// Empty: all that are admitted must have everything.
    pub required: Vec<String>,
    /// Whether the sender refuses receivers that cannot verify what they have: those that write to
    /// a stream ([`RecvOptions::output`]) or store nothing ([`RecvOptions::discard`]).
    pub verified_only: bool,
    /// What becomes of receivers that come late.
    pub late: Late,
    /// With P3's protocol: the time from the end of a file's multicast until the file is closed for
    /// receivers that lack some of it.
    pub file_timeout: Duration,
    /// With P3's protocol: files that are open at once, 1 to [`FILES_AT_ONCE_MAX`].
    pub files_at_once: u16,
    /// The threads that serve receivers.
    pub workers: WorkerPlan,
    /// How long a receiver may keep the others waiting.
    pub patience: Duration,
    /// Whether to announce the transfer, so that receivers need no address.
    pub announce: bool,
    /// The receivers that are admitted, by name, each with the key that it has to show. A key is
    /// good for one admission. `None`: any receiver is admitted.
    pub keys: Option<BTreeMap<String, PreSharedKey>>,
    /// What is sent of the sources.
    pub selection: Selection,
    /// Whether files are compared: those of the same length before the start, so that those with
    /// the same bytes are sent once; and what all receivers have with the set, so that it is not
    /// sent again.
    pub compares: bool,
    /// The caller sets this to true to give up the transfer.
    pub interrupt: Arc<AtomicBool>,
}

impl Default for SendOptions {
    fn default() -> SendOptions {
        SendOptions {
            net: NetOptions::default(),
            port: bootstrap::PORT,
            group: None,
            group_port: bootstrap::PORT + 1,
            ttl: 1,
            reach: ReachRule::Auto,
            start: StartRule::default(),
            per_host: PER_HOST,
            datagram_min: ADMITTED_MIN,
            scheme: "auto".into(),
            rate: None,
            shared_rate: None,
            slow: Slow::Wait,
            slow_by_name: BTreeMap::new(),
            required: Vec::new(),
            verified_only: false,
            late: Late::Admit,
            file_timeout: Duration::from_secs(60),
            files_at_once: 128,
            workers: WorkerPlan::default(),
            patience: Duration::from_secs(10),
            announce: true,
            keys: None,
            selection: Selection::default(),
            compares: true,
            interrupt: Arc::default(),
        }
    }
}

impl SendOptions {
    /// What to do about a slow receiver with this name.
    pub fn slow_rule(&self, name: &str) -> Slow {
        self.slow_by_name.get(name).copied().unwrap_or(self.slow)
    }

    /// Refuses more required receivers than are admitted.
    pub fn check_required(&self) -> Result<(), Error> {
        let (required, most) = (self.required.len(), self.start.max_receivers);
        match required > most {
            true => Err(Error::Usage(format!(
                "{required} receivers must be there ({REQUIRED}), and at most {most} are admitted \
                 ({MAX_RECEIVERS})"
            ))),
            false => Ok(()),
        }
    }

    /// Whether receivers may come when the transfer runs already. Where receivers report to each
    /// other, none can.
    pub fn admits_late(&self) -> bool {
        let is_direct = |scheme: Scheme| scheme.topology == FeedbackTopology::Direct;
        self.late == Late::Admit && self.scheme.parse().is_ok_and(is_direct)
    }

    /// Whether this rule holds for any receiver.
    pub fn has_slow_rule(&self, rule: Slow) -> bool {
        self.slow == rule || self.slow_by_name.values().any(|named| *named == rule)
    }
}

/// Which of the senders that announce themselves a receiver without a given address takes. Nothing
/// proves an announcement: any host on the network may offer any file.
#[derive(Clone, Debug, Default)]
pub enum Accept {
    /// No sender.
    #[default]
    Nobody,
    /// Any sender, if there is only one.
    Any,
    /// The sender whose file has a matching name, if there is only one.
    Named(Pattern),
    /// The sender that the user chooses.
    Asked(Question),
}

/// A function that asks the user which of some offers to take. It does not wait: the answer comes
/// later. `None`, or an answer whose sending end is dropped, means none of them.
#[derive(Clone)]
pub struct Question(pub Arc<Asks>);

/// The function in [`Question`]. It gets the offers; the answer is an index into them.
pub type Asks = dyn Fn(&[Offer]) -> Receiver<Option<usize>> + Send + Sync;

impl fmt::Debug for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Question")
    }
}

/// Options of a receiver.
#[derive(Clone, Debug)]
pub struct RecvOptions {
    /// Network options.
    pub net: NetOptions,
    /// The sender: host name or address, with or without a port. `None`: listen for announcements.
    pub from: Option<String>,
    /// Whether that sender listens already. Then one that refuses the connection is gone, and the
    /// receiver does not wait for it.
    pub is_there: bool,
    /// Which announced sender the receiver takes, if `from` is `None`.
    pub accept: Accept,
    /// Destination: an existing directory, or the name that the only file or directory of the set
    /// gets.
    pub dest: PathBuf,
    /// Whether the destination is a directory, which is made if it does not exist.
    pub into_directory: bool,
    /// Whether the sender alone writes into the destination, a directory. Then what it sends may
    /// have any names at the top that are not hidden; otherwise only names that do nothing by
    /// themselves.
    pub any_names: bool,
    /// Where the bytes of the only file go in their order, instead of to [`RecvOptions::dest`]: a
    /// pipe, or any open file. The receiver has to be there from the start, and has *received* the
    /// file at the end: what becomes of the bytes, nobody can verify.
    pub output: Option<Arc<File>>,
    /// Whether everything is proven as it arrives and nothing is stored; [`RecvOptions::dest`] has
    /// no meaning then. The receiver has *received* the files at the end, and cannot verify them.
    pub discard: bool,
    /// Whether late receivers may get from this one what it has stored, for as long as the transfer
    /// lasts (spec 5.15). It needs files that it can read again: not together with
    /// [`RecvOptions::output`], [`RecvOptions::discard`] or [`RecvOptions::dry_run`].
    pub serve: bool,
    /// Whether set-user-ID, set-group-ID and sticky bits are kept, devices and FIFOs are made, and
    /// extended attributes are set that only root may set.
    pub privileged: bool,
    /// Whether extended attributes are set.
    pub attributes: bool,
    /// Whether an existing file may be replaced.
    pub overwrite: bool,
    /// Whether what is in directories of the set and not in the set is deleted at the end. With
    /// `overwrite` or `received`, what has another type than an entry of the set is deleted to make
    /// way for it.
    pub delete: bool,
    /// What the same sender has put into the destination before. That may be replaced without
    /// `overwrite`, at the top also by an entry of another type. The receiver finds out by the
    /// journals there what interrupted transfers have put there.
    pub received: Option<Arc<dyn Received>>,
    /// Whether to tell only what would be deleted, and to receive nothing.
    pub dry_run: bool,
    /// The only scheme that the receiver accepts: the sender's name for it, or the beginning of
    /// that name. By default it accepts any scheme, but one in which receivers send to each other
    /// only from a sender that the user has named ([`RecvOptions::from`]).
    pub scheme: Option<String>,
    /// Longest file in bytes that the receiver accepts; by default any that fits.
    pub max_size: Option<u64>,
    /// Bytes that stay free on the destination's file system; by default 1 % of it, and at least
    /// 64 MiB.
    pub reserve: Option<u64>,
    /// Whether to wait until the file is on the disk (fsync).
    pub sync: bool,
    /// Name of the receiver in the sender's table. By default it is the host's name and the
    /// destination; for a sender found by announcement, the host's name and the process.
    pub name: Option<String>,
    /// The key that receiver and sender have to show to each other. `None`: neither shows one.
    pub key: Option<PreSharedKey>,
    /// Give up if the transfer has not started after this long.
    pub start_timeout: Duration,
    /// Give up if nothing has arrived for this long; `None`: never.
    pub receive_timeout: Option<Duration>,
    /// Damage every n-th block after it has arrived, for tests; 0: none.
    pub inject_damage: u64,
    /// The caller sets this to true to give up the transfer.
    pub interrupt: Arc<AtomicBool>,
}

impl RecvOptions {
    /// The default options for this destination.
    pub fn new(dest: impl Into<PathBuf>) -> RecvOptions {
        RecvOptions {
            net: NetOptions::default(),
            from: None,
            is_there: false,
            accept: Accept::Nobody,
            dest: dest.into(),
            into_directory: false,
            any_names: false,
            output: None,
            discard: false,
            serve: false,
            privileged: false,
            attributes: false,
            overwrite: false,
            delete: false,
            received: None,
            dry_run: false,
            scheme: None,
            max_size: None,
            reserve: None,
            sync: true,
            name: None,
            key: None,
            start_timeout: Duration::from_secs(600),
            receive_timeout: Some(Duration::from_secs(600)),
            inject_damage: 0,
            interrupt: Arc::default(),
        }
    }

    /// Whether files are made on a file system.
    pub fn makes_files(&self) -> bool {
        self.output.is_none() && !self.dry_run && !self.discard
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    #[test]
    fn the_start_rules() {
        use Verdict::*;
        let rule = StartRule {
            min_receivers: 3,
            min_wait: S(5),
            max_wait: Some(S(20)),
            max_receivers: 5,
            timeout: S(60),
            by_hand: None,
            expected: None,
        };
        let cases = [
            // elapsed, since the first, receivers
            (S(0), S(0), 0, Wait),
            (S(59), S(0), 0, Wait),
            (S(60), S(0), 0, GiveUp),
            (S(40), S(4), 3, Wait),
            (S(40), S(5), 3, Start),
            (S(40), S(19), 2, Wait),
            (S(40), S(20), 2, Start),
            (S(40), S(20), 0, Wait),
            (S(40), S(0), 5, Start),
            (S(60), S(10), 2, GiveUp),
        ];
        for (elapsed, since, n, verdict) in cases {
            assert_eq!(
                rule.decide(elapsed, since, n),
                verdict,
                "{elapsed:?} {since:?} {n}"
            );
        }
    }

    #[test]
    fn datagrams_have_limits() {
        let net = |datagram| NetOptions {
            datagram,
            ..NetOptions::default()
        };
        for good in [None, Some(DATAGRAM_MIN), Some(1472), Some(DATAGRAM_MAX)] {
            assert!(net(good).check().is_ok(), "{good:?}");
        }
        for bad in [0, 1, 31, DATAGRAM_MIN - 1, DATAGRAM_MAX + 1, usize::MAX] {
            let error = net(Some(bad)).check().unwrap_err();
            assert!(error.to_string().contains("512 to 65507"), "{error}");
        }
    }

    #[test]
    fn some_datagrams_must_arrive() {
        let net = |loss, corruption| NetOptions {
            inject_loss: loss,
            inject_corruption: corruption,
            ..NetOptions::default()
        };
        assert!(net(INJECT_MAX, 0.02).check().is_ok());
        for bad in [-0.1, 0.95, 1.5, f64::NAN] {
            for (net, name) in [
                (net(bad, 0.0), "inject_loss"),
                (net(0.0, bad), "inject_corruption"),
            ] {
                let error = net.check().unwrap_err().to_string();
                assert!(error.contains(name) && error.contains("0.9"), "{error}");
            }
        }
    }

    #[test]
    fn a_start_rule_that_can_never_be_is_refused() {
        assert!(StartRule::default().check().is_ok());
        let few = StartRule {
            min_receivers: 3,
            max_receivers: 2,
            ..StartRule::default()
        };
        assert!(few.check().unwrap_err().to_string().contains(MAX_RECEIVERS));
        let short = StartRule {
            min_wait: S(5),
            max_wait: Some(S(1)),
            ..StartRule::default()
        };
        assert!(short.check().unwrap_err().to_string().contains(MAX_WAIT));
    }

    #[test]
    fn all_that_are_expected_are_awaited() {
        let expected = Arc::new(AtomicUsize::new(5));
        let rule = StartRule {
            min_receivers: 3,
            expected: Some(expected.clone()),
            timeout: S(60),
            ..StartRule::default()
        };
        let decide = |elapsed, receivers| rule.decide(elapsed, S(50), receivers);
        for (receivers, now, late) in [
            (0, Verdict::Wait, Verdict::GiveUp),
            (2, Verdict::Wait, Verdict::GiveUp),
            (3, Verdict::Wait, Verdict::Start),
            (5, Verdict::Start, Verdict::Start),
        ] {
            assert_eq!(decide(S(59), receivers), now);
            assert_eq!(decide(S(60), receivers), late);
        }
        expected.store(3, Ordering::Relaxed);
        assert_eq!(decide(S(1), 2), Verdict::Wait);
        assert_eq!(decide(S(1), 3), Verdict::Start);
        expected.store(2, Ordering::Relaxed);
        assert_eq!(decide(S(1), 2), Verdict::GiveUp);
    }

    #[test]
    fn by_hand_nothing_else_starts_it() {
        let pressed = Arc::new(AtomicBool::new(false));
        let rule = StartRule {
            by_hand: Some(pressed.clone()),
            max_receivers: 5,
            ..StartRule::default()
        };
        assert_eq!(rule.decide(S(99), S(99), 4), Verdict::Wait);
        assert_eq!(rule.decide(S(99), S(99), 5), Verdict::Start);
        pressed.store(true, Ordering::Relaxed);
        assert_eq!(rule.decide(S(99), S(99), 0), Verdict::Wait);
        assert_eq!(rule.decide(S(99), S(99), 1), Verdict::Start);
    }
}
