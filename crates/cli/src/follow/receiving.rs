//! A transfer that a follower takes part in.

use std::io;

use fabricast::config::RecvOptions;
use fabricast::error::Error;
use fabricast::feed::Entry;
use fabricast::transfer::{self, RecvEvent, RecvReport};
use fabricast::waker::Waker;

use crate::background::{Background, Told};

/// How a transfer has ended.
type Ended = Box<Result<RecvReport, Error>>;

/// A transfer that a follower takes part in.
pub struct Receiving {
    /// The feed's number of it.
    pub number: u64,
    /// What comes.
    pub entries: Vec<Entry>,
    transfer: Background<RecvEvent, Ended>,
    /// Bytes that it will yet take of the disk, as it says; `None` before it has found the sender.
    to_take: Option<u64>,
}

impl Receiving {
    /// Starts to receive these entries.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start(
        number: u64,
        entries: Vec<Entry>,
        options: RecvOptions,
        waker: &Waker,
    ) -> io::Result<Receiving> {
        let interrupt = options.interrupt.clone();
        let receive =
            move |tell: &mut dyn FnMut(RecvEvent)| Box::new(transfer::recv(&options, tell));
        let transfer = Background::start("fabricast-recv", waker.clone(), interrupt, receive)?;
        Ok(Receiving::of(number, entries, transfer))
    }

    /// A transfer that has told nothing yet.
    fn of(number: u64, entries: Vec<Entry>, transfer: Background<RecvEvent, Ended>) -> Receiving {
        Receiving {
            number,
            entries,
            transfer,
            to_take: None,
        }
    }

    /// What the transfer has told next; `None` if it has told nothing more yet.
    pub fn told(&mut self) -> Option<Told<RecvEvent, Ended>> {
        let told = self.transfer.told();
        if let Some(Told::Event(
            RecvEvent::Connected { to_take, .. } | RecvEvent::Progress { to_take, .. },
        )) = &told
        {
            self.to_take = Some(*to_take);
        }
        told
    }

    /// Bytes that it will yet take of the disk: all that comes, until the transfer knows more.
    pub fn claimed(&self) -> u64 {
        let lens = self.entries.iter().map(|entry| entry.len);
        let all = lens.fold(0, u64::saturating_add);
        self.to_take.unwrap_or(all)
    }

    /// Has it end soon.
    pub fn interrupt(&self) {
        self.transfer.interrupt();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    /// A transfer claims all of its entries until it says how much it will yet take.
    #[test]
    fn what_has_not_its_space_is_claimed() {
        let (tell, told) = channel();
        let entry = |name: &str| Entry {
            name: name.into(),
            len: 70_000,
            digest: String::new(),
        };
        let mut two = Receiving::of(1, vec![entry("a"), entry("b")], Background::made_up(told));
        assert_eq!(two.claimed(), 140_000);
        let connected = RecvEvent::Connected {
            sender: ([127, 0, 0, 1], 9).into(),
            name: "a".into(),
            tops: 2,
            len: Some(140_000),
            to_take: 100_000,
            path: "a".into(),
        };
        let progress = |to_take| RecvEvent::Progress {
            seconds: 1.0,
            placed: 0,
            present: 0,
            to_take,
            len: None,
        };
        for (event, claimed) in [
            (connected, 100_000),
            (RecvEvent::Storing, 100_000),
            (progress(30_000), 30_000),
            (progress(0), 0),
        ] {
            tell.send(Told::Event(event)).unwrap();
            assert!(two.told().is_some());
            assert_eq!(two.claimed(), claimed);
        }
    }
}
