//! A receiver that `fabricast copy` has started (`recv --launched`): its standard input gives it
//! the key, and ends when it has to end.

use std::io::{BufRead, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use fabricast::bootstrap::PreSharedKey;
use fabricast::error::Error;

/// How often the wait for the key looks whether the user has interrupted it.
const TICK: Duration = Duration::from_millis(100);
/// Most bytes of the first line.
const LINE_MAX: u64 = 64;

/// The standard input of a receiver that was started by `fabricast copy`.
pub struct Launched {
    /// The key that sender and receiver have to show to each other.
    pub key: PreSharedKey,
    ended: Arc<AtomicBool>,
}

impl Launched {
    /// Reads the key from standard input. When standard input ends later, `interrupt` is set.
    ///
    /// # Errors
    /// What comes first is no key; the wait for it is interrupted.
    pub fn open(interrupt: &Arc<AtomicBool>) -> Result<Launched, Error> {
        let (tell, key) = channel();
        let ended = Arc::new(AtomicBool::new(false));
        let (at_end, interrupts) = (ended.clone(), interrupt.clone());
        thread::spawn(move || {
            let mut input = std::io::stdin().lock();
            let mut line = String::new();
            let read = (&mut input).take(LINE_MAX).read_line(&mut line);
            let key = read
                .ok()
                .and_then(|_| PreSharedKey::from_hex(line.trim_end()));
            if tell.send(key).is_err() {
                return;
            }
            // Whatever comes behind the key means nothing.
            let _ = std::io::copy(&mut input, &mut std::io::sink());
            at_end.store(true, Ordering::Relaxed);
            interrupts.store(true, Ordering::Relaxed);
        });
        loop {
            match key.recv_timeout(TICK) {
                Ok(Some(key)) => return Ok(Launched { key, ended }),
                Err(RecvTimeoutError::Timeout) if !interrupt.load(Ordering::Relaxed) => {}
                Err(RecvTimeoutError::Timeout) => return Err(Error::Interrupted),
                Ok(None) | Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::Usage(
                        "--launched is for `fabricast copy`, which gives a receiver its key on \
                         standard input; none came"
                            .into(),
                    ));
                }
            }
        }
    }

    /// The error in place of `error`, if that only says that standard input has ended.
    pub fn error(&self, error: Error) -> Error {
        match error {
            Error::Interrupted if self.ended.load(Ordering::Relaxed) => Error::PeerLost(
                "the `fabricast copy` that has started this receiver has ended it".into(),
            ),
            error => error,
        }
    }
}
