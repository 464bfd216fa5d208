//! Fuzz target of a whole node; its body is [`fabricast_fuzz::node`].
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    fabricast_fuzz::node(input);
});
