//! A network for the tests of what wraps a transport.

use std::collections::VecDeque;

use super::*;

/// Hands what was sent back to its sender, `burst` datagrams in each call. Takes at most `room`
/// datagrams in each call, and records how long its caller waits.
pub struct Echo {
    pub room: usize,
    pub burst: usize,
    pub queue: VecDeque<Vec<u8>>,
    /// Number of datagrams that were taken.
    pub taken: u64,
    pub waited: Option<Duration>,
    /// Sending fails.
    pub fails: bool,
    slots: Slots,
    done: Vec<DatagramId>,
}

impl Echo {
    pub fn new(room: usize, burst: usize) -> Echo {
        Echo {
            room,
            burst,
            queue: VecDeque::new(),
            taken: 0,
            waited: None,
            fails: false,
            slots: Slots::new(),
            done: Vec::new(),
        }
    }
}

impl Transport for Echo {
    fn caps(&self) -> Caps {
        Caps::datagrams(9000)
    }
    fn backlog(&self, _: u32) -> u32 {
        0
    }
    fn address(&self) -> NodeAddress {
        NodeAddress::Number(0)
    }
    fn peer(&mut self, _: NodeId, _: &NodeAddress) {}
    fn forget(&mut self, _: NodeId) {}
    fn join(&mut self, _: GroupId, _: &GroupAddress, _: bool) {}
    fn leave(&mut self, _: GroupId) {}
    fn slots(&mut self) -> &mut Slots {
        &mut self.slots
    }
    fn send(&mut self, _: Time, batch: &[Outgoing<'_>]) -> io::Result<usize> {
        if self.fails {
            return Err(io::ErrorKind::NetworkDown.into());
        }
        let taken = batch.len().min(self.room);
        for datagram in &batch[..taken] {
            self.queue.push_back(self.slots.pieces(datagram).concat());
            self.done.push(datagram.id);
        }
        self.taken += taken as u64;
        Ok(taken)
    }
    fn completions(&mut self, _: Time, done: &mut dyn FnMut(DatagramId)) {
        self.done.drain(..).for_each(done);
    }
    fn recv(&mut self, now: Time, sink: &mut dyn FnMut(&mut Arrival<'_>)) -> io::Result<usize> {
        let count = self.queue.len().min(self.burst);
        for mut datagram in self.queue.drain(..count) {
            sink(&mut Arrival::lent(None, now, &mut datagram));
        }
        Ok(count)
    }
    fn attach(&mut self, _: &Sleeper) -> io::Result<Box<dyn Watch>> {
        unreachable!("no thread sleeps")
    }
    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.waited = timeout;
        Ok(())
    }
}
