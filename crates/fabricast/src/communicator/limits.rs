//! Bounds that several rooms of a context keep.

/// Largest broadcast that its root copies, in bytes. The root's call then returns at once.
pub(crate) const COPY_MAX: u32 = 256 << 10;

/// Largest number of bytes in copies that receivers still lack. A process applies it to the copies
/// that it makes as root, and separately to copies of the segments that it passes on. Beyond it,
/// callers wait themselves.
pub(crate) const COPIES_MAX: u64 = 4 << 20;

/// Largest number of sets in the cover of a group.
pub const COVER_SETS_MAX: usize = 64;

/// Number of multicast addresses of a context that its groups share, led there by a hash of their
/// hosts.
pub(crate) const ADDRESSES: usize = 8;

/// Number of all multicast addresses that a context may use.
pub(crate) const ADDRESSES_MAX: usize = 128;
