//! A ring of words into which one process writes datagrams and from which any number of others
//! read.
//!
//! The writer waits for no reader. Two counters, which only grow, say how far it has come:
//! `claimed` before it writes, `head` after. A reader copies what it finds and then reads
//! `claimed`. If the writer has come round to the copied words, they are no datagram, and the
//! reader continues at `head`. The datagrams that it has missed are lost, as on a network.
//!
//! ```text
//!   words  ··· [to, len | datagram ]  [to, len | datagram ]  ···  head, claimed: modulo its length
//! ```
//! All words are atomic and relaxed, so to read what is being written is no data race. The counters
//! and two fences order them. The reader trusts nothing that it reads: it takes indices modulo the
//! ring's length and compares lengths with what was published.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use fabricast_proto::{AddressId, Dest, NodeId};

use crate::transport::Pieces;

/// Words before a datagram: its destination, and its length.
const HEADER: u64 = 2;
const WORD: usize = size_of::<u64>();
/// Flag in the second word: the datagram is for a group.
const GROUP: u64 = 1 << 63;

/// The shared part of one ring.
#[derive(Clone, Copy)]
pub(super) struct Ring<'a> {
    /// Number of words that are written or about to be; only grows.
    pub claimed: &'a AtomicU64,
    /// Number of words that may be read; only grows.
    pub head: &'a AtomicU64,
    /// The words. Their number is a power of two.
    pub words: &'a [AtomicU64],
}

impl<'a> Ring<'a> {
    fn word(&self, at: u64) -> &'a AtomicU64 {
        &self.words[at as usize & (self.words.len() - 1)]
    }

    /// `count` words from `at`, in two runs if they go round; at most all words.
    fn run(&self, at: u64, count: usize) -> [&'a [AtomicU64]; 2] {
        let start = at as usize & (self.words.len() - 1);
        let (before, after) = self.words.split_at(start);
        let first = count.min(after.len());
        [&after[..first], &before[..(count - first).min(start)]]
    }

    /// Largest datagram that a ring of `words` words takes, in bytes. Readers must have time to
    /// copy it.
    pub fn datagram_max(words: usize) -> usize {
        (words / 8 - HEADER as usize - 1) * WORD
    }
}

/// The only end of a ring that writes.
pub(super) struct Writer {
    at: u64,
}

impl Writer {
    /// The writer of a ring that is still empty.
    pub fn new() -> Writer {
        Writer { at: 0 }
    }

    /// Writes one datagram: the head, the payload and the trailer.
    pub fn write(&mut self, ring: Ring<'_>, to: Dest, [head, payload, trailer]: Pieces<'_>) {
        // Padding comes in front, so that the payload begins with a word.
        let pad = head.len().wrapping_neg() % WORD;
        let len = pad + head.len() + payload.len() + trailer.len();
        debug_assert!(len <= Ring::datagram_max(ring.words.len()) + WORD);
        let end = self.at + HEADER + len.div_ceil(WORD) as u64;
        ring.claimed.store(end, Ordering::Relaxed);
        // Pairs with the reader's fence: a reader that has read a word stored below reads this
        // `claimed`, or a later one.
        fence(Ordering::Release);
        let (kind, id) = match to {
            Dest::Address(AddressId(id)) => (GROUP, id),
            Dest::Node(NodeId(id)) => (0, id),
        };
        let mut at = self.at;
        let mut put = |words: &[[u8; WORD]]| {
            let [first, second] = ring.run(at, words.len());
            let (one, two) = words.split_at(first.len());
            store(first, one);
            store(second, two);
            at += words.len() as u64;
        };
        put(&[
            (u64::from(id) | (pad as u64) << 32).to_ne_bytes(),
            (kind | len as u64).to_ne_bytes(),
        ]);
        let (first, head) = head.split_at(head.len() % WORD);
        if pad > 0 {
            let mut word = [0; WORD];
            word[pad..].copy_from_slice(first);
            put(&[word]);
        }
        put(head.as_chunks::<WORD>().0);
        let (words, rest) = payload.as_chunks::<WORD>();
        put(words);
        // The trailer follows the payload within a word.
        let mut word = [0; WORD];
        word[..rest.len()].copy_from_slice(rest);
        let (first, trailer) = trailer.split_at(trailer.len().min(WORD - rest.len()));
        word[rest.len()..][..first.len()].copy_from_slice(first);
        if rest.len() + first.len() > 0 {
            put(&[word]);
        }
        let (words, rest) = trailer.as_chunks::<WORD>();
        put(words);
        if !rest.is_empty() {
            let mut word = [0; WORD];
            word[..rest.len()].copy_from_slice(rest);
            put(&[word]);
        }
        debug_assert_eq!(at, end);
        // Pairs with the reader's acquire: a reader that sees this `head` sees all words before it.
        ring.head.store(end, Ordering::Release);
        self.at = end;
    }
}

/// What a reader has found.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Found<'b> {
    /// No new datagram.
    Nothing,
    /// A datagram that was wanted.
    Datagram(&'b mut [u8]),
    /// The writer was faster: some datagrams are lost.
    Lost,
}

/// One reader of a ring.
pub(super) struct Reader {
    at: u64,
    bytes: Vec<u8>,
}

impl Reader {
    /// The reader of a ring that is still empty.
    pub fn new() -> Reader {
        Reader {
            at: 0,
            bytes: Vec::new(),
        }
    }

    /// How far it has read. It equals `head` when nothing waits.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// The next datagram whose destination is `wanted`.
    pub fn read(&mut self, ring: Ring<'_>, wanted: impl Fn(Dest) -> bool) -> Found<'_> {
        let head = ring.head.load(Ordering::Acquire);
        while self.at != head {
            let Some((to, pad, len)) = self.header(ring, head) else {
                self.at = head;
                return Found::Lost;
            };
            let start = self.at.wrapping_add(HEADER);
            let end = start.wrapping_add(len.div_ceil(WORD) as u64);
            if !wanted(to) {
                self.at = end;
                continue;
            }
            let padded = len.next_multiple_of(WORD);
            if self.bytes.len() < padded {
                self.bytes.resize(padded, 0);
            }
            let (words, _) = self.bytes[..padded].as_chunks_mut::<WORD>();
            let [first, second] = ring.run(start, words.len());
            let (one, two) = words.split_at_mut(first.len());
            load(first, one);
            load(second, two);
            if !self.is_whole(ring) {
                self.at = head;
                return Found::Lost;
            }
            self.at = end;
            return Found::Datagram(&mut self.bytes[pad..len]);
        }
        Found::Nothing
    }

    /// The destination of the next datagram, the bytes of padding before it, and its length with
    /// the padding. `None`: it has been overwritten, or it cannot have been written by a writer.
    fn header(&self, ring: Ring<'_>, head: u64) -> Option<(Dest, usize, usize)> {
        let word = |i| ring.word(self.at.wrapping_add(i)).load(Ordering::Relaxed);
        let (first, second) = (word(0), word(1));
        let published = head.wrapping_sub(self.at);
        if published > ring.words.len() as u64 || !self.is_whole(ring) {
            return None;
        }
        let (id, pad) = (first as u32, (first >> 32) as usize);
        let len = usize::try_from(second & !GROUP).ok()?;
        let words = HEADER + len.div_ceil(WORD) as u64;
        let to = match second & GROUP {
            0 => Dest::Node(NodeId(id)),
            _ => Dest::Address(AddressId(id)),
        };
        (words <= published && pad < WORD && pad <= len).then_some((to, pad, len))
    }

    /// Whether what was read at this reader's place had not been overwritten.
    fn is_whole(&self, ring: Ring<'_>) -> bool {
        // Pairs with the writer's fence: the loads before this one are done. If any of them has
        // read a word of a later datagram, this load reads the `claimed` that announced it.
        fence(Ordering::Acquire);
        let claimed = ring.claimed.load(Ordering::Relaxed);
        claimed.wrapping_sub(self.at) <= ring.words.len() as u64
    }
}

fn store(to: &[AtomicU64], words: &[[u8; WORD]]) {
    for (to, &word) in to.iter().zip(words) {
        to.store(u64::from_ne_bytes(word), Ordering::Relaxed);
    }
}

fn load(from: &[AtomicU64], words: &mut [[u8; WORD]]) {
    for (from, word) in from.iter().zip(words) {
        *word = from.load(Ordering::Relaxed).to_ne_bytes();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use fabricast_proto::rng::Rng;
    use proptest::prelude::*;

    use super::*;

    struct Shared {
        claimed: AtomicU64,
        head: AtomicU64,
        words: Vec<AtomicU64>,
    }

    impl Shared {
        fn new(words: usize) -> Shared {
            Shared {
                claimed: AtomicU64::new(0),
                head: AtomicU64::new(0),
                words: (0..words).map(|_| AtomicU64::new(0)).collect(),
            }
        }

        fn ring(&self) -> Ring<'_> {
            Ring {
                claimed: &self.claimed,
                head: &self.head,
                words: &self.words,
            }
        }
    }

    const ALL: Dest = Dest::Address(AddressId(7));
    const ME: Dest = Dest::Node(NodeId(u32::MAX));

    /// A datagram of `len` bytes. Its bytes depend on its number, so that a mix of two is noticed.
    fn bytes(number: u32, len: usize) -> Vec<u8> {
        let mut rng = Rng::new(u64::from(number));
        let mut bytes = number.to_be_bytes().to_vec();
        bytes.extend((4..len).map(|_| rng.bits() as u8));
        bytes
    }

    fn number(bytes: &[u8]) -> u32 {
        u32::from_be_bytes(bytes[..4].try_into().unwrap())
    }

    proptest! {
        /// Every written datagram, however it is cut, is read in order by its destination.
        #[test]
        fn what_is_written_is_read(
            datagrams in prop::collection::vec(
                (0..200usize, 0..300usize, 0..20usize, any::<bool>(), 0..4u8),
                1..300,
            ),
        ) {
            let shared = Shared::new(1024);
            let (mut writer, mut reader) = (Writer::new(), Reader::new());
            let (mut expected, mut unread) = (Vec::new(), 0);
            for (n, (head, body, trailer, mine, reads)) in (0..).zip(datagrams) {
                let whole = bytes(n, 4 + head + body + trailer);
                let to = if mine { ME } else { ALL };
                let (front, trailer) = whole.split_at(4 + head + body);
                let (head, body) = front.split_at(4 + head);
                writer.write(shared.ring(), to, [head, body, trailer]);
                unread += whole.len() / WORD + 4;
                if mine {
                    expected.push(whole);
                }
                // What is not read is soon overwritten.
                if reads > 0 || unread > 900 {
                    unread = 0;
                    for mut whole in expected.drain(..) {
                        let found = reader.read(shared.ring(), |to| to == ME);
                        prop_assert_eq!(found, Found::Datagram(&mut whole));
                    }
                    prop_assert_eq!(reader.read(shared.ring(), |to| to == ME), Found::Nothing);
                }
            }
        }

        /// Whatever the shared memory contains, a reader neither panics nor loops for ever.
        #[test]
        fn nonsense_is_survived(
            words in prop::collection::vec(any::<u64>(), 64),
            counters in prop::collection::vec((any::<u64>(), any::<u64>(), 0..200u64), 1..50),
        ) {
            let shared = Shared::new(64);
            for (to, word) in shared.words.iter().zip(words) {
                to.store(word, Ordering::Relaxed);
            }
            let mut reader = Reader::new();
            for (claimed, head, small) in counters {
                let near = reader.at().wrapping_add(small);
                let pairs = [(claimed, head), (near, near), (near, head), (claimed, near)];
                for (claimed, head) in pairs {
                    shared.claimed.store(claimed, Ordering::Relaxed);
                    shared.head.store(head, Ordering::Relaxed);
                    while matches!(reader.read(shared.ring(), |_| true), Found::Datagram(_)) {}
                    prop_assert_eq!(reader.at(), head);
                }
            }
        }
    }

    #[test]
    fn a_reader_that_is_passed_goes_on_behind_the_writer() {
        let shared = Shared::new(256);
        let (mut writer, mut reader) = (Writer::new(), Reader::new());
        for n in 0..100 {
            let whole = bytes(n, 100);
            writer.write(shared.ring(), ALL, [&[], &whole, &[]]);
        }
        assert_eq!(reader.read(shared.ring(), |_| true), Found::Lost);
        assert_eq!(reader.read(shared.ring(), |_| true), Found::Nothing);
        writer.write(shared.ring(), ALL, [b"next", b"one", b""]);
        let mut next = *b"nextone";
        let found = reader.read(shared.ring(), |_| true);
        assert_eq!(found, Found::Datagram(&mut next));
    }

    /// A writer never waits, and readers cannot keep up: what they get is whole and in order.
    #[test]
    fn nothing_torn_is_ever_read() {
        const COUNT: u32 = 200_000;
        let shared = Shared::new(512);
        let over = AtomicBool::new(false);
        let got: Vec<(u32, u32)> = thread::scope(|scope| {
            let readers: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        let mut reader = Reader::new();
                        let (mut got, mut lost, mut last) = (0, 0, None);
                        loop {
                            let ends = over.load(Ordering::Acquire);
                            match reader.read(shared.ring(), |_| true) {
                                Found::Datagram(read) => {
                                    let n = number(read);
                                    assert_eq!(read, bytes(n, 4 + n as usize % 301), "torn");
                                    assert!(last.is_none_or(|last| last < n), "{last:?}, {n}");
                                    (got, last) = (got + 1, Some(n));
                                }
                                Found::Lost => lost += 1,
                                Found::Nothing if ends => return (got, lost),
                                Found::Nothing => thread::yield_now(),
                            }
                        }
                    })
                })
                .collect();
            let mut writer = Writer::new();
            for n in 0..COUNT {
                let whole = bytes(n, 4 + n as usize % 301);
                let (head, rest) = whole.split_at(whole.len() % 40);
                let (body, trailer) = rest.split_at(rest.len() - rest.len() % 3);
                writer.write(shared.ring(), ALL, [head, body, trailer]);
                if n % 1000 < 30 {
                    thread::yield_now();
                }
            }
            over.store(true, Ordering::Release);
            readers.into_iter().map(|r| r.join().unwrap()).collect()
        });
        for (got, lost) in got {
            assert!(got > 0 && lost > 0, "it has not been tried: {got}, {lost}");
        }
    }
}
