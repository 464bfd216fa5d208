//! The receiver's first steps: is the destination sound, and where is the sender?

use std::net::{SocketAddr, ToSocketAddrs};
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

/// How often a sender that does not answer is tried again.
const RETRY: Duration = Duration::from_millis(200);

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
    let mut last = String::from("nobody announces a transfer");
    let mut ear = match options.from {
        Some(_) => None,
        None => Some(listener(&options.net.interface)?),
    };
    loop {
        check(&options.interrupt)?;
        if Instant::now() >= deadline {
            let waited = spoken(options.start_timeout);
            let (whom, hint) = match &options.from {
                Some(from) => (from.as_str(), "is `fabricast send` running there?"),
                None => ("any sender", "name it with --from HOST"),
            };
            return Err(Error::Timeout(format!(
                "could not reach {whom} within {waited} ({last}); {hint}"
            )));
        }
        let addresses = match (&options.from, &mut ear) {
            (Some(from), _) => resolve(from)?,
            (None, Some(ear)) => announced(ear)?,
            (None, None) => unreachable!("without a name we listen"),
        };
        if addresses.is_empty() {
            continue;
        }
        match bootstrap::connect(&addresses, bell.clone()) {
            Ok(control) => return Ok(control),
            Err(e) => last = e.to_string(),
        }
        thread::sleep(RETRY.min(deadline.saturating_duration_since(Instant::now())));
    }
}

fn resolve(from: &str) -> Result<Vec<SocketAddr>, Error> {
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
        chosen => vec![
            udp::choose(chosen, None)
                .map_err(|e| Error::Usage(e.to_string()))?
                .0
                .index,
        ],
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
