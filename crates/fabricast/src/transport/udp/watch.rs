//! What a thread needs to sleep until datagrams wait at the sockets.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::Udp;
use crate::transport::wait::Descriptors;
use crate::transport::{Sleeper, Watch};

/// The sockets, as one sleeping thread sees them.
struct Sockets {
    sleeper: Descriptors,
    /// The socket that sends, under a descriptor of its own: the other one is read.
    sender: OwnedFd,
    /// The sleep also ends when the socket takes datagrams again.
    is_full: Cell<bool>,
}

impl Udp {
    /// From now on, datagrams end the sleep of this thread.
    pub(super) fn watch(&mut self, sleeper: &Sleeper) -> io::Result<Box<dyn Watch>> {
        let sleeper = sleeper.descriptors();
        let inputs = self.inputs.iter().map(|i| i.socket.as_fd());
        for socket in inputs.chain([self.socket.as_fd()]) {
            sleeper.read(socket)?;
        }
        let sender = self.socket.as_fd().try_clone_to_owned()?;
        sleeper.send(sender.as_fd())?;
        self.sleepers.retain(|s| !s.is_gone());
        self.sleepers.push(sleeper.clone());
        let is_full = Cell::new(false);
        Ok(Box::new(Sockets {
            sleeper,
            sender,
            is_full,
        }))
    }
}

impl Watch for Sockets {
    fn begin(&self, full: bool) -> io::Result<bool> {
        if full {
            self.sleeper.send_on(self.sender.as_fd(), true)?;
            self.is_full.set(true);
        }
        Ok(true)
    }

    fn end(&self) {
        if self.is_full.take() {
            // It only makes sleeps end that need not.
            let _ = self.sleeper.send_on(self.sender.as_fd(), false);
        }
    }
}
