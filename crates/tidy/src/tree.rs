//! The repository's text files, and places in them that break a rule.

use std::fmt;
use std::path::Path;

/// One text file of the repository.
#[derive(Clone, Debug)]
pub struct File {
    /// Path from the repository's root, with `/` between its parts.
    pub path: String,
    /// The whole content.
    pub text: String,
}

impl File {
    /// The lines with their numbers, counted from 1.
    pub fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(self.text.lines())
    }

    /// The part of the file's name after its last dot, or an empty string.
    pub fn extension(&self) -> &str {
        let name = self.path.rsplit('/').next().unwrap_or("");
        name.rsplit_once('.').map_or("", |(_, extension)| extension)
    }
}

/// The repository's text files, sorted by path.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// The files, without those that version control ignores.
    pub files: Vec<File>,
}

impl Tree {
    /// Reads the repository at `root`. Files that are not UTF-8, or cannot be read,
    /// are left out.
    ///
    /// # Errors
    /// A folder that cannot be read.
    pub fn read(root: &Path) -> Result<Tree, ignore::Error> {
        let walk = ignore::WalkBuilder::new(root)
            .hidden(false)
            .require_git(false)
            .filter_entry(|entry| entry.file_name() != ".git")
            .build();
        let mut files = Vec::new();
        for entry in walk {
            let entry = entry?;
            if !entry.file_type().is_some_and(|kind| kind.is_file()) {
                continue;
            }
            let Ok(text) = std::fs::read_to_string(entry.path()) else {
                continue;
            };
            let path = entry.path().strip_prefix(root).unwrap_or(entry.path());
            let path = path.to_string_lossy().into_owned();
            files.push(File { path, text });
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Tree { files })
    }

    /// The file at `path`.
    pub fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    /// A tree of these files, for tests of rules.
    #[cfg(test)]
    pub fn of(files: &[(&str, &str)]) -> Tree {
        let file = |&(path, text): &(&str, &str)| File {
            path: path.into(),
            text: text.into(),
        };
        Tree {
            files: files.iter().map(file).collect(),
        }
    }
}

/// A place that breaks a rule.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Finding {
    /// Path of the file that breaks the rule.
    pub path: String,
    /// Line in that file, counted from 1.
    pub line: usize,
    /// What is wrong at this place, and what would be right.
    pub what: String,
}

impl Finding {
    /// A finding in the file at `path`.
    pub fn new(path: &str, line: usize, what: impl Into<String>) -> Finding {
        Finding {
            path: path.into(),
            line,
            what: what.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}
