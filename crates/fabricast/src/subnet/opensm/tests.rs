//! The subnet over a port that gives errors.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use super::mad::Mad;
use super::umad::Received;
use super::*;

/// What the port does, and what has happened to it.
#[derive(Default)]
struct State {
    /// Whether reads fail, for this port and any that is opened.
    fails: bool,
    /// Whether the manager answers nothing.
    is_silent: bool,
    opened: u32,
    reads: u32,
    waiting: Vec<Mad>,
}

/// A port whose manager grants everything at once.
struct Fake(Arc<Mutex<State>>);

impl Device for Fake {
    fn port(&self) -> io::Result<Port> {
        Ok(Port {
            device: "fake0".into(),
            number: 1,
            gid: Gid([1; 16]),
            lid: 1,
            sm_lid: 2,
            sm_sl: 0,
            is_active: true,
        })
    }

    fn send(&mut self, _: Destination, mad: &Mad, _: Duration) -> io::Result<()> {
        let mut answer = *mad;
        // A request becomes an answer by one bit of its method.
        answer[3] |= 0x80;
        let mut state = self.0.lock().unwrap();
        if !state.is_silent {
            state.waiting.push(answer);
        }
        Ok(())
    }

    fn receive(&mut self) -> io::Result<Option<Received>> {
        let mut state = self.0.lock().unwrap();
        state.reads += 1;
        if state.fails {
            return Err(io::Error::other("input/output error"));
        }
        Ok(state.waiting.pop().map(|mad| Received {
            is_answered: true,
            mad,
        }))
    }

    fn wait(&self, _: Duration) -> io::Result<()> {
        Ok(())
    }

    fn watch(&self, _: &dyn Fn(std::os::fd::BorrowedFd<'_>) -> bool) -> bool {
        false
    }
}

fn address(n: u8) -> GroupAddress {
    SocketAddr::from(([239, 0, 0, n], 7000)).into()
}

/// Runs the subnet for a time, from one due time to the next. Returns its news.
fn run(subnet: &mut OpenSm, now: &mut Time, time: Duration) -> Vec<News> {
    let end = *now + time;
    let mut news = Vec::new();
    for steps in 0.. {
        assert!(steps < 100_000, "the subnet spins");
        subnet.step(*now).unwrap();
        news.extend(std::iter::from_fn(|| subnet.news()));
        match subnet.due().filter(|due| *due <= end) {
            Some(due) => *now = due.max(*now + Duration::from_micros(1)),
            None => break,
        }
    }
    *now = end;
    news
}

/// The subnet over ports in this state.
fn subnet(state: &Arc<Mutex<State>>) -> OpenSm {
    let shared = Arc::clone(state);
    let opener = move || {
        shared.lock().unwrap().opened += 1;
        // What was under way is gone with the port.
        shared.lock().unwrap().waiting.clear();
        Ok(Box::new(Fake(Arc::clone(&shared))) as Box<dyn Device>)
    };
    let device = Reopened::new(Box::new(opener)).unwrap();
    OpenSm::over(Config::default(), device)
}

#[test]
fn a_silent_manager_wakes_nobody_a_thousand_times_a_second() {
    let state = Arc::new(Mutex::new(State {
        is_silent: true,
        ..State::default()
    }));
    let mut subnet = subnet(&state);
    let mut now = Time(1);
    subnet.create(now, &address(1));
    let reads = || state.lock().unwrap().reads;
    run(&mut subnet, &mut now, Duration::from_millis(8));
    assert!(
        reads() >= 8,
        "an answer that comes soon is read soon: {}",
        reads()
    );
    run(&mut subnet, &mut now, Duration::from_secs(10));
    assert!(reads() < 800, "{} reads in 10 s", reads());
    state.lock().unwrap().is_silent = false;
    let news = run(&mut subnet, &mut now, Duration::from_secs(3));
    assert_eq!(news, [News::Joined(address(1))]);
}

#[test]
fn a_port_that_fails_is_opened_again() {
    let state = Arc::new(Mutex::new(State::default()));
    let mut subnet = subnet(&state);
    let mut now = Time(1);
    subnet.create(now, &address(1));
    let news = run(&mut subnet, &mut now, Duration::from_secs(1));
    assert_eq!(news, [News::Joined(address(1))]);

    state.lock().unwrap().fails = true;
    subnet.create(now, &address(2));
    let news = run(&mut subnet, &mut now, Duration::from_secs(10));
    assert!(matches!(&news[0], News::Notice(text) if text.contains("input/output error")));
    let told = |news: &News| matches!(news, News::Notice(_));
    assert!(news.iter().all(told), "{news:?}");
    // It waits twice as long each time: 0.1 s, 0.2 s and so on up to 4 s.
    assert_eq!(state.lock().unwrap().opened, 1 + 6);

    state.lock().unwrap().fails = false;
    let mut news = run(&mut subnet, &mut now, Duration::from_secs(5));
    news.retain(|news| !told(news));
    assert_eq!(news, [News::Joined(address(2))]);
    assert_eq!(state.lock().unwrap().opened, 1 + 7);
    subnet.leave(now, &address(1));
    let news = run(&mut subnet, &mut now, Duration::from_secs(1));
    assert_eq!(news, [News::Left(address(1))]);
}
