//! Where headers and frames are written: a fixed piece of memory.

use core::ops::{Deref, DerefMut};

use crate::limits::HEAD_MAX;

/// Appends to a fixed slice of bytes, and dereferences to what it has written. The memory neither
/// grows nor moves, because a network may read it after it was written.
///
/// Panics if something does not fit: the caller has made the slice too short.
#[derive(Debug)]
pub struct Writer<'a> {
    bytes: &'a mut [u8],
    len: usize,
}

impl<'a> Writer<'a> {
    /// Writes to `bytes` from their beginning. What they hold is overwritten.
    pub fn new(bytes: &'a mut [u8]) -> Writer<'a> {
        Writer { bytes, len: 0 }
    }

    /// Number of bytes written.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends bytes.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) {
        self.next(bytes.len()).copy_from_slice(bytes);
    }

    /// Appends zeros, and returns them.
    pub fn zeros(&mut self, len: usize) -> &mut [u8] {
        let zeros = self.next(len);
        zeros.fill(0);
        zeros
    }

    /// Forgets what was written after the first `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// The next `len` bytes, which the caller writes.
    #[inline]
    pub(super) fn next(&mut self, len: usize) -> &mut [u8] {
        let start = self.len;
        let room = self.bytes.len();
        match self.bytes.get_mut(start..).and_then(|b| b.get_mut(..len)) {
            Some(next) => {
                self.len = start + len;
                next
            }
            None => panic!("{len} bytes after {start} do not fit in {room}"),
        }
    }
}

impl Deref for Writer<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl DerefMut for Writer<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }
}

/// What `write` writes, at most [`HEAD_MAX`] bytes. For programs that make datagrams by themselves.
pub fn head(write: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
    let mut bytes = vec![0; HEAD_MAX];
    let mut out = Writer::new(&mut bytes);
    write(&mut out);
    let len = out.len();
    bytes.truncate(len);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_lies_where_the_caller_has_said() {
        let mut bytes = [9; 8];
        let start = bytes.as_ptr();
        let mut out = Writer::new(&mut bytes);
        out.put(b"abc");
        out.zeros(2)[1] = b'd';
        out.put(b"xyz");
        assert_eq!((&out[..], out.as_ptr()), (&b"abc\0dxyz"[..], start));
        out.truncate(5);
        out.put(b"!");
        assert_eq!((&out[..], out.len()), (&b"abc\0d!"[..], 6));
        assert_eq!(bytes, *b"abc\0d!yz");
    }

    #[test]
    #[should_panic(expected = "4 bytes after 5 do not fit in 8")]
    fn what_does_not_fit_is_a_defect() {
        let mut bytes = [0; 8];
        let mut out = Writer::new(&mut bytes);
        out.put(b"hello");
        out.put(b"!!!!");
    }
}
