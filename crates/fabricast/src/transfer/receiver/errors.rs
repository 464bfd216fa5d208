//! Errors of a receiver: what the sender's messages mean, what ends the receiver, and what the
//! sender is told about that.

use std::path::PathBuf;
use std::time::Duration;

use crate::bootstrap::Control;
use crate::bootstrap::message::{ToReceiver, ToSender};
use crate::config::{Accept, RecvOptions};
use crate::error::{Error, exit};
use crate::setting::{RECEIVE_TIMEOUT, Wording};
use crate::text::{shown, spoken};

/// The error for a peer that is no sender of this version.
pub fn strange() -> Error {
    Error::PeerLost("what answers there is not a fabricast sender of this version".into())
}

/// The error for a sender whose words about earlier packs make no sense.
pub fn strange_packs() -> Error {
    Error::PeerLost("what the sender says of earlier packs makes no sense".into())
}

/// The error for a plan of the sender that the core refuses.
pub fn refused(refused: fabricast_proto::Refused) -> Error {
    Error::PeerLost(format!("the sender's plan makes no sense: {refused}"))
}

/// The error for a message of the sender that ends the transfer.
pub fn surprise(message: ToReceiver) -> Error {
    match message {
        ToReceiver::Refused { reason } => Error::Refused(format!("the sender refused: {reason}")),
        ToReceiver::Removed { code, reason } => {
            let text = format!("the sender has gone on without this receiver: {reason}");
            match code {
                exit::INTEGRITY => Error::Integrity(format!("{text}; do not use what is here")),
                exit::SOURCE_CHANGED => Error::SourceChanged(text),
                _ => Error::Refused(text),
            }
        }
        ToReceiver::Aborted { code, reason } if code == exit::INTERRUPTED => {
            Error::PeerLost(format!("the sender has given up: {reason}"))
        }
        ToReceiver::Aborted { reason, .. } => {
            Error::PeerLost(format!("the transfer failed at the sender: {reason}"))
        }
        _ => strange(),
    }
}

/// Returns an error if nothing has arrived for longer than the user wants to wait.
pub fn silence(lasted: Duration, options: &RecvOptions) -> Result<(), Error> {
    match options.receive_timeout {
        Some(limit) if lasted > limit => Err(Error::Timeout(format!(
            "nothing has arrived for {} ({RECEIVE_TIMEOUT})",
            spoken(limit)
        ))),
        _ => Ok(()),
    }
}

/// Whether the error is final: no other sender could help, or the user has chosen this very file
/// and it has no place here.
pub fn is_ours(error: &Error, accept: &Accept) -> bool {
    use std::io::ErrorKind::{NotFound, PermissionDenied, ReadOnlyFilesystem};
    match error {
        Error::Interrupted | Error::Timeout(_) => true,
        Error::Exists(_) | Error::NoSpace { .. } | Error::TooLong { .. } | Error::Usage(_) => {
            matches!(accept, Accept::Asked(_))
        }
        Error::Io { source, .. } => {
            matches!(
                source.kind(),
                NotFound | PermissionDenied | ReadOnlyFilesystem
            )
        }
        _ => false,
    }
}

/// Tells the sender why this receiver gives up. The sender may know already, or be gone. A sender
/// that the user has not named may be anybody, so it is not told the names of files here.
pub fn say_why(control: &mut Control, error: &Error, is_found: bool, wording: Wording) {
    let code = error.exit_code();
    let reason = match error {
        Error::NoSpace { .. } if is_found => "it has no space for the file".into(),
        Error::TooLong { .. } if is_found => "the file is too long for it".into(),
        Error::Exists(_) if is_found => "it has a file of this name already".into(),
        Error::Usage(_) if is_found => "it takes no file of this name".into(),
        Error::Io { .. } if is_found => "it cannot store the file".into(),
        error => wording(&error.to_string()),
    };
    let _ = control.say(&ToSender::Failed { code, reason });
}

/// What the sender is told of files that were to remain and cannot be kept. `leaves_surplus`:
/// whether nothing was deleted because of them.
pub fn changed(files: &[PathBuf], leaves_surplus: bool) -> String {
    let first = files.first().map(|file| shown(file).to_string());
    format!(
        "it had {} files already that were changed there while the set came, or refused owner, \
         permissions or time, such as {}{}",
        files.len(),
        first.unwrap_or_default(),
        match leaves_surplus {
            true => "; nothing was deleted there",
            false => "",
        }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A receiver whose proof is wrong, or that lacks what has changed at the sender, ends with the
    /// exit code that says so.
    #[test]
    fn a_removed_receiver_ends_with_the_code_for_what_is_wrong_with_its_files() {
        for (code, ends_with) in [
            (exit::INTEGRITY, exit::INTEGRITY),
            (exit::SOURCE_CHANGED, exit::SOURCE_CHANGED),
            (exit::REFUSED, exit::REFUSED),
            (exit::PEER_LOST, exit::REFUSED),
            (exit::OK, exit::REFUSED),
        ] {
            let reason = "why".to_owned();
            let error = surprise(ToReceiver::Removed { code, reason });
            assert_eq!(error.exit_code(), ends_with, "{code}");
            assert!(error.to_string().contains("why"), "{error}");
        }
    }
}
