//! The trace of a run: one line per transition, or only a hash over all of them.

use std::fmt;
use std::io::Write;

/// The trace of a run. Two runs of one seed must leave the same trace.
pub struct Trace<'w> {
    hash: u64,
    lines: u64,
    out: Option<&'w mut dyn Write>,
}

impl fmt::Debug for Trace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Trace({:016x}, {} lines)", self.hash, self.lines)
    }
}

impl<'w> Trace<'w> {
    /// A trace that keeps only the hash.
    pub fn silent() -> Trace<'w> {
        Trace {
            hash: 0xcbf2_9ce4_8422_2325,
            lines: 0,
            out: None,
        }
    }

    /// A trace that keeps the hash and writes every transition as a line.
    pub fn printed(out: &'w mut dyn Write) -> Trace<'w> {
        Trace {
            hash: 0xcbf2_9ce4_8422_2325,
            lines: 0,
            out: Some(out),
        }
    }

    /// Notes a transition: `numbers` go into the hash; `words` is called only if the trace is
    /// printed.
    pub(crate) fn note(&mut self, at_ns: u64, numbers: [u64; 3], words: impl FnOnce() -> String) {
        for n in [at_ns, numbers[0], numbers[1], numbers[2]] {
            self.hash = mix(self.hash, n);
        }
        self.lines += 1;
        self.say(at_ns, words);
    }

    /// Whether the trace is printed.
    pub(crate) fn prints(&self) -> bool {
        self.out.is_some()
    }

    /// Prints words that do not go into the hash.
    pub(crate) fn say(&mut self, at_ns: u64, words: impl FnOnce() -> String) {
        if let Some(out) = &mut self.out {
            let (ms, ns) = (at_ns / 1_000_000, at_ns % 1_000_000);
            // When the reader has gone away (a closed pipe), the judge goes on.
            let _ = writeln!(out, "{ms:7}.{ns:06} {}", words());
        }
    }

    /// The hash over all transitions so far.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Number of transitions so far.
    pub fn transitions(&self) -> u64 {
        self.lines
    }
}

fn mix(hash: u64, n: u64) -> u64 {
    (hash ^ n)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(29)
}

/// A hash of some bytes.
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut h = words
        .iter()
        .fold(bytes.len() as u64, |h, w| mix(h, u64::from_le_bytes(*w)));
    for &b in rest {
        h = mix(h, u64::from(b));
    }
    h
}
