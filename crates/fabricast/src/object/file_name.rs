//! Names of received files: those that the sender chooses, and those of partial files.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::text::harmless;

/// Longest file name in bytes.
const NAME_MAX: usize = 255;
/// How often a partial file's name is drawn before the receiver gives up.
const NAME_TRIES: u32 = 64;

/// The file name to use for what the sender calls `name`, or `None` if the receiver must not use
/// that name. A name must not leave the directory, be hidden, look like an option, or turn the
/// direction of writing on a terminal. Programs run or read hidden files by themselves
/// (`.bash_profile`).
pub fn safe_name(name: &str) -> Option<&str> {
    let bad = name.is_empty()
        || name.len() > NAME_MAX
        || name.starts_with(['.', '-'])
        || name.contains('/')
        || !name.chars().all(harmless);
    (!bad).then_some(name)
}

/// The name of a file at the top of a set whose sender has a directory of its own here, if it can
/// have this name: any characters, but not hidden.
pub fn any_name(name: &str) -> Option<&str> {
    let bad = name.is_empty()
        || name.len() > NAME_MAX
        || name.starts_with('.')
        || name.contains(['/', '\0']);
    (!bad).then_some(name)
}

/// A hash that two names in the directory `parent` share if they are equal but for case: as Unicode
/// has it for names in UTF-8, and as ASCII has it for others.
pub fn folded_hash(parent: u32, name: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    parent.hash(&mut hasher);
    match std::str::from_utf8(name) {
        // First to upper case: more than one lower-case letter may have the same one.
        Ok(name) => {
            let upper = name.chars().flat_map(char::to_uppercase);
            upper
                .flat_map(char::to_lowercase)
                .for_each(|c| c.hash(&mut hasher));
        }
        Err(_) => name.to_ascii_lowercase().hash(&mut hasher),
    }
    hasher.finish()
}

/// The directory of a file.
pub fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    }
}

/// Calls `make` with a partial name of `path` that `draw` draws, and returns that name too. If the
/// name exists, because a killed process has left it behind, another one is drawn.
pub fn with_partial_name<T>(
    path: &Path,
    mut draw: impl FnMut(&Path) -> Result<PathBuf, Error>,
    mut make: impl FnMut(&Path) -> io::Result<T>,
) -> Result<(T, PathBuf), Error> {
    let mut tries = 1;
    loop {
        let partial = draw(path)?;
        match make(&partial) {
            Ok(made) => return Ok((made, partial)),
            Err(e) if e.kind() == ErrorKind::AlreadyExists && tries < NAME_TRIES => tries += 1,
            Err(e) => return Err(Error::io(format!("creating {}", partial.display()), e)),
        }
    }
}

/// Draws a name for the partial file of `path`.
pub fn partial_name(path: &Path) -> Result<PathBuf, Error> {
    let mut bits = [0u8; 3];
    rustix::rand::getrandom(&mut bits, rustix::rand::GetRandomFlags::empty())
        .map_err(|e| Error::io("drawing a random number", e))?;
    let [a, b, c] = bits;
    let suffix = format!(".{a:02x}{b:02x}{c:02x}.partial");
    // File systems take names of at most 255 bytes, so the end of a longer name is cut off.
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let mut end = name.len().min(NAME_MAX - suffix.len());
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    Ok(path.with_file_name(format!("{}{suffix}", &name[..end])))
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use super::*;
    use crate::object::testing::scratch;

    #[test]
    fn a_name_from_the_network_stays_in_its_directory() {
        for good in ["a", "image.iso", "a.", "a-b", "a b", "…", "שלום"] {
            assert_eq!(safe_name(good), Some(good));
        }
        for bad in [
            "",
            ".",
            "..",
            "..a",
            ".bash_profile",
            "-rf",
            "invoice\u{202e}fdp.sh",
            "a\u{2066}b",
            "/etc/passwd",
            "a/b",
            "../x",
            "a\nb",
            "\x1b[2J",
        ] {
            assert_eq!(safe_name(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_partial_name_that_is_taken_is_drawn_again() {
        let dir = scratch();
        let path = dir.join("f");
        let taken = dir.join("f.000001.partial");
        std::fs::write(&taken, "left behind").unwrap();
        let next = dir.join("f.000002.partial");
        let mut drawn = [&taken, &taken, &next].into_iter();
        let draw = |_: &Path| Ok(drawn.next().unwrap().clone());
        let mut open = OpenOptions::new();
        open.write(true).create_new(true);
        let (_, partial) = with_partial_name(&path, draw, |name| open.open(name)).unwrap();
        assert_eq!(partial, next);
        let taken_again = |_: &Path| Ok(taken.clone());
        let error = with_partial_name(&path, taken_again, |name| open.open(name)).unwrap_err();
        assert!(error.to_string().contains("f.000001.partial"), "{error}");
        assert_eq!(std::fs::read(&taken).unwrap(), b"left behind");
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn names_that_are_equal_but_for_case_have_the_same_hash() {
        let is_alike = |one: &[u8], other: &[u8]| folded_hash(0, one) == folded_hash(0, other);
        for (one, other) in [("Ab", "aB"), ("ΣΑΣ", "σας"), ("STRASSE Ä", "straße ä")] {
            assert!(is_alike(one.as_bytes(), other.as_bytes()), "{one}");
        }
        assert!(is_alike(b"\xffX", b"\xffx") && !is_alike(b"\xc4", b"\xe4"));
        assert!(!is_alike(b"ab", b"abc") && folded_hash(0, b"a") != folded_hash(1, b"a"));
    }
}
