//! Checks that `fabricast.h` matches the library. After a change, write it again with
//! `FABRICAST_WRITE_HEADER=1 cargo test -p fabricast-capi --test header`.

use std::path::Path;

#[test]
fn the_committed_header_is_the_generated_one() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let bindings = cbindgen::Builder::new()
        .with_crate(root)
        .with_config(config)
        .generate()
        .unwrap();
    let mut generated = Vec::new();
    bindings.write(&mut generated);
    let generated = String::from_utf8(generated).unwrap();
    let path = root.join("fabricast.h");
    if std::env::var_os("FABRICAST_WRITE_HEADER").is_some() {
        std::fs::write(&path, &generated).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == generated,
        "fabricast.h is stale: {}",
        path.display()
    );
}
