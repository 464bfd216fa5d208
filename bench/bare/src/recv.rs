//! The receiver: group → GRO → 1 MiB buffers → BLAKE3 → the right place in the file.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::net::SocketAddrV4;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use quinn_udp::{BATCH_SIZE, RecvMeta, UdpSocketState};
use rustix::event::PollFlags;

use crate::{END, HEADER, Options, READ_SIZE};

/// Silence after which the transfer ends if every end mark was lost, in milliseconds.
const SILENCE_MS_MAX: u64 = 1000;
const START_MS_MAX: u64 = 30_000;

pub fn run(options: &Options) -> io::Result<()> {
    let socket = crate::socket(SocketAddrV4::new(*options.group.ip(), options.group.port()))?;
    socket.join_multicast_v4(options.group.ip(), &options.interface)?;
    let state = UdpSocketState::new((&socket).into())?;
    let mut place = Place::new(File::create(&options.path)?, options.len.unwrap_or(0));
    let payload = (options.size - HEADER) as u64;

    let mut memory = vec![0; BATCH_SIZE * (1 << 16)];
    let mut meta = [RecvMeta::default(); BATCH_SIZE];
    let (mut first, mut last): (Option<Instant>, _) = (None, Instant::now());
    'transfer: loop {
        let mut buffers: Vec<_> = memory.chunks_mut(1 << 16).map(IoSliceMut::new).collect();
        let count = match state.recv((&socket).into(), &mut buffers, &mut meta) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let patience_ms = if first.is_some() {
                    SILENCE_MS_MAX
                } else {
                    START_MS_MAX
                };
                if crate::wait(&socket, PollFlags::IN, patience_ms)? {
                    continue;
                }
                break;
            }
            Err(error) => return Err(error),
        };
        for (meta, buffer) in meta[..count].iter().zip(memory.chunks(1 << 16)) {
            if meta.len == 0 {
                continue;
            }
            for datagram in buffer[..meta.len].chunks(meta.stride) {
                let Some((head, data)) = datagram.split_first_chunk::<HEADER>() else {
                    continue;
                };
                let sequence = u64::from_be_bytes(*head);
                if sequence == END {
                    break 'transfer;
                }
                first.get_or_insert_with(Instant::now);
                place.put(sequence * payload, data)?;
            }
        }
        last = Instant::now();
    }
    place.finish()?;
    let seconds = first.map_or(0.0, |first| last.duration_since(first).as_secs_f64());
    println!(
        "{{\"received\":{},\"share\":{:.6},\"seconds\":{seconds:.6},\"hash\":\"{}\"}}",
        place.received,
        place.received as f64 / place.len.max(1) as f64,
        place.hashes.finalize().to_hex()
    );
    Ok(())
}

/// A buffer that moves over the file. Data that come too late for it are written directly.
struct Place {
    file: File,
    len: u64,
    base: u64,
    buffer: Vec<u8>,
    hashes: blake3::Hasher,
    received: u64,
}

impl Place {
    fn new(file: File, len: u64) -> Self {
        Place {
            file,
            len,
            base: 0,
            buffer: vec![0; READ_SIZE],
            hashes: blake3::Hasher::new(),
            received: 0,
        }
    }

    fn put(&mut self, mut offset: u64, mut data: &[u8]) -> io::Result<()> {
        if offset + data.len() as u64 > self.len {
            return Ok(());
        }
        self.received += data.len() as u64;
        while !data.is_empty() {
            if offset < self.base {
                return self.file.write_all_at(data, offset);
            }
            while offset >= self.base + READ_SIZE as u64 {
                self.flush()?;
            }
            let at = (offset - self.base) as usize;
            let fits = data.len().min(READ_SIZE - at);
            self.buffer[at..at + fits].copy_from_slice(&data[..fits]);
            offset += fits as u64;
            data = &data[fits..];
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        let filled = (self.len - self.base).min(READ_SIZE as u64) as usize;
        self.hashes
            .update(blake3::hash(&self.buffer[..filled]).as_bytes());
        self.file.write_all_at(&self.buffer[..filled], self.base)?;
        self.base += READ_SIZE as u64;
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        while self.base < self.len {
            self.flush()?;
        }
        Ok(())
    }
}
