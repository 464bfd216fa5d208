//! Fuzz target of headers of packs; its body is [`fabricast_fuzz::header`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fabricast_fuzz::header(bytes);
});
