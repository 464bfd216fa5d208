//! Fuzz target of pages of a manifest; its body is [`fabricast_fuzz::page`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fabricast_fuzz::page(bytes);
});
