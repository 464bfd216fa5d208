//! Keeps the caller's signals for the caller's own threads: threads that the library starts take
//! none.

use std::mem::MaybeUninit;
use std::ptr;

/// While this value lives, its thread takes no signals. Threads that it starts meanwhile never take
/// any.
pub struct Kept {
    before: libc::sigset_t,
}

impl Kept {
    pub fn new() -> Kept {
        let mut all = MaybeUninit::uninit();
        let mut before = MaybeUninit::uninit();
        // SAFETY: both are valid to be written. The calls fail only for other values of the first
        // argument, and write both.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            Kept {
                before: before.assume_init(),
            }
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // SAFETY: `before` is the mask that this thread had.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, ptr::null_mut())
        };
    }
}
