//! Errors that tests put in the kernel's place.

use std::collections::VecDeque;
use std::io;

use super::sys::Message;

/// Errors that tests put in the kernel's place.
#[derive(Default)]
pub struct Script {
    /// Answers to the next calls; `0` lets one through.
    pub next: VecDeque<i32>,
    /// Answer to every message that is to be cut.
    pub cut: Option<i32>,
}

impl Script {
    /// How many of `messages` the kernel may have.
    pub fn lets_through(&mut self, messages: &[Message]) -> io::Result<usize> {
        let errno = self.next.pop_front().unwrap_or(0);
        if errno != 0 {
            return Err(io::Error::from_raw_os_error(errno));
        }
        let to_cut = messages.iter().position(|m| m.segment.is_some());
        match (self.cut, to_cut) {
            (Some(errno), Some(0)) => Err(io::Error::from_raw_os_error(errno)),
            (Some(_), Some(at)) => Ok(at),
            _ => Ok(messages.len()),
        }
    }
}
