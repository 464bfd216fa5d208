//! A sender, from listing the files to the last receiver's result.

mod admission;
mod announced;
mod balance;
mod behind;
mod catch_up;
mod clock;
mod comparing;
mod failed_files;
mod ibrmp;
mod late;
mod member_comparing;
mod missed;
mod offers;
mod packs;
mod plan;
mod progress;
mod rate_share;
mod receiver_table;
mod session;
mod sharing;
mod slow;
mod telling;
mod waits;

pub(crate) use self::admission::{host, places};

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use tracing::{debug, info};

use self::admission::Admission;
use self::comparing::why_all_is_sent;
use self::ibrmp::IbrmpSender;
use self::plan::open;
use self::session::SenderSession;
use super::check;
use super::events::{SendEvent, SendFailure, SendReport};
use crate::bootstrap::Blocks;
use crate::config::{SendOptions, Slow};
use crate::error::Error;
use crate::ibrmp::SentFiles;
use crate::net::random;
use crate::object::{PackIndex, Packer, SourceSet};
use crate::setting::SLOW;
use crate::text::escaped;
use crate::waker::Waker;

/// What is sent.
#[derive(Debug)]
pub enum Source<'a> {
    /// Files and directories.
    Paths(&'a [PathBuf]),
    /// What a pipe, or any other open file, yields up to its end: one file of unknown length. It is
    /// read from the start of the transfer on, once, no faster than the slowest receiver takes it.
    /// So receivers have to be there at the start, and those that are too slow cannot catch up.
    Stream {
        /// What is read.
        input: File,
        /// The file's name for the receivers.
        name: &'a str,
    },
}

impl Source<'_> {
    fn open(
        self,
        options: &SendOptions,
        tell: &mut dyn FnMut(SendEvent),
    ) -> Result<SourceSet, Error> {
        match self {
            Source::Paths(paths) => {
                let mut notice = |text| tell(SendEvent::Notice { text });
                let set = SourceSet::list(paths, &options.selection, &mut notice)?;
                set.check_readable(&mut notice)?;
                Ok(set)
            }
            Source::Stream { .. } if options.has_slow_rule(Slow::Demote) => {
                Err(Error::Usage(format!(
                    "standard input is read once, so a receiver that is too slow for the others \
                     cannot catch up: choose another rule than demote ({SLOW})"
                )))
            }
            Source::Stream { input, name } => SourceSet::stream(input, name),
        }
    }
}

/// Sends `source`, and returns when the transfer is over for every receiver. An error ends the
/// transfer for all of them at once; it comes with what had become of each.
pub fn send(
    source: Source<'_>,
    options: &SendOptions,
    tell: &mut dyn FnMut(SendEvent),
) -> Result<SendReport, SendFailure> {
    let tell = &mut |event| {
        match &event {
            SendEvent::Progress { .. } => {}
            SendEvent::Connected { receiver, .. } => info!(?receiver, "joined"),
            SendEvent::Verified { receiver, .. } => info!(?receiver, "verified the file"),
            SendEvent::Received { receiver, .. } => info!(?receiver, "received the file"),
            SendEvent::Failed { receiver, .. } => info!(?receiver, "failed"),
            event => debug!(event = %escaped(&format!("{event:?}"))),
        }
        tell(event);
    };
    options.net.check()?;
    options.start.check()?;
    options.workers.check()?;
    options.check_required()?;
    let mut set = source.open(options, tell)?;
    let is_ibrmp = ibrmp::is_chosen(options, &set)?;
    // By P3's protocol every file comes by itself.
    if !is_ibrmp && options.compares {
        let mut notice = |text| tell(SendEvent::Notice { text });
        set.find_identical(&mut || check(&options.interrupt), &mut notice)?;
    }
    let set = Arc::new(set);
    let index = Arc::new(PackIndex::new(set.clone()));
    let sent = Arc::new(SentFiles::new(set.clone()));
    let blocks: Arc<dyn Blocks> = match is_ibrmp {
        true => sent.clone(),
        false => index.clone(),
    };
    let session = random()?;
    let waker = Waker::new().map_err(|e| Error::io("making a waker", e))?;
    let (s, w) = (set.clone(), waker.clone());
    let mut admission = Admission::open(s, blocks, session, options, w, tell)?;
    if let Err(error) = admission.gather(tell) {
        return Err(failure(error, admission));
    }
    if is_ibrmp {
        let opened = match ibrmp::open(&mut admission, &set, sent, session, options) {
            Ok(opened) => opened,
            Err(error) => return Err(failure(error, admission)),
        };
        let mut sending = IbrmpSender::new(admission, opened, set, options, tell);
        return match sending.run() {
            Ok(()) => Ok(sending.report()),
            Err(error) => {
                sending.abort(&error);
                let report = Some(Box::new(sending.report()));
                Err(SendFailure { error, report })
            }
        };
    }
    let opened = open(&mut admission, set.is_stream(), session, options);
    let opened = opened.and_then(|(driver, plan)| {
        let packer = match plan.start.compares {
            Some(_) => Packer::start_comparing(set.clone(), waker.clone()),
            None => Packer::start(set.clone(), waker.clone()),
        };
        Ok((driver, plan, packer?))
    });
    let mut sending = match opened {
        Ok((driver, plan, packer)) => {
            let report_to_each_other = !plan.start.reports_to_sender();
            if options.compares
                && !set.is_stream()
                && let Some(text) = why_all_is_sent(&admission.receivers, report_to_each_other)
            {
                tell(SendEvent::Notice { text });
            }
            SenderSession::new(admission, driver, packer, index, plan, waker, tell)
        }
        Err(error) => return Err(failure(error, admission)),
    };
    match sending.run() {
        Ok(()) => Ok(sending.report()),
        Err(error) => {
            sending.abort(&error);
            let report = Some(Box::new(sending.report()));
            Err(SendFailure { error, report })
        }
    }
}

/// Ends a transfer that has not started, for all receivers.
fn failure(error: Error, mut admission: Admission<'_>) -> SendFailure {
    admission.abort(&error, 0.0);
    let report = Some(Box::new(admission.report()));
    SendFailure { error, report }
}
