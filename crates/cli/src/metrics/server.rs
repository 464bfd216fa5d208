//! Answers requests for the metrics. Any client that reaches the port may ask, so each gets little
//! time and little memory, and one at a time.

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
use rustix::event::{PollFd, PollFlags, poll};

/// What an answer is.
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// How long a client may take for its request, and again to read the answer.
const TIME: Duration = Duration::from_secs(2);
/// Most bytes of a request.
const REQUEST_MAX: usize = 8 << 10;
/// Most headers of a request.
const HEADERS_MAX: usize = 64;
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
        let failed = |e| Error::io(format!("listening for metrics at {address}"), e);
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        let waker = Waker::new().map_err(failed)?;
        let stop = Arc::new(AtomicBool::new(false));
        let (stops, woken) = (stop.clone(), waker.clone());
        let thread = thread::Builder::new().name("fabricast-metrics".into());
        let thread = thread.spawn(move || {
            while !stops.load(Ordering::Relaxed) {
                let mut fds = [
                    PollFd::new(&woken, PollFlags::IN),
                    PollFd::new(&listener, PollFlags::IN),
                ];
                // A signal ends the wait, and nothing has come.
                let _ = poll(&mut fds, None);
                match listener.accept() {
                    // A client that is gone, slow or confused needs no answer.
                    Ok((stream, _)) => _ = answer(stream, &registry),
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => thread::sleep(PAUSE),
                }
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

/// Answers one request, and closes the connection.
fn answer(mut stream: TcpStream, registry: &Registry) -> io::Result<()> {
    let until = Instant::now() + TIME;
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(TIME))?;
    let mut request = Vec::new();
    let is_there = loop {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut parsed = httparse::Request::new(&mut headers);
        match parsed.parse(&request).map_err(io::Error::other)? {
            httparse::Status::Complete(_) => {
                let is_there = matches!(parsed.path, Some("/metrics" | "/"));
                break is_there && parsed.method == Some("GET");
            }
            httparse::Status::Partial if request.len() >= REQUEST_MAX => {
                return Err(io::ErrorKind::InvalidData.into());
            }
            httparse::Status::Partial => {}
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let mut some = [0; 1024];
        match stream.read(&mut some)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => request.extend(&some[..n]),
        }
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
    stream.write_all((head + &text).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(address: SocketAddr, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        let _ = stream.write_all(request);
        let mut said = String::new();
        let _ = stream.read_to_string(&mut said);
        said
    }

    /// Clients that send nothing, no end, or nonsense cost a bounded time and end nothing.
    #[test]
    fn bad_clients_keep_no_other_away() {
        let here = "127.0.0.1:0".parse().unwrap();
        let server = MetricsServer::open(here, Registry::default()).unwrap();
        let silent = TcpStream::connect(server.address).unwrap();
        assert_eq!(ask(server.address, &vec![b'x'; REQUEST_MAX + 1024]), "");
        assert_eq!(ask(server.address, b"\x00\r\n\r\n"), "");
        let none = ask(server.address, b"GET /other HTTP/1.1\r\n\r\n");
        assert!(none.starts_with("HTTP/1.1 404"), "{none}");
        let post = ask(server.address, b"POST /metrics HTTP/1.1\r\n\r\n");
        assert!(post.starts_with("HTTP/1.1 404"), "{post}");
        let good = ask(server.address, b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n");
        assert!(
            good.starts_with("HTTP/1.1 200") && good.ends_with("# EOF\n"),
            "{good}"
        );
        drop(silent);
        // The end waits for nobody.
        let _idle = TcpStream::connect(server.address).unwrap();
        drop(server);
    }
}
