//! The bodies of the fuzz targets of sets of files: what a sender that lies says of them.

use fabricast::object::manifest::Manifest;
use fabricast::object::pack::{Content, Header};

use crate::place::Place;

/// Checks that bytes are no page of a manifest, or entries whose paths lead nowhere but down, and
/// which make the same page again. Returns the number of entries.
pub fn page(bytes: &[u8]) -> usize {
    let mut manifest = Manifest::default();
    let is_page = manifest.add_page(bytes).is_ok();
    let count = manifest.entries().len();
    for entry in 0..count as u32 {
        let path = manifest.path(entry);
        for name in path.split(|b| *b == b'/') {
            assert!(!matches!(name, b"" | b"." | b"..") && !name.contains(&0));
        }
    }
    if is_page {
        let mut again = Vec::new();
        assert_eq!(manifest.put_page(0, &mut again) as usize, count);
        assert_eq!(again, bytes);
    }
    count
}

/// Checks that bytes, behind the payload's length in four bytes, are no header of a pack, or one
/// that is written so again and fits the payload. Returns the number of pieces, if it is a header.
pub fn header(bytes: &[u8]) -> Option<usize> {
    let (len, bytes) = bytes.split_first_chunk()?;
    let len = u32::from_be_bytes(*len) as usize;
    let header = Header::decode(bytes, len)?;
    assert_eq!(header.encode(), bytes);
    match header.content {
        Content::Page => Some(0),
        Content::Pieces(pieces) => Some(pieces.len()),
    }
}

/// Most packs of an input.
const PACKS_MAX: usize = 64;
/// Most bytes of all files of a set: longer ones would only take time.
const LEN_MAX: u64 = 1 << 20;

/// Stores packs of a sender that lies, and checks that nothing is written outside the destination.
///
/// `input` is a sequence of packs, each after the lengths of its header and its payload in two
/// bytes each. A pack whose header has no bytes begins another set for the same destination, which
/// may replace what is there. Returns the number of packs that were stored.
pub fn store(input: &[u8]) -> usize {
    let place = Place::new("store");
    let (mut tree, mut rest, mut stored) = (place.tree(), input, 0);
    for _ in 0..PACKS_MAX {
        let Some((header, payload)) = next(&mut rest) else {
            break;
        };
        if header.is_empty() {
            let _ = tree.finish();
            tree = place.tree();
            continue;
        }
        let result = match Header::decode(header, payload.len()).map(|h| h.content) {
            Some(Content::Page) => tree.add_page(payload),
            Some(Content::Pieces(_)) if tree.manifest().len() > LEN_MAX => break,
            Some(Content::Pieces(pieces)) => tree.write(&pieces, payload),
            None => continue,
        };
        match result {
            Ok(()) => stored += 1,
            Err(_) => tree = place.tree(), // a receiver ends at the first error
        }
    }
    let _ = tree.finish();
    drop(tree);
    place.check();
    stored
}

/// The header and the payload of the next pack.
fn next<'a>(rest: &mut &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    let (&[a, b, c, d], bytes) = rest.split_first_chunk()?;
    let (header, payload) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
    let (header, bytes) = bytes.split_at_checked(header.into())?;
    let (payload, bytes) = bytes.split_at_checked(payload.into())?;
    *rest = bytes;
    Some((header, payload))
}

#[cfg(test)]
mod tests {
    use fabricast::object::manifest::{Attributes, Entry, Kind, Special, TOP};
    use fabricast::object::pack::{Pack, Piece};
    use fabricast_proto::rng::Rng;

    use super::*;
    use crate::tests::{Tried, rounds, spoilt};

    fn manifest(entries: &[(u32, &str, Kind)]) -> Vec<u8> {
        let (mut manifest, mut page) = (Manifest::default(), Vec::new());
        for (parent, name, kind) in entries {
            let entry = Entry {
                parent: *parent,
                name: name.as_bytes().into(),
                kind: kind.clone(),
                mode: 0o755,
                mtime: 7,
                mtime_ns: 7,
                owner: (u32::MAX, u32::MAX),
                attributes: match *name {
                    "m" => Attributes::from_iter([((*b"user.x").into(), (*b"value").into())]),
                    _ => Attributes::default(),
                },
            };
            manifest.add(entry).unwrap();
        }
        manifest.put_page(0, &mut page);
        page
    }

    fn pages() -> Vec<Vec<u8>> {
        let link = || Kind::Symlink((*b"../outside").into());
        vec![
            manifest(&[
                (TOP, "d", Kind::Directory),
                (0, "f", Kind::File(100)),
                (0, "g", Kind::File(0)),
                (0, "h", Kind::HardLink(1)),
                (0, "c", Kind::Copy(1)),
                (0, "s", link()),
            ]),
            manifest(&[(TOP, "d", link()), (TOP, "e", Kind::File(10))]),
            manifest(&[(TOP, "e", Kind::Directory), (0, "s", Kind::Directory)]),
            manifest(&[(TOP, "s", Kind::Stream)]),
            manifest(&[
                (TOP, "d", Kind::Directory),
                (0, "p", Kind::Special(Special::Fifo)),
                (0, "m", Kind::File(10)),
            ]),
        ]
    }

    fn pieces() -> Vec<(Content, usize)> {
        let piece = |file, offset, len, last| Piece::Bytes {
            file,
            offset,
            len,
            last,
        };
        let reason = "gone".to_owned();
        vec![
            (
                Content::Pieces(vec![
                    piece(1, 0, 30, false),
                    Piece::Hole {
                        file: 1,
                        offset: 30,
                        len: 30,
                        last: false,
                    },
                    piece(1, 60, 40, true),
                    piece(2, 0, 0, true),
                ]),
                70,
            ),
            (Content::Pieces(vec![piece(1, 0, 10, true)]), 10),
            (
                Content::Pieces(vec![piece(0, 0, 10, false), piece(0, 10, 5, true)]),
                15,
            ),
            (Content::Pieces(vec![Piece::Failed { file: 1, reason }]), 0),
        ]
    }

    #[test]
    fn pages_that_lie_are_entries_or_refused() {
        let (mut seeds, mut entries) = (pages(), 0);
        for name in ["..", "/x", "x/", "\0x"] {
            let mut page = manifest(&[(TOP, "d", Kind::Directory), (0, "xx", Kind::Directory)]);
            let at = page.windows(2).position(|w| w == b"xx").unwrap();
            page[at..at + 2].copy_from_slice(name.as_bytes());
            seeds.push(page);
        }
        for seed in rounds() {
            let _tried = Tried(seed);
            entries += page(&spoilt(&mut Rng::new(seed), &seeds));
        }
        assert!(entries > 1, "the decoder refuses every page");
    }

    #[test]
    fn headers_that_lie_are_headers_or_refused() {
        let seeds: Vec<Vec<u8>> = pieces()
            .into_iter()
            .map(|(content, len)| {
                let pack = Pack::new(content, &vec![1; len]);
                let len = (len as u32).to_be_bytes();
                [&len, &pack.bytes[..pack.header]].concat()
            })
            .collect();
        let mut headers = 0;
        for seed in rounds() {
            let _tried = Tried(seed);
            let decoded = header(&spoilt(&mut Rng::new(seed), &seeds));
            headers += usize::from(decoded.is_some());
        }
        assert!(headers > 0, "the decoder refuses every header");
    }

    #[test]
    fn what_a_sender_that_lies_sends_stays_in_the_destination() {
        let (pages, pieces) = (pages(), pieces());
        let mut stored = 0;
        for seed in rounds() {
            let _tried = Tried(seed);
            let (mut rng, mut input) = (Rng::new(seed), Vec::new());
            let mut put = |header: &[u8], payload: &[u8]| {
                input.extend((header.len() as u16).to_be_bytes());
                input.extend((payload.len() as u16).to_be_bytes());
                input.extend(header);
                input.extend(payload);
            };
            for _ in 0..rng.below(8) {
                let set = rng.below(3) as usize;
                let (content, len) = &pieces[set];
                let page = match rng.below(4) {
                    0 => spoilt(&mut rng, &pages),
                    _ => pages[set].clone(),
                };
                let packs = [
                    Pack::new(Content::Page, &page),
                    Pack::new(content.clone(), &vec![3; *len]),
                ];
                for pack in packs {
                    let mut head = pack.bytes[..pack.header].to_vec();
                    if rng.below(4) == 0 {
                        head = spoilt(&mut rng, &[head]);
                    }
                    put(&head, pack.payload());
                }
                put(&[], &[]);
            }
            stored += store(&input);
        }
        assert!(stored > 1, "every pack is refused");
    }
}
