//! The packs that have been sent, so that their parts can be read again for receivers that got
//! them damaged.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::manifest::take;
use super::pack::{Content, HEADER_MAX, Header, PACK_MAX, Pack, Piece, Span, spans};
use super::source_set::SourceSet;
use super::{BLOCK, HASH, PIECE, blocks, poisoned};

/// Number of blocks whose piece hashes are kept, 2 KiB each: what one receiver requests again,
/// others request, too.
const PIECE_LISTS: usize = 1024;

/// Hashes of the pieces of blocks, by the pack's number, the block, and the pack's hash.
type PieceHashes = BTreeMap<(u32, u64, [u8; HASH]), Arc<[u8]>>;

/// The number of a pack, and the hash of its header as it was announced, in hexadecimal. With a
/// hash that no pack of that number has, it is the pack that was sent first.
pub type Named<'a> = (u32, &'a str);

/// What is announced of a pack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PackRecord {
    /// Bytes of the pack, its header included.
    pub len: u32,
    /// Bytes of its header.
    pub header: u32,
    /// BLAKE3 hash of its header.
    pub hash: [u8; HASH],
}

impl PackRecord {
    /// Length of an encoded record in bytes.
    pub const LEN: usize = 8 + HASH;
    /// Most records of one list, which fit in a block.
    pub const LISTED: usize = BLOCK / PackRecord::LEN;

    /// What is announced of this pack.
    pub fn of(pack: &Pack) -> PackRecord {
        PackRecord {
            len: pack.bytes.len() as u32,
            header: pack.header as u32,
            hash: pack.hash().into(),
        }
    }

    /// Appends the record to a list.
    pub fn put(&self, list: &mut Vec<u8>) {
        list.extend(self.len.to_be_bytes());
        list.extend(self.header.to_be_bytes());
        list.extend(self.hash);
    }

    /// The records of a list; `None` if it is cut off, or a length makes no sense.
    pub fn decode(mut list: &[u8]) -> Option<Vec<PackRecord>> {
        let mut records = Vec::new();
        while !list.is_empty() {
            let record = PackRecord {
                len: u32::from_be_bytes(take(&mut list)?),
                header: u32::from_be_bytes(take(&mut list)?),
                hash: take(&mut list)?,
            };
            records.push(record.is_sound().then_some(record)?);
        }
        Some(records)
    }

    /// Whether a pack can have these lengths.
    pub fn is_sound(&self) -> bool {
        let (len, header) = (self.len as usize, self.header as usize);
        (1..=HEADER_MAX).contains(&header) && (header..=header + PACK_MAX).contains(&len)
    }
}

/// The packs that have been sent, without the bytes of files. Those of a stream keep their bytes,
/// which cannot be read again, until every receiver has proven them.
pub struct PackIndex {
    set: Arc<SourceSet>,
    packs: Mutex<Packs>,
    /// Number of packs and of their blocks.
    parts: AtomicU64,
    /// Hashes of the pieces of some blocks.
    pieces: Mutex<PieceHashes>,
}

/// Packs that have been sent, and may be asked for.
#[derive(Default)]
struct Packs {
    /// Number of the first one. Those before it are gone.
    first: u32,
    sent: VecDeque<Arc<Sent>>,
    /// Those that were sent again otherwise than before, by their numbers, the oldest first.
    again: BTreeMap<u32, Vec<Arc<Sent>>>,
    /// Bytes of the payloads of a stream.
    kept: u64,
}

impl Packs {
    fn at(&self, number: u32) -> Option<usize> {
        Some(number.checked_sub(self.first)? as usize)
    }
}

/// A pack that has been sent.
#[derive(Clone)]
struct Sent {
    /// What was announced of it.
    record: PackRecord,
    header: Vec<u8>,
    /// The payload, of a page of the manifest or of a stream.
    payload: Option<Vec<u8>>,
    /// Length of the payload in bytes.
    len: u64,
}

impl Sent {
    fn new(pack: &Pack, record: PackRecord, is_stream: bool) -> Sent {
        let payload = pack.payload();
        let header = pack.bytes[..pack.header].to_vec();
        let content = Header::decode(&header, payload.len()).map(|h| h.content);
        let is_kept = is_stream || content == Some(Content::Page);
        Sent {
            record,
            header,
            payload: is_kept.then(|| payload.to_vec()),
            len: payload.len() as u64,
        }
    }
}

impl PackIndex {
    /// An index of no packs.
    pub fn new(set: Arc<SourceSet>) -> PackIndex {
        PackIndex {
            set,
            packs: Mutex::default(),
            parts: AtomicU64::new(0),
            pieces: Mutex::default(),
        }
    }

    /// Notes the next pack.
    pub fn add(&self, pack: &Pack) {
        let is_stream = self.set.is_stream();
        let sent = Sent::new(pack, PackRecord::of(pack), is_stream);
        let mut packs = self.packs.lock().unwrap_or_else(poisoned);
        self.parts
            .fetch_add(1 + blocks(sent.len), Ordering::Relaxed);
        packs.kept += if is_stream { sent.len } else { 0 };
        packs.sent.push_back(Arc::new(sent));
    }

    /// Drops the packs of a stream before number `end`, which every receiver has proven.
    pub fn release(&self, end: u32) {
        let mut packs = self.packs.lock().unwrap_or_else(poisoned);
        while packs.first < end
            && let Some(sent) = packs.sent.pop_front()
        {
            packs.first += 1;
            packs.kept -= sent.len;
        }
    }

    /// Number of the packs of a stream that are kept, and their bytes.
    pub fn kept(&self) -> (usize, u64) {
        let packs = self.packs.lock().unwrap_or_else(poisoned);
        match self.set.is_stream() {
            true => (packs.sent.len(), packs.kept),
            false => (0, 0),
        }
    }

    /// Notes that a pack is sent again without the pieces of some files. Parts of either can be
    /// asked for; lists name the one that was sent first.
    fn add_again(&self, number: u32, pack: &Pack) {
        let sent = Arc::new(Sent::new(pack, PackRecord::of(pack), false));
        let mut packs = self.packs.lock().unwrap_or_else(poisoned);
        packs.again.entry(number).or_default().push(sent);
    }

    /// Appends the records of at most [`PackRecord::LISTED`] packs, from number `from` on.
    pub fn list(&self, from: u32, into: &mut Vec<u8>) {
        let packs = self.packs.lock().unwrap_or_else(poisoned);
        // Packs that are gone are not listed: a stream has no late receivers.
        let first = packs.at(from).unwrap_or(usize::MAX);
        let listed = packs.sent.iter().skip(first);
        let listed = listed.take(PackRecord::LISTED);
        listed.for_each(|sent| sent.record.put(into));
    }

    /// A pack as it was sent, read again, without what came of the files `failed`. Where other
    /// files have changed, the pack says that they failed, in place of what came of them, and they
    /// are added to `lost` with the reasons. Of the files in `lost` it says so, too.
    ///
    /// # Errors
    /// Why the pack cannot be read: there is none of this number, or a file was written to, and
    /// nobody knows which.
    pub fn pack(
        &self,
        number: u32,
        failed: &BTreeSet<u32>,
        lost: &mut BTreeMap<u32, String>,
    ) -> Result<Pack, String> {
        let sent = self.latest(number).ok_or("there is no such pack")?;
        let header = Header::decode(&sent.header, sent.len as usize).ok_or("no pack")?;
        let Content::Pieces(pieces) = &header.content else {
            return self.whole(&sent);
        };
        let is_void = |piece: &Piece| {
            failed.contains(&piece.file()) && !matches!(piece, Piece::Failed { .. })
        };
        let differs = |lost: &BTreeMap<u32, String>| {
            let mut pieces = pieces.iter();
            pieces.any(|piece| is_void(piece) || lost.contains_key(&piece.file()))
        };
        let whole = (!differs(lost)).then(|| self.whole(&sent));
        if let Some(Ok(pack)) = whole {
            return Ok(pack);
        }
        loop {
            let known = lost.len();
            let (mut rest, mut bytes, mut told) = (Vec::new(), Vec::new(), BTreeSet::new());
            for piece in pieces.iter().filter(|piece| !is_void(piece)) {
                let file = piece.file();
                if lost.contains_key(&file) {
                    if told.insert(file) {
                        rest.push(self.set.failure(file));
                    }
                    continue;
                }
                match self.read(std::slice::from_ref(piece), 0, u64::MAX, &mut bytes) {
                    Ok(()) => rest.push(piece.clone()),
                    Err(why) => _ = lost.insert(file, why),
                }
            }
            match whole {
                _ if lost.len() > known => {}
                // All can be read, and something of it is not what was sent.
                Some(Err(why)) if !differs(lost) => return Err(why),
                _ => {
                    let pack = Pack::new(Content::Pieces(rest), &bytes);
                    self.add_again(number, &pack);
                    return Ok(pack);
                }
            }
        }
    }

    /// A pack as it was sent, read again.
    fn whole(&self, sent: &Sent) -> Result<Pack, String> {
        let mut bytes = sent.header.clone();
        for block in 0..blocks(sent.len) {
            self.block_of(sent, block, &mut bytes)?;
        }
        let header = sent.header.len();
        Ok(Pack { bytes, header })
    }

    /// The pack as it was sent last.
    fn latest(&self, number: u32) -> Option<Arc<Sent>> {
        let packs = self.packs.lock().unwrap_or_else(poisoned);
        match packs.again.get(&number).and_then(|again| again.last()) {
            Some(again) => Some(again.clone()),
            None => packs.sent.get(packs.at(number)?).cloned(),
        }
    }

    fn named(&self, (number, hash): Named<'_>) -> Option<Arc<Sent>> {
        let packs = self.packs.lock().unwrap_or_else(poisoned);
        let first = packs.sent.get(packs.at(number)?)?;
        let mut again = packs.again.get(&number).into_iter().flatten();
        let is_it = |sent: &&Arc<Sent>| *blake3::Hash::from(sent.record.hash).to_hex() == *hash;
        Some(again.find(is_it).unwrap_or(first).clone())
    }

    /// Length of a pack's payload in bytes; `None` if it has not been sent.
    pub fn payload_len(&self, pack: Named<'_>) -> Option<u64> {
        self.named(pack).map(|sent| sent.len)
    }

    /// Number of packs and of their blocks.
    pub fn parts(&self) -> u64 {
        self.parts.load(Ordering::Relaxed)
    }

    /// Appends the header of a pack.
    pub fn header(&self, pack: Named<'_>, into: &mut Vec<u8>) -> Result<(), String> {
        let sent = self.named(pack).ok_or("there is no such pack")?;
        into.extend_from_slice(&sent.header);
        Ok(())
    }

    /// Appends a block of a pack, read again. It must match its hash; otherwise its source has
    /// changed, and no receiver can get this block any more.
    pub fn block(&self, pack: Named<'_>, block: u64, into: &mut Vec<u8>) -> Result<(), String> {
        let sent = self.named(pack).ok_or("there is no such pack")?;
        self.block_of(&sent, block, into)
    }

    fn block_of(&self, sent: &Sent, block: u64, into: &mut Vec<u8>) -> Result<(), String> {
        let header = Header::decode(&sent.header, sent.len as usize).ok_or("no pack")?;
        if block >= blocks(sent.len) {
            return Err("there is no such block".to_owned());
        }
        let (start, first) = (block * BLOCK as u64, into.len());
        let end = (start + BLOCK as u64).min(sent.len);
        let read = match (&sent.payload, &header.content) {
            (Some(payload), _) => {
                into.extend_from_slice(&payload[start as usize..end as usize]);
                Ok(())
            }
            (None, Content::Pieces(pieces)) => self.read(pieces, start, end, into),
            (None, Content::Page) => Err("no page".to_owned()),
        };
        read?;
        match header.proves(block, &into[first..]) {
            true => Ok(()),
            false => Err("a file was written to while it was being sent".to_owned()),
        }
    }

    /// Appends the bytes of a payload from `start` to `end`.
    fn read(
        &self,
        pieces: &[Piece],
        start: u64,
        end: u64,
        into: &mut Vec<u8>,
    ) -> Result<(), String> {
        for Span { file, offset, len } in spans(pieces, start, end) {
            let filled = into.len();
            into.resize(filled + len, 0);
            let opened = self.set.open(file)?;
            opened.read(offset, &mut into[filled..])?;
        }
        Ok(())
    }

    /// The hashes of a block's pieces of 16 KiB. The block is read, unless they are known.
    pub fn piece_hashes(&self, pack: Named<'_>, block: u64) -> Result<Arc<[u8]>, String> {
        let known = || self.pieces.lock().unwrap_or_else(poisoned);
        let sent = self.named(pack).ok_or("there is no such pack")?;
        let key = (pack.0, block, sent.record.hash);
        if let Some(hashes) = known().get(&key) {
            return Ok(hashes.clone());
        }
        let mut bytes = Vec::new();
        self.block_of(&sent, block, &mut bytes)?;
        let each = bytes.chunks(PIECE).map(blake3::hash);
        let hashes: Arc<[u8]> = each.flat_map(|hash| *hash.as_bytes()).collect();
        let mut known = known();
        if known.len() >= PIECE_LISTS {
            // Receivers go through the set from its beginning, so the first block is needed least.
            known.pop_first();
        }
        known.insert(key, hashes.clone());
        Ok(hashes)
    }

    /// Appends pieces of 16 KiB of a block.
    pub fn pieces(
        &self,
        pack: Named<'_>,
        block: u64,
        some: &[u32],
        into: &mut Vec<u8>,
    ) -> Result<(), String> {
        let mut bytes = Vec::new();
        self.block(pack, block, &mut bytes)?;
        for piece in some {
            let start = (*piece as usize * PIECE).min(bytes.len());
            let end = (start + PIECE).min(bytes.len());
            into.extend_from_slice(&bytes[start..end]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::testing::{packs, pattern, pieces_of, scratch, set_of};
    use std::path::PathBuf;

    /// A set of small files and a long one, the index of its packs, and the packs.
    fn indexed() -> (PathBuf, PackIndex, Vec<Pack>) {
        let dir = scratch();
        for i in 0..9 {
            std::fs::write(dir.join(format!("{i}")), pattern(100_000 + i)).unwrap();
        }
        std::fs::write(dir.join("long"), pattern(3 * BLOCK)).unwrap();
        let set = set_of(std::slice::from_ref(&dir));
        let (packs, _) = packs(&set);
        let index = PackIndex::new(set);
        packs.iter().for_each(|pack| index.add(pack));
        (dir, index, packs)
    }

    fn read(what: impl Fn(&mut Vec<u8>) -> Result<(), String>) -> Result<Vec<u8>, String> {
        let mut bytes = vec![7]; // what was there stays
        what(&mut bytes)?;
        assert_eq!(bytes.remove(0), 7);
        Ok(bytes)
    }

    #[test]
    fn every_part_is_read_again_as_it_was_sent() {
        let (dir, index, packs) = indexed();
        assert!(packs.len() >= 4);
        let mut parts = 0;
        for (pack, number) in packs.iter().zip(0..) {
            let len = pack.payload().len() as u64;
            assert_eq!(index.payload_len((number, "")), Some(len));
            let header = read(|into| index.header((number, ""), into)).unwrap();
            assert_eq!(header, &pack.bytes[..pack.header]);
            for block in 0..blocks(len) {
                let sent = pack.block(block);
                assert!(read(|into| index.block((number, ""), block, into)).unwrap() == sent);
                let each = sent.chunks(PIECE).flat_map(|p| *blake3::hash(p).as_bytes());
                let hashes: Vec<u8> = each.collect();
                for _ in 0..2 {
                    assert_eq!(*index.piece_hashes((number, ""), block).unwrap(), hashes);
                }
                let last = (sent.len() - 1) / PIECE;
                let some = read(|into| index.pieces((number, ""), block, &[0, last as u32], into));
                let expected = [&sent[..sent.len().min(PIECE)], &sent[last * PIECE..]].concat();
                assert!(some.unwrap() == expected);
            }
            parts += 1 + blocks(len);
        }
        assert_eq!(index.parts(), parts);
        let none = packs.len() as u32;
        assert_eq!(index.payload_len((none, "")), None);
        assert!(read(|into| index.header((none, ""), into)).is_err());
        assert!(read(|into| index.block((none, ""), 0, into)).is_err());
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_pack_is_sent_again_without_what_came_of_files_that_failed() {
        let (dir, index, packs) = indexed();
        let (none, mut lost) = (BTreeSet::new(), BTreeMap::new());
        for (pack, number) in packs.iter().zip(0..) {
            assert!(index.pack(number, &none, &mut lost).unwrap() == *pack);
        }
        let pieces = pieces_of(&packs[1]).unwrap();
        std::fs::remove_file(dir.join("3")).unwrap();
        let gone = pieces[3].file();
        let again = index.pack(1, &[gone].into(), &mut lost).unwrap();
        assert!(lost.is_empty(), "{lost:?}");
        let rest: Vec<Piece> = pieces.into_iter().filter(|p| p.file() != gone).collect();
        assert_eq!(pieces_of(&again).unwrap(), rest);
        // Parts of either can be had, each by its hash; the list does not change.
        for pack in [&packs[1], &again] {
            let hash = pack.hash().to_hex();
            let named = (1, &*hash);
            assert_eq!(index.payload_len(named), Some(pack.payload().len() as u64));
            assert_eq!(
                read(|into| index.header(named, into)).unwrap(),
                &pack.bytes[..pack.header]
            );
            // The first block of the pack that was sent first has what is gone.
            let is_there = *pack == again;
            let block = read(|into| index.block(named, 0, into));
            assert_eq!(block.ok().as_deref() == Some(pack.block(0)), is_there);
            let hashes = index.piece_hashes(named, 0).ok();
            assert_eq!(hashes.is_some(), is_there);
        }
        let mut list = Vec::new();
        index.list(1, &mut list);
        let records = PackRecord::decode(&list).unwrap();
        let expected: Vec<PackRecord> = packs[1..].iter().map(PackRecord::of).collect();
        assert_eq!(records, expected);
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_pack_that_is_sent_again_says_which_files_have_changed() {
        let (dir, index, packs) = indexed();
        let none = BTreeSet::new();
        let (small, long) = (pieces_of(&packs[1]).unwrap(), pieces_of(&packs[2]).unwrap());
        let ends = long
            .iter()
            .any(|p| matches!(p, Piece::Bytes { last: true, .. }));
        let of_long = long[0].file();
        assert!(small.iter().any(|p| p.file() == of_long) && packs.len() > 3 || !ends);
        for name in ["2", "5", "long"] {
            std::fs::write(dir.join(name), "other bytes").unwrap();
        }
        let mut lost = BTreeMap::new();
        for (pack, number) in packs.iter().zip(0..) {
            let again = index.pack(number, &none, &mut lost).unwrap();
            let Some(pieces) = pieces_of(pack) else {
                assert!(again == *pack);
                continue;
            };
            let has = |pieces: &[Piece], failed: bool| -> BTreeSet<u32> {
                let is_such = |p: &&Piece| matches!(p, Piece::Failed { .. }) == failed;
                pieces.iter().filter(is_such).map(Piece::file).collect()
            };
            let again = pieces_of(&again).unwrap();
            let lost: BTreeSet<u32> = lost.keys().copied().collect();
            let all = has(&pieces, false);
            assert_eq!(has(&again, false), &all - &lost, "{number}");
            assert_eq!(has(&again, true), &all & &lost, "{number}");
        }
        let files: Vec<u32> = lost.keys().copied().collect();
        assert_eq!(files, [small[2].file(), small[5].file(), of_long]);
        assert!(lost[&of_long].contains("long became shorter"), "{lost:?}");
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_list_that_makes_no_sense_is_none() {
        let record = |len, header| PackRecord {
            len,
            header,
            hash: [7; HASH],
        };
        let decoded = |record: PackRecord| {
            let mut list = Vec::new();
            record.put(&mut list);
            assert_eq!(PackRecord::decode(&list[1..]), None);
            PackRecord::decode(&list)
        };
        let good = record(70, 60);
        assert_eq!(decoded(good), Some(vec![good]));
        let long = (PACK_MAX + HEADER_MAX + 1) as u32;
        for bad in [record(5, 6), record(5, 0), record(long, HEADER_MAX as u32)] {
            assert_eq!(decoded(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn what_has_changed_is_not_given_away_and_the_rest_is() {
        let (dir, index, packs) = indexed();
        std::fs::write(dir.join("5"), "other").unwrap();
        // The source's state says nothing, but the bytes are others than those that were sent.
        let piece = Piece::Bytes {
            file: 10,
            offset: 0,
            len: 5,
            last: false,
        };
        index.add(&Pack::new(Content::Pieces(vec![piece]), b"other"));
        let why = read(|into| index.block((packs.len() as u32, ""), 0, into)).unwrap_err();
        assert!(why.contains("was written to"), "{why}");
        // The first pack of files has file 5, the last one has only the long file.
        let why = read(|into| index.block((1, ""), 0, into)).unwrap_err();
        assert!(why.contains("became shorter"), "{why}");
        assert!(index.piece_hashes((1, ""), 0).is_err());
        let last = packs.len() as u32 - 1;
        assert!(read(|into| index.block((last, ""), 0, into)).is_ok());
        assert!(read(|into| index.block((0, ""), 0, into)).is_ok());
        std::fs::remove_dir_all(dir).unwrap();
    }
}
