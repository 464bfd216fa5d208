//! Answers requests for the metrics. Any client that reaches the port may ask, so each gets little
//! time and little memory, and none waits for another.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fabricast::error::Error;
use fabricast::waker::Waker;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// What an answer is.
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// How long a client may take for its request, and again to read the answer.
const TIME: Duration = Duration::from_secs(2);
/// Most bytes of a request.
const REQUEST_MAX: usize = 8 << 10;
/// Most headers of a request.
const HEADERS_MAX: usize = 64;
/// Most clients at once. When there are more, the one that has been there longest is closed.
const CLIENTS_MAX: usize = 32;
/// The pause after a connection could not be accepted, perhaps for want of descriptors.
const PAUSE: Duration = Duration::from_millis(200);

/// Answers Prometheus on a thread of its own until it is dropped.
pub struct MetricsServer {
    /// Where it listens.
    pub address: SocketAddr,
    stop: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl MetricsServer {
    /// Listens at this address.
    pub fn open(address: SocketAddr, registry: Registry) -> Result<MetricsServer, Error> {
        MetricsServer::open_for(address, registry, TIME)
    }

    /// Listens at this address. Each client has so much time for its request, and again to read the
    /// answer.
    fn open_for(
        address: SocketAddr,
        registry: Registry,
        time: Duration,
    ) -> Result<MetricsServer, Error> {
        let failed = |e| Error::io(format!("listening for metrics at {address}"), e);
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        let waker = Waker::new().map_err(failed)?;
        let stop = Arc::new(AtomicBool::new(false));
        let (stops, woken) = (stop.clone(), waker.clone());
        let thread = thread::Builder::new().name("fabricast-metrics".into());
        let thread = thread.spawn(move || {
            let mut clients = Clients {
                clients: Vec::new(),
                time,
                is_full: false,
            };
            while !stops.load(Ordering::Relaxed) {
                clients.turn(&listener, &woken, &registry);
            }
        });
        Ok(MetricsServer {
            address: bound,
            stop,
            waker,
            thread: Some(thread.map_err(|e| Error::io("starting a thread", e))?),
        })
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A client, whose connection never blocks.
struct Client {
    stream: TcpStream,
    request: Vec<u8>,
    /// The answer, once the request is here, and how much of it is written.
    answer: Option<(Vec<u8>, usize)>,
    /// When it came, or its answer was there.
    since: Instant,
}

/// All clients, in the order in which they came.
struct Clients {
    clients: Vec<Client>,
    /// How long each has for its request, and again to read the answer.
    time: Duration,
    /// Whether the last connection could not be accepted.
    is_full: bool,
}

impl Clients {
    /// Waits until a client has something to say or can take something, and serves all that have.
    fn turn(&mut self, listener: &TcpListener, waker: &Waker, registry: &Registry) {
        let now = Instant::now();
        let (time, clients) = (self.time, &mut self.clients);
        clients.retain(|client| now.duration_since(client.since) < time);
        let mut fds = vec![PollFd::new(waker, PollFlags::IN)];
        for client in clients.iter() {
            let flags = match client.answer {
                Some(_) => PollFlags::OUT,
                None => PollFlags::IN,
            };
            fds.push(PollFd::new(&client.stream, flags));
        }
        let ends = clients.iter().map(|client| client.since + time);
        let pause = self.is_full.then_some(now + PAUSE);
        if pause.is_none() {
            fds.push(PollFd::new(listener, PollFlags::IN));
        }
        let end = ends.chain(pause).min();
        let limit = end.map(|end| end.saturating_duration_since(now));
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        // A signal ends the wait, and all are served that can be.
        let _ = poll(&mut fds, limit.as_ref());
        drop(fds);
        // A client that is gone or confused needs no answer.
        clients.retain_mut(|client| client.serve(registry).unwrap_or(false));
        self.accept(listener);
    }

    fn accept(&mut self, listener: &TcpListener) {
        self.is_full = false;
        for _ in 0..CLIENTS_MAX {
            match listener.accept() {
                Ok((stream, _)) if stream.set_nonblocking(true).is_ok() => {
                    if self.clients.len() == CLIENTS_MAX {
                        self.clients.remove(0);
                    }
                    self.clients.push(Client {
                        stream,
                        request: Vec::new(),
                        answer: None,
                        since: Instant::now(),
                    });
                }
                Ok(_) => {}
                Err(e) => {
                    self.is_full = e.kind() != io::ErrorKind::WouldBlock;
                    return;
                }
            }
        }
    }
}

impl Client {
    /// Reads and writes what is possible. Returns whether the connection goes on.
    fn serve(&mut self, registry: &Registry) -> io::Result<bool> {
        if self.answer.is_none() {
            let mut some = [0; 1024];
            match self.stream.read(&mut some) {
                Ok(0) => return Ok(false),
                Ok(count) => self.request.extend(&some[..count]),
                Err(e) => return later(e),
            }
            let answer = answer(&self.request, registry)?;
            if let Some(answer) = answer {
                self.answer = Some((answer, 0));
                self.since = Instant::now();
            }
        }
        while let Some((answer, written)) = &mut self.answer {
            match self.stream.write(&answer[*written..]) {
                Ok(count) => *written += count,
                Err(e) => return later(e),
            }
            if *written == answer.len() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Whether a connection goes on after this error.
fn later(error: io::Error) -> io::Result<bool> {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(true),
        _ => Err(error),
    }
}

/// The answer to a request, once all of it is here.
fn answer(request: &[u8], registry: &Registry) -> io::Result<Option<Vec<u8>>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut parsed = httparse::Request::new(&mut headers);
    let is_there = match parsed.parse(request).map_err(io::Error::other)? {
        httparse::Status::Complete(_) => {
            matches!(parsed.path, Some("/metrics" | "/")) && parsed.method == Some("GET")
        }
        httparse::Status::Partial if request.len() >= REQUEST_MAX => {
            return Err(io::ErrorKind::InvalidData.into());
        }
        httparse::Status::Partial => return Ok(None),
    };
    let mut text = String::new();
    let status = match is_there && encode(&mut text, registry).is_ok() {
        true => "200 OK",
        false => "404 Not Found",
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {}\r\nConnection: \
         close\r\n\r\n",
        text.len()
    );
    Ok(Some((head + &text).into_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longest time that a test waits for anything.
    const BOUND: Duration = Duration::from_secs(20);
    /// So long no client has.
    const HOUR: Duration = Duration::from_secs(3600);

    fn connect(address: SocketAddr) -> TcpStream {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(BOUND)).unwrap();
        stream
    }

    /// What comes until the server closes the connection.
    fn until_end(mut stream: TcpStream) -> String {
        let mut said = Vec::new();
        let read = stream.read_to_end(&mut said);
        let is_late = |e: io::Error| e.kind() == io::ErrorKind::WouldBlock;
        assert!(!read.is_err_and(is_late), "waited too long");
        String::from_utf8(said).unwrap()
    }

    fn ask(address: SocketAddr, request: &[u8]) -> String {
        let mut stream = connect(address);
        let _ = stream.write_all(request);
        until_end(stream)
    }

    const GOOD: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n";

    fn is_good(said: &str) -> bool {
        said.starts_with("HTTP/1.1 200") && said.ends_with("# EOF\n")
    }

    fn server(time: Duration) -> MetricsServer {
        let here = "127.0.0.1:0".parse().unwrap();
        MetricsServer::open_for(here, Registry::default(), time).unwrap()
    }

    /// Clients that send nothing, no end, or nonsense end nothing.
    #[test]
    fn bad_clients_get_no_answer() {
        let server = server(HOUR);
        let long = [GOOD.strip_suffix(b"\r\n").unwrap(), &[b'x'; REQUEST_MAX]].concat();
        assert_eq!(ask(server.address, &long), "");
        let many = (0..=HEADERS_MAX).map(|n| format!("h{n}: x\r\n"));
        let many: String = many.collect();
        let many = format!("GET /metrics HTTP/1.1\r\n{many}\r\n");
        assert_eq!(ask(server.address, many.as_bytes()), "");
        assert_eq!(ask(server.address, b"\x00\r\n\r\n"), "");
        let none = ask(server.address, b"GET /other HTTP/1.1\r\n\r\n");
        assert!(none.starts_with("HTTP/1.1 404"), "{none}");
        let post = ask(server.address, b"POST /metrics HTTP/1.1\r\n\r\n");
        assert!(post.starts_with("HTTP/1.1 404"), "{post}");
        assert!(is_good(&ask(server.address, GOOD)));
        // The end waits for nobody.
        let _idle = connect(server.address);
        drop(server);
    }

    /// Clients that say nothing keep no others away: those are served beside them, and the oldest
    /// go when there are too many. Here none of them ever has had its time.
    #[test]
    fn silent_clients_keep_no_others_away() {
        let server = server(HOUR);
        let begin = |_| {
            let mut stream = connect(server.address);
            let _ = stream.write_all(b"GET /metrics HT");
            stream
        };
        let silent: Vec<TcpStream> = (0..CLIENTS_MAX - 1).map(begin).collect();
        assert!(is_good(&ask(server.address, GOOD)));
        let more: Vec<TcpStream> = (0..2 * CLIENTS_MAX).map(begin).collect();
        assert!(is_good(&ask(server.address, GOOD)));
        for stream in silent {
            assert_eq!(until_end(stream), "");
        }
        drop(more);
    }

    /// A client that says nothing is closed when it has had its time.
    #[test]
    fn a_silent_client_has_its_time() {
        let server = server(Duration::from_millis(50));
        assert_eq!(until_end(connect(server.address)), "");
    }
}
