//! A receiver before it is prepared: it tells the sender that it is at work, and asks for the
//! manifest if some of the set may be in its place already.

use std::time::{Duration, Instant};

use super::check;
use super::receiver_errors::{strange, surprise};
use crate::bootstrap::message::{Need, ToSender, Welcome};
use crate::bootstrap::{Control, Heard};
use crate::config::RecvOptions;
use crate::error::Error;
use crate::object::Kept;
use crate::object::manifest::{Manifest, PAGE_MAX};
use crate::object::pack::{Content, Pack};
use crate::setting::START_TIMEOUT;
use crate::text::spoken;

/// How often a receiver says that it proves what it has.
const PREPARING: Duration = Duration::from_secs(1);
/// How long a wait for the sender lasts at most.
const TICK: Duration = Duration::from_millis(100);
/// How long the sender may take to answer with a page of the manifest.
const ANSWER: Duration = Duration::from_secs(10);

/// The connection of a receiver that prepares.
pub struct Preparing<'a> {
    control: &'a mut Control,
    options: &'a RecvOptions,
    /// When the receiver last said that it is at work.
    said: Instant,
    /// When the sender has to have started the transfer.
    deadline: Instant,
}

fn lost(e: impl std::fmt::Display) -> Error {
    Error::PeerLost(format!("the sender is gone: {e}"))
}

impl<'a> Preparing<'a> {
    /// A receiver that has been offered the set.
    pub fn new(
        control: &'a mut Control,
        options: &'a RecvOptions,
        deadline: Instant,
    ) -> Preparing<'a> {
        let said = Instant::now();
        Preparing {
            control,
            options,
            said,
            deadline,
        }
    }

    /// Tells the sender now and then that the receiver is at work. An error: it is to give up.
    pub fn go_on(&mut self) -> Result<(), Error> {
        if self.said.elapsed() >= PREPARING {
            self.said = Instant::now();
            self.control.say(&ToSender::Preparing).map_err(lost)?;
        }
        check(&self.options.interrupt)
    }

    /// Has the sender give the manifest of the set that it has offered. Notes its pages as packs
    /// that need not come again.
    pub fn take_manifest(&mut self, welcome: &Welcome, kept: &mut Kept) -> Result<Manifest, Error> {
        let (mut manifest, mut number, mut before) = (Manifest::default(), 0, PAGE_MAX);
        while manifest.entries().len() < welcome.entries as usize {
            let need = Need {
                pack: number,
                page: true,
                ..Need::default()
            };
            self.control.say(&ToSender::Need(need)).map_err(lost)?;
            let page = self.answer()?;
            // What fits into a page is in it: so the sender cannot go on with short ones for ever.
            if page.is_empty() || before + page.len() <= PAGE_MAX {
                return Err(strange());
            }
            before = page.len();
            manifest.add_page(&page)?;
            kept.packs
                .insert(Pack::new(Content::Page, &page).hash().into());
            number += 1;
        }
        let first = manifest.entries().first();
        let is_it = *welcome.manifest == *manifest.digest().to_hex()
            && manifest.entries().len() == welcome.entries as usize
            && manifest.tops() == welcome.tops
            && manifest.known_len() == welcome.len
            && first.is_some_and(|first| *first.name == *welcome.name.as_bytes());
        is_it.then_some(manifest).ok_or_else(strange)
    }

    fn answer(&mut self) -> Result<Vec<u8>, Error> {
        let until = self.deadline.min(Instant::now() + ANSWER);
        while Instant::now() < until {
            self.go_on()?;
            match self.control.hear_until(until.min(Instant::now() + TICK)) {
                None => {}
                Some(Heard::Bulk(page)) => return Ok(page),
                Some(Heard::Message(message)) => return Err(surprise(message)),
                Some(Heard::Frame(_)) => return Err(strange()),
                Some(Heard::Closed(why)) => return Err(lost(why)),
            }
        }
        let what = "the sender did not give its manifest within";
        match until < self.deadline {
            true => Err(Error::PeerLost(format!("{what} {}", spoken(ANSWER)))),
            false => {
                let waited = spoken(self.options.start_timeout);
                Err(Error::Timeout(format!("{what} {waited} ({START_TIMEOUT})")))
            }
        }
    }
}
