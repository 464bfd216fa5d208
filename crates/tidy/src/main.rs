//! Prints the findings that `exceptions.toml` does not allow; with `--all`, all findings. `--lower`
//! lowers the numbers of `exceptions.toml`.

use std::process::ExitCode;

use fabricast_tidy::{Exceptions, RULES, Tree, exceptions_path, root};

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let argument = std::env::args().nth(1);
    let (all, lower) = match argument.as_deref() {
        None => (false, false),
        Some("--all") => (true, false),
        Some("--lower") => (false, true),
        Some(other) => {
            return Err(format!("unknown argument {other}; there are --all and --lower").into());
        }
    };
    let tree = Tree::read(&root())?;
    let path = exceptions_path();
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let mut exceptions = match all {
        true => Exceptions::default(),
        false => Exceptions::parse(&text)?,
    };
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
        std::fs::write(path, exceptions.to_string())?;
    }
    Ok(code)
}
