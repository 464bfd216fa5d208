//! The paths of a stream, and whose turn it is to send.

use core::ops::{Index, IndexMut, Range};

use crate::path::window::Window;
use crate::path::{Pacer, Path, Target};
use crate::seq::Seq;

/// Packets that a path sends before it is the next path's turn: enough for a batch of datagrams.
const TURN_PACKETS: u32 = 32;

/// All paths of a stream. A path keeps its place until it ends; a place without a path is `None`.
pub(super) struct Paths {
    all: Vec<Option<Path>>,
    /// Packets in the window of a path.
    window: u32,
    /// The node's fixed rate, in bytes per second, if there is one.
    rate: Option<u64>,
    /// The number of the last path that was made.
    number: u32,
    /// The path whose turn it is to send.
    turn: usize,
    /// Packets that it has sent in its turn.
    taken: u32,
}

impl Paths {
    /// Creates a set without paths. `window`: packets in the window of each path. `rate`: the
    /// fixed rate that the node was made with, in bytes per second.
    pub fn new(window: u32, rate: Option<u64>) -> Paths {
        Paths {
            all: Vec::new(),
            window,
            rate,
            number: 0,
            turn: 0,
            taken: 0,
        }
    }

    /// Creates a path, which has no place yet. `members` are those for which its window records
    /// what each lacks; see [`Window::new`].
    pub fn create(&mut self, to: Target, start: Seq, members: Option<Range<u32>>) -> Path {
        self.number = self.number.wrapping_add(1);
        Path {
            number: self.number,
            to,
            window: Window::new(start, self.window, members),
            pacer: Pacer::new(self.rate),
            fresh: 0,
            lossy: 0,
            follows: false,
            at_base: 0,
            limit: None,
            at_limit: 0,
        }
    }

    /// Puts a path into the first free place, and returns the place.
    pub fn add(&mut self, path: Path) -> usize {
        let free = self.all.iter().position(Option::is_none);
        let at = free.unwrap_or(self.all.len());
        if at == self.all.len() {
            self.all.push(None);
        }
        self.all[at] = Some(path);
        at
    }

    /// Number of places, including those without a path.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Packets in the window of a path.
    pub fn window(&self) -> u32 {
        self.window
    }

    /// All places.
    pub fn iter(&self) -> impl Iterator<Item = &Option<Path>> {
        self.all.iter()
    }

    /// All paths.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Path> {
        self.all.iter_mut().flatten()
    }

    /// The place `k` places after the path whose turn it is.
    pub fn in_turn(&self, k: usize) -> usize {
        (self.turn + k) % self.all.len()
    }

    /// Records that the path at `at`, `k` places after the path whose turn it is, has sent a
    /// packet. Paths take turns of [`TURN_PACKETS`], so that no path starves and batches of
    /// datagrams stay whole.
    pub fn has_sent(&mut self, at: usize, k: usize) {
        self.taken = if k == 0 { self.taken + 1 } else { 1 };
        self.turn = at;
        if self.taken >= TURN_PACKETS {
            (self.turn, self.taken) = (at + 1, 0);
        }
    }
}

impl Index<usize> for Paths {
    type Output = Option<Path>;

    fn index(&self, at: usize) -> &Option<Path> {
        &self.all[at]
    }
}

impl IndexMut<usize> for Paths {
    fn index_mut(&mut self, at: usize) -> &mut Option<Path> {
        &mut self.all[at]
    }
}
