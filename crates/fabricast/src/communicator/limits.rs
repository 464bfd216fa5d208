//! Bounds that several rooms of a context keep.

/// A broadcast of at most so many bytes is copied at its root, whose call then returns at once.
pub(crate) const COPY_MAX: u32 = 256 << 10;

/// Bytes of copies that may wait for others to receive them, of a root's and again of what is
/// passed on; beyond, callers wait themselves.
pub(crate) const COPIES_MAX: u64 = 4 << 20;

/// IP groups that a context uses.
pub(crate) const ADDRESSES: usize = 8;
