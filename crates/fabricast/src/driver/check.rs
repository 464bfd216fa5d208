//! Checksums of datagrams (P4.4). The driver computes one from the object's bytes when it sends a
//! datagram, and compares it before the node sees an arrived datagram.

use fabricast_proto::mutant::{self, Mutant};
use fabricast_proto::scheme::Checksum;
use fabricast_proto::wire::{self, Datagram};

/// Computes the checksum of the datagram that consists of `head` and `body`, and sets it in the
/// head.
pub(super) fn seal(checksum: Checksum, head: &mut [u8], body: &[u8]) {
    wire::set_check(head, checksum, |[before, behind]| {
        value(checksum, [before, behind, body])
    });
}

/// Whether a datagram carries the expected kind of checksum, with the right value. A node that
/// expects none accepts no datagram that carries one.
pub(super) fn is_sound(checksum: Checksum, bytes: &[u8], datagram: &Datagram<'_>) -> bool {
    match &datagram.check {
        _ if mutant::active(Mutant::DamageBelieved) => true,
        None => checksum == Checksum::None,
        Some(check) => {
            let [before, behind] = check.covers(bytes);
            check.checksum == checksum && check.value == value(checksum, [before, behind, &[]])
        }
    }
}

/// The checksum over pieces that follow each other. All pieces but the last that is not empty must
/// be whole words long.
fn value(checksum: Checksum, pieces: [&[u8]; 3]) -> u32 {
    match checksum {
        Checksum::None => 0,
        Checksum::Additive => pieces.into_iter().map(sum).fold(0, u32::wrapping_add),
        Checksum::Crc32c => pieces.into_iter().fold(0, crc32c::crc32c_append),
    }
}

/// The sum of a piece's big-endian words. Missing bytes of the last word count as zeros.
fn sum(piece: &[u8]) -> u32 {
    let (words, rest) = piece.as_chunks::<4>();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    let words = words.iter().chain([&last]);
    words.fold(0, |sum: u32, w| sum.wrapping_add(u32::from_be_bytes(*w)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fabricast_proto::wire::{Header, Sync};
    use fabricast_proto::{GroupId, NodeId, Seq, Session};

    /// The example of spec 1.8, with this checksum.
    fn datagram(checksum: Checksum) -> Vec<u8> {
        let header = Header {
            burst: 0x0102,
            source: NodeId(3),
            session: Session(0x1122_3344_5566_7788),
        };
        let origin = wire::Origin::Source(Seq(0xffff_fffe));
        let mut head = wire::head(|out| {
            wire::put_header(out, &header);
            wire::put_check(out, checksum);
            wire::put_data(out, GroupId(7), origin, Seq(1), 0, 5);
        });
        seal(checksum, &mut head, b"hello");
        [&head[..], b"hello"].concat()
    }

    fn is_good(checksum: Checksum, bytes: &[u8]) -> bool {
        wire::decode(bytes).is_ok_and(|d| is_sound(checksum, bytes, &d))
    }

    #[test]
    fn values_are_those_of_the_specification() {
        let value = |checksum| {
            let bytes = datagram(checksum);
            wire::decode(&bytes).unwrap().check.unwrap().value
        };
        assert_eq!(value(Checksum::Additive), 0x49f3_1860);
        assert_eq!(value(Checksum::Crc32c), 0x0400_d574);
        // The check value of CRC-32C's catalogue entry.
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn no_changed_byte_goes_unnoticed() {
        for checksum in [Checksum::Additive, Checksum::Crc32c] {
            let bytes = datagram(checksum);
            assert!(is_good(checksum, &bytes));
            for at in 0..bytes.len() {
                for change in 1..=255 {
                    let mut bad = bytes.clone();
                    bad[at] ^= change;
                    assert!(!is_good(checksum, &bad), "{checksum:?}: {change} at {at}");
                }
            }
        }
    }

    #[test]
    fn words_that_change_places_are_found_by_the_crc_alone() {
        for (checksum, found) in [(Checksum::Additive, false), (Checksum::Crc32c, true)] {
            let mut bytes = datagram(checksum);
            let end = bytes.len();
            bytes.swap(end - 5, end - 9); // the numbers' first bytes: 'h' and 0
            assert_eq!(is_good(checksum, &bytes), !found, "{checksum:?}");
        }
    }

    #[test]
    fn only_what_was_agreed_is_believed() {
        let all = [Checksum::None, Checksum::Additive, Checksum::Crc32c];
        for has in all {
            for wants in all {
                assert_eq!(is_good(wants, &datagram(has)), has == wants);
            }
        }
    }

    #[test]
    fn a_datagram_without_payload_is_sealed_too() {
        let sync = Sync {
            group: GroupId(7),
            sender: NodeId(3),
            next: Seq(9),
        };
        let mut head = wire::head(|out| {
            out.put(&datagram(Checksum::Crc32c)[..16]);
            wire::put_check(out, Checksum::Crc32c);
            wire::put_sync(out, &sync);
        });
        assert!(!is_good(Checksum::Crc32c, &head));
        seal(Checksum::Crc32c, &mut head, &[]);
        assert!(is_good(Checksum::Crc32c, &head));
    }
}
