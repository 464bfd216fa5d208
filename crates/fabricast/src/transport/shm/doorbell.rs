//! What wakes a process when there is something for it in the memory that it shares.
//!
//! A bell is a system call, so it rings only for who sleeps: a word in the shared memory says whether a process
//! is awake, asleep or rung for. Who writes looks at it after it has written, who goes to sleep looks for something
//! written after it has said so: one of the two sees the other.
//!
//! The bell itself is a socket of Unix datagrams with an abstract name: only the processes of one network
//! namespace reach it, which is what makes a host here, and it vanishes with its process. By it
//! the shared memory is handed over, too.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, recvmsg, sendmsg_addr,
};

/// States of a process.
const AWAKE: u64 = 0;
const ASLEEP: u64 = 1;
const RUNG: u64 = 2;

/// This process's bell.
pub struct Doorbell {
    socket: UnixDatagram,
    name: u64,
}

fn text(name: u64) -> String {
    format!("fabricast-{name:016x}")
}

/// Where the bell of this name hangs.
pub(super) fn address(name: u64) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(text(name))
}

impl Doorbell {
    /// A bell of this name, which no other process of the host has.
    pub fn hang(name: u64) -> io::Result<Doorbell> {
        let socket = UnixDatagram::bind_addr(&address(name)?)?;
        socket.set_nonblocking(true)?;
        Ok(Doorbell { socket, name })
    }

    /// Its name.
    pub fn name(&self) -> u64 {
        self.name
    }

    /// Hands `fd`, or that there is none, to the process whose bell has this name.
    pub fn hand(&self, name: u64, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let address = SocketAddrUnix::new_abstract_name(text(name).as_bytes())?;
        let fds: Vec<_> = fd.into_iter().collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&fds));
        }
        let byte = [IoSlice::new(&[1])];
        sendmsg_addr(
            &self.socket,
            &address,
            &byte,
            &mut control,
            SendFlags::NOSIGNAL,
        )?;
        Ok(())
    }

    /// What the process whose bell has this name hands over; waits for it, but not longer than `patience`.
    pub fn take(&self, name: u64, patience: Duration) -> io::Result<OwnedFd> {
        self.socket.set_nonblocking(false)?;
        self.socket.set_read_timeout(Some(patience))?;
        let from = SocketAddrUnix::new_abstract_name(text(name).as_bytes())?;
        let taken = loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut byte = [0];
            let mut pieces = [IoSliceMut::new(&mut byte)];
            let got = recvmsg(
                &self.socket,
                &mut pieces,
                &mut control,
                RecvFlags::CMSG_CLOEXEC,
            );
            let got = match got {
                Err(rustix::io::Errno::INTR) => continue,
                got => got?,
            };
            // Anybody on the host may ring.
            if got
                .address
                .and_then(|a| SocketAddrUnix::try_from(a).ok())
                .as_ref()
                != Some(&from)
            {
                continue;
            }
            break control.drain().find_map(|message| match message {
                RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
                _ => None,
            });
        };
        self.socket.set_nonblocking(true)?;
        taken.ok_or_else(|| io::Error::other("the process that makes the shared memory cannot"))
    }

    /// Rings. Whose queue is full has been rung for.
    pub(super) fn ring(&self, whose: &SocketAddr) {
        let _ = self.socket.send_to_addr(&[1], whose);
    }

    /// Forgets all rings so far.
    pub(super) fn hush(&self) {
        while self.socket.recv(&mut [0; 8]).is_ok() {}
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
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

    /// A thread is about to sleep: from now on who writes rings. What was written before it has to look for itself.
    pub fn begin(&self, state: &AtomicU64) {
        let mut asleep = self.asleep();
        *asleep += 1;
        state.store(ASLEEP, Ordering::Relaxed);
        drop(asleep);
        // With that of `wants_ring`: either the writer sees this state, or who calls this sees what was written.
        fence(Ordering::SeqCst);
    }

    /// It sleeps no more.
    pub fn end(&self) {
        *self.asleep() -= 1;
    }

    /// Somebody looks at what was written: no bell is needed while nobody sleeps.
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

/// Something was written for the process with this state: whether its bell must be rung.
pub(super) fn wants_ring(state: &AtomicU64) -> bool {
    fence(Ordering::SeqCst);
    state.load(Ordering::Relaxed) == ASLEEP
        && state
            .compare_exchange(ASLEEP, RUNG, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
}
