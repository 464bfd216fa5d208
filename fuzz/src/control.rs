//! The body of the fuzz target of control connections: what a peer that lies says over TCP.

use std::fmt::Debug;

use fabricast::bootstrap::frame::{self, HEAD, Kind, Longest, TO_RECEIVER, TO_SENDER};
use fabricast::bootstrap::message::{Greeting, ToReceiver, ToSender, harmless};
use fabricast::feed::{ToFeed, ToFollower};
use fabricast_proto::ibrmp;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The end of a connection that reads.
#[derive(Clone, Copy, PartialEq, Debug)]
enum End {
    Sender,
    Receiver,
    Feed,
    Follower,
}

const ENDS: [End; 4] = [End::Sender, End::Receiver, End::Feed, End::Follower];

/// Reads what has come over a control connection until something has to be refused. The first byte
/// of `input` says by its two lowest bits which end reads it: 0, a sender; 1, a receiver; 2, a
/// feed; 3, a follower.
///
/// Checks that no frame is longer than that end takes, that each message means the same when it is
/// written and read again, that texts for people are harmless, and that announced packs are sound.
/// Returns the number of messages and of frames of reliable channels.
pub fn control(input: &[u8]) -> usize {
    let Some((&end, mut rest)) = input.split_first() else {
        return 0;
    };
    let end = ENDS[usize::from(end & 3)];
    let longest = match end {
        End::Receiver | End::Follower => TO_RECEIVER,
        End::Sender | End::Feed => TO_SENDER,
    };
    let mut taken = 0;
    while let Some((kind, bytes)) = next(&mut rest, longest) {
        let is_taken = match kind {
            Kind::Bulk => continue,
            Kind::Ibrmp => ibrmp::decode(bytes).is_ok(),
            Kind::Message => match end {
                End::Sender => to_sender(bytes),
                End::Receiver => to_receiver(bytes),
                End::Feed => to_feed(bytes),
                End::Follower => to_follower(bytes),
            },
        };
        if !is_taken {
            break; // either end closes the connection
        }
        taken += 1;
    }
    taken
}

/// The next frame, if all of it is here and the reader takes it.
fn next<'a>(rest: &mut &'a [u8], longest: Longest) -> Option<(Kind, &'a [u8])> {
    let (head, behind) = rest.split_first_chunk::<HEAD>()?;
    let (kind, len) = frame::head(*head, longest)?;
    let most = match kind {
        Kind::Message => longest.message,
        Kind::Bulk => longest.bulk,
        Kind::Ibrmp => longest.ibrmp,
    };
    assert!(len <= most);
    let (bytes, behind) = behind.split_at_checked(len)?;
    *rest = behind;
    Some((kind, bytes))
}

/// A message that means the same when it is written and read again.
fn read<M: DeserializeOwned + Serialize + PartialEq + Debug>(bytes: &[u8]) -> Option<M> {
    let message: M = frame::message(bytes)?;
    let mut again = Vec::new();
    frame::put_message(&mut again, &message);
    assert_eq!(frame::message(&again[HEAD..]).as_ref(), Some(&message));
    Some(message)
}

fn to_receiver(bytes: &[u8]) -> bool {
    let Some(message) = read::<ToReceiver>(bytes) else {
        return false;
    };
    match message {
        ToReceiver::Refused { reason }
        | ToReceiver::Removed { reason, .. }
        | ToReceiver::Aborted { reason, .. } => {
            assert!(reason.chars().all(harmless));
        }
        ToReceiver::Pack(announced) => {
            assert!(announced.record().is_none_or(|record| record.is_sound()));
        }
        _ => {}
    }
    true
}

fn to_sender(bytes: &[u8]) -> bool {
    // Every version can read who says hello.
    if let Some(Greeting::Hello { name, .. }) = frame::message(bytes) {
        assert!(name.chars().all(harmless));
    }
    let Some(message) = read::<ToSender>(bytes) else {
        return false;
    };
    match message {
        ToSender::Hello(hello) => assert!(hello.name.chars().all(harmless)),
        ToSender::Unstored { reason, .. } | ToSender::Failed { reason, .. } => {
            assert!(reason.chars().all(harmless));
        }
        _ => {}
    }
    true
}

fn to_feed(bytes: &[u8]) -> bool {
    let Some(message) = read::<ToFeed>(bytes) else {
        return false;
    };
    if let ToFeed::Follow { name, .. } = message {
        assert!(name.chars().all(harmless));
    }
    true
}

fn to_follower(bytes: &[u8]) -> bool {
    let Some(message) = read::<ToFollower>(bytes) else {
        return false;
    };
    if let ToFollower::Refused { reason } = message {
        assert!(reason.chars().all(harmless));
    }
    true
}

#[cfg(test)]
mod tests {
    use fabricast_proto::rng::Rng;

    use super::*;
    use crate::tests::{Tried, rounds, spoilt};

    /// One message of each kind, as it is written, and frames of a reliable channel.
    fn said(to: End) -> Vec<Vec<u8>> {
        let hash = "5a".repeat(32);
        let counted = r#""received":1,"duplicates":2,"mended":3,"mended_bytes":4,"dropped":5"#;
        let messages: Vec<String> = match to {
            End::Receiver => vec![
                r#"{"say":"authenticate","session":7,"nonce":"HASH"}"#.replace("HASH", &hash[..32]),
                format!(
                    r#"{{"say":"welcome","version":10,"session":7,"node":3,"name":"a b","len":9,
                        "tops":1,"entries":2,"manifest":"{hash}","block":1048576}}"#
                ),
                r#"{"say":"refused","reason":"no \u001b[2J"}"#.into(),
                r#"{"say":"start","group":{"ip":"239.1.2.3:7"},"root":{"ip":"10.0.0.1:9"},
                    "chunk":1400,"window":64,"members":[0,1,2],"scheme":"auto","addresses":[],
                    "compares":5000}"#
                    .into(),
                r#"{"say":"join","slot":1,"epoch":2,"first":3,"receivers":4,"packs":5}"#.into(),
                format!(
                    r#"{{"say":"peers","peers":[{{"address":{{"ip":"10.0.0.2:4000"}},
                        "ticket":"{hash}"}}]}}"#
                ),
                r#"{"say":"admitted"}"#.into(),
                r#"{"say":"demoted"}"#.into(),
                format!(r#"{{"say":"pack","len":900,"header":100,"hash":"{hash}","again":4}}"#),
                format!(r#"{{"say":"compare","len":900,"header":100,"hash":"{hash}"}}"#),
                format!(r#"{{"say":"pack","len":900,"header":100,"hash":"{hash}","kept":true}}"#),
                format!(r#"{{"say":"end","packs":5,"key":"{hash}"}}"#),
                r#"{"say":"channel","open":[1],"next":2,"slots":4,"messages":32,"batch":8}"#.into(),
                format!(
                    r#"{{"say":"digest","file":1,"hash":"{hash}","name":"f","mode":420,"mtime":1,
                        "mtime_ns":2,"owner":[1000,100]}}"#
                ),
                r#"{"say":"last","file":3,"failed":[{"file":1,"name":"x"}]}"#.into(),
                r#"{"say":"removed","code":9,"reason":"slow"}"#.into(),
                r#"{"say":"gone","node":2}"#.into(),
                r#"{"say":"ask","node":2}"#.into(),
                r#"{"say":"aborted","code":5,"reason":"disk"}"#.into(),
                r#"{"say":"bye"}"#.into(),
            ],
            End::Feed => vec![
                r#"{"say":"follow","version":10,"name":"h:/d"}"#.into(),
                r#"{"say":"wants","catalogue":3,"answers":2,"receiving":[7],"places":1,
                    "runs":[[0,3],[5,9]],"more":true}"#
                    .into(),
            ],
            End::Follower => vec![
                r#"{"say":"feed","version":10,"name":"a b"}"#.into(),
                r#"{"say":"refused","reason":"no \u001b[2J"}"#.into(),
                format!(
                    r#"{{"say":"catalogue","number":3,"entries":[{{"name":"a","len":9,
                        "digest":"{hash}"}}],"more":true}}"#
                ),
                r#"{"say":"publication","transfer":7,"port":4000,"runs":[[0,3]]}"#.into(),
            ],
            End::Sender => vec![
                r#"{"say":"hello","version":10,"name":"h:/d","address":{"ip":"0.0.0.0:1"},
                    "datagram":1472,"window_bytes":4096}"#
                    .into(),
                format!(r#"{{"say":"response","mac":"{hash}"}}"#),
                r#"{"say":"preparing"}"#.into(),
                r#"{"say":"prepared","may_have":true}"#.into(),
                r#"{"say":"looked","candidates":[[0,3],[5,9]],"more":true}"#.into(),
                r#"{"say":"compared","number":4}"#.into(),
                r#"{"say":"keeps","packs":[1,18446744073709551615]}"#.into(),
                r#"{"say":"ready"}"#.into(),
                format!(r#"{{"say":"serves","port":4000,"ticket":"{hash}"}}"#),
                format!(r#"{{"say":"ticket","ticket":"{hash}"}}"#),
                r#"{"say":"need","pack":1,"block":0,"pieces":[1,2,9]}"#.into(),
                r#"{"say":"unanswered","node":4}"#.into(),
                r#"{"say":"has","runs":[[0,3],[5,9]],"more":true}"#.into(),
                r#"{"say":"has","runs":[],"told":2}"#.into(),
                r#"{"say":"proven","packs":4}"#.into(),
                r#"{"say":"working","done":1000}"#.into(),
                format!(r#"{{"say":"verified",{counted},"proof":"{hash}"}}"#),
                format!(r#"{{"say":"received",{counted}}}"#),
                format!(r#"{{"say":"stored","file":1,"proof":"{hash}"}}"#),
                r#"{"say":"unstored","file":1,"code":6,"reason":"full"}"#.into(),
                format!(r#"{{"say":"finished",{counted}}}"#),
                r#"{"say":"failed","code":6,"reason":"full"}"#.into(),
            ],
        };
        let mut all: Vec<Vec<u8>> = messages
            .iter()
            .map(|json| {
                let len = (json.len() as u32).to_be_bytes();
                [&[b'M', len[1], len[2], len[3]], json.as_bytes()].concat()
            })
            .collect();
        let mut ack = Vec::new();
        ibrmp::Frame::Ack(3).encode(&mut ack);
        all.push([&[b'I', 0, 0, ack.len() as u8], &ack[..]].concat());
        if to == End::Receiver {
            all.push([&[b'B', 0, 0, 4], &b"bulk"[..]].concat());
        }
        all
    }

    #[test]
    fn every_message_is_read() {
        for (number, end) in (0..).zip(ENDS) {
            for frame in said(end) {
                let input = [&[number], &frame[..]].concat();
                let taken = usize::from(frame[0] != b'B');
                assert_eq!(
                    control(&input),
                    taken,
                    "{}",
                    String::from_utf8_lossy(&frame)
                );
            }
        }
    }

    #[test]
    fn bent_messages_are_read_or_refused() {
        let said = ENDS.map(said);
        let mut taken = 0;
        for seed in rounds() {
            let _tried = Tried(seed);
            let mut rng = Rng::new(seed);
            let end = rng.below(ENDS.len() as u64);
            let mut input = vec![end as u8];
            for _ in 0..1 + rng.below(6) {
                let frames = &said[end as usize];
                match rng.below(2) {
                    0 => input.extend(&frames[rng.below(frames.len() as u64) as usize]),
                    _ => input.extend(spoilt(&mut rng, frames)),
                }
            }
            taken += control(&input) as u64;
        }
        assert!(
            std::env::var("FUZZ_SEED").is_ok() || taken > rounds().len() as u64 / 2,
            "{taken}"
        );
    }
}
