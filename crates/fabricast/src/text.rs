//! Words that end up on a terminal: names of files and of hosts, and whatever a peer has said.

use std::borrow::Cow;
use std::path::Path;

/// Whether a character may reach a terminal: no control character (escape sequences begin with
/// one), and none that turns the direction of writing or breaks lines.
pub fn harmless(c: char) -> bool {
    let turns = matches!(c, '\u{061c}' | '\u{200e}' | '\u{200f}')
        || ('\u{2028}'..='\u{202e}').contains(&c)
        || ('\u{2066}'..='\u{2069}').contains(&c);
    !c.is_control() && !turns
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

/// A path as it is shown to people: [`escaped`], and with U+FFFD for bytes that are no UTF-8.
pub fn shown(path: &Path) -> String {
    escaped(&path.to_string_lossy()).into_owned()
}

/// Bytes for people.
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
        ];
        for (raw, safe) in cases {
            assert_eq!(shown(Path::new(raw)), safe);
        }
    }
}
