//! The caller's signals are for its own threads: those that are made here take none.

use std::mem::MaybeUninit;
use std::ptr;

/// While it lives, this thread takes no signals, and neither do those that it makes, ever.
pub struct Kept {
    before: libc::sigset_t,
}

impl Kept {
    pub fn new() -> Kept {
        let mut all = MaybeUninit::uninit();
        let mut before = MaybeUninit::uninit();
        // SAFETY: both are valid to be written; the calls fail only for other values of the first
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
        // SAFETY: it is what this thread had.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, ptr::null_mut())
        };
    }
}
