//! `fabricast run`: starts an MPI launcher's command with variables that make its ranks preload the
//! shim.
//!
//! The launcher's MPI decides which shim that is and how a variable reaches the ranks. Only these
//! variables are added to the command. Then this process becomes the launcher.

mod line;

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use fabricast::error::exit;

use self::line::{Export, Line, PRELOAD};
use crate::args;

/// The MPI libraries that have a shim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mpi {
    Open,
    Mpich,
}

pub fn run(args: &args::Run) -> u8 {
    match prepare(args) {
        Err((code, why)) => {
            eprintln!("fabricast: {why}");
            code
        }
        Ok((command, _)) if args.dry_run => {
            let words: Vec<String> = command.iter().map(|word| line::quoted(word)).collect();
            println!("{}", words.join(" "));
            exit::OK
        }
        Ok((command, variables)) => {
            let mut launcher = Command::new(&command[0]);
            let error = launcher.args(&command[1..]).envs(variables).exec();
            eprintln!("fabricast: {}: {error}", command[0].display());
            exit::IO
        }
    }
}

type Variables = Vec<(OsString, OsString)>;

/// Builds the launcher's command with everything that the ranks need, and the variables of its own
/// environment. Otherwise returns an exit code and the reason.
fn prepare(args: &args::Run) -> Result<(Vec<OsString>, Variables), (u8, String)> {
    let launcher = &args.command[0];
    if launcher.as_encoded_bytes().starts_with(b"-") {
        let why = format!(
            "run has no option {}: 'fabricast run --help' lists the options; the launcher's \
             command comes after '--'",
            launcher.display()
        );
        return Err((exit::USAGE, why));
    }
    let found = find(launcher).ok_or_else(|| {
        let here = match Path::new(launcher).is_file() {
            true => format!("; to start the file here, write ./{}", launcher.display()),
            false => String::new(),
        };
        let why = format!("{}: there is no such command{here}", launcher.display());
        (exit::IO, why)
    })?;
    let variables = variables(args, env::vars_os());
    let off = variables
        .iter()
        .any(|(name, value)| name == "FABRICAST" && value == "off");
    let (mpi, export) = identify(&found, env::var("FABRICAST_MPI").ok().as_deref(), version)
        .map_err(|why| (exit::USAGE, why))?;
    let preload = match off {
        true => None,
        false => Some(library(mpi).map_err(|why| (exit::IO, why))?),
    };
    let line = Line {
        export,
        variables,
        preload,
        inherited: env::var_os(PRELOAD).filter(|value| !value.is_empty()),
    };
    Ok((line.with(&args.command, runs), line.variables))
}

/// Whether this is the path of an executable file.
fn runs(path: &OsStr) -> bool {
    let metadata = Path::new(path).metadata();
    metadata.is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

/// Finds the launcher as the shell would, in `PATH`.
fn find(launcher: &OsStr) -> Option<PathBuf> {
    let given = Path::new(launcher);
    if given.components().count() > 1 {
        return given.is_file().then(|| given.to_path_buf());
    }
    let path = env::var_os("PATH")?;
    let mut places = env::split_paths(&path).map(|dir| dir.join(given));
    places.find(|place| place.is_file())
}

/// Finds the launcher's MPI: from `named` (FABRICAST_MPI) if set, else from the launcher's file
/// name, before and after symbolic links, else from what its `--version` prints.
fn identify(
    launcher: &Path,
    named: Option<&str>,
    version: impl Fn(&Path) -> String,
) -> Result<(Mpi, Export), String> {
    let real = launcher
        .canonicalize()
        .unwrap_or_else(|_| launcher.to_path_buf());
    let called = [launcher, &real].map(|path| {
        let name = path.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    });
    let any = |words: &[&str]| {
        let mut names = called.iter();
        names.any(|name| words.iter().any(|word| name.contains(word)))
    };
    let slurm = called.iter().any(|name| name == "srun");
    let mpi = match named {
        Some("openmpi") => Mpi::Open,
        Some("mpich") => Mpi::Mpich,
        Some(other) => {
            return Err(format!(
                "FABRICAST_MPI must be openmpi or mpich, not '{other}'"
            ));
        }
        None if slurm => {
            return Err(
                "srun starts programs of any MPI: to tell which, set FABRICAST_MPI=openmpi or \
                 FABRICAST_MPI=mpich"
                    .into(),
            );
        }
        // A program given by mistake would run if it were asked for its version.
        None if !any(&["mpirun", "mpiexec", "orterun", "prterun", "hydra"]) => {
            return Err(format!(
                "{0} is not a known launcher: put `mpirun -n RANKS` before a program; if it is a \
                 launcher, set FABRICAST_MPI=openmpi or FABRICAST_MPI=mpich to tell whose",
                launcher.display()
            ));
        }
        None if any(&["hydra", "mpich"]) => Mpi::Mpich,
        None if any(&["orterun", "prterun", "openmpi"]) => Mpi::Open,
        None => {
            let said = version(launcher);
            match () {
                () if said.contains("Open MPI") || said.contains("OpenRTE") => Mpi::Open,
                () if said.contains("HYDRA") || said.contains("MPICH") => Mpi::Mpich,
                () => {
                    return Err(format!(
                        "`{} --version` names neither Open MPI nor MPICH: to tell whose launcher \
                         it is, set FABRICAST_MPI=openmpi or FABRICAST_MPI=mpich",
                        launcher.display()
                    ));
                }
            }
        }
    };
    let export = match mpi {
        _ if slurm => Export::Slurm,
        Mpi::Open => Export::X,
        Mpi::Mpich => Export::Genv,
    };
    Ok((mpi, export))
}

/// The output of the launcher's `--version`.
fn version(launcher: &Path) -> String {
    let mut command = Command::new(launcher);
    command.arg("--version").stdin(Stdio::null());
    let output = command.output();
    output.map_or(String::new(), |o| {
        String::from_utf8_lossy(&[o.stdout, o.stderr].concat()).into_owned()
    })
}

/// Finds the shim for this MPI: in the directory FABRICAST_LIB, or beside this program or in
/// `../lib`.
fn library(mpi: Mpi) -> Result<PathBuf, String> {
    let (name, compiler) = match mpi {
        Mpi::Open => ("libfabricast-mpi-openmpi.so", "mpicc.openmpi"),
        Mpi::Mpich => ("libfabricast-mpi-mpich.so", "mpicc.mpich"),
    };
    let places = match env::var_os("FABRICAST_LIB") {
        Some(place) => vec![PathBuf::from(place)],
        None => {
            let program = env::current_exe().and_then(|program| program.canonicalize());
            let beside = program.unwrap_or_default();
            let beside = beside.parent().unwrap_or(Path::new("/"));
            vec![beside.to_path_buf(), beside.join("../lib")]
        }
    };
    let found = places.iter().map(|place| place.join(name));
    let found = found.filter_map(|path| path.canonicalize().ok()).next();
    found.ok_or_else(|| {
        let places: Vec<String> = places.iter().map(|p| p.display().to_string()).collect();
        format!(
            "{name} is not in {}: build it with `mpi/build` (needs {compiler}), or set \
             FABRICAST_LIB to its directory",
            places.join(" or ")
        )
    })
}

/// The variables for the ranks: those of this environment that begin with FABRICAST, and the
/// options. An option overrides the variable.
fn variables(
    args: &args::Run,
    environment: impl Iterator<Item = (OsString, OsString)>,
) -> Vec<(OsString, OsString)> {
    let mut variables: Vec<_> = environment
        .filter(|(name, _)| name.to_string_lossy().starts_with("FABRICAST"))
        .collect();
    variables.sort();
    let mut set = |name: &str, value: &OsStr| {
        variables.retain(|(known, _)| known != name);
        variables.push((name.into(), value.into()));
    };
    if args.off {
        set("FABRICAST", "off".as_ref());
    }
    if args.verbose {
        set("FABRICAST", "verbose".as_ref());
    }
    if args.stats {
        set("FABRICAST_STATS", "1".as_ref());
    }
    if args.tune {
        set("FABRICAST_TUNE", "now".as_ref());
    }
    if let Some(interface) = &args.interface {
        set("FABRICAST_INTERFACE", interface);
    }
    if let Some(loss) = args.inject_loss {
        set("FABRICAST_INJECT_LOSS", loss.to_string().as_ref());
    }
    variables
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identified(
        launcher: &str,
        named: Option<&str>,
        says: &str,
    ) -> Result<(Mpi, Export), String> {
        identify(Path::new(launcher), named, |_| says.into())
    }

    #[test]
    fn a_launcher_is_known_by_its_name_or_by_what_it_says() {
        let open = Ok((Mpi::Open, Export::X));
        let mpich = Ok((Mpi::Mpich, Export::Genv));
        for (launcher, says, known) in [
            ("/opt/bin/mpirun.openmpi", "", &open),
            ("/opt/bin/orterun", "", &open),
            ("/opt/bin/prterun", "", &open),
            ("/opt/bin/mpiexec.hydra", "", &mpich),
            ("/opt/bin/mpirun.mpich", "", &mpich),
            ("/opt/bin/mpirun", "mpirun (Open MPI) 4.1.4", &open),
            ("/opt/bin/mpiexec", "mpiexec (OpenRTE) 4.1.4", &open),
            ("/opt/bin/mpirun", "HYDRA build details:", &mpich),
        ] {
            assert_eq!(&identified(launcher, None, says), known, "{launcher}");
        }
        let unknown = identified("/opt/bin/mpirun", None, "something else").unwrap_err();
        assert!(unknown.contains("FABRICAST_MPI"), "{unknown}");
    }

    #[test]
    fn a_program_without_a_launcher_is_not_asked_what_it_is() {
        for program in ["./program", "./solver.mpich", "./openmpi-test"] {
            let never = |_: &Path| -> String { panic!("{program} was run") };
            let error = identify(Path::new(program), None, never).unwrap_err();
            assert!(error.contains("mpirun -n"), "{error}");
        }
    }

    #[test]
    fn what_is_said_counts_more_than_what_is_seen() {
        assert_eq!(
            identified("/opt/bin/mpirun.openmpi", Some("mpich"), ""),
            Ok((Mpi::Mpich, Export::Genv))
        );
        assert_eq!(
            identified("/usr/bin/srun", Some("openmpi"), ""),
            Ok((Mpi::Open, Export::Slurm))
        );
        for (named, word) in [(Some("lam"), "'lam'"), (None, "FABRICAST_MPI=")] {
            let error = identified("/usr/bin/srun", named, "slurm 23").unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    }

    fn options(words: &[&str]) -> args::Run {
        use clap::Parser;
        let words = ["fabricast", "run"].iter().chain(words);
        match args::Args::parse_from(words).command {
            args::Command::Run(run) => run,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn options_become_variables_and_go_before_those_that_are_there() {
        let environment = [
            ("FABRICAST", "on"),
            ("FABRICAST_SCHEME", "auto"),
            ("HOME", "/root"),
        ];
        let environment = environment.map(|(name, value)| (name.into(), value.into()));
        let args = options(&[
            "--verbose",
            "--stats",
            "--tune",
            "--inject-loss",
            "2",
            "--interface",
            "eth1",
            "--",
            "mpirun",
            "-n",
            "2",
            "--stats",
        ]);
        let variables = variables(&args, environment.into_iter());
        let told: Vec<String> = variables
            .iter()
            .map(|(name, value)| format!("{}={}", name.display(), value.display()))
            .collect();
        assert_eq!(
            told,
            [
                "FABRICAST_SCHEME=auto",
                "FABRICAST=verbose",
                "FABRICAST_STATS=1",
                "FABRICAST_TUNE=now",
                "FABRICAST_INTERFACE=eth1",
                "FABRICAST_INJECT_LOSS=0.02"
            ]
        );
        assert_eq!(args.command, ["mpirun", "-n", "2", "--stats"]);
    }
}
