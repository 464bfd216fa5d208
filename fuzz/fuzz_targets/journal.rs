//! Fuzz target of what an earlier run has left; its body is [`fabricast_fuzz::journal`]. The input
//! takes the place of one of the files, which its first byte chooses; its highest bit says whether
//! the set's directory is there.
#![no_main]

use std::sync::OnceLock;

use fabricast_fuzz::Left;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    static LEFT: OnceLock<[Left; 2]> = OnceLock::new();
    let left = LEFT.get_or_init(|| {
        [false, true].map(|is_there| fabricast_fuzz::left(&fabricast_fuzz::packs()[..3], is_there))
    });
    let Some((&choice, bytes)) = input.split_first() else {
        return;
    };
    let is_there = choice >= 0x80;
    let left = &left[usize::from(is_there)];
    let chosen = usize::from(choice & 0x7f) % left.len();
    let files = left.iter().enumerate().map(|(at, (name, left))| {
        let bytes = if at == chosen { bytes } else { left };
        (&**name, bytes)
    });
    fabricast_fuzz::journal(is_there, files);
});
