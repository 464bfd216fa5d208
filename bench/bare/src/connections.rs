//! P3's baseline (P3.8): the same data by reliable connections alone. The sender has an agent, a
//! thread with a connection, for each receiver. An agent keeps 32 messages under way, and the
//! receiver acknowledges each by itself.
//!
//! A message is its length (4 bytes, big-endian) and as many bytes; the length 0 ends the transfer.
//! An ACK is one byte.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Messages of one connection that are under way.
const UNDER_WAY: usize = 32;
/// How long a sender tries to connect.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a sender sends.
pub struct Agents {
    pub path: String,
    pub to: Vec<SocketAddr>,
    /// Bytes of a message.
    pub size: usize,
    /// Sends so many messages, each to all receivers, when all have acknowledged the one before; in
    /// place of the whole file.
    pub rounds: Option<usize>,
}

impl Agents {
    pub fn run(&self) -> io::Result<()> {
        let streams = self.to.iter().map(|to| connect(*to));
        let streams = streams.collect::<io::Result<Vec<TcpStream>>>()?;
        match self.rounds {
            Some(rounds) => self.short(streams, rounds),
            None => self.whole(streams),
        }
    }

    fn whole(&self, streams: Vec<TcpStream>) -> io::Result<()> {
        let began = Instant::now();
        let agents: Vec<_> = thread::scope(|scope| {
            let agents: Vec<_> = streams
                .into_iter()
                .map(|stream| scope.spawn(move || self.agent(stream)))
                .collect();
            let ended = agents
                .into_iter()
                .map(|agent| agent.join().expect("no panic"));
            ended.collect()
        });
        agents.into_iter().collect::<io::Result<()>>()?;
        println!("{{\"seconds\":{:.6}}}", began.elapsed().as_secs_f64());
        Ok(())
    }

    /// Sends the file, and returns when everything is acknowledged.
    fn agent(&self, mut stream: TcpStream) -> io::Result<()> {
        let file = File::open(&self.path)?;
        let len = file.metadata()?.len();
        let mut message = vec![0; 4 + self.size];
        let (mut offset, mut under_way) = (0, 0);
        while offset < len {
            if under_way == UNDER_WAY {
                under_way -= acks(&mut stream)?;
            }
            let count = (self.size as u64).min(len - offset) as usize;
            message[..4].copy_from_slice(&(count as u32).to_be_bytes());
            file.read_exact_at(&mut message[4..4 + count], offset)?;
            stream.write_all(&message[..4 + count])?;
            offset += count as u64;
            under_way += 1;
        }
        while under_way > 0 {
            under_way -= acks(&mut stream)?;
        }
        stream.write_all(&[0; 4])
    }

    fn short(&self, streams: Vec<TcpStream>, rounds: usize) -> io::Result<()> {
        let (agents, turn) = (streams.len(), Barrier::new(streams.len() + 1));
        let (mut times, spans) = (Vec::new(), Mutex::new(Vec::new()));
        thread::scope(|scope| {
            for mut stream in streams {
                let (turn, spans) = (&turn, &spans);
                let mut message = (self.size as u32).to_be_bytes().to_vec();
                message.resize(4 + self.size, 7);
                scope.spawn(move || {
                    for _ in 0..rounds {
                        turn.wait();
                        let began = Instant::now();
                        let sent = stream.write_all(&message);
                        sent.and_then(|()| acks(&mut stream))
                            .expect("the receiver is there");
                        let mut spans = spans.lock().expect("no agent has panicked");
                        spans.push((began, Instant::now()));
                        drop(spans);
                        turn.wait();
                    }
                    stream.write_all(&[0; 4]).expect("the receiver is there");
                });
            }
            for _ in 0..rounds {
                turn.wait();
                turn.wait();
                // From the first agent's begin to the last ACK.
                let spans = std::mem::take(&mut *spans.lock().expect("no agent has panicked"));
                let began = spans.iter().map(|span| span.0).min().expect("an agent");
                let ended = spans.iter().map(|span| span.1).max().expect("an agent");
                times.push(ended - began);
            }
        });
        times.sort();
        let us = times[times.len() / 2].as_secs_f64() * 1e6;
        println!("{{\"receivers\":{agents},\"rounds\":{rounds},\"median_us\":{us:.1}}}");
        Ok(())
    }
}

fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    let began = Instant::now();
    loop {
        match TcpStream::connect(to) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) if began.elapsed() > PATIENCE => return Err(error),
            Err(_) => thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// Waits for an ACK, and returns how many have come.
fn acks(stream: &mut TcpStream) -> io::Result<usize> {
    match stream.read(&mut [0; UNDER_WAY])? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        count => Ok(count),
    }
}

/// Takes what one sender sends, and writes it to `path`.
pub fn receive(path: &str, listen: SocketAddr) -> io::Result<()> {
    let (mut stream, _) = TcpListener::bind(listen)?.accept()?;
    stream.set_nodelay(true)?;
    let mut input = BufReader::with_capacity(1 << 16, stream.try_clone()?);
    let mut file = File::create(path)?;
    let mut bytes = Vec::new();
    loop {
        let mut len = [0; 4];
        input.read_exact(&mut len)?;
        let len = u32::from_be_bytes(len) as usize;
        if len == 0 {
            return Ok(());
        }
        bytes.resize(len, 0);
        input.read_exact(&mut bytes)?;
        file.write_all(&bytes)?;
        stream.write_all(&[1])?;
    }
}
