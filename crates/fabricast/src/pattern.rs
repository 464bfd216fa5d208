//! Patterns for file names, as in shells.

use std::fmt;
use std::str::FromStr;

/// A pattern for a whole name, not for a path, so it has no `/`. `*` matches any characters, `?`
/// one character, `[a-c]` one of these and `[!a-c]` one that is none of these. Every other
/// character matches itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pattern {
    text: String,
    parts: Vec<Part>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Part {
    Many,
    One,
    This(char),
    /// One character within these ranges (`true`), or outside all of them.
    Of(Vec<(char, char)>, bool),
}

impl Part {
    fn takes(&self, c: char) -> bool {
        match self {
            Part::Many | Part::One => true,
            Part::This(this) => *this == c,
            Part::Of(ranges, within) => {
                ranges.iter().any(|(from, to)| (*from..=*to).contains(&c)) == *within
            }
        }
    }
}

impl Pattern {
    /// Whether this name matches.
    pub fn matches(&self, name: &str) -> bool {
        let name: Vec<char> = name.chars().collect();
        let (mut part, mut at) = (0, 0);
        // Index of the last `*`, and the position in the name where the parts after it were tried.
        let mut many: Option<(usize, usize)> = None;
        loop {
            match (self.parts.get(part), name.get(at)) {
                (None, None) => return true,
                (Some(Part::Many), _) => {
                    many = Some((part, at));
                    part += 1;
                }
                (Some(one), Some(&c)) if one.takes(c) => (part, at) = (part + 1, at + 1),
                _ => match &mut many {
                    Some((star, from)) if *from < name.len() => {
                        *from += 1;
                        (part, at) = (*star + 1, *from);
                    }
                    _ => return false,
                },
            }
        }
    }
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Pattern, String> {
        if text.contains('/') {
            return Err(format!(
                "{text:?}: a pattern is for names, and no name has a /: write the name alone"
            ));
        }
        let (mut parts, mut rest) = (Vec::new(), text.chars());
        while let Some(c) = rest.next() {
            parts.push(match c {
                '*' => Part::Many,
                '?' => Part::One,
                '[' => {
                    let (class, after) = class(rest.as_str())
                        .ok_or_else(|| format!("{text:?}: there is no ] for a ["))?;
                    rest = after.chars();
                    class
                }
                this => Part::This(this),
            });
        }
        match parts.is_empty() {
            true => Err("an empty pattern matches no file".into()),
            false => Ok(Pattern {
                text: text.into(),
                parts,
            }),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Parses what follows a `[`, up to its `]`. Returns the class and the text after it. A `]` in
/// front stands for itself.
fn class(text: &str) -> Option<(Part, &str)> {
    let within = !text.starts_with(['!', '^']);
    let inside = if within { text } else { &text[1..] };
    let first = inside.chars().next()?.len_utf8();
    let end = first + inside[first..].find(']')?;
    let chars: Vec<char> = inside[..end].chars().collect();
    let (mut ranges, mut at) = (Vec::new(), 0);
    while let Some(&from) = chars.get(at) {
        match (chars.get(at + 1), chars.get(at + 2)) {
            (Some('-'), Some(&to)) => {
                ranges.push((from, to));
                at += 3;
            }
            _ => {
                ranges.push((from, from));
                at += 1;
            }
        }
    }
    Some((Part::Of(ranges, within), &inside[end + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_a_shell() {
        let cases = [
            // pattern, what matches, what does not
            (
                "image.iso",
                vec!["image.iso"],
                vec!["image.iso2", "mage.iso", ""],
            ),
            ("*", vec!["", "a", "a b"], vec![]),
            (
                "*.iso",
                vec!["a.iso", ".iso", "a.iso.iso"],
                vec!["a.is", "a.iso.x"],
            ),
            (
                "a*b*c",
                vec!["abc", "aXbbYc", "abcbc"],
                vec!["ab", "acb", "abcd"],
            ),
            (
                "?-[0-9][!a-c]",
                vec!["ü-7d", "x-0-"],
                vec!["x-7a", "x-x7", "-7d"],
            ),
            ("[]x-]", vec!["]", "x", "-"], vec!["y", "[]x-]", ""]),
            ("[^x]", vec!["y", "^"], vec!["x"]),
        ];
        for (pattern, good, bad) in cases {
            let p: Pattern = pattern.parse().unwrap();
            assert_eq!(p.to_string(), pattern);
            for name in good {
                assert!(p.matches(name), "{pattern} {name:?}");
            }
            for name in bad {
                assert!(!p.matches(name), "{pattern} {name:?}");
            }
        }
        for bad in ["", "a[b", "[", "[]", "[!]", "a/", "a/b"] {
            assert!(bad.parse::<Pattern>().is_err(), "{bad}");
        }
    }

    #[test]
    fn no_pattern_takes_long() {
        let p: Pattern = "*a".repeat(30).parse().unwrap();
        assert!(!p.matches(&"a".repeat(255).replace("aaaaaaaaaa", "b")));
        assert!(!p.matches(&("a".repeat(254) + "b")));
    }
}
