//! Fuzz target of what an earlier run has left; its body is [`fabricast_fuzz::journal`]. The input
//! takes the place of one of the files, which its first byte chooses.
#![no_main]

use std::path::PathBuf;
use std::sync::OnceLock;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    static LEFT: OnceLock<Vec<(PathBuf, Vec<u8>)>> = OnceLock::new();
    let left = LEFT.get_or_init(|| fabricast_fuzz::left(&fabricast_fuzz::packs()[..3]));
    let Some((&choice, bytes)) = input.split_first() else {
        return;
    };
    let chosen = usize::from(choice) % left.len();
    fabricast_fuzz::journal(left.iter().enumerate().map(|(at, (name, left))| {
        let bytes = if at == chosen { bytes } else { left };
        (&**name, bytes)
    }));
});
