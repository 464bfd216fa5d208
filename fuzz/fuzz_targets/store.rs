//! Fuzz target of what a receiver makes of packs; its body is [`fabricast_fuzz::store`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fabricast_fuzz::store(bytes);
});
