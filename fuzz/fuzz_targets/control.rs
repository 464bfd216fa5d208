//! Fuzz target of control connections; its body is [`fabricast_fuzz::control`].
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    fabricast_fuzz::control(input);
});
