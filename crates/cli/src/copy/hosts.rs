//! Lists of hosts: `node[01-32,40],head`, `@FILE`, and the list of a Slurm job.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::net::Ipv6Addr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use fabricast::error::Error;
use fabricast::text::shown;

/// Most hosts of a list: each has a process here.
const HOSTS_MAX: usize = 10_000;
/// Most characters of a host's name, so that the sender's table has room for it.
const NAME_MAX: usize = 64;
/// Most digits of a number in brackets.
const DIGITS_MAX: usize = 9;
/// Most bytes of a file with hosts.
const FILE_MAX: u64 = 16 << 20;
/// The variable with the hosts of a Slurm job.
const SLURM: &str = "SLURM_JOB_NODELIST";

/// The hosts of a copy, without repetition, and the directory there.
#[derive(PartialEq, Debug)]
pub struct Target<'a> {
    /// Names of the hosts, as the list has them.
    pub hosts: Vec<String>,
    /// The directory on each of them.
    pub dest: &'a OsStr,
}

impl<'a> Target<'a> {
    /// Reads `HOSTS:DEST`. `variable` gives the value of an environment variable.
    ///
    /// # Errors
    /// A usage error that shows the place in the list; a file that cannot be read.
    pub fn parse(
        text: &'a OsStr,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Target<'a>, Error> {
        let (list, dest) = divide(text.as_bytes()).ok_or_else(|| {
            // Behind a bracket that is open no colon counts.
            let unclosed = text.to_str().and_then(|list| items(list).err());
            let why = match (unclosed, text.to_str()) {
                (Some(mistake), Some(list)) => mistake.describe(list, "the list of hosts"),
                _ => format!("{} names no hosts", shown(Path::new(text))),
            };
            usage(format!(
                "{why}: the last argument is HOSTS:DEST, such as node[1-8]:/scratch"
            ))
        })?;
        let list = str::from_utf8(list).map_err(|_| {
            usage(format!(
                "the hosts in {} are not UTF-8",
                shown(Path::new(text))
            ))
        })?;
        let mut hosts = Hosts::default();
        match list.strip_prefix('@') {
            Some(path) => hosts.add_file(Path::new(path))?,
            None if list.is_empty() => match variable(SLURM) {
                Some(list) => hosts.add(&list, &format!("${SLURM}"))?,
                None => {
                    return Err(usage(format!(
                        "no hosts are named before ':{}', and this is no Slurm job: ${SLURM} is \
                         not set",
                        shown(Path::new(OsStr::from_bytes(dest)))
                    )));
                }
            },
            None => hosts.add(list, "the list of hosts")?,
        }
        let dest = match dest {
            b"" => OsStr::new("."),
            dest => OsStr::from_bytes(dest),
        };
        if dest.as_bytes().starts_with(b"~") {
            return Err(usage(format!(
                "{0} begins with '~', which no shell replaces there: a DEST without '/' at its \
                 beginning lies in the remote home directory (./{0} is a directory of this name)",
                shown(Path::new(dest))
            )));
        }
        match hosts.names.is_empty() {
            true => Err(usage("the list of hosts is empty".into())),
            false => Ok(Target {
                hosts: hosts.names,
                dest,
            }),
        }
    }
}

fn usage(text: String) -> Error {
    Error::Usage(text)
}

/// Divides at the first colon that stands in no brackets.
fn divide(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut within = false;
    let at = text.iter().position(|byte| {
        match byte {
            b'[' => within = true,
            b']' => within = false,
            _ => {}
        }
        *byte == b':' && !within
    })?;
    Some((&text[..at], &text[at + 1..]))
}

/// A mistake in a list of hosts: where it is, in bytes, and what it is.
#[derive(PartialEq, Debug)]
struct Mistake {
    from: usize,
    to: usize,
    why: String,
}

impl Mistake {
    fn at(from: usize, text: &str, why: impl Into<String>) -> Mistake {
        Mistake {
            from,
            to: from + text.len(),
            why: why.into(),
        }
    }

    /// The list with the mistake between arrows, at most a few dozen characters of it, and why.
    fn describe(&self, list: &str, what: &str) -> String {
        const AROUND: usize = 20;
        let before: Vec<char> = list[..self.from].chars().collect();
        let after: Vec<char> = list[self.to..].chars().collect();
        let wrong: Vec<char> = list[self.from..self.to].chars().collect();
        let cut = |all: &[char]| all.iter().collect::<String>();
        let left = before.len().saturating_sub(AROUND);
        let right = after.len().min(AROUND);
        let (start, end) = (
            if left > 0 { "…" } else { "" },
            if right < after.len() { "…" } else { "" },
        );
        format!(
            "{what}, character {}: {} (at the arrows: {start}{}→{}←{}{end})",
            before.len() + 1,
            self.why,
            cut(&before[left..]),
            cut(&wrong[..wrong.len().min(2 * AROUND)]),
            cut(&after[..right]),
        )
    }
}

#[derive(Default)]
struct Hosts {
    names: Vec<String>,
    seen: BTreeSet<String>,
}

impl Hosts {
    fn add_file(&mut self, path: &Path) -> Result<(), Error> {
        let failed = |e| Error::io(format!("reading the hosts in {}", shown(path)), e);
        let len = std::fs::metadata(path).map_err(failed)?.len();
        if len > FILE_MAX {
            let name = shown(path);
            return Err(usage(format!("{name} is too long for a list of hosts")));
        }
        let text = std::fs::read_to_string(path).map_err(failed)?;
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.split('#').next().unwrap_or_default().trim();
            if !line.is_empty() {
                self.add(line, &format!("{} line {number}", shown(path)))?;
            }
        }
        Ok(())
    }

    /// Adds the hosts of a list; `what` names the list in errors.
    fn add(&mut self, list: &str, what: &str) -> Result<(), Error> {
        let added = self.add_list(list);
        added.map_err(|mistake| usage(mistake.describe(list, what)))
    }

    fn add_list(&mut self, list: &str) -> Result<(), Mistake> {
        let mut from = 0;
        for item in items(list)? {
            let at = from + (item.len() - item.trim_start().len());
            from += item.len() + 1;
            let item = item.trim();
            if item.is_empty() {
                return Err(Mistake::at(at, "", "a host's name is missing"));
            }
            for name in expand(item, at, HOSTS_MAX - self.names.len())? {
                check_name(&name).map_err(|why| Mistake::at(at, item, why))?;
                if !self.seen.insert(name.clone()) {
                    return Err(Mistake::at(at, item, format!("{name} is named twice")));
                }
                self.names.push(name);
            }
        }
        Ok(())
    }
}

/// Divides at commas that stand in no brackets.
fn items(list: &str) -> Result<Vec<&str>, Mistake> {
    let mut items = Vec::new();
    let (mut from, mut open) = (0, None);
    for (at, c) in list.char_indices() {
        match (c, open) {
            ('[', Some(_)) => return Err(Mistake::at(at, "[", "brackets within brackets")),
            ('[', None) => open = Some(at),
            (']', None) => return Err(Mistake::at(at, "]", "no bracket is open here")),
            (']', Some(_)) => open = None,
            (',', None) => {
                items.push(&list[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    if let Some(at) = open {
        return Err(Mistake::at(
            at,
            &list[at..],
            "this bracket is not closed, as in node[1-8]",
        ));
    }
    items.push(&list[from..]);
    Ok(items)
}

/// The names of one item, such as `rack[1-2]n[01-16]`: at most `most`. The item begins at byte `at`
/// of its list.
fn expand(item: &str, at: usize, most: usize) -> Result<Vec<String>, Mistake> {
    let mut names = vec![String::new()];
    let mut rest = item;
    while let Some((text, more)) = rest.split_once('[') {
        let (inner, after) = more.split_once(']').unwrap_or((more, ""));
        let start = at + (item.len() - rest.len()) + text.len() + 1;
        let numbers = match is_address(text, inner) {
            true => vec![inner.to_owned()],
            false => numbers(inner, start, most)?,
        };
        if names.len() * numbers.len() > most {
            return Err(Mistake::at(at, item, too_many()));
        }
        let each = |name: &String| {
            let name = format!("{name}{text}");
            numbers.iter().map(move |number| format!("{name}{number}"))
        };
        names = names.iter().flat_map(each).collect::<Vec<_>>();
        rest = after;
    }
    match names.len() > most {
        true => Err(Mistake::at(at, item, too_many())),
        false => {
            for name in &mut names {
                name.push_str(rest);
            }
            Ok(names)
        }
    }
}

fn too_many() -> String {
    format!("more than {HOSTS_MAX} hosts")
}

/// Whether the brackets hold an IPv6 address, as behind `user@` or alone.
fn is_address(before: &str, inner: &str) -> bool {
    let plain = inner.split('%').next().unwrap_or_default();
    (before.is_empty() || before.ends_with('@')) && plain.parse::<Ipv6Addr>().is_ok()
}

/// The numbers of a list such as `1-3,07`, with their leading zeros. The list begins at byte `at`.
fn numbers(list: &str, at: usize, most: usize) -> Result<Vec<String>, Mistake> {
    let mut numbers = Vec::new();
    let mut from = at;
    for item in list.split(',') {
        let range = item.split_once('-').unwrap_or((item, item));
        let number = |text: &str| {
            let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            match digits {
                true if text.len() <= DIGITS_MAX => Ok(text.parse::<u64>().unwrap_or(0)),
                true => Err(format!("a number has at most {DIGITS_MAX} digits")),
                false => Err("brackets hold numbers and ranges, such as [1-32,40]".into()),
            }
        };
        let wrong = |why: String| Mistake::at(from, item, why);
        let (first, last) = (
            number(range.0).map_err(wrong)?,
            number(range.1).map_err(wrong)?,
        );
        if first > last {
            return Err(wrong("this range ends before it begins".into()));
        }
        if numbers.len() as u64 + (last - first) >= most as u64 {
            return Err(wrong(too_many()));
        }
        let width = range.0.len();
        numbers.extend((first..=last).map(|n| format!("{n:0width$}")));
        from += item.len() + 1;
    }
    Ok(numbers)
}

/// Checks that a name can be one of a host: it is an argument of other programs.
fn check_name(name: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-@:%".contains(c);
    if let Some(c) = name.chars().find(|c| !allowed(*c)) {
        return Err(format!("a host's name cannot hold {:?}", c));
    }
    match name {
        name if name.starts_with('-') => Err("a host's name cannot begin with '-'".into()),
        name if name.len() > NAME_MAX => {
            Err(format!("a host's name has at most {NAME_MAX} characters"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(list: &str) -> Result<Vec<String>, String> {
        let mut hosts = Hosts::default();
        match hosts.add_list(list) {
            Ok(()) => Ok(hosts.names),
            Err(mistake) => Err(mistake.describe(list, "list")),
        }
    }

    #[test]
    fn lists_are_expanded_in_their_order() {
        for (list, names) in [
            ("a", "a"),
            ("b, a", "b a"),
            ("node[1-3,40]", "node1 node2 node3 node40"),
            ("n[008-011]-ib,x", "n008-ib n009-ib n010-ib n011-ib x"),
            ("n[9-11]", "n9 n10 n11"),
            ("n[07,7]", "n07 n7"),
            ("r[1-2]n[01-02]", "r1n01 r1n02 r2n01 r2n02"),
            ("root@n[1-2].site", "root@n1.site root@n2.site"),
            ("[fd00::1],u@[fe80::1%eth0]", "fd00::1 u@fe80::1%eth0"),
        ] {
            assert_eq!(hosts(list).unwrap().join(" "), names, "{list}");
        }
        assert_eq!(hosts("n[1-10000]").unwrap().len(), HOSTS_MAX);
    }

    #[test]
    fn mistakes_show_their_place() {
        for (list, place, why) in [
            ("node[3-1]", "node[→3-1←]", "ends before it begins"),
            ("a,n[1-2", "a,n→[1-2←", "not closed"),
            ("a]", "a→]←", "no bracket is open"),
            ("n[[1]]", "n[→[←1]]", "within brackets"),
            ("n[]", "n[→←]", "numbers and ranges"),
            ("n[1,x-2]", "n[1,→x-2←]", "numbers and ranges"),
            ("n[1-2-3]", "n[→1-2-3←]", "numbers and ranges"),
            ("n[-1]", "n[→-1←]", "numbers and ranges"),
            ("a,,b", "a,→←,b", "missing"),
            ("a,", "a,→←", "missing"),
            ("", "→←", "missing"),
            ("a,b,a", "a,b,→a←", "a is named twice"),
            ("n[1-3],n[2]", "n[1-3],→n[2]←", "n2 is named twice"),
            ("a,-oProxyCommand=x", "", "cannot hold '='"),
            ("a,-x", "a,→-x←", "cannot begin with '-'"),
            ("a b", "→a b←", "cannot hold ' '"),
            ("n[1-10001]", "n[→1-10001←]", "more than 10000 hosts"),
            ("n[0-999999999]", "", "more than 10000 hosts"),
            ("n[1-9999999999]", "", "at most 9 digits"),
            ("a[1-101]b[1-100]", "", "more than 10000 hosts"),
            ("n[1-6000],m[1-6000]", "", "more than 10000 hosts"),
            (&"x".repeat(65), "", "at most 64 characters"),
        ] {
            let said = hosts(list).unwrap_err();
            assert!(said.contains(place) && said.contains(why), "{said}");
        }
        let others = "host,h1,h2,h3,h4,h5,h6,h7,";
        let long = format!("{others}n[2-1],{others}m");
        let said = hosts(&long).unwrap_err();
        assert!(
            said.contains("…h2,h3,h4,h5,h6,h7,n[→2-1←],host,h1,h2,h3,h4,h…"),
            "{said}"
        );
    }

    #[test]
    fn targets_have_hosts_and_a_directory() {
        let slurm = |name: &str| (name == SLURM).then(|| "n[1-2]".to_owned());
        let parsed = |text| Target::parse(OsStr::new(text), slurm);
        for (text, names, dest) in [
            ("a:/x", "a", "/x"),
            ("a:", "a", "."),
            (":/tmp", "n1 n2", "/tmp"),
            ("[fd00::1],b:c:d", "fd00::1 b", "c:d"),
        ] {
            let target = parsed(text).unwrap();
            assert_eq!(
                (target.hosts.join(" "), target.dest),
                (names.into(), OsStr::new(dest))
            );
        }
        for (text, why) in [
            ("a", "HOSTS:DEST"),
            ("a:~/x", "'~'"),
            ("node[1-3", "node→[1-3←"),
            ("node[1-3:/x", "→[1-3:/x←"),
            ("node[1-3:/x", "this bracket is not closed, as in node[1-8]"),
            ("node[1-3:/x", "HOSTS:DEST, such as node[1-8]:/scratch"),
            ("n]1-3[:x", "no bracket is open here"),
            ("node[1-3", "HOSTS:DEST, such as"),
        ] {
            let said = parsed(text).unwrap_err().to_string();
            assert!(said.contains(why), "{said}");
        }
        let none = Target::parse(OsStr::new(":x"), |_| None).unwrap_err();
        assert!(none.to_string().contains("$SLURM_JOB_NODELIST"), "{none}");
    }
}
