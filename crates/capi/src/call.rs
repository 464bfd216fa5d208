//! What every call of the API has in common: a status, a reason, and no panic beyond the C
//! interface.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use fabricast_lib::communicator::Error;
use fabricast_lib::error::NetworkError;
use fabricast_lib::setting;
use fabricast_lib::text::escaped;

use crate::status::{
    FABRICAST_ERR_ARGUMENT, FABRICAST_ERR_INTERNAL, FABRICAST_ERR_PEER_LOST, FABRICAST_ERR_REFUSED,
    FABRICAST_ERR_SYSTEM, FABRICAST_ERR_TIMEOUT, FABRICAST_OK,
};

thread_local!(static LAST: RefCell<CString> = RefCell::default());

/// Why a call fails.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// An argument makes no sense.
    #[error("{0}")]
    Argument(String),
    /// The library failed.
    #[error(transparent)]
    Library(#[from] Error),
    /// The system refused something that this crate asked for.
    #[error("{0}: {1}")]
    System(&'static str, io::Error),
}

/// The library's names of settings, and the names by which a C caller and the user of an MPI
/// program set them.
const SETTINGS: [(&str, &str); 7] = [
    (setting::INJECT_LOSS, "inject_loss, FABRICAST_INJECT_LOSS"),
    (
        setting::INJECT_DELAY,
        "inject_delay, FABRICAST_INJECT_DELAY",
    ),
    (setting::INTERFACE, "interface, FABRICAST_INTERFACE"),
    (setting::JOB_SCHEME, "scheme, FABRICAST_SCHEME"),
    (setting::JOB_BROADCAST, "broadcast, FABRICAST_BROADCAST"),
    (setting::JOB_SUBNET, "subnet, FABRICAST_SUBNET"),
    (setting::JOB_GROUPS, "groups, FABRICAST_GROUPS"),
];

/// The reason of a failure, with names of settings that the caller knows.
fn reason(failure: &Failure) -> String {
    let text = failure.to_string();
    // Another process may have said it.
    let text = escaped(&text).into_owned();
    SETTINGS
        .iter()
        .fold(text, |text, (name, ours)| text.replace(name, ours))
}

/// Runs `what` and turns its result into a status. On a failure, keeps the reason for
/// [`last_error`].
pub fn call(what: impl FnOnce() -> Result<(), Failure>) -> c_int {
    // What a panic leaves behind is locked, or its owner frees it. The status says not to go on.
    let (status, reason) = match catch_unwind(AssertUnwindSafe(what)) {
        Ok(Ok(())) => return FABRICAST_OK,
        Ok(Err(failure)) => (status(&failure), reason(&failure)),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().copied();
            let text = text.or(panic.downcast_ref::<String>().map(String::as_str));
            let text = text.unwrap_or("a panic");
            (
                FABRICAST_ERR_INTERNAL,
                format!("a defect of Fabricast: {text}"),
            )
        }
    };
    let reason = CString::new(reason.replace('\0', " ")).unwrap_or_default();
    LAST.with(|last| *last.borrow_mut() = reason);
    status
}

/// The reason of the last failure in this thread.
pub fn last_error() -> *const c_char {
    LAST.with(|last| last.borrow().as_ptr())
}

fn status(failure: &Failure) -> c_int {
    let error = match failure {
        Failure::Argument(_) => return FABRICAST_ERR_ARGUMENT,
        Failure::System(..) => return FABRICAST_ERR_SYSTEM,
        Failure::Library(error) => error,
    };
    match error {
        Error::Network(NetworkError::Options(_))
        | Error::Scheme(_)
        | Error::GroupMembers
        | Error::GroupNumber(_)
        | Error::Cover(_)
        | Error::NoMember { .. }
        | Error::Refused(_)
        | Error::LengthMismatch
        | Error::GroupEnded => FABRICAST_ERR_ARGUMENT,
        Error::RankLost { .. } => FABRICAST_ERR_PEER_LOST,
        Error::Bootstrap(_) | Error::CannotTakePart { .. } | Error::Disagreement(_) => {
            FABRICAST_ERR_REFUSED
        }
        Error::NotConnected { .. } => FABRICAST_ERR_TIMEOUT,
        _ => FABRICAST_ERR_SYSTEM,
    }
}

/// The error for an argument that makes no sense.
pub fn wrong(why: &str) -> Failure {
    Failure::Argument(why.into())
}

/// What a pointer of the caller points to, for this call alone. An error if it is null.
///
/// # Safety
/// The pointer is null, or valid and used by nothing else for the lifetime that the caller chooses.
pub unsafe fn given<'a, T>(pointer: *mut T) -> Result<&'a mut T, Failure> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_mut() }.ok_or_else(|| wrong("a pointer is null"))
}

/// What a handle points to, which several threads may use at once. An error if it is null.
///
/// # Safety
/// The handle is null, or valid and not changed for the lifetime that the caller chooses.
pub unsafe fn shared<'a, T>(handle: *const T) -> Result<&'a T, Failure> {
    // SAFETY: the caller's promise.
    unsafe { handle.as_ref() }.ok_or_else(|| wrong("a pointer is null"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_ranks_reason_does_nothing_to_a_terminal() {
        let failure = Failure::from(Error::CannotTakePart {
            rank: 1,
            reason: "\u{1b}[31m\nno\u{3164}".into(),
        });
        let text = reason(&failure);
        assert!(
            text.contains("rank 1 cannot take part") && text.contains("no"),
            "{text}"
        );
        assert!(text.chars().all(fabricast_lib::text::harmless), "{text}");
    }
}
