//! Bytes on their way into objects, and what becomes of them.

use std::collections::BTreeSet;

use fabricast_proto::{CodeBlock, Extent, Node, OpId, Outcome, Packets, Time};
use rustc_hash::FxHashMap;

use super::code::Code;
use crate::object::{Object, Written};

/// Copies bytes into an object. An outcome that is known at once is added to `placed`, joined to
/// the last extent there if it follows it.
pub(super) fn write<O: Object>(
    objects: &mut FxHashMap<OpId, O>,
    extent: Extent,
    bytes: &[u8],
    later: &mut BTreeSet<OpId>,
    placed: &mut Vec<(Extent, Outcome)>,
) {
    if let Some(object) = objects.get_mut(&extent.op) {
        write_to(object, extent, bytes, later, placed);
    }
}

fn write_to<O: Object>(
    object: &mut O,
    extent: Extent,
    bytes: &[u8],
    later: &mut BTreeSet<OpId>,
    placed: &mut Vec<(Extent, Outcome)>,
) {
    match object.write(extent.offset, bytes) {
        Written::Placed => {
            let last = placed
                .last_mut()
                .filter(|(_, outcome)| *outcome == Outcome::Ok);
            match last.and_then(|(last, _)| Some((last.joined(&extent)?, last))) {
                Some((both, last)) => *last = both,
                None => placed.push((extent, Outcome::Ok)),
            }
        }
        // Nearly always the operation is in the set already, and the first.
        Written::Later if later.first() == Some(&extent.op) => {}
        Written::Later => _ = later.insert(extent.op),
        Written::Failed => placed.push((extent, Outcome::Failed)),
    }
}

/// Tells the node the outcome of the extents in `placed`.
pub(super) fn tell_placed(node: &mut Node, placed: &mut Vec<(Extent, Outcome)>, now: Time) {
    for (extent, outcome) in placed.drain(..) {
        node.placed(now, extent, outcome);
    }
}

/// Where bytes go: objects, those of them that put bytes off, and outcomes.
pub(super) type Placing<'a, O> = (
    &'a mut FxHashMap<OpId, O>,
    &'a mut BTreeSet<OpId>,
    &'a mut Vec<(Extent, Outcome)>,
);

/// Decodes what a block lacks from its parity packets, and writes it. Returns the number of bytes.
pub(super) fn rebuild<O: Object>(
    code: &mut Code,
    block: &CodeBlock,
    lacking: Packets,
    (objects, later, placed): Placing<'_, O>,
) -> u64 {
    let mut written = 0;
    let done = objects.get_mut(&block.op).is_some_and(|object| {
        code.rebuild(object, block, lacking, &mut |object, extent, bytes| {
            written += bytes.len() as u64;
            write_to(object, extent, bytes, later, placed);
        })
    });
    if !done {
        placed.extend(block.extents(lacking).map(|e| (e, Outcome::Corrupt)));
    }
    written
}
