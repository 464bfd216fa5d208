//! The state of a testbed's fabric is executed, so it must be the caller's own.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::fabric::TOOL;

/// A user other than the one who runs this test.
const USER: u32 = 65534;

/// Runs `log` of the fabric "x" as [`USER`], whose files are to be below `temporary`.
fn log(temporary: &Path) -> Output {
    let mut command = Command::new("setpriv");
    let user = [format!("--reuid={USER}"), format!("--regid={USER}")];
    command.args(user).args(["--clear-groups", "bash", TOOL]);
    command.args(["--name", "x", "log"]);
    command
        .env_remove("XDG_RUNTIME_DIR")
        .env("TMPDIR", temporary);
    command.output().expect("setpriv runs")
}

/// A folder in which each user may make files, as /tmp is. It is removed on drop.
struct Shared(PathBuf);

impl Shared {
    fn new() -> Shared {
        let name = format!("fabricast-shared-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, Permissions::from_mode(0o1777)).unwrap();
        Shared(folder)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_folder_that_others_have_made_is_refused() {
    let readable = Command::new("setpriv")
        .args([&format!("--reuid={USER}"), "--clear-groups", "cat", TOOL])
        .output();
    if !readable.is_ok_and(|output| output.status.success()) {
        println!("skipped: no other user can be had here, or reads this repository");
        return;
    }
    let shared = Shared::new();
    let temporary = shared.0.as_path();
    let state = temporary.join(format!("fabricast-opensm-{USER}"));
    let trace = temporary.join("executed");
    let fabric = state.join("x");
    fs::create_dir_all(&fabric).unwrap();
    fs::write(fabric.join("conf"), format!("touch {}\n", trace.display())).unwrap();
    fs::write(fabric.join("osm.log"), "a log").unwrap();
    let refused = |what: &str| {
        let output = log(temporary);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(what), "{said}");
        assert!(!trace.exists(), "the state of another user was executed");
    };
    refused("not a folder of this user");
    // The user's own, which others may write to.
    chown(&state, Some(USER), None).unwrap();
    fs::set_permissions(&state, Permissions::from_mode(0o777)).unwrap();
    refused("others may write to");
    // A link to a folder of the user's.
    let elsewhere = temporary.join("elsewhere");
    fs::set_permissions(&state, Permissions::from_mode(0o700)).unwrap();
    fs::rename(&state, &elsewhere).unwrap();
    symlink(&elsewhere, &state).unwrap();
    refused("not a folder of this user");
    // Only the user's own folder is used.
    fs::remove_file(&state).unwrap();
    fs::rename(&elsewhere, &state).unwrap();
    let output = log(temporary);
    assert!(output.status.success(), "{output:?}");
    assert!(trace.exists() && output.stdout == b"a log", "{output:?}");
}
