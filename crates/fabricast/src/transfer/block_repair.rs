//! What a receiver requests again over the control connection (spec 5.4): the hash list, and the
//! pieces of damaged blocks.
//!
//! For a damaged block, the receiver first requests the hashes of its pieces. Then it requests the
//! pieces that do not match these hashes. So one forged packet costs a few KiB, not a block.
//! Requests for several blocks are under way at once. Nothing here reads or writes the connection:
//! [`BlockRepair::ask`] returns the next request, and [`BlockRepair::take`] takes the answers,
//! which come in the order of the requests.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::bootstrap::NEEDS_MAX;
use crate::bootstrap::message::{Need, ToSender};
use crate::error::Error;
use crate::object::{BLOCK, HASH, PartialFile, blocks, pieces};

/// A request to the sender.
#[derive(Clone, PartialEq, Debug)]
enum Asked {
    /// The hash list.
    List,
    /// The hashes of a block's pieces.
    Hashes(u64),
    /// Some pieces of a block.
    Pieces(u64, Vec<u32>),
    /// All pieces of a block, because more than those that looked wrong were wrong.
    Block(u64),
}

/// Requests and repairs whatever does not match the hash list.
pub struct BlockRepair {
    partial: Arc<PartialFile>,
    /// The hash of the list, in hexadecimal.
    root: String,
    /// The hash list. It is complete and proven, unless it is being requested.
    list: Vec<u8>,
    /// Requests under way, the oldest first.
    asked: VecDeque<Asked>,
    /// Requests to be sent next.
    due: VecDeque<Asked>,
    /// The first block that has not been compared with the list.
    next: u64,
    /// Bytes of the blocks that do not match the list.
    missing: u64,
    /// Blocks that were damaged and have been repaired.
    pub mended: u64,
    /// Bytes that arrived for repairs, hashes included.
    pub bytes: u64,
}

impl BlockRepair {
    /// Begins with the hash list that arrived. The list is requested again if its hash is not
    /// `root`.
    pub fn new(partial: Arc<PartialFile>, list: Vec<u8>, root: &str) -> BlockRepair {
        let mut repair = BlockRepair {
            partial,
            root: root.to_owned(),
            list,
            asked: VecDeque::new(),
            due: VecDeque::new(),
            next: 0,
            missing: 0,
            mended: 0,
            bytes: 0,
        };
        match repair.is_proven() {
            true => repair.compare(),
            false => {
                repair.list.clear();
                repair.due.push_back(Asked::List);
            }
        }
        repair
    }

    /// Bytes of the whole list.
    fn whole(&self) -> usize {
        blocks(self.partial.len()) as usize * HASH
    }

    /// Whether the list has the hash that the sender told.
    fn is_proven(&self) -> bool {
        self.list.len() == self.whole() && *blake3::hash(&self.list).to_hex() == *self.root
    }

    fn block_len(&self, block: u64) -> u64 {
        (self.partial.len() - block * BLOCK as u64).min(BLOCK as u64)
    }

    /// Counts the bytes of blocks that do not match the list, which must be proven.
    fn compare(&mut self) {
        let mut from = 0;
        while let Some(block) = self.partial.differing(&self.list, from) {
            self.missing += self.block_len(block);
            from = block + 1;
        }
    }

    /// Whether everything is proven.
    pub fn is_done(&self) -> bool {
        self.missing == 0 && self.due.is_empty() && self.asked.is_empty()
    }

    /// Bytes of the list and the file that are proven; the list's bytes count first.
    pub fn done(&self) -> u64 {
        match self.list_is_missing() {
            true => self.list.len() as u64,
            false => self.whole() as u64 + self.partial.len() - self.missing,
        }
    }

    fn list_is_missing(&self) -> bool {
        let list = |a: &Asked| *a == Asked::List;
        self.asked.iter().chain(&self.due).any(list)
    }

    /// The next request to send, if there is one and fewer than `NEEDS_MAX` are under way.
    pub fn ask(&mut self) -> Option<ToSender> {
        if self.asked.len() >= NEEDS_MAX {
            return None;
        }
        let asked = self.due.pop_front().or_else(|| {
            if self.list_is_missing() {
                return None;
            }
            let block = self.partial.differing(&self.list, self.next)?;
            self.next = block + 1;
            Some(Asked::Hashes(block))
        })?;
        let need = match &asked {
            Asked::List => Need::default(),
            Asked::Hashes(block) => Need {
                block: Some(*block),
                hashes: true,
                ..Need::default()
            },
            Asked::Pieces(block, pieces) => Need {
                block: Some(*block),
                pieces: pieces.clone(),
                ..Need::default()
            },
            Asked::Block(block) => Need {
                block: Some(*block),
                ..Need::default()
            },
        };
        self.asked.push_back(asked);
        Some(ToSender::Need(need))
    }

    /// Takes the answer to the oldest request; a list may come in several parts. `None`: nothing
    /// was requested.
    pub fn take(&mut self, bytes: &[u8]) -> Option<Result<(), Error>> {
        let asked = self.asked.pop_front()?;
        self.bytes += bytes.len() as u64;
        Some(match asked {
            Asked::List => self.take_list(bytes),
            Asked::Hashes(block) => self.take_hashes(block, bytes),
            Asked::Pieces(block, some) => self.take_pieces(block, &some, bytes),
            Asked::Block(block) => {
                let all: Vec<u32> = (0..pieces(self.block_len(block))).collect();
                self.mend(block, &all, bytes).and_then(|right| match right {
                    true => Ok(()),
                    false => Err(Error::Integrity(format!(
                        "block {block} is not what the sender promised, also when sent over TCP: \
                         its source or a memory is damaged"
                    ))),
                })
            }
        })
    }

    fn take_list(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.list.extend_from_slice(bytes);
        if self.list.len() < self.whole() && !bytes.is_empty() {
            self.asked.push_front(Asked::List);
            return Ok(());
        }
        if !self.is_proven() {
            return Err(Error::Integrity(
                "the list of hashes is not what the sender promised".into(),
            ));
        }
        self.compare();
        Ok(())
    }

    fn take_hashes(&mut self, block: u64, bytes: &[u8]) -> Result<(), Error> {
        if bytes.len() != pieces(self.block_len(block)) as usize * HASH {
            return Err(Error::Integrity(format!(
                "the sender's hashes of block {block} are too few or too many"
            )));
        }
        let wrong = self.partial.wrong_pieces(block, bytes);
        match wrong.is_empty() {
            // The bytes in the file are right; its hash had been computed over other bytes.
            true => self.take_pieces(block, &[], &[]),
            false => {
                self.due.push_back(Asked::Pieces(block, wrong));
                Ok(())
            }
        }
    }

    fn take_pieces(&mut self, block: u64, some: &[u32], bytes: &[u8]) -> Result<(), Error> {
        if !self.mend(block, some, bytes)? {
            self.due.push_back(Asked::Block(block));
        }
        Ok(())
    }

    fn mend(&mut self, block: u64, some: &[u32], bytes: &[u8]) -> Result<bool, Error> {
        let right = self.partial.mend(&self.list, block, some, bytes)?;
        if right {
            self.mended += 1;
            self.missing -= self.block_len(block);
        }
        Ok(right)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::Blocks;
    use crate::object::testing::{pattern, scratch};
    use crate::object::{PIECE, SourceFile};

    /// A file that was sent, what a receiver has of it, and the hashes that prove it.
    struct Both {
        dir: std::path::PathBuf,
        bytes: Vec<u8>,
        content: Arc<SourceFile>,
        partial: Arc<PartialFile>,
        list: Vec<u8>,
        root: String,
    }

    /// A file of `len` bytes, and a received copy in which the bytes at the offsets `spoilt`
    /// differ.
    fn both(len: usize, spoilt: &[usize]) -> Both {
        let dir = scratch();
        let bytes = pattern(len);
        std::fs::write(dir.join("source"), &bytes).unwrap();
        let content = SourceFile::open(&dir.join("source")).unwrap();
        let path = dir.join("copy");
        let partial = PartialFile::new(path, len as u64, 0o644, false, None, 0);
        let mut partial = partial.unwrap();
        partial.allocate().unwrap();
        let mut received = bytes.clone();
        spoilt.iter().for_each(|at| received[*at] ^= 1);
        let (mut list, mut read) = (Vec::new(), Vec::new());
        for (i, (sent, got)) in bytes.chunks(BLOCK).zip(received.chunks(BLOCK)).enumerate() {
            list.extend(blake3::hash(sent).as_bytes());
            assert!(partial.write(i as u64, got));
            content.reread(i as u64, &mut read).unwrap();
        }
        Both {
            dir,
            bytes,
            content,
            partial: Arc::new(partial),
            root: blake3::hash(&list).to_hex().to_string(),
            list,
        }
    }

    impl Both {
        /// Answers all requests. Returns the requests, the number of repaired blocks and the bytes
        /// that came.
        fn run(&self, list: Vec<u8>) -> (Vec<Need>, u64, u64) {
            let mut repair = BlockRepair::new(self.partial.clone(), list, &self.root);
            let (mut asked, mut waiting) = (Vec::new(), VecDeque::new());
            let mut done = repair.done();
            loop {
                while let Some(ToSender::Need(need)) = repair.ask() {
                    waiting.push_back(need.clone());
                    asked.push(need);
                }
                assert!(waiting.len() <= NEEDS_MAX);
                let Some(need) = waiting.pop_front() else {
                    break;
                };
                let mut answer = Vec::new();
                match need.block {
                    None => answer.extend_from_slice(&self.list),
                    Some(block) => self.content.answer(block, &need, &mut answer).unwrap(),
                }
                repair.take(&answer).unwrap().unwrap();
                assert!(repair.done() >= done);
                done = repair.done();
            }
            assert!(repair.is_done());
            assert_eq!(done as usize, self.bytes.len() + self.list.len());
            self.partial.finish(false).unwrap();
            assert!(std::fs::read(self.partial.path()).unwrap() == self.bytes);
            std::fs::remove_dir_all(&self.dir).unwrap();
            (asked, repair.mended, repair.bytes)
        }
    }

    #[test]
    fn only_wrong_pieces_come_again() {
        // Two bytes in the same piece, two in adjacent pieces, one in the short last piece.
        let len = 3 * BLOCK + PIECE + 5;
        let spoilt = [7, 9, 2 * BLOCK + PIECE - 1, 2 * BLOCK + PIECE, len - 1];
        let both = both(len, &spoilt);
        let (asked, mended, bytes) = both.run(both.list.clone());
        let got: Vec<_> = asked
            .into_iter()
            .map(|n| (n.block.unwrap(), n.pieces))
            .collect();
        let none = Vec::new;
        let expected = [
            (0, none()),
            (2, none()),
            (3, none()),
            (0, vec![0]),
            (2, vec![0, 1]),
            (3, vec![1]),
        ];
        assert_eq!(got, expected);
        assert_eq!(mended, 3);
        assert_eq!(bytes as usize, (64 + 64 + 2) * HASH + 3 * PIECE + 5);
    }

    #[test]
    fn many_blocks_are_under_way_at_once_within_a_bound() {
        let spoilt: Vec<usize> = (0..40).map(|block| block * BLOCK).collect();
        let both = both(40 * BLOCK, &spoilt);
        let (asked, mended, _) = both.run(both.list.clone());
        assert_eq!(mended, 40);
        assert!(asked[..NEEDS_MAX].iter().all(|need| need.hashes));
    }

    #[test]
    fn a_list_that_is_wrong_comes_first() {
        let both = both(2 * BLOCK, &[5]);
        let mut list = both.list.clone();
        list[3] ^= 1;
        let (asked, mended, _) = both.run(list);
        assert_eq!((asked[0].block, asked[1].block), (None, Some(0)));
        assert_eq!(mended, 1);
    }

    #[test]
    fn nothing_is_asked_for_where_nothing_is_wrong() {
        let (asked, ..) = both(0, &[]).run(Vec::new());
        assert_eq!(asked, []);
        let both = both(BLOCK + 1, &[]);
        assert_eq!(both.run(both.list.clone()).0, []);
    }

    #[test]
    fn wrong_answers_end_it() {
        let both = both(2 * BLOCK, &[5]);
        let new = || BlockRepair::new(both.partial.clone(), both.list.clone(), &both.root);
        assert!(new().take(&[]).is_none(), "nothing was asked for");
        let mut few = new();
        few.ask().unwrap();
        assert!(few.take(&[0; HASH]).unwrap().is_err());
        // With these hashes the wrong piece looks right, so the whole block is requested.
        let mut lied = new();
        lied.ask().unwrap();
        let hashes = |bytes: &[u8]| -> Vec<u8> {
            let each = bytes
                .chunks(PIECE)
                .flat_map(|p| *blake3::hash(p).as_bytes());
            each.collect()
        };
        let mut received = both.bytes[..BLOCK].to_vec();
        received[5] ^= 1;
        lied.take(&hashes(&received)).unwrap().unwrap();
        let whole = lied.ask().unwrap();
        let expected = Need {
            block: Some(0),
            ..Need::default()
        };
        assert_eq!(whole, ToSender::Need(expected));
        assert!(lied.take(&received).unwrap().is_err(), "it is wrong again");
        std::fs::remove_dir_all(&both.dir).unwrap();
    }
}
