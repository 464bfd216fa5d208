//! This node's own stream to a group.

use crate::scheme::Scheme;
use crate::sender::Sender;
use crate::time::Time;

/// The sending side of this node's stream to a group, and when it has something to do. A node that
/// sends nothing does not look at it for the packets of other streams.
pub struct OwnStream {
    /// `None`: the stream has not begun.
    sender: Option<Sender>,
    /// When the sender has something to do, as it was when this was last recorded.
    due: Option<Time>,
    /// Whether the sender may have changed since.
    changed: bool,
}

impl OwnStream {
    /// The stream has not begun.
    pub fn new() -> OwnStream {
        OwnStream {
            sender: None,
            due: None,
            changed: false,
        }
    }

    /// The sender, if the stream has begun.
    pub fn get(&self) -> Option<&Sender> {
        self.sender.as_ref()
    }

    /// The sender, if the stream has begun, for a change.
    pub fn get_mut(&mut self) -> Option<&mut Sender> {
        self.changed = true;
        self.sender.as_mut()
    }

    /// The sender, for a change. `new` makes it if the stream has not begun.
    pub fn begin(&mut self, new: impl FnOnce() -> Sender) -> &mut Sender {
        self.changed = true;
        self.sender.get_or_insert_with(new)
    }

    /// The sender, for a change, if it may have something to do now.
    pub fn due(&mut self, now: Time) -> Option<&mut Sender> {
        match self.changed || self.due.is_some_and(|t| t <= now) {
            true => self.get_mut(),
            false => None,
        }
    }

    /// Records when the sender has something to do.
    pub fn record(&mut self, scheme: &Scheme) {
        self.due = self.wake(scheme);
        self.changed = false;
    }

    /// When the sender has something to do; [`Time::ZERO`]: at once.
    pub fn wake(&self, scheme: &Scheme) -> Option<Time> {
        match self.changed {
            true => self.sender.as_ref().and_then(|s| s.wake(scheme)),
            false => self.due,
        }
    }

    /// Panics if the state contradicts itself, or if the sender has something to do at another time
    /// than is recorded.
    pub fn invariants(&self, scheme: &Scheme) {
        let wake = self.sender.as_ref().and_then(|s| s.wake(scheme));
        assert_eq!(self.wake(scheme), wake);
        self.sender.iter().for_each(Sender::invariants);
    }
}
