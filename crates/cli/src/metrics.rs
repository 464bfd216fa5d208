//! Metrics of commands that are left running, as Prometheus reads them.

mod server;

use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::time::{SystemTime, UNIX_EPOCH};

pub use self::server::MetricsServer;
use crate::output::Output;
use crate::sending::notice;
use fabricast::feed::Counts;
use fabricast::transfer::{RecvReport, SendReport, State};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

/// How something ended.
#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct Ended {
    result: &'static str,
}

/// A state that something is in.
#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct In {
    state: &'static str,
}

/// How a transfer may end.
const RESULTS: [&str; 3] = ["success", "partial", "failure"];
/// How a hook may end while the receiver goes on.
const HOOKS: [&str; 4] = ["success", "failure", "timeout", "not_started"];
/// How the part of a receiver may end.
const STATES: [State; 6] = [
    State::Verified,
    State::Received,
    State::Failed,
    State::Lost,
    State::Dropped,
    State::Refused,
];

/// Counts nothing yet of what ends so. Prometheus sees the first event only if there was a counter
/// before it.
fn begin(counters: &Family<Ended, Counter>, results: &[&'static str]) {
    for result in results {
        drop(counters.get_or_create(&Ended { result }));
    }
}

/// A gauge of numbers that are not negative.
type Level = Gauge<u64, AtomicU64>;

/// What both ends count.
#[derive(Default)]
struct Both {
    publications: Family<Ended, Counter>,
    last_success: Level,
    entries: Level,
    bytes: Level,
}

impl Both {
    fn register(&self, to: &mut Registry) {
        begin(&self.publications, &RESULTS);
        to.register(
            "publications",
            "Transfers that have ended, by how they ended",
            self.publications.clone(),
        );
        to.register_with_unit(
            "last_success_timestamp",
            "Time of the last transfer that succeeded, since 1970; 0 for none",
            Unit::Seconds,
            self.last_success.clone(),
        );
        to.register(
            "feed_entries",
            "Files and directories in the feed's catalogue",
            self.entries.clone(),
        );
        to.register_with_unit(
            "feed",
            "Length of everything in the feed's catalogue",
            Unit::Bytes,
            self.bytes.clone(),
        );
    }

    fn ended(&self, result: &'static str) {
        self.publications.get_or_create(&Ended { result }).inc();
        if result == "success" {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            self.last_success.set(now.unwrap_or_default().as_secs());
        }
    }
}

/// What a feed counts.
#[derive(Default)]
pub struct FeedMetrics {
    both: Both,
    followers: Family<In, Level>,
    receivers: Family<In, Counter>,
    published_entries: Counter,
    published_bytes: Counter,
    wire_bytes: Counter,
    repairs: Counter,
}

impl FeedMetrics {
    /// A registry that shows these metrics.
    pub fn registry(&self) -> Registry {
        let mut to = Registry::with_prefix("fabricast");
        self.both.register(&mut to);
        self.follow(Counts::default());
        for state in STATES.map(word) {
            drop(self.receivers.get_or_create(&In { state }));
        }
        to.register(
            "followers",
            "Connected followers, by what they do",
            self.followers.clone(),
        );
        to.register(
            "receivers",
            "Receivers of all transfers, by how their part ended",
            self.receivers.clone(),
        );
        to.register(
            "published_entries",
            "Files and directories that were sent to all who wanted them",
            self.published_entries.clone(),
        );
        to.register_with_unit(
            "published",
            "Length of what was sent to all who wanted it",
            Unit::Bytes,
            self.published_bytes.clone(),
        );
        to.register_with_unit(
            "wire",
            "Sent with Ethernet, IP and UDP headers, repairs included",
            Unit::Bytes,
            self.wire_bytes.clone(),
        );
        to.register(
            "repairs",
            "Data packets that were sent again",
            self.repairs.clone(),
        );
        to
    }

    /// What the feed offers now.
    pub fn offers(&self, entries: usize, bytes: u64) {
        self.both.entries.set(entries as u64);
        self.both.bytes.set(bytes);
    }

    /// How many followers are in each state.
    pub fn follow(&self, followers: Counts) {
        let states = [
            ("current", followers.current),
            ("waiting", followers.waiting),
            ("receiving", followers.receiving),
        ];
        for (state, count) in states {
            let gauge = self.followers.get_or_create(&In { state });
            gauge.set(count as u64);
        }
    }

    /// A transfer of this many entries has ended.
    pub fn ended(&self, entries: usize, report: Option<&SendReport>) {
        let Some(report) = report else {
            return self.both.ended("failure");
        };
        for receiver in report.receivers.iter().chain(&report.refused) {
            let state = word(receiver.state);
            self.receivers.get_or_create(&In { state }).inc();
        }
        let traffic = &report.traffic;
        self.wire_bytes.inc_by(traffic.wire_bytes);
        self.repairs
            .inc_by(traffic.repairs_multicast + traffic.repairs_unicast);
        let complete = report.complete();
        match report.exit_code() == 0 && complete > 0 {
            true => {
                self.published_entries.inc_by(entries as u64);
                self.published_bytes.inc_by(report.len.unwrap_or(0));
                self.both.ended("success");
            }
            false if complete > 0 => self.both.ended("partial"),
            false => self.both.ended("failure"),
        }
    }
}

/// How the part of a receiver ended, in a word.
fn word(state: State) -> &'static str {
    match state {
        State::Verified => "verified",
        State::Received => "received",
        State::Failed => "failed",
        State::Lost => "lost",
        State::Dropped => "dropped",
        State::Refused => "refused",
    }
}

/// What a follower counts.
#[derive(Default)]
pub struct FollowMetrics {
    both: Both,
    connected: Level,
    wanted: Level,
    received_entries: Counter,
    received_bytes: Counter,
    removed_entries: Counter,
    packets: Counter,
    duplicates: Counter,
    mended_bytes: Counter,
    hooks: Family<Ended, Counter>,
}

impl FollowMetrics {
    /// A registry that shows these metrics.
    pub fn registry(&self) -> Registry {
        let mut to = Registry::with_prefix("fabricast");
        self.both.register(&mut to);
        to.register(
            "connected",
            "1 while the feed is there, else 0",
            self.connected.clone(),
        );
        to.register(
            "wanted_entries",
            "Files and directories of the feed that are not here and have to come",
            self.wanted.clone(),
        );
        to.register(
            "received_entries",
            "Files and directories that were received, proven and stored",
            self.received_entries.clone(),
        );
        to.register_with_unit(
            "received",
            "Length of what was received, proven and stored",
            Unit::Bytes,
            self.received_bytes.clone(),
        );
        to.register(
            "removed_entries",
            "Files and directories that were removed because they were old",
            self.removed_entries.clone(),
        );
        to.register(
            "received_packets",
            "Data packets that were received",
            self.packets.clone(),
        );
        to.register(
            "duplicate_packets",
            "Data packets that were received in vain",
            self.duplicates.clone(),
        );
        to.register_with_unit(
            "mended",
            "Fetched again by TCP, because blocks were damaged",
            Unit::Bytes,
            self.mended_bytes.clone(),
        );
        begin(&self.hooks, &HOOKS);
        to.register("hooks", "Hooks, by how they ended", self.hooks.clone());
        to
    }

    /// Whether the feed is there.
    pub fn connected(&self, is_connected: bool) {
        self.connected.set(is_connected.into());
    }

    /// What the feed offers now, and how much of it is wanted.
    pub fn offered(&self, entries: usize, bytes: u64, wanted: usize) {
        self.both.entries.set(entries as u64);
        self.both.bytes.set(bytes);
        self.wanted.set(wanted as u64);
    }

    /// A transfer has ended in which this many entries were received.
    pub fn ended(&self, entries: usize, report: Option<&RecvReport>) {
        let Some(report) = report else {
            return self.both.ended("failure");
        };
        let counts = &report.statistics;
        self.received_entries.inc_by(entries as u64);
        let came = report.len.saturating_sub(counts.bytes_before());
        self.received_bytes.inc_by(came);
        self.packets.inc_by(counts.received);
        self.duplicates.inc_by(counts.duplicates);
        self.mended_bytes.inc_by(counts.mended_bytes);
        self.both.ended(match report.is_whole() {
            true => "success",
            false => "partial",
        });
    }

    /// An entry was removed.
    pub fn removed(&self) {
        self.removed_entries.inc();
    }

    /// A hook has ended.
    pub fn hook(&self, result: &'static str) {
        self.hooks.get_or_create(&Ended { result }).inc();
    }
}

/// Tells the user where the metrics are, and who can read them.
pub fn say_where(out: &Output, address: SocketAddr) {
    out.say(&format!("Metrics: http://{address}/metrics"));
    if !address.ip().is_loopback() {
        let text = format!("any host that reaches {address} can read the metrics");
        notice(text, out);
    }
}
