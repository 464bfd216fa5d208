//! A receiver by P3's protocol, from the start until the sender closes it with `Bye` (spec 7.8).

use std::time::{Duration, Instant};

use fabricast_proto::NodeId;
use fabricast_proto::ibrmp::Type;

use super::events::{RecvEvent, RecvReport, State};
use super::joining::Joined;
use super::receiver_errors::{silence, strange, surprise};
use super::{TICK, check, destination};
use crate::bootstrap::message::{ReceiverStatistics, ToReceiver, ToSender};
use crate::bootstrap::{Control, Heard};
use crate::config::RecvOptions;
use crate::error::Error;
use crate::ibrmp::{FileOutcome, FileReceiver, ReceiverPlan};
use crate::net::Clock;
use crate::waker::Waker;

/// How long the receiver waits for the sender's `Bye` after it has finished.
const FAREWELL: Duration = Duration::from_secs(5);
/// How often datagrams are received before what the sender says has its turn.
const DRAINED: usize = 64;
/// What the sender says that is handled in one step, before datagrams have their turn.
const HEARD: usize = 64;

/// Receives the files of a sender that has started.
pub fn run(
    control: &mut Control,
    joined: Joined,
    is_found: bool,
    options: &RecvOptions,
    waker: &Waker,
    tell: &mut dyn FnMut(RecvEvent),
) -> Result<RecvReport, Error> {
    let clock = Clock(Instant::now());
    fits(options)?;
    if is_found && joined.welcome.tops > 1 {
        return Err(Error::Usage(format!(
            "the sender was found by its announcement of one name, and sends {} files by P3's \
             protocol (ibrmp): name the sender",
            joined.welcome.tops
        )));
    }
    let (welcome, start) = (joined.welcome, joined.start);
    let len = welcome.len.ok_or_else(strange)?;
    let plan = ReceiverPlan {
        node: NodeId(welcome.node),
        destination: destination::destination(options, is_found),
        name: is_found.then_some(welcome.name),
        files: welcome.tops.into(),
        len,
        reserve: options.reserve,
    };
    let group = start.group.as_ref();
    let files = FileReceiver::new(joined.net, &start.root, group, plan, waker)?;
    let mut session = Session {
        control,
        files,
        options,
        tell,
        clock,
        len,
        is_last: false,
        stored: (0, 0),
        failed: None,
        finished: None,
        heard: Instant::now(),
        said: Instant::now(),
        ticked: Instant::now(),
    };
    session.run()?;
    if let Some(error) = session.failed {
        return Err(error);
    }
    let (count, len) = session.stored;
    if count == 0 {
        return Err(Error::Refused(
            "no file was sent after this receiver had come: ask for another transfer".into(),
        ));
    }
    Ok(RecvReport {
        path: joined.path,
        state: State::Verified,
        len,
        deleted: 0,
        special: 0,
        root: session.files.root().to_hex().to_string(),
        failed: Vec::new(),
        seconds: clock.0.elapsed().as_secs_f64(),
        statistics: session.statistics(),
        messages: Some(*session.files.messages()),
    })
}

/// Refuses options that do not fit a sender by P3's protocol.
fn fits(options: &RecvOptions) -> Result<(), Error> {
    let unfit = [
        (options.output.is_some(), "writes no stream"),
        (options.discard, "proves files that are stored"),
        (
            options.delete,
            "sends no directories, so nothing can be deleted",
        ),
    ];
    match unfit.into_iter().find(|(is_set, _)| *is_set) {
        None => Ok(()),
        Some((_, why)) => Err(Error::Usage(format!(
            "the sender has chosen P3's protocol (ibrmp), which {why}: receive without that option"
        ))),
    }
}

struct Session<'a> {
    control: &'a mut Control,
    files: FileReceiver,
    options: &'a RecvOptions,
    tell: &'a mut dyn FnMut(RecvEvent),
    clock: Clock,
    /// Bytes of all files that the sender has offered.
    len: u64,
    /// Whether the sender has no more files.
    is_last: bool,
    /// Files that were stored, and their bytes.
    stored: (u64, u64),
    /// Why the first file is not here that is not.
    failed: Option<Error>,
    /// When the receiver said that it has finished.
    finished: Option<Instant>,
    /// When something last arrived.
    heard: Instant,
    /// When the sender last said something.
    said: Instant,
    ticked: Instant,
}

impl Session<'_> {
    /// Runs until the sender has closed the connection, or there is nothing to wait for.
    fn run(&mut self) -> Result<(), Error> {
        loop {
            check(&self.options.interrupt)?;
            let mut is_busy = self.drain()?;
            for _ in 0..HEARD {
                if self.files.is_full() {
                    break;
                }
                let Some(heard) = self.control.hear() else {
                    break;
                };
                is_busy = true;
                self.said = Instant::now();
                if self.heard(heard)? {
                    return Ok(());
                }
            }
            self.outcomes();
            if is_busy {
                self.heard = Instant::now();
            }
            self.finish()?;
            self.tick()?;
            if self.finished.is_some_and(|at| at.elapsed() > FAREWELL) {
                return Ok(());
            }
            if !is_busy {
                self.files.wait(TICK)?;
            }
        }
    }

    /// Receives what waits in the network. Returns whether there was anything.
    fn drain(&mut self) -> Result<bool, Error> {
        for rounds in 0..DRAINED {
            if !self.files.step(self.clock.now(), self.control)? {
                return Ok(rounds > 0);
            }
        }
        Ok(true)
    }

    /// Handles what the sender says; true when nothing more is to come.
    fn heard(&mut self, heard: Heard) -> Result<bool, Error> {
        match heard {
            Heard::Frame(bytes) => {
                // What was multicast before the EOF waits in the network, and is not lost.
                if bytes.first() == Some(&(Type::Eof as u8)) {
                    self.drain()?;
                }
                let now = self.clock.now();
                self.files.frame(now, &bytes, self.control)?;
            }
            Heard::Message(ToReceiver::Channel(channel)) => {
                self.files.open(&channel)?;
                let said = self.control.say(&ToSender::Ready);
                said.map_err(|e| Error::PeerLost(format!("the sender is gone: {e}")))?;
            }
            Heard::Message(ToReceiver::Digest { file, hash }) => {
                self.files.digest(file, hash, self.control)?;
            }
            Heard::Message(ToReceiver::Last { .. }) => self.is_last = true,
            // The files are stored, or the receiver knows why they are not.
            Heard::Message(ToReceiver::Bye | ToReceiver::Removed { .. }) | Heard::Closed(_)
                if self.finished.is_some() =>
            {
                return Ok(true);
            }
            Heard::Message(message) => return Err(surprise(message)),
            Heard::Bulk(_) => return Err(strange()),
            Heard::Closed(why) => {
                return Err(Error::PeerLost(format!("the sender is gone: {why}")));
            }
        }
        Ok(false)
    }

    /// Tells the user what has become of files.
    fn outcomes(&mut self) {
        for (_, outcome) in self.files.outcomes() {
            match outcome {
                FileOutcome::Stored(path, len) => {
                    self.stored = (self.stored.0 + 1, self.stored.1 + len);
                    (self.tell)(RecvEvent::FileStored { path, len });
                }
                FileOutcome::Failed(path, error) => {
                    let reason = error.to_string();
                    (self.tell)(RecvEvent::FileFailed { path, reason });
                    self.failed.get_or_insert(error);
                }
            }
        }
    }

    /// Says that the receiver has finished, once it has.
    fn finish(&mut self) -> Result<(), Error> {
        if !self.is_last || self.finished.is_some() {
            return Ok(());
        }
        // What the sender still had to say about its files follows its last word at once.
        if self.said.elapsed() > FAREWELL {
            self.files.give_up(self.control)?;
            self.outcomes();
        }
        if self.files.is_idle() {
            self.finished = Some(Instant::now());
            let statistics = self.statistics();
            let finished = ToSender::Finished { statistics };
            // The sender may be gone: everything is stored.
            let _ = self.control.say(&finished);
        }
        Ok(())
    }

    fn statistics(&self) -> ReceiverStatistics {
        let (received, duplicates) = self.files.data();
        ReceiverStatistics {
            received,
            duplicates,
            mended: self.files.messages().received.data,
            mended_bytes: self.files.messages().channel_bytes,
            dropped: self.files.counters().dropped_by_kernel,
        }
    }

    /// Checks what changes only with time, once in a [`TICK`].
    fn tick(&mut self) -> Result<(), Error> {
        let now = Instant::now();
        if now - self.ticked < TICK {
            return Ok(());
        }
        self.ticked = now;
        silence(now - self.heard, self.options)?;
        (self.tell)(RecvEvent::Progress {
            seconds: self.clock.0.elapsed().as_secs_f64(),
            placed: self.files.placed().min(self.len),
            len: Some(self.len),
        });
        Ok(())
    }
}
