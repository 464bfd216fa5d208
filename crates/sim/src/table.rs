//! Figures of the protocol's costs and speed under stated conditions.
//!
//! All times are simulated times on modelled links: they show the protocol's own behaviour and say
//! nothing about a processor. A line whose bound an issue or the specification demands also says
//! whether the bound holds.

use std::io::{self, Write};
use std::time::Duration;

use fabricast::proto::Time;

use crate::cluster::{Cluster, Failure, Outcome};
use crate::fault::{Burst, LinkFaults, RateChange};
use crate::scenario::Scenario;
use crate::skew;
use crate::topology::{LinkSpec, Topology};
use crate::trace::Trace;

/// Packets of a run, and the bound that they must keep.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PacketCount {
    /// Number of receivers.
    pub receivers: u64,
    /// Data packets of the object.
    pub data: u64,
    /// Datagrams that all hosts sent.
    pub total: u64,
    /// Feedback datagrams among `total`.
    pub feedback: u64,
    /// Data packets that were retransmitted.
    pub repairs: u64,
    /// Bound on `total`: 1.5 × (data + one feedback per receiver per 64 data packets).
    pub bound: u64,
}

impl PacketCount {
    /// Whether the bound is kept.
    pub fn holds(&self) -> bool {
        self.total <= self.bound
    }
}

/// Counts the packets of one object of `data` packets to `receivers` receivers. The links reorder
/// but lose nothing.
pub fn packet_count(receivers: usize, data: u64) -> Result<PacketCount, Failure> {
    let mut s = Scenario::bulk(receivers + 1, data * 1440, 1440);
    s.topology = Topology::two_level(32, LinkSpec::GIGABIT, LinkSpec::GIGABIT);
    s.faults.down = LinkFaults {
        reorder: 0.2,
        late_max: Duration::from_micros(200),
        ..LinkFaults::NONE
    };
    s.faults.heal_at = Duration::from_secs(3600);
    s.judged = receivers <= 256;
    let o = Cluster::new(&s, Trace::silent()).run()?;
    let (receivers, root) = (receivers as u64, &o.counters[0]);
    Ok(PacketCount {
        receivers,
        data,
        total: o.sent.iter().sum(),
        feedback: o.counters.iter().map(|c| c.feedback_sent).sum(),
        repairs: root.repairs_multicast + root.repairs_unicast,
        bound: (data + receivers * data.div_ceil(64)) * 3 / 2,
    })
}

/// A link as the benchmarks define it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LinkKind {
    /// Its name.
    pub name: &'static str,
    /// Rate in bytes per second.
    pub rate: u64,
    /// Largest IP packet in bytes.
    pub mtu: u32,
}

/// The two links of the benchmarks.
pub const LINKS: [LinkKind; 2] = [
    LinkKind {
        name: "200 Mbit/s, MTU 1500",
        rate: 25_000_000,
        mtu: 1500,
    },
    LinkKind {
        name: "1 Gbit/s, MTU 9000",
        rate: 125_000_000,
        mtu: 9000,
    },
];

/// Bytes of the IPv4 and UDP headers.
const IP_UDP: u32 = 28;
/// Bytes of an Ethernet header, without FCS.
const ETHERNET: u32 = 14;

impl LinkKind {
    /// Payload of a data packet that fills the MTU.
    pub fn payload_size(&self) -> u32 {
        self.mtu - IP_UDP - fabricast::proto::wire::DATA_OVERHEAD as u32
    }

    /// The most payload bytes per second that full-sized UDP datagrams can carry over IPv4, in
    /// Ethernet frames without FCS. (Our own header of each packet is not subtracted: it is a cost
    /// like any other.)
    pub fn goodput_max(&self) -> f64 {
        self.rate as f64 * f64::from(self.mtu - IP_UDP) / f64::from(self.mtu + ETHERNET)
    }

    fn spec(&self) -> LinkSpec {
        LinkSpec {
            rate: self.rate,
            delay: Duration::from_micros(50),
            queue: 200 * 1024,
        }
    }

    /// A scenario of one object that takes `seconds` of link time, to `receivers`.
    pub fn scenario(&self, receivers: usize, seconds: f64) -> Scenario {
        let len = (self.goodput_max() * seconds) as u64;
        let mut s = Scenario::bulk(receivers + 1, len, self.payload_size());
        s.topology = Topology::single(self.spec());
        s.overhead = u64::from(IP_UDP + ETHERNET);
        s.receive_buffer = 4 << 20;
        s.events_max = u64::MAX;
        s.prove = Some(Duration::from_secs(1));
        s
    }
}

/// Result of a transfer.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Transfer {
    /// When the last receiver had everything.
    pub time: Time,
    /// Payload per second as a share of what the link carries.
    pub share: f64,
    /// The root's bytes on the wire (Ethernet, without FCS) as a multiple of the payload.
    pub root_bytes: f64,
    /// Data packets that were retransmitted, as a share of all.
    pub repairs: f64,
    /// Feedback per data packet and receiver.
    pub feedback: f64,
}

impl Transfer {
    /// Whether the transfer keeps the promises for this loss: goodput (for 0, 1 and 5 %,
    /// independent or in bursts), and the root's bytes at an MTU of 1500.
    pub fn holds(&self, loss: f64, bursty: bool) -> bool {
        let (share, root_bytes) = match (loss, bursty) {
            (l, _) if l <= 0.0 => (0.95, 1.06),
            (l, false) if l <= 0.01 => (0.93, 1.10),
            (l, true) if l <= 0.01 => (0.88, 1.15),
            (_, false) => (0.85, 1.17),
            (_, true) => (0.75, 1.3),
        };
        self.share >= share && self.root_bytes <= root_bytes
    }
}

fn transfer(s: &Scenario, o: &Outcome, link: &LinkKind) -> Transfer {
    let bytes = s.streams[0].lens[0] as f64;
    let receivers = (s.hosts - 1) as f64;
    let time = o.host_done_at[1..].iter().max().copied();
    let time = time.unwrap_or(Time::ZERO);
    let root = &o.counters[0];
    let data = (root.data + root.data_unicast).max(1) as f64;
    let feedback: u64 = o.counters.iter().map(|c| c.feedback_sent).sum();
    Transfer {
        time,
        share: bytes / (time.0 as f64 / 1e9) / link.goodput_max(),
        root_bytes: o.sent_bytes[0] as f64 / bytes,
        repairs: (root.repairs_multicast + root.repairs_unicast) as f64 / data,
        feedback: feedback as f64 / data / receivers,
    }
}

/// Sends one object of `seconds` of link time to `receivers`. `loss` is the loss of every datagram,
/// data or feedback, on the link into its receiver; in bursts of ten if `bursty`.
pub fn goodput(
    link: &LinkKind,
    receivers: usize,
    loss: f64,
    bursty: bool,
    seconds: f64,
) -> Result<Transfer, Failure> {
    let mut s = link.scenario(receivers, seconds);
    let mut faults = LinkFaults::uniform(loss);
    if bursty && loss > 0.0 {
        faults.loss = 0.0;
        faults.burst = Some(Burst {
            enter: 0.1 * loss / (1.0 - loss),
            leave: 0.1,
            loss: 1.0,
        });
    }
    s.faults.down = faults;
    s.faults.heal_at = Duration::from_secs(3600);
    let o = Cluster::new(&s, Trace::silent()).run()?;
    Ok(transfer(&s, &o, link))
}

/// How the pacer follows a link.
#[derive(Clone, PartialEq, Debug)]
pub struct Convergence {
    /// Time from the first data packet until the link is used to 90 % over a tenth of a second.
    pub found: Option<Duration>,
    /// Time from the step until the rate stays within a tenth of the new link's rate.
    pub followed: Option<Duration>,
    /// Share of the data packets that queues dropped in the second after the step.
    pub lost_in_step: f64,
    /// Share of the data packets that queues dropped later than a second after the step.
    pub lost_later: f64,
    /// Share of the link used before the step, from half a second on.
    pub share_before: f64,
    /// Share of the link used from one second after the step to the end.
    pub share_after: f64,
}

impl Convergence {
    /// Whether the pacer found and followed the rate within a second, and less than 5 % was dropped
    /// later.
    pub fn holds(&self) -> bool {
        let soon = |d: Option<Duration>| d.is_some_and(|d| d <= Duration::from_secs(1));
        soon(self.found) && soon(self.followed) && self.lost_later < 0.05
    }
}

/// Time between two samples of the network.
const LOOK: Duration = Duration::from_millis(20);

/// 1 Gbit/s, in bytes per second.
pub const FAST: u64 = 125_000_000;
/// 200 Mbit/s, in bytes per second.
pub const SLOW: u64 = 25_000_000;

/// Runs four seconds with every receiver's cable at `before`, then four at `after` (bytes per
/// second).
pub fn step(before: u64, after: u64) -> Result<Convergence, Failure> {
    let link = LinkKind {
        rate: FAST,
        mtu: 1500,
        ..LINKS[0]
    };
    let seconds = 4.0 * (before + after) as f64 / FAST as f64;
    let mut s = link.scenario(8, seconds);
    let at = Duration::from_secs(4);
    s.faults.rates = (1..s.hosts)
        .flat_map(|host| {
            let change = |at, rate| RateChange { host, at, rate };
            [change(Duration::ZERO, before), change(at, after)]
        })
        .collect();
    // Samples: time, bytes into host 1, packets into host 1, packets that its queue dropped.
    let mut looks: Vec<(Time, u64, u64, u64)> = Vec::new();
    let mut next = Time::ZERO;
    {
        let mut cluster = Cluster::new(&s, Trace::silent());
        cluster.watch(|view| {
            if view.now() >= next {
                let down = view.fabric().stats(view.fabric().downlink(1));
                looks.push((view.now(), down.bytes, down.packets, down.overflowed));
                next = view.now() + LOOK;
            }
        });
        cluster.run()?;
    }
    let done = looks
        .iter()
        .rposition(|l| l.1 + 20_000 < looks[looks.len() - 1].1);
    looks.truncate(done.map_or(0, |d| d + 2));
    let step = Time(at.as_nanos() as u64);
    let between = |from: Time, to: Time| {
        let inside = |l: &&(Time, u64, u64, u64)| l.0 >= from && l.0 <= to;
        let mut it = looks.iter().filter(inside);
        match (it.next(), it.next_back()) {
            (Some(a), Some(b)) if b.0 > a.0 => {
                let bytes_per_s = (b.1 - a.1) as f64 / b.0.since(a.0).as_secs_f64();
                let (came, lost) = ((b.2 - a.2) as f64, (b.3 - a.3) as f64);
                (bytes_per_s, lost / (came + lost).max(1.0))
            }
            _ => (0.0, 0.0),
        }
    };
    let wide = |t: Time| between(t, t + LOOK * 6).0;
    let first = looks.iter().find(|l| l.1 > 10_000).map(|l| l.0);
    let found = looks
        .iter()
        .map(|l| l.0)
        .find(|&t| wide(t) >= 0.9 * before as f64)
        .zip(first)
        .map(|(t, first)| t.since(first));
    // The offered rate is what the root sends towards the receivers: arrivals and drops.
    let offered = |t: Time| {
        let (rate, lost) = between(t, t + LOOK * 6);
        rate / (1.0 - lost).max(0.01)
    };
    let fits = |t: Time| (0.9..=1.1).contains(&(offered(t) / after as f64));
    let end = looks.last().map_or(Time::ZERO, |l| l.0);
    let followed = looks
        .iter()
        .map(|l| l.0)
        .filter(|&t| t >= step && t + LOOK * 7 < end)
        .collect::<Vec<_>>();
    let last_bad = followed.iter().rposition(|&t| !fits(t));
    let followed = match last_bad {
        None => Some(Duration::ZERO),
        Some(i) => followed.get(i + 1).map(|t| t.since(step)),
    };
    let second = Duration::from_secs(1);
    let (reached, lost_later) = between(step + second, end);
    let half = Time(500_000_000);
    Ok(Convergence {
        found,
        followed,
        lost_in_step: between(step, step + second).1,
        lost_later,
        share_before: between(half, step).0 / before as f64,
        share_after: reached / after as f64,
    })
}

/// Costs of a late poster for the other receivers.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LatePoster {
    /// When the other receivers were done, with the late poster.
    pub others: Time,
    /// When the other receivers are done if nobody is late.
    pub undisturbed: Time,
    /// When the late receiver was done.
    pub late: Time,
    /// Data packets that were retransmitted before the late receiver was ready.
    pub repairs_before: u64,
}

/// Runs a transfer to eight receivers, of which one posts after twice the time that an undisturbed
/// transfer takes.
pub fn late_poster() -> Result<LatePoster, Failure> {
    let link = &LINKS[0];
    let s = link.scenario(8, 0.5);
    let o = Cluster::new(&s, Trace::silent()).run()?;
    let others = |o: &Outcome| o.host_done_at[1..8].iter().max().copied();
    let undisturbed = others(&o).unwrap_or_default();
    let mut late = s.clone();
    let ready_at = Duration::from_nanos(undisturbed.0) * 2;
    late.streams[0].posting.late.push((8, ready_at));
    let mut repairs_before = 0;
    let ready_at = Time(ready_at.as_nanos() as u64);
    let o = {
        let mut cluster = Cluster::new(&late, Trace::silent());
        cluster.watch(|view| {
            if view.now() < ready_at {
                let c = view.node(0).counters();
                repairs_before = c.repairs_multicast + c.repairs_unicast + c.data_unicast;
            }
        });
        cluster.run()?
    };
    Ok(LatePoster {
        others: others(&o).unwrap_or_default(),
        undisturbed,
        late: o.host_done_at[8],
        repairs_before,
    })
}

fn ms(d: Option<Duration>) -> String {
    d.map_or("never".into(), |d| format!("{} ms", d.as_millis()))
}

fn verdict(good: bool) -> &'static str {
    if good { "holds" } else { "DOES NOT HOLD" }
}

fn bad(failure: &Failure) -> io::Error {
    io::Error::other(failure.to_string())
}

/// Writes all figures as they come, with longer transfers if `full`. Returns whether every bound
/// holds. An error comes from the writer, or from a run that failed.
pub fn table(full: bool, out: &mut dyn Write) -> io::Result<bool> {
    let seconds = if full { 8.0 } else { 2.0 };
    let mut all = packets_of_one_object(full, out)?;
    all &= goodput_by_loss(seconds, out)?;
    all &= steps_of_the_rate(out)?;
    all &= one_posts_late(out)?;
    all &= false_repairs_by_scheme(out)?;
    Ok(all)
}

/// Writes the packets that an object costs; groups of more than 256 receivers only if `full`.
fn packets_of_one_object(full: bool, out: &mut dyn Write) -> io::Result<bool> {
    let mut all = true;
    writeln!(
        out,
        "Packets of one object; reordering (20 % by up to 200 µs), no loss\n\
         {:>9} {:>7} {:>9} {:>8} {:>9} {:>9}",
        "receivers", "data", "feedback", "repairs", "total", "bound"
    )?;
    for (receivers, data) in [(8, 4096), (64, 4096), (256, 4096), (1024, 1024)] {
        if !full && receivers > 256 {
            continue;
        }
        let c = packet_count(receivers, data).map_err(|f| bad(&f))?;
        all &= c.holds();
        writeln!(
            out,
            "{:>9} {:>7} {:>9} {:>8} {:>9} {:>9} {}",
            c.receivers,
            c.data,
            c.feedback,
            c.repairs,
            c.total,
            c.bound,
            verdict(c.holds())
        )?;
    }
    Ok(all)
}

/// Writes the goodput of each link by loss and by the number of receivers.
fn goodput_by_loss(seconds: f64, out: &mut dyn Write) -> io::Result<bool> {
    let mut all = true;
    writeln!(
        out,
        "\nOne object of {seconds} s of link time to 8 receivers, loss on every datagram\n\
         {:<22} {:>8} {:>9} {:>9} {:>8} {:>11} {:>8}",
        "link", "loss", "time", "of link", "root's", "sent again", "feedback"
    )?;
    for link in &LINKS {
        for (loss, bursty) in [
            (0.0, false),
            (0.01, false),
            (0.05, false),
            (0.01, true),
            (0.05, true),
        ] {
            let t = goodput(link, 8, loss, bursty, seconds).map_err(|f| bad(&f))?;
            let good = t.holds(loss, bursty);
            all &= good;
            writeln!(
                out,
                "{:<22} {:>5.1} %{} {:>7.3} s {:>7.1} % {:>7.3}× {:>9.2} % {:>8.4} {}",
                link.name,
                loss * 100.0,
                if bursty { "b" } else { " " },
                t.time.0 as f64 / 1e9,
                t.share * 100.0,
                t.root_bytes,
                t.repairs * 100.0,
                t.feedback,
                verdict(good)
            )?;
        }
        all &= more_receivers(link, seconds, out)?;
    }
    Ok(all)
}

/// Writes how much longer 32 receivers take than one; at most 5 % is allowed.
fn more_receivers(link: &LinkKind, seconds: f64, out: &mut dyn Write) -> io::Result<bool> {
    let one = goodput(link, 1, 0.0, false, seconds).map_err(|f| bad(&f))?;
    let many = goodput(link, 32, 0.0, false, seconds).map_err(|f| bad(&f))?;
    let good = many.time.0 * 100 <= one.time.0 * 105;
    writeln!(
        out,
        "{:<22} 1 receiver {:.3} s, 32 receivers {:.3} s: {}",
        link.name,
        one.time.0 as f64 / 1e9,
        many.time.0 as f64 / 1e9,
        verdict(good)
    )?;
    Ok(good)
}

/// Writes how the pacer follows a link whose rate changes.
fn steps_of_the_rate(out: &mut dyn Write) -> io::Result<bool> {
    let mut all = true;
    for (name, before, after) in [
        ("1 Gbit/s to 200 Mbit/s", FAST, SLOW),
        ("200 Mbit/s to 1 Gbit/s", SLOW, FAST),
    ] {
        let c = step(before, after).map_err(|f| bad(&f))?;
        all &= c.holds();
        writeln!(
            out,
            "\nA step from {name}: found after {}, used to {:.1} %; followed after {}, used to \
             {:.1} %;\n  dropped by queues {:.2} % in the first second, {:.2} % after it: {}",
            ms(c.found),
            c.share_before * 100.0,
            ms(c.followed),
            c.share_after * 100.0,
            c.lost_in_step * 100.0,
            c.lost_later * 100.0,
            verdict(c.holds())
        )?;
    }
    Ok(all)
}

/// Writes the costs of a receiver that posts late for the others.
fn one_posts_late(out: &mut dyn Write) -> io::Result<bool> {
    let l = late_poster().map_err(|f| bad(&f))?;
    let good = l.repairs_before == 0 && l.others.0 * 100 <= l.undisturbed.0 * 105;
    writeln!(
        out,
        "\nOne of 8 posts late: the others done at {:?} ({:?} if nobody is late), it at {:?}; \
         sent again before it was ready: {}: {}",
        l.others,
        l.undisturbed,
        l.late,
        l.repairs_before,
        verdict(good)
    )?;
    Ok(good)
}

/// Writes the schemes' costs under skew: the paper argues that a tree of ACKs causes false
/// retransmissions.
fn false_repairs_by_scheme(out: &mut dyn Write) -> io::Result<bool> {
    writeln!(
        out,
        "\nFalse retransmissions: small broadcasts to {} receivers that compute half of the time; \
         nothing is lost\n\
         {:<12} {:>6} {:>12}",
        skew::HOSTS - 1,
        "scheme",
        "sent",
        "had already"
    )?;
    let mut had = Vec::new();
    for name in ["auto", "window", "coroot(4)", "tree(2)"] {
        let scheme = name.parse().map_err(io::Error::other)?;
        let f = skew::false_repairs(scheme, 1).map_err(|f| bad(&f))?;
        writeln!(out, "{name:<12} {:>6} {:>12}", f.sent, f.received)?;
        had.push(f.received);
    }
    let good = had[3] > had[2];
    writeln!(out, "a tree more than co-roots (P1.5): {}", verdict(good))?;
    Ok(good)
}
