//! Errors that tests inject in place of the kernel's.

use std::collections::VecDeque;
use std::io;

use super::sys::Message;

/// Errors that tests inject in place of the kernel's.
#[derive(Default)]
pub struct Script {
    /// Error numbers for the next calls; `0` lets a call through.
    pub next: VecDeque<i32>,
    /// Error number for every message that the kernel would have to segment.
    pub cut: Option<i32>,
}

impl Script {
    /// How many of `messages` the kernel may get.
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
