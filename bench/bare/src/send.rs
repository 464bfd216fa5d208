//! The sender: file → GSO batches → group, paced only by the clock.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::unix::fs::FileExt;
use std::thread::sleep;
use std::time::{Duration, Instant};

use quinn_udp::{Transmit, UdpSocketState};
use rustix::event::PollFlags;
use socket2::Socket;

use crate::{END, HEADER, Options, READ_SIZE};

/// Most bytes of one GSO send, below the kernel's limit.
const BATCH_BYTES_MAX: usize = 65_000;
const BATCH_SEGMENTS_MAX: usize = 64;

pub fn run(options: &Options) -> io::Result<()> {
    let file = File::open(&options.path)?;
    let whole = file.metadata()?.len();
    let len = options.len.unwrap_or(whole).min(whole);
    let socket = crate::socket(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0))?;
    socket.set_multicast_if_v4(&options.interface)?;
    socket.set_multicast_loop_v4(false)?;
    let state = UdpSocketState::new((&socket).into())?;

    let payload = options.size - HEADER;
    let segments = (BATCH_BYTES_MAX / options.size)
        .min(state.max_gso_segments())
        .clamp(1, BATCH_SEGMENTS_MAX);
    let mut batch = Vec::with_capacity(segments * options.size);
    let mut piece = vec![0; READ_SIZE.next_multiple_of(payload) + payload];
    let count = len.div_ceil(payload as u64);

    let began = Instant::now();
    let (mut sequence, mut sent) = (0, 0);
    while sequence < count {
        // Read as many whole datagrams at once as fit one read of a disk.
        let offset = sequence * payload as u64;
        let filled = (READ_SIZE / payload * payload)
            .max(payload)
            .min((len - offset) as usize);
        file.read_exact_at(&mut piece[..filled], offset)?;
        for group in piece[..filled].chunks(segments * payload) {
            batch.clear();
            for piece in group.chunks(payload) {
                batch.extend_from_slice(&sequence.to_be_bytes());
                batch.extend_from_slice(piece);
                sequence += 1;
            }
            pace(began, sent, options.rate);
            transmit(&socket, &state, options, &batch)?;
            sent += group.len() as u64;
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    for _ in 0..50 {
        transmit(&socket, &state, options, &END.to_be_bytes())?;
        sleep(Duration::from_millis(2));
    }
    println!("{{\"sent\":{sent},\"seconds\":{seconds:.6}}}");
    Ok(())
}

/// Waits until `sent` bytes are due. Short waits spin, since a sleep is some 50 µs too long.
fn pace(began: Instant, sent: u64, rate: Option<f64>) {
    let Some(rate) = rate else { return };
    let due = Duration::from_secs_f64(sent as f64 / rate);
    let early = due.saturating_sub(began.elapsed());
    if early > Duration::from_micros(100) {
        sleep(early - Duration::from_micros(60));
    }
    while began.elapsed() < due {
        std::thread::yield_now();
    }
}

fn transmit(
    socket: &Socket,
    state: &UdpSocketState,
    options: &Options,
    contents: &[u8],
) -> io::Result<()> {
    let transmit = Transmit {
        destination: options.group.into(),
        ecn: None,
        contents,
        segment_size: Some(options.size),
        src_ip: None,
    };
    loop {
        match state.try_send(socket.into(), &transmit) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                crate::wait(socket, PollFlags::OUT, 100)?;
            }
            done => return done,
        }
    }
}
