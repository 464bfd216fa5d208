//! Many runs on several threads. The result of a run does not depend on the number of threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

/// Does the jobs `0 .. count` on `threads` threads. After each job, `done` is called in the
/// caller's thread with the job and its result. When `done` returns `false`, no more jobs begin.
pub fn jobs<T: Send>(
    count: u64,
    threads: usize,
    work: impl Fn(u64) -> T + Sync,
    mut done: impl FnMut(u64, T) -> bool,
) {
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let (tell, results) = mpsc::channel();
        for _ in 0..(threads as u64).clamp(1, count.max(1)) {
            let (tell, next, work) = (tell.clone(), &next, &work);
            scope.spawn(move || {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= count || tell.send((n, work(n))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(tell);
        for (n, result) in results {
            if !done(n, result) {
                next.store(count, Ordering::Relaxed);
                break;
            }
        }
    });
}
