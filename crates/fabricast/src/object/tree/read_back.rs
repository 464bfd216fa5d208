//! Bytes that are stored already, and are read back.

use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::fs::OFlags;

use super::Tree;
use crate::error::Error;
use crate::object::{Challenge, Secret, absurd};

impl Tree {
    /// Fills `into` with the bytes of a file from `offset` on, wherever the file lies now. Nobody
    /// knows what has been written to it since it was stored.
    ///
    /// # Errors
    /// The manifest has no such entry, the file is not there, or the system's.
    pub fn read_back(&self, file: u32, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        if file as usize >= self.manifest.entries().len() {
            return Err(absurd("a file that is in no manifest"));
        }
        let waiting = self.batch.iter().chain(&self.held);
        let end = offset + into.len() as u64;
        let open = match self.is_in_old(file, offset, end) {
            true => None,
            false => self.incomplete.get(&file).or(self.taking_over(file)),
        };
        let open = open.or_else(|| waiting.into_iter().find(|partial| partial.entry == file));
        let read = match open {
            Some(partial) => partial.file.read_exact_at(into, offset),
            None => File::from(self.beneath(file, OFlags::RDONLY)?).read_exact_at(into, offset),
        };
        read.map_err(|e| self.error(file, "reading back", e))
    }

    /// Reads back the samples of the challenge with this key, and computes the secret from them.
    /// Files that the sender could not read count as zeros.
    pub fn answer(&mut self, key: [u8; 32]) -> Result<Secret, Error> {
        self.name_held()?;
        let challenge = match self.manifest.known_len() {
            Some(len) => Challenge::new(key, len),
            None => {
                let mut challenge = Challenge::of_stream(key);
                challenge.end(self.whole_len());
                challenge
            }
        };
        let mut samples = vec![0; challenge.bytes()];
        let mut filled = 0;
        for &(offset, len) in challenge.samples() {
            let end = offset + len as u64;
            let mut file = self.starts.partition_point(|start| *start <= offset) as u32 - 1;
            while (file as usize) < self.starts.len() && self.starts[file as usize] < end {
                let start = self.starts[file as usize];
                let stop = start + self.len(file);
                let (from, to) = (offset.max(start), end.min(stop));
                if from < to && !self.failed.contains(&file) {
                    let at = filled + (from - offset) as usize;
                    let place = &mut samples[at..at + (to - from) as usize];
                    self.read_back(file, from - start, place)?;
                }
                file += 1;
            }
            filled += len;
        }
        Ok(challenge.secret(&samples))
    }
}
