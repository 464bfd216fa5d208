//! A sender, from opening the file to the last receiver's result.

use std::path::Path;

use tracing::{debug, info};

use super::admission::Admission;
use super::events::{SendEvent, SendFailure, SendReport};
use super::plan::open;
use super::sender_session::SenderSession;
use crate::config::SendOptions;
use crate::error::Error;
use crate::net::random;
use crate::object::SourceFile;
use crate::text::{escaped, shown};
use crate::waker::Waker;

/// Sends `source` and returns when the transfer is over for every receiver. An error ends the
/// transfer for all of them at once; it comes with what had become of each.
pub fn send(
    source: &Path,
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
    let content = SourceFile::open(source)?;
    let name = match source.file_name().and_then(|n| n.to_str()) {
        Some(name) => name.to_owned(),
        None => {
            let text = format!(
                "{}'s name is not UTF-8: it is offered as 'file'",
                shown(source)
            );
            tell(SendEvent::Notice { text });
            "file".to_owned()
        }
    };
    let session = random()?;
    let waker = Waker::new().map_err(|e| Error::io("making a waker", e))?;
    let (c, b) = (content.clone(), waker.clone());
    let mut admission = Admission::open(c, name, session, options, b, tell)?;
    let result = admission
        .gather(tell)
        .and_then(|()| open(&mut admission, &content, session, options));
    let mut sending = match result {
        Ok((driver, plan)) => {
            SenderSession::new(admission, driver, content, plan, options, waker, tell)
        }
        Err(error) => {
            admission.abort(&error, 0.0);
            let report = Some(Box::new(admission.report()));
            return Err(SendFailure { error, report });
        }
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
