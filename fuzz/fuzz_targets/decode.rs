//! Whatever comes from the network, `decode` refuses it or hands out frames that can be read.
#![no_main]

use fabricast_proto::wire::{Frame, decode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(datagram) = decode(bytes) else { return };
    for frame in datagram.frames() {
        if let Frame::Feedback(f) = frame {
            for (first, len) in f.missing {
                assert!(len > 0 && !first.before(f.cum) && !f.high.before(first + len));
            }
        }
    }
});
