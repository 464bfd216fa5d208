//! The command that runs a receiver on a host: by ssh, by srun, or by a command of the user.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use fabricast::error::Error;
use fabricast::text::escaped;

/// What stands for a host's name in the words of a launcher.
const HOST: &str = "{host}";
/// ssh without a terminal, which asks for nothing.
const SSH: &[&str] = &["ssh", "-T", "-o", "BatchMode=yes", HOST];
/// A step of the Slurm job beside the job's others.
const SRUN: &[&str] = &[
    "srun",
    "--overlap",
    "--nodes=1",
    "--ntasks=1",
    "--nodelist={host}",
];

/// A command that runs another command on a host.
#[derive(Debug)]
pub struct Launcher {
    words: Vec<String>,
    /// Whether it joins its arguments for a shell on the host, as ssh does.
    joins: bool,
}

impl Launcher {
    /// The launcher of the user, or ssh, or within a Slurm job srun.
    ///
    /// # Errors
    /// A usage error: a quote that is not closed, no word, no `{host}`.
    pub fn new(given: Option<&str>, is_slurm: bool) -> Result<Launcher, Error> {
        let own = |words: &[&str]| words.iter().map(|word| word.to_string()).collect();
        let words: Vec<String> = match given {
            None if is_slurm => own(SRUN),
            None => own(SSH),
            Some(given) => shlex::split(given).ok_or_else(|| {
                wrong(
                    given,
                    "a quote is not closed, or nothing follows the last '\\'",
                )
            })?,
        };
        let Some(program) = words.first() else {
            return Err(wrong("", "it is empty"));
        };
        if !words.iter().any(|word| word.contains(HOST)) {
            let why = "it does not say where the host's name belongs, by {host}";
            return Err(wrong(&words.join(" "), why));
        }
        let joins = Path::new(program).file_name() == Some(OsStr::new("ssh"));
        Ok(Launcher { words, joins })
    }

    /// The name of the program.
    pub fn program(&self) -> &str {
        &self.words[0]
    }

    /// The words of the command that runs `remote` on `host`.
    pub fn command(&self, host: &str, remote: &[OsString]) -> Vec<OsString> {
        let own = self
            .words
            .iter()
            .map(|word| word.replace(HOST, host).into());
        let quoted = remote.iter().map(|word| match self.joins {
            true => quoted(word),
            false => word.clone(),
        });
        own.chain(quoted).collect()
    }
}

/// A word as a shell on the host reads it.
fn quoted(word: &OsStr) -> OsString {
    // Quoting fails only for a zero byte, which no argument holds.
    let quoted = shlex::bytes::try_quote(word.as_bytes()).unwrap_or_default();
    OsString::from_vec(quoted.into_owned())
}

fn wrong(command: &str, why: &str) -> Error {
    Error::Usage(format!(
        "cannot use the launcher '{}': {why}",
        escaped(command)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(given: Option<&str>, is_slurm: bool, remote: &[&str]) -> Vec<String> {
        let remote: Vec<OsString> = remote.iter().map(OsString::from).collect();
        let launcher = Launcher::new(given, is_slurm).unwrap();
        let words = launcher.command("n1", &remote);
        words
            .into_iter()
            .map(|w| w.into_string().unwrap())
            .collect()
    }

    #[test]
    fn only_ssh_gets_quoted_words() {
        let remote = ["fabricast", "--dir=a b'$(c)"];
        let ssh = command(None, false, &remote);
        assert_eq!(ssh[..5], ["ssh", "-T", "-o", "BatchMode=yes", "n1"]);
        assert_eq!(shlex::split(&ssh[5..].join(" ")).unwrap(), remote);
        assert_ne!(ssh[6], remote[1]);
        let own = command(Some("/usr/bin/ssh -p 22 root@{host}"), true, &remote);
        assert_eq!(own[3], "root@n1");
        assert_eq!(own[5], ssh[6]);
        let srun = command(None, true, &remote);
        assert_eq!(srun[4..], ["--nodelist=n1", remote[0], remote[1]]);
        let other = command(Some("'my run' \"{host}\" --"), false, &remote);
        assert_eq!(other, ["my run", "n1", "--", remote[0], remote[1]]);
    }

    #[test]
    fn launchers_that_cannot_work_are_refused() {
        for (given, why) in [
            ("", "empty"),
            ("run 'x", "not closed"),
            ("run host", "{host}"),
        ] {
            let said = Launcher::new(Some(given), false).unwrap_err().to_string();
            assert!(said.contains(why), "{said}");
        }
    }
}
