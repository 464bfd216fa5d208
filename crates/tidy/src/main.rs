//! Prints what breaks the repository's rules; `--lower` lowers the numbers of `exceptions.toml`.

use std::process::ExitCode;

use fabricast_tidy::{Exceptions, RULES, Tree, exceptions_path, root};

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let lower = match std::env::args().nth(1).as_deref() {
        None => false,
        Some("--lower") => true,
        Some(other) => return Err(format!("unknown argument {other}; there is --lower").into()),
    };
    let tree = Tree::read(&root())?;
    let mut exceptions = Exceptions::parse(&std::fs::read_to_string(exceptions_path())?)?;
    let mut code = ExitCode::SUCCESS;
    for (name, rule) in RULES {
        let findings = rule(&tree);
        if lower {
            exceptions.lower(name, &findings);
        }
        for line in exceptions.judge(name, &findings) {
            println!("{line}");
            code = ExitCode::FAILURE;
        }
    }
    if lower {
        std::fs::write(exceptions_path(), exceptions.to_string())?;
    }
    Ok(code)
}
