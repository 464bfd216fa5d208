//! What drivers move for a group: a caller's object, or a part of an object.

use std::sync::Arc;

use fabricast_proto::Outcome;

use crate::object::{Fetch, Memory, Object, Written};

/// A caller's object, or a part of an object or of a copy. The bytes of a shared object and of a
/// copy are always in memory.
pub(crate) enum BufferView<O> {
    /// A caller's object, or a part that was split off one.
    Own(O),
    /// A part of an object that is sent to two groups at once, or in segments.
    Shared(Arc<O>, Segment),
    /// A part of a copy that is sent to two groups at once, or in segments.
    Copy(Arc<Memory>, Segment),
    /// Memory for bytes that are here already and come once more.
    Scratch(Memory),
}

/// `len` bytes from `offset`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Segment {
    pub offset: u64,
    pub len: u64,
}

impl<O> BufferView<O> {
    /// The caller's object, if the view owns it.
    pub fn own(self) -> Option<O> {
        match self {
            BufferView::Own(object) => Some(object),
            BufferView::Shared(..) | BufferView::Copy(..) | BufferView::Scratch(_) => None,
        }
    }
}

// SAFETY: it promises what the object promises that it is or is a part of. Shared ones are not
// written.
#[allow(unsafe_code)]
unsafe impl<O: Object> Object for BufferView<O> {
    fn len(&self) -> u64 {
        match self {
            BufferView::Own(o) => o.len(),
            BufferView::Shared(_, segment) | BufferView::Copy(_, segment) => segment.len,
            BufferView::Scratch(memory) => memory.len(),
        }
    }
    fn fetch(&mut self, offset: u64, len: u32) -> Fetch {
        match self {
            BufferView::Own(o) => o.fetch(offset, len),
            BufferView::Shared(..) | BufferView::Copy(..) | BufferView::Scratch(_) => Fetch::Ready,
        }
    }
    fn bytes(&self, offset: u64, len: u32) -> &[u8] {
        match self {
            BufferView::Own(o) => o.bytes(offset, len),
            BufferView::Shared(whole, segment) => whole.bytes(segment.offset + offset, len),
            BufferView::Copy(copy, segment) => copy.bytes(segment.offset + offset, len),
            BufferView::Scratch(memory) => memory.bytes(offset, len),
        }
    }
    fn is_stable(&self) -> bool {
        match self {
            BufferView::Own(o) => o.is_stable(),
            BufferView::Shared(whole, _) => whole.is_stable(),
            BufferView::Copy(copy, _) => copy.is_stable(),
            BufferView::Scratch(scratch) => scratch.is_stable(),
        }
    }
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Written {
        match self {
            BufferView::Own(o) => o.write(offset, bytes),
            BufferView::Scratch(memory) => memory.write(offset, bytes),
            // Only objects that are sent are shared or copied, and these are never written.
            BufferView::Shared(..) | BufferView::Copy(..) => Written::Failed,
        }
    }
    fn progress(&mut self, report: &mut dyn FnMut(u64, u32, Outcome)) {
        if let BufferView::Own(o) = self {
            o.progress(report);
        }
    }
}
