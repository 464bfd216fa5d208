//! A sender, from listing the files to the last receiver's result.

use std::path::PathBuf;
use std::sync::Arc;

use tracing::{debug, info};

use super::admission::Admission;
use super::events::{SendEvent, SendFailure, SendReport};
use super::ibrmp_sender::{self, IbrmpSender};
use super::plan::open;
use super::sender_session::SenderSession;
use crate::config::SendOptions;
use crate::error::Error;
use crate::net::random;
use crate::object::{PackIndex, SourceSet};
use crate::text::escaped;
use crate::waker::Waker;

/// Sends `sources`, files and directories, and returns when the transfer is over for every
/// receiver. An error ends the transfer for all of them at once; it comes with what had become of
/// each.
pub fn send(
    sources: &[PathBuf],
    options: &SendOptions,
    tell: &mut dyn FnMut(SendEvent),
) -> Result<SendReport, SendFailure> {
    let tell = &mut |event| {
        match &event {
            SendEvent::Progress { .. } => {}
            SendEvent::Connected { receiver, .. } => info!(?receiver, "joined"),
            SendEvent::Verified { receiver, .. } => info!(?receiver, "verified the file"),
            SendEvent::Failed { receiver, .. } => info!(?receiver, "failed"),
            event => debug!(event = %escaped(&format!("{event:?}"))),
        }
        tell(event);
    };
    options.net.check()?;
    options.start.check()?;
    let mut notice = |text| tell(SendEvent::Notice { text });
    let set = Arc::new(SourceSet::list(sources, &options.exclude, &mut notice)?);
    let index = Arc::new(PackIndex::new(set.clone()));
    let is_ibrmp = ibrmp_sender::is_chosen(options, &set)?;
    let session = random()?;
    let waker = Waker::new().map_err(|e| Error::io("making a waker", e))?;
    let (s, i, w) = (set.clone(), index.clone(), waker.clone());
    let mut admission = Admission::open(s, i, session, options, w, tell)?;
    if let Err(error) = admission.gather(tell) {
        return Err(failure(error, admission));
    }
    if is_ibrmp {
        let opened = match ibrmp_sender::open(&mut admission, &set, session, options) {
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
    let result = open(&mut admission, set.manifest().len(), session, options);
    let mut sending = match result {
        Ok((driver, plan)) => {
            SenderSession::new(admission, driver, (set, index), plan, options, waker, tell)
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
