//! How a process is woken when its shared memory holds something for it, and how processes meet.
//!
//! To ring a waker is a system call, so a writer rings only for a process that sleeps. A word in
//! the shared memory says whether a process is awake, asleep or rung for. A writer looks at it
//! after it has written. A thread that goes to sleep looks for something written after it has set
//! the word. So one of the two sees the other.
//!
//! The [`Wakers`] are eventfds without a name, so only a process that was handed one can ring it.
//! The processes of a host meet once, through [`FdChannel`]s: the first process makes the memory
//! and all wakers, and hands them to the others there. A channel is a Unix datagram socket with an
//! abstract name. Only the processes of one network namespace reach it, which defines a host here,
//! but every user does. So a channel takes descriptors from its own user only, and is closed when
//! the processes have met.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_passcred;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, recvmsg, sendmsg_addr,
};
use rustix::process::getuid;

/// Largest number of descriptors that one datagram carries. The kernel's limit is 253.
const TOGETHER: usize = 128;
/// Time between two attempts to hand something to a process whose queue is full.
const AGAIN: Duration = Duration::from_millis(1);

/// State of a process of which no thread sleeps.
const AWAKE: u64 = 0;
/// State of a process of which a thread sleeps.
const ASLEEP: u64 = 1;
/// State of a process that sleeps and whose waker was rung.
const RUNG: u64 = 2;

/// The channel through which other processes reach this one until it shares memory.
pub struct FdChannel {
    socket: UnixDatagram,
    name: u64,
}

fn text(name: u64) -> String {
    format!("fabricast-{name:016x}")
}

impl FdChannel {
    /// Opens a channel with this name, which no other process of the host may have.
    pub fn hang(name: u64) -> io::Result<FdChannel> {
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(text(name))?)?;
        socket.set_nonblocking(true)?;
        set_socket_passcred(&socket, true)?;
        Ok(FdChannel { socket, name })
    }

    /// The channel's name.
    pub fn name(&self) -> u64 {
        self.name
    }

    /// Hands `fds`, or the message that there are none, to the process whose channel is `name`.
    /// Others may keep its queue full, and the kernel limits the descriptors in transit. In both
    /// cases it tries again until `until`.
    pub fn hand(&self, name: u64, fds: &[BorrowedFd<'_>], until: Instant) -> io::Result<()> {
        let address = SocketAddrUnix::new_abstract_name(text(name).as_bytes())?;
        let nothing = fds.is_empty().then_some(fds);
        for some in nothing.into_iter().chain(fds.chunks(TOGETHER)) {
            while let Err(e) = self.hand_some(&address, some) {
                let full = matches!(e, Errno::AGAIN | Errno::TOOMANYREFS | Errno::NOBUFS);
                if !full || Instant::now() >= until {
                    return Err(e.into());
                }
                thread::sleep(AGAIN);
            }
        }
        Ok(())
    }

    fn hand_some(&self, to: &SocketAddrUnix, fds: &[BorrowedFd<'_>]) -> Result<usize, Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(TOGETHER))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        let byte = [IoSlice::new(&[1])];
        sendmsg_addr(&self.socket, to, &byte, &mut control, SendFlags::NOSIGNAL)
    }

    /// Receives the `count` descriptors that the process whose channel is `name` hands over. Waits
    /// for them until `until`, whatever others send meanwhile.
    pub fn take(&self, name: u64, count: usize, until: Instant) -> io::Result<Vec<OwnedFd>> {
        let from = SocketAddrUnix::new_abstract_name(text(name).as_bytes())?;
        let mut taken = Vec::new();
        while taken.len() < count {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let text = "the process that makes the shared memory has not handed it over";
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            match self.take_some(&from) {
                Ok(Some(some)) if some.is_empty() => {
                    let text = "the process that makes the shared memory cannot";
                    return Err(io::Error::other(text));
                }
                Ok(Some(some)) => taken.extend(some),
                Ok(None) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let mut set = [PollFd::new(&self.socket, PollFlags::IN)];
                    let _ = poll(&mut set, left.try_into().ok().as_ref());
                }
                Err(e) => return Err(e.into()),
            }
        }
        Ok(taken)
    }

    /// The descriptors in the next datagram; `None`: the datagram is not from this process.
    fn take_some(&self, from: &SocketAddrUnix) -> Result<Option<Vec<OwnedFd>>, Errno> {
        let mut space =
            [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(TOGETHER), ScmCredentials(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let mut pieces = [IoSliceMut::new(&mut byte)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let got = recvmsg(&self.socket, &mut pieces, &mut control, flags)?;
        let (mut fds, mut own) = (Vec::new(), false);
        for message in control.drain() {
            match message {
                RecvAncillaryMessage::ScmRights(rights) => fds.extend(rights),
                RecvAncillaryMessage::ScmCredentials(sender) => own = sender.uid == getuid(),
                _ => {}
            }
        }
        // Any process on the host can send here. Descriptors that it has handed over are closed.
        let sender = got.address.and_then(|a| SocketAddrUnix::try_from(a).ok());
        if !own || sender.as_ref() != Some(from) {
            return Ok(None);
        }
        match got.flags.contains(ReturnFlags::CTRUNC) {
            true => Err(Errno::MFILE),
            false => Ok(Some(fds)),
        }
    }
}

/// The wakers of all processes of a host: eventfds that only these processes have.
pub(super) struct Wakers(Vec<OwnedFd>);

impl Wakers {
    /// Makes a waker for each of `processes` processes.
    pub fn new(processes: usize) -> io::Result<Wakers> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wakers: Result<_, Errno> = (0..processes).map(|_| eventfd(0, flags)).collect();
        Ok(Wakers(wakers?))
    }

    /// The wakers that another process has made.
    pub fn taken(wakers: Vec<OwnedFd>) -> Wakers {
        Wakers(wakers)
    }

    /// The waker of a process.
    pub fn of(&self, process: usize) -> BorrowedFd<'_> {
        self.0[process].as_fd()
    }

    /// All wakers, in the order of processes.
    pub fn all(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().map(|waker| waker.as_fd())
    }

    /// Rings the waker of a process. It cannot fail: the only error is an overflow after 2^64
    /// rings, and then the waker is rung already.
    pub fn ring(&self, process: usize) {
        let _ = rustix::io::write(self.of(process), &1u64.to_ne_bytes());
    }

    /// Clears all rings of a process's waker so far.
    pub fn hush(&self, process: usize) {
        let _ = rustix::io::read(self.of(process), &mut [0; 8]);
    }
}

/// The number of a process's threads that sleep, which determines its state in the shared memory.
#[derive(Default)]
pub(super) struct Sleepers {
    asleep: Mutex<u32>,
}

impl Sleepers {
    fn asleep(&self) -> MutexGuard<'_, u32> {
        self.asleep.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Takes note that a thread is about to sleep: from now on writers ring. The thread must itself
    /// look for what was written before.
    pub fn begin(&self, state: &AtomicU64) {
        let mut asleep = self.asleep();
        *asleep += 1;
        state.store(ASLEEP, Ordering::Relaxed);
        drop(asleep);
        // Pairs with the fence in `wants_ring`: either the writer sees this state, or the caller of
        // this function sees what was written.
        fence(Ordering::SeqCst);
    }

    /// Takes note that a thread no longer sleeps.
    pub fn end(&self) {
        *self.asleep() -= 1;
    }

    /// Takes note that a thread looks at what was written. No waker is needed while no thread
    /// sleeps.
    pub fn look(&self, state: &AtomicU64) {
        if state.load(Ordering::Relaxed) == AWAKE {
            return;
        }
        let asleep = self.asleep();
        // This thread now looks at what was rung for. Threads that still sleep must be rung for
        // again.
        let now = if *asleep > 0 { ASLEEP } else { AWAKE };
        state.store(now, Ordering::Relaxed);
        drop(asleep);
        fence(Ordering::SeqCst);
    }
}

/// Whether a writer that has written for the process with this state must ring its waker.
pub(super) fn wants_ring(state: &AtomicU64) -> bool {
    fence(Ordering::SeqCst);
    state.load(Ordering::Relaxed) == ASLEEP
        && state
            .compare_exchange(ASLEEP, RUNG, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
}
