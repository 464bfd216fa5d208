//! Groups that end: what each of them still waits for.
//!
//! Programs may free thousands of groups in a second, and each stays for a moment after that. So no
//! step looks at groups that have nothing to do.

use std::collections::VecDeque;
use std::mem;
use std::time::Duration;

use fabricast_proto::{GroupId, OpId, Time};
use rustc_hash::FxHashMap;

use crate::communicator::networks::Network;

/// How long a group that was left waits for others that are left, so that their last barriers go
/// together. A barrier wakes each process several times, however many others go with it, and the
/// words of barriers that go together share datagrams.
const TOGETHER: Duration = Duration::from_millis(10);
/// How long a group stays after its last barrier, to answer members that lost a word.
const ANSWERING: Duration = Duration::from_millis(50);
/// How long a group stays at most after its last barrier, while a member still owes it an answer,
/// in the group itself or on a channel.
const ANSWERING_MAX: Duration = Duration::from_secs(5);

/// A group on one of the networks.
pub(crate) type Place = (GroupId, Network);

/// Stages of a group's end. Members may lack data until all have entered a last barrier. After it,
/// a member can lack only words of that barrier, and then asks soon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Other members still lack what this process has sent.
    Flushing,
    /// They have all of it. This process has entered the last barrier, and others may not have.
    Meeting(OpId),
    /// All members had entered the last barrier at this time. This process still answers them.
    Answering(Time),
}

/// The groups that this process has left and that have not ended.
#[derive(Default)]
pub(crate) struct Endings {
    stages: FxHashMap<Place, Stage>,
    flushing: Vec<Place>,
    /// When the groups in `flushing` begin their last barriers.
    together: Time,
    meeting: FxHashMap<(Network, OpId), GroupId>,
    /// When to look at a group that answers, in the order of these times.
    answering: VecDeque<(Time, Place)>,
}

impl Endings {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.stages.is_empty()
    }

    /// Whether this group ends.
    pub fn has(&self, place: Place) -> bool {
        self.stages.contains_key(&place)
    }

    /// A group begins to end.
    pub fn begin(&mut self, now: Time, place: Place) {
        self.remove(place);
        if self.flushing.is_empty() {
            self.together = now + TOGETHER;
        }
        self.stages.insert(place, Stage::Flushing);
        self.flushing.push(place);
    }

    /// A group is no more.
    pub fn remove(&mut self, place: Place) {
        match self.stages.remove(&place) {
            Some(Stage::Flushing) => self.flushing.retain(|&other| other != place),
            Some(Stage::Meeting(op)) => _ = self.meeting.remove(&(place.1, op)),
            Some(Stage::Answering(_)) | None => {}
        }
    }

    /// Takes the groups that may begin their last barriers. Of each the caller says by
    /// [`Endings::flushes_on`], [`Endings::meets`] or [`Endings::remove`] what becomes of it.
    pub fn flushing(&mut self, now: Time) -> Vec<Place> {
        match now >= self.together {
            true => mem::take(&mut self.flushing),
            false => Vec::new(),
        }
    }

    /// Operations of the group are still under way.
    pub fn flushes_on(&mut self, place: Place) {
        self.flushing.push(place);
    }

    /// The group has entered its last barrier by this operation.
    pub fn meets(&mut self, place: Place, op: OpId) {
        self.stages.insert(place, Stage::Meeting(op));
        self.meeting.insert((place.1, op), place.0);
    }

    /// An operation has ended. Returns whether it was a last barrier.
    pub fn met(&mut self, now: Time, network: Network, op: OpId) -> bool {
        let Some(group) = self.meeting.remove(&(network, op)) else {
            return false;
        };
        self.stages.insert((group, network), Stage::Answering(now));
        self.answering
            .push_back((now + ANSWERING, (group, network)));
        true
    }

    /// The next group that has answered for a while, and whether it goes in any case.
    pub fn answered(&mut self, now: Time) -> Option<(Place, bool)> {
        while let Some(&(at, place)) = self.answering.front().filter(|next| next.0 <= now) {
            self.answering.pop_front();
            match self.stages.get(&place) {
                // It may have ended, and begun anew.
                Some(&Stage::Answering(since)) if since + ANSWERING <= at => {
                    return Some((place, now >= since + ANSWERING_MAX));
                }
                _ => {}
            }
        }
        None
    }

    /// The group owes answers, and is looked at again later.
    pub fn answers_on(&mut self, now: Time, place: Place) {
        self.answering.push_back((now + ANSWERING, place));
    }

    /// When a group has answered for a while, or groups begin their last barriers.
    pub fn wake(&self, now: Time) -> Option<Time> {
        let answered = self.answering.front().map(|next| next.0);
        // Later than that they wait for an operation, whose end leads here.
        let waits = !self.flushing.is_empty() && now < self.together;
        let together = waits.then_some(self.together);
        answered.into_iter().chain(together).min()
    }

    /// Whether all members of these groups have what this process has sent.
    pub fn is_flushed(&self) -> bool {
        self.flushing.is_empty() && self.meeting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAR: Network = Network::InterNode;

    fn at(ms: u64) -> Time {
        Time::ZERO + Duration::from_millis(ms)
    }

    #[test]
    fn a_group_goes_when_it_has_answered_for_a_while() {
        let mut endings = Endings::default();
        let (place, op) = ((GroupId(7), FAR), OpId(3));
        endings.begin(at(0), place);
        assert_eq!(endings.wake(at(0)), Some(at(10)));
        endings.begin(at(9), (GroupId(8), FAR));
        assert!(endings.flushing(at(9)).is_empty());
        assert_eq!(endings.flushing(at(10)), [place, (GroupId(8), FAR)]);
        endings.remove((GroupId(8), FAR));
        endings.meets(place, op);
        assert!(!endings.is_flushed() && !endings.met(at(11), FAR, OpId(4)));
        assert!(endings.met(at(11), FAR, op) && endings.is_flushed());
        assert_eq!(endings.wake(at(11)), Some(at(61)));
        assert_eq!(endings.answered(at(60)), None);
        assert_eq!(endings.answered(at(61)), Some((place, false)));
        endings.answers_on(at(61), place);
        assert_eq!(endings.answered(at(110)), None);
        assert_eq!(endings.answered(at(5011)), Some((place, true)));
        endings.remove(place);
        assert!(endings.is_empty() && endings.wake(at(5011)).is_none());
    }

    #[test]
    fn a_group_of_the_same_number_is_another_one() {
        let mut endings = Endings::default();
        let (place, op) = ((GroupId(7), FAR), OpId(3));
        for begun in [0, 20] {
            endings.begin(at(begun), place);
            endings.flushing(at(begun + 10));
            endings.meets(place, op);
            endings.met(at(begun), FAR, op);
            if begun == 0 {
                endings.remove(place);
            }
        }
        assert_eq!(endings.answered(at(60)), None, "the first one is gone");
        assert_eq!(endings.answered(at(70)), Some((place, false)));
        // A group that is removed while it flushes or meets leaves nothing behind.
        endings.begin(at(80), place);
        endings.remove(place);
        endings.begin(at(80), place);
        endings.flushing(at(90));
        endings.meets(place, op);
        endings.remove(place);
        assert!(endings.is_flushed() && endings.is_empty());
        assert!(!endings.met(at(90), FAR, op));
    }
}
