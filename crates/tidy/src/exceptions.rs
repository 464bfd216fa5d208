//! How many places of each file may break each rule.

use std::collections::BTreeMap;
use std::fmt;

use crate::tree::Finding;

/// How many findings are allowed, by rule and path.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Exceptions(pub BTreeMap<String, BTreeMap<String, usize>>);

impl Exceptions {
    /// Reads the format of `exceptions.toml`: a table for each rule, in it `"path" = number`.
    ///
    /// # Errors
    /// Text of another format.
    pub fn parse(text: &str) -> Result<Exceptions, toml::de::Error> {
        toml::from_str(text).map(Exceptions)
    }

    /// Says what `findings` of `rule` have beyond the allowed numbers, and which allowed numbers
    /// are too high. An empty answer means that the rule is kept.
    pub fn judge(&self, rule: &str, findings: &[Finding]) -> Vec<String> {
        let none = BTreeMap::new();
        let allowed = self.0.get(rule).unwrap_or(&none);
        let mut wrong = Vec::new();
        let found = count(findings);
        for (path, &number) in &found {
            let most = allowed.get(*path).copied().unwrap_or(0);
            if number > most {
                wrong.push(format!("{rule}: {path}: {number} findings, {most} allowed"));
                let of_path = findings.iter().filter(|finding| finding.path == *path);
                wrong.extend(of_path.map(|finding| format!("  {finding}")));
            }
        }
        for (path, &most) in allowed {
            let number = found.get(path.as_str()).copied().unwrap_or(0);
            if number < most {
                wrong.push(format!(
                    "{rule}: {path}: {most} findings allowed, but only {number} are left; \
                     `cargo run -p fabricast-tidy -- --lower` lowers the number"
                ));
            }
        }
        wrong
    }

    /// Lowers each number of `rule` to what `findings` have, and drops those that reach 0.
    pub fn lower(&mut self, rule: &str, findings: &[Finding]) {
        let found = count(findings);
        if let Some(allowed) = self.0.get_mut(rule) {
            allowed.retain(|path, most| {
                *most = found.get(path.as_str()).copied().unwrap_or(0).min(*most);
                *most > 0
            });
        }
        self.0.retain(|_, allowed| !allowed.is_empty());
    }
}

impl fmt::Display for Exceptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "# Findings that are allowed, by rule and file. Numbers go down:"
        )?;
        writeln!(f, "# `cargo run -p fabricast-tidy -- --lower` lowers them.")?;
        for (rule, allowed) in &self.0 {
            writeln!(f, "\n[{rule}]")?;
            for (path, number) in allowed {
                writeln!(f, "{path:?} = {number}")?;
            }
        }
        Ok(())
    }
}

fn count(findings: &[Finding]) -> BTreeMap<&str, usize> {
    let mut found = BTreeMap::new();
    for finding in findings {
        *found.entry(finding.path.as_str()).or_insert(0) += 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exceptions(number: usize) -> Exceptions {
        Exceptions::parse(&format!("[width]\n\"a.md\" = {number}\n")).unwrap()
    }

    #[test]
    fn an_allowed_number_must_be_exact() {
        let two = [
            Finding::new("a.md", 1, "long"),
            Finding::new("a.md", 2, "long"),
        ];
        assert_eq!(exceptions(2).judge("width", &two), [""; 0]);
        let more = exceptions(1).judge("width", &two);
        assert!(more[0].contains("2 findings, 1 allowed"), "{more:?}");
        let fewer = exceptions(3).judge("width", &two);
        assert!(fewer[0].contains("only 2 are left"), "{fewer:?}");
        assert_eq!(exceptions(2).judge("words", &two).len(), 3);
    }

    #[test]
    fn numbers_are_lowered_and_never_raised() {
        let two = [
            Finding::new("a.md", 1, "long"),
            Finding::new("a.md", 2, "long"),
        ];
        for (before, after) in [(1, 1), (2, 2), (5, 2)] {
            let mut lowered = exceptions(before);
            lowered.lower("width", &two);
            assert_eq!(lowered, exceptions(after));
        }
        let mut gone = exceptions(1);
        gone.lower("width", &[]);
        assert_eq!(gone, Exceptions::default());
    }

    #[test]
    fn what_is_written_is_read_again() {
        let written = exceptions(7).to_string();
        assert_eq!(Exceptions::parse(&written).unwrap(), exceptions(7));
    }
}
