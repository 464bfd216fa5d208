//! Feedback that rides on datagrams which go to whoever is to have it anyway (P1.6 "piggyback").

use super::*;

/// A datagram that others' feedback may ride on.
pub struct Ride<'a> {
    /// Where it goes.
    pub to: Dest,
    /// Bytes that it has room for.
    pub room: usize,
    /// This node's own stream to the group, which knows whom multicast reaches.
    pub root: Option<&'a Root>,
}

impl Ride<'_> {
    /// Appends the feedback of all these streams that is waiting and fits. Says how many there
    /// were.
    pub fn board(
        mut self,
        now: Time,
        scheme: &Scheme,
        streams: &mut [Inbound],
        head: &mut Vec<u8>,
    ) -> u64 {
        let mut boarded = 0;
        if scheme.feedback.piggyback.is_zero() {
            return boarded;
        }
        for stream in streams {
            let goes = match self.to {
                Dest::Node(node) => node == stream.collector,
                Dest::Group(_) => self.root.is_some_and(|r| r.hears(stream.collector)),
            };
            if goes && let Some(len) = stream.ride(now, scheme, self.room, head) {
                self.room -= len;
                boarded += 1;
            }
        }
        boarded
    }
}

impl Inbound {
    /// Appends feedback that is waiting for a ride, if it fits; its length.
    fn ride(
        &mut self,
        now: Time,
        scheme: &Scheme,
        room: usize,
        head: &mut Vec<u8>,
    ) -> Option<usize> {
        // Who waits for those below it to answer has nothing to say yet.
        if self.due.is_none() || self.asked.is_some() || room < wire::FEEDBACK_LEN {
            return None;
        }
        let (start, told) = (head.len(), self.told_below);
        self.write(now, scheme, flag::RIDES, head);
        let len = head.len() - start;
        if len > room {
            head.truncate(start);
            self.told_below = told;
            return None;
        }
        self.told(now, scheme);
        Some(len)
    }
}
