//! The yardstick for unshaped links: how fast this machine can move data without any protocol.
//!
//! `bare send` reads a file and sends it to a multicast group in GSO batches at a given rate. Each
//! datagram has a sequence number; there is no feedback and no repair. `bare recv` receives the
//! file with GRO, collects it in 1 MiB buffers, hashes each buffer with BLAKE3 and writes it to its
//! place, as a real receiver must. It reports the share of bytes that arrived, the time and the
//! hash.
//!
//! `bare agents` and `bare acks` are P3's baseline: reliable connections alone ([`connections`]).
#![forbid(unsafe_code)]

mod connections;
mod recv;
mod send;

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

/// Length of a datagram's header, its sequence number, in bytes. The file's bytes from
/// `sequence * (size - HEADER)` follow.
const HEADER: usize = 8;
/// End mark, sent many times at the end in place of a sequence number.
const END: u64 = u64::MAX;
const READ_SIZE: usize = 1 << 20;
const SOCKET_BUFFER: usize = 8 << 20;

const USAGE: &str = "\
usage: bare send FILE --group 239.x.x.x:PORT --interface ADDRESS --size BYTES \
[--rate BYTES_PER_SECOND] [--len BYTES]
       bare recv DEST --group 239.x.x.x:PORT --interface ADDRESS --size BYTES --len BYTES
       bare agents FILE --to ADDRESS:PORT,... --size BYTES [--rounds N]
       bare acks DEST --listen ADDRESS:PORT
  --interface  IPv4 address of the interface to use
  --size       UDP payload of a datagram, its 8-byte sequence number included; of `agents`:
               bytes of a message
  --rate       payload bytes per second; without it, as fast as it goes
  --len        how much of the file; the sender's default is all of it
  --rounds     send N messages, one after the other, in place of the file";

struct Options {
    path: String,
    group: SocketAddrV4,
    interface: Ipv4Addr,
    size: usize,
    rate: Option<f64>,
    len: Option<u64>,
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let verb = args.first().map_or("", String::as_str);
    let done = match verb {
        "agents" => agents(&args).map(|agents| agents.run()),
        "acks" => acks(&args),
        _ => parse(&args).map(|(verb, options)| match verb {
            "send" => send::run(&options),
            _ => recv::run(&options),
        }),
    };
    match done {
        Some(Ok(())) => {}
        Some(Err(error)) => {
            eprintln!("bare {verb}: {error}");
            std::process::exit(1);
        }
        None => {
            eprintln!("{USAGE}");
            std::process::exit(2);
        }
    }
}

/// The argument that follows `name`.
fn value<'a>(args: &'a [String], name: &str) -> Option<&'a String> {
    let at = args.iter().position(|arg| arg == name)?;
    args.get(at + 1)
}

fn agents(args: &[String]) -> Option<connections::Agents> {
    let to = value(args, "--to")?.split(',').map(|to| to.parse().ok());
    Some(connections::Agents {
        path: args.get(1)?.clone(),
        to: to.collect::<Option<_>>()?,
        size: value(args, "--size")?
            .parse()
            .ok()
            .filter(|size| *size > 0)?,
        rounds: match value(args, "--rounds") {
            Some(text) => Some(text.parse().ok().filter(|rounds| *rounds > 0)?),
            None => None,
        },
    })
}

fn acks(args: &[String]) -> Option<io::Result<()>> {
    let listen = value(args, "--listen")?.parse().ok()?;
    Some(connections::receive(args.get(1)?, listen))
}

fn parse(args: &[String]) -> Option<(&str, Options)> {
    let (verb, path) = (args.first()?.as_str(), args.get(1)?.clone());
    let value = |name| value(args, name);
    let options = Options {
        path,
        group: value("--group")?.parse().ok()?,
        interface: value("--interface")?.parse().ok()?,
        size: value("--size")?
            .parse()
            .ok()
            .filter(|s| (HEADER + 1..=65000).contains(s))?,
        rate: match value("--rate") {
            Some(text) => Some(text.parse().ok()?),
            None => None,
        },
        len: match value("--len") {
            Some(text) => Some(text.parse().ok()?),
            None if verb == "send" => None,
            None => return None,
        },
    };
    matches!(verb, "send" | "recv").then_some((verb, options))
}

/// A socket with large buffers: beyond the system's limit where permitted, otherwise up to it.
fn socket(bind: SocketAddrV4) -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_reuse_address(true)?;
    if rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, SOCKET_BUFFER).is_err() {
        socket.set_recv_buffer_size(SOCKET_BUFFER)?;
    }
    socket.set_send_buffer_size(SOCKET_BUFFER)?;
    socket.bind(&SockAddr::from(bind))?;
    Ok(socket)
}

/// Waits until the socket is ready or the time is over. Returns whether it is ready.
fn wait(socket: &Socket, events: rustix::event::PollFlags, timeout_ms: u64) -> io::Result<bool> {
    let timeout = rustix::event::Timespec {
        tv_sec: (timeout_ms / 1000) as i64,
        tv_nsec: (timeout_ms % 1000 * 1_000_000) as i64,
    };
    let mut fds = [rustix::event::PollFd::new(socket, events)];
    Ok(rustix::event::poll(&mut fds, Some(&timeout))? > 0)
}
