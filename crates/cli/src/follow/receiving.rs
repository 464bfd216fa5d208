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
    /// Whether it has begun to write.
    writes: bool,
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
        Ok(Receiving {
            number,
            entries,
            transfer,
            writes: false,
        })
    }

    /// What the transfer has told next; `None` if it has told nothing more yet.
    pub fn told(&mut self) -> Option<Told<RecvEvent, Ended>> {
        let told = self.transfer.told();
        if let Some(Told::Event(RecvEvent::Progress { placed, .. })) = &told {
            self.writes |= *placed > 0;
        }
        told
    }

    /// Bytes that it will take of the disk, beside those that count as taken there already. The
    /// space of a long file is taken when the file begins.
    pub fn claimed(&self) -> u64 {
        let lens = self.entries.iter().map(|entry| entry.len);
        match self.writes {
            true => 0,
            false => lens.fold(0, u64::saturating_add),
        }
    }

    /// Has it end soon.
    pub fn interrupt(&self) {
        self.transfer.interrupt();
    }
}
