//! Bytes of the caller that the library reads or writes until the operation is complete.

use std::ptr::{self, NonNull};
use std::slice;

use fabricast_lib::object::{Divisible, Fetch, Object, Written};
use fabricast_lib::proto::Outcome;

use crate::call::{Failure, wrong};

/// A caller's buffer.
pub struct Lent {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: the caller that lends a buffer leaves it alone until the operation is complete, so it
// makes no difference which thread touches the buffer.
unsafe impl Send for Lent {}
// SAFETY: a shared `Lent` is only read.
unsafe impl Sync for Lent {}

impl Lent {
    /// Lends `len` bytes at `at` to an operation.
    ///
    /// # Safety
    /// `at` is valid for `len` bytes, which nothing else touches until the operation is complete.
    pub unsafe fn new(at: *mut u8, len: u64) -> Result<Lent, Failure> {
        let len = usize::try_from(len).map_err(|_| wrong("the buffer is longer than memory"))?;
        match NonNull::new(at) {
            Some(at) => Ok(Lent { at, len }),
            None if len == 0 => Ok(Lent {
                at: NonNull::dangling(),
                len,
            }),
            None => Err(wrong("the buffer is null")),
        }
    }

    /// The index of `offset` in the buffer. Panics if the extent is not within the buffer.
    fn check(&self, offset: u64, len: usize) -> usize {
        let inside = usize::try_from(offset).ok().filter(|start| {
            let end = start.checked_add(len);
            end.is_some_and(|end| end <= self.len)
        });
        inside.expect("an extent lies within its object")
    }
}

// SAFETY: by the contract of `new` the caller neither moves nor changes its buffer.
unsafe impl Object for Lent {
    fn len(&self) -> u64 {
        self.len as u64
    }

    fn fetch(&mut self, _offset: u64, _len: u32) -> Fetch {
        Fetch::Ready
    }

    fn bytes(&self, offset: u64, len: u32) -> &[u8] {
        let start = self.check(offset, len as usize);
        // SAFETY: the bytes are within what `new` was promised, and nothing writes them while
        // `self` is borrowed: a root's buffer is not written at all.
        unsafe { slice::from_raw_parts(self.at.as_ptr().add(start), len as usize) }
    }

    /// The caller's memory stays where it is until the operation is over.
    fn is_stable(&self) -> bool {
        true
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Written {
        let start = self.check(offset, bytes.len());
        // SAFETY: the bytes are within what `new` was promised; `bytes` came from the network and
        // lies elsewhere.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), self.at.as_ptr().add(start), bytes.len());
        }
        Written::Placed
    }

    fn progress(&mut self, _report: &mut dyn FnMut(u64, u32, Outcome)) {}
}

impl Divisible for Lent {
    fn split_off(&mut self, at: u64) -> Lent {
        let start = self.check(at, 0);
        let rest = Lent {
            // SAFETY: `start` is within the buffer, or its end.
            at: unsafe { self.at.add(start) },
            len: self.len - start,
        };
        self.len = start;
        rest
    }

    fn append(&mut self, rest: Lent) {
        debug_assert_eq!(self.at.as_ptr().wrapping_add(self.len), rest.at.as_ptr());
        self.len += rest.len;
    }
}
