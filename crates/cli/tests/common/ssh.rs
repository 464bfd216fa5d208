//! A real ssh, which starts a real sshd itself by its option ProxyCommand, so that nothing listens.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::hosts::Hosts;

const SSHD: &str = "/usr/sbin/sshd";
/// The folder that sshd wants if it runs as root.
const EMPTY: &str = "/run/sshd";

/// Makes `ssh_config` in the folder of these hosts, with keys of its own. By it ssh reaches hosts
/// of these names, with an sshd that these words of a shell start; `%h` in them is the host's name.
/// False, with a printed reason, without sshd.
pub fn prepare(hosts: &Hosts, names: &[&str], words: &str) -> bool {
    if !Path::new(SSHD).exists() {
        println!("skipped: {SSHD} is not installed (openssh-server)");
        return false;
    }
    if rustix::process::geteuid().is_root() {
        fs::create_dir_all(EMPTY).unwrap();
    }
    let path = |name: &str| hosts.dir.path(name).display().to_string();
    for key in ["host_key", "user_key"] {
        let made = Command::new("ssh-keygen")
            .args(["-q", "-t", "ed25519", "-N", "", "-f", &path(key)])
            .status();
        assert!(made.unwrap().success());
    }
    let public = fs::read_to_string(path("host_key.pub")).unwrap();
    let known = format!("{} {public}", names.join(","));
    fs::write(path("known_hosts"), known).unwrap();
    let server = format!(
        "HostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\nPidFile none\n\
         PermitRootLogin prohibit-password\nPasswordAuthentication no\n",
        path("host_key"),
        path("user_key.pub")
    );
    fs::write(path("sshd_config"), server).unwrap();
    let client = format!(
        "ProxyCommand {words} {SSHD} -i -f {}\nIdentityFile {}\nIdentitiesOnly yes\n\
         UserKnownHostsFile {}\nGlobalKnownHostsFile /dev/null\nStrictHostKeyChecking yes\n",
        path("sshd_config"),
        path("user_key"),
        path("known_hosts")
    );
    fs::write(path("ssh_config"), client).unwrap();
    true
}
