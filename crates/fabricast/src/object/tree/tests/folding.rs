//! Names that differ in case alone, where the file system tells them apart. `tests/exfat.rs` has
//! such names where it does not.

use super::*;

#[test]
fn names_that_differ_in_case_alone_stay_two_where_they_are_two() {
    let dir = scratch();
    let others = [Kind::File(3), Kind::HardLink(1), Kind::Copy(1)];
    for (number, other) in others.into_iter().enumerate() {
        for kept in [false, true] {
            let to = dir.join(format!("{number}-{kept}"));
            std::fs::create_dir(&to).unwrap();
            let set = page(&[
                entry(TOP, "d", Kind::Directory, 0o755),
                entry(0, "Ab", Kind::File(3), 0o644),
                entry(0, "aB", other.clone(), 0o644),
            ]);
            for bytes in [b"one", b"two"] {
                let mut tree = tree(&to);
                tree.destination.deletes = true;
                if kept {
                    tree.resume(&blake3::hash(&set), &mut || Ok(())).unwrap();
                }
                let files: &[(u32, &[u8])] = match other {
                    Kind::File(_) => &[(1, bytes), (2, bytes)],
                    _ => &[(1, bytes)],
                };
                store(&mut tree, &set, files).unwrap();
                assert_eq!(
                    (names(&to), names(&to.join("d")).len()),
                    (vec!["d".into()], 2)
                );
                for name in ["Ab", "aB"] {
                    assert_eq!(std::fs::read(to.join("d").join(name)).unwrap(), bytes);
                }
            }
        }
    }
    std::fs::remove_dir_all(dir).unwrap();
}
