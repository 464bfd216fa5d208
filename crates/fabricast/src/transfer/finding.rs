//! The receiver's first steps: is the destination sound, and where is the sender?

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::events::RecvEvent;
use super::{TICK, check};
use crate::bell::Bell;
use crate::bootstrap::announce::{Found, Listener};
use crate::bootstrap::{self, Control};
use crate::config::RecvOptions;
use crate::error::{Error, spoken};
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

/// Connects to the sender, however long it takes to appear.
pub fn find(
    options: &RecvOptions,
    deadline: Instant,
    bell: &Bell,
    tell: &mut dyn FnMut(RecvEvent),
) -> Result<Control, Error> {
    tell(RecvEvent::Searching {
        from: options.from.clone(),
    });
    let began = Instant::now();
    let mut told = began;
    let mut last = match options.from {
        Some(_) => "it does not answer; ".to_string() + UNREACHABLE,
        None => UNHEARD.to_string(),
    };
    let mut ear = match options.from {
        Some(_) => None,
        None => Some(listener(&options.net.interface)?),
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
        if told.elapsed() >= pause {
            told = Instant::now();
            tell(RecvEvent::Trying {
                from: options.from.clone(),
                seconds: began.elapsed().as_secs_f64(),
                reason: last.clone(),
            });
        }
        let addresses = match (&options.from, &mut ear) {
            (Some(from), _) => resolve(from)?,
            (None, Some(ear)) => announced(ear)?,
            (None, None) => unreachable!("without a name we listen"),
        };
        if addresses.is_empty() {
            continue;
        }
        match bootstrap::connect(&addresses, deadline, bell.clone()) {
            Ok(control) => return Ok(control),
            Err(_) if Instant::now() >= deadline => {} // cut short: it says nothing new
            Err(e) => last = why(&addresses, &e),
        }
        let pause = (began.elapsed() / 20).clamp(RETRY_MIN, RETRY_MAX);
        thread::sleep(pause.min(deadline.saturating_duration_since(Instant::now())));
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
    // An IPv6 address must not be taken for a host and a port.
    if let Ok(ip) = from.trim_matches(['[', ']']).parse::<IpAddr>() {
        return Ok(vec![(ip, bootstrap::PORT).into()]);
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
    Listener::new(&indices).map_err(fails)
}

fn announced(ear: &mut Listener) -> Result<Vec<SocketAddr>, Error> {
    let found = ear.listen(TICK);
    match found.map_err(|e| Error::io("listening for announcements", e))? {
        Found::Nothing => Ok(Vec::new()),
        Found::One(address) => Ok(vec![address]),
        Found::Several(all) => {
            let list: Vec<String> = all
                .iter()
                .map(|(address, name)| format!("{address} ({})", super::roster::clean_name(name)))
                .collect();
            Err(Error::Usage(format!(
                "several senders announce a transfer; choose one with --from: {}",
                list.join(", ")
            )))
        }
    }
}
