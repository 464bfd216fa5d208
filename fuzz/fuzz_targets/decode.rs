//! Fuzz target of the decoder; its body is [`fabricast_fuzz::decode`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fabricast_fuzz::decode(bytes));
