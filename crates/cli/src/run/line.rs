//! Adds variables to a launcher's command line and leaves the rest as it is.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

pub const PRELOAD: &str = "LD_PRELOAD";

/// How a launcher passes a variable to all ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Export {
    /// `-x NAME=VALUE`, of Open MPI.
    X,
    /// `-genv NAME VALUE`, of MPICH.
    Genv,
    /// `--export=ALL,NAME=VALUE,...`, of Slurm. A value with a comma, which would end it, goes by
    /// the launcher's own environment, and by its name alone here.
    Slurm,
}

/// The additions to a command line.
pub struct Line {
    pub export: Export,
    pub variables: Vec<(OsString, OsString)>,
    /// The shim that the ranks preload; `None` with `--off`.
    pub preload: Option<PathBuf>,
    /// The `LD_PRELOAD` of this environment.
    pub inherited: Option<OsString>,
}

impl Line {
    /// Returns `given` with the variables right behind the launcher, so that flags of the command
    /// line come later and override them. The shim goes behind other libraries that the command
    /// line preloads. `runs` tells whether a path is that of an executable file.
    pub fn with(&self, given: &[OsString], runs: impl Fn(&OsStr) -> bool) -> Vec<OsString> {
        let ours = self.ours();
        let mut command = vec![given[0].clone()];
        for (i, part) in given[1..].split(|word| word == ":").enumerate() {
            if i > 0 {
                command.push(":".into());
            }
            // The program behind a colon has flags of its own, but MPICH's -genv is global.
            if i == 0 || self.export != Export::Genv {
                command.extend_from_slice(&ours);
            }
            let (flags, program) = match self.export {
                // The program may have a flag `--export` itself.
                Export::Slurm => part.split_at(flags(part, &runs)),
                Export::X | Export::Genv => (part, &[][..]),
            };
            self.change(flags, &mut command);
            command.extend_from_slice(program);
        }
        command
    }

    /// Appends `words` to `command`, with the shim added to what they preload.
    fn change(&self, words: &[OsString], command: &mut Vec<OsString>) {
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match self.export {
                Export::X if is(word, "-x") => {
                    command.push(word.clone());
                    command.extend(words.next().map(|value| self.behind_assigned(value)));
                }
                Export::Genv if is(word, "-genv") || is(word, "-env") => {
                    command.push(word.clone());
                    let name = words.next();
                    command.extend(name.map(|name| self.behind_assigned(name)));
                    if name.is_some_and(|name| name == PRELOAD) {
                        command.extend(words.next().map(|value| self.behind(Some(value))));
                    }
                }
                Export::Slurm if word == "--export" => {
                    let list = words.next().map(|list| exported(list, &self.list()));
                    command.extend(list);
                }
                Export::Slurm => match word.as_bytes().strip_prefix(b"--export=") {
                    Some(list) => command.push(exported(OsStr::from_bytes(list), &self.list())),
                    None => command.push(word.clone()),
                },
                _ => command.push(word.clone()),
            }
        }
    }

    /// The variables, and `LD_PRELOAD` with the shim.
    fn all(&self) -> Vec<(OsString, OsString)> {
        let mut all = self.variables.clone();
        if self.preload.is_some() {
            all.push((PRELOAD.into(), self.behind(self.inherited.as_deref())));
        }
        all
    }

    /// The flags that pass all variables to the ranks.
    fn ours(&self) -> Vec<OsString> {
        let all = self.all();
        match self.export {
            _ if all.is_empty() => Vec::new(),
            Export::X => {
                let flags = all
                    .iter()
                    .map(|(name, value)| ["-x".into(), assigned(name, value)]);
                flags.flatten().collect()
            }
            Export::Genv => {
                let flags = all
                    .into_iter()
                    .map(|(name, value)| ["-genv".into(), name, value]);
                flags.flatten().collect()
            }
            Export::Slurm => vec![exported("ALL".as_ref(), &self.list())],
        }
    }

    /// All variables, as Slurm's `--export` lists them.
    fn list(&self) -> OsString {
        let all = self.all();
        let all: Vec<OsString> = all
            .iter()
            .map(|(name, value)| match value.as_bytes().contains(&b',') {
                true => name.clone(),
                false => assigned(name, value),
            })
            .collect();
        all.join(OsStr::new(","))
    }

    /// Appends the shim to the value of an `LD_PRELOAD`.
    fn behind(&self, value: Option<&OsStr>) -> OsString {
        let library = self.preload.as_deref().map(Path::as_os_str);
        let both: Vec<&OsStr> = value.into_iter().chain(library).collect();
        both.join(OsStr::new(":"))
    }

    /// Appends the shim to `LD_PRELOAD=VALUE`, or to the name alone, which stands for the
    /// environment's value.
    fn behind_assigned(&self, word: &OsStr) -> OsString {
        let value = word.as_bytes().strip_prefix(b"LD_PRELOAD=");
        match value.map(OsStr::from_bytes) {
            _ if self.preload.is_none() => word.into(),
            Some(value) => assigned(PRELOAD.as_ref(), &self.behind(Some(value))),
            None if word == PRELOAD && self.export == Export::X => {
                assigned(PRELOAD.as_ref(), &self.behind(self.inherited.as_deref()))
            }
            None => word.into(),
        }
    }
}

/// The number of words that are the launcher's flags and their values. A word right behind a flag
/// is its value, unless the flag contains `=`, or the word is the path of an executable file.
fn flags(words: &[OsString], runs: impl Fn(&OsStr) -> bool) -> usize {
    let mut may_have_value = false;
    let program = words.iter().position(|word| {
        let (bytes, behind_flag) = (word.as_bytes(), may_have_value);
        may_have_value = bytes.starts_with(b"-") && !bytes.contains(&b'=');
        let is_path = bytes.contains(&b'/');
        !bytes.starts_with(b"-") && (!behind_flag || is_path && runs(word))
    });
    program.unwrap_or(words.len())
}

/// Whether a word is this flag. Launchers accept one dash or two.
fn is(word: &OsStr, flag: &str) -> bool {
    word == flag || word.as_bytes().strip_prefix(b"-") == Some(flag.as_bytes())
}

fn assigned(name: &OsStr, value: &OsStr) -> OsString {
    [name, value].join(OsStr::new("="))
}

/// Slurm's `--export` flag for an exported list, with more variables.
fn exported(list: &OsStr, more: &OsStr) -> OsString {
    let mut flag = OsString::from("--export=");
    if list != "NONE" && list != "NIL" {
        flag.push(list);
        flag.push(",");
    }
    flag.push(more);
    flag
}

/// Quotes a word for a shell, if needed.
pub fn quoted(word: &OsStr) -> String {
    let text = word.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=+:,./@%^".contains(c);
    match !text.is_empty() && text.chars().all(plain) {
        true => text.into_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(export: Export) -> Line {
        Line {
            export,
            variables: vec![("FABRICAST_STATS".into(), "1".into())],
            preload: Some("/lib/ours.so".into()),
            inherited: None,
        }
    }

    /// Checks that one command line becomes the other.
    fn becomes(line: &Line, given: &str, expected: &str) {
        let given: Vec<OsString> = given.split(' ').map(OsString::from).collect();
        let runs = |path: &OsStr| path == "./a";
        let command = line.with(&given, runs).join(OsStr::new(" "));
        assert_eq!(command.to_str(), Some(expected));
    }

    #[test]
    fn variables_come_right_behind_the_launcher() {
        becomes(
            &line(Export::X),
            "mpirun -n 4 --mca btl tcp ./program -x -genv :x",
            "mpirun -x FABRICAST_STATS=1 -x LD_PRELOAD=/lib/ours.so -n 4 --mca btl tcp ./program \
             -x -genv :x",
        );
        becomes(
            &line(Export::Genv),
            "mpiexec -n 4 ./program -x LD_PRELOAD=a",
            "mpiexec -genv FABRICAST_STATS 1 -genv LD_PRELOAD /lib/ours.so -n 4 ./program -x \
             LD_PRELOAD=a",
        );
        becomes(
            &line(Export::Slurm),
            "srun -n 4 ./program",
            "srun --export=ALL,FABRICAST_STATS=1,LD_PRELOAD=/lib/ours.so -n 4 ./program",
        );
    }

    #[test]
    fn every_program_of_a_job_gets_them() {
        becomes(
            &line(Export::X),
            "mpirun -n 1 ./a : -n 2 ./b",
            "mpirun -x FABRICAST_STATS=1 -x LD_PRELOAD=/lib/ours.so -n 1 ./a : \
             -x FABRICAST_STATS=1 -x LD_PRELOAD=/lib/ours.so -n 2 ./b",
        );
        becomes(
            &line(Export::Genv),
            "mpiexec -n 1 ./a : -n 2 ./b",
            "mpiexec -genv FABRICAST_STATS 1 -genv LD_PRELOAD /lib/ours.so -n 1 ./a : -n 2 ./b",
        );
    }

    #[test]
    fn what_is_preloaded_already_stays_before_ours() {
        let open = Line {
            inherited: Some("tool.so".into()),
            ..line(Export::X)
        };
        let head = "mpirun -x FABRICAST_STATS=1 -x LD_PRELOAD=tool.so:/lib/ours.so";
        becomes(&open, "mpirun ./a", &format!("{head} ./a"));
        becomes(
            &open,
            "mpirun -x LD_PRELOAD=b.so ./a",
            &format!("{head} -x LD_PRELOAD=b.so:/lib/ours.so ./a"),
        );
        becomes(
            &open,
            "mpirun --x LD_PRELOAD ./a",
            &format!("{head} --x LD_PRELOAD=tool.so:/lib/ours.so ./a"),
        );
        let head = "mpiexec -genv FABRICAST_STATS 1 -genv LD_PRELOAD /lib/ours.so";
        becomes(
            &line(Export::Genv),
            "mpiexec -genv LD_PRELOAD a.so -env LD_PRELOAD b.so -env LD_PRELOAD=c.so -env A b ./a",
            &format!(
                "{head} -genv LD_PRELOAD a.so:/lib/ours.so -env LD_PRELOAD b.so:/lib/ours.so \
                 -env LD_PRELOAD=c.so:/lib/ours.so -env A b ./a"
            ),
        );
    }

    #[test]
    fn what_slurm_exports_already_is_kept() {
        let ours = "FABRICAST_STATS=1,LD_PRELOAD=/lib/ours.so";
        let head = format!("srun --export=ALL,{ours}");
        for (given, becoming) in [
            ("--export=A,B=1", format!("--export=A,B=1,{ours}")),
            ("--export A", format!("--export=A,{ours}")),
            ("--export=NONE", format!("--export={ours}")),
        ] {
            becomes(
                &line(Export::Slurm),
                &format!("srun {given} ./a"),
                &format!("{head} {becoming} ./a"),
            );
        }
    }

    #[test]
    fn slurm_takes_values_with_commas_from_the_environment() {
        let groups = Line {
            variables: vec![("FABRICAST_GROUPS".into(), "pool(4),max=9".into())],
            ..line(Export::Slurm)
        };
        becomes(
            &groups,
            "srun ./a",
            "srun --export=ALL,FABRICAST_GROUPS,LD_PRELOAD=/lib/ours.so ./a",
        );
    }

    #[test]
    fn what_is_said_to_slurms_program_is_left_alone() {
        let head = "srun --export=ALL,FABRICAST_STATS=1,LD_PRELOAD=/lib/ours.so";
        for rest in [
            "-n 4 -o out/%j.txt python train.py --export model --export=NONE",
            "--label ./a --export model",
        ] {
            becomes(
                &line(Export::Slurm),
                &format!("srun {rest}"),
                &format!("{head} {rest}"),
            );
        }
    }

    #[test]
    fn turned_off_it_preloads_nothing() {
        let off = Line {
            variables: Vec::new(),
            preload: None,
            ..line(Export::X)
        };
        let command = "mpirun -x LD_PRELOAD=b.so -x LD_PRELOAD ./a : ./b";
        becomes(&off, command, command);
    }

    #[test]
    fn words_are_quoted_for_a_shell() {
        for (word, text) in [
            ("-n", "-n"),
            ("a b", "'a b'"),
            ("", "''"),
            ("it's", r"'it'\''s'"),
        ] {
            assert_eq!(quoted(word.as_ref()), text);
        }
    }
}
