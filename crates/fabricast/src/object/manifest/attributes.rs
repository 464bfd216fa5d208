//! The extended attributes of an entry.

use std::collections::BTreeMap;

/// Extended attributes of an entry, in the order of their names. They are kept as a page has them:
/// a map would take many times as much memory as the bytes that a sender sends for it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Attributes(Box<[u8]>);

impl Attributes {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut rest = &self.0[..];
        std::iter::from_fn(move || next(&mut rest))
    }

    /// The bytes of a page behind the number of attributes.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The attributes that a page has from here on; `None` if they are cut off, none, or not in
    /// order.
    pub(super) fn decode(page: &mut &[u8]) -> Option<Attributes> {
        let (count, all) = page.split_first_chunk()?;
        let count = u16::from_be_bytes(*count);
        *page = all;
        let mut last = None;
        for _ in 0..(count > 0).then_some(count)? {
            let (name, _) = next(page)?;
            // In order, and each once.
            if last.is_some_and(|last| last >= name) {
                return None;
            }
            last = Some(name);
        }
        Some(Attributes(all[..all.len() - page.len()].into()))
    }
}

impl FromIterator<(Box<[u8]>, Box<[u8]>)> for Attributes {
    /// Of two attributes with the same name the later one stays.
    fn from_iter<I: IntoIterator<Item = (Box<[u8]>, Box<[u8]>)>>(all: I) -> Attributes {
        let mut bytes = Vec::new();
        for (name, value) in all.into_iter().collect::<BTreeMap<_, _>>() {
            bytes.extend((name.len() as u16).to_be_bytes());
            bytes.extend(name);
            bytes.extend((value.len() as u32).to_be_bytes());
            bytes.extend(value);
        }
        Attributes(bytes.into())
    }
}

/// Takes the name and the value of the next attribute.
fn next<'a>(from: &mut &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    let (len, rest) = from.split_first_chunk()?;
    let (name, rest) = rest.split_at_checked(u16::from_be_bytes(*len).into())?;
    let (len, rest) = rest.split_first_chunk()?;
    let (value, rest) = rest.split_at_checked(u32::from_be_bytes(*len) as usize)?;
    *from = rest;
    Some((name, value))
}
