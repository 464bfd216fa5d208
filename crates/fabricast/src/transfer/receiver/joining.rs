//! How a receiver joins: it says hello, opens the destination and waits for the start.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::destination;
use super::discovery::Discovery;
use super::errors::{strange, surprise};
use crate::bootstrap::message::{Hello, Start, ToReceiver, ToSender, VERSION, Welcome};
use crate::bootstrap::psk::{Exchange, Nonce};
use crate::bootstrap::{Control, Heard};
use crate::config::{NetworkKind, Offer, RecvOptions};
use crate::error::Error;
use crate::net::{self, Net, random};
use crate::object::{Kept, Target};
use crate::setting::START_TIMEOUT;
use crate::text::{shown, spoken};
use crate::transfer::events::RecvEvent;
use crate::transfer::{TICK, WINDOW_BYTES, check};
use crate::transport::Transport;
use crate::waker::Waker;

/// How long a sender that was found by its announcement may take to answer `hello`. After that the
/// receiver gives it up.
const ANSWER: Duration = Duration::from_secs(5);

/// How often a receiver says that it proves what it has.
const PREPARING: Duration = Duration::from_secs(1);

/// What receiver and sender have agreed on before the start.
pub struct Joined {
    pub net: Net,
    pub target: Target,
    /// What of the set is here from an earlier run.
    pub kept: Kept,
    /// The path of what is received.
    pub path: PathBuf,
    pub welcome: Welcome,
    pub start: Start,
    pub sender: SocketAddr,
}

/// Registers with the sender and waits for the start. `found` is what the sender announced, or
/// `None` if the user named the sender.
pub fn join(
    control: &mut Control,
    found: Option<&Offer>,
    discovery: &mut Discovery,
    deadline: Instant,
    waker: &Waker,
    tell: &mut dyn FnMut(RecvEvent),
) -> Result<Joined, Error> {
    let options = discovery.options();
    let lost = |e| Error::PeerLost(format!("the sender is gone: {e}"));
    let local = control.local().map_err(lost)?;
    let sender = control.peer().map_err(lost)?;
    let net = net::open(
        &NetworkKind::Udp,
        &options.net,
        local.ip(),
        1,
        random()?,
        waker,
    )?;
    let address = net.address().without_host(local.ip());
    let name = options.name.clone();
    let hello = Hello {
        version: VERSION,
        name: name.unwrap_or_else(|| own_name(options, found.is_some())),
        address,
        datagram: net.caps().datagram_max as u32,
        window_bytes: WINDOW_BYTES,
        stream: options.output.is_some(),
        discard: options.discard,
        nonce: options.key.as_ref().map(|_| Nonce::random()).transpose()?,
    };

    let limit = found.map(|_| ANSWER);
    let welcome = greet(control, options, hello, |control| {
        wait(control, options, deadline, limit, "answer")
    })?;
    if let Some(announced) = found {
        discovery.check_offer(announced, &welcome)?;
    }
    let mut said = Instant::now();
    let mut go_on = || {
        if said.elapsed() >= PREPARING {
            said = Instant::now();
            control.say(&ToSender::Preparing).map_err(lost)?;
        }
        check(&options.interrupt)
    };
    let (target, kept, path) =
        destination::prepare(options, &welcome, found.is_some(), &mut go_on)?;
    let may_have = destination::may_have(&target, &kept, &path);
    if !kept.is_empty() {
        tell(RecvEvent::Resumed { bytes: kept.bytes });
    }
    control
        .say(&ToSender::Prepared { may_have })
        .map_err(lost)?;
    tell(RecvEvent::Connected {
        sender,
        name: welcome.name.chars().take(255).collect(),
        tops: welcome.tops,
        len: welcome.len,
        to_take: target.to_take(welcome.len.unwrap_or(0)),
        path: path.clone(),
    });
    match wait(control, options, deadline, None, "start the transfer")? {
        ToReceiver::Start(start) if start.compares.is_some() && !may_have => Err(strange()),
        ToReceiver::Start(start) => Ok(Joined {
            net,
            target,
            kept,
            path,
            welcome,
            start,
            sender,
        }),
        other => Err(surprise(other)),
    }
}

/// Says hello, and returns the sender's welcome. If the receiver has a key, both show first that
/// they know it.
fn greet(
    control: &mut Control,
    options: &RecvOptions,
    hello: Hello,
    hear: impl Fn(&mut Control) -> Result<ToReceiver, Error>,
) -> Result<Welcome, Error> {
    let lost = |e| Error::PeerLost(format!("the sender is gone: {e}"));
    let receiver = hello.nonce;
    control.say(&ToSender::Hello(hello)).map_err(lost)?;
    let mut answer = hear(control)?;
    let mut right = None;
    if let (Some(key), Some(receiver)) = (&options.key, receiver)
        && let ToReceiver::Authenticate { session, nonce } = answer
    {
        let exchange = Exchange {
            session,
            receiver,
            sender: nonce,
        };
        let mac = key.receiver_mac(&exchange);
        control.say(&ToSender::Response { mac }).map_err(lost)?;
        answer = hear(control)?;
        right = Some((key.sender_mac(&exchange), session));
    }
    match answer {
        ToReceiver::Welcome(welcome) => {
            let shown = welcome.mac.map(|mac| (mac, welcome.session));
            match options.key.is_none() || right.is_some() && shown == right {
                true => Ok(welcome),
                false => Err(Error::Refused(
                    "what answers there did not show that it is the sender that has started this \
                     receiver: it does not know the key"
                        .into(),
                )),
            }
        }
        other => Err(surprise(other)),
    }
}

/// The receiver's default name: the host, and what tells two receivers on one host apart. A sender
/// that was found by its announcement may be anybody, so the name does not tell it the destination.
fn own_name(options: &RecvOptions, is_found: bool) -> String {
    let host = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    match options.dest.as_os_str() == "." {
        _ if is_found || options.discard => format!("{host}[{}]", std::process::id()),
        true => host,
        false => format!("{host}:{}", shown(&options.dest)),
    }
}

/// Waits for the sender's next message, for at most `limit` and not after `deadline`.
fn wait(
    control: &mut Control,
    options: &RecvOptions,
    deadline: Instant,
    limit: Option<Duration>,
    what: &str,
) -> Result<ToReceiver, Error> {
    let began = Instant::now();
    loop {
        check(&options.interrupt)?;
        let now = Instant::now();
        if let Some(limit) = limit.filter(|limit| now - began >= *limit) {
            let waited = spoken(limit);
            let text = format!("the sender did not {what} within {waited}");
            return Err(Error::PeerLost(text));
        }
        if now >= deadline {
            let waited = spoken(options.start_timeout);
            return Err(Error::Timeout(format!(
                "the sender did not {what} within {waited} ({START_TIMEOUT})"
            )));
        }
        match control.hear_until(deadline.min(now + TICK)) {
            None => {}
            Some(Heard::Message(message)) => return Ok(message),
            Some(Heard::Bulk(_) | Heard::Frame(_)) => return Err(strange()),
            Some(Heard::Closed(why)) => {
                return Err(Error::PeerLost(format!("the sender is gone: {why}")));
            }
        }
    }
}
