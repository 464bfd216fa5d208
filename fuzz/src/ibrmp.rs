//! The bodies of the fuzz targets of P3's protocol for files: its messages, and both machines that
//! get hostile ones.

use std::time::Duration;

use fabricast_proto::Time;
use fabricast_proto::ibrmp::{
    Body, Credits, FileId, Frame, Message, Name, Receiver, ReceiverConfig, ReceiverOutput, Sender,
    SenderConfig, SenderOutput, decode,
};

/// Checks that bytes are no frame, or one that makes the same bytes again. Returns whether they are
/// a frame.
pub fn ibrmp_frame(bytes: &[u8]) -> bool {
    let Ok((frame, payload)) = decode(bytes) else {
        return false;
    };
    let mut again = Vec::new();
    frame.encode(&mut again);
    again.extend(payload);
    assert_eq!(again, bytes);
    true
}

/// Most frames of an input.
const FRAMES_MAX: usize = 300;
/// Slots of the sender.
const SLOTS: u16 = 4;
/// Bytes in a DATA message.
const BLOCK: u32 = 64;
/// Length in bytes of each file that is sent.
const LEN: u64 = 1000;
/// Holes of the receiver at most.
const HOLES_MAX: usize = 32;
const CREDITS: Credits = Credits {
    messages: 8,
    batch: 4,
};

/// How far hostile frames have got.
#[derive(Clone, Copy, Default, Debug)]
pub struct Reached {
    /// Bytes that the receiver wrote.
    pub written: u64,
    /// Events of the receiver.
    pub events: u64,
    /// Bytes that the sender answered.
    pub answered: u64,
    /// Frames for which an end closes the channel.
    pub refused: u64,
}

/// A sender of some files, and a receiver of another sender's, each with a hostile peer.
struct Ends {
    now: Time,
    sender: Sender,
    receiver: Receiver,
    reached: Reached,
}

/// Feeds hostile frames to a sender and to a receiver.
///
/// `input` is a sequence of frames, each after a byte that says where it comes from and how much
/// time passes before it, and its length in two bytes. A peer that breaks the rules of its channel
/// is replaced by a new one.
pub fn ibrmp(input: &[u8]) -> Reached {
    let mut ends = Ends::new();
    let mut rest = input;
    for _ in 0..FRAMES_MAX {
        let Some((how, bytes)) = next(&mut rest) else {
            break;
        };
        ends.now = ends.now + Duration::from_millis(u64::from(how >> 2));
        if let Ok((frame, _)) = decode(bytes) {
            ends.take(how & 3, &frame);
        }
        ends.drain();
    }
    ends.reached
}

impl Ends {
    fn new() -> Ends {
        let mut sender = Sender::new(SenderConfig {
            slots: SLOTS,
            block: BLOCK,
            timeout: Duration::from_millis(500),
            credits: CREDITS,
        });
        sender.join();
        Ends {
            now: Time(1),
            sender,
            receiver: receiver(),
            reached: Reached::default(),
        }
    }

    /// Takes in a frame: by multicast, by the channel to the receiver, or by that to the sender.
    fn take(&mut self, how: u8, frame: &Frame) {
        let result = match (how, frame) {
            (0, Frame::Message(message)) => {
                let extent = self.receiver.multicast(message);
                self.write(message, extent.map(|extent| extent.range));
                Ok(())
            }
            (0, Frame::Ack(_)) => Ok(()),
            (1, Frame::Message(message)) => self.receiver.channel(message).map(|extent| {
                self.write(message, extent.map(|extent| extent.range));
            }),
            (1, Frame::Ack(messages)) => self.receiver.acknowledged(*messages),
            (_, Frame::Message(message)) => {
                let result = self.sender.channel(RECEIVER, message);
                result.map(|bytes| self.reached.answered += bytes)
            }
            (_, Frame::Ack(messages)) => self.sender.acknowledged(RECEIVER, *messages),
        };
        if result.is_err() {
            self.reached.refused += 1;
            let reached = self.reached;
            *self = Ends {
                now: self.now,
                reached,
                ..Ends::new()
            };
        }
    }

    fn write(&mut self, message: &Message, range: Option<std::ops::Range<u64>>) {
        let Some(range) = range else {
            return;
        };
        let Body::Data { offset, len } = message.body else {
            panic!("bytes of {message:?}");
        };
        assert!(offset <= range.start && range.start < range.end);
        assert!(range.end <= offset + u64::from(len));
        self.reached.written += range.end - range.start;
    }

    /// Both ends do what they want, and the sender multicasts a message.
    fn drain(&mut self) {
        while self.sender.open_files() < usize::from(SLOTS) {
            let name = Name::new(b"file").expect("a name");
            self.sender.open(name, LEN).expect("a slot");
        }
        self.sender.multicast(self.now);
        for step in 0.. {
            assert!(step < 10_000, "the sender does not come to an end");
            match self.sender.poll(self.now) {
                SenderOutput::Wait(_) => break,
                // A file that is closed makes room for the next one.
                _ => self.sender.invariants(),
            }
        }
        for step in 0.. {
            assert!(step < 10_000, "the receiver does not come to an end");
            match self.receiver.poll() {
                ReceiverOutput::Wait => break,
                ReceiverOutput::Event(_) => self.reached.events += 1,
                _ => {}
            }
            self.receiver.invariants();
        }
        let open: Vec<_> = self.receiver.under_way().collect();
        for (fd, file) in open {
            self.receiver.repeat(fd, file);
            self.receiver.invariants();
        }
    }
}

/// The sender's first receiver.
const RECEIVER: fabricast_proto::ibrmp::ReceiverId = fabricast_proto::ibrmp::ReceiverId(0);

fn receiver() -> Receiver {
    Receiver::new(ReceiverConfig {
        slots: SLOTS,
        first: FileId(1),
        credits: CREDITS,
        holes_max: HOLES_MAX,
    })
}

/// The next frame of an input, and where it comes from.
fn next<'a>(rest: &mut &'a [u8]) -> Option<(u8, &'a [u8])> {
    let (&[how, a, b], bytes) = rest.split_first_chunk()?;
    let len = u16::from_be_bytes([a, b]);
    let (frame, bytes) = bytes.split_at_checked(len.into())?;
    *rest = bytes;
    Some((how, frame))
}

#[cfg(test)]
mod tests {
    use fabricast_proto::ibrmp::Fd;
    use fabricast_proto::rng::Rng;

    use super::*;
    use crate::tests::{Tried, rounds, spoilt};

    /// Frames about the first files of a sender.
    fn frames() -> Vec<Vec<u8>> {
        let mut frames = vec![Frame::Ack(1), Frame::Ack(4)];
        for (fd, file) in [(0, 1), (0, 5), (3, 4)] {
            let name = Name::new(b"file").expect("a name");
            let (offset, len) = (64 * file, BLOCK);
            let bodies = [
                Body::Bof { len: LEN, name },
                Body::Data { offset: 0, len },
                Body::Data { offset, len },
                Body::Eof { len: LEN },
                Body::FileTimeout,
                Body::BofRequest,
                Body::DataRequest { offset, len: 100 },
                Body::TransferDone,
            ];
            frames.extend(bodies.map(|body| {
                let (fd, file) = (Fd(fd), FileId(file));
                Frame::Message(Message { fd, file, body })
            }));
        }
        let bytes = |frame: &Frame| {
            let mut bytes = Vec::new();
            frame.encode(&mut bytes);
            if let Frame::Message(message) = frame
                && let Body::Data { len, .. } = message.body
            {
                bytes.resize(bytes.len() + len as usize, 7);
            }
            bytes
        };
        frames.iter().map(bytes).collect()
    }

    #[test]
    fn frames_that_lie_are_frames_or_refused() {
        let seeds = frames();
        assert!(seeds.iter().all(|bytes| ibrmp_frame(bytes)));
        for seed in rounds() {
            let _tried = Tried(seed);
            ibrmp_frame(&spoilt(&mut Rng::new(seed), &seeds));
        }
    }

    #[test]
    fn both_machines_stand_hostile_frames() {
        let seeds = frames();
        let mut all = Reached::default();
        for seed in rounds() {
            let _tried = Tried(seed);
            let (mut rng, mut input) = (Rng::new(seed), Vec::new());
            for _ in 0..rng.below(60) {
                let bytes = match rng.below(3) {
                    0 => spoilt(&mut rng, &seeds),
                    _ => seeds[rng.below(seeds.len() as u64) as usize].clone(),
                };
                input.push(rng.bits() as u8);
                input.extend((bytes.len() as u16).to_be_bytes());
                input.extend(bytes);
            }
            let reached = ibrmp(&input);
            all.written += reached.written;
            all.events += reached.events;
            all.answered += reached.answered;
            all.refused += reached.refused;
        }
        // If every frame were refused, the test would have tried nothing.
        if std::env::var("FUZZ_SEED").is_err() {
            let least = all
                .written
                .min(all.events)
                .min(all.answered)
                .min(all.refused);
            assert!(least > 1000, "{all:?}");
        }
    }
}
