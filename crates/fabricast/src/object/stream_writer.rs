//! The one file of a set as a stream: its bytes go to an open file, such as a pipe, in their order.
//!
//! Nothing can be taken back or read again here. So a receiver that has written everything has
//! *received* the file; nobody can *verify* what has become of it.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::manifest::{Kind, Manifest};
use super::pack::Piece;
use super::{absurd, give_way};
use crate::error::Error;

/// Bytes that are written at a time, before other threads may run.
const WRITTEN: usize = 256 << 10;

/// Writes the bytes of a file in their order.
pub struct StreamWriter {
    out: Arc<File>,
    manifest: Manifest,
    /// Number of bytes that are written.
    written: u64,
    /// Whether the file's last byte is written.
    is_complete: bool,
}

/// Writes bytes, and waits where the file takes none at the moment: another process that has the
/// same pipe or terminal may have made it non-blocking.
fn write_all(mut out: &File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match out.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                match poll(&mut [PollFd::new(out, PollFlags::OUT)], None) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(e) => return Err(e.into()),
                }
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

impl StreamWriter {
    /// Begins a stream; the manifest comes by [`StreamWriter::add_page`].
    pub fn new(out: Arc<File>) -> StreamWriter {
        StreamWriter {
            out,
            manifest: Manifest::default(),
            written: 0,
            is_complete: false,
        }
    }

    /// The entries so far.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Number of bytes that are written.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Adds a page of the manifest. An error unless it is one file.
    pub fn add_page(&mut self, page: &[u8]) -> Result<(), Error> {
        self.manifest.add_page(page)?;
        match self.manifest.entries() {
            [] => Ok(()),
            [one] if matches!(one.kind, Kind::File(_) | Kind::Stream) => Ok(()),
            _ => Err(Error::Usage(
                "the sender sends no single file, and only one can go to standard output: name a \
                 directory"
                    .into(),
            )),
        }
    }

    /// Writes the pieces of the next pack.
    pub fn write(&mut self, pieces: &[Piece], mut bytes: &[u8]) -> Result<(), Error> {
        for piece in pieces {
            if self.is_complete || piece.file() != 0 {
                return Err(absurd("bytes of a file that it has not announced"));
            }
            let (offset, zeros) = match piece {
                Piece::Bytes { offset, .. } => (*offset, 0),
                Piece::Hole { offset, len, .. } => (*offset, *len),
                Piece::Failed { reason, .. } => {
                    let written = self.written;
                    return Err(Error::SourceChanged(format!(
                        "{reason}; {written} bytes of it have gone to standard output"
                    )));
                }
            };
            if offset != self.written {
                return Err(absurd("pieces of a file that do not follow each other"));
            }
            let stream = self.manifest.entries().first().map(|e| &e.kind) == Some(&Kind::Stream);
            if stream && matches!(piece, Piece::Hole { .. }) {
                return Err(absurd("a hole in a stream"));
            }
            let end = offset + piece.size();
            let is_end = match self.manifest.entries().first().map(|e| &e.kind) {
                Some(Kind::File(len)) if end > *len => {
                    return Err(absurd("a file that is longer than announced"));
                }
                Some(Kind::File(len)) => end == *len,
                _ => piece.is_last(),
            };
            if is_end != piece.is_last() {
                return Err(absurd("a file that ends too early"));
            }
            match piece {
                Piece::Bytes { len, .. } => {
                    let here;
                    (here, bytes) = bytes.split_at(*len as usize);
                    self.put(here)?;
                }
                _ => self.put_zeros(zeros)?,
            }
            self.is_complete = is_end;
        }
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        for part in bytes.chunks(WRITTEN) {
            give_way();
            write_all(&self.out, part).map_err(|e| match e.kind() {
                ErrorKind::BrokenPipe => Error::io(
                    format!(
                        "what reads standard output has closed it, after at least {} bytes",
                        self.written
                    ),
                    e,
                ),
                _ => Error::writing("standard output".as_ref(), e),
            })?;
            self.written += part.len() as u64;
        }
        Ok(())
    }

    fn put_zeros(&mut self, mut count: u64) -> Result<(), Error> {
        let zeros = [0; 64 << 10];
        while count > 0 {
            let some = count.min(zeros.len() as u64);
            self.put(&zeros[..some as usize])?;
            count -= some;
        }
        Ok(())
    }

    /// Checks that everything is written.
    pub fn finish(&self) -> Result<(), Error> {
        match self.is_complete {
            true => Ok(()),
            false => Err(absurd("it ends before all files are there")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::OwnedFd;

    use super::*;
    use crate::object::manifest::{Entry, TOP};
    use crate::object::testing::{packs, pattern, pieces_of, scratch, set_of};

    /// A writer to a pipe, and the end that is read.
    fn piped() -> (StreamWriter, std::io::PipeReader) {
        let (read, write) = std::io::pipe().unwrap();
        let out = File::from(OwnedFd::from(write));
        (StreamWriter::new(Arc::new(out)), read)
    }

    fn page(kind: Kind) -> Vec<u8> {
        let (mut manifest, mut page) = (Manifest::default(), Vec::new());
        let entry = Entry {
            parent: TOP,
            name: (*b"x").into(),
            kind,
            mode: 0o644,
            mtime: 0,
            mtime_ns: 0,
            owner: (0, 0),
            attributes: Default::default(),
        };
        manifest.add(entry).unwrap();
        manifest.put_page(0, &mut page);
        page
    }

    fn bytes(offset: u64, len: u32, last: bool) -> Piece {
        Piece::Bytes {
            file: 0,
            offset,
            len,
            last,
        }
    }

    #[test]
    fn a_pipe_that_does_not_block_is_waited_for() {
        let (mut out, mut read) = piped();
        rustix::io::ioctl_fionbio(&*out.out, true).unwrap();
        out.add_page(&page(Kind::File(1_000_000))).unwrap();
        let content = pattern(1_000_000);
        let reader = std::thread::spawn(move || {
            let mut all = Vec::new();
            read.read_to_end(&mut all).unwrap();
            all
        });
        out.write(&[bytes(0, 1_000_000, true)], &content).unwrap();
        out.finish().unwrap();
        drop(out);
        assert!(reader.join().unwrap() == content);
    }

    #[test]
    fn a_file_with_a_hole_comes_out_as_it_is() {
        use std::os::unix::fs::FileExt;
        let dir = scratch();
        let content = pattern(5_000_000);
        let file = File::create(dir.join("x")).unwrap();
        file.write_all_at(&content, 8 << 20).unwrap();
        file.set_len(20 << 20).unwrap();
        let (mut writer, mut read) = piped();
        let reader = std::thread::spawn(move || {
            let mut got = Vec::new();
            read.read_to_end(&mut got).unwrap();
            got
        });
        let set = set_of(&[dir.join("x")]);
        for pack in packs(&set).0 {
            match pieces_of(&pack) {
                None => writer.add_page(pack.payload()).unwrap(),
                Some(pieces) => writer.write(&pieces, pack.payload()).unwrap(),
            }
        }
        writer.finish().unwrap();
        assert_eq!(writer.written(), 20 << 20);
        drop(writer);
        assert!(reader.join().unwrap() == std::fs::read(dir.join("x")).unwrap());
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn what_does_not_follow_is_not_written() {
        let hole = Piece::Hole {
            file: 0,
            offset: 0,
            len: 1 << 60,
            last: true,
        };
        let cases: [(Kind, &[Piece]); 7] = [
            (Kind::Stream, &[hole]),
            (Kind::File(5), &[bytes(1, 4, true)]),
            (Kind::File(5), &[bytes(0, 5, false)]),
            (Kind::File(4), &[bytes(0, 5, true)]),
            (Kind::Stream, &[bytes(0, 2, true), bytes(2, 3, true)]),
            (Kind::Stream, &[bytes(0, 2, false), bytes(3, 3, true)]),
            (Kind::Stream, &[bytes(0, 5, false)]),
        ];
        for (kind, pieces) in cases {
            let (mut writer, _read) = piped();
            writer.add_page(&page(kind)).unwrap();
            let written = writer.write(pieces, b"bytes");
            let error = written.and_then(|()| writer.finish()).unwrap_err();
            assert!(matches!(error, Error::Integrity(_)), "{pieces:?}: {error}");
        }
        for kind in [Kind::Directory, Kind::Symlink((*b"to").into())] {
            let error = piped().0.add_page(&page(kind)).unwrap_err();
            assert!(error.to_string().contains("no single file"), "{error}");
        }
    }

    #[test]
    fn a_reader_that_goes_away_and_a_source_that_fails_are_named() {
        let (mut writer, read) = piped();
        writer.add_page(&page(Kind::Stream)).unwrap();
        writer.write(&[bytes(0, 5, false)], b"bytes").unwrap();
        let reason = "it fails".to_owned();
        let failed = Piece::Failed { file: 0, reason };
        let error = writer.write(&[failed], b"").unwrap_err();
        assert!(
            error
                .to_string()
                .contains("it fails; 5 bytes of it have gone"),
            "{error}"
        );
        drop(read);
        let error = writer.write(&[bytes(5, 5, true)], b"bytes").unwrap_err();
        assert!(error.to_string().contains("has closed it"), "{error}");
    }
}
