//! Datagrams in words, for the trace.

use std::fmt::Write;

use fabricast::proto::wire::{Frame, Origin, decode, flag};

/// Describes a datagram on one line.
pub(crate) fn datagram(bytes: &[u8]) -> String {
    let mut out = String::new();
    match decode(bytes) {
        Err(e) => {
            let _ = write!(out, "{} bytes: {e}", bytes.len());
        }
        Ok(d) => {
            let _ = write!(out, "f{}", d.header.burst);
            for frame in d.frames() {
                out.push(' ');
                put(&mut out, &frame);
            }
        }
    }
    out
}

/// Appends a frame. Results are ignored, since writing to a string cannot fail.
fn put(out: &mut String, frame: &Frame<'_>) {
    let _ = match frame {
        Frame::Data(d) => {
            let ask = if d.flags & flag::ACK_REQUEST != 0 {
                "?"
            } else {
                ""
            };
            let again = if d.flags & flag::REPAIR != 0 {
                " again"
            } else {
                ""
            };
            let (seq, len) = (d.seq.0, d.payload.len());
            match d.origin {
                Origin::Source(op) => write!(out, "data{ask}{again} {}/{seq} ({len})", op.0),
                Origin::Relayed(root) => write!(out, "data{ask} of n{} {seq} ({len})", root.0),
            }
        }
        Frame::Xor(c) => {
            let ask = if c.flags & flag::ACK_REQUEST != 0 {
                "?"
            } else {
                ""
            };
            let sources: Vec<String> = c.sources.iter().map(|s| s.0.to_string()).collect();
            write!(
                out,
                "coded{ask} {} ({})",
                sources.join("+"),
                c.payload.len()
            )
        }
        Frame::Parity(p) => {
            let ask = if p.flags & flag::ACK_REQUEST != 0 {
                "?"
            } else {
                ""
            };
            let (first, packets) = (p.first.0, p.packets);
            write!(out, "parity{ask} {} of {first}+{packets}", p.index)
        }
        Frame::Feedback(f) => {
            let (cum, limit, high) = (f.cum.0, f.limit.0, f.high.0);
            let _ = write!(
                out,
                "feedback of n{}: placed <{cum}, below <{}, may <{limit}, known <{high}, {} \
                 received",
                f.sender.0, f.cum_subtree.0, f.received
            );
            let mut missing = f.missing;
            let shown: Vec<String> = (&mut missing)
                .take(8)
                .map(|(first, len)| format!("{}+{len}", first.0))
                .collect();
            let more = missing.count();
            if !shown.is_empty() {
                let _ = write!(out, ", lacks {}", shown.join(" "));
            }
            if more > 0 {
                write!(out, " and {more} more")
            } else {
                Ok(())
            }
        }
        Frame::Sync(s) => write!(out, "sync <{}", s.next.0),
        Frame::Probe(p) => write!(out, "probe {}", p.nonce),
        Frame::ProbeAck(p) => write!(out, "probe-ack {}", p.nonce),
        Frame::Query(q) => write!(out, "query {}", q.seq.0),
        Frame::Reply(r) => {
            let _ = write!(out, "reply");
            match r.op {
                Some((op, len)) => write!(out, " {} ({len})", op.0),
                None => Ok(()),
            }
        }
        Frame::Word(w) => {
            let ask = if w.flags & flag::ACK_REQUEST != 0 {
                "?"
            } else {
                ""
            };
            let ended = if w.flags & flag::ENDED != 0 {
                " ended"
            } else {
                ""
            };
            let _ = write!(out, "word{ask} {}.{}{ended}", w.at.count.0, w.at.round);
            match w.heard {
                Some(h) => write!(out, ", heard {}.{}", h.count.0, h.round),
                None => Ok(()),
            }
        }
    };
}
