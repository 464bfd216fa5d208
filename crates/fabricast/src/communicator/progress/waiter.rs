//! How a thread waits for an arrival over the network or through this host's memory: it spins while
//! its core has nothing else to do, and then sleeps.

use std::cell::Cell;
use std::io;
use std::mem;
use std::os::fd::BorrowedFd;
use std::thread;
use std::time::{Duration, Instant};

use crate::communicator::operations::engine::Engine;
use crate::object::Divisible;
use crate::transport::{Ready, Sleeper, Watch};
use crate::waker::Waker;

/// A look that takes longer than this included another thread's time on the core.
const LENT: Duration = Duration::from_micros(3);
/// A look that takes longer than this included a thread that computes, and will continue to.
const LENT_MAX: Duration = Duration::from_micros(100);

/// A thread that drives the runtime above stops when the runtime has had nothing to do for this
/// time and in [`SERVES_CALLS`] calls. The first arrival is often a part of more. A runtime does
/// not do all of its work in each call: Open MPI does some of it in every eighth.
const SERVES: Duration = Duration::from_micros(100);
const SERVES_CALLS: u32 = 32;

/// Largest number of waits after which a thread tries again whether its core is free.
const SKIPS_MAX: u32 = 7;

/// Shortest time-out of an inexact wait. As a rule the kernel's next tick comes before it, and the
/// kernel's timer is set for the tick anyway, so a wait that ends sooner costs nothing. For a
/// shorter time-out the kernel sets the timer and sets it back: in a virtual machine each takes
/// microseconds.
const POLL_TIME: Duration = Duration::from_millis(5);
/// Number of exact waits after an inexact wait was in vain: something is lost, or others are late.
const EXACT: u32 = 128;

/// Whether arrivals usually end a wait soon, so that its time-out may be inexact.
#[derive(Default)]
struct PollTime {
    exact: Cell<u32>,
}

impl PollTime {
    /// The time-out of a wait that should last `timeout` and may last longer.
    fn of(&self, timeout: Duration) -> Duration {
        let exact = self.exact.get();
        self.exact.set(exact.saturating_sub(1));
        if exact == 0 {
            timeout.max(POLL_TIME)
        } else {
            timeout
        }
    }

    /// Takes note that a wait has lasted this long and nothing has arrived.
    fn in_vain(&self, lasted: Duration) {
        if lasted >= POLL_TIME {
            self.exact.set(EXACT);
        }
    }
}

/// Whether other threads want the core.
#[derive(Default)]
struct Contention {
    /// Number of waits that assume so: `skips` now, `patience` when the core is next found wanted.
    skips: Cell<u32>,
    patience: Cell<u32>,
}

impl Contention {
    /// Whether this wait assumes that other threads want the core, and does not spin.
    fn skips(&self) -> bool {
        let left = self.skips.get();
        self.skips.set(left.saturating_sub(1));
        left > 0
    }

    fn some(&self) {
        let patience = (2 * self.patience.get() + 1).min(SKIPS_MAX);
        self.patience.set(patience);
        self.skips.set(patience);
    }

    fn none(&self) {
        self.patience.set(self.patience.get() / 2);
    }
}

/// What has ended a wait.
#[derive(Default)]
pub(crate) struct Woken {
    /// The descriptors that have something to read, if the sleep has looked for them.
    pub ready: Option<Ready>,
    /// Something has arrived over the network or through memory.
    pub news: bool,
    /// The runtime above has something to do.
    pub runtime: bool,
}

impl Woken {
    fn by_descriptors(ready: Ready) -> Woken {
        Woken {
            ready: Some(ready),
            news: ready.is_news(),
            runtime: ready.runtime,
        }
    }

    const fn by_memory() -> Woken {
        Woken {
            ready: None,
            news: true,
            runtime: false,
        }
    }
}

/// How long a thread waits, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    /// The network takes no more datagrams. Room to send ends the wait, too.
    pub full: bool,
    pub timeout: Duration,
    /// Nothing is due before `timeout`, and what is due after it may be some milliseconds late. The
    /// wait may then last as long as [`POLL_TIME`].
    pub eased: bool,
    /// How long the thread spins before it sleeps.
    pub spin: Duration,
    /// How often other threads may take the core for a moment while the thread spins.
    pub lends: u32,
}

/// What one thread waits with.
pub(crate) struct Waiter {
    sleeper: Sleeper,
    networks: Vec<Box<dyn Watch>>,
    has_local_ranks: bool,
    contention: Contention,
    poll_time: PollTime,
}

impl Waiter {
    /// A waiter for the networks of this engine.
    pub fn new<O: Divisible>(engine: &mut Engine<O>) -> io::Result<Waiter> {
        let sleeper = Sleeper::new()?;
        let networks = engine.attach(&sleeper)?;
        let (contention, poll_time) = (Contention::default(), PollTime::default());
        Ok(Waiter {
            sleeper,
            networks,
            has_local_ranks: engine.has_local_ranks(),
            contention,
            poll_time,
        })
    }

    /// Sleeps until there is something to look at, the waker was rung, `timeout` has passed or,
    /// with `full`, sending may continue. Does not sleep if something has arrived through memory.
    pub fn sleep(&self, full: bool, timeout: Option<Duration>) -> io::Result<Woken> {
        let mut begun = 0;
        let woken = loop {
            let Some(network) = self.networks.get(begun) else {
                break self.sleeper.sleep(timeout).map(Woken::by_descriptors);
            };
            begun += 1;
            match network.begin(full) {
                Ok(true) => {}
                Ok(false) => break Ok(Woken::by_memory()),
                Err(e) => break Err(e),
            }
        };
        self.networks[..begun].iter().for_each(|n| n.end());
        woken
    }

    /// Whether something has arrived that memory tells of.
    fn has_news(&self) -> bool {
        self.networks.iter().any(|network| network.has_news())
    }

    /// Like [`Waiter::sleep`], but spins first: to be woken takes longer than most answers. The
    /// thread offers its core to others at each look, and spins only while no other thread wants
    /// the core. If others take the core more than `lends` times, or for long, the next waits do
    /// not spin.
    pub fn watch(&self, wait: Wait) -> io::Result<Woken> {
        let Wait {
            full,
            timeout,
            eased,
            spin,
            lends,
        } = wait;
        let began = Instant::now();
        let (mut now, mut lent) = (began, 0);
        let spin = match (lends == 0 && self.contention.skips()) || full {
            true => Duration::ZERO,
            false => spin.min(timeout),
        };
        while now - began < spin {
            if self.has_news() {
                self.contention.none();
                return Ok(Woken::by_memory());
            }
            if let Some(ready) = self.sleeper.look()? {
                self.contention.none();
                return Ok(Woken::by_descriptors(ready));
            }
            thread::yield_now();
            let before = mem::replace(&mut now, Instant::now());
            let took = now - before;
            lent += u32::from(took > LENT);
            if lent > lends || took > LENT_MAX {
                self.contention.some();
                break;
            }
        }
        let timeout = match eased {
            true => self.poll_time.of(timeout),
            false => timeout.saturating_sub(now - began),
        };
        let woken = self.sleep(full, Some(timeout))?;
        if eased && !woken.news {
            self.poll_time.in_vain(began.elapsed());
        }
        Ok(woken)
    }

    /// Drives the runtime above without sleeping, until the runtime has had nothing to do for a
    /// while, `timeout` has passed, or there is something else to look at. Only in the first case
    /// the result says that the runtime has no more to do. The thread offers its core to others
    /// after each call, unless the call took so long that the runtime has offered the core itself
    /// or has had work. A second offer would double the time until this thread looks again.
    pub fn serve(&self, timeout: Duration, meanwhile: &mut dyn FnMut()) -> io::Result<Woken> {
        let began = Instant::now();
        let (mut before, mut last, mut calls) = (began, began, 0);
        let mut woken = loop {
            meanwhile();
            calls += 1;
            if self.has_news() {
                break Woken::by_memory();
            }
            let now = Instant::now();
            match self.sleeper.look()? {
                Some(ready) if ready.is_news() || ready.rung => break Woken::by_descriptors(ready),
                Some(ready) if ready.runtime => (last, calls) = (now, 0),
                _ if now - last >= SERVES && calls >= SERVES_CALLS => return Ok(Woken::default()),
                _ => {}
            }
            if now - began >= timeout {
                break Woken::default();
            }
            let took = now - mem::replace(&mut before, now);
            if took <= LENT {
                thread::yield_now();
                before = Instant::now();
            }
        };
        woken.runtime = true;
        Ok(woken)
    }

    /// From now on, a wait also ends when this descriptor of the runtime above is readable.
    pub fn watch_runtime(&self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        self.sleeper.watch_runtime(descriptor)
    }

    /// Sleeps until the waker was rung or `timeout` has passed, whatever arrives. Returns whether
    /// the waker was rung.
    pub fn rest(&self, timeout: Duration) -> io::Result<bool> {
        self.sleeper.rest(timeout)
    }

    /// Whether other processes share this host's memory.
    pub fn has_local_ranks(&self) -> bool {
        self.has_local_ranks
    }

    /// What ends this thread's sleep.
    pub fn waker(&self) -> &Waker {
        self.sleeper.waker()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_may_last_longer_until_that_was_in_vain() {
        let (poll_time, look) = (PollTime::default(), Duration::from_millis(1));
        assert_eq!(
            (poll_time.of(look), poll_time.of(2 * POLL_TIME)),
            (POLL_TIME, 2 * POLL_TIME)
        );
        poll_time.in_vain(look);
        assert_eq!(
            poll_time.of(look),
            POLL_TIME,
            "it was woken for something else"
        );
        poll_time.in_vain(POLL_TIME);
        let exact = (0..EXACT).all(|_| poll_time.of(look) == look);
        assert!(exact && poll_time.of(look) == POLL_TIME);
    }

    #[test]
    fn a_core_that_others_want_is_left_to_them_for_longer_and_longer() {
        let contention = Contention::default();
        let skipped = || (0..).take_while(|_| contention.skips()).count();
        assert_eq!(skipped(), 0);
        for expected in [1, 3, 7, 7] {
            contention.some();
            assert_eq!(skipped(), expected);
        }
        contention.none();
        contention.none();
        contention.some();
        assert_eq!(skipped(), 3);
    }
}
