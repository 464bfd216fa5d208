//! Fuzz target of both machines of P3's protocol; its body is [`fabricast_fuzz::ibrmp`].
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    fabricast_fuzz::ibrmp(input);
});
