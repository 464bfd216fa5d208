//! The receiver's side, from finding the sender to the file under its name.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use fabricast_proto::scheme::{Told, UnknownScheme};
use fabricast_proto::{Command, Event, Node, NodeId, OpId, Scheme, Seq};

use super::events::{RecvEvent, RecvReport};
use super::finding::{self, Finder};
use super::mending::Mending;
use super::{ALL, FileDriver, ROOT, TICK, check, notices, rest};
use crate::bell::Bell;
use crate::bootstrap::message::{Hello, Start, Tally, ToReceiver, ToSender, VERSION, Welcome};
use crate::bootstrap::{Control, Heard, PORT_MIN};
use crate::config::{Accept, Offer, RecvOptions};
use crate::driver::Driver;
use crate::error::{Error, exit, spoken};
use crate::net::{self, Clock, Net, random};
use crate::object::{
    BLOCK, Challenge, FileObject, HASH, Landing, Memory, Sink, WINDOW_BYTES, blocks, room,
    safe_name,
};
use crate::text::{escaped, shown};
use crate::transport::Transport;

/// A sender that was found by its announcement answers `hello` within this, or is none.
const ANSWER: Duration = Duration::from_secs(5);
/// How often the sender is told that we are at work.
const WORKING: Duration = Duration::from_secs(1);
/// After the file is safe, the sender's farewell is waited for no longer than this.
const FAREWELL: Duration = Duration::from_secs(5);

/// While data come, datagrams are gathered for so long before they are read: many at one wake-up
/// cost far less than one by one.
const GATHER: Duration = Duration::from_micros(500);
/// The same while more than [`AMID_BYTES`] are still to come, so that nobody waits for any of them.
const GATHER_AMID: Duration = Duration::from_millis(1);
const AMID_BYTES: u64 = 16 << 20;

/// How soon, and how seldom, a receiver that does not answer is asked again, and how many at once.
const AGAIN_MIN: Duration = Duration::from_millis(100);
const AGAIN_MAX: Duration = Duration::from_secs(3);
const UNANSWERED: usize = 16;

/// Receives one file.
pub fn recv(options: &RecvOptions, tell: &mut dyn FnMut(RecvEvent)) -> Result<RecvReport, Error> {
    options.net.check()?;
    finding::check_dest(options)?;
    let deadline = Instant::now() + options.start_timeout;
    let mut finder = Finder::new(options, deadline, tell)?;
    loop {
        let bell = Bell::new();
        let (mut control, found) = finder.find(&bell, tell)?;
        let stranger = found.is_some();
        let joined = join(
            &mut control,
            found.as_ref(),
            &mut finder,
            deadline,
            &bell,
            tell,
        );
        let result = match (joined, found) {
            (Ok(joined), _) => take_part(&mut control, joined, options, &bell, tell),
            // Whoever was found may be no sender, or no honest one: the true one may be there, too.
            (Err(error), Some(offer)) if !is_ours(&error, &options.accept) => {
                finder.give_up(offer, &error);
                say_why(&mut control, &error, stranger);
                continue;
            }
            (Err(error), _) => Err(error),
        };
        if let Err(error) = &result {
            say_why(&mut control, error, stranger);
        }
        return result;
    }
}

/// Whether no other sender could help, or somebody wants this very file, which has no place here.
fn is_ours(error: &Error, accept: &Accept) -> bool {
    use std::io::ErrorKind::{NotFound, PermissionDenied, ReadOnlyFilesystem};
    match error {
        Error::Interrupted | Error::Timeout(_) => true,
        Error::Exists(_) | Error::NoSpace { .. } | Error::TooLong { .. } | Error::Usage(_) => {
            matches!(accept, Accept::Asked(_))
        }
        Error::Io { source, .. } => {
            matches!(
                source.kind(),
                NotFound | PermissionDenied | ReadOnlyFilesystem
            )
        }
        _ => false,
    }
}

/// Tells the sender why this receiver gives up. The sender may know already, or be gone. One that
/// nobody has named, and that may be anybody, does not hear what files are called here.
fn say_why(control: &mut Control, error: &Error, stranger: bool) {
    let code = error.exit_code();
    let reason = match error {
        Error::NoSpace { .. } if stranger => "it has no space for the file".into(),
        Error::TooLong { .. } if stranger => "the file is too long for it".into(),
        Error::Exists(_) if stranger => "it has a file of this name already".into(),
        Error::Usage(_) if stranger => "it takes no file of this name".into(),
        Error::Io { .. } if stranger => "it cannot store the file".into(),
        error => error.to_string(),
    };
    let _ = control.say(&ToSender::Failed { code, reason });
}

/// Removes the partial file unless it has become the file.
struct Discard(Arc<Landing>);

impl Drop for Discard {
    fn drop(&mut self) {
        self.0.discard();
    }
}

/// What receiver and sender have agreed on until the start.
struct Joined {
    net: Net,
    landing: Landing,
    welcome: Welcome,
    start: Start,
    sender: SocketAddr,
}

/// Registers with the sender and waits for the start. `found` is what it has announced, unless
/// somebody has named it.
fn join(
    control: &mut Control,
    found: Option<&Offer>,
    finder: &mut Finder,
    deadline: Instant,
    bell: &Bell,
    tell: &mut dyn FnMut(RecvEvent),
) -> Result<Joined, Error> {
    let options = finder.options();
    let lost = |e| Error::PeerLost(format!("the sender is gone: {e}"));
    let local = control.local().map_err(lost)?;
    let sender = control.peer().map_err(lost)?;
    let net = net::open(&options.net, local.ip(), 1, random()?)?;
    let waker = net.inner().waker();
    bell.hang(move || waker.wake());
    let udp = net.inner().local_addr();
    let name = options.name.clone();
    let hello = Hello {
        version: VERSION,
        name: name.unwrap_or_else(|| own_name(options, found.is_some())),
        udp_port: udp.port(),
        udp_address: (udp.ip() != local.ip()).then_some(udp.ip()),
        datagram: net.caps().datagram_max as u32,
        window_bytes: WINDOW_BYTES,
    };
    control.say(&ToSender::Hello(hello)).map_err(lost)?;

    let limit = found.map(|_| ANSWER);
    let welcome = match wait(control, options, deadline, limit, "answer")? {
        ToReceiver::Welcome(welcome) => welcome,
        other => return Err(surprise(other)),
    };
    if let Some(announced) = found {
        finder.check_offer(announced, &welcome)?;
    }
    let landing = prepare(options, &welcome, found.is_some())?;
    control.say(&ToSender::Prepared).map_err(lost)?;
    tell(RecvEvent::Connected {
        sender,
        name: welcome.name.chars().take(255).collect(),
        len: welcome.len,
        path: landing.path().to_owned(),
    });
    match wait(control, options, deadline, None, "start the transfer")? {
        ToReceiver::Start(start) => Ok(Joined {
            net,
            landing,
            welcome,
            start,
            sender,
        }),
        other => Err(surprise(other)),
    }
}

fn take_part(
    control: &mut Control,
    joined: Joined,
    options: &RecvOptions,
    bell: &Bell,
    tell: &mut dyn FnMut(RecvEvent),
) -> Result<RecvReport, Error> {
    let Joined {
        net,
        mut landing,
        welcome,
        start,
        sender,
    } = joined;
    check_root(&start, sender)?;
    check_scheme(&start, options)?;
    check_addresses(&start)?;
    landing.allocate()?;
    let landing = Arc::new(landing);
    let _discard = Discard(landing.clone());
    tell(RecvEvent::Started { group: start.group });
    let mut receiving = Receiving::new(control, net, landing, welcome, start, options, bell, tell)?;
    receiving.run()
}

/// What to be called: the host, and what tells two receivers on one host apart. A sender that may
/// be anybody does not hear where the file goes.
fn own_name(options: &RecvOptions, stranger: bool) -> String {
    let host = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    match options.dest.as_os_str() == "." {
        _ if stranger => format!("{host}[{}]", std::process::id()),
        true => host,
        false => format!("{host}:{}", shown(&options.dest)),
    }
}

/// Waits for the sender's next message, no longer than `limit`, until `deadline`.
fn wait(
    control: &mut Control,
    options: &RecvOptions,
    deadline: Instant,
    limit: Option<Duration>,
    what: &str,
) -> Result<ToReceiver, Error> {
    let began = Instant::now();
    loop {
        check(&options.interrupt)?;
        let now = Instant::now();
        if let Some(limit) = limit.filter(|limit| now - began >= *limit) {
            let waited = spoken(limit);
            let text = format!("the sender did not {what} within {waited}");
            return Err(Error::PeerLost(text));
        }
        if now >= deadline {
            let waited = spoken(options.start_timeout);
            return Err(Error::Timeout(format!(
                "the sender did not {what} within {waited} (--start-timeout)"
            )));
        }
        match control.hear_until(deadline.min(now + TICK)) {
            None => {}
            Some(Heard::Message(message)) => return Ok(message),
            Some(Heard::Bulk(_)) => return Err(strange()),
            Some(Heard::Closed(why)) => {
                return Err(Error::PeerLost(format!("the sender is gone: {why}")));
            }
        }
    }
}

fn strange() -> Error {
    Error::PeerLost("what answers there is not a fabricast sender of this version".into())
}

/// What a message that ends the transfer means.
fn surprise(message: ToReceiver) -> Error {
    match message {
        ToReceiver::Refused { reason } => Error::Refused(format!("the sender refused: {reason}")),
        ToReceiver::Removed { reason } => Error::Refused(format!(
            "the sender has gone on without this receiver: {reason}"
        )),
        ToReceiver::Aborted { code, reason } if code == exit::INTERRUPTED => {
            Error::PeerLost(format!("the sender has given up: {reason}"))
        }
        ToReceiver::Aborted { reason, .. } => {
            Error::PeerLost(format!("the transfer failed at the sender: {reason}"))
        }
        _ => strange(),
    }
}

/// Whoever answers at the control connection could otherwise have us believe, and write to, a
/// third host.
fn check_root(start: &Start, sender: SocketAddr) -> Result<(), Error> {
    let (root, control) = (start.root.ip().to_canonical(), sender.ip().to_canonical());
    if root == control && start.root.port() != 0 {
        return Ok(());
    }
    Err(Error::PeerLost(format!(
        "the sender says that its datagrams come from {}, and it was found at {control}: name that \
         address with --from if it is the sender's, or the interface of {control} with --interface \
         at the sender",
        start.root
    )))
}

/// Receivers ask each other whether they are where the sender says (spec 6.10). No sender names an
/// address twice, and no receiver has a port of a service: one that says so would have the
/// receivers send to somebody.
fn check_addresses(start: &Start) -> Result<(), Error> {
    if !is_shared(&scheme_of(start)?) {
        return Ok(());
    }
    let mut seen = BTreeSet::new();
    for address in &start.addresses {
        if address.port() < PORT_MIN || !seen.insert((address.ip().to_canonical(), address.port()))
        {
            return Err(Error::PeerLost(format!(
                "the sender says that a receiver is at {address}, which is another's address, or \
                 has a port below {PORT_MIN}"
            )));
        }
    }
    Ok(())
}

fn scheme_of(start: &Start) -> Result<Scheme, Error> {
    start.scheme.parse().map_err(|e: UnknownScheme| {
        Error::PeerLost(format!("the sender speaks of what we don't know: {e}"))
    })
}

/// Whether receivers send to each other.
fn is_shared(scheme: &Scheme) -> bool {
    scheme.told != Told::Root
}

/// A sender that nobody has named does not get receivers to send to each other.
fn check_scheme(start: &Start, options: &RecvOptions) -> Result<(), Error> {
    let says = format!("the sender's scheme is {}", escaped(&start.scheme));
    match &options.scheme {
        Some(wanted) => {
            let rest = start.scheme.strip_prefix(wanted.as_str());
            let right = rest.is_some_and(|r| r.is_empty() || r.starts_with('+'));
            let text = || format!("{says}, and only {wanted} is wanted (--scheme)");
            right.then_some(()).ok_or_else(|| Error::Refused(text()))
        }
        None if options.from.is_none() && is_shared(&scheme_of(start)?) => {
            Err(Error::Refused(format!(
                "{says}, by which receivers send to each other: name the sender with --from, or \
                 the scheme with --scheme"
            )))
        }
        None => Ok(()),
    }
}

/// Makes a place for the file, if the receiver's user would have it. A sender that was found by
/// its announcement may be anybody: what it sends must not run before somebody has said so.
fn prepare(options: &RecvOptions, welcome: &Welcome, found: bool) -> Result<Landing, Error> {
    if welcome.version != VERSION || welcome.block as usize != BLOCK {
        return Err(strange());
    }
    let mut path: PathBuf = options.dest.clone();
    if path.is_dir() {
        let name = safe_name(&welcome.name).ok_or_else(|| {
            Error::Usage(format!(
                "the sender calls the file {:?}, which is no name for a file here; name the \
                 destination file yourself",
                welcome.name
            ))
        })?;
        path.push(name);
    }
    let len = welcome.len;
    if let Some(most) = options.max_size.filter(|most| len > *most) {
        return Err(Error::too_long(&path, len, most, "--max-size"));
    }
    Landing::new(
        path,
        len,
        if found {
            welcome.mode & !0o111
        } else {
            welcome.mode
        },
        options.overwrite,
        options.reserve,
        options.inject_damage,
    )
}

/// What the receiver does now.
enum Phase {
    /// Bytes come.
    Receiving,
    /// All bytes are here. Blocks are compared with the list, and what is damaged comes again,
    /// asked for over TCP.
    Proving(Mending),
    /// It is being stored by a thread, which ends with the proof of it.
    Storing(Receiver<Result<String, Error>>),
    /// It is safe; the sender says good-bye, or has until then.
    Leaving(Instant),
}

/// What the sender has said when it had read every block.
#[derive(Clone)]
struct Root {
    /// The BLAKE3 hash of the hash list, in hexadecimal.
    hash: String,
    /// How to prove that the file is here.
    challenge: Challenge,
}

struct Receiving<'a> {
    control: &'a mut Control,
    driver: FileDriver,
    landing: Arc<Landing>,
    options: &'a RecvOptions,
    bell: Bell,
    tell: &'a mut dyn FnMut(RecvEvent),
    clock: Clock,
    /// Operations not complete yet: the file and the list.
    pending: Vec<OpId>,
    /// The file's, until it has been received.
    file: Option<OpId>,
    list: Option<OpId>,
    root: Option<Root>,
    /// Receivers that have been asked in vain where they are: when to ask next, and how long
    /// after that.
    unanswered: BTreeMap<NodeId, (Instant, Duration)>,
    node: NodeId,
    phase: Phase,
    tally: Tally,
    /// When something last arrived, and how much had arrived by then.
    progress: (Instant, u64),
    worked: Instant,
    ticked: Instant,
    seconds: f64,
    fresh: bool,
    /// The sender has said goodbye, or is gone.
    dismissed: bool,
    /// Why the sender is heard of no more, if it is not needed any more either.
    lost: Option<Error>,
    /// Data packets when it last rested.
    received: u64,
}

impl<'a> Receiving<'a> {
    #[expect(
        clippy::too_many_arguments,
        reason = "called once; each has its own origin"
    )]
    fn new(
        control: &'a mut Control,
        mut net: Net,
        landing: Arc<Landing>,
        welcome: Welcome,
        start: Start,
        options: &'a RecvOptions,
        bell: &Bell,
        tell: &'a mut dyn FnMut(RecvEvent),
    ) -> Result<Receiving<'a>, Error> {
        net.peer(ROOT, start.root);
        if let Some(group) = start.group
            && let Err(e) = net.join(ALL, group, true)
        {
            // Not the end: the sender will find out and use unicast.
            let text = format!("no multicast here ({e})");
            tell(RecvEvent::Notice { text });
        }
        let (session, chunk) = (welcome.session, start.chunk);
        let scheme = scheme_of(&start)?;
        // The first member is the sender. What it says of the others' addresses may be false.
        let others = match is_shared(&scheme) {
            true => &start.addresses[..],
            false => &[],
        };
        for (&node, &address) in start.members.iter().skip(1).zip(others) {
            if node != welcome.node {
                net.inner_mut().hearsay(NodeId(node), address);
            }
        }
        let node = net::node_config(
            NodeId(welcome.node),
            session,
            (scheme, start.window),
            chunk,
            net.caps(),
        );
        let mut driver: FileDriver = Driver::new(Node::new(node, random()?), net);
        let clock = Clock(Instant::now());
        let mut pending = Vec::new();
        let (mut file, mut list) = (None, None);
        let refused = |r| Error::PeerLost(format!("the sender's plan makes no sense: {r}"));
        let group_add = Command::GroupAdd {
            group: ALL,
            members: start.members.into_iter().map(NodeId).collect(),
            chunk,
            start: Seq(session as u32),
        };
        driver.command(clock.now(), group_add).map_err(refused)?;
        if !landing.is_empty() {
            let room = Memory::new(room(blocks(landing.len()) * HASH as u64)?);
            let sink = FileObject::Sink(Sink::new(landing.clone(), bell.clone()));
            for object in [sink, FileObject::Memory(room)] {
                let posted = driver.post(clock.now(), ALL, ROOT, object);
                pending.push(posted.map_err(|(r, _)| refused(r))?);
            }
            (file, list) = (pending.first().copied(), pending.last().copied());
        }
        control
            .say(&ToSender::Ready)
            .map_err(|e| Error::io("talking to the sender", e))?;
        let now = Instant::now();
        Ok(Receiving {
            control,
            driver,
            landing,
            options,
            bell: bell.clone(),
            tell,
            clock,
            pending,
            file,
            list,
            root: None,
            unanswered: BTreeMap::new(),
            node: NodeId(welcome.node),
            phase: Phase::Receiving,
            tally: Tally::default(),
            progress: (now, 0),
            worked: now,
            ticked: now,
            seconds: 0.0,
            fresh: true,
            dismissed: false,
            lost: None,
            received: 0,
        })
    }

    fn run(&mut self) -> Result<RecvReport, Error> {
        loop {
            let now = self.clock.now();
            self.fresh = false;
            let step = self.driver.step(now);
            let step = step.map_err(|e| Error::io("sending and receiving", e))?;
            while let Some(event) = self.driver.event() {
                self.noticed(event)?;
            }
            // What is over is dropped: a sink has a thread, and many blocks in memory.
            self.file.take_if(|op| self.driver.take(*op).is_some());
            // One at a time: `heard` makes it fresh, and the data go on in between.
            if let Some(heard) = self.control.hear()
                && self.heard(heard)?
            {
                return Ok(self.report());
            }
            check(&self.options.interrupt)?;
            if self.advance()? {
                return Ok(self.report());
            }
            self.tick()?;
            if !self.fresh {
                // Datagrams are stamped on arrival, so that nobody takes the pause for the
                // network's.
                let received = self.driver.node().counters().received;
                if std::mem::replace(&mut self.received, received) != received && step.is_idle(now)
                {
                    let amid =
                        self.landing.len().saturating_sub(self.landing.written()) > AMID_BYTES;
                    let gather = if amid { GATHER_AMID } else { GATHER };
                    std::thread::sleep(gather.saturating_sub(self.clock.now().since(now)));
                }
                rest(&mut self.driver, step.wake, now)?;
            }
        }
    }

    fn say(&mut self, message: &ToSender) -> Result<(), Error> {
        if self.lost.is_some() {
            return Ok(());
        }
        self.control.say(message).or_else(|e| {
            self.forsaken(match e.kind() {
                std::io::ErrorKind::BrokenPipe | std::io::ErrorKind::ConnectionReset => {
                    Error::PeerLost("the sender is gone".into())
                }
                _ => Error::io("talking to the sender", e),
            })
        })
    }

    /// The sender is gone, or has given this receiver up. That is an error if it is needed: what
    /// proves the file, or a part of the file, may be missing.
    fn forsaken(&mut self, why: Error) -> Result<(), Error> {
        match self.phase {
            Phase::Storing(_) if self.lost.is_none() => self.alone(&why),
            Phase::Storing(_) => {}
            // What was sent may still wait to be received or placed: see `tick`.
            Phase::Receiving if self.root.is_some() => {}
            _ => return Err(why),
        }
        self.lost.get_or_insert(why);
        Ok(())
    }

    /// Tells that the sender is needed no more.
    fn alone(&mut self, why: &Error) {
        let text = format!("{why}; the file is complete and proven, and is kept");
        (self.tell)(RecvEvent::Notice { text });
    }

    /// Whether every byte of the file and its list has arrived, placed or not.
    fn is_whole(&self) -> bool {
        let len = self.landing.len();
        self.driver.counters().written >= len + blocks(len) * HASH as u64
    }

    fn noticed(&mut self, event: Event) -> Result<(), Error> {
        match event {
            Event::Complete(op) => {
                self.pending.retain(|p| *p != op);
                self.fresh = true;
                Ok(())
            }
            Event::Failed(_) => Err(match self.landing.failure() {
                Some(error) => copy(error, self.landing.path()),
                None => Error::Integrity("more bytes came than were announced".into()),
            }),
            // The lengths came over TCP. Datagrams that contradict them are dropped, also if the
            // sender stands by them: without others nothing arrives, and the timeout ends it.
            Event::Mismatch(_) => Ok(()),
            Event::Proven(_) | Event::Gathered(_) | Event::Path { .. } | Event::Slow { .. } => {
                Ok(())
            }
        }
    }

    /// Takes what the sender says; true when it is all over, and well.
    fn heard(&mut self, heard: Heard) -> Result<bool, Error> {
        self.fresh = true;
        let safe = matches!(self.phase, Phase::Leaving(_));
        match heard {
            Heard::Message(ToReceiver::Root { hash, key }) if self.root.is_none() => {
                let key = blake3::Hash::from_hex(key)
                    .map_err(|_| Error::PeerLost("the sender's challenge makes no sense".into()))?;
                let challenge = Challenge::new(key.into(), self.landing.len());
                self.root = Some(Root { hash, challenge });
            }
            Heard::Message(ToReceiver::Gone { node }) if NodeId(node) != ROOT => {
                let now = self.clock.now();
                // It cannot be refused.
                let _ = self.driver.command(now, Command::PeerRemove(NodeId(node)));
                self.driver.transport().forget(NodeId(node));
            }
            Heard::Message(ToReceiver::Ask { node }) => {
                let udp = self.driver.transport().inner_mut();
                udp.ask_again(NodeId(node));
            }
            Heard::Message(ToReceiver::Bye) if safe => return Ok(self.may_leave()),
            Heard::Bulk(bytes) => self.mend(&bytes)?,
            _ if safe => return Ok(self.may_leave()),
            Heard::Message(message @ (ToReceiver::Removed { .. } | ToReceiver::Aborted { .. })) => {
                self.forsaken(surprise(message))?
            }
            Heard::Message(message) => return Err(surprise(message)),
            Heard::Closed(why) => {
                self.forsaken(Error::PeerLost(format!("the sender is gone: {why}")))?;
            }
        }
        Ok(false)
    }

    /// Whether others may still need what this receiver has (spec 2.12).
    fn serves(&mut self) -> bool {
        let ops = [self.file, self.list];
        ops.into_iter()
            .flatten()
            .any(|op| self.driver.object(op).is_some())
    }

    /// The sender needs this receiver no more: it leaves, unless others do, and then soon.
    fn may_leave(&mut self) -> bool {
        if !std::mem::replace(&mut self.dismissed, true) {
            self.phase = Phase::Leaving(Instant::now() + FAREWELL);
        }
        !self.serves()
    }

    /// Goes on to the next phase when the time has come; true when it is all over.
    fn advance(&mut self) -> Result<bool, Error> {
        match &mut self.phase {
            Phase::Receiving => {
                if self.pending.is_empty() && self.root.is_some() {
                    self.prove()?;
                }
            }
            Phase::Proving(_) => {}
            Phase::Storing(result) => match result.try_recv() {
                Ok(result) => {
                    let proof = result?;
                    self.stored(proof);
                }
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => unreachable!("storing does not panic"),
            },
            Phase::Leaving(until) => {
                let over = Instant::now() >= *until;
                return Ok(over || self.dismissed && !self.serves());
            }
        }
        Ok(false)
    }

    /// All bytes are here: are they the right ones?
    fn prove(&mut self) -> Result<(), Error> {
        (self.tell)(RecvEvent::Storing);
        let list = match self.list.and_then(|op| self.driver.take(op)) {
            Some(FileObject::Memory(memory)) => memory.into_bytes(),
            Some(_) => Vec::new(),
            // A co-root's may still be needed.
            None => match self.list.and_then(|op| self.driver.object(op)) {
                Some(FileObject::Memory(memory)) => memory.as_slice().to_vec(),
                _ => Vec::new(),
            },
        };
        self.say(&ToSender::Working { done: 0 })?;
        self.worked = Instant::now();
        let root = self.root.as_ref().map_or("", |r| &r.hash);
        self.phase = Phase::Proving(Mending::new(self.landing.clone(), list, root));
        self.ask()
    }

    /// Asks for what is not what it should be, or stores the file.
    fn ask(&mut self) -> Result<(), Error> {
        while let Phase::Proving(mending) = &mut self.phase {
            if mending.is_done() {
                self.tally.mended = mending.mended;
                self.tally.mended_bytes = mending.bytes;
                self.store();
                return Ok(());
            }
            // Only the sender has it.
            if let Some(why) = self.lost.take() {
                return Err(why);
            }
            match mending.ask() {
                Some(need) => self.say(&need)?,
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// Takes bytes that were asked for.
    fn mend(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.progress.0 = Instant::now();
        let Phase::Proving(mending) = &mut self.phase else {
            return Err(strange());
        };
        mending.take(bytes).unwrap_or_else(|| Err(strange()))?;
        self.ask()
    }

    fn store(&mut self) {
        if let Some(why) = self.lost.take() {
            self.alone(&why);
            self.lost = Some(why);
        }
        let (landing, sync) = (self.landing.clone(), self.options.sync);
        let (tell, result) = channel();
        let bell = self.bell.clone();
        let (root, node) = (self.root.clone(), self.node);
        thread::spawn(move || {
            let root = root.expect("nothing is proven without it");
            let proof = landing
                .answer(&root.challenge)
                .map(|s| s.proof(node.0).to_string());
            let _ = tell.send(proof.and_then(|proof| landing.finish(sync).map(|()| proof)));
            bell.ring();
        });
        self.phase = Phase::Storing(result);
    }

    fn stored(&mut self, proof: String) {
        self.phase = Phase::Leaving(Instant::now() + FAREWELL);
        self.seconds = self.clock.0.elapsed().as_secs_f64();
        self.count();
        let tally = self.tally;
        // The file is safe, whether the sender hears of it or not.
        match self.lost {
            Some(_) => self.dismissed = true,
            None => _ = self.control.say(&ToSender::Verified { tally, proof }),
        }
    }

    fn count(&mut self) {
        let core = self.driver.node().counters();
        self.tally.received = core.received;
        self.tally.duplicates = core.duplicates;
        self.tally.dropped = self.driver.transport().inner().counters().dropped_by_kernel;
    }

    /// What only time changes.
    fn tick(&mut self) -> Result<(), Error> {
        let now = Instant::now();
        if now - self.ticked < TICK {
            return Ok(());
        }
        self.ticked = now;
        let notices: Vec<String> = notices(&mut self.driver).collect();
        for text in notices {
            (self.tell)(RecvEvent::Notice { text });
        }
        self.ask_for_questions(now)?;
        match self.phase {
            Phase::Receiving => {
                let arrived = self.driver.node().counters().received;
                if arrived != self.progress.1 {
                    self.progress = (now, arrived);
                } else {
                    self.silence(now)?;
                    // Nothing waits in the network any more.
                    if !self.is_whole()
                        && let Some(why) = self.lost.take()
                    {
                        return Err(why);
                    }
                }
                (self.tell)(RecvEvent::Progress {
                    seconds: self.clock.0.elapsed().as_secs_f64(),
                    placed: self.landing.written(),
                    len: self.landing.len(),
                });
            }
            Phase::Proving(_) => {
                self.silence(now)?;
                self.work(now)?;
            }
            Phase::Storing(_) => self.work(now)?,
            Phase::Leaving(_) => {}
        }
        Ok(())
    }

    /// Receivers that do not answer where the sender says they are may be asked once more for
    /// each word of the sender's that says so.
    fn ask_for_questions(&mut self, now: Instant) -> Result<(), Error> {
        let silent: Vec<NodeId> = self.driver.transport().inner().unanswered().collect();
        self.unanswered.retain(|node, _| silent.contains(node));
        for node in silent.into_iter().take(UNANSWERED) {
            let next = self.unanswered.entry(node);
            let (due, pause) = next.or_insert((now + AGAIN_MIN, AGAIN_MIN));
            if now < *due || self.lost.is_some() {
                continue;
            }
            *pause = (*pause * 2).min(AGAIN_MAX);
            *due = now + *pause;
            self.say(&ToSender::Unanswered { node: node.0 })?;
        }
        Ok(())
    }

    /// Gives up if nothing has come for too long.
    fn silence(&self, now: Instant) -> Result<(), Error> {
        match self.options.receive_timeout {
            Some(limit) if now - self.progress.0 > limit => {
                let limit = spoken(limit);
                Err(Error::Timeout(format!(
                    "nothing has arrived for {limit} (--receive-timeout)"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Tells the sender, now and then, that we are at work.
    fn work(&mut self, now: Instant) -> Result<(), Error> {
        if now - self.worked >= WORKING {
            self.worked = now;
            let done = self.done();
            self.say(&ToSender::Working { done })?;
        }
        Ok(())
    }

    /// Bytes of the list and the file that are proven.
    fn done(&self) -> u64 {
        let len = self.landing.len();
        let whole = blocks(len) * HASH as u64;
        match &self.phase {
            Phase::Receiving => 0,
            Phase::Proving(mending) => mending.done(),
            Phase::Storing(_) | Phase::Leaving(_) => whole + len,
        }
    }

    fn report(&mut self) -> RecvReport {
        self.count();
        RecvReport {
            path: self.landing.path().to_owned(),
            len: self.landing.len(),
            root: self.root.take().map(|r| r.hash).unwrap_or_default(),
            seconds: self.seconds,
            tally: self.tally,
        }
    }
}

/// The error that the writing thread met, for the caller.
fn copy(error: &Error, path: &Path) -> Error {
    match error {
        Error::NoSpace { path, detail } => Error::NoSpace {
            path: path.clone(),
            detail: detail.clone(),
        },
        Error::TooLong { path, detail } => Error::TooLong {
            path: path.clone(),
            detail: detail.clone(),
        },
        Error::Io { source, .. } => Error::io(
            format!("writing {}", path.display()),
            std::io::Error::new(source.kind(), source.to_string()),
        ),
        other => Error::io(
            format!("writing {}", path.display()),
            std::io::Error::other(other.to_string()),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receivers_send_to_each_other_only_for_a_sender_or_a_scheme_that_was_named() {
        let asked = |scheme: &str, from: Option<&str>, wanted: Option<&str>| {
            let start = Start {
                group: None,
                root: ([127, 0, 0, 1], 9).into(),
                chunk: 1000,
                window: 64,
                members: vec![0, 1],
                scheme: scheme.into(),
                addresses: Vec::new(),
            };
            let options = RecvOptions {
                from: from.map(Into::into),
                scheme: wanted.map(Into::into),
                ..RecvOptions::new(".")
            };
            check_scheme(&start, &options).is_ok()
        };
        for shared in [
            "coroot(2)",
            "tree(2)+multicast",
            "channels(4)",
            "coroot(2)+crc32c",
        ] {
            assert!(!asked(shared, None, None), "{shared}");
            assert!(asked(shared, Some("head"), None));
        }
        for alone in ["auto", "auto+crc32c", "window", "ibrmp"] {
            assert!(asked(alone, None, None), "{alone}");
        }
        assert!(asked("coroot(2)+crc32c", None, Some("coroot(2)")));
        assert!(!asked("tree(2)", None, Some("coroot(2)")));
        assert!(!asked("coroot(24)", Some("head"), Some("coroot(2")));
    }
}
