//! The bytes of one collective: the caller's object, in the pieces in which this process receives
//! or sends it.

use std::sync::Arc;

use super::buffer::{BufferView, Segment};
use crate::collective::{Action, Buffer, Part, Peer, Step};
use crate::object::{Divisible, Memory, Object};

/// Number of pieces at the end of a broadcast that a process passes on from copies, so that its
/// caller need not wait until the others have them.
const TAIL: usize = 4;

/// The bytes of one collective at one process.
pub(crate) struct Pieces<O> {
    bytes: Bytes<O>,
    /// Pieces of the caller's object that are not back with all their bytes.
    lacking: usize,
    /// Bytes of the copies from which this process passes pieces on.
    copied: u64,
}

/// Where the bytes are.
enum Bytes<O> {
    /// At the root: one object, read by all sends.
    Shared(Arc<O>),
    /// At the root: a copy. The caller has its object back.
    Copy(Arc<Memory>),
    /// At a receiver: the pieces of its object, in their order. A barrier has none.
    Cut(Vec<Piece<O>>),
}

/// A piece of an object that this process receives.
struct Piece<O> {
    part: Part,
    place: Place<O>,
    /// Sends of the piece, or of a part of it, that are not over.
    sends: u32,
    /// The piece is one of the last, so it is passed on from a copy.
    is_tail: bool,
}

/// Where a piece is.
enum Place<O> {
    /// Here, in the caller's memory. No driver uses it. Before it is received its bytes mean
    /// nothing.
    Here(O),
    /// At a driver, which receives it.
    Lent,
    /// Received, and read by sends.
    Shared(Arc<O>),
    /// Received and here. Sends read a copy. `None`: the caller has the piece back.
    Copied(Option<O>, Arc<Memory>),
    /// The caller has the piece back.
    Gone,
}

impl<O: Divisible> Pieces<O> {
    /// The bytes of a barrier: none.
    pub fn none() -> Pieces<O> {
        Pieces {
            bytes: Bytes::Cut(Vec::new()),
            lacking: 0,
            copied: 0,
        }
    }

    /// The object that the root of a broadcast sends.
    pub fn sent(object: O) -> Pieces<O> {
        Pieces {
            bytes: Bytes::Shared(Arc::new(object)),
            lacking: 0,
            copied: 0,
        }
    }

    /// A copy of the object that the root of a broadcast sends.
    pub fn copy(object: &O) -> Pieces<O> {
        Pieces {
            bytes: Bytes::Copy(Arc::new(copy_of(object))),
            lacking: 0,
            copied: 0,
        }
    }

    /// The object into which these steps receive. A part that an earlier step receives already, in
    /// whole or in part, is no piece: its bytes are received once more and dropped.
    pub fn received(object: O, steps: &[Step]) -> Pieces<O> {
        let mut parts: Vec<Part> = Vec::new();
        for step in steps.iter().filter(|s| s.action == Action::Receive) {
            let at = parts.partition_point(|part| part.offset < step.part.offset);
            let ends_before = |part: &Part| part.end() <= step.part.offset;
            let begins_after = |part: &Part| part.offset >= step.part.end();
            if at.checked_sub(1).is_none_or(|i| ends_before(&parts[i]))
                && parts.get(at).is_none_or(begins_after)
            {
                parts.insert(at, step.part);
            }
        }
        let mut pieces = cut(object, &parts);
        let last = pieces.len().saturating_sub(TAIL);
        for piece in &mut pieces[last..] {
            piece.is_tail = true;
        }
        let mut pieces = Pieces {
            lacking: pieces.len(),
            bytes: Bytes::Cut(pieces),
            copied: 0,
        };
        for step in steps.iter().filter(|s| s.action == Action::Send) {
            if let Some(piece) = pieces.piece(step.part) {
                piece.sends += 1;
            }
        }
        pieces
    }

    /// The piece that contains a part, which is no part of the root's object.
    fn piece(&mut self, part: Part) -> Option<&mut Piece<O>> {
        let Bytes::Cut(pieces) = &mut self.bytes else {
            return None;
        };
        let after = pieces.partition_point(|piece| piece.part.offset <= part.offset);
        let piece = pieces.get_mut(after.checked_sub(1)?)?;
        (part.end() <= piece.part.end()).then_some(piece)
    }

    /// The caller's object, if all of it is here. Copies stay for the sends that read them.
    pub fn whole(&mut self) -> Option<O> {
        let pieces = match &mut self.bytes {
            Bytes::Cut(pieces) => pieces,
            Bytes::Copy(_) => return None,
            Bytes::Shared(_) => {
                let none = Bytes::Cut(Vec::new());
                return match std::mem::replace(&mut self.bytes, none) {
                    Bytes::Shared(whole) => Arc::into_inner(whole),
                    Bytes::Copy(_) | Bytes::Cut(_) => None,
                };
            }
        };
        let mut objects = pieces.iter_mut().map(Piece::take);
        let first = objects.next().flatten()?;
        objects.try_fold(first, |mut whole, object| {
            whole.append(object?);
            Some(whole)
        })
    }
}

impl<O: Divisible> Piece<O> {
    /// The caller's memory, if no driver uses it.
    fn take(&mut self) -> Option<O> {
        match std::mem::replace(&mut self.place, Place::Gone) {
            Place::Here(object) => Some(object),
            Place::Copied(object, copy) => {
                self.place = Place::Copied(None, copy);
                object
            }
            other => {
                self.place = other;
                None
            }
        }
    }
}

impl<O: Divisible> Buffer for Pieces<O> {
    type Object = BufferView<O>;

    fn source(&mut self, part: Part, _to: Peer) -> Option<BufferView<O>> {
        let segment = |start: u64| Segment {
            offset: part.offset - start,
            len: part.len,
        };
        match &self.bytes {
            Bytes::Shared(whole) => Some(BufferView::Shared(whole.clone(), segment(0))),
            Bytes::Copy(copy) => Some(BufferView::Copy(copy.clone(), segment(0))),
            Bytes::Cut(_) => {
                let piece = self.piece(part)?;
                let segment = segment(piece.part.offset);
                match &piece.place {
                    Place::Shared(object) => Some(BufferView::Shared(object.clone(), segment)),
                    Place::Copied(_, copy) => Some(BufferView::Copy(copy.clone(), segment)),
                    Place::Here(_) | Place::Lent | Place::Gone => None,
                }
            }
        }
    }

    fn room(&mut self, part: Part, _from: Peer) -> Option<BufferView<O>> {
        let piece = self.piece(part).filter(|piece| piece.part == part);
        let Some(piece) = piece.filter(|piece| matches!(piece.place, Place::Here(_))) else {
            return Some(BufferView::Scratch(Memory::room(part.len as usize)));
        };
        let object = piece.take();
        piece.place = Place::Lent;
        object.map(BufferView::Own)
    }

    fn put_back(&mut self, part: Part, object: BufferView<O>) {
        if let (Some(object), Some(piece)) = (object.own(), self.piece(part)) {
            piece.place = Place::Here(object);
        }
    }

    fn received(&mut self, part: Part, object: BufferView<O>, copies_max: u64) {
        let (Some(object), Some(piece)) = (object.own(), self.piece(part)) else {
            return; // the bytes were here already
        };
        let passes = piece.sends > 0;
        let copied = passes && piece.is_tail && part.len <= copies_max;
        piece.place = match (passes, copied) {
            (false, _) => Place::Here(object),
            (true, false) => Place::Shared(Arc::new(object)),
            (true, true) => {
                let copy = Arc::new(copy_of(&object));
                Place::Copied(Some(object), copy)
            }
        };
        self.copied += if copied { part.len } else { 0 };
        self.lacking -= usize::from(!passes || copied);
    }

    fn sent(&mut self, part: Part, object: BufferView<O>) {
        drop(object);
        let Some(piece) = self.piece(part) else {
            return;
        };
        piece.sends = piece.sends.saturating_sub(1);
        if piece.sends > 0 || !matches!(piece.place, Place::Shared(_)) {
            return;
        }
        if let Place::Shared(object) = std::mem::replace(&mut piece.place, Place::Gone)
            && let Some(object) = Arc::into_inner(object)
        {
            piece.place = Place::Here(object);
            self.lacking -= 1;
        }
    }

    fn copied(&self) -> u64 {
        self.copied
    }

    fn is_back(&self) -> bool {
        let received = matches!(&self.bytes, Bytes::Cut(pieces) if !pieces.is_empty());
        received && self.lacking == 0
    }
}

/// A copy of all bytes of an object that holds them in memory.
fn copy_of<O: Object>(object: &O) -> Memory {
    Memory::new(object.bytes(0, object.len() as u32).to_vec())
}

/// Cuts an object into pieces that follow each other.
fn cut<O: Divisible>(mut object: O, parts: &[Part]) -> Vec<Piece<O>> {
    let piece = |part, object| Piece {
        part,
        place: Place::Here(object),
        sends: 0,
        is_tail: false,
    };
    let mut pieces = Vec::with_capacity(parts.len());
    for &part in parts.iter().skip(1).rev() {
        pieces.push(piece(part, object.split_off(part.offset)));
    }
    pieces.extend(parts.first().map(|&part| piece(part, object)));
    pieces.reverse();
    pieces
}
