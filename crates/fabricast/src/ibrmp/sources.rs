//! Which sets P3's protocol can send.

use std::collections::VecDeque;

use crate::error::Error;
use crate::object::SourceSet;
use crate::object::manifest::{Kind, TOP};

/// The numbers of the entries of a set that are sent, each a file.
///
/// # Errors
/// The set has something that P3's protocol cannot send.
pub fn files(set: &SourceSet) -> Result<VecDeque<u32>, Error> {
    let entries = set.manifest().entries();
    for (number, entry) in (0..).zip(entries) {
        let what = match entry.kind {
            Kind::File(_) if entry.parent == TOP => continue,
            Kind::HardLink(_) => "another name of a file that is sent already",
            Kind::Copy(_) => "a copy of a file that is sent already",
            Kind::Stream => "a stream, whose length is not known",
            Kind::Special(_) => "a device or a FIFO",
            _ => "a directory",
        };
        return Err(Error::Usage(format!(
            "{} is {what}, and P3's protocol sends files alone: name each file once, or choose \
             another scheme",
            set.path(number).display()
        )));
    }
    Ok((0..entries.len() as u32).collect())
}

/// The hash by which receivers find what an earlier run has left; empty if they keep nothing, as
/// with P3's protocol. `scheme`: the sender's.
pub fn digest(scheme: &str, set: &SourceSet) -> String {
    match scheme == super::NAME {
        true => String::new(),
        false => set.digest(),
    }
}
