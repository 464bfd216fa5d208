//! Connecting over TCP by a caller that may be interrupted meanwhile.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};

/// How often the caller is asked whether it still wants the connection.
const TICK: Duration = Duration::from_millis(50);

/// A TCP socket that can connect to this address.
///
/// # Errors
/// The system gives no socket.
pub fn socket_for(address: SocketAddr) -> io::Result<Socket> {
    let domain = Domain::for_address(address);
    Socket::new(domain, Type::STREAM, Some(Protocol::TCP))
}

/// Connects to this address as [`connect_within`] does, by a socket of its own.
///
/// # Errors
/// Those of [`socket_for`] and [`connect_within`].
pub fn connect_to(
    address: SocketAddr,
    limit: Duration,
    is_over: &dyn Fn() -> bool,
) -> io::Result<TcpStream> {
    connect_within(socket_for(address)?, address, limit, is_over)
}

/// Connects the socket to this address. The stream that it returns blocks.
///
/// # Errors
/// [`io::ErrorKind::TimedOut`] if nobody has answered within `limit`,
/// [`io::ErrorKind::Interrupted`] if `is_over` has become true, or why the address cannot be
/// reached.
pub fn connect_within(
    socket: Socket,
    address: SocketAddr,
    limit: Duration,
    is_over: &dyn Fn() -> bool,
) -> io::Result<TcpStream> {
    let until = Instant::now() + limit;
    socket.set_nonblocking(true)?;
    match socket.connect(&address.into()) {
        Err(e) if Errno::from_io_error(&e) == Some(Errno::INPROGRESS) => {
            while !is_decided(&socket, until)? {
                if is_over() {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                if Instant::now() >= until {
                    let why = "connection timed out";
                    return Err(io::Error::new(io::ErrorKind::TimedOut, why));
                }
            }
            if let Some(error) = socket.take_error()? {
                return Err(error);
            }
        }
        connected => connected?,
    }
    socket.set_nonblocking(false)?;
    Ok(socket.into())
}

/// Waits for one tick, or less, until it is decided whether the socket is connected.
fn is_decided(socket: &Socket, until: Instant) -> io::Result<bool> {
    let left = until.saturating_duration_since(Instant::now()).min(TICK);
    let wait = left.try_into().unwrap_or_default();
    match poll(&mut [PollFd::new(socket, PollFlags::OUT)], Some(&wait)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpListener};
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    /// An address that answers no further connection, as long as the sockets are there.
    fn silent() -> (SocketAddr, Socket, Vec<Socket>) {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = socket_for(any).unwrap();
        listener.bind(&any.into()).unwrap();
        listener.listen(0).unwrap();
        let address = listener.local_addr().unwrap().as_socket().unwrap();
        let pending = (0..4).map(|_| {
            let socket = socket_for(address).unwrap();
            socket.set_nonblocking(true).unwrap();
            let _ = socket.connect(&address.into()); // it is in progress at best
            socket
        });
        let pending = pending.collect();
        (address, listener, pending)
    }

    #[test]
    fn an_attempt_without_an_answer_ends_when_nobody_wants_it() {
        let (address, _listener, _pending) = silent();
        let asked = AtomicU32::new(0);
        let error = connect_to(address, HOUR, &|| {
            asked.fetch_add(1, Ordering::Relaxed) == 2
        });
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::Interrupted);
        let error = connect_to(address, TICK * 2, &|| false).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn what_answers_is_connected_or_refuses() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let mut stream = connect_to(address, HOUR, &|| false).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        let late = std::thread::spawn(move || {
            std::thread::sleep(TICK);
            peer.write_all(b"x").unwrap();
            peer
        });
        stream.read_exact(&mut [0]).expect("it blocks");
        drop((listener, late.join().unwrap()));
        let error = connect_to(address, HOUR, &|| false).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }
}
