//! Tests of the library as C programs use it: `api/`, compiled against the committed header and run
//! as processes of its own.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The directory of the built library. Cargo does not build it for a test, because no Rust crate
/// can be linked with it.
fn built() -> PathBuf {
    let test = env::current_exe().unwrap();
    let here = test.ancestors().nth(2).unwrap().to_path_buf();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args([
        "build",
        "--quiet",
        "--locked",
        "--package",
        "fabricast-capi",
    ]);
    cargo.arg("--target-dir").arg(here.parent().unwrap());
    if here.ends_with("release") {
        cargo.arg("--release");
    }
    assert!(cargo.status().unwrap().success());
    here
}

fn compile(compiler: &str, name: &str, flags: &[&str]) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let library = built();
    let files = std::fs::read_dir(root.join("tests/api")).unwrap();
    let sources = files
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "c"));
    let program = library.join(format!("fabricast-capi-{name}"));
    let output = Command::new(compiler)
        .args(["-Wall", "-Wextra", "-Werror", "-g", "-pthread"])
        .args(flags)
        .arg(format!("-DVERSION=\"{}\"", env!("CARGO_PKG_VERSION")))
        .arg("-I")
        .arg(root)
        .arg("-o")
        .arg(&program)
        .args(sources)
        .arg("-L")
        .arg(&library)
        .arg("-lfabricast")
        .arg(format!("-Wl,-rpath,{}", library.display()))
        .output()
        .unwrap_or_else(|e| panic!("{compiler}: {e}"));
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    program
}

#[test]
fn a_program_in_c() {
    let program = compile("cc", "c11", &["-std=c11"]);
    let cases = [
        "words",
        "alone",
        "misuse",
        "sizes",
        "blocking",
        "nonblocking",
        "mismatch",
        "order",
        "schedules",
        "algorithms",
        "interface",
        "child",
        "lost",
        "outsiders",
    ];
    // The cases run with one process on each host, with two, and with all on one host.
    let hosts = cases.iter().flat_map(|case| ["1", "2"].map(|n| (*case, n)));
    for (case, per_host) in hosts.chain([("blocking", "4")]) {
        let output = Command::new(&program)
            .args([case, per_host])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let status = output.status;
        assert!(status.success(), "{case}, {per_host} on a host: {said}");
    }
}

/// FABRICAST_LOG says what is told: nothing, unless it is set.
#[test]
fn events_go_to_standard_error_if_the_environment_asks() {
    let program = compile("cc", "log", &["-std=c11"]);
    let told = |filter: Option<&str>| {
        let mut run = Command::new(&program);
        run.args(["blocking", "1"]).env_remove("FABRICAST_LOG");
        run.envs(filter.map(|filter| ("FABRICAST_LOG", filter)));
        let output = run.output().unwrap();
        assert!(output.status.success());
        String::from_utf8_lossy(&output.stderr).contains("wired up")
    };
    assert!(told(Some("info")));
    assert!(!told(Some("warn")));
    assert!(!told(None));
}

#[test]
fn the_header_is_one_of_older_and_newer_c_and_of_cpp() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (compiler, flags) in [
        ("cc", ["-std=c99", "-xc"]),
        ("cc", ["-std=c17", "-xc"]),
        ("c++", ["-std=c++11", "-xc++"]),
    ] {
        let output = Command::new(compiler)
            .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"])
            .args(flags)
            .arg(root.join("fabricast.h"))
            .output()
            .unwrap_or_else(|e| panic!("{compiler}: {e}"));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{compiler} {}: {said}", flags[0]);
    }
}
