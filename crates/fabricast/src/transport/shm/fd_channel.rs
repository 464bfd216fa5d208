//! What wakes a process when there is something for it in the memory that it shares.
//!
//! A waker is a system call, so it rings only for who sleeps: a word in the shared memory says
//! whether a process is awake, asleep or rung for. Who writes looks at it after it has written, who
//! goes to sleep looks for something written after it has said so: one of the two sees the other.
//!
//! The [`Wakers`] are eventfds without a name, so only a process that was handed one can ring it.
//! The processes of a host meet once, at [`FdChannel`]s: the first one makes the memory and all
//! wakers, and hands them to the others there. A channel is a Unix datagram socket with an abstract
//! name. Only the processes of one network namespace reach it, which is what makes a host here, but
//! every user does; so a channel takes descriptors from its own user alone, and is closed when the
//! processes have met.

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

/// Descriptors that one datagram carries at most. The kernel takes 253.
const TOGETHER: usize = 128;
/// Between two attempts to hand something to a process whose queue is full.
const AGAIN: Duration = Duration::from_millis(1);

/// States of a process.
const AWAKE: u64 = 0;
const ASLEEP: u64 = 1;
const RUNG: u64 = 2;

/// Where this process is met, until it shares memory.
pub struct FdChannel {
    socket: UnixDatagram,
    name: u64,
}

fn text(name: u64) -> String {
    format!("fabricast-{name:016x}")
}

impl FdChannel {
    /// A channel of this name, which no other process of the host has.
    pub fn hang(name: u64) -> io::Result<FdChannel> {
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(text(name))?)?;
        socket.set_nonblocking(true)?;
        set_socket_passcred(&socket, true)?;
        Ok(FdChannel { socket, name })
    }

    /// Its name.
    pub fn name(&self) -> u64 {
        self.name
    }

    /// Hands `fds`, or that there are none, to the process whose channel has this name. Others may
    /// keep its queue full, and the kernel bounds how many descriptors are under way: then this
    /// tries again until `until`.
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

    /// The `count` descriptors that the process whose channel has this name hands over. Waits
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

    /// What the next datagram brings; `None`: it is not from this process.
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
        // Anybody on the host can send here. What they have handed over is closed.
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

/// What wakes each process of a host: eventfds that only these processes have.
pub(super) struct Wakers(Vec<OwnedFd>);

impl Wakers {
    /// New ones, for so many processes.
    pub fn new(processes: usize) -> io::Result<Wakers> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wakers: Result<_, Errno> = (0..processes).map(|_| eventfd(0, flags)).collect();
        Ok(Wakers(wakers?))
    }

    /// Those that another process has made.
    pub fn taken(wakers: Vec<OwnedFd>) -> Wakers {
        Wakers(wakers)
    }

    /// A process's.
    pub fn of(&self, process: usize) -> BorrowedFd<'_> {
        self.0[process].as_fd()
    }

    /// All, in the order of processes.
    pub fn all(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().map(|waker| waker.as_fd())
    }

    /// Rings. It cannot fail: a waker that was rung 2^64 times without being heard is rung for.
    pub fn ring(&self, process: usize) {
        let _ = rustix::io::write(self.of(process), &1u64.to_ne_bytes());
    }

    /// Forgets all rings of a process so far.
    pub fn hush(&self, process: usize) {
        let _ = rustix::io::read(self.of(process), &mut [0; 8]);
    }
}

/// Which of a process's threads sleep, and so what its state in the shared memory is.
#[derive(Default)]
pub(super) struct Sleepers {
    asleep: Mutex<u32>,
}

impl Sleepers {
    fn asleep(&self) -> MutexGuard<'_, u32> {
        self.asleep.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// A thread is about to sleep: from now on who writes rings. What was written before it has to
    /// look for itself.
    pub fn begin(&self, state: &AtomicU64) {
        let mut asleep = self.asleep();
        *asleep += 1;
        state.store(ASLEEP, Ordering::Relaxed);
        drop(asleep);
        // With that of `wants_ring`: either the writer sees this state, or who calls this sees what
        // was written.
        fence(Ordering::SeqCst);
    }

    /// It sleeps no more.
    pub fn end(&self) {
        *self.asleep() -= 1;
    }

    /// Somebody looks at what was written: no waker is needed while nobody sleeps.
    pub fn look(&self, state: &AtomicU64) {
        if state.load(Ordering::Relaxed) == AWAKE {
            return;
        }
        let asleep = self.asleep();
        // What was rung for is looked at now; those who still sleep are to be rung for again.
        let now = if *asleep > 0 { ASLEEP } else { AWAKE };
        state.store(now, Ordering::Relaxed);
        drop(asleep);
        fence(Ordering::SeqCst);
    }
}

/// Something was written for the process with this state: whether its waker must be rung.
pub(super) fn wants_ring(state: &AtomicU64) -> bool {
    fence(Ordering::SeqCst);
    state.load(Ordering::Relaxed) == ASLEEP
        && state
            .compare_exchange(ASLEEP, RUNG, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
}
