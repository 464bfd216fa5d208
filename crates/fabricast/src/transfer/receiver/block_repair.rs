//! What a receiver requests again over the control connection (spec 5.4): the header of a pack, and
//! the pieces of its damaged blocks.
//!
//! For a damaged block, the receiver first requests the hashes of its pieces. Then it requests the
//! pieces that do not match these hashes. So one forged packet costs a few KiB, not a block.
//! Requests for several blocks are under way at once. Nothing here reads or writes the connection:
//! [`BlockRepair::ask`] returns the next request, and [`BlockRepair::take`] takes the answers,
//! which come in the order of the requests.

use std::collections::VecDeque;

use crate::bootstrap::NEEDS_MAX;
use crate::bootstrap::message::{Need, ToSender};
use crate::error::Error;
use crate::object::pack::{Header, Pack};
use crate::object::{HASH, pieces};

/// A request to the sender.
#[derive(Clone, PartialEq, Debug)]
enum Asked {
    /// The header.
    Header,
    /// The hashes of a block's pieces.
    Hashes(u64),
    /// Some pieces of a block.
    Pieces(u64, Vec<u32>),
    /// All pieces of a block, because more than those that looked wrong were wrong.
    Block(u64),
}

/// Requests and repairs whatever of a pack does not match its header, and the header.
pub struct BlockRepair {
    number: u32,
    pack: Pack,
    /// The hash of the header, as the sender told it.
    hash: String,
    /// The header, once it is proven.
    header: Option<Header>,
    /// Requests under way, the oldest first.
    asked: VecDeque<Asked>,
    /// Requests to be sent next.
    due: VecDeque<Asked>,
    /// Number of blocks that do not match the header.
    missing: u64,
    /// Blocks that were damaged and have been repaired.
    pub mended: u64,
    /// Bytes that arrived for repairs, hashes included.
    pub bytes: u64,
}

impl BlockRepair {
    /// Begins with a pack that arrived. `hash`: the hash of its header, as the sender told it, in
    /// hexadecimal. An error if a proven header makes no sense.
    pub fn new(number: u32, pack: Pack, hash: String) -> Result<BlockRepair, Error> {
        let mut repair = BlockRepair {
            number,
            pack,
            hash,
            header: None,
            asked: VecDeque::new(),
            due: VecDeque::new(),
            missing: 0,
            mended: 0,
            bytes: 0,
        };
        match *repair.pack.hash().to_hex() == *repair.hash {
            true => repair.compare()?,
            false => repair.due.push_back(Asked::Header),
        }
        Ok(repair)
    }

    /// Finds the damaged blocks. The header must be proven.
    fn compare(&mut self) -> Result<(), Error> {
        let bytes = &self.pack.bytes[..self.pack.header];
        let header = Header::decode(bytes, self.pack.payload().len());
        let header = header.ok_or_else(|| {
            Error::Integrity("the sender's pack makes no sense: its header is none".into())
        })?;
        let wrong = self.pack.differing(&header);
        self.missing = wrong.len() as u64;
        self.due.extend(wrong.into_iter().map(Asked::Hashes));
        self.header = Some(header);
        Ok(())
    }

    /// Whether everything is proven.
    pub fn is_done(&self) -> bool {
        self.header.is_some() && self.missing == 0 && self.due.is_empty() && self.asked.is_empty()
    }

    /// The pack and its header, once everything is proven.
    pub fn into_pack(self) -> Option<(Pack, Header)> {
        let is_done = self.is_done();
        let header = self.header.filter(|_| is_done)?;
        Some((self.pack, header))
    }

    fn block_len(&self, block: u64) -> u64 {
        self.pack.block(block).len() as u64
    }

    /// The next request to send, if there is one and fewer than `NEEDS_MAX` are under way.
    pub fn ask(&mut self) -> Option<ToSender> {
        if self.asked.len() >= NEEDS_MAX {
            return None;
        }
        let asked = self.due.pop_front()?;
        let of_pack = Need {
            pack: self.number,
            hash: self.hash.clone(),
            ..Need::default()
        };
        let need = match &asked {
            Asked::Header => of_pack,
            Asked::Hashes(block) => Need {
                block: Some(*block),
                hashes: true,
                ..of_pack
            },
            Asked::Pieces(block, pieces) => Need {
                block: Some(*block),
                pieces: pieces.clone(),
                ..of_pack
            },
            Asked::Block(block) => Need {
                block: Some(*block),
                ..of_pack
            },
        };
        self.asked.push_back(asked);
        Some(ToSender::Need(need))
    }

    /// Takes the answer to the oldest request. `None`: nothing was requested.
    pub fn take(&mut self, bytes: &[u8]) -> Option<Result<(), Error>> {
        let asked = self.asked.pop_front()?;
        self.bytes += bytes.len() as u64;
        Some(match asked {
            Asked::Header => self.take_header(bytes),
            Asked::Hashes(block) => self.take_hashes(block, bytes),
            Asked::Pieces(block, some) => {
                if !self.mend(block, &some, bytes) {
                    self.due.push_back(Asked::Block(block));
                }
                Ok(())
            }
            Asked::Block(block) => {
                let all: Vec<u32> = (0..pieces(self.block_len(block))).collect();
                match self.mend(block, &all, bytes) {
                    true => Ok(()),
                    false => Err(Error::Integrity(format!(
                        "block {block} of pack {} is not what the sender promised, also when sent \
                         over TCP: its source or a memory is damaged",
                        self.number
                    ))),
                }
            }
        })
    }

    fn take_header(&mut self, bytes: &[u8]) -> Result<(), Error> {
        if bytes.len() != self.pack.header || *blake3::hash(bytes).to_hex() != *self.hash {
            return Err(Error::Integrity(
                "the header of a pack is not what the sender promised".into(),
            ));
        }
        self.pack.bytes[..bytes.len()].copy_from_slice(bytes);
        self.compare()
    }

    fn take_hashes(&mut self, block: u64, bytes: &[u8]) -> Result<(), Error> {
        if bytes.len() != pieces(self.block_len(block)) as usize * HASH {
            return Err(Error::Integrity(format!(
                "the sender's hashes of block {block} are too few or too many"
            )));
        }
        let wrong = self.pack.wrong_pieces(block, bytes);
        self.due.push_back(match wrong.is_empty() {
            true => Asked::Block(block), // the hashes are wrong, too
            false => Asked::Pieces(block, wrong),
        });
        Ok(())
    }

    fn mend(&mut self, block: u64, some: &[u32], bytes: &[u8]) -> bool {
        let Some(header) = &self.header else {
            return false;
        };
        let right = self.pack.mend(header, block, some, bytes);
        self.mended += u64::from(right);
        self.missing -= u64::from(right);
        right
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::pack::{Content, Piece};
    use crate::object::testing::pattern;
    use crate::object::{BLOCK, PIECE};

    /// A pack as it was sent, and as it arrived.
    struct Both {
        sent: Pack,
        got: Pack,
    }

    /// A pack of `len` bytes, in which those at the offsets `spoilt` differ when it arrives.
    fn both(len: usize, spoilt: &[usize]) -> Both {
        let piece = Piece::Bytes {
            file: 0,
            offset: 0,
            len: len as u32,
            last: true,
        };
        let sent = Pack::new(Content::Pieces(vec![piece]), &pattern(len));
        let mut got = sent.clone();
        spoilt.iter().for_each(|at| got.bytes[got.header + at] ^= 1);
        Both { sent, got }
    }

    impl Both {
        fn repair(&self) -> BlockRepair {
            BlockRepair::new(7, self.got.clone(), self.sent.hash().to_hex().to_string()).unwrap()
        }

        /// What a true sender answers.
        fn answer(&self, need: &Need) -> Vec<u8> {
            let Some(block) = need.block else {
                return self.sent.bytes[..self.sent.header].to_vec();
            };
            let block = self.sent.block(block);
            let pieces: Vec<&[u8]> = block.chunks(PIECE).collect();
            match need {
                Need { hashes: true, .. } => hashes_of(block),
                Need { pieces: some, .. } if !some.is_empty() => some
                    .iter()
                    .flat_map(|p| pieces[*p as usize].to_vec())
                    .collect(),
                _ => block.to_vec(),
            }
        }

        /// Answers all requests. Returns them, the number of repaired blocks and the bytes that
        /// came.
        fn run(&self) -> (Vec<Need>, u64, u64) {
            let mut repair = self.repair();
            let (mut asked, mut waiting) = (Vec::new(), VecDeque::new());
            loop {
                while let Some(ToSender::Need(need)) = repair.ask() {
                    assert_eq!(need.pack, 7);
                    waiting.push_back(need.clone());
                    asked.push(need);
                }
                assert!(waiting.len() <= NEEDS_MAX);
                let Some(need) = waiting.pop_front() else {
                    break;
                };
                repair.take(&self.answer(&need)).unwrap().unwrap();
            }
            let (mended, bytes) = (repair.mended, repair.bytes);
            let (pack, _) = repair.into_pack().unwrap();
            assert!(pack == self.sent);
            (asked, mended, bytes)
        }
    }

    fn hashes_of(block: &[u8]) -> Vec<u8> {
        let each = block.chunks(PIECE).map(blake3::hash);
        each.flat_map(|hash| *hash.as_bytes()).collect()
    }

    #[test]
    fn only_wrong_pieces_come_again() {
        // Two bytes in the same piece, two in adjacent pieces, one in the short last piece.
        let len = 3 * BLOCK + PIECE + 5;
        let spoilt = [7, 9, 2 * BLOCK + PIECE - 1, 2 * BLOCK + PIECE, len - 1];
        let (asked, mended, bytes) = both(len, &spoilt).run();
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
    fn a_header_that_is_wrong_comes_first() {
        let mut both = both(2 * BLOCK, &[5]);
        both.got.bytes[3] ^= 1;
        let (asked, mended, _) = both.run();
        assert_eq!((asked[0].block, asked[1].block), (None, Some(0)));
        assert_eq!(mended, 1);
    }

    #[test]
    fn nothing_is_asked_for_where_nothing_is_wrong() {
        for len in [0, 1, BLOCK + 1] {
            assert_eq!(both(len, &[]).run().0, []);
        }
    }

    #[test]
    fn wrong_answers_end_it() {
        let mut both = both(2 * BLOCK, &[5]);
        assert!(both.repair().take(&[]).is_none(), "nothing was asked for");
        let mut few = both.repair();
        few.ask().unwrap();
        assert!(few.take(&[0; HASH]).unwrap().is_err());
        // With these hashes the wrong piece looks right, so the whole block is requested.
        let mut lied = both.repair();
        lied.ask().unwrap();
        let received = both.got.block(0).to_vec();
        lied.take(&hashes_of(&received)).unwrap().unwrap();
        let whole = lied.ask().unwrap();
        let expected = Need {
            pack: 7,
            hash: lied.hash.clone(),
            block: Some(0),
            ..Need::default()
        };
        assert_eq!(whole, ToSender::Need(expected));
        assert!(lied.take(&received).unwrap().is_err(), "it is wrong again");
        both.got.bytes[0] ^= 1;
        let mut lied = both.repair();
        lied.ask().unwrap();
        assert!(lied.take(b"no header").unwrap().is_err());
    }
}
