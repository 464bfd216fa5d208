//! Statuses that calls return.

use std::ffi::c_int;

/// Success.
pub const FABRICAST_OK: c_int = 0;
/// An argument makes no sense: for example a null pointer, a rank that does not exist, or a length
/// that differs from the root's.
pub const FABRICAST_ERR_ARGUMENT: c_int = 1;
/// The operating system refused something.
pub const FABRICAST_ERR_SYSTEM: c_int = 2;
/// A process of the group is gone.
pub const FABRICAST_ERR_PEER_LOST: c_int = 3;
/// Another process could not take part, or speaks another version.
pub const FABRICAST_ERR_REFUSED: c_int = 4;
/// Something did not happen in time.
pub const FABRICAST_ERR_TIMEOUT: c_int = 5;
/// A defect of this library.
pub const FABRICAST_ERR_INTERNAL: c_int = 6;
