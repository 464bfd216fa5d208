//! Makes packs of a stream: a pack leaves when it is full, or a moment after its first bytes came.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::{Packed, Reading};
use crate::object::LEN_MAX;
use crate::object::cutter::Mark;
use crate::object::pack::{Header, PIECE_MAX, Piece};

/// How long the first bytes of a pack wait for others.
const LINGER: Duration = Duration::from_millis(100);
/// How often the thread checks whether anybody wants packs still, while no bytes come.
const TICK: Duration = Duration::from_millis(100);

impl Reading<'_> {
    /// Makes packs of what `input` yields, up to its end. `None`: nobody wants packs any more.
    pub(super) fn stream(&mut self, input: &File) -> Option<()> {
        let mut offset = 0;
        loop {
            let most = self.cutter.most().min(PIECE_MAX);
            self.make_room(Header::len_of(1, most), most);
            let (len, last) = match fill(input, &mut self.memory[self.gap..], self.over)? {
                Ok((len, _)) if offset + len as u64 > LEN_MAX => {
                    self.fail_stream(format!("standard input has more than {LEN_MAX} bytes"))?;
                    break;
                }
                Ok(filled) => filled,
                Err(e) => {
                    self.fail_stream(format!("reading standard input at byte {offset}: {e}"))?;
                    break;
                }
            };
            let bytes = &self.memory[self.gap..self.gap + len];
            self.set.sample(0, offset, bytes);
            self.cutter.push(Piece::Bytes {
                file: 0,
                offset,
                len: len as u32,
                last,
            });
            offset += len as u64;
            if last {
                self.set.end_stream(offset);
                break;
            }
            self.flush()?;
        }
        self.flush()?;
        self.say(Packed::End)
    }

    fn fail_stream(&mut self, why: String) -> Option<()> {
        self.start = Mark::default();
        self.fail(0, why)
    }
}

/// Reads into `memory` until it is full, the stream ends, or its first bytes have waited for
/// [`LINGER`]. Returns the number of bytes, and whether the stream has ended; `None` if `over` is
/// set before any came.
fn fill(
    mut input: &File,
    memory: &mut [u8],
    over: &AtomicBool,
) -> Option<io::Result<(usize, bool)>> {
    let (mut len, mut first) = (0, None);
    while len < memory.len() {
        let wait = match first {
            None => TICK,
            Some(first) => LINGER.saturating_sub(Instant::now().duration_since(first)),
        };
        match is_readable(input, wait) {
            Ok(true) => match input.read(&mut memory[len..]) {
                Ok(0) => return Some(Ok((len, true))),
                Ok(more) => {
                    len += more;
                    first.get_or_insert_with(Instant::now);
                }
                Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
                Err(e) => return Some(Err(e)),
            },
            Ok(false) if first.is_some() => break,
            Ok(false) => {}
            Err(e) => return Some(Err(e)),
        }
        if over.load(Ordering::Relaxed) {
            return None;
        }
    }
    Some(Ok((len, false)))
}

/// Waits until a read does not block. False if that has taken too long.
fn is_readable(input: &File, wait: Duration) -> io::Result<bool> {
    let mut events = [PollFd::new(input, PollFlags::IN)];
    let wait = wait.try_into().unwrap_or_default();
    match poll(&mut events, Some(&wait)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Arc;

    use super::*;
    use crate::object::SourceSet;
    use crate::object::pack::PACK_MAX;
    use crate::object::testing::{Packs, packs, pattern, pieces_of};

    /// A stream, and the end by which it is written.
    fn stream() -> (Arc<SourceSet>, std::io::PipeWriter) {
        let (read, write) = std::io::pipe().unwrap();
        let input = File::from(std::os::fd::OwnedFd::from(read));
        (Arc::new(SourceSet::stream(input, "x").unwrap()), write)
    }

    /// The bytes of packs of a stream. Checks that they lie one behind the other, and that the last
    /// piece says so.
    fn joined(all: &[crate::object::pack::Pack]) -> Vec<u8> {
        let mut got = Vec::new();
        let mut ended = false;
        for pack in all {
            for piece in pieces_of(pack).into_iter().flatten() {
                let Piece::Bytes { offset, last, .. } = piece else {
                    panic!("{piece:?}");
                };
                assert!(offset == got.len() as u64 && !ended);
                got.extend_from_slice(pack.payload());
                ended = last;
            }
        }
        assert!(ended);
        got
    }

    #[test]
    fn a_stream_goes_in_packs_up_to_its_end() {
        for len in [0, 1, 1 << 20, PACK_MAX + 3] {
            let (set, mut write) = stream();
            let sent = pattern(len);
            let bytes = sent.clone();
            let writer = std::thread::spawn(move || write.write_all(&bytes).unwrap());
            assert_eq!(set.known_len(), None);
            let (all, failed) = packs(&set);
            writer.join().unwrap();
            assert!(joined(&all) == sent && failed.is_empty(), "{len}");
            assert_eq!(set.known_len(), Some(len as u64));
        }
    }

    /// What has come leaves, even though more may come.
    #[test]
    fn bytes_do_not_wait_for_a_full_pack() {
        let (set, mut write) = stream();
        let packs = Packs::of(&set);
        let mut all = Vec::new();
        for round in 0..3 {
            write.write_all(&[round; 10]).unwrap();
            while joined_len(&all) < (usize::from(round) + 1) * 10 {
                let Packed::Pack(pack) = packs.next() else {
                    panic!("no pack");
                };
                all.push(pack);
            }
        }
        drop(write);
        let Packed::Pack(last) = packs.next() else {
            panic!("no end");
        };
        all.push(last);
        assert!(matches!(packs.next(), Packed::End));
        assert_eq!(joined(&all), [[0; 10], [1; 10], [2; 10]].concat());
    }

    fn joined_len(all: &[crate::object::pack::Pack]) -> usize {
        let files = all.iter().filter(|pack| pieces_of(pack).is_some());
        files.map(|pack| pack.payload().len()).sum()
    }

    #[test]
    fn an_input_that_fails_is_named() {
        let directory = File::open("/").unwrap();
        let set = Arc::new(SourceSet::stream(directory, "x").unwrap());
        let packs = Packs::of(&set);
        let why = loop {
            match packs.next() {
                Packed::Pack(_) => {}
                Packed::Failed(0, why) => break why,
                _ => panic!("it did not fail"),
            }
        };
        assert!(why.contains("standard input at byte 0"), "{why}");
        assert_eq!(set.known_len(), None);
    }
}
