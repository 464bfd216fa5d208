//! A receiver, from finding the sender to the files under their names.

mod block_repair;
mod catching_up;
mod comparing;
mod comparing_progress;
mod destination;
mod discovery;
mod driver;
mod errors;
mod ibrmp;
mod incoming;
mod joining;
mod late;
mod pack_table;
mod packs;
mod peers;
mod requests;
mod serving;
mod session;
mod start_check;
mod stored_headers;
mod stored_packs;
mod storing;
mod unanswered;

pub(crate) use self::discovery::resolve;
pub use self::incoming::Incoming;

use std::time::Instant;

use tracing::debug;

use self::discovery::Discovery;
use self::errors::{is_ours, say_why, strange};
use self::joining::{Joined, join};
use self::session::ReceiverSession;
use super::events::{RecvEvent, RecvReport};
use crate::bootstrap::Control;
use crate::config::RecvOptions;
use crate::error::Error;
use crate::ibrmp::NAME;
use crate::object::check_space;
use crate::setting::SERVE;
use crate::text::{escaped, shown};
use crate::waker::Waker;

/// Receives a set of files.
pub fn recv(options: &RecvOptions, tell: &mut dyn FnMut(RecvEvent)) -> Result<RecvReport, Error> {
    let tell = &mut |event| {
        if !matches!(event, RecvEvent::Progress { .. }) {
            debug!(event = %escaped(&format!("{event:?}")));
        }
        tell(event);
    };
    options.net.check()?;
    destination::check(options)?;
    let deadline = Instant::now() + options.start_timeout;
    let mut discovery = Discovery::new(options, deadline, tell)?;
    loop {
        let waker = Waker::new().map_err(|e| Error::io("making a waker", e))?;
        let (mut control, found) = discovery.find(&waker, tell)?;
        let is_found = found.is_some();
        let joined = join(
            &mut control,
            found.as_ref(),
            &mut discovery,
            deadline,
            &waker,
            tell,
        );
        let set = joined
            .as_ref()
            .ok()
            .map(|joined| joined.welcome.manifest.clone());
        let result = match (joined, found) {
            (Ok(joined), _) => take_part(&mut control, joined, is_found, options, &waker, tell),
            // What was found may be no sender, or no honest one. The true one may be there, too.
            (Err(error), Some(offer)) if !is_ours(&error, &options.accept) => {
                discovery.give_up(offer, &error);
                say_why(&mut control, &error, is_found, options.net.wording);
                continue;
            }
            (Err(error), _) => Err(error),
        };
        if let Err(error) = &result {
            say_why(&mut control, error, is_found, options.net.wording);
            let is_cut_off = matches!(
                error,
                Error::PeerLost(_)
                    | Error::Interrupted
                    | Error::Refused(_)
                    | Error::SourceChanged(_)
                    | Error::Timeout(_)
            );
            // One that follows a feed goes on by itself.
            if is_cut_off
                && options.received.is_none()
                && let Some(path) = set.and_then(|set| destination::kept(options, &set))
            {
                let path = shown(&path);
                let text =
                    format!("what has come is kept in {path}: the same command goes on there");
                tell(RecvEvent::Notice { text });
            }
        }
        return result;
    }
}

fn take_part(
    control: &mut Control,
    joined: Joined,
    is_found: bool,
    options: &RecvOptions,
    waker: &Waker,
    tell: &mut dyn FnMut(RecvEvent),
) -> Result<RecvReport, Error> {
    start_check::check(&joined.start, joined.sender, options)?;
    // A stream takes packs in their order, and would keep those that come before the first.
    if joined.start.late && (options.output.is_some() || joined.welcome.len.is_none()) {
        return Err(strange());
    }
    if options.makes_files() {
        let len = joined.welcome.len.unwrap_or(0);
        check_space(&joined.path, joined.target.to_take(len), options.reserve)?;
    }
    let group = joined.start.group.clone();
    tell(RecvEvent::Started { group });
    if joined.start.scheme == NAME {
        if options.serve {
            return Err(Error::Usage(format!(
                "the sender has chosen the scheme {}, in which receivers do not know each other, \
                 so none can serve others ({SERVE})",
                NAME
            )));
        }
        return self::ibrmp::run(control, joined, is_found, options, waker, tell);
    }
    ReceiverSession::new(control, joined, options, is_found, waker, tell)?.run()
}
