//! Measures how fast the UDP transport alone is: no protocol, no pacing, no repair.
//!
//! `udp_rate recv INTERFACE GROUP:PORT [plain]` counts until a second of silence,
//! `udp_rate send INTERFACE GROUP:PORT SECONDS [plain] [mbit=N] [datagram=N]` sends,
//! `udp_rate wait MICROSECONDS` shows how exact `wait` is. `plain`: without GSO and GRO.
#![cfg_attr(not(target_os = "linux"), allow(unused))]

use std::error::Error;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use fabricast::interface::Interface;
use fabricast::proto::{AddressId, Dest, Time};
use fabricast::transport::udp::{Udp, UdpConfig};
use fabricast::transport::{News, Transport, send_plain};

const GROUP: AddressId = AddressId(0);

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let number = |key: &str| words.iter().find_map(|w| w.strip_prefix(key)?.parse().ok());
    let open = |interface: &str| {
        let config = UdpConfig {
            interface: interface.parse()?,
            offload: !words.contains(&"plain"),
            datagram: number("datagram="),
            ..UdpConfig::default()
        };
        Ok::<Udp, Box<dyn Error>>(Udp::new(&config)?)
    };
    match words[..] {
        ["recv", interface, group, ..] => {
            let mut udp = open(interface)?;
            join(&mut udp, group, true)?;
            receive(udp)
        }
        ["send", interface, group, seconds, ..] => {
            let mut udp = open(interface)?;
            join(&mut udp, group, false)?;
            let rate = number("mbit=").map(|mbit: usize| mbit as f64 * 1e6 / 8.0);
            send(udp, Duration::from_secs_f64(seconds.parse()?), rate)
        }
        ["wait", micros] => wait(Duration::from_micros(micros.parse()?)),
        _ => Err("usage: see the head of the source".into()),
    }
}

fn join(udp: &mut Udp, group: &str, receive: bool) -> Result<(), Box<dyn Error>> {
    let address: SocketAddr = group.parse()?;
    udp.join(GROUP, &address.into(), receive);
    match udp.news() {
        Some(News::JoinFailed(_, error)) => Err(error.into()),
        _ => Ok(()),
    }
}

fn send(mut udp: Udp, length: Duration, rate: Option<f64>) -> Result<(), Box<dyn Error>> {
    let max = udp.caps().datagram_max;
    let head = [0; 36];
    let body = vec![0; max - head.len()];
    let batch = [(Dest::Address(GROUP), &head[..], &body[..]); 64];
    let start = Instant::now();
    let mut sent = 0;
    while start.elapsed() < length {
        let due = rate.map_or(f64::MAX, |r| r * start.elapsed().as_secs_f64());
        let count = (((due - sent as f64) / max as f64) as usize).min(batch.len());
        if count * max < max.max(rate.unwrap_or(0.0) as usize / 2000) && rate.is_some() {
            udp.wait(Some(Duration::from_micros(500)))?;
            continue;
        }
        let taken = send_plain(&mut udp, Time::ZERO, &batch[..count])?;
        sent += taken * max;
        if taken < count {
            udp.wait(Some(Duration::from_millis(100)))?;
        }
    }
    report("sent", sent as u64, start.elapsed());
    println!("{:?}", udp.counters());
    while let Some(news) = udp.news() {
        println!("{news}");
    }
    Ok(())
}

fn receive(mut udp: Udp) -> Result<(), Box<dyn Error>> {
    let (mut first, mut last) = (None, Instant::now());
    let mut seen = 0u64;
    loop {
        if udp.recv(Time::ZERO, &mut |d| seen += d.bytes().len() as u64)? > 0 {
            last = Instant::now();
            first.get_or_insert(last);
            continue;
        }
        let patience = if first.is_some() { 1 } else { 20 };
        let silent = last.elapsed() >= Duration::from_secs(patience);
        match (silent, first) {
            (true, Some(first)) => {
                report("received", seen, last - first);
                println!("{:?}", udp.counters());
                return Ok(());
            }
            (true, None) => return Err("nothing came".into()),
            _ => udp.wait(Some(Duration::from_secs(1)))?,
        }
    }
}

fn report(what: &str, bytes: u64, time: Duration) {
    let seconds = time.as_secs_f64();
    let rate = bytes as f64 / seconds / 1e6;
    println!("{what} {bytes} bytes in {seconds:.3} s: {rate:.0} MB/s");
}

fn wait(time: Duration) -> Result<(), Box<dyn Error>> {
    let mut udp = Udp::new(&UdpConfig {
        interface: Interface::Name("lo".into()),
        ..UdpConfig::default()
    })?;
    let mut late = Vec::new();
    for _ in 0..2000 {
        let before = Instant::now();
        udp.wait(Some(time))?;
        late.push(before.elapsed().saturating_sub(time));
    }
    late.sort();
    let [p50, p90, p99] = [50, 90, 99].map(|p| late[late.len() * p / 100]);
    println!("late by p50 {p50:?}, p90 {p90:?}, p99 {p99:?}");
    Ok(())
}
