//! Text that ends up on a terminal: names of files and of hosts, and whatever a peer has said.

use std::borrow::Cow;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// Ranges of characters that show as nothing, so that two names can look the same. They are all
/// that have Unicode's property Default_Ignorable_Code_Point (DerivedCoreProperties, Unicode 16),
/// in ascending order. Characters that turn the direction of writing are among them.
const INVISIBLE: [(char, char); 17] = [
    ('\u{ad}', '\u{ad}'),
    ('\u{34f}', '\u{34f}'),
    ('\u{61c}', '\u{61c}'),
    ('\u{115f}', '\u{1160}'),
    ('\u{17b4}', '\u{17b5}'),
    ('\u{180b}', '\u{180f}'),
    ('\u{200b}', '\u{200f}'),
    ('\u{202a}', '\u{202e}'),
    ('\u{2060}', '\u{206f}'),
    ('\u{3164}', '\u{3164}'),
    ('\u{fe00}', '\u{fe0f}'),
    ('\u{feff}', '\u{feff}'),
    ('\u{ffa0}', '\u{ffa0}'),
    ('\u{fff0}', '\u{fffb}'), // and three that annotate (Cf)
    ('\u{1bca0}', '\u{1bca3}'),
    ('\u{1d173}', '\u{1d17a}'),
    ('\u{e0000}', '\u{e0fff}'),
];

/// Whether a character may reach a terminal. Control characters may not (escape sequences begin
/// with one), nor may characters that turn the direction of writing, break lines or show as
/// nothing.
pub fn harmless(c: char) -> bool {
    if c.is_ascii() {
        return !c.is_control();
    }
    let breaks = matches!(c, '\u{2028}' | '\u{2029}');
    let invisible = INVISIBLE.iter().any(|(a, b)| (*a..=*b).contains(&c));
    !c.is_control() && !breaks && !invisible
}

/// `text` with escapes (`\n`, `\u{202e}`) in place of the characters that are not [`harmless`].
pub fn escaped(text: &str) -> Cow<'_, str> {
    if text.chars().all(harmless) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match harmless(c) {
            true => out.push(c),
            false => out.extend(c.escape_default()),
        }
    }
    out.into()
}

/// Some files for people, by the name of the first: [`escaped`], with the number of the others.
pub fn first_of(name: &str, count: usize) -> String {
    match count {
        0 | 1 => escaped(name).into_owned(),
        count => format!("{} and {} more", escaped(name), count - 1),
    }
}

/// A path for people: [`escaped`], with U+FFFD for bytes that are not UTF-8.
pub fn shown(path: &Path) -> String {
    escaped(&path.to_string_lossy()).into_owned()
}

/// A path for programs, as JSON lines contain it: with U+FFFD for bytes that are not UTF-8.
pub(crate) fn told<S: serde::Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&path.to_string_lossy())
}

/// The path of a file of a set for programs, as JSON lines contain it.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct ToldPath {
    /// The path, with U+FFFD for bytes that are not UTF-8.
    pub path: String,
    /// The bytes of the path in hexadecimal, if it is not UTF-8. Otherwise two files could not be
    /// told apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_hex: Option<String>,
}

impl From<&Path> for ToldPath {
    fn from(path: &Path) -> ToldPath {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect();
        ToldPath {
            path: path.to_string_lossy().into_owned(),
            path_hex: match path.to_str() {
                Some(_) => None,
                None => Some(hex(path.as_os_str().as_bytes())),
            },
        }
    }
}

/// A number of bytes for people, with a binary unit.
pub fn bytes(n: u64) -> String {
    let units = [
        (1u64 << 40, "TiB"),
        (1 << 30, "GiB"),
        (1 << 20, "MiB"),
        (1 << 10, "KiB"),
    ];
    match units.iter().find(|(scale, _)| n >= *scale) {
        Some((scale, unit)) => format!("{:.1} {unit}", n as f64 / *scale as f64),
        None => format!("{n} B"),
    }
}

/// A duration for people: `350 ms`, `12 s`, `3 min`.
pub fn spoken(d: Duration) -> String {
    if d < Duration::from_secs(1) {
        format!("{} ms", d.as_millis())
    } else if d < Duration::from_secs(120) {
        format!("{} s", d.as_secs())
    } else {
        format!("{} min", d.as_secs() / 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_do_something_to_a_terminal_is_escaped() {
        assert_eq!(escaped("über alles…"), "über alles…");
        assert!(matches!(escaped("plain"), Cow::Borrowed(_)));
        let cases = [
            ("a\nb", r"a\nb"),
            ("\u{1b}[2J", r"\u{1b}[2J"),
            ("\u{9b}31m", r"\u{9b}31m"),
            ("in\u{202e}gpj.exe", r"in\u{202e}gpj.exe"),
            ("\u{2066}x\u{200f}", r"\u{2066}x\u{200f}"),
            ("a\u{2028}b\u{2029}", r"a\u{2028}b\u{2029}"),
        ];
        for (raw, safe) in cases {
            assert_eq!(shown(Path::new(raw)), safe);
        }
    }

    #[test]
    fn what_shows_as_nothing_is_escaped() {
        for c in [
            '\u{ad}',
            '\u{200b}',
            '\u{200c}',
            '\u{200d}',
            '\u{2060}',
            '\u{feff}',
            '\u{fe0f}',
            '\u{3164}',
            '\u{e0041}',
        ] {
            assert_eq!(
                escaped(&format!("a{c}b")),
                format!("a{}b", c.escape_unicode())
            );
        }
        // Marks above a letter, other scripts and other spaces are visible.
        for text in ["u\u{308}", "שלום", "日本語", "한글", "😀", "3.45\u{202f}PM"] {
            assert_eq!(escaped(text), text);
        }
        assert!(INVISIBLE.is_sorted_by(|a, b| a.1 < b.0));
    }
}
