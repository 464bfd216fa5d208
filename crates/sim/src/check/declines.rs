//! Nothing is sent for a receiver alone that declines it, once its root has heard of that.

use fabricast::proto::Dest;
use fabricast::proto::scheme::Checksum;
use fabricast::proto::wire::{self, Frame};

use super::{BATCH_MAX, Judge, Receiver};

impl Judge {
    /// Notes that a receiver has declined an operation.
    pub(crate) fn declines(&mut self, (stream, host): (usize, u32), number: usize) {
        if let Some(r) = self.receiver(stream, host) {
            r.declined.insert(number, None);
        }
    }

    /// Notes a datagram that a host has taken: a root hears what its receivers decline.
    pub(crate) fn hears(&mut self, host: u32, bytes: &[u8]) {
        // A damaged datagram may look like another one. The node drops it.
        if self.checksum != Checksum::None {
            return;
        }
        let Ok(datagram) = wire::decode(bytes) else {
            return;
        };
        let from = self.numbering.host(datagram.header.source);
        for frame in datagram.frames() {
            let Frame::Feedback(f) = frame else { continue };
            let (Some(i), Some(from)) = (self.stream_of(f.group, f.sender), from) else {
                continue;
            };
            let s = &mut self.streams[i];
            if f.declined.is_empty() || s.root != host || datagram.header.session != self.session {
                continue;
            }
            let starts = std::rc::Rc::clone(&s.starts);
            let first = s.first;
            let Some(r) = self.receiver(i, from).filter(|r| r.slot == f.slot) else {
                continue;
            };
            let index = |seq: fabricast::proto::Seq| u64::from(seq.0.wrapping_sub(first.0));
            let ranges: Vec<_> = f
                .declined
                .map(|(seq, n)| (index(seq), u64::from(n)))
                .collect();
            for (&number, late) in &mut r.declined {
                let names =
                    |&(at, n): &(u64, u64)| at <= starts[number] && starts[number + 1] <= at + n;
                if late.is_none() && ranges.iter().any(names) {
                    *late = Some(0);
                }
            }
        }
    }

    /// Checks a packet of operation `op` of stream `i`: somebody may want it.
    pub(super) fn unwanted(&mut self, host: u32, dest: Dest, i: usize, op: usize) {
        let to = match dest {
            Dest::Node(n) => self.numbering.host(n),
            Dest::Address(_) => None,
        };
        let gets =
            |r: &&mut Receiver| !r.excused && r.from <= op && to.is_none_or(|to| to == r.host);
        let knows = |r: &&mut Receiver| matches!(r.declined.get(&op), Some(Some(_)));
        let s = &mut self.streams[i];
        let wanted = |r: &&mut Receiver| gets(r) && !knows(r);
        if s.receivers.iter_mut().any(|r| wanted(&r)) {
            return;
        }
        // A batch may have been on its way when the root heard.
        let mut most = 0;
        for r in s.receivers.iter_mut().filter(gets) {
            if let Some(Some(late)) = r.declined.get_mut(&op) {
                *late += 1;
                most = most.max(*late);
            }
        }
        if most > BATCH_MAX && !self.copies {
            self.wrong(host, || {
                format!("sends operation {op}, which all to whom it goes decline")
            });
        }
    }
}
