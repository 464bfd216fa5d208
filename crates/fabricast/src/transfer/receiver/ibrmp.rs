//! A receiver by P3's protocol, from the start until the sender closes it with `Bye` (spec 7.8).

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use fabricast_proto::NodeId;
use fabricast_proto::ibrmp::Type;

use super::destination;
use super::errors::{silence, strange, surprise};
use super::joining::Joined;
use crate::bootstrap::message::{Last, ReceiverStatistics, ToReceiver, ToSender};
use crate::bootstrap::{Control, Heard};
use crate::config::RecvOptions;
use crate::error::Error;
use crate::ibrmp::{CREDITS_MAX, FileOutcome, FileReceiver, ReceiverPlan};
use crate::net::Clock;
use crate::object::manifest::Manifest;
use crate::text::ToldPath;
use crate::transfer::events::{RecvEvent, RecvReport, State};
use crate::transfer::{FAREWELL, TICK, WORKING, check};
use crate::waker::Waker;

/// How long datagrams may still come after the sender's last words.
const LAST_DATAGRAMS: Duration = Duration::from_millis(100);
/// How long the receiver looks for what the sender has said last, when the connection has ended.
const LAST_WORDS: Duration = Duration::from_millis(500);
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
        held: VecDeque::new(),
        last: None,
        stored: (0, 0),
        failed: Vec::new(),
        unnamed: 0,
        first_error: None,
        finished: None,
        heard: Instant::now(),
        said: Instant::now(),
        worked: Instant::now(),
        ticked: Instant::now(),
    };
    session.run().or_else(|error| session.parted(error))?;
    let (count, len) = session.stored;
    if count == 0 {
        return Err(session.first_error.unwrap_or_else(|| {
            Error::Refused(
                "no file was sent after this receiver had come: ask for another transfer".into(),
            )
        }));
    }
    Ok(RecvReport {
        path: joined.path,
        state: State::Verified,
        len,
        deleted: 0,
        special: 0,
        manifest: Manifest::default(),
        root: session.files.root().to_hex().to_string(),
        changed: Vec::new(),
        leaves_surplus: false,
        failed: session
            .failed
            .iter()
            .map(|path| ToldPath::from(&**path))
            .collect(),
        failed_unnamed: session.unnamed,
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
    /// Messages of the channel that wait until files are stored or mended.
    held: VecDeque<Vec<u8>>,
    /// What the sender has said when it had no more files.
    last: Option<Last>,
    /// Files that were stored, and their bytes.
    stored: (u64, u64),
    /// The files that are not here, by their paths.
    failed: Vec<PathBuf>,
    /// Number of further files that are not here, whose names are not known.
    unnamed: u64,
    /// Why the first of them is not here.
    first_error: Option<Error>,
    /// When the receiver said that it has finished.
    finished: Option<Instant>,
    /// When something last arrived.
    heard: Instant,
    /// When the sender last said something.
    said: Instant,
    /// When the receiver last said that it is at work.
    worked: Instant,
    ticked: Instant,
}

impl Session<'_> {
    /// Runs until the sender has closed the connection, or there is nothing to wait for.
    fn run(&mut self) -> Result<(), Error> {
        loop {
            check(&self.options.interrupt)?;
            let mut is_busy = self.drain()?;
            is_busy |= self.release()?;
            for _ in 0..HEARD {
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

    /// What the end of the connection means: the sender may have said why, before this receiver
    /// could no longer tell it anything.
    fn parted(&mut self, error: Error) -> Result<(), Error> {
        if !matches!(error, Error::PeerLost(_)) {
            return Err(error);
        }
        let deadline = Instant::now() + LAST_WORDS;
        match self.control.last_words(deadline).map(Heard::Message) {
            Some(said) => self.heard(said).map(drop),
            None => Err(error),
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
                // An ACK brings the credits with which TRANSFER_DONE leaves, so it never waits.
                let is_ack = bytes.first() == Some(&(Type::Ack as u8));
                match is_ack || (self.held.is_empty() && !self.files.is_full()) {
                    true => self.frame(&bytes)?,
                    false => self.hold(bytes)?,
                }
            }
            Heard::Message(ToReceiver::Channel(channel)) => {
                self.files.open(&channel)?;
                let said = self.control.say(&ToSender::Ready);
                said.map_err(|e| Error::PeerLost(format!("the sender is gone: {e}")))?;
            }
            Heard::Message(ToReceiver::Digest(digest)) => {
                self.files.digest(digest, self.control)?;
            }
            Heard::Bulk(bytes) => self.files.bulk(&bytes, self.control)?,
            Heard::Message(ToReceiver::Last(last)) => self.last = Some(last),
            // The files are stored, or the receiver knows why they are not.
            Heard::Message(ToReceiver::Bye) | Heard::Closed(_) if self.finished.is_some() => {
                return Ok(true);
            }
            // The sender may remove a receiver because of the files that it lacks.
            Heard::Message(ToReceiver::Removed { .. })
                if self.finished.is_some() && self.lacks_files() =>
            {
                return Ok(true);
            }
            Heard::Message(message) => return Err(surprise(message)),
            Heard::Closed(why) => {
                return Err(Error::PeerLost(format!("the sender is gone: {why}")));
            }
        }
        Ok(false)
    }

    /// Whether files will not be here.
    fn lacks_files(&self) -> bool {
        !self.failed.is_empty() || self.unnamed > 0
    }

    /// Handles a frame of the channel.
    fn frame(&mut self, bytes: &[u8]) -> Result<(), Error> {
        // What was multicast before the EOF waits in the network, and is not lost.
        if bytes.first() == Some(&(Type::Eof as u8)) {
            self.drain()?;
        }
        let now = self.clock.now();
        self.files.frame(now, bytes, self.control)
    }

    /// Keeps a message of the channel until there are fewer files to store or to mend.
    fn hold(&mut self, bytes: Vec<u8>) -> Result<(), Error> {
        if self.held.len() >= CREDITS_MAX as usize {
            let text = "the sender sends more messages than the receiver has granted credits for";
            return Err(Error::PeerLost(text.into()));
        }
        self.held.push_back(bytes);
        Ok(())
    }

    /// Handles messages that were kept, as far as there is room for more files. Returns whether
    /// there were any.
    fn release(&mut self) -> Result<bool, Error> {
        let before = self.held.len();
        while !self.files.is_full()
            && let Some(bytes) = self.held.pop_front()
        {
            self.said = Instant::now();
            self.frame(&bytes)?;
        }
        Ok(self.held.len() < before)
    }

    /// Tells the user what has become of files.
    fn outcomes(&mut self) {
        for outcome in self.files.outcomes() {
            match outcome {
                FileOutcome::Stored(path, len) => {
                    self.stored = (self.stored.0 + 1, self.stored.1 + len);
                    (self.tell)(RecvEvent::FileStored { path, len });
                }
                FileOutcome::Failed(path, error) => {
                    self.failed.push(path.clone());
                    self.fails(Some(path), error);
                }
                FileOutcome::Unnamed(count, error) => {
                    self.unnamed = self.unnamed.saturating_add(count);
                    self.fails(None, error);
                }
            }
        }
    }

    /// Tells the user why a file, or some whose names are not known, will not be here.
    fn fails(&mut self, path: Option<PathBuf>, error: Error) {
        let reason = error.to_string();
        (self.tell)(RecvEvent::FileFailed { path, reason });
        self.first_error.get_or_insert(error);
    }

    /// Says that the receiver has finished, once the sender has no more files and it is known what
    /// has become of each.
    fn finish(&mut self) -> Result<(), Error> {
        let is_due = self.finished.is_none() && self.held.is_empty();
        let Some(last) = self.last.as_ref().filter(|_| is_due) else {
            return Ok(());
        };
        // All frames of the channel come before the sender's last words. If something lacks, what
        // was multicast before them may still be in a queue, and requests that wait be needed.
        let quiet = self.said.elapsed();
        let is_over =
            self.files.has_all(last.file) || quiet > LAST_DATAGRAMS && self.files.is_silent();
        if is_over || quiet > FAREWELL {
            self.files.give_up(self.control)?;
        }
        if quiet > FAREWELL && !self.files.is_storing() {
            self.files.give_up_complete(self.control)?;
        }
        if (is_over || quiet > FAREWELL) && self.files.is_idle() {
            let lacking = last.lacking.iter();
            let names = lacking.filter_map(|l| Some((l.file?, l.name.clone())));
            for failed in &last.failed {
                self.files.failed_at_sender(failed.file, &failed.name);
            }
            self.files.close(
                (last.file, last.failed_more),
                &names.collect(),
                self.control,
            )?;
            self.outcomes();
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
            mended: self.files.messages().received.data + self.files.mended().blocks,
            mended_bytes: self.files.messages().channel_bytes + self.files.mended().bytes,
            dropped: self.files.counters().dropped_by_kernel,
            peer_bytes: 0,    // receivers do not know each other
            present_bytes: 0, // files are not compared
            kept_bytes: 0,    // a restart goes on with nothing
        }
    }

    /// Checks what changes only with time, once in a [`TICK`].
    fn tick(&mut self) -> Result<(), Error> {
        let now = Instant::now();
        if now - self.ticked < TICK {
            return Ok(());
        }
        self.ticked = now;
        if self.files.is_storing() {
            // The sender has nothing to say meanwhile.
            self.heard = now;
        }
        if self.files.is_working() && now - self.worked >= WORKING {
            self.worked = now;
            let done = self.files.stored_bytes();
            let said = self.control.say(&ToSender::Working { done });
            said.map_err(|e| Error::PeerLost(format!("the sender is gone: {e}")))?;
        }
        silence(now - self.heard, self.options)?;
        (self.tell)(RecvEvent::Progress {
            seconds: self.clock.0.elapsed().as_secs_f64(),
            placed: self.files.placed().min(self.len),
            present: 0,
            to_take: self.len.saturating_sub(self.files.stored_bytes()),
            len: Some(self.len),
        });
        Ok(())
    }
}
