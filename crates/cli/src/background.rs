//! A transfer on a thread of its own, for commands that do something else meanwhile.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread::{self, JoinHandle};

use fabricast::waker::Waker;

/// What the thread of a transfer tells.
pub enum Told<E, R> {
    /// An event.
    Event(E),
    /// How the transfer has ended. Nothing follows.
    End(R),
}

/// A transfer that runs on a thread of its own, until it has told its end or this is dropped.
pub struct Background<E, R> {
    told: Receiver<Told<E, R>>,
    thread: Option<JoinHandle<()>>,
    interrupt: Arc<AtomicBool>,
}

impl<E: Send + 'static, R: Send + 'static> Background<E, R> {
    /// Runs `transfer` on a thread with this name. `transfer` gets a function that takes its
    /// events, and ends soon when `interrupt` is set. `waker` is rung for each event and the end.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(
        name: &str,
        waker: Waker,
        interrupt: Arc<AtomicBool>,
        transfer: impl FnOnce(&mut dyn FnMut(E)) -> R + Send + 'static,
    ) -> io::Result<Background<E, R>> {
        let (tell, told) = channel();
        let thread = thread::Builder::new().name(name.into());
        let thread = thread.spawn(move || {
            let send = |told| {
                let _ = tell.send(told);
                waker.wake();
            };
            let result = transfer(&mut |event| send(Told::Event(event)));
            send(Told::End(result));
        })?;
        Ok(Background {
            told,
            thread: Some(thread),
            interrupt,
        })
    }

    /// A transfer whose events a test makes up.
    #[cfg(test)]
    pub fn made_up(told: Receiver<Told<E, R>>) -> Background<E, R> {
        Background {
            told,
            thread: None,
            interrupt: Arc::default(),
        }
    }

    /// What the transfer has told next; `None` if it has told nothing more yet.
    ///
    /// # Panics
    /// Like the thread, if that has panicked.
    pub fn told(&mut self) -> Option<Told<E, R>> {
        match self.told.try_recv() {
            Ok(told) => Some(told),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join) {
                    std::panic::resume_unwind(panic);
                }
                None
            }
        }
    }

    /// Has the transfer end soon. It tells its end.
    pub fn interrupt(&self) {
        self.interrupt.store(true, Ordering::Relaxed);
    }
}

impl<E, R> Drop for Background<E, R> {
    /// Ends the transfer, and waits for that.
    fn drop(&mut self) {
        self.interrupt.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_tells_all_and_ends_when_it_is_dropped() {
        let (waker, interrupt) = (Waker::new().unwrap(), Arc::new(AtomicBool::new(false)));
        let stop = interrupt.clone();
        let mut two = Background::start("t", waker.clone(), interrupt, |tell| {
            tell(1);
            tell(2);
            "end"
        })
        .unwrap();
        let mut all = Vec::new();
        loop {
            match two.told() {
                Some(Told::Event(n)) => all.push(n),
                Some(Told::End(end)) => break assert_eq!((all, end), (vec![1, 2], "end")),
                None => _ = waker.wait(None).unwrap(),
            }
        }
        let until = stop.clone();
        let one = Background::start("t", waker, stop.clone(), move |_: &mut dyn FnMut(())| {
            while !until.load(Ordering::Relaxed) {
                thread::yield_now();
            }
        });
        stop.store(false, Ordering::Relaxed);
        drop(one.unwrap());
        assert!(stop.load(Ordering::Relaxed));
    }

    #[test]
    #[should_panic(expected = "broken")]
    fn a_panic_goes_on() {
        let waker = Waker::new().unwrap();
        let run = |_: &mut dyn FnMut(())| panic!("broken");
        let mut run = Background::<(), ()>::start("t", waker, Arc::default(), run).unwrap();
        while run.told().is_none() {
            thread::yield_now();
        }
    }
}
