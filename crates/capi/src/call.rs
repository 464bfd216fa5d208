//! What every call has in common: a status, a reason, and no panic beyond the border.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use fabricast_lib::error::Error;

use crate::status::{
    FABRICAST_ERR_ARGUMENT, FABRICAST_ERR_INTERNAL, FABRICAST_ERR_PEER_LOST, FABRICAST_ERR_REFUSED,
    FABRICAST_ERR_SYSTEM, FABRICAST_ERR_TIMEOUT, FABRICAST_OK,
};

thread_local!(static LAST: RefCell<CString> = RefCell::default());

/// Does it, and turns what comes of it into a status.
pub fn call(what: impl FnOnce() -> Result<(), Error>) -> c_int {
    // What a panic leaves behind is locked or freed by its owner; the status says not to go on.
    let (status, reason) = match catch_unwind(AssertUnwindSafe(what)) {
        Ok(Ok(())) => return FABRICAST_OK,
        Ok(Err(error)) => (status(&error), error.to_string()),
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

fn status(error: &Error) -> c_int {
    match error {
        Error::Usage(_) => FABRICAST_ERR_ARGUMENT,
        Error::PeerLost(_) => FABRICAST_ERR_PEER_LOST,
        Error::Refused(_) => FABRICAST_ERR_REFUSED,
        Error::Timeout(_) => FABRICAST_ERR_TIMEOUT,
        _ => FABRICAST_ERR_SYSTEM,
    }
}

/// An argument that makes no sense.
pub fn wrong(why: &str) -> Error {
    Error::Usage(why.into())
}

/// What a pointer of the caller's leads to, for this call alone.
///
/// # Safety
/// It is null, or valid and used by nobody else for the time that the caller says.
pub unsafe fn given<'a, T>(pointer: *mut T) -> Result<&'a mut T, Error> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_mut() }.ok_or_else(|| wrong("a pointer is null"))
}

/// What a handle leads to, which several threads may use at once.
///
/// # Safety
/// It is null, or valid and changed by nobody for the time that the caller says.
pub unsafe fn shared<'a, T>(handle: *const T) -> Result<&'a T, Error> {
    // SAFETY: the caller's promise.
    unsafe { handle.as_ref() }.ok_or_else(|| wrong("a pointer is null"))
}
