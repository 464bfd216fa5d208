//! Fuzz target of the messages of P3's protocol; its body is [`fabricast_fuzz::ibrmp_frame`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fabricast_fuzz::ibrmp_frame(bytes);
});
